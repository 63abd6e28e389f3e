"""Operators on images in Python: sampling at points, in regions and by scales, and the inverse of pooling.

In: arrays whose first two axes are batch and channels. Out: arrays, as onnxruntime has them.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
from onnx.reference.ops.op_resize import Resize as ReferenceResize
from onnx.reference.ops.op_roi_align import RoiAlign as ReferenceRoiAlign

from fissile.reference.base import Array, Corrected


class Resize(ReferenceResize):  # type: ignore[misc]
    """Extents are products in float32, and it is the whole numbers whose corners are aligned."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        roi: Array | None = None,
        scales: Array | None = None,
        sizes: Array | None = None,
        axes: list[int] | None = None,
        coordinate_transformation_mode: str | None = None,
        **more: Any,
    ) -> tuple[Array]:
        mode = coordinate_transformation_mode
        if scales is not None and len(scales) and mode != "tf_crop_and_resize":
            extents = [x.shape[a] for a in (range(x.ndim) if axes is None else axes)]
            wanted = np.floor(np.array(extents, np.float32) * np.asarray(scales, np.float32))
            if mode == "align_corners":
                scales, sizes = None, wanted.astype(np.int64)
            else:
                scales = np.array([*map(_reaching, scales.tolist(), extents, wanted.tolist())])
        result: tuple[Array] = super()._run(
            x, roi, scales, sizes, axes=axes, coordinate_transformation_mode=mode, **more
        )
        return result


def _reaching(scale: float, extent: int, wanted: float) -> float:
    """The scale, or the least above it whose product with the extent is not below `wanted`."""
    result = scale
    if result * extent < wanted:
        result = wanted / extent
    return result if result * extent >= wanted else float(np.nextafter(result, np.inf))


