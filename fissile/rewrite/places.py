"""Products over channels exchanged with maps along places (resize, pooling, slices), and split over joined channels.

In: a matrix product whose rows are places of an image, next to what moves or mixes places. Out: the same in the other
order, which is cheaper where the product then sees fewer places or the map fewer channels. Invariant: equal but for the
order of summation; both directions exist, so the search decides by cost.
"""

from __future__ import annotations

from collections.abc import Sequence

from fissile.ir.dim import DimLike, less_equal, product
from fissile.ir.graph import Node, make
from fissile.ir.primitive import CONCAT, MATMUL, PRIMITIVES, RESHAPE, SLICE
from fissile.rewrite.maps import ROOTS, apply_map, mapped, per_channel
from fissile.rewrite.rule import Outcome, Refused, rule
from fissile.rewrite.shape import broadcast, is_constant, is_same, view

ADD = PRIMITIVES["add"]
_TWO = 2


def rows(node: Node) -> Node:
    """`node` as a matrix: all places, channels."""
    return view(node, (product(node.shape[:-1]), node.shape[-1]))


def unviewed(node: Node) -> Node:
    """The node under reshapes that keep the last axis."""
    while node.primitive is RESHAPE and _is_same_last(node.inputs[0].shape, node.shape):
        node = node.inputs[0]
    return node


def _is_same_last(a: Sequence[DimLike], b: Sequence[DimLike]) -> bool:
    return bool(a) and bool(b) and is_same(a[-1], b[-1])


@rule("matmul(M x, w) -> M matmul(x, w), M along places", "matmul", regime="substitute")
def product_before_map(node: Node) -> Outcome:
    """Enlarging (resize, repetition, borders) comes after the product, which then sees fewer places."""
    left, w = node.inputs
    if node.type.rank != _TWO:
        return Refused("the product has a batch")
    moved = unviewed(left)
    if moved.primitive is RESHAPE:
        return Refused("its rows are not places: a reshape cuts or merges channels")
    along = mapped(moved)
    if isinstance(along, Refused):
        return along
    places, fewer = product(moved.shape[:-1]), product(along.source.shape[:-1])
    if less_equal(places, fewer) is True and less_equal(w.shape[0], w.shape[1]) is True:
        return Refused("the map makes no more places, and the product no fewer channels")
    small = make(MATMUL, rows(along.source), w)
    return view(apply_map(along, small), node.shape)


@rule("M matmul(x, w) -> matmul(M x, w), M along places", *ROOTS, "transpose", regime="substitute")
def map_before_product(node: Node) -> Outcome:
    """Shrinking (pooling, slices) comes before the product, and so does a map with fewer channels there."""
    if node.primitive is RESHAPE:
        return Refused("a reshape alone changes nothing")
    along = mapped(node)
    if isinstance(along, Refused):
        return along
    inner = unviewed(along.source)
    if inner.name != "matmul" or inner.type.rank != _TWO:
        return Refused("what is moved or mixed is no plain product")
    x, w = inner.inputs
    places, fewer = product(along.source.shape[:-1]), product(node.shape[:-1])
    if less_equal(places, fewer) is True and less_equal(w.shape[1], w.shape[0]) is True:
        return Refused(
            "the map leaves no fewer places, and there are no fewer channels before the product"
        )
    return view(make(MATMUL, rows(apply_map(along, x)), w), node.shape)


@rule("M(x + b) -> M x + b, b per channel, M with weights that add up to 1", *ROOTS, "transpose",
      regime="substitute", opens=False)  # fmt: skip
def bias_after_map(node: Node) -> Outcome:
    """The bias joins others after the map."""
    if node.primitive is RESHAPE:
        return Refused("a reshape alone changes nothing")
    along = mapped(node)
    if isinstance(along, Refused):
        return along
    if not along.unit:
        return Refused("the map does not keep a constant")
    inner = unviewed(along.source)
    if inner.name != "add" or per_channel(inner.inputs[1]) is None:
        return Refused("what is moved or mixed is no sum with a bias per channel")
    if not is_same(inner.shape[-1], along.source.shape[-1]):
        return Refused("the bias is not along the channels")
    x, bias = inner.inputs
    small = bias.inputs[0] if bias.name == "broadcast" else bias
    result = apply_map(along, x)
    vector = view(small, (small.shape[-1],)) if small.type.rank else small
    return make(ADD, result, broadcast(vector, result.shape))


@rule("matmul(concat(x, y), w) -> matmul(x, w') + matmul(y, w'')", "matmul", regime="substitute")
def split_product(node: Node) -> Outcome:
    """Each part of the channels is multiplied on its own, and may then exchange places with what made it."""
    left, w = node.inputs
    if node.type.rank != _TWO or not is_constant(w):
        return Refused("it is no product with constant weights")
    joined = unviewed(left)
    if joined.primitive is not CONCAT or joined.attr("axis") != joined.type.rank - 1:
        return Refused("the left operand is no concat of channels")
    total: Node | None = None
    start: DimLike = 0
    for x in joined.inputs:
        shape = (x.shape[-1], w.shape[1])
        part = make(SLICE, w, starts=(start, 0), steps=(1, 1), shape=shape)
        term = make(MATMUL, view(x, (node.shape[0], x.shape[-1])), part)
        total = term if total is None else make(ADD, total, term)
        start = start + x.shape[-1]
    return Refused("the concat has no operand") if total is None else total


@rule("(x + b) + y -> (x + y) + b, b per channel", "add", regime="substitute", opens=False)
def bias_last(node: Node) -> Outcome:
    """Biases of the terms of a sum meet at its end."""
    for shifted, other in (node.inputs, node.inputs[::-1]):
        if shifted.name == "add" and is_constant(shifted.inputs[1]) and not is_constant(other):
            x, bias = shifted.inputs
            return make(ADD, make(ADD, x, other), bias)
    return Refused("no operand is a sum with a constant")
