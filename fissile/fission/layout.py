"""Layout operators: Reshape, Transpose, Slice, Split, Concat, Pad and the like.

In: a tensor, and shapes or bounds as attributes or known values. Out: reshape, transpose, slice,
concat, pad and gather primitives. Invariant: bounds are clamped as ONNX says before they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from fissile.fission.build import (
    add,
    apply,
    concat,
    const,
    divided,
    extent_scalar,
    gather,
    integers,
    iota,
    normal_axes,
    normal_axis,
    number,
    pad,
    reshape,
    select,
    slice_axis,
    squeeze,
    sub,
    transpose,
    unsqueeze,
)
from fissile.fission.table import Call, Refusal, fission
from fissile.fission.values import known_ints, known_list
from fissile.frontend.operator_graph import Extents
from fissile.ir.dim import (
    Dim,
    DimLike,
    Max,
    Min,
    ceildiv,
    constant,
    content,
    equal,
    exact_div,
    lower_bound,
    max_,
    min_,
    product,
    upper_bound,
)
from fissile.ir.dim_terms import single
from fissile.ir.dtype import INT64
from fissile.ir.graph import Node
from fissile.ir.primitive import constant_value, lacking, scalar

MOST_FOLDS = 4  # of a reflected axis; more mirrors cost more than a remainder
# no axis is this long, and products of it with an extent still fit in 64 bits
LONGEST_STEP = 2**31
_ENDLESS = 2**40  # a bound from here on is how exporters write "to the end"


@fission("Reshape", raw=True)
def reshape_to(call: Call, x: Node, shape: Node) -> Node:
    """The same elements in another shape; 0 copies an extent, -1 is what is left."""
    target = known_list(shape, "the new shape")
    if not call.attr("allowzero", 0):
        target = [x.shape[k] if _is(d, 0) else d for k, d in enumerate(target)]
    return reshape(x, _inferred(x, target))


def _is(extent: DimLike, number: int) -> bool:
    return not isinstance(extent, Dim) and extent == number


def _inferred(x: Node, target: Sequence[DimLike]) -> tuple[DimLike, ...]:
    """The target with its -1 replaced: common extents cancel first, since a product may be zero."""
    if not any(_is(d, -1) for d in target):
        return tuple(target)
    have, others = list(x.shape), [d for d in target if not _is(d, -1)]
    for extent in list(others):
        if extent in have and isinstance(extent, Dim):
            have.remove(extent)
            others.remove(extent)
    whole, rest = product(have), product(others)
    quotient = exact_div(whole, rest) if not _is(rest, 0) else 0
    left = whole // rest if quotient is None else quotient
    return tuple(left if _is(d, -1) else d for d in target)


@fission("Transpose", raw=True)
def transpose_by(call: Call, x: Node) -> Node:
    """Axes in another order, reversed by default."""
    return transpose(x, call.attr("perm", tuple(reversed(range(x.type.rank)))))


@fission("Flatten", raw=True)
def flatten(call: Call, x: Node) -> Node:
    """A matrix of the extents before `axis` by those from it on."""
    axis = call.attr("axis", 1)
    first = axis + x.type.rank if axis < 0 else axis
    return reshape(x, (product(x.shape[:first]), product(x.shape[first:])))


@fission("Squeeze", raw=True)
def squeeze_axes(call: Call, x: Node, axes: Node | None = None) -> Node:
    """Axes of extent 1 taken away: those named, or all."""
    given = call.attr("axes") if axes is None else known_ints(axes, "axes")
    gone = _unit_axes(call, x) if given is None else normal_axes(given, x.type.rank)
    for k in gone:
        call.demand(x.shape[k], 1, f"axis {k} of {x.type}, which is taken away, must be 1")
    return squeeze(x, gone)


def _unit_axes(call: Call, x: Node) -> list[int]:
    """The axes whose extent is 1. Where only a call knows, the declared rank says, or they are taken to be kept."""
    verdicts = [equal(d, 1) for d in x.shape]
    open_axes = [k for k, verdict in enumerate(verdicts) if verdict is None]
    sure = verdicts.count(False)
    rank = None if call.declared is None else len(call.declared)
    kept = open_axes
    if rank is not None and sure <= rank < sure + len(open_axes):
        fitting = [
            axes
            for axes in combinations(open_axes, rank - sure)
            if _is_declared(x, call.declared or (), [*axes, *_all(verdicts, False)])
        ]
        if len(fitting) != 1:
            raise Refusal("which axes are 1 depends on a call's extents: name the axes, or fix those")
        kept = list(fitting[0])
    for k in kept:
        _demand_apart(call, x, k)
    return [k for k in range(x.type.rank) if k not in kept and verdicts[k] is not False]


def _all(verdicts: Sequence[bool | None], verdict: bool) -> list[int]:
    return [k for k, v in enumerate(verdicts) if v is verdict]


def _is_declared(x: Node, declared: Extents, axes: Sequence[int]) -> bool:
    """Whether these axes of x, in order, may have the extents declared; a name that x has means that extent."""
    names = {str(d) for d in x.shape}
    for want, k in zip(declared, sorted(axes), strict=True):
        have = x.shape[k]
        is_other = equal(have, want) is False if isinstance(want, int) else want != str(have)
        if is_other and (isinstance(want, int) or want in names):
            return False
    return True


def _demand_apart(call: Call, x: Node, axis: int) -> None:
    """An axis is not 1 in any call, so that it is kept."""
    extent = x.shape[axis]
    call.apart.append(extent)
    what = f"axis {axis} of {x.type} must not be 1, where Squeeze would take it away"
    fix = f"for such calls compile with --shape {extent}=1, or name the axes"
    call.demand(min_(max_(extent - 1, 1 - extent), 1), 1, f"{what}: {fix}")


@fission("Unsqueeze", raw=True)
def unsqueeze_axes(call: Call, x: Node, axes: Node | None = None) -> Node:
    """Axes of extent 1 inserted."""
    return unsqueeze(x, call.attr("axes") if axes is None else known_ints(axes, "axes"))


@fission("Concat", raw=True)
def concatenate(call: Call, *xs: Node) -> Node:
    """One after the other along an axis."""
    return concat(xs, normal_axis(call.attr("axis", 1), xs[0].type.rank))


@fission("Split", raw=True)
def split(call: Call, x: Node, sizes: Node | None = None) -> tuple[Node, ...]:
    """Slices along an axis: of the sizes given, or equal ones (the last may be smaller)."""
    axis = normal_axis(call.attr("axis", 0), x.type.rank)
    given = call.attr("split") if sizes is None else known_list(sizes, "the sizes of a Split")
    whole = x.shape[axis]
    if given is None:
        n = call.attr("num_outputs", len(call.operator.outputs))
        if n != len(call.operator.outputs):
            raise ValueError(f"{len(call.operator.outputs)} outputs, but num_outputs is {n}")
        chunk = ceildiv(whole, n)
        if call.attr("num_outputs") is None:
            call.demand(whole, n * chunk, f"axis {axis}, of {whole}, must split into {n} equal parts")
        given = [max_(min_(chunk, whole - k * chunk), 0) for k in range(n)]
    else:
        total: DimLike = 0
        for size in given:
            total = total + size
        call.demand(total, whole, f"the parts of axis {axis} are {total} together, not {whole}")
    parts: list[Node] = []
    start: DimLike = 0
    for size in given:
        parts.append(slice_axis(x, axis, start, size))
        start = start + size
    return tuple(parts)


# ---- Slice ---------------------------------------------------------------------------------------


@fission("Slice", since=1, raw=True)
def slice_by_attributes(call: Call, x: Node) -> Node:
    """x[start:end] with numbers as attributes."""
    starts, ends = call.attr("starts"), call.attr("ends")
    axes = call.attr("axes", tuple(range(len(starts))))
    return _sliced(call, x, starts, ends, axes, (1,) * len(starts))


@fission("Slice", since=10, raw=True)
def slice_by_inputs(
    call: Call,
    x: Node,
    starts: Node,
    ends: Node,
    axes: Node | None = None,
    steps: Node | None = None,
) -> Node:
    """x[start:end:step] with bounds clamped as Python does."""
    first = known_list(starts, "the start of a Slice")
    last = known_list(ends, "the end of a Slice")
    places = list(range(len(first))) if axes is None else known_ints(axes, "axes")
    strides = [1] * len(first) if steps is None else known_ints(steps, "the step of a Slice")
    return _sliced(call, x, first, last, places, strides)


def _sliced(
    call: Call,
    x: Node,
    starts: Sequence[DimLike],
    ends: Sequence[DimLike],
    axes: Sequence[int],
    steps: Sequence[int],
) -> Node:
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place = normal_axis(axis, x.type.rank)
        stride = max(-LONGEST_STEP, min(step, LONGEST_STEP))
        first, n = slice_bounds(call, x.shape[place], start, end, stride)
        x = slice_axis(x, place, first, n, stride)
    return x


def slice_bounds(
    call: Call, extent: DimLike, start: DimLike, end: DimLike, step: int
) -> tuple[DimLike, DimLike]:
    """(first index, number of elements) of `start:end:step` over an axis."""
    first, last = _from_front(call, start, extent), _from_front(call, end, extent)
    if step > 0:
        first = min_(max_(first, 0), extent)
        last = min_(max_(last, 0), extent)
        return first, max_(ceildiv(_gap(first, last), step), 0)
    first = min_(max_(first, 0), extent - 1)
    last = min_(max_(last, -1), extent - 1)
    return first, max_(ceildiv(first - last, -step), 0)


def _gap(first: DimLike, last: DimLike) -> DimLike:
    """last - first, where a maximum is taken away: the elements from -k on are min(k, n), not n - max(n - k, 0)."""
    start, end = single(first), single(last)
    if not isinstance(start, Max):
        return last - first
    ends = end.args if isinstance(end, Min) else (last,)
    return min_(*(e - s for e in ends for s in start.args))


def _from_front(call: Call, bound: DimLike, extent: DimLike) -> DimLike:
    """A bound that may count from the end; a symbolic one of unknown sign is demanded to be natural."""
    low, high = lower_bound(bound), upper_bound(bound)
    if high is not None and high < 0:
        return bound + extent
    if low is not None and low >= _ENDLESS:
        return extent
    if low is None or low < 0:
        call.demand_natural(bound, "the bound of a slice")
    return bound


# ---- Pad -----------------------------------------------------------------------------------------


@fission("Pad", since=2, raw=True)
def pad_by_attributes(call: Call, x: Node) -> Node:
    """Elements added at both ends of each axis."""
    value = np.asarray(call.attr("value", 0.0)).astype(np.float32)
    mode = call.attr("mode", "constant")
    return _padded(call, x, call.attr("pads"), range(x.type.rank), mode, value)


@fission("Pad", since=11, raw=True)
def pad_by_inputs(
    call: Call, x: Node, pads: Node, value: Node | None = None, axes: Node | None = None
) -> Node:
    """Elements added at (or, if negative, taken from) both ends of the axes."""
    amounts = known_list(pads, "the padding")
    places = list(range(x.type.rank)) if axes is None else known_ints(axes, "axes")
    filling = np.zeros((), x.dtype.numpy)
    if value is not None and call.attr("mode", "constant") == "constant":
        array = constant_value(value)
        if array is None:
            raise Refusal("the value of a Pad depends on the data")
        filling = array.reshape(())
    return _padded(call, x, amounts, places, call.attr("mode", "constant"), filling)


def _padded(
    call: Call,
    x: Node,
    amounts: Sequence[DimLike],
    axes: Sequence[int],
    mode: Any,
    value: np.ndarray,
) -> Node:
    n = len(axes)
    low: list[DimLike] = [0] * x.type.rank
    high: list[DimLike] = [0] * x.type.rank
    for k, axis in enumerate(axes):
        place = normal_axis(axis, x.type.rank)
        low[place], high[place] = amounts[k], amounts[n + k]
    more = tuple(max_(p, 0) for p in low), tuple(max_(p, 0) for p in high)
    if mode == "constant":  # a border may be cut off, too, where the other end lacks more than there is
        wide = pad(x, *more, value)
        return _cropped(wide, tuple(d + p + q for d, p, q in zip(x.shape, low, high)), low)
    kept = tuple(d - max_(-p, 0) - max_(-q, 0) for d, p, q in zip(x.shape, low, high))
    x = _cropped(x, kept, low)
    for axis, (p, q) in enumerate(zip(*more, strict=True)):
        if not (_is(p, 0) and _is(q, 0)):
            empty = f"axis {axis} of {x.type}, whose elements are repeated, must not be empty"
            call.demand(lacking(x.shape[axis], (p + q,)), 0, empty)
            x = gather(x, _mirror(x.shape[axis], p, q, mode), axis)
    return x


def _cropped(x: Node, shape: Sequence[DimLike], low: Sequence[DimLike]) -> Node:
    """What is left of each axis where a negative amount at its start is cut off."""
    for axis, (n, p) in enumerate(zip(shape, low, strict=True)):
        x = slice_axis(x, axis, max_(-p, 0), n)
    return x


def _mirror(extent: DimLike, low: DimLike, high: DimLike, mode: Any) -> Node:
    """Indices into an axis whose ends are reflected, repeated ("edge") or wrapped around."""
    if not any(isinstance(d, Dim) for d in (extent, low, high)):
        widths, ramp = (number(low), number(high)), np.arange(number(extent))
        return integers(np.pad(ramp, widths, mode=mode))
    last = extent_scalar(extent - 1, INT64)
    place = sub(iota(extent + low + high), extent_scalar(low, INT64))
    if mode == "reflect":
        return _reflected(place, extent, max_(low, high))
    if mode == "edge":
        return apply("max", apply("min", place, last), const(0, place))
    return apply("mod", place, extent_scalar(extent, INT64))


def _reflected(place: Node, extent: DimLike, most: DimLike) -> Node:
    """Places from -most to extent + most mirrored at both ends, as often as it takes; at one element all become 0.

    Each fold mirrors once more, and a few cost less than a remainder. An axis of more than one element has at least as
    many as the number that its extent is a multiple of.
    """
    last = extent_scalar(extent - 1, INT64)
    least = max(lower_bound(extent) or 0, content(extent, constant(extent)), 2)
    folds = 1 + -(-most // (least - 1))
    away = apply("abs", place)
    if not isinstance(folds, int) or folds > MOST_FOLDS:
        period = add(last, last)
        within = apply("mod", away, period)
        return apply("min", within, sub(period, within))
    for _ in range(folds - 1):
        away = apply("abs", sub(last, away))
    return away if folds % 2 else sub(last, away)


# ---- blocks and triangles ------------------------------------------------------------------------


@fission("DepthToSpace", raw=True)
def depth_to_space(call: Call, x: Node) -> Node:
    """Blocks of channels become blocks of space; DCR reads the block first, CRD the channel."""
    n, c, h, w = x.shape
    b = call.attr("blocksize")
    depth = divided(c, b * b)
    if call.attr("mode", "DCR") == "DCR":
        y = transpose(reshape(x, (n, b, b, depth, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = transpose(reshape(x, (n, depth, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return reshape(y, (n, depth, h * b, w * b))


@fission("SpaceToDepth", raw=True)
def space_to_depth(call: Call, x: Node) -> Node:
    """Blocks of space become blocks of channels; DCR writes the block first, CRD the channel."""
    n, c, h, w = x.shape
    b = call.attr("blocksize")
    rows, columns = divided(h, b), divided(w, b)
    perm = (0, 3, 5, 1, 2, 4) if call.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    y = transpose(reshape(x, (n, c, rows, b, columns, b)), perm)
    return reshape(y, (n, c * b * b, rows, columns))


@fission("Trilu", raw=True)
def triangle(call: Call, x: Node, k: Node | None = None) -> Node:
    """The upper (or lower) triangle from the k-th diagonal on, zeros elsewhere."""
    shift = 0 if k is None else known_list(k, "the diagonal")[0]
    h, w = x.shape[-2:]
    rows = add(unsqueeze(iota(h), [1]), extent_scalar(shift, INT64))
    test = "ge" if call.attr("upper", 1) else "le"
    kept = apply(test, unsqueeze(iota(w), [0]), rows)
    return select(kept, x, scalar(0, x.dtype))
