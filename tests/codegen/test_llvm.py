"""Emission against the interpreter: every operator and type, loops, lanes, masks, buffers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fissile.codegen.llvm import emit_function, emit_module, scratch_bytes, task_count
from fissile.codegen.math import CIRCULAR, UNARY
from fissile.codegen.operators import OPERATORS
from fissile.errors import CompileError
from fissile.ir.dtype import BFLOAT16, BOOL, DTYPES, FLOAT16, FLOAT32, FLOAT64, INT32, INT64, DType
from fissile.ir.interpret import run_expr
from fissile.ir.loop import (
    Alloc,
    Buffer,
    Expr,
    For,
    Function,
    If,
    Kind,
    Let,
    Load,
    Space,
    Stmt,
    Store,
    Var,
    bitcast,
    block,
    buffer,
    cast,
    const,
    minus,
    op,
    plus,
    quotient,
    remainder,
    stored,
    times,
    var,
)
from fissile.ir.scalar import SCALAR_OPS, from_bfloat16
from fissile.target import named
from tests.codegen.harness import assert_same, expected, run, targets

Array = npt.NDArray[Any]
COMPUTE = [d for d in DTYPES if d.compute is d]
FUNCTIONS = frozenset(UNARY) | CIRCULAR
n, i, j, k, r, v = (var(name) for name in "nijkrv")


def data(dtype: DType, count: int, seed: int = 0) -> Array:
    """Drawn values with every awkward one among them."""
    rng = np.random.default_rng(seed)
    if dtype is BOOL:
        return rng.integers(0, 2, count).astype(np.bool_)
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        odd = [0, 1, 2, 3, info.min, info.max, info.max - 1, info.min + 1, 5, 7]
        values = rng.integers(info.min, info.max, count, dtype.numpy, endpoint=True)
        small = rng.integers(0, 12, count).astype(dtype.numpy)
        values = np.where(rng.random(count) < 0.5, values, small)
        at = rng.integers(0, len(odd), count)
        picked = np.array(odd, dtype.numpy)[at]
        return np.where(rng.random(count) < 0.3, picked, values)
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, 2.5, -1.5, 1e-40, 3e38, 1e-310]
    values = rng.standard_normal(count) * np.exp(rng.standard_normal(count) * 3)
    values = np.where(rng.random(count) < 0.4, rng.choice(special, count), values)
    if dtype is BFLOAT16:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(all="ignore"):
        return values.astype(dtype.numpy)


def flat(name: str, dtype: DType, extent: Expr | int = n) -> Buffer:
    return buffer(name, dtype, (extent,))


def over(body: Stmt, kind: Kind = Kind.VECTORIZED, extent: Expr | int = n) -> Stmt:
    return For(i, extent if not isinstance(extent, int) else const(extent), body, kind)


# ---------------------------------------------------------------- operators and types


def test_every_scalar_operator_has_an_emitter() -> None:
    assert set(OPERATORS) == set(SCALAR_OPS)


@pytest.mark.parametrize("dtype", COMPUTE, ids=repr)
@pytest.mark.parametrize("kind", [Kind.VECTORIZED, Kind.SERIAL])
def test_operators_mean_what_the_interpreter_means(dtype: DType, kind: Kind) -> None:
    inputs = [flat(f"in{x}", dtype) for x in range(3)]
    condition = flat("condition", BOOL)
    loads: list[Expr] = [Load(b, (i,)) for b in inputs]
    stores, outputs = [], []
    for name, row in SCALAR_OPS.items():
        if dtype.kind not in row.kinds or name in FUNCTIONS or (name == "pow" and dtype.is_float):
            continue
        taken = [Load(condition, (i,)), *loads[:2]] if name == "select" else loads[: row.arity]
        value = op(name, *taken)
        outputs.append(flat(f"out_{name}", value.dtype))
        stores.append(Store(outputs[-1], (i,), value))
    f = Function("operators", (*inputs, condition, *outputs, n), over(block(*stores), kind))
    count = 117
    args = {b.name: data(dtype, count, x) for x, b in enumerate(inputs)}
    args["condition"] = data(BOOL, count, 9)
    args |= {b.name: np.zeros(count, b.dtype.numpy) for b in outputs}
    assert_same(f, {**args, "n": count})


@pytest.mark.parametrize("source", COMPUTE, ids=repr)
def test_casts(source: DType) -> None:
    given_ = flat("given", source)
    outputs = [flat(f"to_{d.name}", d) for d in COMPUTE if d is not source]
    body = block(*(Store(b, (i,), cast(Load(given_, (i,)), b.dtype)) for b in outputs))
    f = Function("casts", (given_, *outputs, n), over(body))
    values = data(source, 75)
    if source.is_float:  # beyond the range of an integer a cast means nothing in ONNX
        values = np.nan_to_num(values).clip(0, 120)
    args = {"given": values, **{b.name: np.zeros(75, b.dtype.numpy) for b in outputs}}
    assert_same(f, {**args, "n": 75})


@pytest.mark.parametrize("dtype", [d for d in COMPUTE if d.is_integer], ids=repr)
def test_a_float_out_of_range_becomes_some_integer(dtype: DType) -> None:
    given_, out = flat("given", FLOAT32), flat("out", dtype)
    f = Function("wild", (given_, out, n), over(Store(out, (i,), cast(Load(given_, (i,)), dtype))))
    values = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 7.9, -1.5], np.float32)
    results = [
        run(f, t, {"given": values, "out": np.zeros(7, dtype.numpy), "n": 7})["out"]
        for t in targets()
    ]
    assert all((x == results[0]).all() for x in results)
    assert results[0][5] == 7


@pytest.mark.parametrize("source", [FLOAT32, FLOAT64, INT32, INT64], ids=repr)
def test_bitcasts(source: DType) -> None:
    given_ = flat("given", source)
    value = bitcast(Load(given_, (i,)))
    out = flat("out", value.dtype)
    f = Function("bits", (given_, out, n), over(Store(out, (i,), value)))
    bits = np.random.default_rng(3).integers(0, 2**32, 23).astype(f"u{source.bytes}")
    bits = bits.view(source.numpy)
    bits = np.where(bits != bits, np.zeros(1, bits.dtype), bits)
    assert_same(f, {"given": bits, "out": np.zeros(23, out.dtype.numpy), "n": 23})


@pytest.mark.parametrize("half", [FLOAT16, BFLOAT16], ids=repr)
@pytest.mark.parametrize("kind", [Kind.VECTORIZED, Kind.SERIAL])
def test_half_storage_computes_in_float32(half: DType, kind: Kind) -> None:
    a, b, out, wide = flat("a", half), flat("b", half), flat("o", half), flat("w", FLOAT32)
    total = op("add", Load(a, (i,)), op("mul", Load(b, (i,)), const(1.0009765, FLOAT32)))
    body = block(Store(out, (i,), total), Store(wide, (i,), Load(a, (i,))))
    f = Function("half", (a, b, out, wide, n), over(body, kind))
    bits = np.random.default_rng(5).integers(0, 2**16, (2, 300)).astype(np.uint16)
    x, y = (row.view(half.numpy) for row in bits)
    zero = np.zeros(300, half.numpy)
    want = expected(f, {"a": x, "b": y, "o": zero, "w": np.zeros(300, np.float32), "n": 300})
    for target in targets():
        got = run(f, target, {"a": x, "b": y, "o": zero, "w": np.zeros(300, np.float32), "n": 300})
        np.testing.assert_array_equal(got["w"], want["w"])
        if half is FLOAT16:
            np.testing.assert_array_equal(got["o"], want["o"])
        else:  # NaN payloads may differ
            shown, meant = ((z["o"].astype(np.uint32) << 16).view(np.float32) for z in (got, want))
            np.testing.assert_array_equal(shown, meant)


def between_halves(to: DType) -> np.ndarray[Any, Any]:
    """float64 values in and around the middle between neighbours of a half type, and beyond its ends."""
    bits = np.random.default_rng(7).integers(0, 2**16 - 1, 400).astype(np.uint16)
    bits = np.concatenate([bits, np.arange(0, 70, dtype=np.uint16)])
    low, high = (_wide(b.astype(np.uint16), to) for b in (bits, bits + 1))
    with np.errstate(all="ignore"):
        middle = low + (high - low) / 2
        above, below = np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)
        third = (middle * (1 + 2.0**-30), middle * (1 - 2.0**-30))  # where float32 sees the middle
    ends = [65519.999, 65520, 65520.001, 3.3961e38, 3.39e38, 1e39, -1e300, np.inf, np.nan, -0.0, 1e-320]
    return np.concatenate([low, middle, above, below, *third, ends])


def _wide(bits: np.ndarray[Any, Any], of: DType) -> np.ndarray[Any, Any]:
    wide = from_bfloat16(bits) if of is BFLOAT16 else bits.view(np.float16)
    with np.errstate(invalid="ignore"):  # some of the bits are signalling NaNs
        return wide.astype(np.float64)


@pytest.mark.parametrize("to", [FLOAT16, BFLOAT16], ids=repr)
@pytest.mark.parametrize("source", [FLOAT32, FLOAT64], ids=repr)
@pytest.mark.parametrize("kind", [Kind.VECTORIZED, Kind.SERIAL])
def test_a_half_type_is_rounded_to_once_and_to_even(to: DType, source: DType, kind: Kind) -> None:
    given_, inside, memory = flat("given", source), flat("inside", FLOAT32), flat("memory", to)
    value = stored(Load(given_, (i,)), to)
    body = block(Store(inside, (i,), value), Store(memory, (i,), value))
    f = Function("rounding", (given_, inside, memory, n), over(body, kind))
    with np.errstate(all="ignore"):
        x = between_halves(to).astype(source.numpy)
    count = len(x)
    args = {"given": x, "inside": np.zeros(count, np.float32), "memory": np.zeros(count, to.numpy)}
    want = expected(f, {**args, "n": count})
    grid = np.unique(_wide(np.arange(2**16).astype(np.uint16), to))
    grid = grid[np.isfinite(grid)]
    assert_nearest(x, want["inside"], grid)
    for target in targets():
        got = run(f, target, {**args, "n": count})
        np.testing.assert_array_equal(got["inside"], want["inside"])
        np.testing.assert_array_equal(np.signbit(got["inside"]), np.signbit(want["inside"]))
        kept = _wide(got["memory"].view(np.uint16), to)
        np.testing.assert_array_equal(kept, want["inside"])


def assert_nearest(
    x: np.ndarray[Any, Any], found: np.ndarray[Any, Any], grid: np.ndarray[Any, Any]
) -> None:
    """Each value went to the nearest of the grid, of two to the even one; beyond half a step outside to infinity."""
    step = grid[-1] - grid[-2]
    for value, got in zip(x.tolist(), found.tolist(), strict=True):
        if np.isnan(value):
            assert np.isnan(got)
        elif abs(value) >= grid[-1] + step / 2:
            assert got == np.copysign(np.inf, value)
        else:
            at = int(np.searchsorted(grid, value))
            near = grid[max(at - 1, 0) : at + 1]
            gaps = np.abs(near - value)
            best = near[gaps == gaps.min()]
            even = [g for g in best if round(g / _spacing(grid, g)) % 2 == 0]
            assert got == (best[0] if len(best) == 1 else even[0]), value


def _spacing(grid: np.ndarray[Any, Any], at: float) -> float:
    """The last digit of a number of the grid."""
    k = int(np.searchsorted(grid, abs(at)))
    return float(grid[k + 1] - grid[k]) if k + 1 < len(grid) else float(grid[k] - grid[k - 1])


# ---------------------------------------------------------------- loops and lanes


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, BOOL, FLOAT16, INT64], ids=repr)
def test_every_residue_of_an_unknown_extent(dtype: DType) -> None:
    a, out = flat("a", dtype), flat("out", dtype)
    f = Function("residue", (a, out, n), over(Store(out, (i,), Load(a, (i,)))))
    for count in (*range(20), 31, 33, 64, 67):
        x = data(dtype, count)
        assert_same(f, {"a": x, "out": np.zeros(count, dtype.numpy), "n": count})


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 17, 29, 32, 150])
def test_every_residue_of_a_constant_extent(count: int) -> None:
    a, out = flat("a", FLOAT32, count), flat("out", FLOAT32, count)
    acc = buffer("acc", FLOAT32, (3, count), Space.REGISTER)
    fill = For(r, const(3), over(Store(acc, (r, i), Load(a, (i,))), extent=count), Kind.UNROLLED)
    total = op("add", Load(acc, (const(0), i)), Load(acc, (const(2), i)))
    f = Function(
        "constant", (a, out), Alloc(acc, block(fill, over(Store(out, (i,), total), extent=count)))
    )
    x = data(FLOAT32, count)
    assert_same(f, {"a": x, "out": np.zeros(count, np.float32)})


def test_strides_gathers_scatters_and_mirrors() -> None:
    a, out = flat("a", FLOAT32, times(n, 3)), flat("out", FLOAT32, times(n, 2))
    where = flat("where", INT64)
    third = Load(a, (times(i, 3),))
    back = Load(a, (minus(minus(n, 1), i),))
    picked = Load(a, (Load(where, (i,)),))
    folded = Load(a, (plus(remainder(i, 5), quotient(i, 3)),))
    total = op("add", op("add", third, back), op("add", picked, folded))
    f = Function("walk", (a, where, out, n), over(Store(out, (times(i, 2),), total)))
    for count in (5, 8, 13, 16, 37):
        x = data(FLOAT32, 3 * count)
        at = np.random.default_rng(1).integers(0, 3 * count, count)
        out_ = np.full(2 * count, 7, np.float32)
        assert_same(f, {"a": x, "where": at, "out": out_, "n": count})


def test_masked_gather_with_contiguous_store() -> None:
    a, where, out = flat("a", FLOAT32, k), flat("where", INT64), flat("out", FLOAT32)
    f = Function(
        "pick", (a, where, out, n, k), over(Store(out, (i,), Load(a, (Load(where, (i,)),))))
    )
    for count in range(1, 20):
        at = np.random.default_rng(count).integers(0, 6, count)
        args = {"a": data(FLOAT32, 6), "where": at, "out": np.zeros(count, np.float32)}
        assert_same(f, {**args, "n": count, "k": 6})


def test_a_loop_inside_lanes_has_an_accumulator_per_lane() -> None:
    a, b, out = buffer("a", FLOAT32, (k,)), buffer("b", FLOAT32, (k, n)), flat("out", FLOAT32)
    acc = buffer("acc", FLOAT32, (2,), Space.REGISTER)
    first: tuple[Expr, ...] = (const(1),)
    step = op("fma", Load(a, (j,)), Load(b, (j, i)), Load(acc, first))
    body = Alloc(
        acc,
        block(
            Store(acc, first, const(0.5, FLOAT32)),
            For(j, k, Store(acc, first, step)),
            Store(out, (i,), Load(acc, first)),
        ),
    )
    f = Function("columns", (a, b, out, n, k), over(body))
    for count, depth in itertools.product((1, 7, 16, 21), (0, 1, 3)):
        rng = np.random.default_rng(count)
        x = rng.integers(-4, 5, depth).astype(np.float32)
        y = rng.integers(-4, 5, (depth, count)).astype(np.float32)
        args = {"a": x, "b": y, "out": np.zeros(count, np.float32)}
        assert_same(f, {**args, "n": count, "k": depth})


def tile(rows: int, columns: int) -> Function:
    """C[rows, columns] += A panel times B panel, with C's row stride free."""
    depth, stride = var("depth"), var("stride")
    a, b = buffer("a", FLOAT32, (depth, rows)), buffer("b", FLOAT32, (depth, columns))
    c = buffer("c", FLOAT32, (rows, columns), strides=(stride, 1))
    acc = buffer("acc", FLOAT32, (rows, columns), Space.REGISTER)

    def each(body: Stmt) -> Stmt:
        inner = For(v, const(columns), body, Kind.VECTORIZED)
        return For(r, const(rows), inner, Kind.UNROLLED)

    step = op("fma", Load(a, (k, r)), Load(b, (k, v)), Load(acc, (r, v)))
    body = block(
        each(Store(acc, (r, v), Load(c, (r, v)))),
        For(k, depth, each(Store(acc, (r, v), step))),
        each(Store(c, (r, v), Load(acc, (r, v)))),
    )
    return Function("tile", (a, b, c, depth, stride), Alloc(acc, body))


