"""A part of a graph as a graph of its own, to be rewritten where that is cheap, and put back.

In: a graph and some of its nodes. Out: a `Window`: the nodes around them, what enters as inputs, what is read outside
as outputs. Invariant: convex, so that whatever replaces the window leaves the whole graph acyclic; its inputs keep the
types of what they stand for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fissile.ir.graph import Graph, Node, make, users
from fissile.ir.primitive import INPUT

REACH = 12  # how far a window reaches from the nodes it is made around
LARGEST = 200  # nodes it takes at most


@dataclass(frozen=True)
class Window:
    """graph: the part. inside: the node of the part for each node of the whole. outer: what its inputs stand for."""

    graph: Graph
    inside: Mapping[Node, Node]
    outer: Mapping[Node, Node]

    def rebuilt(self, better: Graph) -> dict[Node, Node]:
        """What the nodes of `better` are in the whole graph."""
        made = dict(self.outer)
        for node in better.nodes():
            if node not in made:
                inputs = tuple(made[i] for i in node.inputs)
                is_same = inputs == node.inputs
                made[node] = node if is_same else make(node.primitive, *inputs, **dict(node.attrs))
        return made

    def replaced(self, better: Graph) -> dict[Node, Node]:
        """For each output of the window in the whole graph, what `better` makes of it there."""
        made = self.rebuilt(better)
        back = {inner: whole for whole, inner in self.inside.items()}
        pairs = zip(self.graph.outputs, better.outputs, strict=True)
        return {back[old]: made[new] for (_, old), (_, new) in pairs if back[old] is not made[new]}


@dataclass(frozen=True)
class _Place:
    """Where a node stands in a graph. Sets of nodes are numbers, with the bit of each one's position.

    above: what it depends on; below: what depends on it; reads, readers: those next to it. known: no input takes part.
    """

    bit: int
    above: int
    below: int
    reads: int
    readers: int
    known: bool


class Surroundings:
    """A graph prepared for windows: nodes, readers, and what lies above and below each."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = graph.nodes()
        self.readers = users(self.nodes)
        self.places = _places(self.nodes, self.readers)

    def window(self, seeds: Sequence[Node]) -> Window:
        """The window around `seeds`."""
        chosen = self._around(seeds)
        inner: dict[Node, Node] = {}
        outer: dict[Node, Node] = {}
        for node in self.nodes:
            if node in chosen:
                inputs = tuple(self._entering(i, inner, outer) for i in node.inputs)
                is_same = inputs == node.inputs
                inner[node] = node if is_same else make(node.primitive, *inputs, **dict(node.attrs))
        shown = {n for _, n in self.graph.outputs} | set(self.graph.late.values())
        leaving = [
            n for n in inner
            if n in shown or any(r not in chosen for r in self.readers[n])
        ]  # fmt: skip
        outputs = tuple((f"y{k}", inner[n]) for k, n in enumerate(leaving))
        origins = {inner[n]: self.graph.origins.get(n, ()) for n in inner}
        return Window(Graph(tuple(outer), outputs, origins), inner, outer)

    def whole(self) -> Window:
        """The window of all nodes."""
        return Window(self.graph, {n: n for n in self.nodes}, {n: n for n in self.graph.inputs})

    def _entering(self, node: Node, inner: dict[Node, Node], outer: dict[Node, Node]) -> Node:
        if node in inner:
            return inner[node]
        if self.places[node].known:
            return node
        name = f"x{len(outer)}"
        stand_in = make(INPUT, name=name, dtype=node.dtype.name, shape=node.shape)
        for known, meant in outer.items():
            if meant is node:
                return known
        outer[stand_in] = node
        return stand_in

    def _around(self, seeds: Sequence[Node]) -> set[Node]:
        """What lies near the seeds, with all that lies on a way from one of it to another.

        It grows by neighbours that leave nothing between; what would leave something waits until that is in.
        """
        grown = _Grown()
        for node in seeds:
            grown.take(node, self.places[node])
        between = grown.above & grown.below & ~grown.inside
        for node in self.nodes if between else ():
            if self.places[node].bit & between:
                grown.take(node, self.places[node])
        for _ in range(REACH):
            before = len(grown.nodes)
            self._grow(grown)
            if len(grown.nodes) in (before, LARGEST):
                break
        return set(grown.nodes)

    def _grow(self, grown: _Grown) -> None:
        """Take in the neighbours of all that is in."""
        for node in [*grown.nodes]:
            for near in (*node.inputs, *self.readers[node]):
                place = self.places[near]
                if len(grown.nodes) >= LARGEST:
                    return
                if place.bit & grown.inside or place.known or _is_fed(near):
                    continue
                between = place.readers & grown.above | place.reads & grown.below
                if not between & ~grown.inside:
                    grown.take(near, place)


@dataclass
class _Grown:
    """The nodes of a window so far; inside: the same as a set; above, below: what they depend on, what does on them."""

    nodes: list[Node] = field(default_factory=list)
    inside: int = 0
    above: int = 0
    below: int = 0

    def take(self, node: Node, place: _Place) -> None:
        """Take in a node that is not in."""
        self.nodes.append(node)
        self.inside |= place.bit
        self.above |= place.above
        self.below |= place.below


def _places(nodes: Sequence[Node], readers: Mapping[Node, Sequence[Node]]) -> dict[Node, _Place]:
    bits = {node: 1 << k for k, node in enumerate(nodes)}
    above: dict[Node, int] = {}
    below: dict[Node, int] = {}
    known: dict[Node, bool] = {}
    for node in nodes:
        above[node] = _union(bits[i] | above[i] for i in node.inputs)
        known[node] = not _is_fed(node) and all(known[i] for i in node.inputs)
    for node in reversed(nodes):
        below[node] = _union(bits[r] | below[r] for r in readers[node])
    return {
        n: _Place(
            bits[n], above[n], below[n], _union(bits[i] for i in n.inputs),
            _union(bits[r] for r in readers[n]), known[n],
        )
        for n in nodes
    }  # fmt: skip


def _union(sets: Iterable[int]) -> int:
    total = 0
    for one in sets:
        total |= one
    return total


def _is_fed(node: Node) -> bool:
    """Whether a window ends there: nothing looks into what is given or opaque."""
    return node.name == "input" or node.primitive.kind == "opaque"
