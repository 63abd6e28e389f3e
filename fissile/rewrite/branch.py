"""Branches over one input with unlike windows become one convolution; a sum beside a product, by a border of ones.

In: convolutions and pointwise products of one image, or a product and the sums of its left operand. Out: one linear
primitive, and slices of it. Invariant: equal but for zero weights, whose products are added, too: an infinity or a NaN
reaches the places that the larger window sees.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from fissile.ir.dim import DimLike
from fissile.ir.graph import Node, data, make
from fissile.ir.primitive import CONCAT, CONSTANT, CONV, MATMUL, PAD, SLICE
from fissile.rewrite.merge import cut, row_operand, slice_along
from fissile.rewrite.places import unviewed
from fissile.rewrite.rule import Refused, joining
from fissile.rewrite.shape import is_same_shape, view

_IMAGE = 3  # axes at least: images, places, channels


@dataclass(frozen=True)
class _Branch:
    """A convolution of `source`, or a product with its channels as one of a single tap.

    weights: taps, channels, outputs. low, high: the zero border. shape: of the result, its places apart.
    """

    source: Node
    weights: Node
    strides: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    shape: tuple[DimLike, ...]

    @property
    def taps(self) -> tuple[int, ...]:
        """Along each axis of places."""
        return tuple(d for d in self.weights.shape[:-2] if isinstance(d, int))


def _branch(node: Node) -> _Branch | Refused:
    if node.inputs[1].primitive is not CONSTANT:
        return Refused("the weights are not constant")
    return _pointwise(node) if node.primitive is MATMUL else _convolution(node)


def _pointwise(node: Node) -> _Branch | Refused:
    """A product over the channels of every place, or of every so many."""
    x, w = unviewed(node.inputs[0]), node.inputs[1]
    places = x.type.rank - 2
    if node.type.rank != 2 or x.type.rank < _IMAGE:
        return Refused("it is no product over the channels of an image")
    shape = (*x.shape[:-1], node.shape[-1])
    strides = (1,) * places
    if x.primitive is SLICE and not any(s != 0 for s in x.attr("starts")):
        first, *between, last = x.attr("steps")
        whole = x.inputs[0]
        is_whole = is_same_shape((x.shape[0], x.shape[-1]), (whole.shape[0], whole.shape[-1]))
        if (first, last) == (1, 1) and min(between) > 0 and is_whole:
            x, strides = whole, tuple(between)
    none = (0,) * places
    return _Branch(x, view(w, (*(1 for _ in none), *w.shape)), strides, none, none, shape)


def _convolution(node: Node) -> _Branch | Refused:
    x, w = node.inputs
    places = x.type.rank - 2
    if node.attr("groups") != 1:
        return Refused("it has groups")
    if any(d != 1 for d in node.attr("dilations")):
        return Refused("it has dilations")
    low = high = (0,) * places
    if x.primitive is PAD and not np.any(x.attr("value").array != 0):
        first, *before, last = zip(x.attr("low"), x.attr("high"), strict=True)
        known = all(isinstance(d, int) and d >= 0 for pair in before for d in pair)
        if (*first, *last) == (0, 0, 0, 0) and known:
            low, high = (tuple(pair[k] for pair in before) for k in (0, 1))
            x = x.inputs[0]
    return _Branch(x, w, node.attr("strides"), low, high, node.shape)


def _places_of(node: Node) -> Hashable | Refused:
    found = _branch(node)
    if isinstance(found, Refused):
        return found
    return found.source, found.strides, found.shape[:-1]


def _widened(small: _Branch, large: _Branch) -> Node | Refused:
    """The weights of `small` with zeros around them, in the window of `large`."""
    starts = [a - b for a, b in zip(large.low, small.low, strict=True)]
    ends = [
        n - start - m for n, m, start in zip(large.taps, small.taps, starts, strict=True)
    ]
    if min(*starts, *ends) < 0:
        return Refused("no window holds those of all others")
    zero = data(np.zeros((), small.weights.dtype.numpy))
    return make(PAD, small.weights, low=(*starts, 0, 0), high=(*ends, 0, 0), value=zero)


@joining("conv(x, w), conv(x, v) -> slices of conv(x, [w pad(v)]), the window of v within that of w",
         "conv", "matmul", key=_places_of)  # fmt: skip
def merge_windows(nodes: tuple[Node, ...]) -> tuple[Node, ...] | Refused:
    """One pass over the windows of the shared input, where the added zeros cost less than a second pass."""
    branches = [b for n in nodes if not isinstance(b := _branch(n), Refused)]
    large = max(branches, key=lambda b: (np.prod(b.taps), sum(b.low)))
    if all(b.taps == large.taps and b.low == large.low for b in branches):
        return Refused("the windows are the same")
    widened = []
    for branch in branches:
        weights = _widened(branch, large)
        if isinstance(weights, Refused):
            return weights
        widened.append(weights)
    joined = make(CONCAT, *widened, axis=large.weights.type.rank - 1)
    low, high = ((0, *side, 0) for side in (large.low, large.high))
    zero = data(np.zeros((), large.source.dtype.numpy))
    bordered = make(PAD, large.source, low=low, high=high, value=zero)
    ones = (1,) * len(large.taps)
    whole = make(CONV, bordered, joined, strides=large.strides, dilations=ones, groups=1)
    start: DimLike = 0
    pieces = []
    for node, branch in zip(nodes, branches, strict=True):
        piece = slice_along(whole, whole.type.rank - 1, start, branch.shape[-1])
        start = start + branch.shape[-1]
        pieces.append(view(piece, node.shape))
    return tuple(pieces)


@joining("a b, sum of a -> slices of a pad(b, 1)", "matmul", "reduce_sum", key=row_operand)
def sum_beside_padded(nodes: tuple[Node, ...]) -> tuple[Node, ...] | Refused:
    """The column of ones is a border of the right operand, read in place (Korch section 4: pad, then split)."""
    products = [n for n in nodes if n.primitive is MATMUL]
    sums = [n for n in nodes if n.primitive is not MATMUL]
    if len(products) != 1 or not sums:
        return Refused("there is not one product beside a sum")
    (product,) = products
    a, b = product.inputs
    rank = b.type.rank
    sides = {"low": (0,) * rank, "high": (*(0 for _ in range(rank - 1)), 1)}
    bordered = make(PAD, b, value=data(np.ones((), b.dtype.numpy)), **sides)
    whole = make(MATMUL, a, bordered)
    (piece,) = cut(whole, rank - 1, products)
    column = slice_along(whole, rank - 1, b.shape[-1], 1)
    return tuple(piece if n is product else view(column, n.shape) for n in nodes)
