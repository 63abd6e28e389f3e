"""The interpreter: storage types, what it refuses, and every scalar operator against its row."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fissile.ir.dtype import (
    BFLOAT16,
    BOOL,
    DTYPES,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    DType,
)
from fissile.ir.interpret import footprint, interpret, run_expr
from fissile.ir.loop import (
    Alloc,
    For,
    Function,
    If,
    Kind,
    Let,
    Load,
    Space,
    Store,
    bitcast,
    block,
    buffer,
    cast,
    const,
    index,
    op,
    plus,
    var,
)
from fissile.ir.scalar import SCALAR_OPS, from_bfloat16, to_bfloat16
from fissile.ir.text import parse

MATMUL = parse("""def mm(A: float32[M, K], B: bfloat16[K, N], C: float16[M, N],
                         M: int64, K: int64, N: int64):
    for m in parallel(M):
        for n in range(N):
            acc: register(float32[1])
            acc[0] = 0.0
            for k in range(K):
                acc[0] = fma(A[m, k], B[k, n], acc[0])
            C[m, n] = acc[0]
""")


@pytest.mark.parametrize("shape", [(3, 5, 2), (1, 1, 1), (4, 0, 3), (0, 2, 2)])
def test_matmul_in_three_storage_types(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    draw = np.random.default_rng(m)
    a = draw.integers(-4, 5, (m, k)).astype(np.float32)
    b = to_bfloat16(draw.integers(-4, 5, (k, n)).astype(np.float32))
    c = np.full((m, n), 7, np.float16)
    interpret(MATMUL, {"A": a, "B": b, "C": c, "M": m, "K": k, "N": n}, backwards=True)
    np.testing.assert_array_equal(c, (a @ from_bfloat16(b)).astype(np.float16))


@given(arrays.arrays(np.float32, 9, elements=st.floats(width=32)))
def test_bfloat16_rounds_as_ml_dtypes(values: np.ndarray[Any, Any]) -> None:
    expected = values.astype(ml_dtypes.bfloat16)
    found = to_bfloat16(values)
    same = found == expected.view(np.uint16)
    assert np.all(same | np.isnan(values))
    assert np.all(np.isnan(from_bfloat16(found)) == np.isnan(values))


def _draw(kind: DType, n: int) -> np.ndarray[Any, Any]:
    draw = np.random.default_rng(len(kind.name))
    if kind.is_float:
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, -2.5]
        return np.concatenate([special, draw.standard_normal(n - 7) * 3]).astype(kind.numpy)
    if kind is BOOL:
        return draw.integers(0, 2, n).astype(bool)
    limits = np.iinfo(kind.numpy)
    special = [0, 1, limits.max, limits.min, 7]
    numbers = [*map(int, special), *map(int, draw.integers(0, 100, n - 5))]
    return np.array(numbers, kind.numpy)


_CASES = [
    (name, d)
    for name, row in SCALAR_OPS.items()
    for d in DTYPES
    if d.kind in row.kinds and d.compute is d
]


@pytest.mark.parametrize(("name", "kind"), _CASES, ids=[f"{n}-{d.name}" for n, d in _CASES])
def test_every_operator_means_its_row(name: str, kind: DType) -> None:
    row, n = SCALAR_OPS[name], 24
    types = [kind] * row.arity
    if name == "select":
        types[0] = BOOL
    ins = [np.roll(_draw(d, n), 5 * at) for at, d in enumerate(types)]
    if name.startswith("shift"):
        ins[1] = np.abs(ins[1] % 70).astype(kind.numpy)
    buffers = [buffer(f"x{at}", d, (n,)) for at, d in enumerate(types)]
    out = buffer("out", row.result(tuple(types)), (n,))
    i = var("i")
    value = op(name, *(Load(b, (i,)) for b in buffers))
    f = Function("f", (*buffers, out), For(i, const(n), Store(out, (i,), value)))
    found = np.zeros(n, out.dtype.numpy)
    interpret(f, {b.name: x for b, x in zip(buffers, ins)} | {"out": found})
    with np.errstate(all="ignore"):
        expected = np.asarray(row.meaning(*ins)).astype(out.dtype.numpy)
    if kind.is_float:
        np.testing.assert_allclose(found, expected, rtol=4e-7 if kind is FLOAT32 else 1e-14)
    else:
        np.testing.assert_array_equal(found, expected)


def test_casts() -> None:
    x = const(-2.75, FLOAT32)
    assert run_expr(cast(x, INT64), {}) == -2
    assert run_expr(cast(x, BOOL), {}) is True
    assert run_expr(cast(const(300), INT32), {}) == 300
    assert run_expr(cast(const(True, BOOL), FLOAT64), {}) == 1.0
    assert run_expr(bitcast(const(1.0, FLOAT32)), {}) == 0x3F800000
    assert run_expr(bitcast(const(0x3F800000, INT32)), {}) == 1.0


def test_int64_wraps() -> None:
    big = const((1 << 63) - 1)
    assert run_expr(op("add", big, const(1)), {}) == -(1 << 63)
    assert run_expr(op("mul", big, const(2)), {}) == -2
    assert run_expr(op("floordiv", const(-(1 << 63)), const(-1)), {}) == -(1 << 63)
    assert run_expr(op("floordiv", const(-7), const(2)), {}) == -4
    assert run_expr(op("mod", const(-7), const(0)), {}) == 0


def test_access_outside_is_named() -> None:
    a = buffer("left", FLOAT32, (2, 3))
    f = Function("f", (a, var("i")), Store(a, (const(1), var("i")), const(1.0, FLOAT32)))
    with pytest.raises(IndexError, match=r"left\[1, 3\] is outside \[2, 3\]"):
        interpret(f, {"left": np.zeros(6, np.float32), "i": 3})
    with pytest.raises(IndexError, match=r"left\[1, 2\] is element 5 of an array of 4"):
        interpret(f, {"left": np.zeros(4, np.float32), "i": 2})


def test_read_before_write_is_named() -> None:
    t, out = buffer("t", FLOAT16, (2,), Space.SCRATCH), buffer("out", FLOAT16, ())
    body = block(Store(t, (const(0),), const(1.0, FLOAT32)), Store(out, (), Load(t, (const(1),))))
    with pytest.raises(ValueError, match="t element 1 is read before"):
        interpret(Function("f", (out,), Alloc(t, body)), {"out": np.zeros(1, np.float16)})


def test_select_evaluates_one_side_only() -> None:
    a, n = buffer("a", FLOAT32, (4,)), var("n")
    inside = op("lt", n, const(4))
    value = op("select", inside, Load(a, (n,)), const(-1.0, FLOAT32))
    f = Function("f", (a, n), Store(a, (const(0),), value))
    data = np.arange(4, dtype=np.float32)
    interpret(f, {"a": data, "n": 9})
    assert data[0] == -1.0


def test_let_if_and_shared_expressions() -> None:
    a, i, x = buffer("a", INT64, (5,)), var("i"), var("x")
    square = op("mul", x, x)
    body = Let(
        x,
        plus(i, Load(a, (i,))),
        If(op("gt", square, const(4)), Store(a, (i,), plus(square, square)), Store(a, (i,), x)),
    )
    data = np.array([0, 1, -1, 5, -5], np.int64)
    interpret(Function("f", (a,), For(i, const(5), body, Kind.UNROLLED)), {"a": data})
    assert data.tolist() == [0, 2, 1, 128, -1]


def test_arguments_are_checked() -> None:
    a = buffer("a", FLOAT32, (2,))
    f = Function("f", (a,), Store(a, (const(0),), const(0.0, FLOAT32)))
    with pytest.raises(ValueError, match="needs an argument a"):
        interpret(f, {})
    with pytest.raises(ValueError, match="stores float32"):
        interpret(f, {"a": np.zeros(2)})
    with pytest.raises(ValueError, match="contiguous"):
        interpret(f, {"a": np.zeros((4, 4), np.float32)[:, :2]})
    with pytest.raises(ValueError, match="needs an array"):
        interpret(f, {"a": 3})


def test_scopes_are_checked() -> None:
    a, i = buffer("a", FLOAT32, (2,)), var("i")
    store = Store(a, (i,), const(0.0, FLOAT32))
    data = {"a": np.zeros(2, np.float32)}
    with pytest.raises(ValueError, match="i is not bound"):
        interpret(Function("f", (a,), store), data)
    with pytest.raises(ValueError, match="i is bound twice"):
        interpret(Function("f", (a,), For(i, const(2), For(i, const(2), store))), data)
    with pytest.raises(ValueError, match="not in scope"):
        interpret(Function("f", (), For(i, const(2), store)), {})


def test_footprint_counts_from_first_to_last() -> None:
    n = var("n")
    b = buffer("b", BFLOAT16, (3, n), strides=(10, 2))
    assert footprint(b, {n: 4}) == 27
    assert footprint(b, {n: 0}) == 0
    assert footprint(buffer("s", FLOAT32, ()), {}) == 1
    assert index(3) is const(3)