class RoiAlign(ReferenceRoiAlign):  # type: ignore[misc]
    """Before opset 16 regions begin and end at the corners of pixels."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        rois: Array,
        batch: Array,
        coordinate_transformation_mode: str | None = None,
        **more: Any,
    ) -> tuple[Array]:
        result: tuple[Array] = super()._run(x, rois, batch, "output_half_pixel", **more)
        return result


class MaxUnpool(Corrected):
    """Zeros, but at `places`, which are flat in the whole tensor.

    In which tensor, of the wanted extents or of the least that pooling may have had, ONNX leaves open where both
    are given. onnxruntime, and MaxPool itself, mean the former; a case of ONNX's own the latter. So the former it is,
    unless only in the latter every element lies in the window that it was the maximum of.
    """

    def _run(
        self, x: Array, places: Array, shape: Array | None = None, **attributes: Any
    ) -> tuple[Array]:
        kernel = self.given("kernel_shape")
        strides = self.given("strides") or [1] * len(kernel)
        pads = self.given("pads") or [0] * 2 * len(kernel)
        both = zip(pads[: len(kernel)], pads[len(kernel) :], strict=True)
        least = (*x.shape[:2], *(
            (n - 1) * s - low - high + k
            for n, s, k, (low, high) in zip(x.shape[2:], strides, kernel, both, strict=True)
        ))  # fmt: skip
        wanted = least if shape is None else tuple(int(n) for n in shape)
        windows = kernel, strides, pads
        small = not _in_windows(places, wanted, *windows) and _in_windows(places, least, *windows)
        within = least if small else wanted
        result = np.zeros(int(np.prod(within)), x.dtype)
        result[places.reshape(-1)] = x.reshape(-1)
        result = result.reshape(within)
        if within == wanted:
            return (result,)
        whole = np.zeros(wanted, x.dtype)
        both_have = tuple(slice(min(a, b)) for a, b in zip(within, wanted, strict=True))
        whole[both_have] = result[both_have]
        return (whole,)


def _in_windows(
    places: Array, shape: tuple[int, ...], kernel: list[int], strides: list[int], pads: list[int]
) -> bool:
    """Whether each place, flat in a tensor of `shape`, lies in the pooling window of its element."""
    if places.size and not 0 <= places.min() <= places.max() < np.prod(shape):
        return False
    found = np.unravel_index(places, shape)
    own = np.indices(places.shape)
    right = (found[0] == own[0]) & (found[1] == own[1])
    for a, (size, stride) in enumerate(zip(kernel, strides, strict=True)):
        inside = found[2 + a] + pads[a] - own[2 + a] * stride
        right &= (inside >= 0) & (inside < size)
    return bool(right.all())


class GridSample(Corrected):
    """x[N, C, D1..Dr] at the points grid[N, E1..Er, r], whose coordinates come last axis first."""

    def _run(self, x: Array, grid: Array, **attributes: Any) -> tuple[Array]:
        names = {"linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4, "nearest": 1}
        taps = names[self.given("mode", "linear")]
        rank = x.ndim - 2
        flat = grid.reshape(len(grid), math.prod(grid.shape[1:-1]), rank)
        points = flat[..., ::-1].astype(np.float64)
        columns = [self._column(points[..., a], x.shape[2 + a], taps) for a in range(rank)]
        total = np.zeros((len(x), x.shape[1], points.shape[1]), np.float64)
        rows = np.arange(len(x))[:, None]
        for chosen in product(range(taps), repeat=rank):
            places = [columns[a][0][k] for a, k in enumerate(chosen)]
            at: tuple[Any, ...] = (rows, slice(None), *places)
            weight = np.prod([columns[a][1][k] for a, k in enumerate(chosen)], axis=0)
            values = x.astype(np.float64)[at]  # [N, points, C]
            total += np.where(weight[..., None] != 0, values * weight[..., None], 0).swapaxes(1, 2)
        return (total.reshape(*x.shape[:2], *grid.shape[1:-1]).astype(x.dtype),)

    def _column(self, at: Array, n: int, taps: int) -> tuple[list[Array], list[Array]]:
        """Along one axis: the places that a point is made of, and their weights, 0 for what lies outside."""
        corners, padding = bool(self.given("align_corners", 0)), self.given("padding_mode", "zeros")
        low, high = (0.0, n - 1.0) if corners else (-0.5, n - 0.5)
        x = (at + 1) / 2 * (n - 1) if corners else ((at + 1) * n - 1) / 2
        x = np.rint(x) if taps == 1 else x
        if taps < 4 and padding == "border":
            x = np.clip(x, 0, n - 1)
        elif taps < 4 and padding == "reflection":
            x = _reflected(x, low, high)
        x = np.where(np.isfinite(x), x, -2.0)
        base = np.floor(x)
        part = x - base
        first = base - (taps == 4)
        weights = {1: [np.ones_like(x)], 2: [1 - part, part], 4: _cubic(part)}[taps]
        places, kept = [], []
        for k in range(taps):
            place = first + k
            if padding == "border":
                place = np.clip(place, 0, n - 1)
            elif padding == "reflection":
                place = np.trunc(_reflected(place, low, high))
            inside = (place >= 0) & (place < n)
            kept.append(np.where(inside, weights[k], 0))
            places.append(np.where(inside, place, 0).astype(np.int64))
        return places, kept


def _reflected(x: Array, low: float, high: float) -> Array:
    """x folded back into [low, high] at the borders."""
    span = high - low
    if span <= 0:
        return np.full_like(x, low)
    off = np.where(x < low, low - x, x - high)
    turns = np.trunc(off / span)
    rest = off - turns * span
    near, far = (
        np.where(x < low, low + rest, high - rest),
        np.where(x < low, high - rest, low + rest),
    )
    folded = np.where(turns % 2 == 0, near, far)
    return np.where((x >= low) & (x <= high), x, folded)


def _cubic(t: Array, a: float = -0.75) -> list[Array]:
    """Weights of the four neighbours of a point t behind the second."""

    def outer(d: Array) -> Array:
        return np.asarray(((a * d - 5 * a) * d + 8 * a) * d - 4 * a)

    def inner(d: Array) -> Array:
        return np.asarray(((a + 2) * d - (a + 3)) * d * d + 1)

    return [outer(t + 1), inner(t), inner(1 - t), outer(2 - t)]


class Upsample(Corrected):
    """What became Resize: coordinates divided by the scales, rounded down or between two neighbours."""

    def _run(self, x: Array, scales: Array | None = None, **attributes: Any) -> tuple[Array]:
        factors = self.given("scales") if scales is None else [float(s) for s in scales]
        linear = self.given("mode", "nearest") == "linear"
        y = x.astype(np.float64) if linear else x
        for axis, factor in enumerate(factors):
            n = x.shape[axis]
            places = np.arange(int(np.floor(np.float32(n) * np.float32(factor)))) / factor
            low = np.minimum(np.floor(places).astype(np.int64), n - 1)
            near = np.take(y, low, axis)
            if linear:
                part = (places - low).reshape(-1, *[1] * (x.ndim - 1 - axis))
                far = np.take(y, np.minimum(low + 1, n - 1), axis)
                near = near * (1 - part) + far * part
            y = near
        return (y.astype(x.dtype),)
