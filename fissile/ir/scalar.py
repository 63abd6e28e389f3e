"""The scalar operators: one row each, read by the interpreter, the type rules and every emitter.

A row gives the operator's name, how many arguments it takes, the type of its result and its meaning on numpy values
(arrays or scalars of the compute type, element by element). How it becomes machine code is a column of the emitter's
own table keyed by the same name; a test holds the two tables together. Integers wrap around; division by zero gives 0
and the smallest integer divided by -1 wraps, so that no operator can trap (PRODUCT section 4, "bad values").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fissile.ir.dtype import BOOL, FLOAT32, FLOAT64, INT32, INT64, DType

Array = Any


@dataclass(frozen=True, eq=False)
class ScalarOp:
    """One scalar operator. `kinds`: the dtype kinds accepted; `result`: type of the result from the argument types."""

    name: str
    arity: int
    kinds: str
    meaning: Callable[..., Array]
    result: Callable[[tuple[DType, ...]], DType]
    commutative: bool = False

    def __repr__(self) -> str:
        return self.name


def _same(types: tuple[DType, ...]) -> DType:
    return types[0]


def _bool(types: tuple[DType, ...]) -> DType:
    return BOOL


def _second(types: tuple[DType, ...]) -> DType:
    return types[1]


def _int_div(a: Array, b: Array) -> Array:
    """Truncating division; x / 0 = 0; wraps for the smallest integer divided by -1."""
    a, b = np.asarray(a), np.asarray(b)
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient = a // safe
    wrong = (quotient * safe != a) & ((a < 0) != (safe < 0))
    return np.where(b == 0, a.dtype.type(0), quotient + wrong.astype(a.dtype))


def _div(a: Array, b: Array) -> Array:
    return np.divide(a, b) if np.asarray(a).dtype.kind == "f" else _int_div(a, b)


def _floordiv(a: Array, b: Array) -> Array:
    a, b = np.asarray(a), np.asarray(b)
    return np.where(b == 0, a.dtype.type(0), a // np.where(b == 0, b.dtype.type(1), b))


def _mod(a: Array, b: Array) -> Array:
    """Remainder with the sign of the divisor (Python's)."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind == "f":
        return np.mod(a, b)
    return np.where(b == 0, a.dtype.type(0), np.mod(a, np.where(b == 0, b.dtype.type(1), b)))


def _rem(a: Array, b: Array) -> Array:
    """Remainder with the sign of the dividend (C's)."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind == "f":
        return np.fmod(a, b)
    return np.where(b == 0, a.dtype.type(0), np.fmod(a, np.where(b == 0, b.dtype.type(1), b)))


def _int_pow(a: Array, b: Array) -> Array:
    """Exact wrapping integer power; a negative exponent gives 0 but for bases 1 and -1."""
    a, b = np.asarray(a), np.asarray(b)
    result, base, left = np.ones_like(a), a.copy(), np.where(b < 0, 0, b).astype(np.int64)
    for _ in range(64):
        result = np.where(left & 1, result * base, result)
        base, left = base * base, left >> 1
    odd = (b & 1) != 0
    negative = np.where(a == 1, 1, np.where(a == -1, np.where(odd, -1, 1), 0))
    return np.where(b < 0, negative.astype(a.dtype), result)


def _pow(a: Array, b: Array) -> Array:
    return np.power(a, b) if np.asarray(a).dtype.kind == "f" else _int_pow(a, b)


def _erf(x: Array) -> Array:
    """Error function, by its Maclaurin series below 3 and its continued fraction above, in float64."""
    x = np.asarray(x)
    z = np.abs(x.astype(np.float64))
    small, term, total = np.minimum(z, 3.0), np.minimum(z, 3.0), np.minimum(z, 3.0)
    for n in range(1, 80):
        term = -term * small * small / n
        total = total + term / (2 * n + 1)
    large, fraction = np.maximum(z, 3.0), np.maximum(z, 3.0)
    for n in range(60, 0, -1):
        fraction = large + (n / 2) / fraction
    tail = np.exp(-large * large) / (fraction * np.sqrt(np.pi))
    value = np.where(z < 3.0, total * (2 / np.sqrt(np.pi)), 1.0 - tail)
    return np.copysign(np.where(np.isnan(x), np.nan, value), x).astype(x.dtype)


def _sigmoid(x: Array) -> Array:
    x = np.asarray(x)
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


def _shift_left(a: Array, b: Array) -> Array:
    bits = np.asarray(a).dtype.itemsize * 8
    return np.where(np.asarray(b) < bits, np.left_shift(a, np.minimum(b, bits - 1)), 0).astype(
        np.asarray(a).dtype
    )


def _shift_right(a: Array, b: Array) -> Array:
    """Logical shift: zeros come in, for signed types too."""
    a = np.asarray(a)
    unsigned = a.view(f"u{a.dtype.itemsize}")
    bits = a.dtype.itemsize * 8
    shifted = np.right_shift(unsigned, np.minimum(np.asarray(b), bits - 1).astype(unsigned.dtype))
    return np.where(np.asarray(b) < bits, shifted, 0).astype(unsigned.dtype).view(a.dtype)


def _fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c with one rounding (computed one precision up; exact enough for float32, near enough for float64)."""
    wide = np.longdouble if np.asarray(a).dtype == np.float64 else np.float64
    return (np.asarray(a, wide) * np.asarray(b, wide) + np.asarray(c, wide)).astype(
        np.asarray(a).dtype
    )


def _select(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition, a, b)


def to_bfloat16(values: Array) -> np.ndarray:
    """Numbers, any shape -> bfloat16 bits as uint16, rounded once, to nearest even; NaN stays NaN."""
    bits = _odd_float32(np.asarray(values)).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def from_bfloat16(bits: Array) -> np.ndarray:
    """bfloat16 bits (uint16, any shape) -> float32."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def _odd_float32(values: np.ndarray) -> np.ndarray:
    """float32; what float64 holds between two of them becomes the odd one, so that rounding again rounds once."""
    with np.errstate(over="ignore", under="ignore"):
        near = values.astype(np.float32)
    if values.dtype != np.float64:
        return near
    inexact = (near != values) & ~np.isnan(values)
    toward_zero = near.view(np.uint32) - (np.abs(near) > np.abs(values))
    return np.where(inexact, toward_zero | 1, near.view(np.uint32)).astype(np.uint32).view(np.float32)


def _as_float16(x: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(x).astype(np.float16).astype(np.float32)


def _as_bfloat16(x: Array) -> Array:
    return from_bfloat16(to_bfloat16(x))


def _float32(types: tuple[DType, ...]) -> DType:
    return FLOAT32


SCALAR_OPS: dict[str, ScalarOp] = {}


def _row(
    name: str,
    arity: int,
    kinds: str,
    meaning: Callable[..., Array],
    result: Callable[[tuple[DType, ...]], DType] = _same,
    commutative: bool = False,
) -> None:
    if name in SCALAR_OPS:
        raise ValueError(f"scalar operator {name} is declared twice")
    SCALAR_OPS[name] = ScalarOp(name, arity, kinds, meaning, result, commutative)


_row("add", 2, "fiu", np.add, commutative=True)
_row("sub", 2, "fiu", np.subtract)
_row("mul", 2, "fiu", np.multiply, commutative=True)
_row("div", 2, "fiu", _div)  # integers: truncating
_row("floordiv", 2, "iu", _floordiv)
_row("mod", 2, "fiu", _mod)
_row("rem", 2, "fiu", _rem)
_row("fma", 3, "f", _fma)
_row("neg", 1, "fiu", np.negative)
_row("abs", 1, "fiu", np.abs)
_row("min", 2, "fiu", np.minimum, commutative=True)  # NaN if either is NaN
_row("max", 2, "fiu", np.maximum, commutative=True)
_row("pow", 2, "fiu", _pow)
_row("sqrt", 1, "f", np.sqrt)
_row("exp", 1, "f", np.exp)
_row("log", 1, "f", np.log)
_row("log1p", 1, "f", np.log1p)
_row("expm1", 1, "f", np.expm1)
_row("tanh", 1, "f", np.tanh)
_row("erf", 1, "f", _erf)
_row("sigmoid", 1, "f", _sigmoid)
_row("sin", 1, "f", np.sin)
_row("cos", 1, "f", np.cos)
_row("tan", 1, "f", np.tan)
_row("asin", 1, "f", np.arcsin)
_row("acos", 1, "f", np.arccos)
_row("atan", 1, "f", np.arctan)
_row("sinh", 1, "f", np.sinh)
_row("cosh", 1, "f", np.cosh)
_row("asinh", 1, "f", np.arcsinh)
_row("acosh", 1, "f", np.arccosh)
_row("atanh", 1, "f", np.arctanh)
_row("floor", 1, "f", np.floor)
_row("ceil", 1, "f", np.ceil)
_row("rint", 1, "f", np.rint)  # half to even
_row("trunc", 1, "f", np.trunc)
_row("copysign", 2, "f", np.copysign)
_row("as_float16", 1, "f", _as_float16, _float32)  # the nearest float16, ties to even, as float32
_row("as_bfloat16", 1, "f", _as_bfloat16, _float32)
_row("eq", 2, "fiub", np.equal, _bool, commutative=True)
_row("ne", 2, "fiub", np.not_equal, _bool, commutative=True)
_row("lt", 2, "fiu", np.less, _bool)
_row("le", 2, "fiu", np.less_equal, _bool)
_row("gt", 2, "fiu", np.greater, _bool)
_row("ge", 2, "fiu", np.greater_equal, _bool)
_row("and", 2, "iub", np.bitwise_and, commutative=True)
_row("or", 2, "iub", np.bitwise_or, commutative=True)
_row("xor", 2, "iub", np.bitwise_xor, commutative=True)
_row("not", 1, "iub", np.invert)
_row("shift_left", 2, "iu", _shift_left)
_row("shift_right", 2, "iu", _shift_right)
_row("select", 3, "fiub", _select, _second)  # select(bool, a, b); only the chosen side is evaluated

_BITS = {FLOAT32: INT32, FLOAT64: INT64, INT32: FLOAT32, INT64: FLOAT64}


def cast_value(value: Array, to: DType) -> Array:
    """`value` converted to `to`: floats to integers truncate, to bool tests against zero, integers wrap."""
    value = np.asarray(value)
    if to is BOOL:
        return value != 0
    if to.is_integer and value.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            return (
                np.trunc(value).astype(np.int64 if to.kind == "i" else np.uint64).astype(to.numpy)
            )
    with np.errstate(over="ignore"):
        return value.astype(to.numpy)


def bitcast_dtype(source: DType) -> DType:
    """The type that `bitcast` gives for `source`: the integer of a float's width, or the float of an integer's."""
    return _BITS[source]
