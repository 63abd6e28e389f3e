"""Primitive graph -> standard ONNX: how fission is checked, and seen by other engines (Korch Fig. 7).

In: a primitive graph. Out: an ONNX model of equal meaning, of opset 18. One function per kind of primitive says it with
ONNX's operators; channels-last convolutions stand between two transposes, windows are gathered. Invariant: the checker
accepts the model, and its inputs and outputs keep their names, types and order. Guards are left out: ONNX has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from fissile.fission.writer import Writer, code_of, tensor_of
from fissile.ir.dim import DimLike
from fissile.ir.dtype import INT64, UINT8, UINT16, UINT32, UINT64, DType, dtype
from fissile.ir.graph import Graph, Node
from fissile.ir.primitive import constant_value

OPSET = 18
IR_VERSION = 8
Emit = Callable[[Writer, Node, list[str]], str]

EXPORTS: dict[str, Emit] = {}


def export(graph: Graph) -> onnx.ModelProto:
    """The model. ValueError for a primitive that has no form in ONNX (there is none today)."""
    writer = Writer(graph)
    for node in graph.nodes():
        if node.name == "foreign":
            _foreign(writer, node)
        elif node not in writer.names:
            if node.name not in EXPORTS:
                raise ValueError(f"primitive {node.name} has no form in ONNX")
            reads = [writer.names[i] for i in node.inputs]
            writer.names[node] = EXPORTS[node.name](writer, node, reads)
    for name, node in graph.outputs:
        writer.nodes.append(helper.make_node("Identity", [writer.names[node]], [name]))
    inputs = [_declared(n.attr("name"), n) for n in graph.inputs]
    outputs = [_declared(name, n) for name, n in graph.outputs]
    body = helper.make_graph(writer.nodes, "primitives", inputs, outputs, writer.initializers)
    opsets = {"": OPSET} | writer.opsets
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    model = helper.make_model(body, opset_imports=imports, ir_version=IR_VERSION)
    model.producer_name = "fissile"
    return model


def _declared(name: str, node: Node) -> onnx.ValueInfoProto:
    shape = [d if isinstance(d, int) else str(d) for d in node.shape]
    return helper.make_tensor_value_info(name, code_of(node.dtype), shape)


def _foreign(writer: Writer, node: Node) -> None:
    """The operator itself, all its outputs at once."""
    if node in writer.names:
        return
    model = onnx.load_from_string(node.attr("model").array.tobytes())
    names = dict(
        zip(
            (i.name for i in model.graph.input), (writer.names[i] for i in node.inputs), strict=True
        )
    )
    operator = onnx.NodeProto()
    operator.CopyFrom(model.graph.node[0])
    made = {o.name: writer.fresh() for o in model.graph.output}
    for field, table in ((operator.input, names), (operator.output, made)):
        renamed = [table.get(name, name) for name in field]
        del field[:]
        field.extend(renamed)
    writer.nodes.append(operator)
    writer.names[node] = list(made.values())[node.attr("output")]
    for imported in model.opset_import:
        if imported.domain:
            writer.opsets[imported.domain] = imported.version


def form(*names: str) -> Callable[[Emit], Emit]:
    """Declare how the primitives called `names` are said in ONNX. ValueError for one that is said twice."""

    def declare(emit: Emit) -> Emit:
        for name in names:
            if name in EXPORTS:
                raise ValueError(f"primitive {name} is exported twice")
            EXPORTS[name] = emit
        return emit

    return declare


# ---------------------------------------------------------------- leaves


@form("input")
def _input(writer: Writer, node: Node, reads: list[str]) -> str:
    return str(node.attr("name"))


@form("constant")
def _constant(writer: Writer, node: Node, reads: list[str]) -> str:
    name = writer.fresh()
    value = constant_value(node)
    assert value is not None
    writer.initializers.append(tensor_of(value, node.dtype, name))
    return name


@form("iota")
def _iota(writer: Writer, node: Node, reads: list[str]) -> str:
    axis = node.attr("axis")
    ramp = _cast_to(writer, writer.ramp(node.shape[axis]), INT64, node.dtype)
    shape: list[DimLike] = [1] * len(node.shape)
    shape[axis] = node.shape[axis]
    column = _reshaped(writer, ramp, shape)
    return writer.emit("Expand", column, writer.vector(node.shape))


@form("extents")
def _extents(writer: Writer, node: Node, reads: list[str]) -> str:
    return _reshaped(writer, writer.vector(node.attr("values")), node.shape)


# ---------------------------------------------------------------- elementwise

_SAME = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "neg": "Neg", "abs": "Abs", "min": "Min",
    "max": "Max", "pow": "Pow", "sqrt": "Sqrt", "exp": "Exp", "log": "Log", "tanh": "Tanh",
    "erf": "Erf", "sigmoid": "Sigmoid", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin",
    "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "asinh": "Asinh",
    "acosh": "Acosh", "atanh": "Atanh", "floor": "Floor", "ceil": "Ceil", "rint": "Round",
    "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
    "select": "Where",
}  # fmt: skip
_LOGIC = {"and": "And", "or": "Or", "xor": "Xor", "not": "Not"}
_UNSIGNED = {8: UINT8, 16: UINT16, 32: UINT32, 64: UINT64}


@form(*_SAME)
def _same(writer: Writer, node: Node, reads: list[str]) -> str:
    return writer.emit(_SAME[node.name], *reads)


@form(*_LOGIC)
def _logic(writer: Writer, node: Node, reads: list[str]) -> str:
    prefix = "" if node.dtype.kind == "b" else "Bitwise"
    return writer.emit(prefix + _LOGIC[node.name], *reads)


@form("ne")
def _ne(writer: Writer, node: Node, reads: list[str]) -> str:
    return writer.emit("Not", writer.emit("Equal", *reads))


@form("mod", "rem")
def _mod(writer: Writer, node: Node, reads: list[str]) -> str:
    """For floats ONNX has C's remainder alone: one more divisor where the signs differ gives Python's."""
    if node.name == "rem" or not node.dtype.is_float:
        return writer.emit("Mod", *reads, fmod=int(node.name == "rem"))
    rest = writer.emit("Mod", *reads, fmod=1)
    zero = writer.scalar(0, node.dtype)
    signs = [writer.emit("Less", value, zero) for value in (rest, reads[1])]
    is_zero = writer.emit("Equal", rest, zero)
    keep = writer.emit("Or", writer.emit("Not", writer.emit("Xor", *signs)), is_zero)
    return writer.emit("Where", keep, rest, writer.emit("Add", rest, reads[1]))


@form("log1p")
def _log1p(writer: Writer, node: Node, reads: list[str]) -> str:
    """log(u) * x / (u - 1) with u = 1 + x: exact where 1 + x rounds (Higham); x itself where u is 1."""
    one = writer.scalar(1, node.dtype)
    u = writer.emit("Add", reads[0], one)
    gap = writer.emit("Sub", u, one)
    is_small = writer.emit("Equal", gap, writer.scalar(0, node.dtype))
    is_huge = writer.emit("IsInf", u)
    safe = writer.emit("Where", is_small, one, gap)
    log = writer.emit("Log", u)
    corrected = writer.emit("Mul", log, writer.emit("Div", reads[0], safe))
    finite = writer.emit("Where", is_huge, log, corrected)
    return writer.emit("Where", is_small, reads[0], finite)


@form("expm1")
def _expm1(writer: Writer, node: Node, reads: list[str]) -> str:
    """2 sinh(x/2) exp(x/2): no cancellation."""
    half = writer.emit("Mul", reads[0], writer.scalar(0.5, node.dtype))
    parts = writer.emit("Sinh", half), writer.emit("Exp", half)
    product = writer.emit("Mul", *parts)
    value = writer.emit("Mul", product, writer.scalar(2, node.dtype))
    is_low = writer.emit(
        "Less", reads[0], writer.scalar(-20, node.dtype)
    )  # sinh overflows, exp is 0
    return writer.emit("Where", is_low, writer.scalar(-1, node.dtype), value)


@form("trunc")
def _trunc(writer: Writer, node: Node, reads: list[str]) -> str:
    is_negative = writer.emit("Less", reads[0], writer.scalar(0, node.dtype))
    sides = writer.emit("Ceil", reads[0]), writer.emit("Floor", reads[0])
    return writer.emit("Where", is_negative, *sides)


@form("copysign")
def _copysign(writer: Writer, node: Node, reads: list[str]) -> str:
    """-0 is told from 0 by its reciprocal."""
    zero = writer.scalar(0, node.dtype)
    one = writer.scalar(1, node.dtype)
    is_negative = writer.emit("Less", reads[1], zero)
    below = writer.emit("Less", writer.emit("Div", one, reads[1]), zero)
    is_zero = writer.emit("Equal", reads[1], zero)
    sign = writer.emit("Or", is_negative, writer.emit("And", is_zero, below))
    size = writer.emit("Abs", reads[0])
    return writer.emit("Where", sign, writer.emit("Neg", size), size)


@form("shift_left", "shift_right")
def _shift(writer: Writer, node: Node, reads: list[str]) -> str:
    """ONNX shifts unsigned integers only; shifting by all bits or more gives 0."""
    of, unsigned = node.dtype, _UNSIGNED[node.dtype.bits]
    zero = writer.scalar(0, of)
    inside = writer.emit("Less", reads[1], writer.scalar(of.bits, of))
    safe = writer.emit("Where", inside, reads[1], zero)
    value, by = (_cast_to(writer, name, of, unsigned) for name in (reads[0], safe))
    direction = "LEFT" if node.name == "shift_left" else "RIGHT"
    shifted = writer.emit("BitShift", value, by, direction=direction)
    return writer.emit("Where", inside, _cast_to(writer, shifted, unsigned, of), zero)


@form("cast")
def _cast(writer: Writer, node: Node, reads: list[str]) -> str:
    source = dtype(node.attr("source"))
    if source.is_float and node.dtype.is_integer and node.dtype.bits < 64:
        wide = writer.emit("Cast", reads[0], to=code_of(INT64))  # then it wraps, as the primitive
        return writer.emit("Cast", wide, to=code_of(node.dtype))
    return writer.emit("Cast", reads[0], to=code_of(node.dtype))


def _cast_to(writer: Writer, name: str, source: DType, to: DType) -> str:
    return name if source is to else writer.emit("Cast", name, to=code_of(to))


# ---------------------------------------------------------------- reductions


_REDUCE = {
    "reduce_sum": "ReduceSum", "reduce_prod": "ReduceProd", "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
}  # fmt: skip


@form(*_REDUCE)
def _reduce(writer: Writer, node: Node, reads: list[str]) -> str:
    axes = node.attr("axes")
    if not axes:
        return writer.emit("Identity", reads[0])
    return writer.emit(_REDUCE[node.name], reads[0], writer.integers(axes), keepdims=0)


@form("arg_max", "arg_min")
def _arg(writer: Writer, node: Node, reads: list[str]) -> str:
    """NaN wins, as it does in numpy."""
    operator = "ArgMax" if node.name == "arg_max" else "ArgMin"
    source, of = reads[0], node.inputs[0].dtype
    if of.is_float:
        best = np.inf if node.name == "arg_max" else -np.inf
        is_nan = writer.emit("IsNaN", source)
        source = writer.emit("Where", is_nan, writer.scalar(best, of), source)
    last = int(node.attr("last"))
    return writer.emit(operator, source, axis=node.attr("axis"), keepdims=0, select_last_index=last)


# ---------------------------------------------------------------- what nothing fuses across


@form("scatter")
def _scatter(writer: Writer, node: Node, reads: list[str]) -> str:
    """Places out of range fall on a row behind the last, which is cut off."""
    x, places, updates = reads
    n, m = node.shape
    spare = writer.emit("Expand", writer.scalar(0, node.dtype), writer.vector((1, m)))
    longer = writer.emit("Concat", x, spare, axis=0)
    high = writer.emit("GreaterOrEqual", places, writer.rank0(n))
    low = writer.emit("Less", places, writer.scalar(0, INT64))
    safe = writer.emit("Where", writer.emit("Or", low, high), writer.rank0(n), places)
    column = writer.emit("Unsqueeze", safe, writer.integers([1]))
    more = {"reduction": node.attr("combine")} if node.attr("combine") else {}
    found = writer.emit("ScatterND", longer, column, updates, **more)
    return writer.emit("Slice", found, writer.integers([0]), writer.extent(n), writer.integers([0]))


@form("cumulate")
def _cumulate(writer: Writer, node: Node, reads: list[str]) -> str:
    """Sums have an operator; a product is over a triangle of selected elements."""
    axis, exclusive, reverse = (node.attr(a) for a in ("axis", "exclusive", "reverse"))
    if node.attr("combine") == "add":
        place = writer.scalar(axis, INT64)
        return writer.emit("CumSum", reads[0], place, exclusive=int(exclusive), reverse=int(reverse))
    n, rank = node.shape[axis], len(node.shape)
    ramp = writer.ramp(n)
    to = _reshaped(writer, ramp, [n if a == axis else 1 for a in range(rank + 1)])
    source = _reshaped(writer, ramp, [n if a == axis + 1 else 1 for a in range(rank + 1)])
    pair = (to, source) if reverse else (source, to)
    chosen = writer.emit("Less" if exclusive else "LessOrEqual", *pair)
    rows = writer.emit("Unsqueeze", reads[0], writer.integers([axis]))
    kept = writer.emit("Where", chosen, rows, writer.scalar(1, node.dtype))
    return writer.emit("ReduceProd", kept, writer.integers([axis + 1]), keepdims=0)


@form("top_k")
def _top_k(writer: Writer, node: Node, reads: list[str]) -> str:
    names = [writer.fresh(), writer.fresh()]
    axis, largest = node.attr("axis"), int(node.attr("largest"))
    inputs = [reads[0], writer.extent(node.attr("k"))]
    writer.nodes.append(helper.make_node("TopK", inputs, names, axis=axis, largest=largest))
    return names[1]


# ---------------------------------------------------------------- broadcast and layout


@form("broadcast")
def _broadcast(writer: Writer, node: Node, reads: list[str]) -> str:
    return writer.emit("Expand", reads[0], writer.vector(node.shape))


@form("window")
def _window(writer: Writer, node: Node, reads: list[str]) -> str:
    """Gathered axis by axis: position i and tap k of axis a read i*stride + k*dilation."""
    value, rank = reads[0], node.inputs[0].type.rank
    columns = zip(*(node.attr(n) for n in ("axes", "sizes", "strides", "dilations")), strict=True)
    where = list(range(rank))  # where the axes of the result are by now
    for axis, size, stride, dilation in columns:
        places = _scaled(writer, writer.ramp(node.shape[axis]), stride)
        taps = _scaled(writer, writer.ramp(size), dilation)
        column = writer.emit("Unsqueeze", places, writer.integers([1]))
        at = where.index(axis)
        value = writer.emit("Gather", value, writer.emit("Add", column, taps), axis=at)
        where.insert(at + 1, len(where))
    perm = [where.index(k) for k in range(len(where))]
    return writer.emit("Transpose", value, perm=perm)


def _scaled(writer: Writer, ramp: str, factor: DimLike) -> str:
    return ramp if factor == 1 else writer.emit("Mul", ramp, writer.extent(factor))


@form("reshape")
def _reshape(writer: Writer, node: Node, reads: list[str]) -> str:
    return _reshaped(writer, reads[0], node.shape)


def _reshaped(writer: Writer, name: str, shape: Any) -> str:
    return writer.emit("Reshape", name, writer.vector(tuple(shape)), allowzero=1)


@form("transpose")
def _transpose(writer: Writer, node: Node, reads: list[str]) -> str:
    return writer.emit("Transpose", reads[0], perm=node.attr("perm"))


@form("slice")
def _slice(writer: Writer, node: Node, reads: list[str]) -> str:
    """One Slice for the axes that step forward; the others are gathered, where an end below 0 has no name."""
    value = reads[0]
    starts, steps, shape = node.attr("starts"), node.attr("steps"), node.shape
    forward = [a for a, step in enumerate(steps) if isinstance(step, int) and step > 0]
    if forward:
        ends = [starts[a] + steps[a] * shape[a] for a in forward]
        vectors = [[starts[a] for a in forward], ends, forward, [steps[a] for a in forward]]
        value = writer.emit("Slice", value, *(writer.vector(v) for v in vectors))
    for axis in sorted(set(range(len(shape))) - set(forward)):
        places = _scaled(writer, writer.ramp(shape[axis]), steps[axis])
        places = writer.emit("Add", places, writer.extent(starts[axis]))
        value = writer.emit("Gather", value, places, axis=axis)
    return value


@form("concat")
def _concat(writer: Writer, node: Node, reads: list[str]) -> str:
    return writer.emit("Concat", *reads, axis=node.attr("axis"))


@form("pad")
def _pad(writer: Writer, node: Node, reads: list[str]) -> str:
    value = writer.constant(np.asarray(node.attr("value").array), node.dtype)
    pads = writer.vector((*node.attr("low"), *node.attr("high")))
    return writer.emit("Pad", reads[0], pads, value)


@form("dilate")
def _dilate(writer: Writer, node: Node, reads: list[str]) -> str:
    """Every spread axis gets factor - 1 zeros behind each element; those behind the last are cut off."""
    value, source = reads[0], node.inputs[0].shape
    factors = node.attr("factors")
    split: list[DimLike] = [e for d in source for e in (d, 1)]
    value = _reshaped(writer, value, split)
    high: list[DimLike] = [e for f in factors for e in (0, f - 1)]
    pads = writer.vector((*[0] * len(high), *high))
    value = writer.emit("Pad", value, pads, writer.scalar(0, node.dtype))
    value = _reshaped(writer, value, [d * f for d, f in zip(source, factors, strict=True)])
    axes = list(range(len(source)))
    vectors: list[Sequence[DimLike]] = [[0] * len(axes), node.shape, axes]
    return writer.emit("Slice", value, *(writer.vector(v) for v in vectors))


@form("gather")
def _gather(writer: Writer, node: Node, reads: list[str]) -> str:
    """ONNX refuses indices out of range, the primitive clamps them."""
    n = node.inputs[0].shape[node.attr("axis")]
    known = constant_value(node.inputs[1])
    indices = reads[1]
    is_safe = known is not None and isinstance(n, int) and bool(np.all((known >= -n) & (known < n)))
    if not is_safe:
        high = writer.emit("Min", indices, writer.rank0(n - 1))
        indices = writer.emit("Max", high, writer.rank0(-n))
    return writer.emit("Gather", reads[0], indices, axis=node.attr("axis"))


# ---------------------------------------------------------------- linear


@form("matmul")
def _matmul(writer: Writer, node: Node, reads: list[str]) -> str:
    return writer.emit("MatMul", *reads)


@form("conv")
def _conv(writer: Writer, node: Node, reads: list[str]) -> str:
    """Channels go second and come back."""
    spatial = node.type.rank - 2
    inner = list(range(1, 1 + spatial))
    x = writer.emit("Transpose", reads[0], perm=[0, 1 + spatial, *inner])
    taps = list(range(spatial))
    w = writer.emit("Transpose", reads[1], perm=[1 + spatial, spatial, *taps])
    y = writer.emit(
        "Conv", x, w, group=node.attr("groups"),
        strides=node.attr("strides"), dilations=node.attr("dilations"),
    )  # fmt: skip
    return writer.emit("Transpose", y, perm=[0, *(k + 1 for k in inner), 1])


@form("pack")
def _pack(writer: Writer, node: Node, reads: list[str]) -> str:
    return writer.emit("Identity", reads[0])