@pytest.mark.parametrize(("rows", "columns"), [(6, 16), (3, 13), (1, 32), (4, 5)])
def test_register_tile(rows: int, columns: int) -> None:
    f = tile(rows, columns)
    rng = np.random.default_rng(0)
    for depth in (0, 1, 5):
        a, b = rng.standard_normal((depth, rows)), rng.standard_normal((depth, columns))
        c = rng.standard_normal(rows * (columns + 3) - 3)
        args = {"a": a, "b": b, "c": c}
        arrays = {name: x.astype(np.float32) for name, x in args.items()}
        assert_same(f, {**arrays, "depth": depth, "stride": columns + 3})


def test_register_tile_stays_in_registers() -> None:
    text = emit_module([tile(6, 16)], named("x86-64-v3"))
    assert text.count("alloca") == 1
    assert "gather" not in text
    assert "masked" not in text


# ---------------------------------------------------------------- conditions


def guarded(kind: Kind) -> Function:
    """out[i] = a[i - 2] where that exists, else the edge's number; and a store under a condition."""
    a, out, kept = flat("a", FLOAT32), flat("out", FLOAT32, plus(n, 5)), flat("kept", FLOAT32)
    at = minus(i, 2)
    inside = op("and", op("ge", at, const(0)), op("lt", at, n))
    value = op("select", inside, Load(a, (at,)), const(-3.0, FLOAT32))
    positive = op("gt", Load(a, (i,)), const(0.25, FLOAT32))
    twice = op("mul", Load(a, (i,)), const(2.0, FLOAT32))
    keep = If(
        op("lt", i, n),
        If(positive, Store(kept, (i,), twice), Store(kept, (i,), const(-1.0, FLOAT32))),
    )
    body = block(Store(out, (i,), value), keep)
    return Function("guarded", (a, out, kept, n), For(i, plus(n, 5), body, kind))


