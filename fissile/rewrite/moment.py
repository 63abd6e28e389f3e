"""Sums exchanged with what is summed: products, extremes of increasing functions, and the variance in one pass.

In: a reduction. Out: one over fewer or simpler elements. Invariant: equal but for the order of summation; the one-pass
variance shifts by a mean of the data themselves, which bounds what cancels (`LOSS`), whatever the data are.
"""

from __future__ import annotations

import numpy as np

from fissile.ir.graph import Node, make
from fissile.ir.primitive import MATMUL, PRIMITIVES, SLICE, constant, constant_value
from fissile.rewrite.algebra import number
from fissile.rewrite.rule import Outcome, Refused, rule
from fissile.rewrite.shape import broadcast, is_unit, view

ADD, SUB, MUL, DIV = (PRIMITIVES[name] for name in ("add", "sub", "mul", "div"))
REDUCE_SUM, MAX = PRIMITIVES["reduce_sum"], PRIMITIVES["max"]
LOSS = 1024  # rounding may grow so many times at most


@rule("sum of a b along columns -> a (sum of b), along rows -> (sum of a) b", "reduce_sum",
      regime="substitute")  # fmt: skip
def sum_before_product(node: Node) -> Outcome:
    """A vector takes part in the product instead of a matrix."""
    product = node.inputs[0]
    if product.name != "matmul":
        return Refused("what is summed is no product")
    a, b = product.inputs
    rank = product.type.rank
    if node.attr("axes") == (rank - 1,):
        column = make(REDUCE_SUM, b, axes=(rank - 1,))
        return view(make(MATMUL, a, view(column, (*column.shape, 1))), node.shape)
    if node.attr("axes") == (rank - 2,):
        row = make(REDUCE_SUM, a, axes=(rank - 2,))
        lead = (*row.shape[:-1], 1, row.shape[-1])
        return view(make(MATMUL, view(row, lead), b), node.shape)
    return Refused("it does not sum over rows alone or columns alone")


_INCREASING = ("max", "min", "add", "sub", "mul")
_ALONE = ("exp", "tanh", "sigmoid")


def _is_increasing(node: Node, axes: tuple[int, ...]) -> bool:
    """Whether the node is increasing in its first operand, the same function along `axes`."""
    if node.name in _ALONE:
        return True
    if node.name not in _INCREASING or node.inputs[1].name != "broadcast":
        return False
    if node.name == "mul":
        factor = number(node.inputs[1])
        return factor is not None and 0 < float(factor) < np.inf
    small = node.inputs[1].inputs[0]
    values = constant_value(small)
    if node.name in ("add", "sub") and (values is None or not np.all(np.isfinite(values))):
        return False  # an infinite shift makes NaN of the other infinity
    lead = node.type.rank - small.type.rank
    return all(is_unit(small.shape[a - lead]) for a in axes if a >= lead)


@rule("max of f(x) -> f(max of x), f increasing (max, min, exp, + b, * c > 0)", "reduce_max",
      "reduce_min", regime="substitute")  # fmt: skip
def extreme_first(node: Node) -> Outcome:
    """The function is computed of the extremes only."""
    inner, axes = node.inputs[0], node.attr("axes")
    if inner.primitive.kind != "elementwise" or not _is_increasing(inner, axes):
        return Refused("what is compared is no increasing function along what is reduced")
    if not axes or not all(isinstance(n := inner.shape[a], int) and n > 0 for a in axes):
        return Refused("how many elements are compared is not known")
    x, *others = inner.inputs
    best = make(node.primitive, x, axes=axes)
    operands = []
    for other in others:
        small = other.inputs[0]
        lead = inner.type.rank - small.type.rank
        kept = tuple(d for a, d in enumerate(small.shape, start=lead) if a not in axes)
        operands.append(broadcast(view(small, kept), node.shape))
    return make(inner.primitive, best, *operands)


# ---------------------------------------------------------------- variance


def _is_mean(node: Node, x: Node, axes: tuple[int, ...], count: int) -> bool:
    """Whether a broadcast holds the mean of x over `axes`, in place."""
    if node.name != "broadcast":
        return False
    while node.name in ("broadcast", "reshape"):
        node = node.inputs[0]
    if node.name not in ("mul", "div"):
        return False
    total, factor = node.inputs
    known = number(factor)
    if known is None or total is not make(REDUCE_SUM, x, axes=axes):
        return False
    share = float(known) if node.name == "mul" else 1 / float(known) if known else 0.0
    return abs(share * count - 1) < 1e-6


def _sample(x: Node, axes: tuple[int, ...], count: int) -> tuple[Node, int] | None:
    """The first of x along as many of `axes` as `LOSS` allows, and how many elements of each sum that is."""
    shape, chosen = list(x.shape), count
    for a in axes:
        n = x.shape[a]
        if isinstance(n, int) and 2 * count // (chosen // n) <= LOSS:
            shape[a] = 1
            chosen //= n
    if chosen == count:
        return None
    rank = x.type.rank
    return make(SLICE, x, starts=(0,) * rank, steps=(1,) * rank, shape=tuple(shape)), chosen


@rule("sum((x - mean)^2) -> sum(y^2) - sum(y)^2 / n, y = x - c, c a mean of some of x", "reduce_sum",
      regime="substitute")  # fmt: skip
def one_pass_variance(node: Node) -> Outcome:
    """Both sums in one pass over x. With c a mean of k of the n elements, (c - mean)^2 <= (n / k) variance."""
    square, axes = node.inputs[0], node.attr("axes")
    if square.name != "mul" or square.inputs[0] is not square.inputs[1]:
        return Refused("what is summed is no square")
    shifted = square.inputs[0]
    counts = [shifted.shape[a] for a in axes]
    if shifted.name != "sub" or not axes or not all(isinstance(n, int) and n > 0 for n in counts):
        return Refused("what is squared is no difference, or how many are summed is not known")
    count = int(np.prod([n for n in counts if isinstance(n, int)]))
    x, center = shifted.inputs
    if not _is_mean(center, x, axes, count):
        return Refused("what is subtracted is not the mean over the same axes")
    found = _sample(x, axes, count)
    if found is None:
        return Refused(
            f"a single element of {count} may lie so far out that more than a factor {LOSS} is lost"
        )
    few, chosen = found
    kept = tuple(1 if a in axes else d for a, d in enumerate(x.shape))
    near = _times(view(make(REDUCE_SUM, few, axes=axes), kept), 1 / chosen)
    y = make(SUB, x, broadcast(near, x.shape))
    first, second = (make(REDUCE_SUM, z, axes=axes) for z in (y, make(MUL, y, y)))
    result = make(SUB, second, _times(make(MUL, first, first), 1 / count))
    return make(MAX, result, broadcast(_scalar(0, node), node.shape))


def _scalar(value: float, like: Node) -> Node:
    return constant(np.array(value, like.dtype.numpy))


def _times(x: Node, factor: float) -> Node:
    return make(MUL, x, broadcast(_scalar(factor, x), x.shape))
