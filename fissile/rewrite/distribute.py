"""Sums of linear primitives that share an operand, and the same taken apart again (TASO's distributive laws).

In: a sum of two products or two convolutions, or one over joined channels. Out: one over summed or joined operands, or
one for each part of the channels. Invariant: equal but for the order of summation.
"""

from __future__ import annotations

from fissile.ir.dim import DimLike
from fissile.ir.graph import Node, make
from fissile.ir.primitive import CONCAT, CONV, PRIMITIVES, SLICE
from fissile.rewrite.maps import mapped
from fissile.rewrite.rule import Outcome, Refused, rule
from fissile.rewrite.shape import is_constant, is_same_shape, view

ADD = PRIMITIVES["add"]
_NO_TWO = Refused("it is no sum of two products or of two like convolutions")


def _two_terms(node: Node) -> tuple[Node, Node] | None:
    """The linear primitives that a sum adds, if they are of one kind."""
    a, b = node.inputs
    if a.primitive is not b.primitive or a.primitive.kind != "linear" or a.attrs != b.attrs:
        return None
    return a, b


@rule("x w + x v -> x (w + v), w and v constant; the same for convolutions", "add",
      regime="substitute")  # fmt: skip
def add_weights(node: Node) -> Outcome:
    """The weights are added once, now."""
    found = _two_terms(node)
    if found is None:
        return _NO_TWO
    (x, w), (y, v) = found[0].inputs, found[1].inputs
    if x is not y or not is_same_shape(w.shape, v.shape):
        return Refused("the left operands, or the sizes of the weights, differ")
    if not is_constant(w) or not is_constant(v):
        return Refused("the weights are not both constant")
    return make(found[0].primitive, x, make(ADD, w, v), **dict(found[0].attrs))


@rule("x w + y w -> (x + y) w; the same for convolutions", "add", regime="substitute")
def add_operands(node: Node) -> Outcome:
    """One product instead of two."""
    found = _two_terms(node)
    if found is None:
        return _NO_TWO
    (x, w), (y, v) = found[0].inputs, found[1].inputs
    if w is not v:
        return Refused("the right operands differ")
    if not is_same_shape(x.shape, y.shape):
        return Refused("the left operands are not provably of one shape")
    return make(found[0].primitive, make(ADD, x, y), w, **dict(found[0].attrs))


@rule("x w + y v -> [x y] [w; v], w and v constant; the same for convolutions", "add",
      regime="substitute")  # fmt: skip
def join_channels(node: Node) -> Outcome:
    """The sum is made inside of one product over all channels."""
    found = _two_terms(node)
    if found is None:
        return _NO_TWO
    (x, w), (y, v) = found[0].inputs, found[1].inputs
    if not is_constant(w) or not is_constant(v):
        return Refused("the weights are not both constant")
    if found[0].primitive is CONV and found[0].attr("groups") != 1:
        return Refused("it has groups")
    if not is_same_shape(x.shape[:-1], y.shape[:-1]) or w.shape[:-2] != v.shape[:-2]:
        return Refused("the operands are not provably of one shape but for the channels")
    joined = make(CONCAT, x, y, axis=x.type.rank - 1)
    weights = make(CONCAT, w, v, axis=w.type.rank - 2)
    return make(found[0].primitive, joined, weights, **dict(found[0].attrs))


@rule("conv(M(concat(x, y)), w) -> conv(M x, w') + conv(M y, w'')", "conv", regime="substitute")
def split_convolution(node: Node) -> Outcome:
    """Each part of the channels is convolved on its own, and may then change with what made it."""
    joined, w = node.inputs
    if not is_constant(w) or node.attr("groups") != 1:
        return Refused("the weights are not constant, or it has groups")
    steps = []
    while joined.primitive is not CONCAT:
        along = mapped(joined)
        if isinstance(along, Refused):
            return Refused("the operand is no concat of channels")
        steps.append(along.build)
        joined = along.source
    if joined.attr("axis") != joined.type.rank - 1:
        return Refused("the operand is no concat of channels")
    total: Node | None = None
    start: DimLike = 0
    for x in joined.inputs:
        shape = (*w.shape[:-2], x.shape[-1], w.shape[-1])
        starts = (*(0 for _ in shape[:-2]), start, 0)
        part = make(SLICE, w, starts=starts, steps=(1,) * len(shape), shape=shape)
        for step in reversed(steps):
            x = step(x)
        term = view(make(CONV, x, part, **dict(node.attrs)), node.shape)
        total = term if total is None else make(ADD, total, term)
        start = start + shape[-2]
    return Refused("the concat has no operand") if total is None else total