@pytest.mark.parametrize("kind", [Kind.SERIAL, Kind.VECTORIZED])
def test_only_the_chosen_side_reads(kind: Kind) -> None:
    f = guarded(kind)
    for count in (0, 1, 3, 8, 11, 30):
        x = data(FLOAT32, count)
        args = {"a": x, "out": np.zeros(count + 5, np.float32), "kept": np.zeros(count, np.float32)}
        assert_same(f, {**args, "n": count})


def test_select_between_reads_of_every_kind() -> None:
    a, out, where = flat("a", FLOAT32), flat("out", FLOAT32, k), flat("where", INT64, k)
    at = Load(where, (i,))
    ok = op("and", op("ge", at, const(0)), op("lt", at, n))
    gathered = op("select", ok, Load(a, (at,)), const(1.0, FLOAT32))
    uniform = op("select", op("gt", n, const(3)), Load(a, (const(3),)), const(2.0, FLOAT32))
    mixed = op("select", op("lt", i, n), Load(a, (const(0),)), const(4.0, FLOAT32))
    total = op("add", op("add", gathered, uniform), mixed)
    f = Function(
        "mixed", (a, where, out, n, k), For(i, k, Store(out, (i,), total), Kind.VECTORIZED)
    )
    for count, length in ((0, 9), (2, 8), (5, 21)):
        at_ = np.random.default_rng(2).integers(-3, count + 3, length)
        args = {"a": data(FLOAT32, count), "where": at_, "out": np.zeros(length, np.float32)}
        assert_same(f, {**args, "n": count, "k": length})


