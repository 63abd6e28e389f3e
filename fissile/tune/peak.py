"""What one core of this machine can do: fused multiply-adds, and bytes from every level of the memory (DESIGN 3.4).

In: a target. Out: operations and bytes per second, each the best of many short samples, kept in the tuning
store where a higher one raises them. The code goes through the project's own emitter, so the figures are
what a perfect schedule of ours could reach. Invariant: measured once per machine, in a few seconds.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import time
from collections.abc import Callable

import numpy as np

from fissile.child import end_with_parent
from fissile.codegen.build import compile_modules
from fissile.codegen.link import link
from fissile.codegen.llvm import emit_module
from fissile.ir import loop as L
from fissile.ir.dtype import FLOAT32
from fissile.options import environment, resolve_target
from fissile.runtime.machine import identity
from fissile.runtime.measure import answer_of
from fissile.runtime.roofline import LEVELS, Peaks
from fissile.runtime.store import Store, default_paths
from fissile.target import Target

ROUNDS = 20_000
ACCUMULATORS = 8
SAMPLES = 12
SAMPLE_BYTES = 1 << 25  # read per sample at least, so that a call costs nothing beside it
MOST_BYTES = 1 << 28
LIMIT_SECONDS = 120.0


def machine_peaks() -> Peaks:
    """The peaks of this machine from the store; measured in a child process and kept where it has none."""
    target, machine = resolve_target(), identity()
    names = {"operations": "flops.float32"} | {level: f"bytes.{level}" for level in LEVELS}
    with Store(environment().store or default_paths()) as store:
        known = {key: store.peak(machine, name) for key, name in names.items()}
        if any(value is None for value in known.values()):
            for key, value in _measured().items():
                store.raise_peak(machine, names[key], value)
                known[key] = max(value, known[key] or 0.0)
    rates = {key: value for key, value in known.items() if value is not None}
    sizes = {"l1": target.l1, "l2": target.l2, "l3": target.l3}
    return Peaks(rates.pop("operations"), rates, sizes)


def measure_here(target: Target) -> dict[str, float]:
    """operations, l1, l2, l3 and memory per second, of one core."""
    multiply, read = Peak(target), Reading(target)
    sizes = {
        "l1": target.l1 // 2,
        "l2": target.l2 // 2,
        "l3": min(target.l3 // 2, MOST_BYTES // 8),
        "memory": max(min(4 * target.l3, MOST_BYTES), MOST_BYTES // 2),
    }
    found = {"operations": multiply.flops / min(multiply.seconds() for _ in range(SAMPLES))}
    for level, size in sizes.items():
        found[level] = read.rate(size)
    return found


def _measured() -> dict[str, float]:
    """`measure_here` in a child: machine code of a new kind never runs in the caller's process."""
    rates: dict[str, float] = answer_of("fissile.tune.peak", {}, LIMIT_SECONDS, ["this machine"])
    return rates


class _Code:
    """A loaded function of the kernel ABI."""

    def __init__(self, function: L.Function, target: Target) -> None:
        image = link(compile_modules([emit_module([function], target)], target), [function.name])
        writable = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        self._memory = mmap.mmap(-1, len(image.code), prot=writable)
        self._memory.write(image.code)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        kind = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
        )
        self._call = kind(start + image.symbols[function.name])

    def seconds(self, words: np.ndarray) -> float:
        """Seconds of one call with these arguments."""
        address = words.__array_interface__["data"][0]
        start = time.perf_counter()
        self._call(address, 0, 1, None)
        return time.perf_counter() - start


class Peak:
    """Independent accumulators in registers, nothing else: `flops` operations; `seconds()` runs them once."""

    def __init__(self, target: Target) -> None:
        rows, lanes = target.vector_registers - 4, target.lanes(4)
        self.flops = 2.0 * ROUNDS * rows * lanes
        self._code = _Code(_multiplying(rows, lanes), target)
        self._data = np.ones(rows * lanes + lanes, np.float32)
        self._words = np.array([self._data.__array_interface__["data"][0]], np.int64)

    def seconds(self) -> float:
        """Seconds of one call."""
        return self._code.seconds(self._words)


