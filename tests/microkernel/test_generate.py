"""Tiles and packers as loop programs, in the interpreter, against numpy: every residue of rows, columns and depth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fissile.ir import loop as L
from fissile.ir.dim import symbol
from fissile.ir.dtype import FLOAT32, FLOAT64, INT32, DType
from fissile.ir.graph import Graph, evaluate, make
from fissile.ir.interpret import interpret
from fissile.ir.primitive import PANEL, PRIMITIVES, pack_array
from fissile.microkernel.generate import (
    TileShape,
    accumulate,
    clear,
    drain,
    pack_panels,
    tile_shape,
)
from fissile.target import TARGETS, named
from tests.e2e.agree import interpreted
from tests.e2e.draw import values_of
from tests.e2e.machine import lowered


def tile_program(rows: int, panels: int, dtype: DType) -> L.Function:
    """out[rows, panels * 16] = a[rows, depth] . b, b in `panels` panels of `depth` rows."""
    width = panels * PANEL
    depth, lane = L.var("depth"), L.var("lane")
    a = L.buffer("a", dtype, (1 << 40,), strides=(1,))
    b = L.buffer("b", dtype, (1 << 40,), strides=(1,))
    out = L.buffer("out", dtype, (rows * width,))
    sums = L.buffer("sums", dtype, (rows, width), L.Space.REGISTER)

    def left(i: int, k: L.Expr) -> L.Expr:
        return L.Load(a, (L.plus(L.times(depth, i), k),))

    def right(p: int, k: L.Expr) -> L.Expr:
        panel = L.times(L.times(depth, PANEL), p)
        return L.Load(b, (L.plus(L.plus(panel, L.times(k, PANEL)), lane),))

    def store(i: int, c: L.Expr) -> L.Stmt:
        return L.Store(out, (L.plus(c, i * width),), L.Load(sums, (L.const(i), c)))

    body = L.block(
        clear(sums, rows, width, dtype),
        accumulate(rows, width, left, right, sums, depth),
        drain(rows, width, store),
    )
    nest = L.For(L.var("task"), L.const(1), L.Alloc(sums, body), L.Kind.PARALLEL)
    return L.Function("tile", (a, b, out, depth), nest)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, INT32])
@pytest.mark.parametrize("panels", [1, 2])
@pytest.mark.parametrize("rows", [1, 3, 6])
def test_a_tile_is_a_product(rows: int, panels: int, dtype: DType) -> None:
    rng = np.random.default_rng(rows)
    for depth in (0, 1, 5):
        a = values_of(rng, dtype, (rows, depth), "whole")
        b = values_of(rng, dtype, (depth, panels * PANEL), "whole")
        out = np.ones((rows, panels * PANEL), dtype.numpy)
        packed = pack_array(b, batch=0, groups=1)
        args = {"a": a.ravel(), "b": packed.ravel(), "out": out.ravel(), "depth": depth}
        interpret(tile_program(rows, panels, dtype), args)
        np.testing.assert_array_equal(out, a @ b)


@pytest.mark.parametrize("columns", [1, 2, 15, 16, 17, 31, 32, 40])
@pytest.mark.parametrize("depth", [0, 1, 7])
def test_panels_end_in_zeros(columns: int, depth: int) -> None:
    panels = -(-columns // PANEL)
    panel, source = L.var("panel"), L.buffer("source", FLOAT32, (1 << 40,), strides=(1,))
    packed = L.buffer("packed", FLOAT32, (1 << 40,), strides=(1,))

    def read(k: tuple[L.Expr, ...], c: L.Expr) -> L.Expr:
        return L.Load(source, (L.plus(L.times(k[0], columns), L.plus(L.times(panel, PANEL), c)),))

    body = pack_panels(
        packed,
        L.times(panel, depth * PANEL),
        (L.const(depth),),
        L.minus(L.const(columns), L.times(panel, PANEL)),
        read,
    )
    program = L.Function("pack", (source, packed), L.For(panel, L.const(panels), body))
    b = values_of(np.random.default_rng(0), FLOAT32, (depth, columns), "whole")
    want = pack_array(b, batch=0, groups=1)
    got = np.full(want.shape, np.nan, np.float32)
    interpret(program, {"source": b.ravel(), "packed": got.ravel()})
    np.testing.assert_array_equal(got, want)


@given(
    st.sampled_from(sorted(TARGETS)), st.sampled_from([1, 2, 4, 8]),
    st.one_of(st.none(), st.integers(0, 300)),
)  # fmt: skip
def test_a_tile_fits_the_registers(name: str, element_bytes: int, rows: int | None) -> None:
    target = named(name)
    shape = tile_shape(target, element_bytes, rows)
    assert isinstance(shape, TileShape)
    assert min(shape.rows, shape.panels, shape.tail_rows) >= 1
    assert shape.tail_rows <= shape.rows
    vectors = shape.panels * max(1, PANEL // target.lanes(element_bytes))
    small = element_bytes <= 4 and name != "aarch64-neon"
    if small:  # accumulators, a row of the panels, and one broadcast
        assert vectors * (shape.rows + 1) + 1 <= target.vector_registers


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 15), st.integers(1, 34), st.integers(0, 9), st.sampled_from(["free", "number"])
)
def test_products_of_every_residue(m: int, n: int, k: int, kind: str) -> None:
    """Whole linear kernels: what is left over of tiles, panels and blocks."""
    rows = symbol("m") if kind == "free" else m
    x = make(PRIMITIVES["input"], name="x", dtype="float32", shape=(rows, k))
    y = make(PRIMITIVES["input"], name="y", dtype="float32", shape=(k, n))
    graph = Graph((x, y), (("z", make(PRIMITIVES["matmul"], x, y)),))
    rng = np.random.default_rng(m)
    feeds = {
        "x": values_of(rng, FLOAT32, (m, k), "whole"),
        "y": values_of(rng, FLOAT32, (k, n), "whole"),
    }
    values = {"m": m}
    for target in ("x86-64-v3", "x86-64-v4"):
        got = interpreted(lowered(graph, named(target)), feeds, values)
        np.testing.assert_array_equal(got["z"], evaluate(graph, feeds, values)["z"])


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0, 0), (2, 3, 0), (0, 3, 5), (2, 0, 5)])
def test_operands_of_nothing_are_packed(shape: tuple[int, ...]) -> None:
    *matrices, rows, columns = shape
    packed = pack_array(np.zeros(shape, np.float32), batch=len(matrices), groups=1)
    assert packed.shape == (int(np.prod(matrices)), -(-columns // PANEL), rows, PANEL)
