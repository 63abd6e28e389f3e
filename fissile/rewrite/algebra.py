"""Algebra of scalar operators: neutral elements, involutions, cheaper equals.

In: elementwise primitives with constant or repeated operands. Out: fewer or cheaper ones. Invariant: equal for every
input, NaN, infinities and the sign of zero included; only `power_to_mul` and `tanh_of_softplus` may differ, in the
last bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fissile.ir.dtype import BFLOAT16, BOOL, FLOAT32, FLOAT64
from fissile.ir.graph import Node, make
from fissile.ir.primitive import IOTA, PRIMITIVES, scalar
from fissile.rewrite.rule import Outcome, Refused, rule
from fissile.rewrite.shape import broadcast, is_constant, uniform


def number(node: Node) -> np.generic | None:
    """The value a constant operand has everywhere; None when it varies, is not known, or is bfloat16."""
    return None if node.dtype is BFLOAT16 else uniform(node)


def _is_one(c: np.generic) -> bool:
    return bool(c == 1)


def _is_zero(c: np.generic) -> bool:
    return bool(c == 0) and not np.signbit(float(c))


def _is_all_ones(c: np.generic) -> bool:
    return bool(np.invert(c) == 0)


_NEUTRAL: dict[str, Callable[[np.generic], bool]] = {
    "mul": _is_one,
    "div": _is_one,
    "pow": _is_one,
    "sub": _is_zero,
    "and": _is_all_ones,
    "or": _is_zero,
    "xor": _is_zero,
    "shift_left": _is_zero,
    "shift_right": _is_zero,
}


@rule("x * 1, x / 1, x ** 1, x - 0, x & ~0, x | 0, x ^ 0, x << 0 -> x", *_NEUTRAL)
def drop_neutral(node: Node) -> Outcome:
    """The second operand changes nothing."""
    c = number(node.inputs[1])
    if c is None or not _NEUTRAL[node.name](c):
        return Refused("the second operand is not the neutral element")
    return node.inputs[0]


_NO_NEGATIVE_ZERO = ("exp", "sigmoid", "abs")


@rule("x + 0 -> x, x not -0", "add")
def drop_add_zero(node: Node) -> Outcome:
    """-0 + 0 is 0, so the sign of zero has to be known; adding -0 is always nothing."""
    x, zero = node.inputs
    c = number(zero)
    if c is None or c != 0:
        return Refused("the second operand is not zero")
    is_safe = x.dtype.is_integer or x.name in _NO_NEGATIVE_ZERO or np.signbit(float(c))
    return x if is_safe else Refused("x may be -0")


@rule("x / c -> x * (1 / c), c a power of two", "div")
def div_to_mul(node: Node) -> Outcome:
    """Exact, because 1/c is."""
    x, divisor = node.inputs
    c = number(divisor)
    if c is None or not x.dtype.is_float:
        return Refused("the divisor is no constant float")
    info = np.finfo(x.dtype.numpy)
    value = float(c)
    if math.frexp(abs(value))[0] != 0.5 or not info.tiny <= abs(1 / value) <= info.max:
        return Refused(f"{value} is no power of two with a normal reciprocal")
    factor = broadcast(scalar(1 / value, x.dtype), node.shape)
    return make(PRIMITIVES["mul"], x, factor)


@rule("x ** 2, x ** 3, x ** -1 -> x * x, x * x * x, 1 / x", "pow")
def power_to_mul(node: Node) -> Outcome:
    """Products are right in more digits than a library's power, and much faster."""
    x = node.inputs[0]
    c = number(node.inputs[1])
    if c is None or (c not in (2, 3) and not (c == -1 and x.dtype.is_float)):
        return Refused("the exponent is not 2, 3 or -1")
    if c == -1:
        return make(PRIMITIVES["div"], broadcast(scalar(1, x.dtype), x.shape), x)
    square = make(PRIMITIVES["mul"], x, x)
    return square if c == 2 else make(PRIMITIVES["mul"], square, x)


