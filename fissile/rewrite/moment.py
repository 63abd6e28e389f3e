"""Sums exchanged with what is summed: products, extremes of increasing functions, and the variance in one pass.

In: a reduction. Out: one over fewer or simpler elements. Invariant: equal but for the order of summation; the one-pass
variance shifts by a mean of the data themselves, which bounds what cancels (`LOSS`), whatever the data are.
"""

from __future__ import annotations

import numpy as np

from fissile.ir.dim import lower_bound
from fissile.ir.graph import Node, make
from fissile.ir.primitive import (
    CONCAT,
    GATHER,
    MATMUL,
    PAD,
    PRIMITIVES,
    SLICE,
    constant,
    constant_value,
)
from fissile.rewrite.algebra import number
from fissile.rewrite.rule import Outcome, Refused, rule
from fissile.rewrite.shape import broadcast, is_unit, view

ADD, SUB, MUL, DIV = (PRIMITIVES[name] for name in ("add", "sub", "mul", "div"))
REDUCE_SUM, MAX = PRIMITIVES["reduce_sum"], PRIMITIVES["max"]
_REDUCED = ("reduce_sum", "reduce_max", "reduce_min")
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


@rule("slice(reduce(x)) -> reduce(slice(x))", "slice", regime="substitute")
def slice_before_reduce(node: Node) -> Outcome:
    """What is left out is not reduced."""
    inner = node.inputs[0]
    if inner.primitive.kind != "reduce":
        return Refused("what is sliced is no reduction")
    x, axes = inner.inputs[0], inner.attr("axes")
    kept = [a for a in range(x.type.rank) if a not in axes]
    starts, steps, shape = [0] * x.type.rank, [1] * x.type.rank, list(x.shape)
    for k, a in enumerate(kept):
        starts[a], steps[a], shape[a] = (node.attr(key)[k] for key in ("starts", "steps", "shape"))
    cut = make(SLICE, x, starts=tuple(starts), steps=tuple(steps), shape=tuple(shape))
    return make(inner.primitive, cut, axes=axes)


@rule("reduce(M x) -> M(reduce(x)), M a border, gather or concat along what is kept", *_REDUCED,
      regime="substitute")  # fmt: skip
def reduce_before_move(node: Node) -> Outcome:
    """What is repeated or joined is reduced once, or where it is made."""
    moved, axes = node.inputs[0], node.attr("axes")
    after = _axes_after(moved.type.rank, axes)
    if moved.name == "concat" and (axis := moved.attr("axis")) not in axes:
        pieces = [make(node.primitive, x, axes=axes) for x in moved.inputs]
        return make(CONCAT, *pieces, axis=after[axis])
    if _is_sound(moved) and moved.attr("axis") not in axes:
        small = make(node.primitive, moved.inputs[0], axes=axes)
        return make(GATHER, small, moved.inputs[1], axis=after[moved.attr("axis")])
    if moved.name == "pad" and _keeps_border(moved, axes, node.name):
        small = make(node.primitive, moved.inputs[0], axes=axes)
        sides = {side: tuple(moved.attr(side)[a] for a in after) for side in ("low", "high")}
        return make(PAD, small, value=moved.attr("value"), **sides)
    return Refused("what is reduced is no border, gather or concat along what is kept")


def _is_sound(node: Node) -> bool:
    """Whether it gathers along a vector, from an axis that has elements whatever the other extents are."""
    if node.name != "gather" or node.inputs[1].type.rank != 1:
        return False
    return (lower_bound(node.inputs[0].shape[node.attr("axis")]) or 0) >= 1


def _axes_after(rank: int, axes: tuple[int, ...]) -> dict[int, int]:
    """Where each kept axis is after a reduction."""
    kept = (a for a in range(rank) if a not in axes)
    return {a: k for k, a in enumerate(kept)}


def _keeps_border(border: Node, axes: tuple[int, ...], name: str) -> bool:
    """Whether the border is only along kept axes, and reduces to its own value."""
    if any(border.attr(side)[a] != 0 for side in ("low", "high") for a in axes):
        return False
    if name == "reduce_sum":
        return not np.any(border.attr("value").array != 0)
    return all(isinstance(n := border.shape[a], int) and n > 0 for a in axes)


