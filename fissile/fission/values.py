"""What is known of shape tensors while splitting: integers and extents, element by element.

In: a node, or an operator whose inputs are all known. Out: an object array of ints and Dims, or
None. A known result becomes a constant or an `extents` node, so that a Reshape of a Concat of a
Shape has a symbolic target. Invariant: what is said to be known equals what the node evaluates to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fissile.fission.build import dtype_of_onnx
from fissile.fission.ratio import NoRatio, Ratio, node_of_ratios, ratios
from fissile.fission.real import Real, reals
from fissile.fission.table import Call, Refusal
from fissile.ir.dim import Dim, max_, min_
from fissile.ir.dim_logic import at_most, choice, magnitude, quotient, remainder, same, sign
from fissile.ir.dtype import BOOL, INT32, INT64, DType
from fissile.ir.graph import Node, make
from fissile.ir.primitive import CAST, EXTENTS, cast, constant, constant_value

LARGEST = 256
_INTEGERS = (INT64, INT32)


def known(node: Node | None) -> np.ndarray | None:
    """The elements of a small tensor of integers or bools (1 and 0) as an object array, or None."""
    if node is None:
        return None
    array = constant_value(node)
    if array is not None and array.size <= LARGEST and node.dtype in (*_INTEGERS, BOOL):
        whole = array.astype(np.int64) if node.dtype is BOOL else array
        return np.array(whole.tolist(), object).reshape(array.shape)
    if node.primitive is EXTENTS:
        return objects(node.attr("values")).reshape(node.attr("shape"))
    if node.primitive is CAST and node.dtype in (*_INTEGERS, BOOL):
        source = node.inputs[0]
        values = known(source) if source.dtype in (*_INTEGERS, BOOL) else None
        return _truths(values) if values is not None and node.dtype is BOOL else values
    return None


def known_reals(node: Node | None) -> np.ndarray | None:
    """The elements of a small float tensor as computations on extents, or None."""
    return None if node is None else reals(node, known, LARGEST)


def known_wholes(node: Node) -> np.ndarray | None:
    """The elements of a small float tensor whose elements are whole numbers made of extents, or None."""
    found = ratios(node, LARGEST)
    if found is None or any(r.den != 1 for r in found.reshape(-1)):
        return None
    return _mapped(lambda r: r.num, found)


def _truths(values: np.ndarray) -> np.ndarray:
    return _mapped(lambda v: 1 - same(v, 0), values)


def objects(values: Any) -> np.ndarray:
    """A flat sequence as an object array."""
    flat = tuple(values)
    result = np.empty(len(flat), object)
    result[:] = flat
    return result


def known_list(node: Node | None, what: str) -> list[Any]:
    """The elements of a known tensor. Refusal when they depend on data."""
    array = known(node)
    if array is None:
        raise Refusal(f"{what} depends on the data, not only on shapes")
    return list(array.reshape(-1))


def known_ints(node: Node | None, what: str) -> list[int]:
    """The elements of a tensor that must be plain numbers. Refusal when they are not."""
    values = known_list(node, what)
    if any(isinstance(v, Dim) for v in values):
        raise Refusal(f"{what} depends on the input's extents")
    return [int(v) for v in values]


def known_floats(node: Node | None, what: str) -> list[float]:
    """The elements of a constant. Refusal when it is none."""
    array = None if node is None else constant_value(node)
    if array is None:
        raise Refusal(f"{what} is not a constant")
    return [float(v) for v in array.reshape(-1)]


def node_of(values: np.ndarray, of: DType) -> Node:
    """The node of known values: a constant when all are numbers."""
    flat = tuple(values.reshape(-1))
    if not any(isinstance(v, Dim) for v in flat):
        return constant(np.array(flat, of.numpy).reshape(values.shape), of)
    return cast(make(EXTENTS, values=flat, shape=tuple(values.shape)), of)


# ---- operators on known values -------------------------------------------------------------------


class _Unknown(Exception):
    """The result cannot be said in terms of extents; the operator is split as usual."""


Meaning = Callable[..., np.ndarray]


_TRUTHS = (
    "And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or", "Xor",
)  # fmt: skip


def _never(call: Call, *arrays: np.ndarray | None) -> np.ndarray:
    raise _Unknown


_MEANINGS: dict[str, Meaning] = {}


def symbolic(call: Call, inputs: tuple[Node | None, ...]) -> Node | None:
    """The operator's only output when all inputs are known and it is arithmetic on shapes, else None."""
    meaning = _MEANINGS.get(call.operator.type)
    if meaning is None and call.operator.type in _REAL:  # of floats alone
        meaning = _never
    if meaning is None or call.operator.domain or not inputs or len(call.operator.outputs) != 1:
        return None
    arrays = [known(node) for node in inputs]
    if any(n is not None and n.dtype.is_float for n in inputs):
        return _by_ratios(call, inputs, arrays)
    for node, array in zip(inputs, arrays, strict=True):
        if node is not None and (array is None or array.size > LARGEST):
            return None
    try:
        values = np.asarray(meaning(call, *arrays), object)
        of = _result_type(call, inputs, values)
    except (_Unknown, Refusal, ZeroDivisionError):
        return None
    if values.size > LARGEST or not _fits(values, of):
        return None
    return node_of(values, of)


