"""Operators that run in Python: onnx.reference, with corrections where it is known to be wrong (DESIGN 3.1).

In: the serialized ONNX model of one operator, then arrays. Out: the operator's results. Invariant: this is the only
module of `runtime` that imports onnx, and it is loaded only for an artifact that names a foreign node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_grid_sample import GridSample as ReferenceGridSample
from onnx.reference.ops.op_resize import Resize as ReferenceResize

Array = npt.NDArray[Any]


def evaluator(model: bytes) -> Callable[[list[Array]], list[Array]]:
    """What runs the model on arrays in the order of its inputs; for one caller at a time."""
    proto = onnx.load_from_string(model)
    names = [value.name for value in proto.graph.input]
    version = max((o.version for o in proto.opset_import if o.domain == ""), default=0)
    runner = ReferenceEvaluator(proto, new_ops=corrections(version))

    def run(arrays: list[Array]) -> list[Array]:
        with np.errstate(all="ignore"):
            return list(runner.run(None, dict(zip(names, arrays, strict=True))))

    return run


def evaluate(model: bytes, arrays: list[Array]) -> list[Array]:
    """The results of a one-operator model: the `foreign` that graphs and plans are evaluated with."""
    return evaluator(model)(arrays)


def corrections(version: int) -> list[type[OpRun]]:
    """The operators that onnx.reference has wrong at an opset version."""
    always: list[type[OpRun]] = [Loop, NonMaxSuppression, OneHot, Pad]
    old = [Softmax, LogSoftmax, Hardmax] if version < 13 else []
    oldest = [Scan] if version < 9 else []
    grids = [GridSample] if version < 20 else []
    sizes = [Resize] if version > 10 else []
    return [*always, *old, *oldest, *grids, *sizes, *([BatchNormalization] if version < 14 else [])]


class _Corrected(OpRun):  # type: ignore[misc]
    """An operator of our own; `given` reads an attribute that the node itself sets."""

    op_domain = ""

    def given(self, name: str, default: Any) -> Any:
        for attribute in self.onnx_node.attribute:
            if attribute.name == name:
                return onnx.helper.get_attribute_value(attribute)
        return default


class Loop(_Corrected):
    """A loop may take no turn, its condition may be absent, and results of the turns are stacked, of any rank."""

    def need_context(self) -> bool:
        """The body reads values from around it."""
        return True

    def _run(
        self,
        turns: Array | None,
        condition: Array | None,
        *carried: Any,
        context: dict[str, Any] | None = None,
        **attributes: Any,
    ) -> tuple[Any, ...]:
        body = self.body
        goes_on = True if condition is None else bool(np.asarray(condition).all())
        most = None if turns is None else int(np.asarray(turns).reshape(-1)[0])
        values = list(carried)
        stacks: list[list[Any]] = [[] for _ in body.output_names[1 + len(values) :]]
        turn = 0
        while goes_on and (most is None or turn < most):
            known = [np.array(turn, np.int64), np.array(goes_on), *values]
            feeds = {**(context or {}), **dict(zip(body.input_names, known, strict=True))}
            found = body.run(None, feeds)
            goes_on = bool(np.asarray(found[0]).all())
            values = list(found[1 : 1 + len(values)])
            for stack, piece in zip(stacks, found[1 + len(values) :], strict=True):
                stack.append(piece)
            turn += 1
        types = body.output_types[1 + len(values) :]
        scanned = (np.stack(s) if s else _nothing(t) for s, t in zip(stacks, types, strict=True))
        return (*values, *scanned)


def _nothing(kind: onnx.TypeProto) -> Array:
    """The stacked results of no turn, as far as the body declares their type."""
    tensor = kind.tensor_type
    known = tensor.elem_type != onnx.TensorProto.UNDEFINED
    of = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type) if known else np.float32
    return np.zeros((0, *(int(d.dim_value) for d in tensor.shape.dim)), of)


class Scan(_Corrected):
    """Before opset 9: over sequences of a batch, axis 0 the batch and axis 1 the turns, each of its own length."""

    def need_context(self) -> bool:
        """The body reads values from around it."""
        return True

    def _run(
        self, lengths: Array | None, *given: Any, context: Any = None, **attributes: Any
    ) -> tuple[Any, ...]:
        count = int(self.given("num_scan_inputs", 1))
        states, scans = given[:-count], given[-count:]
        backward = list(self.given("directions", [0] * count))
        whole = scans[0].shape[1]
        rows = []
        for b in range(scans[0].shape[0]):
            turns = whole if lengths is None else int(lengths[b])
            pieces = [
                x[b, :turns][::-1] if back else x[b, :turns] for x, back in zip(scans, backward)
            ]
            rows.append(self._sequence([s[b] for s in states], pieces, turns, whole, context))
        return tuple(np.stack(column) for column in zip(*rows, strict=True))

    def _sequence(
        self, values: list[Any], scans: list[Array], turns: int, whole: int, context: Any
    ) -> list[Any]:
        stacks: list[list[Any]] = [[] for _ in self.body.output_names[len(values) :]]
        for turn in range(turns):
            known = [*values, *(x[turn] for x in scans)]
            feeds = {**(context or {}), **dict(zip(self.body.input_names, known, strict=True))}
            found = self.body.run(None, feeds)
            values = list(found[: len(values)])
            for stack, piece in zip(stacks, found[len(values) :], strict=True):
                stack.append(piece)
        stacked = (np.stack(s) for s in stacks)
        filled = [np.pad(s, [(0, whole - turns), *[(0, 0)] * (s.ndim - 1)]) for s in stacked]
        return [*values, *filled]


class OneHot(_Corrected):
    """The depth may be a tensor of one element; an index outside of [-depth, depth) hits nothing."""

    def _run(self, indices: Array, depth: Array, values: Array, **attributes: Any) -> tuple[Array]:
        classes = int(np.asarray(depth).reshape(-1)[0])
        axis = int(self.given("axis", -1))
        place = axis + indices.ndim + 1 if axis < 0 else axis
        wrapped = np.where(indices < 0, indices + classes, indices)
        shape = [classes if a == place else 1 for a in range(indices.ndim + 1)]
        hit = np.expand_dims(wrapped, place) == np.arange(classes).reshape(shape)
        return (np.where(hit, values[1], values[0]).astype(values.dtype),)


class NonMaxSuppression(_Corrected):
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


class Pad(_Corrected):
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
        mode = self.given("mode", b"constant").decode()
        if mode == "constant":
            return (np.pad(rest, width, constant_values=filling).astype(x.dtype),)
        return (np.pad(rest, width, mode=mode),)


class GridSample(ReferenceGridSample):  # type: ignore[misc]
    """Before opset 20 two of the modes had other names."""

    op_domain = ""

    def _run(self, x: Array, grid: Array, mode: str | None = None, **more: Any) -> tuple[Array]:
        names = {"bilinear": "linear", "bicubic": "cubic"}
        chosen = mode or self.mode
        result: tuple[Array] = super()._run(x, grid, mode=names.get(chosen, chosen), **more)
        return result


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


class _OldSoftmax(_Corrected):
    """Before opset 13 the tensor is read as a matrix, split before `axis`."""

    def _matrix(self, x: Array) -> Array:
        axis = int(self.given("axis", 1))
        split = axis + x.ndim if axis < 0 else axis
        return x.reshape(int(np.prod(x.shape[:split])), int(np.prod(x.shape[split:])))


class Softmax(_OldSoftmax):
    """exp(x - max) / sum(exp(x - max)) over rows."""

    def _run(self, x: Array, **attributes: Any) -> tuple[Array]:
        if x.size == 0:
            return (x,)
        rows = self._matrix(x)
        powers = np.exp(rows - rows.max(1, keepdims=True))
        return ((powers / powers.sum(1, keepdims=True)).reshape(x.shape).astype(x.dtype),)


class LogSoftmax(_OldSoftmax):
    """x - max - log(sum(exp(x - max))) over rows."""

    def _run(self, x: Array, **attributes: Any) -> tuple[Array]:
        if x.size == 0:
            return (x,)
        rows = self._matrix(x)
        moved = rows - rows.max(1, keepdims=True)
        result = moved - np.log(np.exp(moved).sum(1, keepdims=True))
        return (result.reshape(x.shape).astype(x.dtype),)


class Hardmax(_OldSoftmax):
    """1 at the first maximum of a row, else 0."""

    def _run(self, x: Array, **attributes: Any) -> tuple[Array]:
        if x.size == 0:
            return (x,)
        rows = self._matrix(x)
        hit = np.arange(rows.shape[1]) == rows.argmax(1)[:, None]
        return (hit.reshape(x.shape).astype(x.dtype),)


class BatchNormalization(_Corrected):
    """Before opset 14 the momentum says nothing about training: with one output it is inference."""

    def _run(
        self, x: Array, scale: Array, bias: Array, mean: Array, var: Array, **attributes: Any
    ) -> tuple[Array]:
        shape = (1, -1, *[1] * (x.ndim - 2))
        epsilon = self.given("epsilon", 1e-5)
        factor = scale / np.sqrt(var + epsilon)
        moved = (x - mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape)
        return (moved.astype(x.dtype),)