def test_register_elements_are_kept_where_a_condition_says_no() -> None:
    a, out = flat("a", FLOAT32, 21), flat("out", FLOAT32, 21)
    acc = buffer("acc", FLOAT32, (21,), Space.REGISTER)
    update = If(op("gt", Load(a, (i,)), const(0.0, FLOAT32)), Store(acc, (i,), const(9.0, FLOAT32)))
    inner = For(j, const(5), Store(acc, (plus(j, 4),), const(8.0, FLOAT32)), Kind.VECTORIZED)
    body = block(
        over(Store(acc, (i,), Load(a, (i,))), extent=21),
        over(update, extent=21),
        inner,
        over(Store(out, (i,), Load(acc, (i,))), extent=21),
    )
    f = Function("kept", (a, out), Alloc(acc, body))
    assert_same(f, {"a": data(FLOAT32, 21), "out": np.zeros(21, np.float32)})


# ---------------------------------------------------------------- kernels


def test_scratch_tasks_and_lets() -> None:
    a, out = buffer("a", FLOAT32, (k, n)), buffer("out", FLOAT32, (k, n))
    width = var("width")
    row = buffer("row", FLOAT32, (width,), Space.SCRATCH)
    other = buffer("other", FLOAT16, (3, 5), Space.SCRATCH)
    total = buffer("total", FLOAT32, (1,), Space.REGISTER)
    zero: tuple[Expr, ...] = (const(0),)
    body = block(
        Store(total, zero, const(0.0, FLOAT32)),
        over(Store(row, (i,), op("abs", Load(a, (r, i)))), Kind.VECTORIZED),
        over(Store(total, zero, op("max", Load(total, zero), Load(row, (i,)))), Kind.SERIAL),
        Alloc(other, Store(other, (const(2), const(4)), const(1.5, FLOAT32))),
        over(Store(out, (r, i), op("add", Load(row, (i,)), Load(total, zero))), Kind.VECTORIZED),
    )
    tasks = For(r, quotient(times(k, 2), 2), Alloc(row, Alloc(total, body)), Kind.PARALLEL)
    f = Function("rows", (a, out, n, k), Let(width, plus(n, 1), tasks))
    assert task_count(f) is quotient(times(k, 2), 2)
    for rows, columns in ((0, 3), (3, 1), (2, 19)):
        x = data(FLOAT32, rows * columns)
        args = {"a": x, "out": np.zeros_like(x)}
        assert_same(f, {**args, "n": columns, "k": rows})
    values: dict[Var, int | float] = {n: 19, k: 2}
    assert run_expr(scratch_bytes(f), values) == 128 + 64