@rule("sum(concat(x, y)) -> sum(x) + sum(y), max(concat(x, y)) -> max(max(x), max(y))", *_REDUCED,
      regime="substitute")  # fmt: skip
def reduce_pieces(node: Node) -> Outcome:
    """Pieces that are only reduced need not be joined."""
    whole, axes = node.inputs[0], node.attr("axes")
    if whole.name != "concat" or whole.attr("axis") not in axes:
        return Refused("what is reduced is no concat along a reduced axis")
    first, *others = (make(node.primitive, x, axes=axes) for x in whole.inputs)
    combine = PRIMITIVES[node.primitive.combine]
    for other in others:
        first = make(combine, first, other)
    return first


@rule("sum of x * c over rows -> c' x, of x * r over columns -> x r'", "reduce_sum",
      regime="substitute")  # fmt: skip
def weighted_sum_to_product(node: Node) -> Outcome:
    """A weighted sum is a product with a vector, which may join other products (Korch section 4, with other ones)."""
    weighted = node.inputs[0]
    rank = weighted.type.rank
    if weighted.name != "mul" or rank < 2:
        return Refused("what is summed is not weighted")
    if node.attr("axes") not in ((rank - 1,), (rank - 2,)):
        return Refused("it does not sum over rows alone or columns alone")
    summed = node.attr("axes")[0]
    other = 2 * rank - 3 - summed
    for x, factor in (weighted.inputs, weighted.inputs[::-1]):
        vector = _repeated_along(factor, other)
        if vector is None or x.name == "broadcast":
            continue
        batch = tuple(d for a, d in enumerate(x.shape) if a < rank - 2)
        vector = broadcast(vector, (*batch, x.shape[summed]))
        column = summed == rank - 1
        shape = (*batch, *((x.shape[summed], 1) if column else (1, x.shape[summed])))
        pair = (x, view(vector, shape)) if column else (view(vector, shape), x)
        return view(make(MATMUL, *pair), node.shape)
    return Refused("the weights are not the same along the other axis")


def _repeated_along(factor: Node, axis: int) -> Node | None:
    """What a broadcast repeats along an axis, without that axis."""
    if factor.name != "broadcast":
        return None
    small = factor.inputs[0]
    at = axis - (factor.type.rank - small.type.rank)
    if at >= 0 and not is_unit(small.shape[at]):
        return None
    return view(small, tuple(d for a, d in enumerate(small.shape) if a != at))


@rule("sum of -x -> -(sum of x), (-x) w -> -(x w), x (-w) -> -(x w)", "reduce_sum", "matmul", "conv",
      regime="substitute", opens=False)  # fmt: skip
def negation_last(node: Node) -> Outcome:
    """The sign goes over the result, and meets other signs."""
    negated = [k for k, x in enumerate(node.inputs) if x.name == "neg"]
    if not negated:
        return Refused("no operand is negated")
    inputs = list(node.inputs)
    inputs[negated[0]] = inputs[negated[0]].inputs[0]
    return make(PRIMITIVES["neg"], make(node.primitive, *inputs, **dict(node.attrs)))


@rule("slice(a b) -> slice(a) slice(b), rows of a and columns of b", "slice", regime="substitute")
def slice_before_product(node: Node) -> Outcome:
    """What is left out is not multiplied."""
    product = node.inputs[0]
    if product.name != "matmul":
        return Refused("what is sliced is no product")
    a, b = product.inputs
    columns = [node.attr(key) for key in ("starts", "steps", "shape")]
    depth = 0, 1, a.shape[-1]
    left, right = (
        dict(zip(("starts", "steps", "shape"), rows, strict=True))
        for rows in (
            [(*c[:-1], d) for c, d in zip(columns, depth, strict=True)],
            [(*c[:-2], d, c[-1]) for c, d in zip(columns, depth, strict=True)],
        )
    )
    return make(MATMUL, make(SLICE, a, **left), make(SLICE, b, **right))


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
      regime="substitute", opens=False)  # fmt: skip
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
