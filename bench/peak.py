"""The fused multiply-add peak of one core: independent accumulators in registers, nothing else.

In: a target. Out: seconds of one call of a fixed number of operations, or GFLOP/s. The code goes through the project's
own emitter, so the figure is what a perfect schedule of ours could reach.
"""

from __future__ import annotations

import ctypes
import mmap
import time

import numpy as np

from fissile.codegen.build import compile_modules
from fissile.codegen.link import link
from fissile.codegen.llvm import emit_module
from fissile.ir import loop as L
from fissile.ir.dtype import FLOAT32
from fissile.target import Target

ROUNDS = 20_000


class Peak:
    """A loaded kernel of `flops` floating-point operations; `seconds()` runs it once."""

    def __init__(self, target: Target) -> None:
        rows, lanes = target.vector_registers - 4, target.lanes(4)
        self.flops = 2.0 * ROUNDS * rows * lanes
        image = link(compile_modules([emit_module([_function(rows, lanes)], target)], target), ["peak"])
        self._memory = mmap.mmap(-1, len(image.code), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._memory.write(image.code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory)) + image.symbols["peak"]
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
        self._call = kind(address)
        self._data = np.ones(rows * lanes + lanes, np.float32)
        self._words = np.array([self._data.__array_interface__["data"][0]], np.int64)

    def seconds(self) -> float:
        """Seconds of one call."""
        words = self._words.__array_interface__["data"][0]
        start = time.perf_counter()
        self._call(words, 0, 1, None)
        return time.perf_counter() - start


def _function(rows: int, lanes: int) -> L.Function:
    """data[r, lane] += many times x * data[r, lane], every r independent of the others"""
    data = L.buffer("data", FLOAT32, (rows + 1, lanes))
    sums = L.buffer("sums", FLOAT32, (rows, lanes), L.Space.REGISTER)
    lane, k = L.var("lane"), L.var("k")

    def each(make: object) -> L.Stmt:
        assert callable(make)
        loops = [
            L.For(lane, L.const(lanes), make(L.const(r)), L.Kind.VECTORIZED) for r in range(rows)
        ]
        return L.block(*loops)

    x = L.Load(data, (L.const(rows), lane))
    start = each(lambda r: L.Store(sums, (r, lane), L.Load(data, (r, lane))))
    step = each(lambda r: L.Store(sums, (r, lane), L.op("fma", L.Load(sums, (r, lane)), x, x)))
    end = each(lambda r: L.Store(data, (r, lane), L.Load(sums, (r, lane))))
    body = L.Alloc(sums, L.block(start, L.For(k, L.const(ROUNDS), step), end))
    return L.Function("peak", (data,), body)
