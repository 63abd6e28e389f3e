"""Hash-consing: one object per value, so that equality is identity and equal subexpressions are shared for free.

A class whose metaclass is `Interned` returns the existing live instance when it is called with equal arguments. Its
arguments must be hashable; the instances themselves hash by identity.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary


class Interned(type):
    """Metaclass: `C(*args)` is the same object whenever the arguments are equal and one is still alive."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        cls._instances: WeakValueDictionary[Any, Any] = WeakValueDictionary()

    def __call__(cls, *args: Any) -> Any:
        found = cls._instances.get(args)
        if found is None:
            found = super().__call__(*args)
            cls._instances[args] = found
        return found
