"""Linear primitives that share an operand become one (Korch section 4): QKV, sibling convolutions, parallel branches.

In: several linear primitives with one operand in common, or equal elementwise primitives over slices of one tensor.
Out: one primitive over joined operands, and slices of it. Invariant: every element is computed as before.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from fissile.ir.dim import DimLike
from fissile.ir.graph import Node, make
from fissile.ir.primitive import CONCAT, CONSTANT, CONV, MATMUL, SLICE, constant, constant_value
from fissile.rewrite.maps import per_channel
from fissile.rewrite.rule import ELEMENTWISE, Refused, joining
from fissile.rewrite.shape import broadcast, is_same, is_same_shape, view

_TWO = 2


def slice_along(x: Node, axis: int, start: DimLike, extent: DimLike) -> Node:
    """x[.., start : start + extent, ..] along one axis."""
    starts: list[DimLike] = [0] * x.type.rank
    shape = list(x.shape)
    starts[axis], shape[axis] = start, extent
    steps = (1,) * x.type.rank
    return make(SLICE, x, starts=tuple(starts), steps=steps, shape=tuple(shape))


def cut(whole: Node, axis: int, like: Sequence[Node]) -> tuple[Node, ...]:
    """`whole` cut along an axis into pieces with the extents of `like`."""
    pieces = []
    start: DimLike = 0
    for node in like:
        pieces.append(slice_along(whole, axis, start, node.shape[axis]))
        start = start + node.shape[axis]
    return tuple(pieces)


def _left(node: Node) -> Hashable | Refused:
    if node.inputs[1].primitive is not CONSTANT:
        return Refused("the weights are not constant")
    return node.inputs[0]


@joining("x w, x v -> slices of x [w v]", "matmul", key=_left)
def merge_products(nodes: tuple[Node, ...]) -> tuple[Node, ...] | Refused:
    """One pass over the shared left operand (the projections of attention)."""
    axis = nodes[0].type.rank - 1
    weights = make(CONCAT, *(n.inputs[1] for n in nodes), axis=axis)
    return cut(make(MATMUL, nodes[0].inputs[0], weights), axis, nodes)


def row_operand(node: Node) -> Hashable | Refused:
    """The left operand of a product, or what a sum over the last axis sums."""
    if node.name == "matmul":
        return node.inputs[0]
    x = node.inputs[0]
    if node.attr("axes") != (x.type.rank - 1,) or x.type.rank < _TWO:
        return Refused("it does not sum over the last axis alone")
    if not isinstance(x.shape[-1], int):
        return Refused("how many elements are summed is not known")
    return x


@joining("a b, sum of a -> slices of a [b 1]", "matmul", "reduce_sum", key=row_operand)
def sum_beside_product(nodes: tuple[Node, ...]) -> tuple[Node, ...] | Refused:
    """A sum is a product with ones, and shares the pass over the operand (Korch section 6: linear attention)."""
    products = [n for n in nodes if n.name == "matmul"]
    sums = [n for n in nodes if n.name == "reduce_sum"]
    if not products or not sums:
        return Refused("there is no product beside a sum")
    x = nodes[0].inputs[0]
    axis, batch = x.type.rank - 1, x.shape[:-2]
    ones = constant(np.ones((1, 1), x.dtype.numpy), x.dtype)
    column = broadcast(ones, (*batch, x.shape[-1], 1))
    joined = make(CONCAT, *(n.inputs[1] for n in products), column, axis=axis)
    whole = make(MATMUL, x, joined)
    pieces = cut(whole, axis, products)
    sum_ = slice_along(whole, axis, whole.shape[-1] - 1, 1)
    made = dict(zip(products, pieces, strict=True))
    return tuple(made.get(n) or view(sum_, n.shape) for n in nodes)


def _right(node: Node) -> Hashable | Refused:
    if node.type.rank != _TWO:
        return Refused("the product has a batch")
    return node.inputs[1]


@joining("x w, y w -> slices of [x; y] w", "matmul", key=_right)
def merge_rows(nodes: tuple[Node, ...]) -> tuple[Node, ...] | Refused:
    """One pass over the shared right operand."""
    joined = make(CONCAT, *(n.inputs[0] for n in nodes), axis=0)
    return cut(make(MATMUL, joined, nodes[0].inputs[1]), 0, nodes)


def _window_of(node: Node) -> Hashable | Refused:
    weights = constant_value(node.inputs[1])
    if weights is None:
        return Refused("the weights are not constant")
    if node.attr("groups") != 1:
        return Refused("it has groups")
    return node.inputs[0], weights.shape[:-2], node.attr("strides"), node.attr("dilations")


@joining("conv(x, w), conv(x, v) -> slices of conv(x, [w v])", "conv", key=_window_of)
def merge_convolutions(nodes: tuple[Node, ...]) -> tuple[Node, ...] | Refused:
    """One pass over the windows of the shared input."""
    axis = nodes[0].type.rank - 1
    weights = make(CONCAT, *(n.inputs[1] for n in nodes), axis=axis)
    whole = make(CONV, nodes[0].inputs[0], weights, **dict(nodes[0].attrs))
    return cut(whole, axis, nodes)


def _sliced_operand(node: Node) -> tuple[int, Node] | Refused:
    """(position, slice) of the one operand that is a slice along the last axis, beside constants per channel."""
    found: tuple[int, Node] | None = None
    for k, x in enumerate(node.inputs):
        if per_channel(x) is not None:
            continue
        if x.primitive is not SLICE or found is not None:
            return Refused(f"operand {k} is neither a slice nor a constant per channel")
        found = k, x
    if found is None:
        return Refused("no operand is a slice")
    x = found[1]
    whole = x.inputs[0]
    if any(step != 1 for step in x.attr("steps")):
        return Refused("the slice has steps")
    if not is_same_shape(x.shape[:-1], whole.shape[:-1]) or is_same(x.shape[-1], whole.shape[-1]):
        return Refused("the slice is not one of the last axis")
    return found


def _over_slices(node: Node) -> Hashable | Refused:
    found = _sliced_operand(node)
    if isinstance(found, Refused):
        return found
    return node.name, found[0], found[1].inputs[0], node.attrs


@joining("f(x[a:b], c), f(x[b:d], e) -> slices of f(x[a:d], [c e])", *ELEMENTWISE, key=_over_slices,
         opens=False)  # fmt: skip
def join_slices(nodes: tuple[Node, ...]) -> tuple[Node, ...] | Refused:
    """What follows a merged product is computed on the whole of it, in its epilogue."""
    slices = [_sliced_operand(n) for n in nodes]
    placed = [(s[1].attr("starts")[-1], n, s) for n, s in zip(nodes, slices, strict=True)
              if not isinstance(s, Refused)]  # fmt: skip
    if any(not isinstance(start, int) for start, _, _ in placed):
        return Refused("where the slices begin is not known")
    placed.sort(key=lambda row: row[0])
    end: DimLike = placed[0][0]
    for start, node, _ in placed:
        if not is_same(start, end):
            return Refused("the slices are not neighbours")
        end = start + node.shape[-1]
    position, first = placed[0][2]
    whole, begin = first.inputs[0], placed[0][0]
    axis = whole.type.rank - 1
    operands = [_joined_constants([n for _, n, _ in placed], k) if k != position
                else slice_along(whole, axis, begin, end - begin)
                for k in range(len(nodes[0].inputs))]  # fmt: skip
    shape = (*whole.shape[:-1], end - begin)
    inputs = [broadcast(x, shape) for x in operands]
    result = make(nodes[0].primitive, *inputs, **dict(nodes[0].attrs))
    starts = {n: start - begin for start, n, _ in placed}
    return tuple(slice_along(result, axis, starts[n], n.shape[-1]) for n in nodes)


def _joined_constants(nodes: Sequence[Node], k: int) -> Node:
    """The constants per channel at operand k of all nodes, as one vector; a single value when all agree on it."""
    first = nodes[0].inputs[k]
    smalls = [n.inputs[k].inputs[0] if n.inputs[k].name == "broadcast" else n.inputs[k]
              for n in nodes]  # fmt: skip
    if all(s is smalls[0] for s in smalls) and smalls[0].type.rank == 0:
        return smalls[0]
    vectors = [
        broadcast(view(s, s.shape[-1:]), n.shape[-1:]) for s, n in zip(smalls, nodes, strict=True)
    ]
    return make(CONCAT, *vectors, axis=0) if first.type.rank else smalls[0]