def test_a_vectorized_store_into_one_element_runs_in_order() -> None:
    a, out = flat("a", FLOAT32), flat("out", FLOAT32, 1)
    f = Function("last", (a, out, n), over(Store(out, (const(0),), Load(a, (i,)))))
    assert_same(f, {"a": data(FLOAT32, 11), "out": np.zeros(1, np.float32), "n": 11})


def test_register_buffers_need_a_constant_shape() -> None:
    acc = buffer("acc", FLOAT32, (n,), Space.REGISTER)
    f = Function("open", (n,), Alloc(acc, Store(acc, (const(0),), const(0.0, FLOAT32))))
    with pytest.raises(CompileError, match="constant shape"):
        emit_module([f], named("x86-64-v3"))


def test_long_chains_do_not_exhaust_the_stack() -> None:
    a, out = flat("a", FLOAT32), flat("out", FLOAT32)
    value: Expr = Load(a, (i,))
    for step in range(900):
        value = op("add", value, const(float(step % 7), FLOAT32))
        if step == 450:
            value = op("select", op("lt", i, const(9)), value, const(0.0, FLOAT32))
    f = Function("long", (a, out, n), over(Store(out, (i,), value)))
    assert emit_module([f], named("x86-64-v3")).count("fadd") >= 900


def test_text_is_the_same_every_time() -> None:
    f = guarded(Kind.VECTORIZED)
    assert emit_module([f], named("x86-64-v4")) == emit_module([f], named("x86-64-v4"))


