"""Growing the sets of primitives that one kernel may compute, backwards from the one whose value it writes.

In: for every unit of a graph the units that it reads, by number, and a sink. Out: sets with that one sink, each once,
those of the lowest rank first. A set is convex but for units that are cheap to compute again. Invariant: without cheap
units, limits and refusals these are the single-sink sets of Korch's execution states (`fissile.orchestrate.states`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence

Reads = Sequence[Sequence[int]]


def readers_of(reads: Reads) -> list[list[int]]:
    """For every unit the units that read it."""
    found: list[list[int]] = [[] for _ in reads]
    for unit, sources in enumerate(reads):
        for source in sources:
            found[source].append(unit)
    return found


class Ancestors:
    """The sink and all that it needs, found as far back as anybody asks; numbers are topological."""

    def __init__(self, reads: Reads, sink: int) -> None:
        self.reads, self.found = reads, {sink}
        self._heap = [-sink]

    def back_to(self, unit: int) -> set[int]:
        """Those with this number or a higher one, and perhaps others."""
        while self._heap and -self._heap[0] > unit:
            for source in self.reads[-heapq.heappop(self._heap)]:
                if source not in self.found:
                    self.found.add(source)
                    heapq.heappush(self._heap, -source)
        return self.found


def is_convex(members: Collection[int], reads: Reads) -> bool:
    """Whether no path leaves the set and comes back."""
    outside = {source for unit in members for source in reads[unit]} - set(members)
    lowest = min(members)
    seen: set[int] = set()
    stack = [unit for unit in outside if unit > lowest]  # numbers are topological
    while stack:
        unit = stack.pop()
        if unit in members:
            return False
        if unit not in seen and unit > lowest:
            seen.add(unit)
            stack.extend(reads[unit])
    return True


def grow(
    reads: Reads,
    readers: Reads,
    sink: int,
    *,
    accepts: Callable[[frozenset[int]], bool] = lambda members: True,
    cheap: Collection[int] = (),
    rank: Callable[[frozenset[int]], float] = len,
    limit: int | None = None,
    largest: int | None = None,
) -> Iterator[frozenset[int]]:
    """Sets of units whose one sink is `sink`, by rank; what `accepts` refuses is not grown further.

    cheap: units that may be computed here although others read them in memory. limit: of sets; largest: units in one.
    """
    needed = Ancestors(reads, sink)
    first = frozenset((sink,))
    heap = [(0.0, 0, first)]
    seen = {first}
    given = 0
    while heap and (limit is None or given < limit):
        members = heapq.heappop(heap)[-1]
        if not accepts(members):
            continue
        given += 1
        yield members
        if largest is not None and len(members) >= largest:
            continue
        for unit in sorted({s for m in members for s in reads[m]} - members, reverse=True):
            whole = unit in cheap or members.issuperset(_reading(unit, reads, readers, needed))
            larger = members | {unit}
            if whole and larger not in seen:
                seen.add(larger)
                heapq.heappush(heap, (rank(larger), len(seen), larger))


def _reading(unit: int, reads: Reads, readers: Reads, needed: Ancestors) -> Iterator[int]:
    """The readers of a unit that the sink needs."""
    known = needed.back_to(unit)
    if len(known) < len(readers[unit]):
        return (r for r in known if unit in reads[r])
    return (r for r in readers[unit] if r in known)
