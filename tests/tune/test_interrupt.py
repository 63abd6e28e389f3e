"""Interruptions: one that Python drops comes back at the next check, one that arrived does not."""

from __future__ import annotations

import signal
import weakref
from collections.abc import Iterator

import pytest

from fissile.tune.interrupt import Interrupts, listening


@pytest.fixture(autouse=True)
def _as_in_a_terminal() -> Iterator[None]:
    """A shell has processes in the background ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Thing:
    pass


def swallowed() -> None:
    """SIGINT where Python ignores what it raises."""
    thing = Thing()
    keep = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
    del thing
    assert keep() is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_lost_interruption_comes_back() -> None:
    with listening() as heard:
        swallowed()
        told: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            heard.passing(told.append)(1)
        heard.passing(told.append)(2)
    assert told == [2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_one_that_arrives_does_not() -> None:
    with listening() as heard, listening() as inner:
        assert inner is heard
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        inner.take()
        heard.check()


def test_what_is_held_comes_afterwards() -> None:
    done = []
    with listening() as heard:
        with heard.holding():
            signal.raise_signal(signal.SIGINT)
            heard.check()
            done.append(1)
        assert heard.is_pending
        with pytest.raises(KeyboardInterrupt):
            heard.check()
    assert done == [1]


@pytest.mark.parametrize("ignored", [False, True])
def test_other_signals_mean_the_same_where_asked_for(ignored: bool) -> None:
    if ignored:  # as a shell has it for processes in the background
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    before = signal.getsignal(signal.SIGTERM)
    with listening(signal.SIGTERM) as heard, listening() as inner:
        assert inner is heard
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        inner.take()
        heard.check()
    assert signal.getsignal(signal.SIGTERM) is before
    with listening():
        assert signal.getsignal(signal.SIGTERM) is before


def test_a_handler_of_the_program_stays() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with listening() as heard:
            signal.raise_signal(signal.SIGINT)
            assert heard == Interrupts()
    finally:
        signal.signal(signal.SIGINT, before)
