"""Lanes that lie apart and whose neighbours lie together: transposed in registers, with guard pages at both ends."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fissile.codegen.llvm import emit_module
from fissile.ir import loop as L
from fissile.ir.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT64, DType
from tests.codegen.harness import assert_same, targets

SOME, OTHER, OUT = "some", "other", "out"
LANE, COLUMN, COUNT, APART = (L.var(x) for x in ("lane", "column", "count", "apart"))


def flat(name: str, dtype: DType) -> L.Buffer:
    return L.buffer(name, dtype, (1 << 62,), strides=(1,))


def exchange(dtype: DType, columns: int, apart: L.Expr, is_guarded: bool) -> L.Function:
    """out[lane * apart + column] = max(some[column * count + lane], other[lane * apart + column])"""
    some, other, out = (flat(name, dtype) for name in (SOME, OTHER, OUT))
    place = L.plus(L.times(LANE, apart), COLUMN)
    here = L.Load(some, (L.plus(L.times(COLUMN, COUNT), LANE),))
    there: L.Expr = L.Load(other, (place,))
    if is_guarded:  # the first lane never, the others in every column
        there = L.op("select", L.op("gt", LANE, L.const(0)), there, here)
    met = L.op("or" if dtype is BOOL else "max", here, there)
    element = L.For(COLUMN, L.const(columns), L.Store(out, (place,), met), L.Kind.UNROLLED)
    lanes = L.For(LANE, COUNT, element, L.Kind.VECTORIZED)
    task = L.For(L.var("task"), L.const(1), lanes, L.Kind.PARALLEL)
    return L.Function("exchange", (some, other, out, COUNT, APART), task)


DRAWN = [
    (FLOAT32, 16, 19, False), (FLOAT32, 12, 12, False), (FLOAT32, 3, 3, True),
    (FLOAT16, 5, 5, False), (INT64, 7, 9, True), (BOOL, 9, 11, True), (BFLOAT16, 6, 8, False),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "columns", "apart", "is_guarded"), DRAWN)
def test_rows_of_lanes(dtype: DType, columns: int, apart: int, is_guarded: bool) -> None:
    step = L.const(apart) if apart == columns else APART
    f = exchange(dtype, columns, step, is_guarded)
    rng = np.random.default_rng(columns)
    for count in (0, 1, 53):
        size = (count - 1) * apart + columns if count else 0
        some, other = (rng.integers(0, 2, n).astype(dtype.numpy) for n in (count * columns, size))
        out = np.full(size, 1, dtype.numpy)
        assert_same(f, {SOME: some, OTHER: other, OUT: out, "count": count, "apart": apart})


@pytest.mark.parametrize(
    ("dtype", "step"), [(FLOAT32, 2), (FLOAT32, -1), (FLOAT16, -4), (INT64, 2), (BOOL, 3)]
)
def test_lanes_a_small_step_apart(dtype: DType, step: int) -> None:
    some, out = flat(SOME, dtype), flat(OUT, dtype)
    first = L.const(0) if step > 0 else L.times(L.minus(COUNT, 1), -step)
    load = L.Load(some, (L.plus(first, L.times(LANE, step)),))
    lanes = L.For(LANE, COUNT, L.Store(out, (LANE,), load), L.Kind.VECTORIZED)
    f = L.Function("step", (some, out, COUNT), L.For(L.var("task"), L.const(1), lanes, L.Kind.PARALLEL))
    for count in (1, 83):
        values = np.random.default_rng(count).integers(0, 2, (count - 1) * abs(step) + 1)
        args = {SOME: values.astype(dtype.numpy), OUT: np.zeros(count, dtype.numpy)}
        assert_same(f, {**args, "count": count})


def test_a_condition_on_the_column_reads_no_whole_rows() -> None:
    """The columns behind the condition may lie outside the buffer."""
    some, out = flat(SOME, FLOAT32), flat(OUT, FLOAT32)
    place = L.plus(L.times(LANE, APART), COLUMN)
    chosen = L.op("lt", COLUMN, L.var("inside"))
    value = L.op("select", chosen, L.Load(some, (place,)), L.const(0.0, FLOAT32))
    at = L.plus(L.times(COLUMN, COUNT), LANE)
    element = L.For(COLUMN, L.const(4), L.Store(out, (at,), value), L.Kind.UNROLLED)
    lanes = L.For(LANE, COUNT, element, L.Kind.VECTORIZED)
    params = (some, out, COUNT, APART, L.var("inside"))
    f = L.Function("inside", params, L.For(L.var("task"), L.const(1), lanes, L.Kind.PARALLEL))
    for inside in (1, 2, 4):
        some_ = np.arange(16 * 5 + inside, dtype=np.float32)
        args = {SOME: some_, OUT: np.zeros(17 * 4, np.float32)}
        assert_same(f, {**args, "count": 17, "apart": 5, "inside": inside})


def test_no_element_of_a_block_is_moved_alone() -> None:
    """Vectors only, but for what is left of the lanes."""
    for target in targets():
        text = emit_module([exchange(FLOAT32, 16, APART, False)], target)
        assert not re.search(r"(insert|extract)element <\d+ x float>| store float", text)
        assert "masked.scatter" not in text
