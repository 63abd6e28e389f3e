"""Truncated division, truth and float detours as extents: exact at every value of the symbols."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fissile.ir.dim import (
    DimLike,
    evaluate,
    less_equal,
    lower_bound,
    max_,
    parse,
    substitute,
    symbol,
    symbols,
    truncated,
)
from fissile.ir.dim_float import LARGEST
from fissile.ir.dim_logic import (
    at_most,
    choice,
    is_one_only_with,
    is_one_only_within,
    joined,
    magnitude,
    quotient,
    remainder,
    repeats,
    same,
    sign,
)
from tests.ir.test_dim import SYMBOLS, VALUES, Pair, expressions

s, t = symbol("s"), symbol("t")


@given(expressions(2), expressions(1), VALUES)
@settings(max_examples=300, deadline=None)
def test_truncation_and_truth(x: Pair, y: Pair, env: dict[str, int]) -> None:
    (a, a_of), (b, b_of) = x, y
    m, n = a_of(env), b_of(env)
    wanted: list[tuple[DimLike, int]] = [
        (magnitude(a), abs(m)),
        (sign(a), (m > 0) - (m < 0)),
        (at_most(a, b), int(m <= n)),
        (same(a, b), int(m == n)),
        (choice(at_most(a, b), a, b), min(m, n)),
    ]
    if n:  # a divisor is assumed not to be zero
        wanted.append((quotient(a, b), int(math.copysign(abs(m) // abs(n), m * n))))
        wanted.append((remainder(a, b), int(math.fmod(m, n))))
    for got, want in wanted:
        assert evaluate(got, env) == want


def test_strides_as_exporters_write_them_are_one_quotient() -> None:
    assert quotient(s - 1, 2) + 1 is parse("max(s - 1, 0)//2 + 1")
    assert quotient(quotient(s - 1, 2), 2) is parse("max(s - 1, 0)//4")
    n = symbol("n", 1)
    assert quotient(n - 1, 2) + 1 is (n + 1) // 2
    assert (at_most(s, -1), same(n, 0), sign(n)) == (0, 0, 1)


@given(expressions(2), expressions(2), VALUES)
@settings(max_examples=300, deadline=None)
def test_broadcasting(x: Pair, y: Pair, env: dict[str, int]) -> None:
    a, b = max_(x[0], 0), max_(y[0], 0)
    m, n = max(x[1](env), 0), max(y[1](env), 0)
    if repeats(a, b):
        assert m in (1, n)
    if is_one_only_within(a, b):
        assert m != 1 or n <= 1
    if is_one_only_with(a, b):
        assert m != 1 or n == 1
    if m == n or 1 in (m, n):
        whole = 0 if 0 in (m, n) else max(m, n)
        assert evaluate(joined(a, b), env) == whole
        assert evaluate(joined(joined(a, b), a), env) == whole


FLOATS = st.floats(-8, 8, width=32) | st.sampled_from([0.0, 0.1, 1.5, 800.0, 1 / 3, -0.5])


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Some steps over two arguments in one float type."""
    kind = draw(st.sampled_from(("f32", "f64")))

    def value(depth: int) -> str:
        if depth == 0 or draw(st.integers(0, 4)) == 0:
            leaf = draw(st.sampled_from(("x0", "x1")) | FLOATS.map(float.hex))
            return f"{leaf} {kind}"
        if draw(st.integers(0, 3)) == 0:
            name = draw(st.sampled_from(("neg", "abs", "floor", "ceil", "rint", "trunc")))
            return f"{value(depth - 1)} {name}"
        name = draw(st.sampled_from(("add", "sub", "mul", "div", "min", "max")))
        return f"{value(depth - 1)} {value(depth - 1)} {name}"

    return value(draw(st.integers(1, 4)))


_PLAIN: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": np.minimum,
    "max": np.maximum, "neg": np.negative, "abs": np.abs, "floor": np.floor, "ceil": np.ceil,
    "rint": np.rint, "trunc": np.trunc,
}  # fmt: skip


def _by_numpy(steps: str, args: tuple[int, ...]) -> int:
    stack: list[Any] = []
    with np.errstate(all="ignore"):
        for word in steps.split():
            if word in ("f32", "f64"):
                stack.append({"f32": np.float32, "f64": np.float64}[word](stack.pop()))
            elif word in _PLAIN:
                count = _PLAIN[word].nin
                operands = stack[-count:]
                del stack[-count:]
                stack.append(_PLAIN[word](*operands))
            else:
                stack.append(args[int(word[1:])] if word[0] == "x" else float.fromhex(word))
    value = float(stack[0])
    return 0 if math.isnan(value) else int(min(max(value, -LARGEST), LARGEST))


@given(programs(), VALUES)
@settings(max_examples=300, deadline=None)
def test_floats_are_computed_as_written(steps: str, env: dict[str, int]) -> None:
    a, b = SYMBOLS["a"], SYMBOLS["b"]
    found = truncated(steps, a - 2 * b, b)
    values = (env["a"] - 2 * env["b"], env["b"])
    assert evaluate(found, env) == _by_numpy(steps, values)
    assert evaluate(substitute(found, {"a": 3 * b}), env) == _by_numpy(steps, (env["b"], env["b"]))
    lowers = {s.name: s.lower for s in symbols(found)}
    assert parse(str(found), lowers) is found
    natural = truncated(steps, a, b)
    low = lower_bound(natural)
    assert low is None or low <= evaluate(natural, env)


def test_bounds_of_floats() -> None:
    steps = "x0 f32 0x1.9p+9 f32 x0 f32 x1 f32 min div mul floor"
    assert less_equal(0, truncated(steps, s, t)) is True
    assert evaluate(truncated(steps, s, t), {"s": 480, "t": 640}) == 800
    assert evaluate(truncated(steps, s, t), {"s": 0, "t": 640}) == 0  # 0 times infinity
    assert lower_bound(truncated("x0 f32 0x1p+0 f32 sub", s)) is None
    for steps in ("x0 f32 -0x0.0p+0 f32 x0 f32 div div", "x0 f32 x1 f32 neg div"):
        assert lower_bound(truncated(steps, s, t)) is None
    for steps in ("x0 add", "x2", "", "x0 x0", "x0 f32 log"):
        with pytest.raises(ValueError, match=r"computation|fromhex|hexadecimal"):
            truncated(steps, s)
