"""Resize and Upsample: nearest, linear and cubic interpolation, axis by axis.

In: a tensor, scales or sizes. Out: repetition (reshape and broadcast) for whole upscaling, gathers
with weights otherwise, and a matrix product for antialiasing, whose windows may be wide. Invariant: the
coordinates are those of ONNX's formulas, in float32 where extents are symbolic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fissile.fission.build import (
    add,
    apply,
    broadcast,
    const,
    constant_of,
    div,
    extent_scalar,
    gather,
    integers,
    iota,
    matmul,
    move_axis,
    mul,
    normal_axis,
    number,
    reshape,
    same,
    select,
    slice_axis,
    sub,
)
from fissile.fission.real import applied
from fissile.fission.real import extent as extent_real
from fissile.fission.real import number as real_number
from fissile.fission.table import Call, Refusal, fission
from fissile.fission.values import known_floats, known_list, known_reals
from fissile.ir.dim import Dim, DimLike
from fissile.ir.dtype import FLOAT32, INT64
from fissile.ir.graph import Node
from fissile.ir.primitive import cast, constant_value

_DYADIC = 1 << 10
_MOST_PLACES = 1 << 18  # along an axis: the shares of each are worked out one by one


@dataclass(frozen=True)
class Axis:
    """One axis to resize: extents before and after, the scale (None: their quotient), the region of a crop.

    A scale that is computed from extents is a node of rank 0.
    """

    place: int
    before: DimLike
    after: DimLike
    scale: float | Node | None
    region: tuple[float, float]

    @property
    def is_known(self) -> bool:
        """Whether both extents are numbers."""
        return not isinstance(self.before, Dim) and not isinstance(self.after, Dim)


@fission("Upsample", since=7)
def upsample_by_attributes(call: Call, x: Node) -> Node:
    """Resize with asymmetric coordinates."""
    return _resized(call, x, _scaled(x, constant_of(np.array(call.attr("scales"), np.float32))), "asymmetric", "floor")


@fission("Upsample", since=9)
def upsample(call: Call, x: Node, scales: Node) -> Node:
    """Resize with asymmetric coordinates."""
    return _resized(call, x, _scaled(x, scales), "asymmetric", "floor")


@fission("Resize", since=10)
def resize_before_11(call: Call, x: Node, scales: Node) -> Node:
    """Resize with asymmetric coordinates."""
    return _resized(call, x, _scaled(x, scales), "asymmetric", "floor")


@fission("Resize", since=11)
def resize(
    call: Call,
    x: Node,
    roi: Node | None = None,
    scales: Node | None = None,
    sizes: Node | None = None,
) -> Node:
    """Resize by ONNX's coordinate transformations."""
    mode = call.attr("coordinate_transformation_mode", "half_pixel")
    given = call.attr("axes")
    axes = range(x.type.rank) if given is None else [normal_axis(a, x.type.rank) for a in given]
    n = len(list(axes))
    regions = [(0.0, 1.0)] * n
    if mode == "tf_crop_and_resize":
        corners = known_floats(roi, "the region")
        regions = list(zip(corners[:n], corners[n:], strict=True))
    if sizes is not None and sizes.shape != (0,):
        plan = _sized(call, x, list(axes), known_list(sizes, "the sizes of a Resize"), regions)
    else:
        plan = _scaled(x, scales, list(axes), regions)
    return _resized(call, x, plan, mode, call.attr("nearest_mode", "round_prefer_floor"))


def _scaled(
    x: Node,
    scales: Node | None,
    axes: Sequence[int] | None = None,
    regions: Sequence[tuple[float, float]] | None = None,
) -> list[Axis]:
    places = list(range(x.type.rank)) if axes is None else axes
    areas = [(0.0, 1.0)] * len(places) if regions is None else regions
    if scales is not None and constant_value(scales) is None:
        return _scaled_by_extents(x, scales, places, areas)
    return [
        Axis(a, x.shape[a], _times(x.shape[a], s, r), s, r)
        for a, s, r in zip(places, known_floats(scales, "scales"), areas, strict=True)
    ]


