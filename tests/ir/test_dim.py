"""Dims: every operation agrees with integer arithmetic, verdicts never lie, equal forms are one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fissile.ir.dim import (
    Dim,
    DimLike,
    FloorDiv,
    Max,
    Min,
    Mod,
    Symbol,
    ceildiv,
    divides,
    equal,
    evaluate,
    exact_div,
    less_equal,
    lower_bound,
    max_,
    min_,
    parse,
    product,
    solve,
    substitute,
    symbol,
    symbols,
    terms,
    upper_bound,
)

LOWERS = {"a": 0, "b": 1, "c": 3}
SYMBOLS = {name: symbol(name, lower) for name, lower in LOWERS.items()}
h, w = symbol("h"), symbol("w")

Reference = Callable[[dict[str, int]], int]
Pair = tuple[DimLike, Reference]

INTS = st.integers(-9, 13)
DIVISORS = st.integers(1, 8) | st.integers(-4, -1)
VALUES = st.fixed_dictionaries(
    {name: st.integers(lower, lower + 20) for name, lower in LOWERS.items()}
)


def _leaf(value: str | int) -> Pair:
    if isinstance(value, str):
        return SYMBOLS[value], lambda env: env[value]
    return value, lambda env: value


def _combine(draw: st.DrawFn, x: Pair, y: Pair) -> Pair:
    (p, f), (q, g) = x, y
    divisor = draw(DIVISORS)
    found: list[Pair] = [
        (p + q, lambda env: f(env) + g(env)),
        (p - q, lambda env: f(env) - g(env)),
        (p * q, lambda env: f(env) * g(env)),
        (p // divisor, lambda env: f(env) // divisor),
        (p % divisor, lambda env: f(env) % divisor),
        (ceildiv(p, divisor), lambda env: -(-f(env) // divisor)),
        (min_(p, q), lambda env: min(f(env), g(env))),
        (max_(p, q), lambda env: max(f(env), g(env))),
    ]
    return draw(st.sampled_from(found))


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> Pair:
    """A dimension and the same expression over plain integers."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        return _leaf(draw(st.sampled_from("abc") | INTS))
    inner = expressions(depth - 1)
    return _combine(draw, draw(inner), draw(inner))


@given(expressions(), VALUES)
@settings(max_examples=300, deadline=None)
def test_operations_agree_with_integers(pair: Pair, env: dict[str, int]) -> None:
    dim, reference = pair
    assert evaluate(dim, env) == reference(env)


@given(expressions(), VALUES)
@settings(max_examples=200, deadline=None)
def test_bounds_hold(pair: Pair, env: dict[str, int]) -> None:
    dim, reference = pair
    low, high = lower_bound(dim), upper_bound(dim)
    assert low is None or low <= reference(env)
    assert high is None or reference(env) <= high


@given(expressions(2), expressions(2), VALUES)
@settings(max_examples=300, deadline=None)
def test_verdicts_never_lie(x: Pair, y: Pair, env: dict[str, int]) -> None:
    (p, f), (q, g) = x, y
    assert equal(p, q) in (None, f(env) == g(env))
    assert less_equal(p, q) in (None, f(env) <= g(env))
    assert divides(4, p) in (None, f(env) % 4 == 0)
    assert equal(p, p + 0) is True
    assert less_equal(min_(p, q), p) is True


@given(expressions())
@settings(max_examples=200, deadline=None)
def test_text_round_trip(pair: Pair) -> None:
    dim = pair[0]
    again = parse(str(dim), LOWERS)
    assert again is dim if isinstance(dim, Dim) else again == dim


@given(expressions(2), expressions(2), VALUES)
@settings(max_examples=200, deadline=None)
def test_substitution_commutes_with_evaluation(x: Pair, y: Pair, env: dict[str, int]) -> None:
    dim, f = x
    value = max_(y[0], 0)
    replaced = substitute(dim, {"a": value})
    assert evaluate(replaced, env) == f({**env, "a": evaluate(value, env)})
    assert substitute(dim, env) == evaluate(dim, env)


