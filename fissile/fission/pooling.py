"""Pooling, and the arithmetic of windows that convolutions share.

In: [N, C, spatial..] tensors and ONNX's attributes. Out: channels-last padding, windows and
reductions between two transposes. Invariant: no window starts beyond the data and its low padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fissile.fission.build import (
    Shape,
    add,
    apply,
    channels_first,
    channels_last,
    const,
    div,
    extent_scalar,
    filled,
    iota,
    lowest,
    mean,
    mul,
    pad,
    reduce,
    reshape,
    sub,
    window,
)
from fissile.fission.table import Call, fission
from fissile.ir.dim import Dim, DimLike, ceildiv, max_, min_, product
from fissile.ir.dtype import INT64
from fissile.ir.graph import Node, make
from fissile.ir.primitive import ARG_MAX


@dataclass(frozen=True)
class Geometry:
    """Windows over the spatial axes: sizes, strides, dilations, padding; `extra` is what ceil_mode adds at the end."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: Shape
    high: Shape
    extra: Shape

    @property
    def spans(self) -> tuple[int, ...]:
        """How far a window reaches along each axis."""
        return tuple((s - 1) * d + 1 for s, d in zip(self.sizes, self.dilations, strict=True))

    @property
    def is_padded(self) -> bool:
        """Whether any window may see padding."""
        return any(isinstance(p, Dim) or p != 0 for p in self.low + self.high + self.extra)


def geometry(call: Call, spatial: Shape, sizes: Sequence[int]) -> Geometry:
    """The windows of a Conv or pool over these spatial extents."""
    rank = len(spatial)
    strides = tuple(call.attr("strides", (1,) * rank))
    dilations = tuple(call.attr("dilations", (1,) * rank))
    plain = Geometry(tuple(sizes), strides, dilations, (0,) * rank, (0,) * rank, (0,) * rank)
    low, high = _padding(call, spatial, plain)
    extra: Shape = (0,) * rank
    if call.attr("ceil_mode", 0):
        columns = zip(spatial, low, high, plain.spans, strides, strict=True)
        extra = tuple(_ceil_extra(*column) for column in columns)
    return Geometry(plain.sizes, strides, dilations, low, high, extra)


def _padding(call: Call, spatial: Shape, plain: Geometry) -> tuple[Shape, Shape]:
    mode, rank = call.attr("auto_pad", "NOTSET"), len(spatial)
    if mode == "VALID":
        return (0,) * rank, (0,) * rank
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        low: list[DimLike] = []
        high: list[DimLike] = []
        for d, span, stride in zip(spatial, plain.spans, plain.strides, strict=True):
            total = max_((ceildiv(d, stride) - 1) * stride + span - d, 0)
            small = total // 2
            low.append(small if mode == "SAME_UPPER" else total - small)
            high.append(total - small if mode == "SAME_UPPER" else small)
        return tuple(low), tuple(high)
    pads = tuple(call.attr("pads", (0,) * (2 * rank)))
    return pads[:rank], pads[rank:]


def _ceil_extra(d: DimLike, low: DimLike, high: DimLike, span: int, stride: int) -> DimLike:
    whole = d + low + high
    n = min_(ceildiv(whole - span, stride) + 1, ceildiv(d + low, stride))
    return max_((n - 1) * stride + span - whole, 0)


def around(spatial: Shape) -> Shape:
    """Spatial amounts for a channels-last tensor: nothing along batch and channels."""
    return (0, *spatial, 0)


def _windows(x: Node, g: Geometry) -> Node:
    """x [N, spatial.., C] padded already, cut into windows whose places are the last axes."""
    return window(x, range(1, x.type.rank - 1), g.sizes, g.strides, g.dilations)


def _places(x: Node, g: Geometry) -> range:
    return range(x.type.rank, x.type.rank + len(g.sizes))


def _total(a: Shape, b: Shape) -> Shape:
    return tuple(p + q for p, q in zip(a, b, strict=True))


@fission("MaxPool")
def max_pool(call: Call, x: Node) -> tuple[Node, ...]:
    """The maximum of each window; padding is the lowest value."""
    g = geometry(call, x.shape[2:], call.attr("kernel_shape"))
    rows = channels_last(x)
    padded = pad(rows, around(g.low), around(_total(g.high, g.extra)), lowest(x.dtype))
    found = reduce("max", _windows(padded, g), _places(rows, g), keepdims=False)
    best = channels_first(found)
    return (best,) if call.outputs < 2 else (best, max_places(call, x, g))