def _scaled_by_extents(
    x: Node, scales: Node, places: Sequence[int], areas: Sequence[tuple[float, float]]
) -> list[Axis]:
    """The axes where the scales are computed from extents."""
    factors = known_reals(scales)
    if factors is None or any(area != (0.0, 1.0) for area in areas):
        raise Refusal("the scales depend on the data")
    plan: list[Axis] = []
    for k, (a, factor) in enumerate(zip(places, factors, strict=True)):
        after = applied("mul", extent_real(x.shape[a], FLOAT32), factor).truncated()
        scale: float | Node = reshape(slice_axis(scales, 0, k, 1), ())
        if factor.value is not None:
            scale = factor.value
        plan.append(Axis(a, x.shape[a], after, scale, areas[k]))
    return plan


def _times(extent: DimLike, scale: float, region: tuple[float, float]) -> DimLike:
    """floor(extent * (end - start) * scale), in float32: exporters mean 7 by 0.7 of 10, which exactly is less."""
    part = np.float32(region[1]) - np.float32(region[0])
    if not isinstance(extent, Dim):
        return math.floor(np.float32(extent) * part * np.float32(scale))
    exact = Fraction(scale)
    if exact.denominator <= _DYADIC and part == 1:
        return extent * exact.numerator // exact.denominator
    whole = applied("mul", extent_real(extent, FLOAT32), real_number(float(part), FLOAT32))
    return applied("floor", applied("mul", whole, real_number(scale, FLOAT32))).truncated()


