"""Operands copied through layouts, tiles of an image and heads: loops of their parts, no index divided by element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from fissile.ir import loop as L
from fissile.ir.dim import DimLike, ceildiv, symbol
from fissile.ir.graph import Graph, bind, data, evaluate
from fissile.ir.loop import Function, Kind, expressions, statements, walk
from fissile.ir.primitive import constant
from fissile.orchestrate.plan import Anchor
from fissile.target import named
from tests.e2e import machine
from tests.e2e.agree import interpreted
from tests.e2e.draw import values_of
from tests.schedule.test_kernels import V3, given, graph_of, prim

B, H, W = symbol("b"), symbol("h"), symbol("w")
Extents = tuple[DimLike, DimLike, DimLike]


def tiles(extents: Extents, channels: int, places: int, step: int, twice: bool = False) -> Graph:
    """Rows of `places` x `places` windows, `step` apart, of an image [n, h, w, c] times a constant matrix.

    twice: of the image with its pixels repeated two by two.
    """
    n, h, w = extents
    image = given("x", n, h, w, channels)
    if twice:
        rows = prim("reshape", image, shape=(n, h, 1, w, 1, channels))
        rows = prim("broadcast", rows, shape=(n, h, 2, w, 2, channels))
        h, w = 2 * h, 2 * w
        image = prim("reshape", rows, shape=(n, h, w, channels))
    down, along = ceildiv(h, step), ceildiv(w, step)
    high = (0, down * step + places - step - h - 1, along * step + places - step - w - 1, 0)
    zero = data(np.array(0, np.float32))
    padded = prim("pad", image, low=(0, 1, 1, 0), high=high, value=zero)
    sizes = {"sizes": (places,) * 2, "strides": (step,) * 2, "dilations": (1, 1)}
    windows = prim("window", padded, axes=(1, 2), **sizes)
    apart = prim("transpose", windows, perm=(4, 5, 0, 1, 2, 3))
    flat = prim("reshape", apart, shape=(places**2, n * down * along * channels))
    matrix = np.random.default_rng(1).integers(-2, 3, (5, places**2)).astype(np.float32)
    return graph_of(prim("matmul", constant(matrix), flat))


def packing(graph: Graph) -> Function:
    """The loop function of the graph's only packing."""
    work = machine.lowered(graph, V3)
    kernels, loops = work.known("plan").kernels(), work.loops[0]
    rows = [name for k, (name, _) in zip(kernels, loops.lowered, strict=True)
            if k.anchor is Anchor.PACK]  # fmt: skip
    assert len(rows) == 1
    return loops.functions[rows[0]]


def divides(s: L.Stmt) -> bool:
    found = (x for e in expressions(s) for x in walk(e) if isinstance(x, L.Op))
    return any(x.op in ("floordiv", "mod") for x in found)


@pytest.mark.parametrize("extents", [(B, H, W), (1, 24, 20), (B, 12, 7)])
@pytest.mark.parametrize("channels", [16, 48])
@pytest.mark.parametrize("twice", [False, True])
def test_nothing_is_divided_along_a_panel(extents: Extents, channels: int, twice: bool) -> None:
    loops = [s for s in statements(packing(tiles(extents, channels, 6, 4, twice)).body)
             if isinstance(s, L.For)]  # fmt: skip
    lanes = [s for s in loops if s.kind is Kind.VECTORIZED]
    assert lanes
    assert not any(divides(s.body) for s in lanes)
    assert any(s.kind is Kind.UNROLLED for s in loops)  # the places of a row of the tile


@settings(max_examples=8, deadline=None)
@drawn(
    st.sampled_from([(1, H, W), (B, H, W)]), st.sampled_from([1, 5, 16, 24, 32]),
    st.sampled_from([(6, 4), (4, 2), (3, 2)]), st.booleans(),
    st.sampled_from([(1, 1, 1), (2, 5, 3), (1, 1, 9), (3, 4, 6), (0, 3, 3), (1, 0, 4), (2, 7, 0)]),
    st.sampled_from(["x86-64-v3", "x86-64-v4"]),
)  # fmt: skip
def test_tiles_of_any_image(
    extents: Extents, channels: int, tile: tuple[int, int], twice: bool,
    sizes: tuple[int, int, int], target: str,
) -> None:  # fmt: skip
    graph = tiles(extents, channels, *tile, twice)
    symbols = dict(zip("bhw", sizes, strict=True))
    agree(graph, symbols, target)


def heads(batch: DimLike, rows: DimLike, count: DimLike, size: DimLike) -> Graph:
    """[b, heads, rows, size] -> [b, rows, heads * size], times [b, heads * size, 7]"""
    x = given("x", batch, count, rows, size)
    apart = prim("transpose", x, perm=(0, 2, 1, 3))
    left = prim("reshape", apart, shape=(batch, rows, count * size))
    return graph_of(prim("matmul", left, given("w", batch, count * size, 7)))


def test_no_lane_of_a_row_of_heads_is_divided() -> None:
    for extents in ((1, H, 8, 16), (B, 5, 3, 24), (B, H, 4, W)):
        work = machine.lowered(heads(*extents), V3)
        rows = [work.loops[0].functions[name] for name, _ in work.loops[0].lowered]
        loops = [s for f in rows for s in statements(f.body) if isinstance(s, L.For)]
        assert not any(divides(s.body) for s in loops if s.kind is Kind.VECTORIZED)


@settings(max_examples=8, deadline=None)
@drawn(
    st.sampled_from([1, 3, 40]), st.sampled_from([3, 9, 16, 33, W]), st.sampled_from([0, 1, 2]),
    st.sampled_from([0, 1, 7, 13]), st.sampled_from([0, 1, 5, 17]),
    st.sampled_from(["x86-64-v3", "x86-64-v4"]),
)  # fmt: skip
def test_heads_of_any_size(
    count: int, size: DimLike, batch: int, rows: int, width: int, target: str
) -> None:
    agree(heads(B, H, count, size), {"b": batch, "h": rows, "w": width}, target)


def agree(graph: Graph, symbols: dict[str, int], target: str) -> None:
    """The loop programs and the machine code of a target give the very values of the graph, which are whole."""
    rng = np.random.default_rng(5)
    feeds = {
        x.attr("name"): values_of(rng, x.dtype, bind(x.shape, symbols), "whole")
        for x in graph.inputs
    }
    want = evaluate(graph, feeds, symbols)["y0"]
    work = machine.lowered(graph, named(target))
    if want.size < 1000:
        np.testing.assert_array_equal(interpreted(work, feeds, symbols)["y0"], want)
    built = machine.build(work)
    for threads in (1, 2):
        got = machine.run(built, symbols, feeds, threads, lead=threads == 2)["y0"]
        np.testing.assert_array_equal(got, want)
