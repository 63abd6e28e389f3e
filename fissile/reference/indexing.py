"""Operators that select in Python: OneHot, NonMaxSuppression, Pad, Unique.

In: arrays. Out: arrays, as onnxruntime has them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fissile.reference.base import Array, Corrected


class OneHot(Corrected):
    """The depth may be a tensor of one element; an index outside of [-depth, depth) hits nothing."""

    def _run(self, indices: Array, depth: Array, values: Array, **attributes: Any) -> tuple[Array]:
        classes = int(np.asarray(depth).reshape(-1)[0])
        axis = int(self.given("axis", -1))
        place = axis + indices.ndim + 1 if axis < 0 else axis
        wrapped = np.where(indices < 0, indices + classes, indices)
        shape = [classes if a == place else 1 for a in range(indices.ndim + 1)]
        hit = np.expand_dims(wrapped, place) == np.arange(classes).reshape(shape)
        return (np.where(hit, values[1], values[0]).astype(values.dtype),)


class NonMaxSuppression(Corrected):
    """Greedy selection per batch entry and class, whole rows of overlaps at once; of equal scores the first wins."""

    def _run(
        self,
        boxes: Array,
        scores: Array,
        most: Array | None = None,
        overlap: Array | None = None,
        least: Array | None = None,
        **attributes: Any,
    ) -> tuple[Array]:
        count = 0 if most is None else int(np.asarray(most).reshape(-1)[0])
        limit = 0.0 if overlap is None else np.asarray(overlap).reshape(-1)[0]
        floor = None if least is None else np.asarray(least).reshape(-1)[0]
        found: list[tuple[int, int, int]] = []
        for b in range(scores.shape[0]):
            low, high = _corners(boxes[b], bool(self.given("center_point_box", 0)))
            for c in range(scores.shape[1]):
                row = scores[b, c]
                order = np.argsort(-row, kind="stable")
                left = order if floor is None else order[row[order] > floor]
                taken = 0
                while len(left) and taken < count:
                    best, left = int(left[0]), left[1:]
                    found.append((b, c, best))
                    taken += 1
                    left = left[_overlaps(low, high, best, left) <= limit]
        return (np.array(found, np.int64).reshape(-1, 3),)


def _corners(boxes: Array, centered: bool) -> tuple[Array, Array]:
    """Lower and upper corners of boxes[n, 4]: two corners in any order, or center and size."""
    if centered:
        return boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2
    return np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])


def _overlaps(low: Array, high: Array, best: int, others: Array) -> Array:
    """Intersection over union of a box with others; 0 where a box has no area."""
    shared = np.minimum(high[best], high[others]) - np.maximum(low[best], low[others])
    inside = np.maximum(shared, 0).prod(-1)
    areas = (high - low).prod(-1)
    union = areas[best] + areas[others] - inside
    solid = (areas[best] > 0) & (areas[others] > 0) & (union > 0)
    return np.where(solid, inside / np.where(solid, union, 1), 0)


class Pad(Corrected):
    """A negative pad takes elements away, before the others are added."""

    def _run(
        self,
        x: Array,
        pads: Array | None = None,
        value: Array | None = None,
        axes: Array | None = None,
        **attributes: Any,
    ) -> tuple[Array]:
        widths = self.given("pads", self.given("paddings", ())) if pads is None else pads
        filling = self.given("value", 0) if value is None else np.asarray(value).reshape(-1)[0]
        chosen = range(x.ndim) if axes is None else [int(a) % x.ndim for a in axes]
        low, high = [0] * x.ndim, [0] * x.ndim
        for k, axis in enumerate(chosen):
            low[axis], high[axis] = int(widths[k]), int(widths[k + len(chosen)])
        rest = x[tuple(slice(max(-a, 0), n - max(-b, 0)) for a, b, n in zip(low, high, x.shape))]
        width = [(max(a, 0), max(b, 0)) for a, b in zip(low, high)]
        mode = self.given("mode", "constant")
        if mode == "constant":
            return (np.pad(rest, width, constant_values=filling).astype(x.dtype),)
        return (np.pad(rest, width, mode=mode),)


class Unique(Corrected):
    """The different elements, or slices along an axis: sorted, or in the order in which they come."""

    def _run(self, x: Array, **attributes: Any) -> tuple[Array, ...]:
        axis = self.given("axis")
        values, first, back, counts = np.unique(
            x, return_index=True, return_inverse=True, return_counts=True, axis=axis
        )
        back = back.reshape(-1)
        if not self.given("sorted", 1):
            order = np.argsort(first, kind="stable")
            rank = np.empty_like(order)
            rank[order] = np.arange(len(order))
            values = np.take(values, order, axis=axis or 0)
            first, back, counts = first[order], rank[back], counts[order]
        found = (values, *(a.astype(np.int64) for a in (first, back, counts)))
        return found[: len(self.onnx_node.output)]
