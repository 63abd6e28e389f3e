"""Reductions: ReduceSum and its kin, ArgMax, cumulative sums, Softmax.

In: one tensor and axes (attribute or input, by opset). Out: reduce primitives with elementwise
ones around them. Invariant: a reduction over no elements gives its neutral value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fissile.fission.build import (
    add,
    apply,
    const,
    div,
    iota,
    mean,
    mul,
    normal_axis,
    reduce,
    reshape,
    select,
    sub,
    unsqueeze,
)
from fissile.fission.indexing import gather_along
from fissile.fission.table import Call, Refusal, fission
from fissile.fission.values import known_ints, known_list
from fissile.ir.dim import DimLike, less_equal
from fissile.ir.graph import Node, make
from fissile.ir.opaque import cumulate, top_k
from fissile.ir.primitive import ARG_MAX, ARG_MIN, lacking

Kernel = Callable[[Node, Sequence[int], bool], Node]


def chosen_axes(call: Call, x: Node, axes: Node | None) -> tuple[int, ...]:
    """The reduction axes of an operator; all when none are named, unless that means none."""
    given = call.attr("axes")
    if axes is not None:
        given = known_ints(axes, "axes")
    if not given:
        return () if call.attr("noop_with_empty_axes", 0) else tuple(range(x.type.rank))
    return tuple(normal_axis(a, x.type.rank) for a in given)


def _sum(x: Node, axes: Sequence[int], keep: bool) -> Node:
    return reduce("sum", x, axes, keep)


def _log_sum_exp(x: Node, axes: Sequence[int], keep: bool) -> Node:
    """max + log(sum(exp(x - max))); an infinite maximum is left out, lest inf - inf be NaN."""
    high = reduce("max", x, axes, keepdims=True)
    finite = apply("lt", apply("abs", high), const(float("inf"), high))
    shift = select(finite, high, const(0, high))
    total = reduce("sum", apply("exp", sub(x, shift)), axes, keep)
    kept = shift if keep else reduce("max", shift, axes, keepdims=False)
    return add(apply("log", total), kept)


_REDUCTIONS: dict[str, Kernel] = {
    "ReduceSum": _sum,
    "ReduceProd": lambda x, axes, keep: reduce("prod", x, axes, keep),
    "ReduceMax": lambda x, axes, keep: reduce("max", x, axes, keep),
    "ReduceMin": lambda x, axes, keep: reduce("min", x, axes, keep),
    "ReduceMean": lambda x, axes, keep: mean(x, axes, keep),
    "ReduceL1": lambda x, axes, keep: _sum(apply("abs", x), axes, keep),
    "ReduceL2": lambda x, axes, keep: apply("sqrt", _sum(mul(x, x), axes, keep)),
    "ReduceLogSum": lambda x, axes, keep: apply("log", _sum(x, axes, keep)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceSumSquare": lambda x, axes, keep: _sum(mul(x, x), axes, keep),
}
_FLOATS_ONLY = ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp")


def _reduction(call: Call, x: Node, axes: Node | None = None) -> Node:
    name = call.operator.type
    if name in _FLOATS_ONLY and not x.dtype.is_float:
        raise Refusal(f"{name} of {x.dtype} has no native definition")
    chosen = chosen_axes(call, x, axes)
    if not chosen and x.type.rank and call.attr("noop_with_empty_axes", 0):
        return _REDUCTIONS[name](x, (), True)
    return _REDUCTIONS[name](x, chosen, bool(call.attr("keepdims", 1)))


fission(*_REDUCTIONS)(_reduction)


@fission("ArgMax", "ArgMin")
def arg_extremum(call: Call, x: Node) -> Node:
    """The index of the first (or last) extremum along an axis."""
    axis = normal_axis(call.attr("axis", 0), x.type.rank)
    if not x.type.rank:
        raise ValueError(f"{call.operator.type} along an axis of a scalar")
    others = (*x.shape[:axis], *x.shape[axis + 1 :])
    empty = f"axis {axis} of {x.type}, whose extremum is looked for, must not be empty"
    call.demand(lacking(x.shape[axis], others), 0, empty)
    row = ARG_MAX if call.operator.type == "ArgMax" else ARG_MIN
    found = make(row, x, axis=axis, last=bool(call.attr("select_last_index", 0)))
    return unsqueeze(found, [axis]) if call.attr("keepdims", 1) else found


@fission("CumSum")
def cumulative_sum(call: Call, x: Node, axis: Node) -> Node:
    """Each element the sum of those up to it."""
    return _cumulative(call, x, axis, "add")


@fission("CumProd")
def cumulative_product(call: Call, x: Node, axis: Node) -> Node:
    """Each element the product of those up to it."""
    return _cumulative(call, x, axis, "mul")


def _cumulative(call: Call, x: Node, axis: Node, combine: str) -> Node:
    place = normal_axis(known_ints(axis, "the axis")[0], x.type.rank)
    exclusive, reverse = (bool(call.attr(name, 0)) for name in ("exclusive", "reverse"))
    return cumulate(x, place, combine, exclusive, reverse)


@fission("TopK")
def top_elements(call: Call, x: Node, k: Node | None = None) -> tuple[Node, Node]:
    """The k largest or smallest elements along an axis, in order, and where they were."""
    axis = normal_axis(call.attr("axis", -1), x.type.rank)
    count = call.attr("k") if k is None else known_list(k, "the number of elements")[0]
    if less_equal(count, x.shape[axis]) is not True:
        call.demand_natural(x.shape[axis] - count, "TopK: elements left")
    found = top_k(x, axis, count, bool(call.attr("largest", 1)))
    return gather_along(x, found, axis), found


# ---- softmax -------------------------------------------------------------------------------------


def softmax_over(x: Node, axes: Sequence[int]) -> Node:
    """exp(x - max) / sum(exp(x - max))."""
    powers = apply("exp", sub(x, reduce("max", x, axes)))
    return div(powers, reduce("sum", powers, axes))


def log_softmax_over(x: Node, axes: Sequence[int]) -> Node:
    """x - max - log(sum(exp(x - max)))."""
    shifted = sub(x, reduce("max", x, axes))
    return sub(shifted, apply("log", reduce("sum", apply("exp", shifted), axes)))


def _softmax_axes(call: Call, x: Node) -> list[int]:
    if call.version >= 13:
        return [normal_axis(call.attr("axis", -1), x.type.rank)]
    # Before opset 13 the tensor was read as a matrix, split before `axis`.
    return list(range(normal_axis(call.attr("axis", 1), x.type.rank), x.type.rank))


@fission("Softmax")
def softmax(call: Call, x: Node) -> Node:
    """exp(x - max) / sum(exp(x - max))."""
    return softmax_over(x, _softmax_axes(call, x))


@fission("LogSoftmax")
def log_softmax(call: Call, x: Node) -> Node:
    """x - max - log(sum(exp(x - max)))."""
    return log_softmax_over(x, _softmax_axes(call, x))


@fission("Hardmax")
def hardmax(call: Call, x: Node) -> Node:
    """1 at the first maximum, else 0."""
    axes = _softmax_axes(call, x)
    flat: DimLike = 1
    for axis in axes:
        flat = flat * x.shape[axis]
    first = axes[0]
    rows = x if len(axes) == 1 else reshape(x, (*x.shape[:first], flat))
    at = unsqueeze(make(ARG_MAX, rows, axis=first, last=False), [first])
    steps = unsqueeze(iota(flat), range(1, rows.type.rank - first))
    hit = apply("eq", at, steps)
    return reshape(select(hit, const(1, x), const(0, x)), x.shape)
