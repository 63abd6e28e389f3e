"""Reads along another axis than the one written: all meanings agree, whatever the permutation, type and extents."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fissile.ir.dim import DimLike, symbol
from fissile.ir.dtype import BOOL, FLOAT16, FLOAT32, INT64, DType
from fissile.ir.graph import Graph, Node, data, make
from fissile.ir.loop import For, Kind, statements
from fissile.ir.primitive import PRIMITIVES, cast
from fissile.target import named
from tests.codegen.harness import targets
from tests.e2e.agree import assert_agree
from tests.e2e.draw import Case
from tests.e2e.machine import lowered

EXTENTS = (1, 2, 3, 5, 8, 12, 17, 33)
LONGEST = 6000  # elements of a drawn tensor
N = symbol("a")


def prim(name: str, *inputs: Node, **attrs: object) -> Node:
    return make(PRIMITIVES[name], *inputs, **attrs)


def given(title: str, of: DType, *shape: DimLike) -> Node:
    return make(PRIMITIVES["input"], name=title, dtype=of.name, shape=shape)


def drawn(rng: np.random.Generator, rank: int, of: DType) -> Graph:
    """A permutation of axes, one of them free, with something before it and something behind it."""
    shape: list[DimLike] = [int(x) for x in rng.choice(EXTENTS, rank)]
    free = int(rng.integers(rank))
    while math.prod(d for k, d in enumerate(shape) if k != free and isinstance(d, int)) > LONGEST // 66:
        shape[int(rng.integers(rank))] = 2
    shape[free] = N
    x = given("x", of, *shape)
    before, behind = rng.integers(0, 3, 2)
    y = x
    if before == 1:
        zero = data(np.array(0, of.numpy))
        low, high = rng.integers(0, 2, (2, rank))
        y = prim("pad", y, low=tuple(map(int, low)), high=tuple(map(int, high)), value=zero)
    elif before == 2 and of.is_float:
        y = cast(prim("abs", cast(y, of.compute)), of)
    perm = tuple(int(p) for p in rng.permutation(rank))
    y = prim("transpose", y, perm=perm)
    if behind == 1:
        y = prim("concat", y, y, axis=rank - 1)
    elif behind == 2 and of is not BOOL:
        z = given("z", of, *y.shape)
        y = cast(prim("add", cast(y, of.compute), cast(z, of.compute)), of)
    inputs = [n for n in Graph((), (("y", y),)).nodes() if n.name == "input"]
    return Graph(tuple(inputs), (("y", y),))


@pytest.mark.parametrize("number", range(12))
def test_drawn_permutations(number: int) -> None:
    rng = np.random.default_rng(number)
    graph = drawn(rng, 2 + number % 4, (FLOAT32, FLOAT16, INT64, BOOL)[number // 3])
    values = ({"a": 0}, {"a": 1}, {"a": 66})
    assert_agree(Case(graph, values, number, "whole", canonical=False), targets(), (1, 2))


@pytest.mark.parametrize("columns", [2, 9, 16, 19, 83])
@pytest.mark.parametrize("lanes", [3, 8, 21])
def test_a_matrix_of_any_extents(columns: int, lanes: int) -> None:
    x = given("x", FLOAT32, columns, lanes)
    graph = Graph((x,), (("y", prim("transpose", x, perm=(1, 0))),))
    assert_agree(Case(graph, ({},), 1, "odd", canonical=False), targets(), (1, 2))


def test_blocks_are_unrolled_inside_lanes() -> None:
    """Of a free number of columns, too; few of them are one block."""
    for columns, length in ((N, 16), (12, 12)):
        x = given("x", FLOAT32, columns, 40)
        graph = Graph((x,), (("y", prim("transpose", x, perm=(1, 0))),))
        (loops,) = lowered(graph, named("x86-64-v3")).loops
        (function,) = loops.functions.values()
        kinds = [s.kind for s in statements(function.body) if isinstance(s, For)]
        assert kinds.index(Kind.VECTORIZED) < kinds.index(Kind.UNROLLED)
        unrolled = [s for s in statements(function.body) if isinstance(s, For) and s.kind is Kind.UNROLLED]
        assert [s.extent.payload for s in unrolled if hasattr(s.extent, "payload")] == [length]
