"""Masks that are known while emitting: exactly the lanes that run touch memory, also where LLVM would err.

LLVM 22 turns a masked store of truncated elements into a scalar store of the wide element when one lane runs; with
AVX-512 that writes behind the buffer. Such stores are emitted as scalars.
"""

from __future__ import annotations

import numpy as np
import pytest

from fissile.ir import loop as L
from fissile.ir.dtype import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    DType,
)
from tests.codegen.harness import assert_same


def masked_copy(
    source: DType, stored: DType, lanes: int, condition: L.Expr, size: int
) -> L.Function:
    """out[lane] = source[lane] in the lanes that fulfil the condition."""
    lane = L.var("lane")
    given = L.buffer("source", source, (lanes,))
    out = L.buffer("out", stored, (size,))
    value = L.cast(L.Load(given, (lane,)), stored.compute)
    body = L.If(condition, L.Store(out, (lane,), value))
    loop = L.For(lane, L.const(lanes), body, L.Kind.VECTORIZED)
    return L.Function("copy", (given, out), L.For(L.var("task"), L.const(1), loop, L.Kind.PARALLEL))


PAIRS = [
    (FLOAT32, BFLOAT16), (FLOAT32, FLOAT16), (INT32, INT16), (INT32, UINT8), (INT64, INT32),
    (INT64, INT8), (INT32, BOOL), (FLOAT32, FLOAT32),
]  # fmt: skip


@pytest.mark.parametrize(("source", "stored"), PAIRS)
@pytest.mark.parametrize("lanes", [2, 4, 16])
def test_the_first_lanes(source: DType, stored: DType, lanes: int) -> None:
    for count in (0, 1, lanes - 1, lanes):
        inside = L.op("lt", L.plus(L.var("lane"), 48), L.const(48 + count))
        f = masked_copy(source, stored, lanes, inside, max(count, 1))
        values = np.arange(1, lanes + 1).astype(source.numpy)
        assert_same(f, {"source": values, "out": np.zeros(max(count, 1), stored.numpy)})


@pytest.mark.parametrize(("source", "stored"), PAIRS)
def test_one_lane_that_is_not_the_first(source: DType, stored: DType) -> None:
    for k in (1, 7):
        f = masked_copy(source, stored, 8, L.op("eq", L.var("lane"), L.const(k)), k + 1)
        values = np.arange(1, 9).astype(source.numpy)
        assert_same(f, {"source": values, "out": np.zeros(k + 1, stored.numpy)})
