"""Text of loop programs: what it looks like, and that reading it gives the program back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fissile.ir.dtype import BOOL, FLOAT32, FLOAT64, INT32, INT64
from fissile.ir.loop import (
    Alloc,
    Block,
    Expr,
    Function,
    If,
    Let,
    Load,
    Space,
    Stmt,
    Store,
    bitcast,
    block,
    buffer,
    cast,
    const,
    op,
    times,
    var,
)
from fissile.ir.text import parse, show

MATMUL = """def mm(A: float32[M, K], B: bfloat16[K, N], C: strided(float16[M, N], ldc, 1), \
M: int64, K: int64, N: int64, ldc: int64):
    for m in parallel(M):
        for n in vectorized(N):
            acc: register(float32[1])
            acc[0] = -0.0
            for k in range(K):
                acc[0] = fma(A[m, k], B[k, n], acc[0])
            C[m, n] = max(acc[0], 0.0) if n < N - 1 else const('inf', float32)"""

n, m = var("n"), var("m")
A = buffer("A", FLOAT32, (n, 3))
Z = buffer("Z", FLOAT64, ())
F = buffer("F", BOOL, (n,))


def test_a_program_reads_like_one() -> None:
    assert show(parse(MATMUL)) == MATMUL


def _binary(names: list[str], inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.builds(op, st.sampled_from(names), inner, inner)


_INTS: st.SearchStrategy[Expr] = st.deferred(
    lambda: st.one_of(
        st.sampled_from([n, m]),
        st.integers(-9, 9).map(const),
        _binary(["add", "sub", "mul", "floordiv", "mod", "min", "rem", "xor", "and"], _INTS),
        _binary(["shift_left", "shift_right", "div", "or"], _INTS),
        st.builds(op, st.just("neg"), _INTS),
        st.builds(op, st.just("select"), _BOOLS, _INTS, _INTS),
        _FLOATS.map(lambda x: cast(x, INT64)),
    )
)
_BOOLS: st.SearchStrategy[Expr] = st.deferred(
    lambda: st.one_of(
        st.booleans().map(lambda b: const(b, BOOL)),
        _INTS.map(lambda i: Load(F, (i,))),
        _binary(["lt", "le", "eq", "ne", "ge", "gt"], _INTS),
        _binary(["and", "or", "xor", "eq"], _BOOLS),
        st.builds(op, st.just("not"), _BOOLS),
    )
)
_FLOATS: st.SearchStrategy[Expr] = st.deferred(
    lambda: st.one_of(
        st.floats(width=32, allow_nan=True).map(lambda x: const(x, FLOAT32)),
        st.builds(lambda i, j: Load(A, (i, j)), _INTS, _INTS),
        _binary(["add", "sub", "mul", "div", "pow"], _FLOATS),
        st.builds(op, st.just("exp"), _FLOATS),
        st.builds(op, st.just("select"), _BOOLS, _FLOATS, _FLOATS),
        st.floats().map(lambda x: cast(const(x, FLOAT64), FLOAT32)),
        _FLOATS.map(lambda x: bitcast(cast(bitcast(x), INT32))),
    )
)


@given(_INTS, _BOOLS, _FLOATS)
def test_reading_gives_the_program_back(i: Expr, condition: Expr, x: Expr) -> None:
    t, y = buffer("t", FLOAT32, (3,), Space.SCRATCH), var("y", FLOAT32)
    store = Store(t, (const(1),), y)
    body = block(
        Let(y, x, Alloc(t, store)),
        If(condition, Store(A, (i, const(0)), x), Block(())),
        Alloc(t, Let(y, x, store)),
        If(condition, Store(Z, (), cast(x, FLOAT64))),
    )
    f = Function("f", (A, Z, F, n, m), body)
    assert parse(show(f)) == f


def test_wrong_text_is_refused() -> None:
    with pytest.raises(ValueError, match="no def"):
        parse("x = 3")
    with pytest.raises(ValueError, match="not the text"):
        parse("def f(:")
    with pytest.raises(ValueError, match="line 2"):
        parse("def f(n: int64):\n    while n: pass")
    with pytest.raises(ValueError, match="line 2"):
        parse("def f(a: float32[3]):\n    a[i] = 1.0")


def test_parentheses_are_as_few_as_possible() -> None:
    assert show(op("sub", n, op("sub", m, times(n, m)))) == "n - (m - n * m)"
    assert show(op("sub", op("sub", n, m), times(n, m))) == "n - m - n * m"


def test_depth_is_no_limit() -> None:
    """Kernels of long chains: expressions and scopes nested thousands deep."""
    x = var("x", FLOAT32)
    value: Expr = x
    for _ in range(5000):
        value = op("sin", value)
    assert show(value) == "sin(" * 5000 + "x" + ")" * 5000
    body: Stmt = Store(buffer("y", FLOAT32, ()), (), x)
    for k in range(5000):
        body = Let(var(f"t{k}", FLOAT32), x, body)
    lines = show(body).splitlines()
    assert len(lines) == 5001
    assert lines[0] == "t4999: float32 = x"
