"""Execution states of a primitive graph and the kernels they define (Korch, Algorithm 1 and Definition 3).

In: for every primitive the primitives that it reads, by number. Out: the states (sets of finished primitives that a
run can pass through), the convex sets that lie between two states, and the output sets a kernel may have. This is the
definition, and the oracle of `fissile.orchestrate.grow` on small graphs; nothing else calls it, for it is exponential.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

Reads = Sequence[Sequence[int]]


def states(reads: Reads) -> list[frozenset[int]]:
    """Every set of primitives that holds what its members read, the empty set first."""
    found: dict[frozenset[int], None] = {}
    stack = [frozenset[int]()]
    while stack:
        state = stack.pop()
        if state in found:
            continue
        found[state] = None
        for node, sources in enumerate(reads):
            if node not in state and state.issuperset(sources):
                stack.append(state | {node})
    return list(found)


def convex_sets(reads: Reads) -> set[frozenset[int]]:
    """What lies between two states: the sets that one kernel can compute (Theorem 1), each once."""
    every = states(reads)
    return {after - before for before in every for after in every if before < after}


def sinks(members: frozenset[int], reads: Reads) -> frozenset[int]:
    """The members that no member reads."""
    read = {source for node in members for source in reads[node]}
    return members - read


def output_sets(members: frozenset[int], reads: Reads) -> Iterator[frozenset[int]]:
    """The possible output sets of a kernel: whatever is written, every member serves it. So all sinks are."""
    last = sinks(members, reads)
    inner = sorted(members - last)
    for count in range(len(inner) + 1):
        for chosen in itertools.combinations(inner, count):
            yield last | frozenset(chosen)


def single_sink_sets(reads: Reads, sink: int) -> set[frozenset[int]]:
    """The convex sets whose one sink is `sink`."""
    return {s for s in convex_sets(reads) if sinks(s, reads) == {sink}}
