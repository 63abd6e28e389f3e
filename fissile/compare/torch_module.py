"""An ONNX model as a torch module, for the engines `torch` and `inductor`.

In: a model and the feeds of the first call. Out: a `torch.fx.GraphModule` of plain torch functions, specialised to
the shapes of those feeds: what depends on constants and shapes alone is computed here, once. Invariant: one function
per operator, named after it; an operator that is not in `OPERATORS` is named in the error, nothing is approximated.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array = np.ndarray[Any, np.dtype[Any]]
Tensor = Any
OLDEST = 13  # opset; before it softmax and the axes of reductions were written otherwise
# Operands that torch wants as numbers, not as tensors: operator -> positions.
NUMBERS: dict[str, tuple[int, ...]] = {
    "Clip": (1, 2), "Expand": (1,), "Pad": (1, 2, 3), "Reshape": (1,), "Resize": (1, 2, 3),
    "ReduceMax": (1,), "ReduceMean": (1,), "ReduceMin": (1,), "ReduceSum": (1,),
    "Slice": (1, 2, 3, 4), "Split": (1,), "Squeeze": (1,), "Tile": (1,), "Unsqueeze": (1,),
}  # fmt: skip


def convert(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Any:
    """`model` as a module that takes its inputs by position and returns a tuple, at the shapes of `feeds`.

    NotImplementedError names the operator or setting that has no counterpart here.
    """
    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)
    if opset < OLDEST:
        raise NotImplementedError(f"opset {opset} has no torch counterpart here, {OLDEST} has")
    return _Conversion(model, feeds).module()


class _Conversion:
    """Values by name: `known` are computed already, `traced` are nodes of the graph beside their first value."""

    def __init__(self, model: onnx.ModelProto, feeds: Mapping[str, Array]) -> None:
        self.model, self.root, self.graph = model, torch.nn.Module(), torch.fx.Graph()
        tensors = model.graph.initializer
        self.known: dict[str, Array] = {t.name: numpy_helper.to_array(t) for t in tensors}
        self.traced: dict[str, tuple[Any, Tensor]] = {}
        self.held: dict[str, Any] = {}
        for value in model.graph.input:
            if value.name not in self.known:
                spot = self.graph.placeholder(f"input_{len(self.traced)}")
                self.traced[value.name] = (spot, torch.from_numpy(np.array(feeds[value.name])))

    def module(self) -> Any:
        for node in self.model.graph.node:
            self._convert(node)
        outputs = [self._operand(o.name, False)[0] for o in self.model.graph.output]
        self.graph.output(tuple(outputs))
        return torch.fx.GraphModule(self.root, self.graph).eval()

    def _convert(self, node: onnx.NodeProto) -> None:
        if node.op_type == "Shape":
            self._shape(node)
            return
        if all(name in self.known for name in node.input if name):
            self._evaluate(node)
            return
        apply = OPERATORS.get(node.op_type)
        if apply is None or node.domain not in ("", "ai.onnx"):
            raise NotImplementedError(f"operator {node.op_type} has no torch counterpart here")
        attributes = {a.name: _plain(helper.get_attribute_value(a)) for a in node.attribute}
        numbers = NUMBERS.get(node.op_type, ())
        pairs = [self._operand(name, k in numbers) for k, name in enumerate(node.input)]
        spots, values = tuple(p[0] for p in pairs), [p[1] for p in pairs]
        result = apply(*values, **attributes)
        spot = self.graph.call_function(apply, spots, attributes)
        if not isinstance(result, tuple):
            self.traced[node.output[0]] = (spot, result)
            return
        for k, name in enumerate(node.output):
            part = self.graph.call_function(operator.getitem, (spot, k))
            self.traced[name] = (part, result[k])

    def _operand(self, name: str, as_number: bool) -> tuple[Any, Any]:
        """What stands in the graph, and its value now."""
        if not name:
            return None, None
        if name in self.traced:
            if as_number:
                raise NotImplementedError(f"{name} is needed before the call and depends on inputs")
            return self.traced[name]
        array = self.known[name]
        if as_number:
            return array.tolist(), array.tolist()
        if name not in self.held:
            field = f"constant_{len(self.held)}"
            self.root.register_buffer(field, torch.from_numpy(np.array(array)))
            self.held[name] = self.graph.get_attr(field)
        return self.held[name], getattr(self.root, self.held[name].target)

    def _shape(self, node: onnx.NodeProto) -> None:
        name = node.input[0]
        value = self.known[name] if name in self.known else self.traced[name][1]
        limits = {a.name: a.i for a in node.attribute}
        extents = list(value.shape)[limits.get("start", 0) : limits.get("end")]
        self.known[node.output[0]] = np.array(extents, np.int64)

    def _evaluate(self, node: onnx.NodeProto) -> None:
        names = dict.fromkeys(name for name in node.input if name)
        graph = helper.make_graph(
            [node],
            "one",
            [helper.make_value_info(name, onnx.TypeProto()) for name in names],
            [helper.make_value_info(name, onnx.TypeProto()) for name in node.output],
        )
        one = helper.make_model(graph, opset_imports=self.model.opset_import)
        results: Any = ReferenceEvaluator(one).run(None, {n: self.known[n] for n in names})
        self.known |= {n: np.asarray(r) for n, r in zip(node.output, results, strict=True)}


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _refuse(what: str, **settings: object) -> None:
    """NotImplementedError for a setting that is not its default."""
    for name, value in settings.items():
        if value not in (None, 0, "", "NOTSET", ()):
            raise NotImplementedError(f"{what} with {name} = {value} has no torch counterpart here")


# ---------------------------------------------------------------- operators


def _conv(
    x: Tensor, w: Tensor, b: Tensor = None, *, auto_pad: str = "", dilations: Sequence[int] = (),
    group: int = 1, kernel_shape: object = None, pads: Sequence[int] = (), strides: Sequence[int] = (),
) -> Tensor:  # fmt: skip
    _refuse("Conv", auto_pad=auto_pad)
    rank = w.ndim - 2
    x, padding = _padded(x, pads, rank, 0.0)
    run = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    ones = [1] * rank
    return run(x, w, b, list(strides) or ones, padding, list(dilations) or ones, group)


def _padded(x: Tensor, pads: Sequence[int], rank: int, value: float) -> tuple[Tensor, list[int]]:
    """Symmetric pads for the function itself; others are applied here."""
    before, after = list(pads[:rank]) or [0] * rank, list(pads[rank:]) or [0] * rank
    if before == after:
        return x, before
    pairs = [n for pair in reversed(list(zip(before, after, strict=True))) for n in pair]
    return F.pad(x, pairs, value=value), [0] * rank


def _max_pool(
    x: Tensor, *, kernel_shape: Sequence[int], auto_pad: str = "", ceil_mode: int = 0,
    dilations: Sequence[int] = (), pads: Sequence[int] = (), storage_order: int = 0,
    strides: Sequence[int] = (),
) -> Tensor:  # fmt: skip
    _refuse("MaxPool", auto_pad=auto_pad, storage_order=storage_order)
    rank = len(kernel_shape)
    ones = [1] * rank
    x, padding = _padded(x, pads, rank, float("-inf"))
    run = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
    steps, gaps = list(strides) or ones, list(dilations) or ones
    return run(x, list(kernel_shape), steps, padding, gaps, bool(ceil_mode))


def _average_pool(
    x: Tensor, *, kernel_shape: Sequence[int], auto_pad: str = "", ceil_mode: int = 0,
    count_include_pad: int = 0, pads: Sequence[int] = (), strides: Sequence[int] = (),
) -> Tensor:  # fmt: skip
    _refuse("AveragePool", auto_pad=auto_pad, ceil_mode=ceil_mode)
    rank = len(kernel_shape)
    before, after = list(pads[:rank]) or [0] * rank, list(pads[rank:]) or [0] * rank
    if before != after:
        _refuse("AveragePool", pads=tuple(pads))
    run = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
    steps = list(strides) or [1] * rank
    return run(x, list(kernel_shape), steps, before, False, bool(count_include_pad))


def _batch_norm(
    x: Tensor, s: Tensor, b: Tensor, mean: Tensor, var: Tensor, *, epsilon: float = 1e-5,
    momentum: float = 0.9, training_mode: int = 0,
) -> Tensor:  # fmt: skip
    _refuse("BatchNormalization", training_mode=training_mode)
    return F.batch_norm(x, mean, var, s, b, False, 0.0, epsilon)


def _instance_norm(x: Tensor, s: Tensor, b: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    return F.instance_norm(x, weight=s, bias=b, eps=epsilon)


def _layer_norm(
    x: Tensor, s: Tensor, b: Tensor = None, *, axis: int = -1, epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Tensor:  # fmt: skip
    return F.layer_norm(x, x.shape[axis:], s, b, epsilon)


def _gemm(
    a: Tensor, b: Tensor, c: Tensor = None, *, alpha: float = 1.0, beta: float = 1.0,
    transA: int = 0, transB: int = 0,
) -> Tensor:  # fmt: skip
    a = a.T if transA else a
    if transB and c is not None and c.ndim == 1 and alpha == beta == 1.0:
        return F.linear(a, b, c)
    product = (a @ (b.T if transB else b)) * alpha
    return product if c is None else product + c * beta


def _reshape(x: Tensor, shape: Sequence[int], *, allowzero: int = 0) -> Tensor:
    return x.reshape([x.shape[k] if n == 0 and not allowzero else n for k, n in enumerate(shape)])


def _slice(
    x: Tensor, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    index = [slice(None)] * x.ndim
    axes = range(len(starts)) if axes is None else axes
    for start, end, axis, step in zip(starts, ends, axes, steps or [1] * len(starts), strict=True):
        if step < 1:
            raise NotImplementedError("Slice backwards has no torch counterpart here")
        index[axis] = slice(start, end, step)
    return x[tuple(index)]


def _pad(
    x: Tensor, pads: Sequence[int], value: float | None = None, axes: Sequence[int] | None = None,
    *, mode: str = "constant",
) -> Tensor:  # fmt: skip
    axes = list(range(x.ndim)) if axes is None else [a % x.ndim for a in axes]
    amounts = dict(zip(axes, zip(pads[: len(axes)], pads[len(axes) :], strict=True), strict=True))
    pairs = [n for axis in range(x.ndim - 1, -1, -1) for n in amounts.get(axis, (0, 0))]
    while pairs and pairs[-2:] == [0, 0]:
        del pairs[-2:]
    if mode == "constant":
        return F.pad(x, pairs, value=value or 0.0)
    return F.pad(x, pairs, mode={"reflect": "reflect", "edge": "replicate"}[mode])


def _resize(
    x: Tensor, roi: object = None, scales: Sequence[float] | None = None,
    sizes: Sequence[int] | None = None, *, mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel", nearest_mode: str = "round_prefer_floor",
    antialias: int = 0, cubic_coeff_a: float = -0.75, exclude_outside: int = 0,
    extrapolation_value: float = 0.0, keep_aspect_ratio_policy: str = "stretch",
) -> Tensor:  # fmt: skip
    _refuse("Resize", antialias=antialias, exclude_outside=exclude_outside)
    goal = sizes or [int(n * s) for n, s in zip(x.shape, scales or (), strict=True)]
    if list(goal[:2]) != list(x.shape[:2]):
        raise NotImplementedError("Resize of channels has no torch counterpart here")
    where, goal = coordinate_transformation_mode, list(goal[2:])
    if mode == "linear" and where in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        names = {1: "linear", 2: "bilinear", 3: "trilinear"}
        return F.interpolate(x, goal, mode=names[len(goal)], align_corners=where == "align_corners")
    whole = all(m % n == 0 for m, n in zip(goal, x.shape[2:], strict=True))
    floored = where == "asymmetric" and nearest_mode == "floor"
    if mode == "nearest" and (floored or (whole and where == "half_pixel")):
        return F.interpolate(x, goal, mode="nearest")
    raise NotImplementedError(f"Resize {mode}, {where} has no torch counterpart here")


def _split(
    x: Tensor, sizes: Sequence[int] | None = None, *, axis: int = 0, num_outputs: int = 0
) -> Any:
    if sizes is None and num_outputs == 0:
        raise NotImplementedError("Split without sizes has no torch counterpart here")
    return tuple(torch.split(x, sizes or -(-x.shape[axis] // num_outputs), axis))


def _gather(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return x[(slice(None),) * (axis % x.ndim) + (indices,)]


def _gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    _refuse("GatherND", batch_dims=batch_dims)
    return x[tuple(indices.unbind(-1))]


def _divide(a: Tensor, b: Tensor) -> Tensor:
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _squeeze(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    return x.squeeze() if axes is None else x.squeeze(tuple(axes))


def _unsqueeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    rank = x.ndim + len(axes)
    for axis in sorted(a % rank for a in axes):
        x = x.unsqueeze(axis)
    return x


def _cast(x: Tensor, *, to: int, saturate: int = 1) -> Tensor:
    return x.to(torch.from_numpy(np.empty(0, helper.tensor_dtype_to_np_dtype(to))).dtype)


def _reduction(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reduce(
        x: Tensor, axes: Sequence[int] | None = None, *, keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Tensor:  # fmt: skip
        if not axes and noop_with_empty_axes:
            return x
        return run(x, dim=tuple(axes or range(x.ndim)), keepdim=bool(keepdims))

    return reduce


def _fold(run: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def fold(*values: Tensor) -> Tensor:
        result = values[0]
        for value in values[1:]:
            result = run(result, value)
        return result

    return fold


def _concat(*values: Tensor, axis: int) -> Tensor:
    return torch.cat(values, axis)


def _expand(x: Tensor, shape: Sequence[int]) -> Tensor:
    return x.expand(torch.broadcast_shapes(x.shape, tuple(shape)))


def _softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return torch.softmax(x, axis)


def _transpose(x: Tensor, *, perm: Sequence[int] = ()) -> Tensor:
    return x.permute(list(perm) or list(range(x.ndim - 1, -1, -1)))


def _flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    return x.reshape(int(np.prod(x.shape[:axis])), -1)


def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return F.gelu(x, approximate=approximate)


def _leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return F.leaky_relu(x, alpha)


def _global_average_pool(x: Tensor) -> Tensor:
    return x.mean(tuple(range(2, x.ndim)), keepdim=True)


def _hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return torch.clamp(x * alpha + beta, 0.0, 1.0)


OPERATORS: dict[str, Callable[..., Any]] = {
    "Abs": torch.abs, "Add": torch.add, "And": torch.logical_and, "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm, "Cast": _cast, "Clip": torch.clamp, "Concat": _concat,
    "Conv": _conv, "Cos": torch.cos, "Div": _divide, "Equal": torch.eq, "Erf": torch.erf,
    "Exp": torch.exp, "Expand": _expand, "Flatten": _flatten, "Gather": _gather,
    "GatherND": _gather_nd, "Gelu": _gelu, "Gemm": _gemm, "GlobalAveragePool": _global_average_pool,
    "Greater": torch.gt, "GreaterOrEqual": torch.ge, "HardSigmoid": _hard_sigmoid,
    "HardSwish": F.hardswish, "Identity": torch.clone, "InstanceNormalization": _instance_norm,
    "IsNaN": torch.isnan, "LayerNormalization": _layer_norm, "LeakyRelu": _leaky_relu,
    "Less": torch.lt, "LessOrEqual": torch.le, "Log": torch.log, "MatMul": torch.matmul,
    "Max": _fold(torch.maximum), "MaxPool": _max_pool, "Min": _fold(torch.minimum),
    "Mish": F.mish, "Mul": torch.mul, "Neg": torch.neg, "Not": torch.logical_not,
    "Or": torch.logical_or, "Pad": _pad, "Pow": torch.pow, "Reciprocal": torch.reciprocal,
    "ReduceMax": _reduction(torch.amax), "ReduceMean": _reduction(torch.mean),
    "ReduceMin": _reduction(torch.amin), "ReduceSum": _reduction(torch.sum),
    "Relu": torch.relu, "Reshape": _reshape, "Resize": _resize, "Sigmoid": torch.sigmoid,
    "Sin": torch.sin, "Slice": _slice, "Softmax": _softmax, "Split": _split, "Sqrt": torch.sqrt,
    "Squeeze": _squeeze, "Sub": torch.sub, "Sum": _fold(torch.add), "Tanh": torch.tanh,
    "Tile": torch.tile, "Transpose": _transpose, "Unsqueeze": _unsqueeze, "Where": torch.where,
}  # fmt: skip