_REAL: dict[str, Callable[..., Any]] = {
    "Add": np.frompyfunc(lambda a, b: a + b, 2, 1),
    "Sub": np.frompyfunc(lambda a, b: a - b, 2, 1),
    "Mul": np.frompyfunc(lambda a, b: a * b, 2, 1),
    "Div": np.frompyfunc(lambda a, b: a / b, 2, 1),
    "Floor": np.frompyfunc(lambda a: a.floor(), 1, 1),
    "Ceil": np.frompyfunc(lambda a: a.ceil(), 1, 1),
}
_MOVES = ("Concat", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze")


def _by_ratios(
    call: Call, inputs: tuple[Node | None, ...], arrays: list[np.ndarray | None]
) -> Node | None:
    """Arithmetic on extents that has gone over to floats: kept exact until it comes back."""
    name = call.operator.type
    if name == "Cast":
        to = dtype_of_onnx(call.attr("to"))
        values = truncated_floats(inputs[0]) if to in _INTEGERS else None
        return None if values is None else node_of(values, to)
    mixed = [
        a if n is None or not n.dtype.is_float else ratios(n, LARGEST)
        for n, a in zip(inputs, arrays)
    ]
    if any(n is not None and a is None for n, a in zip(inputs, mixed)):
        return None
    of = next(n.dtype for n in inputs if n is not None and n.dtype.is_float)
    symbolic_parts = [a for a in mixed if a is not None and _is_symbolic(a)]
    try:
        if not symbolic_parts or (name not in _REAL and name not in _MOVES):
            return None
        meaning = _MEANINGS[name] if name in _MOVES else lambda call, *xs: _REAL[name](*xs)
        return node_of_ratios(np.asarray(meaning(call, *mixed), object), of)
    except (NoRatio, _Unknown, Refusal):
        return None


def truncated_floats(node: Node | None) -> np.ndarray | None:
    """The elements of a small float tensor of shape arithmetic, rounded towards zero, or None.

    As quotients of extents where they are such, which prove more; else as the float computation it is.
    """
    if node is None or constant_value(node) is not None:
        return None
    exact = ratios(node, LARGEST)
    if exact is not None:
        return _mapped(Ratio.trunc, exact)
    found = known_reals(node)
    return None if found is None else _mapped(Real.truncated, found)


def _mapped(function: Callable[[Any], Any], values: np.ndarray) -> np.ndarray:
    return np.asarray(np.frompyfunc(function, 1, 1)(values), object)


def _is_symbolic(values: np.ndarray) -> bool:
    return any(isinstance(v, Ratio) and isinstance(v.num, Dim) for v in values.reshape(-1))


def _result_type(call: Call, inputs: tuple[Node | None, ...], values: np.ndarray) -> DType:
    if call.operator.type == "Cast":
        of = dtype_of_onnx(call.attr("to"))
    elif call.operator.type in _TRUTHS:
        of = BOOL
    else:
        first = inputs[1] if call.operator.type == "Where" else inputs[0]
        of = INT64 if first is None else first.dtype
    if of not in (*_INTEGERS, BOOL):
        raise _Unknown
    return of


def _fits(values: np.ndarray, of: DType) -> bool:
    numbers = [v for v in values.reshape(-1) if not isinstance(v, Dim)]
    if of is BOOL:
        return True
    limits = np.iinfo(of.numpy)
    return all(limits.min <= int(v) <= limits.max for v in numbers)


def _meaning(*types: str) -> Callable[[Meaning], Meaning]:
    def declare(function: Meaning) -> Meaning:
        for name in types:
            _MEANINGS[name] = function
        return function

    return declare


def _pairwise(function: Callable[[Any, Any], Any]) -> Meaning:
    ufunc = np.frompyfunc(function, 2, 1)

    def meaning(call: Call, *arrays: np.ndarray) -> np.ndarray:
        total = arrays[0]
        for array in arrays[1:]:
            total = ufunc(total, array)
        return np.asarray(total, object)

    return meaning


for _type, _function in (
    ("Add", lambda a, b: a + b),
    ("Sub", lambda a, b: a - b),
    ("Mul", lambda a, b: a * b),
    ("Div", quotient),
    ("Min", min_),
    ("Max", max_),
    ("Equal", same),
    ("LessOrEqual", at_most),
    ("GreaterOrEqual", lambda a, b: at_most(b, a)),
    ("Less", lambda a, b: at_most(a + 1, b)),
    ("Greater", lambda a, b: at_most(b + 1, a)),
    ("And", min_),
    ("Or", max_),
    ("Xor", lambda a, b: 1 - same(a, b)),
):
    _meaning(_type)(_pairwise(_function))


@_meaning("Identity")
def _identity(call: Call, x: np.ndarray) -> np.ndarray:
    return x


@_meaning("Mod")
def _mod(call: Call, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    function = remainder if call.attr("fmod", 0) else lambda a, b: a % b
    return np.asarray(np.frompyfunc(function, 2, 1)(a, b), object)


def _each(function: Callable[[Any], Any]) -> Meaning:
    return lambda call, x: _mapped(function, x)


for _type, _single in (
    ("Neg", lambda a: -a),
    ("Abs", magnitude),
    ("Sign", sign),
    ("Not", lambda a: 1 - a),
):
    _meaning(_type)(_each(_single))


@_meaning("Cast")
def _cast(call: Call, x: np.ndarray) -> np.ndarray:
    to = dtype_of_onnx(call.attr("to"))
    if to is BOOL:
        return _truths(x)
    if to not in _INTEGERS:
        raise _Unknown
    return np.asarray(np.frompyfunc(lambda a: int(a) if isinstance(a, bool) else a, 1, 1)(x))


@_meaning("Where")
def _where(call: Call, c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(np.frompyfunc(choice, 3, 1)(c, a, b), object)


def _numbers(array: np.ndarray | None) -> tuple[int, ...]:
    if array is None or any(isinstance(v, Dim) for v in array.reshape(-1)):
        raise _Unknown
    return tuple(int(v) for v in array.reshape(-1))


def _axes(call: Call, given: np.ndarray | None) -> tuple[int, ...] | None:
    if given is not None:
        return _numbers(given)
    axes = call.attr("axes")
    return None if axes is None else tuple(axes)


@_meaning("Gather")
def _gather(call: Call, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    chosen = np.array(_numbers(indices), np.int64).reshape(indices.shape)
    return np.asarray(np.take(x, chosen, axis=call.attr("axis", 0)), object)


@_meaning("Concat")
def _concat(call: Call, *xs: np.ndarray) -> np.ndarray:
    return np.concatenate(xs, axis=call.attr("axis", 0))


@_meaning("Unsqueeze")
def _unsqueeze(call: Call, x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
    return np.expand_dims(x, _axes(call, axes) or ())


@_meaning("Squeeze")
def _squeeze(call: Call, x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
    return np.squeeze(x, _axes(call, axes))


@_meaning("Reshape")
def _reshape(call: Call, x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    target = _numbers(shape)
    if not call.attr("allowzero", 0):
        target = tuple(x.shape[k] if d == 0 else d for k, d in enumerate(target))
    return x.reshape(target)


@_meaning("Transpose")
def _transpose(call: Call, x: np.ndarray) -> np.ndarray:
    return np.transpose(x, call.attr("perm"))


@_meaning("Slice")
def _slice(
    call: Call,
    x: np.ndarray,
    starts: np.ndarray | None = None,
    ends: np.ndarray | None = None,
    axes: np.ndarray | None = None,
    steps: np.ndarray | None = None,
) -> np.ndarray:
    first = tuple(call.attr("starts", ())) if starts is None else _numbers(starts)
    last = tuple(call.attr("ends", ())) if ends is None else _numbers(ends)
    places = _axes(call, axes) or tuple(range(len(first)))
    strides = (1,) * len(first) if steps is None else _numbers(steps)
    for axis, start, end, step in zip(places, first, last, strides, strict=True):
        x = np.take(x, _places(x.shape[axis], start, end, step), axis=axis)
    return x


def _places(extent: int, start: int, end: int, step: int) -> range:
    """The indices of a slice: a start before the axis is clamped to its first element, unlike Python's."""
    first, last = (b + extent if b < 0 else b for b in (start, end))
    if step > 0:
        return range(min(max(first, 0), extent), min(max(last, 0), extent), step)
    return range(min(max(first, 0), extent - 1), min(max(last, -1), extent - 1), step)


@_meaning("Expand")
def _expand(call: Call, x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    target = np.broadcast_shapes(x.shape, _numbers(shape))
    if math.prod(target) > LARGEST:
        raise _Unknown
    return np.broadcast_to(x, target)


@_meaning("Tile")
def _tile(call: Call, x: np.ndarray, repeats: np.ndarray) -> np.ndarray:
    if x.size * math.prod(_numbers(repeats)) > LARGEST:
        raise _Unknown
    return np.tile(x, _numbers(repeats))


@_meaning("ReduceProd", "ReduceSum", "ReduceMin", "ReduceMax")
def _reduced(call: Call, x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
    chosen = _axes(call, axes)
    if x.ndim != 1 or (chosen is not None and chosen not in ((0,), (-1,))) or not x.size:
        raise _Unknown
    pair = {"ReduceProd": np.multiply, "ReduceSum": np.add}.get(call.operator.type)
    if pair is not None:
        total: Any = pair.reduce(x)
    else:
        total = (min_ if call.operator.type == "ReduceMin" else max_)(*x)
    result = objects([total])
    return result if call.attr("keepdims", 1) else result.reshape(())