def _softplus_operand(node: Node) -> Node | None:
    """x where the node is log(1 + exp(x)), also in the form max(x, 0) + log1p(exp(-|x|))."""
    for a, b in (node.inputs, node.inputs[::-1]) if node.name == "add" else ():
        x, zero = a.inputs if a.name == "max" else (None, None)
        if x is not None and zero is not None and number(zero) == 0 and b.name == "log1p":
            minus = b.inputs[0].inputs[0] if b.inputs[0].name == "exp" else b
            is_size = minus.name == "neg" and minus.inputs[0].name == "abs"
            return x if is_size and minus.inputs[0].inputs[0] is x else None
    inner = node.inputs[0] if node.name in ("log", "log1p") else None
    if inner is not None and node.name == "log":
        inner = inner.inputs[0] if inner.name == "add" and number(inner.inputs[1]) == 1 else None
    return inner.inputs[0] if inner is not None and inner.name == "exp" else None


@rule("tanh(log(1 + exp(x))) -> (w w + 2 w) / (w w + 2 w + 2), w = exp(min(x, 20))", "tanh")
def tanh_of_softplus(node: Node) -> Outcome:
    """The factor of Mish with one exponential; beyond 20 it is 1, below it nothing cancels."""
    x = _softplus_operand(node.inputs[0])
    if x is None:
        return Refused("the operand is no softplus")
    if x.dtype not in (FLOAT32, FLOAT64):
        return Refused(f"exp(20) squared is too large for {x.dtype}")

    def like(value: float) -> Node:
        return broadcast(scalar(value, x.dtype), x.shape)

    w = make(PRIMITIVES["exp"], make(PRIMITIVES["min"], x, like(20)))
    t = make(PRIMITIVES["mul"], w, make(PRIMITIVES["add"], w, like(2)))
    return make(PRIMITIVES["div"], t, make(PRIMITIVES["add"], t, like(2)))


@rule("x - c -> x + (-c)", "sub")
def sub_to_add(node: Node) -> Outcome:
    """Exact; biases of both signs then merge."""
    x, c = node.inputs
    if not is_constant(c) or is_constant(x) or c.dtype is BFLOAT16:
        return Refused("the second operand is no constant")
    return make(PRIMITIVES["add"], x, make(PRIMITIVES["neg"], c))


@rule("-(-x), ~~x -> x", "neg", "not")
def drop_double(node: Node) -> Outcome:
    """Twice is nothing."""
    inner = node.inputs[0]
    if inner.primitive is not node.primitive:
        return Refused(f"the operand is no {node.name}")
    return inner.inputs[0]


@rule("min(x, x), max(x, x), x & x, x | x -> x", "min", "max", "and", "or")
def drop_repeated(node: Node) -> Outcome:
    """Nothing is chosen."""
    a, b = node.inputs
    return a if a is b else Refused("the operands differ")


@rule("select(true, a, b) -> a; select(c, a, a) -> a", "select")
def fold_select(node: Node) -> Outcome:
    """The choice is known."""
    condition, a, b = node.inputs
    if a is b:
        return a
    known = uniform(condition)
    if known is None:
        return Refused("the condition is not known")
    return a if bool(known) else b


@rule("select(~c, a, b) -> select(c, b, a)", "select")
def select_not(node: Node) -> Outcome:
    """The other way round."""
    condition, a, b = node.inputs
    if condition.name != "not":
        return Refused("the condition is no negation")
    return make(node.primitive, condition.inputs[0], b, a)


# A comparison of a natural number with a number below this bound (or at it), and what it gives.
_NATURAL: dict[str, tuple[bool, bool]] = {
    "ge": (True, True),
    "gt": (False, True),
    "lt": (True, False),
    "le": (False, False),
}


@rule("iota >= 0, iota > -1 -> true; iota < 0, iota <= -1 -> false", *_NATURAL)
def compare_iota(node: Node) -> Outcome:
    """An index is never negative (masks, and indices that would count from the end)."""
    index, bound = node.inputs
    is_at_zero, result = _NATURAL[node.name]
    c = number(bound)
    if index.primitive is not IOTA:
        return Refused("the first operand is no iota")
    if c is None or not (float(c) < 0 or (is_at_zero and c == 0)):
        return Refused("the bound is not known, or some index lies on either side")
    return broadcast(scalar(result, BOOL), node.shape)
