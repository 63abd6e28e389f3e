"""Execution states of hand-made graphs: how many there are is known."""

from __future__ import annotations

import pytest

from fissile.orchestrate.states import (
    convex_sets,
    output_sets,
    single_sink_sets,
    sinks,
    states,
)


def chains(count: int, length: int) -> list[list[int]]:
    """`count` chains side by side, each of `length` primitives."""
    return [[k - 1] if k % length else [] for k in range(count * length)]


@pytest.mark.parametrize(
    ("count", "length", "number", "convex", "single"),
    [(1, 20, 21, 210, 210), (3, 5, 216, 4095, 45), (4, 3, 256, 2400, 24)],
)
def test_chains(count: int, length: int, number: int, convex: int, single: int) -> None:
    reads = chains(count, length)
    assert len(states(reads)) == number
    if count * length <= 12 or count == 1:
        assert len(convex_sets(reads)) == convex
        found = [single_sink_sets(reads, node) for node in range(count * length)]
        assert sum(map(len, found)) == single


def test_a_diamond_is_computed_whole_or_in_parts() -> None:
    reads = [[], [0], [0], [1, 2]]
    assert frozenset({0, 1, 2, 3}) in convex_sets(reads)
    assert frozenset({0, 1, 3}) not in convex_sets(reads)
    assert single_sink_sets(reads, 3) == {
        frozenset(s) for s in ({3}, {1, 3}, {2, 3}, {1, 2, 3}, {0, 1, 2, 3})
    }


def test_all_sinks_are_outputs_and_any_other_member_may_be() -> None:
    reads = [[], [0], [0]]
    members = frozenset({0, 1, 2})
    assert sinks(members, reads) == {1, 2}
    assert list(output_sets(members, reads)) == [frozenset({1, 2}), frozenset({0, 1, 2})]
