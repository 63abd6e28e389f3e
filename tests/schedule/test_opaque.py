"""Scatter, cumulative sums and the k largest: numpy's meaning, loop programs and machine code agree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fissile.ir.dim import DimLike, symbol
from fissile.ir.dtype import BOOL, FLOAT32, FLOAT64, INT64, UINT8, DType
from fissile.ir.graph import Graph, Node, make
from fissile.ir.opaque import TOP_K, cumulate, scatter, top_k
from fissile.ir.primitive import INPUT, PRIMITIVES
from fissile.target import named
from tests.e2e.agree import assert_agree
from tests.e2e.draw import Case

N, M = symbol("n"), symbol("m")
TARGETS = [named("x86-64-v3")]
ASSIGNMENTS = ({"n": 5, "m": 3}, {"n": 0, "m": 1}, {"n": 1, "m": 37}, {"n": 40, "m": 2})


def source(name: str, of: DType, shape: tuple[DimLike, ...]) -> Node:
    return make(INPUT, name=name, dtype=of.name, shape=shape)


def agree(inputs: tuple[Node, ...], result: Node, filling: str = "whole", seed: int = 3) -> None:
    graph = Graph(inputs, (("y", result),))
    assert_agree(Case(graph, ASSIGNMENTS, seed, filling, canonical=True), TARGETS)


@pytest.mark.parametrize("combine", ["", "add", "mul", "min", "max"])
def test_scatter(combine: str) -> None:
    x, updates = source("x", FLOAT32, (6, M)), source("u", FLOAT32, (N, M))
    places = source("p", INT64, (N,))  # from -4 to 4: some are out of range, many twice
    agree((x, places, updates), scatter(x, places, updates, combine))


@pytest.mark.parametrize("of", [BOOL, UINT8, FLOAT64])
def test_scatter_of_computed_rows(of: DType) -> None:
    x, updates = source("x", of, (7, 1)), source("u", of, (N, 1))
    places = source("p", INT64, (N,))
    moved = make(PRIMITIVES["neg"], places)
    agree((x, places, updates), scatter(x, moved, updates))


@pytest.mark.parametrize("combine", ["add", "mul"])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_cumulate(combine: str, exclusive: bool, axis: int) -> None:
    x = source("x", FLOAT32, (N, 3, M))
    agree((x,), cumulate(x, axis, combine, exclusive, reverse=axis == 1 or exclusive))


@pytest.mark.parametrize(("axis", "k"), [(0, 2), (1, N), (1, 1), (1, 0), (0, 33)])
@pytest.mark.parametrize("largest", [True, False])
def test_top_k(axis: int, k: DimLike, largest: bool) -> None:
    x = source("x", FLOAT32, (33, N) if axis == 0 else (M, N + 1))
    agree((x,), top_k(x, axis, k, largest), filling="special" if largest else "whole")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_meaning_of_top_k(data: st.DataObject) -> None:
    values = data.draw(st.lists(st.sampled_from([-2.0, 0.0, 1.0, 3.0, np.inf]), min_size=1))
    k = data.draw(st.integers(0, len(values)))
    largest = data.draw(st.booleans())
    order = sorted(range(len(values)), key=lambda i: (-values[i] if largest else values[i], i))
    got = TOP_K.reference(np.array(values), axis=0, k=k, largest=largest)
    assert got.tolist() == order[:k]