@fission("AveragePool")
def average_pool(call: Call, x: Node) -> Node:
    """The mean of each window, over the data alone or over the padding too."""
    g = geometry(call, x.shape[2:], call.attr("kernel_shape"))
    rows = channels_last(x)
    padded = pad(rows, around(g.low), around(_total(g.high, g.extra)))
    total = reduce("sum", _windows(padded, g), _places(rows, g), keepdims=False)
    if not g.is_padded:
        return channels_first(div(total, const(_volume(g), x)))
    return channels_first(div(total, _counts(rows, g, bool(call.attr("count_include_pad", 0)))))


def _volume(g: Geometry) -> int:
    return math.prod(g.sizes)


def _counts(rows: Node, g: Geometry, whole: bool) -> Node:
    """How many elements each window counts, [1, spatial.., 1]: a product of one vector per axis."""
    counts: Node | None = None
    rank = len(g.sizes)
    for k in range(rank):
        low, high, extra = g.low[k], g.high[k], g.extra[k]
        if whole:
            ones = filled(1, rows.dtype, (rows.shape[1 + k] + low + high,))
            ones = pad(ones, (0,), (extra,))
        else:
            ones = pad(filled(1, rows.dtype, (rows.shape[1 + k],)), (low,), (high + extra,))
        cut = window(ones, [0], [g.sizes[k]], [g.strides[k]], [g.dilations[k]])
        own = reduce("sum", cut, [1], keepdims=False)
        own = reshape(own, tuple(own.shape[0] if a == 1 + k else 1 for a in range(rank + 2)))
        counts = own if counts is None else mul(counts, own)
    assert counts is not None
    return counts


@fission("LpPool")
def lp_pool(call: Call, x: Node) -> Node:
    """The p-norm of each window."""
    g = geometry(call, x.shape[2:], call.attr("kernel_shape"))
    p, rows = call.attr("p", 2), channels_last(apply("abs", x))
    powers = mul(rows, rows) if p == 2 else apply("pow", rows, const(p, x))
    padded = pad(powers, around(g.low), around(_total(g.high, g.extra)))
    total = reduce("sum", _windows(padded, g), _places(rows, g), keepdims=False)
    return channels_first(apply("pow", total, const(1 / p, x)))


@fission("GlobalAveragePool")
def global_average_pool(call: Call, x: Node) -> Node:
    """The mean of each map."""
    return mean(x, range(2, x.type.rank))


@fission("GlobalMaxPool")
def global_max_pool(call: Call, x: Node) -> Node:
    """The maximum of each map."""
    return reduce("max", x, range(2, x.type.rank))


@fission("GlobalLpPool")
def global_lp_pool(call: Call, x: Node) -> Node:
    """The p-norm of each map."""
    p = call.attr("p", 2)
    total = reduce("sum", apply("pow", apply("abs", x), const(p, x)), range(2, x.type.rank))
    return apply("pow", total, const(1 / p, x))


def max_places(call: Call, x: Node, g: Geometry) -> Node:
    """For each window, the row-major (or column-major) place of its first maximum in the whole tensor."""
    rows = channels_last(x)
    padded = pad(rows, around(g.low), around(_total(g.high, g.extra)), lowest(x.dtype))
    cut = _windows(padded, g)
    flat = reshape(cut, (*cut.shape[: x.type.rank], _volume(g)))
    tap = make(ARG_MAX, flat, axis=x.type.rank, last=False)
    n, *spatial, c = rows.shape
    rank = len(spatial)
    coordinates: list[Node] = []
    for k in range(rank):
        inner = math.prod(g.sizes[k + 1 :])
        place = apply("mod", div(tap, const(inner, tap)), const(g.sizes[k], tap))
        ramp = _ramp(tap, 1 + k, g.strides[k])
        shift = sub(ramp, extent_scalar(g.low[k], INT64))
        coordinates.append(add(shift, mul(place, const(g.dilations[k], tap))))
    index = add(mul(_ramp(tap, 0, 1), extent_scalar(c, INT64)), _ramp(tap, rank + 1, 1))
    order = range(rank) if not call.attr("storage_order", 0) else reversed(range(rank))
    scaled = mul(index, extent_scalar(product(spatial), INT64))
    within: Node | None = None
    for k in order:
        own = coordinates[k]
        if within is not None:
            own = add(mul(within, extent_scalar(spatial[k], INT64)), own)
        within = own
    return channels_first(scaled if within is None else add(scaled, within))


def _ramp(x: Node, axis: int, step: int) -> Node:
    """0, step, 2 * step, .. along one axis of the shape of x, 1 elsewhere."""
    n = x.shape[axis]
    ramp = mul(iota(n), const(step, x))
    return reshape(ramp, tuple(n if a == axis else 1 for a in range(x.type.rank)))
