"""Simplification: the same value for every drawn expression, and the rules that must fire."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fissile.ir.dtype import FLOAT32
from fissile.ir.interpret import interpret, run_expr
from fissile.ir.loop import Const, Expr, Var, ceildiv, const, index, minus, op, plus, times, var
from fissile.ir.polynomial import Facts, terms_of
from fissile.ir.simplify import affine, proves, simplify, simplify_function
from fissile.ir.text import parse, show
from fissile.ir.verify import problems

i, j, k, N, T = (var(name) for name in "ijkNT")


def _read(text: str) -> Expr:
    f = parse(
        f"def f(z: int64[()], {', '.join(f'{v}: int64' for v in 'NTKijk')}):\n  z[()] = {text}"
    )
    return f.body.value  # type: ignore[union-attr]


RULES = [
    ("(i * 4 + j) // 4", {"i": "7", "j": "4"}, "i"),
    ("(i * 4 + j) % 4", {"i": "7", "j": "4"}, "j"),
    ("(i * T + j) // T", {"i": "N", "j": "T"}, "i"),
    ("(i * T + j) % T", {"i": "N", "j": "T"}, "j"),
    ("j // N", {"j": "N"}, "0"),
    ("j % N", {"j": "N"}, "j"),
    ("i // 8 * 8 + i % 8", {"i": "N"}, "i"),
    ("(i * 12 + j) // 4", {"i": "N", "j": "12"}, "i * 3 + j // 4"),
    ("(i + 1) * 6 // (N * 4)", {"i": "N"}, "(i * 3 + 3) // (N * 2)"),
    ("i // 3 // 5", {"i": "N"}, "i // 15"),
    ("(i + j) * 2 - i - i", {"i": "N", "j": "N"}, "j * 2"),
    ("min(8, N - i * 8)", {"i": "N // 8"}, "8"),
    ("max(i, 0)", {"i": "N"}, "i"),
    ("min(i + 3, i + 5)", {}, "i + 3"),
    ("neg(neg(i))", {}, "i"),
    ("i if 3 < 5 else j", {}, "i"),
    ("(N + T) // (N - N)", {}, "(N + T) // 0"),
]


@pytest.mark.parametrize(("before", "ranges", "after"), RULES, ids=[r[0] for r in RULES])
def test_rule(before: str, ranges: dict[str, str], after: str) -> None:
    bounds = {var(v): _read(e) for v, e in ranges.items()}
    assert show(simplify(_read(before), bounds)) == after


def test_conditions_are_decided_by_ranges() -> None:
    facts = Facts().inside(i, ceildiv(N, 8))
    assert proves(op("lt", times(i, 8), N), facts) is True
    assert proves(op("lt", plus(times(i, 8), 7), N), facts) is None
    assert proves(op("ge", i, N), facts) is False
    inside = facts.inside(j, op("min", const(8), minus(N, times(i, 8))))
    assert proves(op("lt", plus(times(i, 8), j), N), inside) is True
    guarded = facts.inside(j, const(8)).given(op("lt", plus(times(i, 8), j), N))
    assert proves(op("le", plus(times(i, 8), plus(j, 1)), N), guarded) is True
    assert proves(op("eq", j, const(9)), inside) is False
    assert proves(op("ne", j, j), facts) is False


_RANGES: dict[Var, Expr] = {i: N, j: const(4), k: minus(plus(i, T), 1)}
_SMALL = st.integers(-5, 9).map(const)
_DRAWN: st.SearchStrategy[Expr] = st.recursive(
    st.one_of(st.sampled_from([i, j, k, N, T]), _SMALL),
    lambda inner: st.one_of(
        st.builds(op, st.sampled_from(["add", "sub", "mul", "min", "max"]), inner, inner),
        st.builds(
            op,
            st.sampled_from(["floordiv", "mod"]),
            inner,
            st.sampled_from([const(2), const(3), const(4), N, T]),
        ),
        st.builds(op, st.just("floordiv"), inner, inner),
        st.builds(
            lambda name, a, b, x, y: op("select", op(name, a, b), x, y),
            st.sampled_from(["lt", "le", "eq", "ne", "gt", "ge"]),
            *[inner] * 4,
        ),
    ),
    max_leaves=9,
)


@settings(max_examples=150, deadline=None)
@given(_DRAWN)
def test_the_value_stays(e: Expr) -> None:
    small = simplify(e, _RANGES)
    again = simplify(small, _RANGES)
    for n, t in itertools.product((1, 2, 3, 5), (1, 2, 4)):
        for a, b in itertools.product({0, n // 2, n - 1}, (0, 3)):
            for c in {0, a + t - 2}:
                if 0 <= c < a + t - 1:
                    values = {N: n, T: t, i: a, j: b, k: c}
                    expected = run_expr(e, values)
                    assert run_expr(small, values) == expected, (show(e), show(small), values)
                    assert run_expr(again, values) == expected


def test_floats_fold_only_where_exact() -> None:
    x = var("x", FLOAT32)
    zero, one = const(0.0, FLOAT32), const(1.0, FLOAT32)
    assert simplify(op("mul", x, one)) is x
    assert simplify(op("div", x, one)) is x
    assert simplify(op("div", one, x)) is op("div", one, x)
    assert simplify(op("add", x, zero)) is op("add", x, zero)
    assert simplify(op("add", x, const(-0.0, FLOAT32))) is x
    assert simplify(op("sub", x, zero)) is x
    assert simplify(op("mul", x, zero)) is op("mul", x, zero)
    assert simplify(op("exp", zero)) is op("exp", zero)
    assert simplify(op("add", one, one)) is const(2.0, FLOAT32)
    assert simplify(op("not", op("lt", x, one))) is op("not", op("lt", x, one))
    assert simplify(op("not", op("lt", i, j))) is op("ge", i, j)


def test_affine() -> None:
    rest, found = affine(plus(times(plus(i, 3), N), times(j, 4)), [i, j]) or (None, {})
    assert rest is times(N, 3)
    assert found == {i: N, j: const(4)}
    assert affine(times(i, j), [i, j]) is None
    assert affine(op("floordiv", i, const(2)), [i]) is None
    assert affine(op("floordiv", N, const(2)), [i]) == (op("floordiv", N, const(2)), {})


def test_canonical_sums_are_one_object() -> None:
    assert simplify(plus(times(plus(i, j), 2), 1)) is simplify(
        plus(plus(times(j, 2), 1), times(2, i))
    )
    assert terms_of(minus(i, i)) == {}
    assert isinstance(simplify(minus(plus(i, 2), i)), Const)


def test_function() -> None:
    f = parse("""def g(A: float32[N], B: float32[N], N: int64):
    for p in parallel(1):
        for j in range((N + 7) // 8):
            for k in range(1):
                for l in range(8):
                    if j * 8 + l + k < N:
                        at: int64 = l + j * 8
                        if j < N:
                            B[at] = A[at] * 1.0 if l >= 0 else 0.0
                        if l > 8:
                            B[0] = 0.0
        for q in range(N - N):
            B[q] = 0.0
""")
    small = simplify_function(f)
    assert (
        show(small)
        == """def g(A: float32[N], B: float32[N], N: int64):
    for p in parallel(1):
        for j in range((N + 7) // 8):
            for l in range(8):
                if j * 8 + l < N:
                    at: int64 = j * 8 + l
                    B[at] = A[at]"""
    )
    assert problems(small) == []
    a = np.arange(13, dtype=np.float32)
    outs = [np.zeros(13, np.float32) for _ in range(2)]
    for program, out in zip((f, small), outs):
        interpret(program, {"A": a, "B": out, "N": 13})
        np.testing.assert_array_equal(out, a)
    assert index(3) is const(3)