class Reading:
    """Sums an array with many accumulators: as fast as one core can read."""

    def __init__(self, target: Target) -> None:
        self._lanes = target.lanes(4)
        self._code = _Code(_reading(self._lanes), target)

    def rate(self, size: int) -> float:
        """Bytes per second when `size` bytes are read again and again."""
        chunk = 4 * ACCUMULATORS * self._lanes
        chunks = max(size // chunk, 1)
        data = np.ones(chunks * chunk // 4 + 16, np.float32)
        sums = np.zeros(ACCUMULATORS * self._lanes, np.float32)
        rounds = max(1, SAMPLE_BYTES // (chunks * chunk))
        start = data.__array_interface__["data"][0]
        aligned = -(-start // 64) * 64
        words = np.array([aligned, sums.__array_interface__["data"][0], chunks, rounds], np.int64)
        self._code.seconds(words)
        best = min(self._code.seconds(words) for _ in range(SAMPLES))
        return chunks * chunk * rounds / best


def _each(rows: int, lane: L.Var, lanes: int, make: Callable[[L.Expr], L.Stmt]) -> L.Stmt:
    return L.block(
        *(L.For(lane, L.const(lanes), make(L.const(r)), L.Kind.VECTORIZED) for r in range(rows))
    )


def _multiplying(rows: int, lanes: int) -> L.Function:
    """data[r, lane] += many times x * data[r, lane], every r independent of the others"""
    data = L.buffer("data", FLOAT32, (rows + 1, lanes))
    sums = L.buffer("sums", FLOAT32, (rows, lanes), L.Space.REGISTER)
    lane, k = L.var("lane"), L.var("k")
    x = L.Load(data, (L.const(rows), lane))

    def step(r: L.Expr) -> L.Stmt:
        return L.Store(sums, (r, lane), L.op("fma", L.Load(sums, (r, lane)), x, x))

    body = L.block(
        _each(rows, lane, lanes, lambda r: L.Store(sums, (r, lane), L.Load(data, (r, lane)))),
        L.For(k, L.const(ROUNDS), _each(rows, lane, lanes, step)),
        _each(rows, lane, lanes, lambda r: L.Store(data, (r, lane), L.Load(sums, (r, lane)))),
    )
    return L.Function("peak", (data,), L.Alloc(sums, body))


def _reading(lanes: int) -> L.Function:
    """total[r, lane] = sum of data[chunk, r, lane], `rounds` times over"""
    chunks, rounds = L.var("chunks"), L.var("rounds")
    data = L.buffer("data", FLOAT32, (chunks, ACCUMULATORS, lanes))
    total = L.buffer("total", FLOAT32, (ACCUMULATORS, lanes))
    sums = L.buffer("sums", FLOAT32, (ACCUMULATORS, lanes), L.Space.REGISTER)
    lane, chunk, k = L.var("lane"), L.var("chunk"), L.var("k")

    def step(r: L.Expr) -> L.Stmt:
        more = L.op("add", L.Load(sums, (r, lane)), L.Load(data, (chunk, r, lane)))
        return L.Store(sums, (r, lane), more)

    zero = L.const(0.0, FLOAT32)
    body = L.block(
        _each(ACCUMULATORS, lane, lanes, lambda r: L.Store(sums, (r, lane), zero)),
        L.For(k, rounds, L.For(chunk, chunks, _each(ACCUMULATORS, lane, lanes, step))),
        _each(
            ACCUMULATORS, lane, lanes, lambda r: L.Store(total, (r, lane), L.Load(sums, (r, lane)))
        ),
    )
    return L.Function("read", (data, total, chunks, rounds), L.Alloc(sums, body))


def main() -> None:
    """The rates as JSON on standard output."""
    end_with_parent()
    print(json.dumps(measure_here(resolve_target())))


if __name__ == "__main__":
    main()