@st.composite
def sums(draw: st.DrawFn) -> DimLike:
    """A linear combination of two symbols and one compound atom."""
    a, b = SYMBOLS["a"], SYMBOLS["b"]
    atom = draw(st.sampled_from([0, a * b, min_(a, b), max_(a, 2 * b)]))
    scales = [draw(INTS) for _ in range(4)]
    return scales[0] * a + scales[1] * b + scales[2] * atom + scales[3]


@given(sums(), sums(), st.integers(1, 6), st.integers(1, 6))
@settings(max_examples=150, deadline=None)
def test_identities_are_proved(p: DimLike, q: DimLike, c: int, d: int) -> None:
    assert p * c // c is p or p * c // c == p
    assert equal((p * c + q) // c, p + q // c) is True
    assert equal((p * c + q) % c, q % c) is True
    assert equal(p // c * c + p % c, p) is True
    assert equal(p // c // d, p // (c * d)) is True
    assert equal(-(-p // c), ceildiv(p, c)) is True
    assert equal((p + c - 1) // c, ceildiv(p, c)) is True
    assert less_equal(p // c * c, p) is True
    assert equal(p - q, -(q - p)) is True


@given(expressions(2), expressions(2), VALUES)
@settings(max_examples=200, deadline=None)
def test_division_by_dimensions(x: Pair, y: Pair, env: dict[str, int]) -> None:
    (p, f), (q, g) = x, y
    quotient = exact_div(p * q, q)
    assert quotient is None or isinstance(quotient, Dim) or quotient * g(env) == f(env) * g(env)
    divisor = max_(q, 1)
    value = max(g(env), 1)
    assert evaluate(p // divisor, env) == f(env) // value
    assert evaluate(p % divisor, env) == f(env) % value
    assert evaluate(p // (0 - divisor), env) == f(env) // -value
    low, high = lower_bound(p // divisor), upper_bound(p // divisor)
    assert low is None or low <= f(env) // value
    assert high is None or f(env) // value <= high


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("(h - 1)//2 + 1", "(h + 1)//2"),
        ("((h - 1)//2 + 1 - 1)//2 + 1", "(h + 3)//4"),
        ("h//2//3", "h//6"),
        ("(h + h//2)//2", "(3*h)//4"),
        ("(4*h + 3)//4", "h"),
        ("(4*h + 6)//8", "(h + 1)//2"),
        ("-((-h)//3)", "(h + 2)//3"),
        ("(h % 4)//4", "0"),
        ("(h % 6) % 3", "h % 3"),
        ("(6*h + 4*w + 3) % 4", "2*((h + 1) % 2) + 1"),
        ("h % 2 + 2*(h//2)", "h"),
        ("max((h + 1)//2, 0)", "(h + 1)//2"),
        ("min(h, min(w, h + 1), 7, 9)", "min(h, w, 7)"),
        ("h*w//w", "h"),
        ("(h*h - w*w)//(h + w)", "h - w"),
        ("4*h//(2*w)", "(2*h)//w"),
        ("h//(-2)", "-((h + 1)//2)"),
        ("w*h*2 - 3 + h", "2*h*w + h - 3"),
        ("`batch size`*`min`", "`batch size`*`min`"),
        ("p2o.DynamicDimension.0 + 1", "p2o.DynamicDimension.0 + 1"),
    ],
)
def test_canonical_form(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical


@pytest.mark.parametrize(
    ("left", "right", "verdict"),
    [
        ("h - h//2", "(h + 1)//2", True),
        ("(2*h + 2*w)//3 - w", "(2*h - w)//3", True),
        ("-min(-h, -w)", "max(h, w)", True),
        ("min(h + 1, w + 1)", "min(h, w) + 1", True),
        ("(h + 1)*(h - 1)", "h*h - 1", True),
        ("2*h", "2*w + 1", False),
        ("h + 1", "h", False),
        ("h", "-w - 1", False),
        ("h", "w", None),
    ],
)
def test_equal(left: str, right: str, verdict: bool | None) -> None:
    assert equal(parse(left), parse(right)) is verdict


@pytest.mark.parametrize(
    ("left", "right", "verdict"),
    [
        ("(h + 1)//2", "h", True),
        ("h//3 + h//2", "h", True),
        ("min(h, 4)", "h", True),
        ("min(h, w)", "max(h, w)", True),
        ("h % 5", "4", True),
        ("h + 1", "h", False),
        ("h", "w", None),
        ("(h//w)*0", "0", True),
    ],
)
def test_less_equal(left: str, right: str, verdict: bool | None) -> None:
    assert less_equal(parse(left), parse(right)) is verdict


def test_lower_bounds_of_symbols_decide_products() -> None:
    rows, columns = symbol("r", 1), symbol("c", 2)
    assert less_equal(2 * rows, rows * columns) is True
    assert less_equal(rows * columns, rows) is False
    assert max_(rows, 1) is rows


def test_convolution_sizes_computed_in_two_ways_are_one_object() -> None:
    padded = h + 1 + 1
    direct = (padded - 1 * (3 - 1) - 1) // 2 + 1
    same = ceildiv(h, 2)
    assert direct is same
    assert (same + 1) // 2 is (h + 3) // 4


def test_solve() -> None:
    found = solve(4 * h - 3)
    assert found == (Symbol("h"), 4, -3)
    assert solve(h) == (Symbol("h"), 1, 0)
    assert [solve(a) for a in (3, h * h, h + w, h // 2)] == [None] * 4


def test_structure_is_visible() -> None:
    total = 3 * h * ((h + 1) // 2) + w % 4 - 5
    atoms = FloorDiv(h + 1, 2), Mod(w, 4)
    assert set(terms(total)) == {(3, (Symbol("h"), atoms[0])), (1, (atoms[1],)), (-5, ())}
    assert terms(min_(h, w)) == ((1, (Min((h, w)),)),)
    assert terms(max_(h, 4)) == ((1, (Max((h, 4)),)),)
    assert terms(0) == ()
    assert terms(7) == ((7, ()),)
    assert symbols(total * min_(symbol("a"), 2)) == (Symbol("a"), Symbol("h"), Symbol("w"))


def test_constants_are_plain_integers() -> None:
    constants = [h - h, h * 0, (h % 4) // 4, h // h, product([]), product([3, 5]), parse("7//2")]
    assert constants == [0, 0, 0, 1, 1, 15, 3]
    assert all(type(value) is int for value in constants)
    two: Any = np.int64(2)
    mixed: list[Any] = [two + h, h * two, h // two, two - h]
    assert mixed == [h + 2, 2 * h, h // 2, 2 - h]
    assert all(type(scale) is int for value in mixed for scale, _ in terms(value))


def test_dims_are_interned_immutable_and_have_no_truth() -> None:
    assert symbol("h") is h
    assert copy.deepcopy({"d": h + 1})["d"] is h + 1
    assert symbol("h", 1) is not h
    assert h not in (0, 1, w)
    assert h in (0, h)
    with pytest.raises(TypeError, match="truth"):
        bool(h)
    with pytest.raises(AttributeError):
        Symbol("h").name = "w"  # type: ignore[misc]


def test_divides_and_exact_division() -> None:
    assert [divides(2, a) for a in (4 * h + 2, 2 * h + 1, h, 6, 7)] == [
        True, False, None, True, False,
    ]  # fmt: skip
    assert divides(w, h * w) is True
    assert divides(w, h) is None
    assert exact_div(4 * h * w + 8 * w, 4 * w) is h + 2
    assert exact_div(h, 2) is None
    assert exact_div(h, 0) is None
    assert exact_div(0, h) == 0
    assert exact_div(h * h + w, h) is None


def test_bad_input_is_named() -> None:
    for text in ("", "h +", "(h", "h h", "min()", "3 ? 4", "h)", "min"):
        with pytest.raises(ValueError, match="not an expression at character"):
            parse(text)
    with pytest.raises(KeyError, match="w"):
        evaluate(h + w, {"h": 1})
    for text in ("h//0", "h % 0", "3//(h - h)"):
        with pytest.raises(ZeroDivisionError):
            parse(text)
    assert evaluate(h // w, {"h": 1, "w": 0}) == 0 == evaluate(h % w, {"h": 1, "w": 0})
    with pytest.raises(ValueError, match="name"):
        symbol("a`b")
    with pytest.raises(ValueError, match="no dimension"):
        min_()
