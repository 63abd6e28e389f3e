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
from typing import TypeVar

T = TypeVar("T")


@dataclass
class Interrupts:
    """is_pending: a signal has come that nobody has taken note of."""

    is_pending: bool = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The handler of the signal."""
        self.is_pending = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """KeyboardInterrupt if one was lost."""
        if self.is_pending:
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
def listening() -> Iterator[Interrupts]:
    """Interrupts of the block; those of the surrounding one where blocks are nested."""
    before = signal.getsignal(signal.SIGINT)
    outer = getattr(before, "__self__", None)
    if isinstance(outer, Interrupts):
        yield outer
        return
    found = Interrupts()
    is_ours = before is signal.default_int_handler
    if not is_ours or threading.current_thread() is not threading.main_thread():
        yield found
        return
    signal.signal(signal.SIGINT, found.handle)
    try:
        yield found
    finally:
        signal.signal(signal.SIGINT, before)
