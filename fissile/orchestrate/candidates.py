"""Candidate kernels of a primitive graph: what may be one kernel, and what it reads, writes and executes.

In: a packed primitive graph. Out: `Candidates`: for every unit the sets with that one sink that are kernels, grown
backwards by least traffic; kernels that also store what they compute on the way; sibling reductions over one input;
and the kernels of the greedy plan, so that no plan is worse than it. Reasons of refusals are counted. Invariant: the
units by themselves are candidates, so a plan always exists.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fissile.ir.graph import Node
from fissile.orchestrate.attention import attentions
from fissile.orchestrate.chain import chains
from fissile.orchestrate.formats import is_tiled
from fissile.orchestrate.grow import grow, is_convex
from fissile.orchestrate.identify import COSTLY, Refusal, Region, identify, memory_reads
from fissile.orchestrate.places import reduces_last
from fissile.orchestrate.plan import Anchor, Kernel, Plan, is_stored_leaf
from fissile.orchestrate.units import Units, representative_bytes, units_of


@dataclass(frozen=True)
class Limits:
    """What keeps wide graphs tractable: sets per sink, units in one set, tensors stored on the way."""

    per_sink: int = 40
    largest: int = 24
    stored: int = 3


@dataclass(frozen=True)
class Candidate:
    """A kernel with the numbers of the units that it reads, writes and executes."""

    kernel: Kernel
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    executes: frozenset[int]


@dataclass(frozen=True)
class Candidates:
    """All candidates of a graph. greedy: those of the greedy plan. refused: reasons and how often they were given.

    limited: sinks with more sets than were looked at.
    """

    units: Units
    all: tuple[Candidate, ...]
    greedy: tuple[int, ...]
    refused: Mapping[str, int]
    limited: int


def candidates_of(plan: Plan, limits: Limits | None = None) -> Candidates:
    """The candidates of the graph of a greedy plan (which is packed and owns its outputs)."""
    stored = {n for kernel in plan.kernels() for n in kernel.outputs}
    search = _Search(units_of(plan.graph, stored), limits or Limits())
    greedy = [search.keep(search.of_kernel(kernel)) for kernel in plan.kernels()]
    for sink in range(len(search.units.all)):
        search.grow_from(sink)
    search.add_siblings()
    search.add_chains(plan)
    return Candidates(
        search.units, tuple(search.found), tuple(greedy), search.refused, search.limited
    )


@dataclass
class _Search:
    """Candidates while they are found: each kernel once, in order."""

    units: Units
    limits: Limits
    found: dict[Candidate, int] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    limited: int = 0

    def __post_init__(self) -> None:
        self.position = {n: k for k, n in enumerate(self.units.graph.nodes())}
        self.outputs = set(self.units.needed)
        self.calls: dict[str, list[Node]] = {}
        for unit in self.units.all:
            if unit.value.name == "foreign":
                self.calls.setdefault(unit.value.attr("key"), []).append(unit.value)
        cheap = {u for u in range(len(self.units.all)) if self._is_cheap(u)}
        self.cheap = {u for u in cheap if not is_tiled(self.units.all[u].value)}
        self.bytes = [representative_bytes(unit.value) for unit in self.units.all]

    def keep(self, candidate: Candidate) -> int:
        """Add a candidate; its number."""
        return self.found.setdefault(candidate, len(self.found))

    def _is_cheap(self, number: int) -> bool:
        """Whether a unit may be computed again by every reader: layouts, and elementwise with one costly function."""
        nodes = self.units.all[number].nodes
        kinds = {n.primitive.kind for n in nodes}
        alone = nodes[-1].name in ("concat", "pack")
        return (
            kinds <= {"elementwise", "layout", "broadcast"}
            and not alone
            and sum(n.name in COSTLY for n in nodes) <= 1
        )

    # -------------------------------------------------------- kernels of sets

    def region(self, members: frozenset[int], outputs: tuple[int, ...]) -> Region:
        """The nodes of some units in topological order."""
        nodes = {n for u in members for n in self.units.all[u].nodes}
        ordered = tuple(sorted(nodes, key=self.position.__getitem__))
        written = tuple(self.units.all[u].value for u in outputs)
        return Region(ordered, written, self.units.followed)

    def identify(self, members: frozenset[int], outputs: tuple[int, ...]) -> Kernel | None:
        """The kernel of a set, None (and the reason counted) when it is none."""
        sink = self.units.all[outputs[-1]]
        if sink.value.name == "concat":
            found = self._piece(members, outputs[-1])
        elif sink.value.name == "foreign":
            found = self._foreign(members, outputs[-1])
        else:
            found = identify(self.region(members, outputs))
        if isinstance(found, Refusal):
            self.refused[found.reason] += 1
            return None
        return found

    def _piece(self, members: frozenset[int], sink: int) -> Kernel | Refusal:
        """One input of a concat, computed on its way into its place."""
        unit = self.units.all[sink]
        inner = self.region(members - {sink}, ()).nodes
        source, followed = unit.value.inputs[unit.piece], self.units.followed
        if inner:
            before = identify(Region(inner, (inner[-1],), followed))
            if isinstance(before, Refusal):
                return before
            if before.anchor is not Anchor.ELEMENTWISE or inner[-1].name == "concat":
                return Refusal("only elementwise primitives and layouts are computed into a concat")
        own = (*inner, source) if source in followed else inner
        reads = memory_reads(own, followed) if own else (source,)
        return Kernel(Anchor.PIECE, (unit.value,), reads, (unit.value,), unit.piece)

    def _foreign(self, members: frozenset[int], sink: int) -> Kernel | Refusal:
        """An operator that runs in Python, with all its outputs at once."""
        if len(members) > 1:
            return Refusal("nothing is computed in front of foreign in its kernel")
        value = self.units.all[sink].value
        same = self.calls[value.attr("key")]
        return Kernel(Anchor.FOREIGN, tuple(same), tuple(dict.fromkeys(value.inputs)), tuple(same))

    def of_kernel(self, kernel: Kernel) -> Candidate:
        """The candidate of a kernel: what it executes is all between its inputs and its nodes."""
        inputs, followed = set(kernel.inputs), self.units.followed
        executes: set[int] = set()
        seen: set[Node] = set()
        stack = list(kernel.nodes)
        if kernel.anchor is Anchor.PIECE:
            executes.add(self.units.of[kernel.nodes[0]][kernel.piece])
            stack = [kernel.nodes[0].inputs[kernel.piece]]
        while stack:
            node = stack.pop()
            if node in seen or (node in inputs and node not in kernel.nodes):
                continue
            seen.add(node)
            executes.update(self.units.of.get(node, ()))
            stack.extend(node.inputs)
        if kernel.anchor is Anchor.PIECE:
            writes = self.units.of[kernel.nodes[0]][kernel.piece :][:1]
        else:
            writes = tuple(u for n in kernel.outputs for u in self.units.of[n])
        reads = (u for e in sorted(executes) for u in self.units.reads[e] if u not in executes)
        stored = (u for n in kernel.inputs if n not in followed for u in self.units.of.get(n, ()))
        return Candidate(
            kernel, tuple(dict.fromkeys((*stored, *reads))), writes, frozenset(executes)
        )

    # -------------------------------------------------------- growing

    def grow_from(self, sink: int) -> None:
        """All kernels whose one sink is this unit, and those that store more on the way."""
        if is_stored_leaf(self.units.all[sink].value):
            return
        kernels: dict[frozenset[int], Kernel] = {}

        def accepts(members: frozenset[int]) -> bool:
            kernel = self.identify(members, (sink,))
            if kernel is not None:
                kernels[members] = kernel
            return kernel is not None

        readers = self.units.readers
        limit, largest = self.limits.per_sink, self.limits.largest
        grown = grow(
            self.units.reads, readers, sink,
            accepts=accepts, cheap=self.cheap, rank=self._traffic, limit=limit, largest=largest,
        )  # fmt: skip
        count = sum(1 for members in grown if self._add(members, sink, kernels[members]))
        self.limited += count >= limit

    def _add(self, members: frozenset[int], sink: int, kernel: Kernel) -> bool:
        self.keep(self.of_kernel(kernel))
        if kernel.anchor in (Anchor.ROWS, Anchor.REDUCE, Anchor.ELEMENTWISE):
            for outputs in self._stored_on_the_way(members, sink):
                more = self.identify(members, outputs)
                if more is not None:
                    self.keep(self.of_kernel(more))
        return True

    def _traffic(self, members: frozenset[int]) -> float:
        """Bytes that a set reads; a linear primitive that others need, too, comes last."""
        reads = self.units.reads
        outside = {s for m in members for s in reads[m]} - members
        return sum(self.bytes[u] for u in outside) + 1e-3 * len(members)

    def _stored_on_the_way(self, members: frozenset[int], sink: int) -> Iterator[tuple[int, ...]]:
        """Output sets of a convex set: some inner values that others read, then the sink."""
        wanted = [
            u
            for u in sorted(members - {sink})
            if u in self.outputs or any(r not in members for r in self.units.readers[u])
        ]
        if not wanted or not is_convex(members, self.units.reads):
            return
        few = wanted[-self.limits.stored :]
        for count in range(1, len(few) + 1):
            for chosen in itertools.combinations(few, count):
                yield (*chosen, sink)
        if len(wanted) > len(few):
            yield (*wanted, sink)

    # -------------------------------------------------------- chains and siblings

    def add_chains(self, plan: Plan) -> None:
        """Kernels of the greedy plan that are one kernel together although each has a linear primitive."""
        followed = self.units.followed
        for found in itertools.chain(chains(plan, followed), attentions(plan, followed)):
            if isinstance(found, Refusal):
                self.refused[found.reason] += 1
            else:
                self.keep(self.of_kernel(found))

    def add_siblings(self) -> None:
        """Reductions over the last axes of one tensor, which one pass computes."""
        groups: dict[tuple[object, ...], list[int]] = {}
        for number, unit in enumerate(self.units.all):
            node = unit.nodes[0]
            if len(unit.nodes) == 1 and reduces_last(node):
                for source in self.units.reads[number] or (-1,):
                    key = (source, node.inputs[0].shape, node.attr("axes"))
                    groups.setdefault(key, []).append(number)
        for group in groups.values():
            for a, b in itertools.combinations(group[:6], 2):
                shared = set(self.units.reads[a]) & set(self.units.reads[b])
                for more in (frozenset[int](), frozenset(shared)):
                    members = more | {a, b}
                    if is_convex(members, self.units.reads):
                        kernel = self.identify(members, (a, b))
                        if kernel is not None:
                            self.keep(self.of_kernel(kernel))
