"""Where the members of a kernel over one shape have their elements, and whether they find each other there.

In: the primitives that are followed instead of stored, and the root of a kernel. `Places.add` answers whether one more
primitive can be computed at the row and column of the others. Invariant: whatever a placed primitive reads from another
placed one is that one's element of this very row and column.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fissile.ir import loop as L
from fissile.ir.affine import Space
from fissile.ir.graph import Node
from fissile.orchestrate.follow import Index, natural, pull


def reduces_last(node: Node) -> bool:
    """Whether a reduction goes over the last axes of what it reads, contiguously."""
    if not node.name.startswith("reduce_") or node.inputs[0].name == "window":
        return False
    axes, rank = node.attr("axes"), node.inputs[0].type.rank
    return tuple(axes) == tuple(range(rank - len(axes), rank)) and len(axes) > 0


def agrees(
    space: Space, inline: Collection[Node], placed: Mapping[Node, Index], node: Node, at: Index
) -> bool:
    """Whether everything `node` reads from what is placed, through what is inlined, stands at its place."""
    verdict = True
    values: dict[tuple[Node, Index], L.Expr] = {}

    def leaf(n: Node, index: Index) -> L.Expr | None:
        nonlocal verdict
        if n in placed:
            verdict = verdict and index == tuple(space.canonical(i) for i in placed[n])
        elif n in inline:
            return None
        return values.setdefault((n, index), L.var(f"value{len(values)}", n.dtype.compute))

    for source in node.inputs:
        pull(space, source, at, leaf)
    return verdict


class Places:
    """The members of a kernel over the shape of `full`, with or without reductions over its last axes.

    A root that reduces other axes makes a kernel over its own shape.
    """

    def __init__(self, inline: Collection[Node], root: Node, full: Node) -> None:
        self.inline, self.root = inline, root
        self.space = Space()
        self.columns: int | None = None  # how many last axes are reduced
        self.bytes: int | None = None  # of an element of what is reduced: rows have as many accumulators as fit
        self.blocked = root.primitive.reduced is not None and not reduces_last(root)
        whole = root if self.blocked else full
        self.at = natural(self.space, whole, "a")
        self.shape = whole.shape
        self.placed: dict[Node, Index] = {}

    def add(self, node: Node) -> bool:
        """Place `node`, after those it reads; False when its shape does not fit or its inputs stand elsewhere."""
        columns, size = self.columns, self.bytes
        place = self._place(node)
        if place is None or not self._agrees(node, place):
            self.columns, self.bytes = columns, size
            return False
        self.placed[node] = place
        return True

    def _place(self, node: Node) -> Index | None:
        """The index of the node's element at the current row and column, None when its shape does not fit."""
        if node.primitive.reduced is not None and not self.blocked:
            if not reduces_last(node) or node.inputs[0].shape != self.shape:
                return None
            count = len(node.attr("axes"))
            if self.columns not in (None, count) or self.bytes not in (None, node.dtype.bytes):
                return None
            self.columns, self.bytes = count, node.dtype.bytes
            return self.at[: len(self.at) - count]
        if node is self.root and self.blocked:
            return self.at
        if node.primitive.kind != "elementwise" and node is not self.root:
            return None
        return self._at_shape(node.shape)

    def _at_shape(self, shape: tuple[object, ...]) -> Index | None:
        if shape == self.shape:
            return self.at
        if self.columns is None:
            return None
        rows, rest = self.shape[: -self.columns], shape[len(self.shape) - self.columns :]
        if shape[: len(rows)] == rows and all(d == 1 for d in rest):
            return self.at[: len(rows)] + (L.const(0),) * len(rest)
        return None

    def _agrees(self, node: Node, place: Index) -> bool:
        where = self.at if node.primitive.reduced is not None else place
        return not self.placed or agrees(self.space, self.inline, self.placed, node, where)
