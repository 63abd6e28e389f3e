"""Scatter, TopK and cumulative operators against onnxruntime, extents free, indices often repeated or negative."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fission.oracle import one_operator, reference, run, same

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3)
REDUCTIONS = st.sampled_from(["none", "add", "mul", "min", "max"])
SEEDS = st.integers(0, 1000)
Inputs = list[tuple[str, np.ndarray | None]]


@settings(max_examples=60, deadline=None)
@given(SHAPES, REDUCTIONS, SEEDS, st.data())
def test_scatter_elements(
    shape: list[int], reduction: str, seed: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    smaller = [data.draw(st.integers(1, d + 2 * (k == axis % len(shape)))) for k, d in enumerate(shape)]
    n = shape[axis]
    indices = rng.integers(-n, n, smaller)
    if reduction == "none":  # which of two updates of one element stays is open
        indices = np.sort(indices, axis) * 0 + rng.integers(0, n)
        indices = np.take(indices, [0], axis)
    x = rng.integers(-3, 4, shape).astype(np.float32)
    updates = rng.integers(-3, 4, indices.shape).astype(np.float32)
    inputs: Inputs = [("x", x), ("i", np.asarray(indices)), ("u", updates)]
    model = one_operator("ScatterElements", inputs, axis=axis, reduction=reduction)
    feeds: dict[str, np.ndarray] = {"x": x, "i": np.asarray(indices), "u": updates}
    assert same(run(model, feeds)[0], reference(model, feeds)[0])


@settings(max_examples=60, deadline=None)
@given(SHAPES, REDUCTIONS, SEEDS, st.data())
def test_scatter_nd(shape: list[int], reduction: str, seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    depth = data.draw(st.integers(1, len(shape)))
    count = 1 if reduction == "none" else data.draw(st.integers(1, 6))
    indices = np.stack([rng.integers(-d, d, count) for d in shape[:depth]], -1)
    x = rng.integers(-3, 4, shape).astype(np.float64)
    updates = rng.integers(-3, 4, (count, *shape[depth:])).astype(np.float64)
    inputs: Inputs = [("x", x), ("i", np.asarray(indices)), ("u", updates)]
    free = {"x": [f"d{k}" for k in range(len(shape))]}
    model = one_operator("ScatterND", inputs, free=free, reduction=reduction)
    feeds: dict[str, np.ndarray] = {"x": x, "i": np.asarray(indices), "u": updates}
    assert same(run(model, feeds)[0], reference(model, feeds)[0])


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.booleans(), SEEDS, st.data())
def test_top_k(shape: list[int], largest: bool, seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    k = np.array([data.draw(st.integers(0, shape[axis]))])
    x = rng.integers(-3, 4, shape).astype(np.float32)
    model = one_operator(
        "TopK", [("x", x), ("k", k)], 2, constants=["k"], axis=axis, largest=int(largest)
    )
    for got, want in zip(run(model, {"x": x}), reference(model, {"x": x}), strict=True):
        assert same(got, want)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_sums(exclusive: int, reverse: int, axis: int) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    model = one_operator(
        "CumSum",
        [("x", x), ("axis", np.array(axis))],
        constants=["axis"],
        free={"x": ["a", "b", "c"]},
        exclusive=exclusive,
        reverse=reverse,
    )
    assert same(run(model, {"x": x})[0], reference(model, {"x": x})[0])
