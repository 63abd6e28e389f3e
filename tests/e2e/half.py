"""ONNX graphs drawn over half types, single and double floats and narrow integers, and what each operator should give.

Out of `drawn`: a model whose operators take and give float16, bfloat16, float32, float64, int8, uint8 and int16, with
casts between them, and feeds that overflow, underflow, cancel and hold NaN and -0. Invariant: `expected` computes an
operator in float32 and rounds once; it shares no code with the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array: TypeAlias = np.ndarray[Any, Any]
Shape: TypeAlias = tuple[int, ...]
OPSET = 21
ROWS = 11  # an extent that nothing else has
F16, BF16, F32, F64 = (
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
)
I8, U8, I16 = TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16
HALVES, FLOATS, NARROW = (F16, BF16), (F16, BF16, F32), (I8, U8, I16)
NUMPY: Mapping[int, Any] = {
    F16: np.float16, BF16: ml_dtypes.bfloat16, F32: np.float32, F64: np.float64,
    I8: np.int8, U8: np.uint8, I16: np.int16, TensorProto.INT32: np.int32,
    TensorProto.BOOL: np.bool_,
}  # fmt: skip
SPECIAL = (60000.0, 65504.0, -65504.0, 300.0, 1e-4, 6e-8, -3e-8, 5.97e-8, -0.0, 0.0, np.nan, np.inf,
           -np.inf, 3.3e38, 1e-40)  # fmt: skip


@dataclass(frozen=True)
class Value:
    """A tensor of the model."""

    name: str
    type: int
    shape: Shape


@dataclass
class Drawing:
    """The model so far.

    wild: its values overflow and hold NaN, so that no sum of them is drawn. free: only a call knows the extent `ROWS`.
    """

    rng: np.random.Generator
    wild: bool
    free: bool = False
    values: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def choice(self, values: Sequence[Any]) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def some(self, keep: Callable[[Value], bool] = lambda v: v.type in FLOATS) -> Value:
        found = [v for v in self.values if keep(v)]
        if not found:
            raise ValueError("no such tensor")
        value: Value = self.choice(found[-3:] if self.rng.random() < 0.7 else found)
        return value

    def fresh(self, of: int, shape: Shape, data: Array | None = None) -> Value:
        """A new input, or a constant."""
        if data is not None or (self.rng.random() < 0.5 and not (self.free and shape[:1] == (ROWS,))):
            array = self.numbers(of, shape) if data is None else data.astype(NUMPY[of])
            value = Value(f"c{len(self.constants)}", of, shape)
            self.constants.append(numpy_helper.from_array(array, value.name))
            return value
        value = Value(f"x{len(self.inputs)}", of, shape)
        self.inputs.append(value)
        return value

    def numbers(self, of: int, shape: Shape) -> Array:
        if of in NARROW:
            return self.rng.integers(-128, 128, shape).astype(NUMPY[of])
        x = self.rng.standard_normal(shape) * self.choice((1.0, 1.0, 100.0, 1e-3))
        if self.wild:
            x = np.where(self.rng.random(shape) < 0.3, self.rng.choice(SPECIAL, shape), x)
        with np.errstate(all="ignore"):
            return np.asarray(x).astype(NUMPY[of])

    def node(
        self, kind: str, inputs: Sequence[Value], shape: Shape, of: int, **attrs: Any
    ) -> Value:
        out = Value(f"v{len(self.nodes)}", of, shape)
        self.nodes.append(helper.make_node(kind, [v.name for v in inputs], [out.name], **attrs))
        self.values.append(out)
        return out


# ---------------------------------------------------------------- operators

Operation = Callable[[Drawing], Value]
_UNARY = ("Neg", "Abs", "Sqrt", "Exp", "Tanh", "Sigmoid", "Relu", "Erf", "Reciprocal", "Floor", "Log")
_SHAPED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("LeakyRelu", {"alpha": 0.3}), ("HardSigmoid", {}), ("Softplus", {}), ("HardSwish", {}),
    ("Gelu", {}), ("Elu", {"alpha": 1.5}), ("Selu", {}), ("Softsign", {}), ("Mish", {}),
    ("Gelu", {"approximate": "tanh"}),
)  # fmt: skip


def _unary(d: Drawing) -> Value:
    x = d.some()
    return d.node(d.choice(_UNARY), [x], x.shape, x.type)


def _activation(d: Drawing) -> Value:
    x = d.some()
    kind, attrs = d.choice(_SHAPED)
    return d.node(kind, [x], x.shape, x.type, **attrs)


def _binary(d: Drawing) -> Value:
    x = d.some()
    y = d.some(lambda v: v.type == x.type and v.shape == x.shape)
    if d.rng.random() < 0.5:
        y = d.fresh(x.type, d.choice((x.shape, x.shape[-1:], ())))
    kind = d.choice(("Add", "Sub", "Mul", "Mul", "Div", "Max", "Min"))
    return d.node(kind, [x, y], x.shape, x.type)


def _scaled(d: Drawing) -> Value:
    """What overflows on the way and comes back, if it is not rounded."""
    x = d.some()
    factor = d.choice((1e4, 1e-4, 300.0, 3e-3))
    for scale in (factor, 1 / factor):
        x = d.node("Mul", [x, d.fresh(x.type, (), np.array(scale))], x.shape, x.type)
    return x


def _cast(d: Drawing) -> Value:
    x = d.some(lambda v: v.type in (*FLOATS, F64, *NARROW))
    to = d.choice([t for t in (F16, BF16, F32, F64) if t != x.type])
    return d.node("Cast", [x], x.shape, to, to=to)


def _pair(d: Drawing) -> Value:
    x = d.some(lambda v: v.type in (*FLOATS, F64))
    to = d.choice([t for t in HALVES if t != x.type])
    y = d.node("Cast", [x], x.shape, to, to=to)
    return d.node("Cast", [y], x.shape, x.type, to=x.type)


def _where(d: Drawing) -> Value:
    x = d.some()
    y = d.fresh(x.type, x.shape)
    test = d.node("Less", [x, y], x.shape, TensorProto.BOOL)
    return d.node("Where", [test, x, y], x.shape, x.type)


def _narrow(d: Drawing) -> Value:
    """Integers that wrap after every operator."""
    of = d.choice(NARROW)
    x = d.fresh(of, d.some().shape)
    for _ in range(int(d.rng.integers(1, 4))):
        kind = d.choice(("Add", "Mul", "Sub"))
        x = d.node(kind, [x, d.fresh(of, d.choice((x.shape, ())))], x.shape, of)
    return x


def _moved(d: Drawing) -> Value:
    x = d.some(lambda v: len(v.shape) > 1)
    kind = d.choice(("Transpose", "Concat", "Concat" if d.free else "Reshape"))
    if kind == "Transpose":
        perm = [int(p) for p in d.rng.permutation(len(x.shape))]
        return d.node(kind, [x], tuple(x.shape[p] for p in perm), x.type, perm=perm)
    if kind == "Concat":
        y = d.fresh(x.type, x.shape)
        shape = (*x.shape[:-1], 2 * x.shape[-1])
        return d.node(kind, [x, y], shape, x.type, axis=-1)
    shape = (x.shape[0] * x.shape[1], *x.shape[2:])
    target = Value(f"c{len(d.constants)}", TensorProto.INT64, (len(shape),))
    d.constants.append(numpy_helper.from_array(np.array(shape, np.int64), target.name))
    return d.node(kind, [x, target], shape, x.type)


def _tame(d: Drawing, keep: Callable[[Value], bool] = lambda v: True) -> Value:
    if d.wild:
        raise ValueError("sums of special values depend on their order")
    return d.some(lambda v: v.type in FLOATS and keep(v))


def _extreme(d: Drawing) -> Value:
    x = d.some(lambda v: v.type in FLOATS and bool(v.shape))
    axis = int(d.rng.integers(len(x.shape)))
    shape = tuple(1 if a == axis else n for a, n in enumerate(x.shape))
    return d.node("ReduceMax", [x, _axes(d, axis)], shape, x.type)


def _axes(d: Drawing, *axes: int) -> Value:
    value = Value(f"c{len(d.constants)}", TensorProto.INT64, (len(axes),))
    d.constants.append(numpy_helper.from_array(np.array(axes, np.int64), value.name))
    return value


def _reduced(d: Drawing) -> Value:
    x = _tame(d, lambda v: bool(v.shape))
    axis = int(d.rng.integers(len(x.shape)))
    shape = tuple(1 if a == axis else n for a, n in enumerate(x.shape))
    kind = d.choice(("ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL2", "ReduceLogSumExp"))
    return d.node(kind, [x, _axes(d, axis)], shape, x.type)


def _normalized(d: Drawing) -> Value:
    x = _tame(d, lambda v: len(v.shape) > 1)
    kind = d.choice(("Softmax", "LogSoftmax", "LayerNormalization", "LpNormalization"))
    if kind == "LayerNormalization":
        pair = [d.fresh(x.type, x.shape[-1:]) for _ in range(2)]
        return d.node(kind, [x, *pair], x.shape, x.type)
    return d.node(kind, [x], x.shape, x.type, axis=d.choice((-1, -1, 0)))


def _product(d: Drawing) -> Value:
    x = _tame(d, lambda v: len(v.shape) == 2)
    n = d.choice((1, 3, 5, 16, 17))
    if x.shape[1] == ROWS:
        raise ValueError("weights have no free extent")
    w = d.fresh(x.type, (x.shape[1], n))
    if d.rng.random() < 0.5:
        return d.node("MatMul", [x, w], (x.shape[0], n), x.type)
    bias = d.fresh(x.type, (n,))
    return d.node("Gemm", [x, w, bias], (x.shape[0], n), x.type, alpha=0.3, beta=1.7)


def _attention(d: Drawing) -> Value:
    x = _tame(d, lambda v: len(v.shape) == 2 and v.shape[1] != ROWS)
    n = d.choice((3, 16, 21, 700))
    k, v = (d.fresh(x.type, s) for s in ((x.shape[1], n), (n, x.shape[1])))
    scores = d.node("MatMul", [x, k], (x.shape[0], n), x.type)
    scores = d.node("Mul", [scores, d.fresh(x.type, (), np.array(0.3))], scores.shape, x.type)
    rows = d.node("Softmax", [scores], scores.shape, x.type, axis=-1)
    return d.node("MatMul", [rows, v], x.shape, x.type)


def _image(d: Drawing) -> Value:
    """A convolution, a normalization of its maps or a pool over them, an activation."""
    if d.wild:
        raise ValueError("sums of special values depend on their order")
    of, c = d.choice(FLOATS), d.choice((1, 3, 8))
    x = d.fresh(of, (1, c, 6, 5))
    groups, o = d.choice(((1, 4), (c, c)))
    w = d.fresh(of, (o, c // groups, 3, 3))
    attrs: dict[str, Any] = {"group": groups, "pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
    y = d.node("Conv", [x, w], (1, o, 6, 5), of, **attrs)
    kind = d.choice(("BatchNormalization", "InstanceNormalization", "AveragePool", "MaxPool"))
    if kind == "BatchNormalization":
        own = [d.fresh(of, (o,), np.abs(d.rng.standard_normal(o)) + 0.5) for _ in range(4)]
        y = d.node(kind, [y, *own], y.shape, of)
    elif kind == "InstanceNormalization":
        y = d.node(kind, [y, *(d.fresh(of, (o,)) for _ in range(2))], y.shape, of)
    else:
        y = d.node(kind, [y], (1, o, 5, 4), of, kernel_shape=[2, 2])
    return d.node("Relu", [y], y.shape, of)


def _quantized(d: Drawing) -> Value:
    x = _tame(d, lambda v: v.type in HALVES)
    scale, zero = d.fresh(x.type, (), np.array(0.05)), d.fresh(U8, (), np.array(7))
    q = d.node("QuantizeLinear", [x, scale, zero], x.shape, U8)
    return d.node("DequantizeLinear", [q, scale, zero], x.shape, x.type)


OPERATIONS: tuple[Operation, ...] = (
    _unary, _unary, _activation, _binary, _binary, _binary, _scaled, _cast, _cast, _pair, _where,
    _narrow, _moved, _extreme, _reduced, _normalized, _product, _attention, _image, _quantized,
)  # fmt: skip


# ---------------------------------------------------------------- models


def drawn(seed: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model, valid for onnx's checker, and feeds for it."""
    rng = np.random.default_rng(seed)
    d = Drawing(rng, bool(rng.integers(2)), bool(rng.integers(3) == 0))
    shapes = ((7,), (3, 33), (5, 17), (2, 64), (4, 3, 9), (1, 130), (2, 300), (2, 1100))
    shape = d.choice(((ROWS, 17), (ROWS, 300), (ROWS, 3, 9)) if d.free else shapes)
    for of in (d.choice(HALVES), d.choice((*FLOATS, F64))):
        x = Value(f"x{len(d.inputs)}", of, shape)
        d.inputs.append(x)
        d.values.append(x)
    for _ in range(int(rng.integers(2, 9))):
        before = len(d.nodes), len(d.values), len(d.inputs), len(d.constants)
        try:
            d.choice(OPERATIONS)(d)
        except ValueError:
            for found, kept in zip((d.nodes, d.values, d.inputs, d.constants), before):
                del found[kept:]
    _rounded_at_the_end(d)
    read = {name for n in d.nodes for name in n.input}
    made = [v for v in d.values if v.name not in read and v not in d.inputs]
    inputs, outputs = _infos(d.inputs, d.free), _infos(made, d.free)
    graph = helper.make_graph(d.nodes, "drawn", inputs, outputs, d.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.checker.check_model(model)
    return model, {v.name: d.numbers(v.type, v.shape) for v in d.inputs}


def _rounded_at_the_end(d: Drawing) -> None:
    """Some graphs end in a cast, so that what comes before it has to be right to the bit."""
    if not d.nodes or d.rng.random() < 0.5:
        x = d.some(lambda v: v.type in (*FLOATS, F64))
        to = d.choice([t for t in HALVES if t != x.type])
        d.node("Cast", [x], x.shape, to, to=to)


def _infos(values: Sequence[Value], free: bool) -> list[onnx.ValueInfoProto]:
    shapes = [["n" if free and d == ROWS else d for d in v.shape] for v in values]
    return [
        helper.make_tensor_value_info(v.name, v.type, s) for v, s in zip(values, shapes, strict=True)
    ]


def with_all_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model that also gives what every operator gives."""
    whole = onnx.shape_inference.infer_shapes(model)
    known = {o.name for o in whole.graph.output}
    whole.graph.output.extend(v for v in whole.graph.value_info if v.name not in known)
    return whole


# ---------------------------------------------------------------- one operator


def expected(node: onnx.NodeProto, inputs: Sequence[Array], of: int) -> Array:
    """The operator in float32 (float64 where it has such inputs), its result rounded once to type `of`."""
    if node.op_type == "Cast":
        return rounded(inputs[0], of)
    if node.op_type == "LogSoftmax":  # the reference takes the logarithm of what has underflowed
        x, axis = inputs[0].astype(np.float64), node.attribute[0].i
        shifted = x - x.max(axis, keepdims=True)
        return rounded(shifted - np.log(np.exp(shifted).sum(axis, keepdims=True)), of)
    if node.op_type == "QuantizeLinear":  # the reference makes 0 of infinity; of NaN nothing is said
        levels, scale, zero = (a.astype(np.float32) for a in inputs)
        with np.errstate(all="ignore"):
            return rounded(np.nan_to_num(np.clip(np.rint(levels / scale) + zero, 0, 255)), of)
    wide = [np.asarray(a, np.float32) if a.dtype.itemsize == 2 and _is_float(a) else a for a in inputs]
    code = {np.dtype(v): k for k, v in NUMPY.items()} | {np.dtype(np.int64): TensorProto.INT64}
    infos = [
        helper.make_tensor_value_info(f"i{k}", code[a.dtype], a.shape) for k, a in enumerate(wide)
    ]
    one = helper.make_node(node.op_type, [i.name for i in infos], ["y"])
    one.attribute.extend(node.attribute)
    graph = helper.make_graph([one], "one", infos, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    with np.errstate(all="ignore"):
        found = ReferenceEvaluator(model).run(None, {i.name: a for i, a in zip(infos, wide)})[0]
    return rounded(np.asarray(found), of)


def _is_float(a: Array) -> bool:
    return bool(a.dtype.kind == "f" or a.dtype.name == "bfloat16")


def rounded(x: Array, of: int) -> Array:
    """x as type `of`, rounded once."""
    with np.errstate(all="ignore"):
        if of == BF16 and x.dtype == np.float64:  # ml_dtypes goes by way of float32
            x = _odd(x)
        return np.asarray(x).astype(NUMPY[of])


def _odd(x: Array) -> Array:
    """float32 rounded to odd, element by element: rounding it to a half type rounds x once."""
    out = np.empty(x.shape, np.float32)
    for at, value in np.ndenumerate(x):
        near = np.float32(value)
        if not np.isnan(value) and float(near) != value:
            low = near if float(near) < value else np.nextafter(near, np.float32(-np.inf))
            high = np.nextafter(low, np.float32(np.inf))
            near = low if low.view(np.uint32) & 1 else high
        out[at] = near
    return out


def ulps(a: Array, b: Array) -> Array:
    """How many values of a 16-bit float type apart; NaN and NaN are 0 apart, infinity follows the largest number."""
    i, j = (_ordered(x.view(np.int16)) for x in (a, b))
    both = np.isnan(a.astype(np.float32)) & np.isnan(b.astype(np.float32))
    one = np.isnan(a.astype(np.float32)) != np.isnan(b.astype(np.float32))
    return np.where(both, 0, np.where(one, 1 << 20, np.abs(i - j)))


def _ordered(bits: Array) -> Array:
    wide = bits.astype(np.int64)
    return np.where(wide < 0, -(wide & 0x7FFF), wide)
