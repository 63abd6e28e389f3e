"""Sets grown backwards are the sets between execution states that have one sink."""

from __future__ import annotations

import random

from fissile.orchestrate.grow import grow, is_convex, readers_of
from fissile.orchestrate.states import convex_sets, single_sink_sets, sinks


def draw_reads(rng: random.Random) -> list[list[int]]:
    count = rng.randint(1, 8)
    return [sorted(rng.sample(range(k), min(k, rng.randint(0, 3)))) for k in range(count)]


def test_grown_sets_are_those_of_the_execution_states() -> None:
    for seed in range(120):
        reads = draw_reads(random.Random(seed))
        for sink in range(len(reads)):
            found = list(grow(reads, readers_of(reads), sink))
            assert len(found) == len(set(found))
            assert set(found) == single_sink_sets(reads, sink)


def test_cheap_units_are_computed_again() -> None:
    reads = [[], [0], [1, 0]]
    free = set(grow(reads, readers_of(reads), 2, cheap={0}))
    assert frozenset({0, 2}) in free
    assert all(sinks(s, reads) == {2} for s in free)


def test_convexity_is_that_of_the_execution_states() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        reads = draw_reads(rng)
        known = convex_sets(reads)
        for _ in range(10):
            members = frozenset(k for k in range(len(reads)) if rng.random() < 0.5)
            assert not members or is_convex(members, reads) == (members in known)


def test_limits_keep_the_lowest_rank() -> None:
    reads = [[k - 1] if k else [] for k in range(30)]
    found = list(grow(reads, readers_of(reads), 29, limit=5, largest=3))
    assert [len(s) for s in found] == [1, 2, 3]
    found = list(grow(reads, readers_of(reads), 29, limit=5))
    assert len(found) == 5
