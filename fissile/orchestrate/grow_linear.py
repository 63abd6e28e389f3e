"""Growing a kernel from a linear primitive: the epilogue that runs on its register tile.

Elementwise primitives of the same element join, and so do reshapes and transposes behind them as long as a tile's
columns stay contiguous in what is finally stored. The result has one output.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from fissile.ir import loop as L
from fissile.ir.affine import Space
from fissile.ir.dim import equal
from fissile.ir.graph import Node
from fissile.ir.primitive import flatten
from fissile.orchestrate.follow import Index, natural, push
from fissile.orchestrate.places import agrees


class Growth(Protocol):
    """What growing needs to know about the graph."""

    inline: set[Node]
    readers: dict[Node, list[Node]]
    outputs: set[Node]
    position: dict[Node, int]

    def depends(self, node: Node, root: Node, members: Collection[Node]) -> bool:
        """Whether `node` waits for one of the members, the first of which is the root."""

    def awaited(self, node: Node) -> list[Node]:
        """The tensors that must be there before `node` is computed."""

    def free(self, node: Node) -> bool:
        """Whether `node` still needs a kernel."""


class Waiting:
    """Nodes that wait for their turn, by position; each stands there once."""

    def __init__(self, position: Mapping[Node, int], nodes: Iterable[Node]) -> None:
        self._position, self._nodes = position, dict[int, Node]()
        self._heap: list[int] = []
        self.add(nodes)

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, nodes: Iterable[Node]) -> None:
        """Let them wait, too."""
        for node in nodes:
            place = self._position[node]
            if place not in self._nodes:
                self._nodes[place] = node
                heapq.heappush(self._heap, place)

    def first(self) -> Node:
        """Take the first one."""
        return self._nodes.pop(heapq.heappop(self._heap))


def grow_linear(growth: Growth, root: Node) -> list[Node]:
    """`root` and its epilogue, producers first; the last member is the one output."""
    space = Space()
    at = linear_index(space, root)
    placed: dict[Node, Index] = {root: at}
    best = [root]
    members = [root]
    waiting = Waiting(growth.position, growth.readers[root])
    while waiting:
        node = waiting.first()
        where = None if node in placed else _placed_at(growth, space, placed, root, node)
        if where is None:
            continue
        placed[node] = where
        members.append(node)
        waiting.add(growth.readers[node])
        if _one_output(growth, members) and stores_rows(space, node, where, at):
            best = list(members)
    return best


def linear_index(space: Space, root: Node) -> Index:
    """The index of an output element of a linear primitive: one variable per axis, the last is `n`."""
    return (*natural(space, root, "m")[:-1], space.loop("n", root.shape[-1]))


def _placed_at(
    growth: Growth, space: Space, placed: dict[Node, Index], root: Node, node: Node
) -> Index | None:
    """Where `node`'s element of the current tile element is, None when it cannot join."""
    if node in growth.outputs and node.name == "reshape":
        pass  # an output that only renames the axes: stored by this very kernel
    elif node.name not in ("reshape", "transpose") and not growth.free(node):
        return None
    outside = [leaf for leaf in growth.awaited(node) if leaf not in placed]
    if any(growth.depends(leaf, root, placed) for leaf in outside):
        return None
    if node.name in ("reshape", "transpose"):
        return push(space, node, placed[node.inputs[0]]) if node.inputs[0] in placed else None
    if node.primitive.kind != "elementwise":
        return None
    at = next(placed[i] for i in node.inputs if i in placed)
    return at if agrees(space, growth.inline, placed, node, at) else None


def _one_output(growth: Growth, members: list[Node]) -> bool:
    inside = set(members)
    readers = growth.readers
    is_open = [
        m in growth.outputs or any(u not in inside for u in readers[m]) or not readers[m]
        for m in members
    ]
    return is_open.count(True) == 1 and is_open[-1]


def stores_rows(space: Space, node: Node, at: Index, natural_at: Index) -> bool:
    """Whether a step along `n` is one element in the stored tensor."""
    n = natural_at[-1]
    address = space.affine(flatten(at, node.shape, space.extent))
    inside = any(n in L.walk(atom) for atom, _ in address.terms if atom is not n)
    if inside:
        return False
    return equal(node.shape[-1] if not isinstance(n, L.Var) else 1, 1) is True and (
        equal(address.coefficient(n), 1) is True
        or (isinstance(n, L.Var) and equal(space.ranges[n], 1) is True)
    )