# ---------------------------------------------------------------- drawn programs


def _index(draw: Any, depth: int) -> Expr:
    """An index in 0 .. 5 from i (0 .. n - 1) and j (0 .. 3)."""
    atom: Expr = draw(st.sampled_from([i, j, const(3)]))
    if depth:
        other = _index(draw, depth - 1)
        name = draw(st.sampled_from(["add", "sub", "mul", "floordiv", "mod", "min", "max"]))
        return remainder(op(name, atom, other), 6)
    return remainder(atom, 6)


def _value_of(draw: Any, a: Buffer, b: Buffer, depth: int) -> Expr:
    which = draw(st.integers(0, 3 if depth else 1))
    if which == 0:
        return Load(a, (_index(draw, 1), _index(draw, 0)))
    if which == 1:
        return Load(b, (i,))
    left, right = (_value_of(draw, a, b, depth - 1) for _ in range(2))
    if which == 2:
        return op(draw(st.sampled_from(["add", "mul", "max", "min", "sub"])), left, right)
    limit = draw(st.sampled_from([i, j, _index(draw, 1)]))
    return op("select", op("lt", limit, const(2)), left, right)


@st.composite
def programs(draw: Any) -> tuple[Function, dict[str, Any]]:
    dtype = draw(st.sampled_from([FLOAT32, INT32, FLOAT64]))
    a, b = buffer("a", dtype, (6, 6)), flat("b", dtype)
    out = buffer("out", dtype, (4, n))
    kinds = draw(st.permutations([Kind.SERIAL, Kind.VECTORIZED]))
    if draw(st.booleans()):
        kinds[kinds.index(Kind.SERIAL)] = Kind.UNROLLED
    body: Stmt = Store(out, (j, i), _value_of(draw, a, b, 2))
    if draw(st.booleans()):
        body = If(op("gt", Load(b, (i,)), const(0, dtype)), body)
    inner = For(i, n, body, kinds[0]) if draw(st.booleans()) else None
    nest: Stmt = (
        For(j, const(4), inner, kinds[1])
        if inner is not None
        else For(i, n, For(j, const(4), body, kinds[0]), kinds[1])
    )
    count = draw(st.sampled_from([0, 1, 5, 8, 9, 17, 35]))
    args = {
        "a": data(dtype, 36, draw(st.integers(0, 5))),
        "b": data(dtype, count, 1),
        "out": np.zeros(4 * count, dtype.numpy),
        "n": count,
    }
    return Function("drawn", (a, b, out, n), nest), args


@settings(max_examples=40, deadline=None)
@given(programs())
def test_drawn_programs(program: tuple[Function, dict[str, Any]]) -> None:
    assert_same(*program)


def test_a_function_under_another_name_has_the_same_text() -> None:
    x, k = buffer("x", FLOAT32, (8,), strides=(1,)), var("k")
    body = For(k, const(8), Store(x, (k,), const(1.0, FLOAT32)), Kind.PARALLEL)
    target = named("x86-64-v3")
    texts = [
        "\n".join(emit_function(Function(name, (x,), body), target).lines)
        for name in ("a", "long_b")
    ]
    assert texts[0].replace("@a", "@long_b") == texts[1]
    assert "@a.body(" in texts[0]
    assert "$" not in texts[0] + texts[1]
