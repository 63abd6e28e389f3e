"""A part of a graph as a graph of its own, to be rewritten where that is cheap, and put back.

In: a graph and some of its nodes. Out: a `Window`: the nodes around them, what enters as inputs, what is read outside
as outputs. Invariant: convex, so that whatever replaces the window leaves the whole graph acyclic; its inputs keep the
types of what they stand for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fissile.ir.graph import Graph, Node, make, users
from fissile.ir.primitive import INPUT

_LEAVES = ("input", "constant")
REACH = 12  # how far a window reaches from the nodes it is made around
LARGEST = 110  # nodes it takes at most, before it is made convex


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


@dataclass
class Surroundings:
    """A graph prepared for windows: positions and readers."""

    graph: Graph
    nodes: list[Node] = field(init=False)
    readers: dict[Node, list[Node]] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = self.graph.nodes()
        self.readers = users(self.nodes)

    def window(self, seeds: Sequence[Node]) -> Window:
        """The window around `seeds`."""
        chosen = self._convex(self._around(seeds))
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

    def _entering(self, node: Node, inner: dict[Node, Node], outer: dict[Node, Node]) -> Node:
        if node in inner:
            return inner[node]
        if node.name == "constant":
            return node
        name = f"x{len(outer)}"
        stand_in = make(INPUT, name=name, dtype=node.dtype.name, shape=node.shape)
        for known, meant in outer.items():
            if meant is node:
                return known
        outer[stand_in] = node
        return stand_in

    def _around(self, seeds: Sequence[Node]) -> set[Node]:
        chosen = dict.fromkeys(seeds)
        border = list(chosen)
        for _ in range(REACH):
            found: dict[Node, None] = {}
            for node in border:
                for other in (*node.inputs, *self.readers[node]):
                    if other not in chosen and other.name not in _LEAVES and not _is_opaque(other):
                        found[other] = None
            if len(chosen) + len(found) > LARGEST:
                break
            chosen.update(found)
            border = list(found)
        return set(chosen)

    def _convex(self, chosen: set[Node]) -> set[Node]:
        """`chosen` and all that lies on a way from one of it to another."""
        after: set[Node] = set()
        for node in self.nodes:
            if any(i in after or i in chosen for i in node.inputs):
                after.add(node)
        before: set[Node] = set()
        for node in reversed(self.nodes):
            if any(r in before or r in chosen for r in self.readers[node]):
                before.add(node)
        return chosen | (after & before)


def _is_opaque(node: Node) -> bool:
    return node.primitive.kind == "opaque"
