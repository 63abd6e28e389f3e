"""What one call at a time has: claims that race, claims cut short, and that nothing is kept by what is over."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

from fissile.runtime.hold import Claimed, Hold


class Thing(Claimed):
    """Something to be claimed."""

    def __init__(self) -> None:
        self.holder = Hold()
        self.users = 0


def test_one_claim_wins() -> None:
    thing, wins, twice = Thing(), [0] * 4, list[int]()
    thing.holder.over = True

    def caller(k: int) -> None:
        while wins[k] < 1000:  # a claim may fail as long as who has the thing is not given the processor
            hold = Hold()
            if thing.claim(hold):
                thing.users += 1
                if thing.users != 1:
                    twice.append(k)
                wins[k] += 1
                thing.users -= 1
            hold.over = True

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=caller, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert not twice
    assert wins == [1000] * 4
    assert thing.claim(Hold())


def test_a_claim_cut_short_is_not_lost() -> None:
    thing, first = Thing(), thing_holder()
    thing.holder = first
    # what an exception leaves between the two steps of a claim: an heir that the thing does not know
    cut = Hold()
    vars(first)["heir"] = cut
    assert not thing.claim(Hold())  # that call may still be going on
    cut.over = True
    last = Hold()
    assert thing.claim(last)
    assert thing.holder is last
    assert not thing.claim(Hold())
    last.over = True
    assert thing.claim(Hold())


def test_what_is_over_keeps_no_later_hold() -> None:
    thing, first = Thing(), thing_holder()
    thing.holder = first
    seen = []
    for _ in range(100):
        hold = Hold()
        assert thing.claim(hold)
        hold.over = True
        seen.append(weakref.ref(hold))
    del hold
    gc.collect()
    assert sum(ref() is not None for ref in seen) <= 2
    assert first.over


def thing_holder() -> Hold:
    """A hold that is over."""
    hold = Hold()
    hold.over = True
    return hold
