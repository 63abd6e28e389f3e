"""The primitive table: one row per tensor-algebra primitive (Korch section 3, DESIGN 3.2).

Half types are moved, chosen between and cast, never computed with: a graph says with `cast` where a value is rounded.

A row gives the type rule, the numpy meaning, and the compute definition: the value at one output index as an expression
over reads of the inputs, `define(node, at, reduced, read, extent)`, where `at` are the output indices, `reduced` those
of the reduction axes, `read(k, indices)` an element of input k, and `extent` turns an extent into an expression.
Shapes are explicit: elementwise primitives take equal shapes, `broadcast` makes them so. Convolutions are channels-last
and unpadded; padding, windows and layouts are primitives of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fissile.ir import loop as L
from fissile.ir.dim import DimLike, ceildiv, equal, exact_div, lower_bound, max_, min_, product
from fissile.ir.dim_logic import check_positive, repeating, repeats
from fissile.ir.dtype import BFLOAT16, BOOL, INT64, DType, dtype
from fissile.ir.graph import Attrs, Constraints, Data, Node, Primitive, TensorType, data, make
from fissile.ir.scalar import SCALAR_OPS, ScalarOp, cast_value, from_bfloat16, to_bfloat16

dtype_of = dtype
Read = Callable[[int, tuple[L.Expr, ...]], L.Expr]
Extent = Callable[[DimLike], L.Expr]
Define = Callable[[Node, tuple[L.Expr, ...], tuple[L.Expr, ...], Read, Extent], L.Expr]
Types = tuple[TensorType, ...]

PRIMITIVES: dict[str, Primitive] = {}


def _row(primitive: Primitive) -> Primitive:
    if primitive.name in PRIMITIVES:
        raise ValueError(f"primitive {primitive.name} is declared twice")
    PRIMITIVES[primitive.name] = primitive
    return primitive


# ---------------------------------------------------------------- leaves


def _declared(types: Types, attrs: Attrs, need: Constraints) -> TensorType:
    return TensorType(dtype(attrs["dtype"]), attrs["shape"])


def _constant_type(types: Types, attrs: Attrs, need: Constraints) -> TensorType:
    return TensorType(dtype(attrs["dtype"]), attrs["value"].shape)


def _no_reference(**attrs: Any) -> np.ndarray:
    raise ValueError(f"input {attrs['name']} has no value of its own")


def _iota_reference(*, dtype: str, shape: tuple[int, ...], axis: int) -> np.ndarray:
    extents = [1] * len(shape)
    extents[axis] = shape[axis]
    ramp = np.arange(shape[axis]).reshape(extents)
    return np.broadcast_to(ramp, shape).astype(dtype_of(dtype).numpy)


def _iota_define(node: Node, at: Any, reduced: Any, read: Read, extent: Extent) -> L.Expr:
    return L.stored(at[node.attr("axis")], node.dtype)


def _extents_type(types: Types, attrs: Attrs, need: Constraints) -> TensorType:
    return TensorType(INT64, attrs["shape"])


def _extents_define(node: Node, at: Any, reduced: Any, read: Read, extent: Extent) -> L.Expr:
    values = node.attr("values")
    flat = flatten(at, node.shape, extent)
    result = extent(values[-1]) if values else L.const(0)
    for k in range(len(values) - 2, -1, -1):
        result = L.op("select", L.op("eq", flat, L.const(k)), extent(values[k]), result)
    return result


INPUT = _row(Primitive("input", "leaf", _declared, _no_reference))
CONSTANT = _row(Primitive("constant", "leaf", _constant_type, lambda *, value, dtype: value.array))
IOTA = _row(Primitive("iota", "leaf", _declared, _iota_reference, _iota_define))
EXTENTS = _row(  # a small int64 tensor of shape arithmetic: `values` in row-major order
    Primitive(
        "extents",
        "leaf",
        _extents_type,
        lambda *, values, shape: np.array(values, np.int64).reshape(shape),
        _extents_define,
    )
)


def _foreign_reference(*arrays: np.ndarray, key: str, **attrs: Any) -> np.ndarray:
    raise ValueError(f"{key} is foreign: it has no meaning here")


# Output number `output` of an operator that runs in Python: `model` is the serialized ONNX model of that one operator,
# whose inputs are the node's; `key` tells operators apart (equal ones may draw different random numbers).
FOREIGN = _row(Primitive("foreign", "opaque", _declared, _foreign_reference))


def constant(array: np.ndarray, of: DType | None = None) -> Node:
    """A constant tensor; `of` is needed only for bfloat16, whose arrays are uint16."""
    row = of if of is not None else dtype(array.dtype.name)
    return make(CONSTANT, value=data(array), dtype=row.name)


def scalar(value: float | int | bool, of: DType) -> Node:
    """A constant of rank 0."""
    return constant(np.array(value, of.numpy), of)


def constant_value(node: Node) -> np.ndarray | None:
    """The array of a constant node, else None."""
    return node.attr("value").array if node.primitive is CONSTANT else None


# ---------------------------------------------------------------- elementwise


def _elementwise_type(row: ScalarOp) -> Callable[[Types, Attrs, Constraints], TensorType]:
    def infer(types: Types, attrs: Attrs, need: Constraints) -> TensorType:
        if len(types) != row.arity:
            raise ValueError(f"{row.name} takes {row.arity} inputs, not {len(types)}")
        for other in types[1:]:
            _same_shape(types[0], other, need, row.name)
        operands = types[1:] if row.name == "select" else types
        if row.name == "select" and types[0].dtype is not BOOL:
            raise ValueError(f"a condition of {types[0].dtype}")
        if any(t.dtype is not operands[0].dtype for t in operands):
            raise ValueError(f"{row.name} of {', '.join(str(t.dtype) for t in operands)}")
        if operands[0].dtype.kind not in row.kinds:
            raise ValueError(f"{row.name} does not take {operands[0].dtype}")
        if row.name != "select":
            _computed(row.name, operands[0])
        return TensorType(row.result(tuple(t.dtype for t in types)), types[0].shape)

    return infer


def _computed(what: str, operand: TensorType) -> None:
    """ValueError for half types: arithmetic is in float32, and where it is rounded a `cast` says."""
    if operand.dtype.is_half:
        raise ValueError(f"{what} of {operand.dtype}: it is computed in {operand.dtype.compute}")


def _same_shape(a: TensorType, b: TensorType, need: Constraints, what: str) -> None:
    if a.rank != b.rank:
        raise ValueError(f"{what}: shapes {a} and {b} differ in rank")
    for x, y in zip(a.shape, b.shape, strict=True):
        need.equal(x, y, what)


def _elementwise_define(node: Node, at: Any, reduced: Any, read: Read, extent: Extent) -> L.Expr:
    return L.op(node.name, *(read(k, at) for k in range(len(node.inputs))))


def _quiet(meaning: Callable[..., Any]) -> Callable[..., np.ndarray]:
    def reference(*arrays: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(meaning(*arrays))

    return reference


def _cast_type(types: Types, attrs: Attrs, need: Constraints) -> TensorType:
    if types[0].dtype.name != attrs["source"]:
        raise ValueError(f"cast from {attrs['source']} of a {types[0].dtype} tensor")
    return TensorType(dtype(attrs["to"]), types[0].shape)


def _cast_reference(x: np.ndarray, *, source: str, to: str) -> np.ndarray:
    wide = from_bfloat16(x) if source == BFLOAT16.name else x
    with np.errstate(all="ignore"):
        if to == BFLOAT16.name:
            return to_bfloat16(wide)
        return np.asarray(cast_value(wide, dtype(to)))


def _cast_define(node: Node, at: Any, reduced: Any, read: Read, extent: Extent) -> L.Expr:
    return L.stored(read(0, at), node.dtype)


for _op in SCALAR_OPS.values():
    if _op.name not in ("fma", "shift_left", "shift_right", "floordiv", "as_float16", "as_bfloat16"):
        _row(
            Primitive(
                _op.name,
                "elementwise",
                _elementwise_type(_op),
                _quiet(_op.meaning),
                _elementwise_define,
            )
        )
for _name in ("shift_left", "shift_right"):
    _op = SCALAR_OPS[_name]
    _row(
        Primitive(
            _name, "elementwise", _elementwise_type(_op), _quiet(_op.meaning), _elementwise_define
        )
    )
CAST = _row(Primitive("cast", "elementwise", _cast_type, _cast_reference, _cast_define))


def cast(x: Node, to: DType) -> Node:
    """x converted to another element type; itself when it has it already."""
    return x if x.dtype is to else make(CAST, x, source=x.dtype.name, to=to.name)


# ---------------------------------------------------------------- reduce


def _reduce_type(types: Types, attrs: Attrs, need: Constraints) -> TensorType:
    axes = attrs["axes"]
    if list(axes) != sorted(set(axes)) or any(not 0 <= a < types[0].rank for a in axes):
        raise ValueError(f"reduction axes {axes} of {types[0]}")
    _computed("a reduction", types[0])
    kept = tuple(d for a, d in enumerate(types[0].shape) if a not in axes)
    return TensorType(types[0].dtype, kept)


def _reduced_extents(node: Node) -> tuple[DimLike, ...]:
    return tuple(node.inputs[0].shape[a] for a in node.attr("axes"))


def _reduce_define(node: Node, at: Any, reduced: Any, read: Read, extent: Extent) -> L.Expr:
    outer, inner, axes = list(at), list(reduced), node.attr("axes")
    rank = node.inputs[0].type.rank
    return read(0, tuple(inner.pop(0) if a in axes else outer.pop(0) for a in range(rank)))


def identity(combine: str, of: DType) -> float | int:
    """The neutral value of a reduction by `combine` on elements of type `of`."""
    if combine in ("add", "or"):
        return 0
    if combine in ("mul", "and"):
        return 1
    if of.is_float:
        return float("-inf") if combine == "max" else float("inf")
    info = np.iinfo(of.numpy)
    return int(info.min) if combine == "max" else int(info.max)


def _reduce_reference(combine: str) -> Callable[..., np.ndarray]:
    ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[combine]

    def reference(x: np.ndarray, *, axes: tuple[int, ...]) -> np.ndarray:
        start = identity(combine, dtype(x.dtype.name))
        wide = x.astype(np.float64) if x.dtype == np.float32 and combine in ("add", "mul") else x
        with np.errstate(all="ignore"):
            result = ufunc.reduce(wide, axis=axes, initial=start)
        return np.asarray(result).astype(x.dtype)

    return reference


for _name, _combine in (("sum", "add"), ("prod", "mul"), ("max", "max"), ("min", "min")):
    _row(
        Primitive(
            f"reduce_{_name}",
            "reduce",
            _reduce_type,
            _reduce_reference(_combine),
            _reduce_define,
            _reduced_extents,
            _combine,
        )
    )


def _arg_type(types: Types, attrs: Attrs, need: Constraints) -> TensorType:
    axis = attrs["axis"]
    _computed("an extreme's place", types[0])
    return TensorType(INT64, tuple(d for a, d in enumerate(types[0].shape) if a != axis))


def _arg_reference(*, largest: bool) -> Callable[..., np.ndarray]:
    def reference(x: np.ndarray, *, axis: int, last: bool) -> np.ndarray:
        find = np.argmax if largest else np.argmin
        if not x.size:
            return np.zeros((*x.shape[:axis], *x.shape[axis + 1 :]), np.int64)
        if not last:
            return np.asarray(find(x, axis=axis), np.int64)
        return np.asarray(x.shape[axis] - 1 - find(np.flip(x, axis), axis=axis), np.int64)

    return reference


# arg_max and arg_min lower by a scan of their own (schedule.lower): first (or last) winner, NaN wins; 0 of none
ARG_MAX = _row(Primitive("arg_max", "opaque", _arg_type, _arg_reference(largest=True)))
ARG_MIN = _row(Primitive("arg_min", "opaque", _arg_type, _arg_reference(largest=False)))


# ---------------------------------------------------------------- broadcast


def _broadcast_type(types: Types, attrs: Attrs, need: Constraints) -> TensorType:
    shape, source = attrs["shape"], types[0]
    if source.rank > len(shape):
        raise ValueError(f"cannot broadcast {source} to rank {len(shape)}")
    for have, want in zip(reversed(source.shape), reversed(shape), strict=False):
        if equal(have, 1) is False:
            need.equal(have, want, f"broadcast of {source}")
        elif not repeats(have, want):
            need.equal((have - 1) * (have - want), 0, f"broadcast of {source}")
    return TensorType(source.dtype, shape)


def _broadcast_define(node: Node, at: Any, reduced: Any, read: Read, extent: Extent) -> L.Expr:
    source = node.inputs[0].shape
    lead = len(at) - len(source)
    places = zip(at[lead:], source, node.shape[lead:], strict=True)
    return read(0, tuple(L.times(i, extent(repeating(have, out))) for i, have, out in places))


BROADCAST = _row(
    Primitive(
        "broadcast",
        "broadcast",
        _broadcast_type,
        lambda x, *, shape: np.broadcast_to(x, shape),
        _broadcast_define,
    )
)


def _window_type(types: Types, attrs: Attrs, need: Constraints) -> TensorType:
    shape = list(types[0].shape)
    check_positive("windows", attrs["sizes"], attrs["strides"], attrs["dilations"])
    for axis, size, stride, dilation in _window_axes(attrs):
        shape[axis] = (shape[axis] - (size - 1) * dilation - 1) // stride + 1
    return TensorType(types[0].dtype, tuple(shape) + tuple(attrs["sizes"]))


def _window_axes(attrs: Attrs) -> list[tuple[int, Any, Any, Any]]:
    columns = attrs["axes"], attrs["sizes"], attrs["strides"], attrs["dilations"]
    return list(zip(*columns, strict=True))


def _none_along(rank: int, lacking: dict[int, int]) -> tuple[slice, ...]:
    return tuple(slice(0, 0 if lacking.get(a) else None) for a in range(rank))


def _window_reference(x: np.ndarray, **attrs: Any) -> np.ndarray:
    axes, sizes = attrs["axes"], attrs["sizes"]
    spans = tuple((s - 1) * d + 1 for s, d in zip(sizes, attrs["dilations"], strict=True))
    lacking = {a: max(span - x.shape[a], 0) for a, span in zip(axes, spans, strict=True)}
    if any(lacking.values()):  # no window fits: numpy would refuse what is merely empty
        x = np.pad(x, [(0, lacking.get(a, 0)) for a in range(x.ndim)])
        return _window_reference(x, **attrs)[_none_along(x.ndim + len(axes), lacking)]
    view = np.lib.stride_tricks.sliding_window_view(x, spans, axis=axes)
    cut = [slice(None)] * view.ndim
    for k, (axis, _, stride, dilation) in enumerate(_window_axes(attrs)):
        cut[axis] = slice(None, None, stride)
        cut[x.ndim + k] = slice(None, None, dilation)
    return view[tuple(cut)]


def _window_define(node: Node, at: Any, reduced: Any, read: Read, extent: Extent) -> L.Expr:
    rank = node.inputs[0].type.rank
    index = list(at[:rank])
    for k, (axis, _, stride, dilation) in enumerate(_window_axes(dict(node.attrs))):
        index[axis] = L.plus(L.times(index[axis], stride), L.times(at[rank + k], dilation))
    return read(0, tuple(index))


WINDOW = _row(  # x[.., i*stride + k*dilation, ..] with the window indices k as new last axes
    Primitive("window", "broadcast", _window_type, _window_reference, _window_define)
)


# ---------------------------------------------------------------- layout


def _reshape_type(types: Types, attrs: Attrs, need: Constraints) -> TensorType:
    need.equal(product(types[0].shape), product(attrs["shape"]), f"reshape of {types[0]}")
    return TensorType(types[0].dtype, attrs["shape"])


def reshape_groups(
    source: tuple[DimLike, ...], target: tuple[DimLike, ...]
) -> list[tuple[range, range]]:
    """The finest runs of axes whose element counts provably agree: (axes of source, axes of target) in order."""
    groups: list[tuple[range, range]] = []
    i = j = 0
    while i < len(source) and j < len(target):
        i0, j0, left, right = i, j, source[i], target[j]
        i, j = i + 1, j + 1
        while equal(left, right) is not True and (i < len(source) or j < len(target)):
            source_short = exact_div(right, left) is not None
            target_short = exact_div(left, right) is not None
            if i < len(source) and (source_short or not target_short or j == len(target)):
                left, i = left * source[i], i + 1
            if j < len(target) and not source_short or i == len(source) and j < len(target):
                right, j = right * target[j], j + 1
        groups.append((range(i0, i), range(j0, j)))
    if i < len(source) or j < len(target):
        groups.append((range(i, len(source)), range(j, len(target))))
    return groups


def flatten(at: Any, shape: tuple[DimLike, ...], extent: Extent) -> L.Expr:
    """The row-major position of index `at`."""
    flat: L.Expr = L.const(0)
    for i, d in zip(at, shape, strict=True):
        flat = L.plus(L.times(flat, extent(d)), i)
    return flat


def unflatten(flat: L.Expr, shape: tuple[DimLike, ...], extent: Extent) -> list[L.Expr]:
    """The index of the row-major position `flat`."""
    index: list[L.Expr] = []
    for k in range(len(shape) - 1, 0, -1):
        index.append(L.remainder(flat, extent(shape[k])))
        flat = L.quotient(flat, extent(shape[k]))
    return [flat, *reversed(index)] if shape else []


def _reshape_define(node: Node, at: Any, reduced: Any, read: Read, extent: Extent) -> L.Expr:
    source, target = node.inputs[0].shape, node.shape
    index: list[L.Expr] = []
    for from_axes, to_axes in reshape_groups(source, target):
        have = [a for a in to_axes if equal(target[a], 1) is not True]
        need = [a for a in from_axes if equal(source[a], 1) is not True]
        flat = flatten([at[a] for a in have], tuple(target[a] for a in have), extent)
        parts = dict(
            zip(need, unflatten(flat, tuple(source[a] for a in need), extent), strict=True)
        )
        index.extend(parts.get(a, L.const(0)) for a in from_axes)
    return read(0, tuple(index))


def _transpose_type(types: Types, attrs: Attrs, need: Constraints) -> TensorType:
    perm = attrs["perm"]
    if sorted(perm) != list(range(types[0].rank)):
        raise ValueError(f"{perm} is no permutation of the axes of {types[0]}")
    return TensorType(types[0].dtype, tuple(types[0].shape[p] for p in perm))


def _transpose_define(node: Node, at: Any, reduced: Any, read: Read, extent: Extent) -> L.Expr:
    index: list[L.Expr] = [L.const(0)] * len(at)
    for i, p in zip(at, node.attr("perm"), strict=True):
        index[p] = i
    return read(0, tuple(index))


def _slice_type(types: Types, attrs: Attrs, need: Constraints) -> TensorType:
    if not len(attrs["starts"]) == len(attrs["steps"]) == len(attrs["shape"]) == types[0].rank:
        raise ValueError(f"slice of {types[0]} needs a start, step and extent per axis")
    return TensorType(types[0].dtype, attrs["shape"])


def _slice_reference(x: np.ndarray, *, starts: Any, steps: Any, shape: Any) -> np.ndarray:
    for size, start, step, n in zip(x.shape, starts, steps, shape, strict=True):
        if n > 0 and not (0 <= start < size and 0 <= start + step * (n - 1) < size):
            raise IndexError(f"a slice from {start} reaches out of {size}")
    for axis, (start, step, n) in enumerate(zip(starts, steps, shape, strict=True)):
        x = np.take(x, start + step * np.arange(n), axis=axis)
    return x


def _slice_define(node: Node, at: Any, reduced: Any, read: Read, extent: Extent) -> L.Expr:
    pairs = zip(at, node.attr("starts"), node.attr("steps"), strict=True)
    return read(
        0, tuple(L.plus(L.times(i, extent(step)), extent(start)) for i, start, step in pairs)
    )


def _concat_type(types: Types, attrs: Attrs, need: Constraints) -> TensorType:
    axis, first = attrs["axis"], types[0]
    total: DimLike = 0
    for t in types:
        if t.rank != first.rank or t.dtype is not first.dtype:
            raise ValueError(f"concat of {first} and {t}")
        for a in range(first.rank):
            if a != axis:
                need.equal(t.shape[a], first.shape[a], "concat")
        total = total + t.shape[axis]
    return TensorType(first.dtype, (*first.shape[:axis], total, *first.shape[axis + 1 :]))


def _concat_define(node: Node, at: Any, reduced: Any, read: Read, extent: Extent) -> L.Expr:
    axis = node.attr("axis")
    starts: list[DimLike] = [0]
    for source in node.inputs[:-1]:
        starts.append(starts[-1] + source.shape[axis])

    def piece(k: int) -> L.Expr:
        return read(k, (*at[:axis], L.minus(at[axis], extent(starts[k])), *at[axis + 1 :]))

    value = piece(len(node.inputs) - 1)
    for k in range(len(node.inputs) - 2, -1, -1):
        inside = L.op("lt", at[axis], extent(starts[k + 1]))
        value = L.op("select", inside, piece(k), value)
    return value


def _pad_type(types: Types, attrs: Attrs, need: Constraints) -> TensorType:
    padded = zip(types[0].shape, attrs["low"], attrs["high"], strict=True)
    return TensorType(types[0].dtype, tuple(d + low + high for d, low, high in padded))


def _pad_reference(x: np.ndarray, *, low: Any, high: Any, value: Data) -> np.ndarray:
    return np.pad(x, list(zip(low, high, strict=True)), constant_values=value.array)


def literal(value: np.ndarray, of: DType) -> L.Const:
    """A rank-0 array as a literal of the compute type of `of`."""
    number = from_bfloat16(value) if of is BFLOAT16 else value
    return L.const(number.item(), of.compute)


def _pad_define(node: Node, at: Any, reduced: Any, read: Read, extent: Extent) -> L.Expr:
    source = node.inputs[0].shape
    inside: L.Expr | None = None
    index: list[L.Expr] = []
    for i, low, high, d in zip(at, node.attr("low"), node.attr("high"), source, strict=True):
        j = L.minus(i, extent(low))
        index.append(j)
        if equal(low, 0) is not True:
            inside = L.both(inside, L.op("ge", j, L.const(0)))
        if equal(high, 0) is not True:
            inside = L.both(inside, L.op("lt", j, extent(d)))
    value = read(0, tuple(index))
    if inside is None:
        return value
    return L.op("select", inside, value, literal(node.attr("value").array, node.dtype))


def _dilate_type(types: Types, attrs: Attrs, need: Constraints) -> TensorType:
    pairs = zip(types[0].shape, attrs["factors"], strict=True)
    return TensorType(types[0].dtype, tuple((d - 1) * f + 1 if f != 1 else d for d, f in pairs))


def _dilate_reference(x: np.ndarray, *, factors: Any) -> np.ndarray:
    shape = tuple((d - 1) * f + 1 if f != 1 else d for d, f in zip(x.shape, factors, strict=True))
    result = np.zeros(shape, x.dtype)
    result[tuple(slice(None, None, f) for f in factors)] = x
    return result


def _dilate_define(node: Node, at: Any, reduced: Any, read: Read, extent: Extent) -> L.Expr:
    hit: L.Expr | None = None
    index: list[L.Expr] = []
    for i, f in zip(at, node.attr("factors"), strict=True):
        index.append(L.quotient(i, f))
        if f != 1:
            hit = L.both(hit, L.op("eq", L.remainder(i, f), L.const(0)))
    value = read(0, tuple(index))
    if hit is None:
        return value
    return L.op("select", hit, value, L.const(0, node.dtype.compute))


def _gather_type(types: Types, attrs: Attrs, need: Constraints) -> TensorType:
    x, indices = types
    if indices.dtype is not INT64:
        raise ValueError(f"gather by {indices.dtype} indices")
    axis = attrs["axis"]
    need_elements(x, axis, indices.shape, need)
    return TensorType(x.dtype, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def need_elements(
    x: TensorType, axis: int, shape: tuple[DimLike, ...], need: Constraints
) -> None:
    """Demand that an axis of x is not empty where places along it are given, a tensor of `shape`."""
    lack = lacking(x.shape[axis], shape)
    if equal(lack, 0) is False:
        raise ValueError(f"an index into axis {axis} of {x}, which is empty")
    need.equal(lack, 0, f"an index into axis {axis}")


def lacking(extent: DimLike, shape: tuple[DimLike, ...]) -> DimLike:
    """0 where a tensor of `shape`, if it has elements, may tell places in an axis of `extent`, else 1."""
    if (lower_bound(extent) or 0) >= 1:
        return 0
    return max_(min_(product(shape), 1) - extent, 0)


def _gather_reference(x: np.ndarray, indices: np.ndarray, *, axis: int) -> np.ndarray:
    n = x.shape[axis]
    if not n and not indices.size:
        return np.zeros((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)
    wrapped = np.where(indices < 0, indices + n, indices)
    return np.take(x, np.clip(wrapped, 0, max(n - 1, 0)), axis=axis)


def _gather_define(node: Node, at: Any, reduced: Any, read: Read, extent: Extent) -> L.Expr:
    axis, rank = node.attr("axis"), node.inputs[1].type.rank
    n = extent(node.inputs[0].shape[axis])
    chosen = read(1, tuple(at[axis : axis + rank]))
    wrapped = L.op("select", L.op("lt", chosen, L.const(0)), L.plus(chosen, n), chosen)
    safe = L.op("max", L.op("min", wrapped, L.minus(n, 1)), L.const(0))
    return read(0, (*at[:axis], safe, *at[axis + rank :]))


RESHAPE = _row(
    Primitive(
        "reshape",
        "layout",
        _reshape_type,
        lambda x, *, shape: np.reshape(x, shape),
        _reshape_define,
    )
)
TRANSPOSE = _row(
    Primitive(
        "transpose",
        "layout",
        _transpose_type,
        lambda x, *, perm: np.transpose(x, perm),
        _transpose_define,
    )
)
SLICE = _row(  # x[start + step*i]; every index in range, steps may be negative
    Primitive("slice", "layout", _slice_type, _slice_reference, _slice_define)
)
CONCAT = _row(
    Primitive(
        "concat",
        "layout",
        _concat_type,
        lambda *xs, axis: np.concatenate(xs, axis),
        _concat_define,
    )
)
PAD = _row(Primitive("pad", "layout", _pad_type, _pad_reference, _pad_define))
DILATE = _row(  # zeros between elements: x at multiples of the factors
    Primitive("dilate", "layout", _dilate_type, _dilate_reference, _dilate_define)
)
GATHER = _row(  # x[.., indices, ..]; negative indices count from the end, wild ones are clamped
    Primitive("gather", "layout", _gather_type, _gather_reference, _gather_define)
)


# ---------------------------------------------------------------- linear


def _matmul_type(types: Types, attrs: Attrs, need: Constraints) -> TensorType:
    a, b = types
    if a.rank != b.rank or a.rank < 2 or a.dtype is not b.dtype:
        raise ValueError(f"matmul of {a} and {b}")
    _computed("matmul", a)
    for x, y in zip(a.shape[:-2], b.shape[:-2], strict=True):
        if y != 1:
            need.equal(x, y, "matmul batch")
    need.equal(a.shape[-1], b.shape[-2], "matmul inner extent")
    return TensorType(a.dtype, (*a.shape[:-1], b.shape[-1]))


def _matmul_reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    wide = np.float64 if a.dtype.kind == "f" else a.dtype
    with np.errstate(all="ignore"):
        return np.asarray(np.matmul(a.astype(wide), b.astype(wide))).astype(a.dtype)


def _matmul_define(node: Node, at: Any, reduced: Any, read: Read, extent: Extent) -> L.Expr:
    batch, (m, n), (k,) = at[:-2], at[-2:], reduced
    return L.op("mul", read(0, (*batch, m, k)), read(1, (*right_batch(node, batch), k, n)))


def right_batch(node: Node, batch: Sequence[L.Expr]) -> tuple[L.Expr, ...]:
    """The batch index of the right operand of a matmul at a batch index of its result."""
    return tuple(L.const(0) if d == 1 else i for i, d in zip(batch, node.inputs[1].shape, strict=False))


def _conv_type(types: Types, attrs: Attrs, need: Constraints) -> TensorType:
    x, w = types
    groups, spatial = attrs["groups"], x.rank - 2
    if w.rank != x.rank or x.dtype is not w.dtype or len(attrs["strides"]) != spatial:
        raise ValueError(f"conv of {x} by {w}")
    _computed("conv", x)
    check_positive("a convolution", attrs["strides"], attrs["dilations"], [groups])
    need.equal(x.shape[-1], w.shape[-2] * groups, "conv input channels")
    if exact_div(w.shape[-1], groups) is None:
        raise ValueError(f"{w.shape[-1]} outputs in {groups} groups")
    extents: list[DimLike] = []
    columns = zip(
        x.shape[1:-1], w.shape[:spatial], attrs["strides"], attrs["dilations"], strict=True
    )
    for d, size, stride, dilation in columns:
        extents.append((d - (size - 1) * dilation - 1) // stride + 1)
    return TensorType(x.dtype, (x.shape[0], *extents, w.shape[-1]))


def _conv_reference(x: np.ndarray, w: np.ndarray, **attrs: Any) -> np.ndarray:
    spatial, groups = x.ndim - 2, attrs["groups"]
    windows = _window_reference(
        x.astype(np.float64),
        axes=tuple(range(1, 1 + spatial)),
        sizes=w.shape[:spatial],
        strides=attrs["strides"],
        dilations=attrs["dilations"],
    )
    outs = w.shape[-1] // groups
    inner = w.shape[-2]
    if outs == inner == 1:  # depthwise: tap by tap, where one product per group would take long
        taps = np.ndindex(*w.shape[:spatial])
        return np.asarray(
            sum(windows[(..., *t)] * w[t][0].astype(np.float64) for t in taps), x.dtype
        )
    pieces = []
    for g in range(groups):
        part = np.take(windows, range(g * inner, (g + 1) * inner), axis=1 + spatial)
        axes = [*range(2 + spatial, 2 + 2 * spatial), 1 + spatial]
        kernel = w[..., g * outs : (g + 1) * outs].astype(np.float64)
        pieces.append(np.tensordot(part, kernel, axes=(axes, [*range(spatial), spatial])))
    return np.concatenate(pieces, axis=-1).astype(x.dtype)


def _conv_reduced(node: Node) -> tuple[DimLike, ...]:
    return node.inputs[1].shape[:-1]


def _conv_define(node: Node, at: Any, reduced: Any, read: Read, extent: Extent) -> L.Expr:
    n, *place, o = at
    *taps, c = reduced
    w, groups = node.inputs[1].shape, node.attr("groups")
    columns = zip(place, node.attr("strides"), taps, node.attr("dilations"), strict=True)
    where = [L.plus(L.times(i, s), L.times(t, d)) for i, s, t, d in columns]
    channel = c
    if groups != 1:
        group = L.quotient(o, extent(_per_group(node)))
        channel = L.plus(L.times(group, extent(w[-2])), c)
    return L.op("mul", read(0, (n, *where, channel)), read(1, (*taps, c, o)))


def _per_group(node: Node) -> DimLike:
    outs = exact_div(node.inputs[1].shape[-1], node.attr("groups"))
    if outs is None:
        raise ValueError(f"{node.inputs[1].shape[-1]} outputs in {node.attr('groups')} groups")
    return outs


MATMUL = _row(  # a[.., m, k] . b[.., k, n], b's batch axes maybe 1; one accumulator per element, k ascending
    Primitive(
        "matmul",
        "linear",
        _matmul_type,
        _matmul_reference,
        _matmul_define,
        lambda node: (node.inputs[0].shape[-1],),
        "add",
    )
)
CONV = (
    _row(  # x[n, spatial.., c] by w[taps.., c / groups, o], unpadded; taps row-major, then channel
        Primitive("conv", "linear", _conv_type, _conv_reference, _conv_define, _conv_reduced, "add")
    )
)


# ---------------------------------------------------------------- formats

PANEL = 16  # columns of a panel: the same on every target, so that targets share packed weights
PANELS = f"panels{PANEL}"
COLUMNS = "columns"  # every column contiguous


def _pack_type(types: Types, attrs: Attrs, need: Constraints) -> TensorType:
    return TensorType(types[0].dtype, types[0].shape, attrs["format"])


PACK = _row(  # the right operand of a linear primitive, held in panels or by columns (see `pack_array`)
    Primitive("pack", "layout", _pack_type, lambda b, *, batch, groups, format: b)
)


def pack(b: Node, batch: int, groups: int = 1, format: str = PANELS) -> Node:
    """`b` in a format: the first `batch` axes stay, the others but the last are rows, the last is cut into `groups`."""
    return make(PACK, b, batch=batch, groups=groups, format=format)


def packed_extents(node: Node) -> tuple[DimLike, DimLike, DimLike, DimLike]:
    """(matrices, panels, rows, columns of a panel): the stored shape of a packed tensor."""
    batch, groups, shape = node.attr("batch"), node.attr("groups"), node.shape
    columns = exact_div(shape[-1], groups)
    if columns is None:
        raise ValueError(f"{shape[-1]} columns in {groups} groups")
    width = 1 if node.type.format == COLUMNS else PANEL
    matrices, rows = product(shape[:batch]) * groups, product(shape[batch:-1])
    return matrices, ceildiv(columns, width), rows, width


def pack_array(b: np.ndarray, *, batch: int, groups: int, format: str = PANELS) -> np.ndarray:
    """The stored form of a packed constant: (matrices, panels, rows, width), the last panel filled with zeros."""
    matrices, columns = math.prod(b.shape[:batch]), b.shape[-1] // groups
    width = 1 if format == COLUMNS else PANEL
    cut = b.reshape(matrices, math.prod(b.shape[batch:-1]), groups, columns)
    panels = -(-columns // width)
    padded = np.zeros((*cut.shape[:3], panels * width), b.dtype)
    padded[..., :columns] = cut
    split = padded.reshape(*cut.shape[:3], panels, width).transpose(0, 2, 3, 1, 4)
    return np.ascontiguousarray(split).reshape(matrices * groups, panels, cut.shape[1], width)
