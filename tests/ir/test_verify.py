"""Each rule of well-formed loop programs, broken once."""

from __future__ import annotations

import pytest

from fissile.errors import CompileError
from fissile.ir.dtype import BOOL, FLOAT32, FLOAT64, INT32
from fissile.ir.loop import (
    Alloc,
    For,
    Function,
    If,
    Kind,
    Let,
    Load,
    Op,
    Space,
    Stmt,
    Store,
    block,
    buffer,
    const,
    op,
    plus,
    var,
)
from fissile.ir.text import parse
from fissile.ir.verify import problems, unproved_accesses, verify

n, i, j = var("n"), var("i"), var("j")
A = buffer("A", FLOAT32, (n,))
R = buffer("R", FLOAT32, (4,), Space.REGISTER)
ONE = const(1.0, FLOAT32)
PUT = Store(A, (i,), ONE)


def _loop(body: Stmt, kind: Kind = Kind.SERIAL) -> Stmt:
    return For(i, n, body, kind)


CASES: list[tuple[str, Stmt]] = [
    ("i is not bound", PUT),
    ("i is bound twice", _loop(_loop(PUT))),
    ("n is bound twice", For(n, const(3), Store(A, (n,), ONE))),
    ("no such buffer is in scope", Store(R, (const(0),), ONE)),
    ("2 indices for 1 extents", _loop(Store(A, (i, i), ONE))),
    ("A takes float32, not float64", _loop(Store(A, (i,), const(1.0, FLOAT64)))),
    ("index i32 is int32", For(i, n, Store(A, (var("i32", INT32),), ONE))),
    ("parallel loop i is not the outermost", For(j, n, _loop(PUT, Kind.PARALLEL))),
    ("parallel loop i is not", block(_loop(PUT), _loop(PUT, Kind.PARALLEL))),
    ("parallel loop i is not", Alloc(R, _loop(PUT, Kind.PARALLEL))),
    (
        "vectorized loop j is inside",
        _loop(For(j, const(4), PUT, Kind.VECTORIZED), Kind.VECTORIZED),
    ),
    (
        "register buffer r has no constant",
        Alloc(buffer("r", FLOAT32, (n,), Space.REGISTER), _loop(PUT)),
    ),
    ("p is allocated, but is a parameter", Alloc(buffer("p", FLOAT32, (3,)), _loop(PUT))),
    ("R is bound twice", Alloc(R, Alloc(R, _loop(PUT)))),
    ("'a.b' is no identifier", Let(var("a.b"), n, _loop(PUT))),
    ("is int64, not bool", If(n, _loop(PUT))),
    ("x is bool but stands for int64", Let(var("x", BOOL), n, _loop(PUT))),
    ("n + i is outside n", _loop(Store(A, (plus(n, i),), ONE))),
    ("i + -1 - n is outside", _loop(Store(A, (op("sub", plus(i, -1), n),), ONE))),
    ("exp of int64 is not", _loop(Store(A, (i,), Op("exp", (n,), FLOAT32)))),
    ("frobnicate is no scalar operator", _loop(Store(A, (i,), Op("frobnicate", (n,), FLOAT32)))),
    ("loop b counts in int32", For(var("b", INT32), n, _loop(PUT))),
    ("the extent of j is float32", For(j, ONE, _loop(PUT))),
]


@pytest.mark.parametrize(("rule", "body"), CASES, ids=[rule for rule, _ in CASES])
def test_broken_rule(rule: str, body: Stmt) -> None:
    f = Function("f", (A, n), body)
    assert any(rule in text for text in problems(f)), problems(f)
    with pytest.raises(CompileError, match="F421"):
        verify(f)


def test_parameters() -> None:
    f = Function("f", (A, n, var("x", FLOAT32), R, n), _loop(PUT))
    found = problems(f)
    assert "parameter n is there twice" in found
    assert "parameter x is float32, not int64" in found
    assert "parameter R is a register buffer" in found


def test_accesses_inside_are_proved() -> None:
    f = parse("""def f(A: float32[N, 4], B: float32[N], N: int64):
    for i in parallel((N + 7) // 8):
        for j in range(8):
            if i * 8 + j < N:
                B[i * 8 + j] = A[i * 8 + j, j % 4] if j < 6 else 0.0
""")
    verify(f)
    assert unproved_accesses(f) == []


def test_accesses_that_may_be_outside_are_listed() -> None:
    f = parse("""def f(A: float32[N], B: float32[N], N: int64):
    for i in range(N):
        B[i] = A[i + 1] if i > 0 else A[i]
        A[i] = A[i - 1] if i > 0 else A[0]
""")
    verify(f)
    assert unproved_accesses(f) == ["A[i + 1]"]
    assert Load(A, (i,)).dtype is FLOAT32
