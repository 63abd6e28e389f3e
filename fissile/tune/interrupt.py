"""Ctrl-C that is never lost: SIGINT raises KeyboardInterrupt at once, and again later should nobody have seen it.

In: a block of code. Out: `Interrupts`, which the block asks now and then. Python drops an exception that a signal
raises inside a weak reference's callback or a finalizer, and importing modules runs many of those. Invariant: the
handler that was there before is there afterwards; one that a program has set itself stays.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
_DEFAULTS: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@dataclass
class Interrupts:
    """is_pending: a signal has come that nobody has taken note of. is_held: nothing is raised now."""

    is_pending: bool = False
    is_held: bool = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The handler of the signals."""
        self.is_pending = True
        if not self.is_held:
            raise KeyboardInterrupt

    def check(self) -> None:
        """KeyboardInterrupt if one was lost."""
        if self.is_pending and not self.is_held:
            self.is_pending = False
            raise KeyboardInterrupt

    def passing(self, told: Callable[[T], None]) -> Callable[[T], None]:
        """`told`, with a check before it."""

        def checked(what: T) -> None:
            self.check()
            told(what)

        return checked

    def take(self) -> None:
        """Take note: the interruption has arrived where it is dealt with."""
        self.is_pending = False

    @contextmanager
    def holding(self) -> Iterator[None]:
        """A block that is short and not left halfway: an interruption waits for the next check after it."""
        before, self.is_held = self.is_held, True
        try:
            yield
        finally:
            self.is_held = before


@contextmanager
def listening(*more: signal.Signals) -> Iterator[Interrupts]:
    """Interrupts of the block; those of the surrounding one where blocks are nested.

    more: signals beside SIGINT that mean the same. SIGTERM does only where the block ends the program.
    """
    outer = [getattr(signal.getsignal(number), "__self__", None) for number in _DEFAULTS]
    if found := [h for h in outer if isinstance(h, Interrupts)]:
        yield found[0]
        return
    heard = Interrupts()
    ours = [n for n in (signal.SIGINT, *more) if signal.getsignal(n) is _DEFAULTS[n]]
    if threading.current_thread() is not threading.main_thread():
        ours = []
    for number in ours:
        signal.signal(number, heard.handle)
    try:
        yield heard
    finally:
        for number in ours:
            signal.signal(number, _DEFAULTS[number])