def _sized(
    call: Call,
    x: Node,
    axes: Sequence[int],
    sizes: Sequence[DimLike],
    regions: Sequence[tuple[float, float]],
) -> list[Axis]:
    policy = call.attr("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return [
            Axis(a, x.shape[a], n, None, r) for a, n, r in zip(axes, sizes, regions, strict=True)
        ]
    extents = [x.shape[a] for a in axes]
    if any(isinstance(d, Dim) for d in (*extents, *sizes)):
        raise Refusal("keeping the aspect ratio of extents not known has no native definition")
    ratios = [number(n) / number(d) for n, d in zip(sizes, extents, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    rounded = [math.floor(number(d) * scale + 0.5) for d in extents]
    return [
        Axis(a, d, n, scale, r) for a, d, n, r in zip(axes, extents, rounded, regions, strict=True)
    ]


def _resized(call: Call, x: Node, plan: Sequence[Axis], mode: str, nearest: str) -> Node:
    kind = call.attr("mode", "nearest")
    kept = x.dtype
    if kind != "nearest" and not kept.is_float:
        raise Refusal(f"interpolation of {kept} has no native definition")
    outside: Node | None = None
    for axis in plan:
        unchanged = same(axis.before, axis.after) and mode != "tf_crop_and_resize"
        if unchanged and axis.scale in (None, 1):
            continue
        source = x
        if kind == "nearest":
            x = _nearest(x, axis, mode, nearest)
        elif axis.is_known and kind == "cubic" and not call.attr("antialias", 0):
            x = _four_taps(call, x, axis, mode)
        elif axis.is_known:
            x = _by_matrix(call, x, axis, mode, kind)
        elif call.attr("antialias", 0) or kind == "cubic":
            x = _by_taps(call, x, axis, mode)
        else:
            x = _linear(x, axis, mode)
        if mode == "tf_crop_and_resize":
            outside = _outside(source, axis, x, outside)
    if outside is None:
        return x
    return select(outside, const(call.attr("extrapolation_value", 0.0), x), x)


# ---- coordinates ---------------------------------------------------------------------------------


def _scale_of(axis: Axis) -> float:
    if isinstance(axis.scale, Node):
        raise Refusal("a scale that depends on extents, of an extent that does not")
    return number(axis.after) / number(axis.before) if axis.scale is None else axis.scale


def _coordinates(axis: Axis, mode: str) -> np.ndarray:
    """Where each output element lies in the input, for known extents."""
    n, m = number(axis.before), number(axis.after)
    scale = _scale_of(axis) if n else 1.0
    i = np.arange(m, dtype=np.float64)
    if mode == "align_corners":
        return i * ((n - 1) / (m - 1)) if m > 1 else i * 0
    if mode == "asymmetric":
        return i / scale
    if mode == "tf_crop_and_resize":
        start, end = axis.region
        if m > 1:
            return start * (n - 1) + i * ((end - start) * (n - 1) / (m - 1))
        return i * 0 + 0.5 * (start + end) * (n - 1)
    if mode == "pytorch_half_pixel" and m == 1:
        return i * 0
    if mode == "tf_half_pixel_for_nn":
        return (i + 0.5) / scale
    shift = 0.0
    if mode == "half_pixel_symmetric":
        adjusted = m / (scale * n)
        shift = n / 2 * (1 - adjusted)
    return shift + (i + 0.5) / scale - 0.5


def _symbolic_coordinates(axis: Axis, mode: str) -> Node:
    """The same as a float32 vector computed from iota."""
    i = iota(axis.after, FLOAT32)
    n, m = extent_scalar(axis.before, FLOAT32), extent_scalar(axis.after, FLOAT32)
    if axis.scale is None:
        scale = div(m, n)
    else:
        scale = axis.scale if isinstance(axis.scale, Node) else const(axis.scale, i)
    half, unit = const(0.5, i), const(1, i)
    if mode == "align_corners":
        steps = apply("max", sub(m, unit), unit)
        return div(mul(i, sub(n, unit)), steps)
    if mode == "asymmetric":
        return div(i, scale)
    if mode == "tf_half_pixel_for_nn":
        return div(add(i, half), scale)
    if mode == "tf_crop_and_resize":
        raise Refusal("cropping extents not known has no native definition")
    place = sub(div(add(i, half), scale), half)
    if mode == "half_pixel_symmetric":
        adjusted = div(m, mul(scale, n))
        shift = mul(div(n, const(2, n)), sub(unit, adjusted))
        # in this order: half way between two elements it decides which one is the nearest
        return sub(add(shift, div(add(i, half), scale)), half)
    if mode == "pytorch_half_pixel":
        return select(apply("gt", m, unit), place, const(0, i))
    return place


def _outside(source: Node, axis: Axis, x: Node, known: Node | None) -> Node:
    where = _coordinates(axis, "tf_crop_and_resize")
    wild = (where < 0) | (where > number(axis.before) - 1)
    shape = tuple(len(wild) if a == axis.place else 1 for a in range(source.type.rank))
    own = constant_of(wild.reshape(shape))
    return own if known is None else apply("or", known, own)


# ---- nearest -------------------------------------------------------------------------------------

_ROUND: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _nearest(x: Node, axis: Axis, mode: str, rounding: str) -> Node:
    factor = _whole_factor(axis, mode, rounding)
    if factor is not None:
        return _repeated(x, axis.place, factor)
    if axis.is_known:
        places = _ROUND[rounding](_coordinates(axis, mode))
        last = number(axis.before) - 1
        return gather(x, integers(np.clip(places, 0, max(last, 0)).astype(np.int64)), axis.place)
    where = _symbolic_coordinates(axis, mode)
    half = const(0.5, where)
    rounded = {
        "round_prefer_floor": lambda: apply("ceil", sub(where, half)),
        "round_prefer_ceil": lambda: apply("floor", add(where, half)),
        "floor": lambda: apply("floor", where),
        "ceil": lambda: apply("ceil", where),
    }[rounding]()
    last_place = extent_scalar(axis.before - 1, INT64)
    index = apply("max", apply("min", cast(rounded, INT64), last_place), const(0, last_place))
    return gather(x, index, axis.place)


def _whole_factor(axis: Axis, mode: str, rounding: str) -> int | None:
    """k when output element i is input element i // k for every i, whatever the extent."""
    if axis.is_known:
        n, m = number(axis.before), number(axis.after)
        if n == 0 or m % n:
            return None
        places = np.clip(_ROUND[rounding](_coordinates(axis, mode)), 0, n - 1)
        return m // n if np.array_equal(places, np.arange(m) // (m // n)) else None
    if (
        not isinstance(axis.scale, float | int)
        or axis.scale != int(axis.scale)
        or mode in ("align_corners", "tf_crop_and_resize")
    ):
        return None
    # These coordinates repeat with the period of the scale, but for the clamped ends.
    probe = Axis(axis.place, 4, 4 * int(axis.scale), axis.scale, axis.region)
    return _whole_factor(probe, mode, rounding)


def _repeated(x: Node, place: int, factor: int) -> Node:
    before, n, after = x.shape[:place], x.shape[place], x.shape[place + 1 :]
    wide = broadcast(reshape(x, (*before, n, 1, *after)), (*before, n, factor, *after))
    return reshape(wide, (*before, n * factor, *after))


# ---- linear and cubic ----------------------------------------------------------------------------


def _linear(x: Node, axis: Axis, mode: str) -> Node:
    where = _symbolic_coordinates(axis, mode)
    last = extent_scalar(axis.before - 1, FLOAT32)
    inside = apply("max", apply("min", where, last), const(0, where))
    low = apply("floor", inside)
    weight = sub(inside, low)
    shape = tuple(axis.after if a == axis.place else 1 for a in range(x.type.rank))
    share = cast(reshape(weight, shape), x.dtype)
    index = cast(low, INT64)
    a = gather(x, index, axis.place)
    b = gather(x, apply("min", add(index, const(1, index)), cast(last, INT64)), axis.place)
    return add(mul(a, sub(const(1, share), share)), mul(b, share))


def _by_matrix(call: Call, x: Node, axis: Axis, mode: str, kind: str) -> Node:
    """x times a constant [after, before] matrix of weights along one axis."""
    weights = _weights(call, axis, mode, kind)
    two_taps = (weights != 0).sum(axis=1).max(initial=0) <= 2
    if two_taps and not call.attr("antialias", 0):
        return _two_taps(x, axis.place, weights)
    matrix = constant_of(weights.T.astype(x.dtype.numpy))
    if x.type.rank == 1:
        return reshape(matmul(reshape(x, (1, *x.shape)), matrix), (axis.after,))
    rows = move_axis(x, axis.place, -1)
    return move_axis(matmul(rows, matrix), -1, axis.place)


def _two_taps(x: Node, place: int, weights: np.ndarray) -> Node:
    """At most two elements per output: two gathers and a weighted sum, and no other element touched."""
    first = np.argmax(weights != 0, axis=1)
    second = weights.shape[1] - 1 - np.argmax(weights[:, ::-1] != 0, axis=1)
    rows = np.arange(len(weights))
    left = weights[rows, first]
    right = np.where(first == second, 0, weights[rows, second])
    shape = tuple(len(rows) if a == place else 1 for a in range(x.type.rank))

    def part(index: np.ndarray, share: np.ndarray) -> Node:
        weight = constant_of(share.astype(x.dtype.numpy).reshape(shape))
        return mul(gather(x, integers(index), place), weight)

    if not right.any():
        return gather(x, integers(first), place) if (left == 1).all() else part(first, left)
    return add(part(first, left), part(second, right))


def _four_taps(call: Call, x: Node, axis: Axis, mode: str) -> Node:
    """Cubic interpolation as four gathers and a weighted sum, so that what is in no window is never touched."""
    rows = list(_windows(call, axis, mode, "cubic"))
    places = np.array([taps for taps, _ in rows], np.int64).reshape(-1, 4)
    weights = np.array([shares for _, shares in rows]).reshape(-1, 4)
    shape = tuple(len(rows) if a == axis.place else 1 for a in range(x.type.rank))
    parts = [
        mul(
            gather(x, integers(places[:, k]), axis.place),
            constant_of(weights[:, k].astype(x.dtype.numpy).reshape(shape)),
        )
        for k in range(4)
    ]
    return add(add(parts[0], parts[1]), add(parts[2], parts[3]))


def _weights(call: Call, axis: Axis, mode: str, kind: str) -> np.ndarray:
    """Of every output [after] the shares of all inputs [before]."""
    matrix = np.zeros((number(axis.after), number(axis.before)))
    for row, (taps, shares) in zip(matrix, _windows(call, axis, mode, kind), strict=True):
        np.add.at(row, taps, shares)
    return matrix


def _windows(
    call: Call, axis: Axis, mode: str, kind: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Which inputs each output reads, at the ends one of them several times, and their shares."""
    n, scale = number(axis.before), _scale_of(axis)
    if max(n, number(axis.after)) > _MOST_PLACES:
        raise ValueError(f"an axis of {n} is resized to {axis.after}: more than {_MOST_PLACES}")
    stretch = max(1.0, 1 / scale) if call.attr("antialias", 0) else 1.0
    cubic = kind == "cubic"
    a, reach = call.attr("cubic_coeff_a", -0.75), (2 if cubic else 1) * stretch
    for place in _coordinates(axis, mode):
        base = math.floor(place)
        low, high = math.ceil(place - reach), math.floor(place + reach)
        if stretch == 1:
            low, high = (base - 1, base + 2) if cubic else (base, base + 1)
        taps = np.arange(low, high + 1)
        offsets = np.abs(taps - place) / stretch
        shares = _cubic(offsets, a) if cubic else np.maximum(1 - offsets, 0)
        if call.attr("exclude_outside", 0):
            shares = np.where((taps >= 0) & (taps < n), shares, 0)
        if call.attr("exclude_outside", 0) or stretch != 1:
            shares = shares / shares.sum()
        yield np.clip(taps, 0, n - 1), shares


def _cubic(t: np.ndarray, a: float) -> np.ndarray:
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.asarray(np.where(t <= 1, near, np.where(t < 2, far, 0)))


def _by_taps(call: Call, x: Node, axis: Axis, mode: str) -> Node:
    """Cubic interpolation over extents not known: four gathers with weights from the coordinates."""
    if call.attr("antialias", 0) or call.attr("exclude_outside", 0):
        raise Refusal("antialiasing over extents not known has no native definition")
    where = _symbolic_coordinates(axis, mode)
    base = apply("floor", where)
    last = extent_scalar(axis.before - 1, INT64)
    shape = tuple(axis.after if a == axis.place else 1 for a in range(x.type.rank))
    total: Node | None = None
    for k in range(-1, 3):
        tap = add(base, const(k, base))
        weight = _cubic_node(apply("abs", sub(tap, where)), call.attr("cubic_coeff_a", -0.75))
        index = apply("max", apply("min", cast(tap, INT64), last), const(0, last))
        part = mul(gather(x, index, axis.place), cast(reshape(weight, shape), x.dtype))
        total = part if total is None else add(total, part)
    assert total is not None
    return total


def _cubic_node(t: Node, a: float) -> Node:
    def poly(*coefficients: float) -> Node:
        value = const(coefficients[0], t)
        for c in coefficients[1:]:
            value = add(mul(value, t), const(c, t))
        return value

    near = poly(a + 2, -(a + 3), 0, 1)
    far = poly(a, -5 * a, 8 * a, -4 * a)
    inner = select(apply("lt", t, const(2, t)), far, const(0, t))
    return select(apply("le", t, const(1, t)), near, inner)
