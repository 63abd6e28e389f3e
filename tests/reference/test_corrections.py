"""Corrections of onnx.reference: each against onnxruntime, or against numpy's words where that is at fault."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fissile.reference import evaluate
from tests.fission.oracle import one_operator, reference, run, same


def agree(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    got = evaluate(model.SerializeToString(), list(feeds.values()))
    for a, b in zip(got, reference(model, feeds), strict=True):
        assert same(a, b), f"{a} is not {b}"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_non_max_suppression(seed: int, centered: bool, limit: float) -> None:
    rng = np.random.default_rng(seed)
    batch, classes, n = rng.integers(1, 3), rng.integers(1, 4), rng.integers(1, 12)
    boxes = rng.integers(0, 5, (batch, n, 4)).astype(np.float32)
    scores = rng.permutation(batch * classes * n).reshape(batch, classes, n).astype(np.float32)
    feeds = {
        "boxes": boxes,
        "scores": scores,
        "most": np.array([rng.integers(0, 6)]),
        "limit": np.array([limit], np.float32),
        "floor": np.array([scores.max() / 4], np.float32),
    }
    model = one_operator(
        "NonMaxSuppression", list(feeds.items()), center_point_box=int(centered), opset=11
    )
    agree(model, feeds)


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_old_softmax(kind: str, axis: int) -> None:
    x = np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32)
    agree(one_operator(kind, [("x", x)], opset=11, axis=axis), {"x": x})


@pytest.mark.parametrize("opset", [8, 9, 13])
def test_batch_normalization(opset: int) -> None:
    rng = np.random.default_rng(2)
    feeds = {"x": rng.normal(size=(2, 3, 4)).astype(np.float32)}
    feeds |= {n: rng.uniform(0.5, 2, 3).astype(np.float32) for n in ("s", "b", "m", "v")}
    model = one_operator("BatchNormalization", list(feeds.items()), opset=opset, momentum=0.7)
    agree(model, feeds)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_negative_pads(mode: str) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    feeds = {"x": x, "pads": np.array([-1, 2, 1, -1])}
    agree(one_operator("Pad", list(feeds.items()), opset=13, mode=mode), feeds)


def test_one_hot() -> None:
    feeds = {
        "i": np.array([[0, -1], [4, 7]]),
        "depth": np.array([5]),
        "values": np.array([2.0, 3.0], np.float32),
    }
    agree(one_operator("OneHot", list(feeds.items()), axis=1), feeds)


@pytest.mark.parametrize("mode", ["asymmetric", "align_corners", "half_pixel"])
@pytest.mark.parametrize(("extent", "scale"), [(10, 0.7), (49, 1 / 49), (30, 0.9), (7, 1.25)])
def test_resize_by_decimals(mode: str, extent: int, scale: float) -> None:
    """In Python and natively: which of the two runs depends on whether the extent is free."""
    feeds = {
        "x": np.arange(extent, dtype=np.float32).reshape(1, 1, 1, extent),
        "scales": np.array([1, 1, 1, scale], np.float32),
    }
    model = one_operator(
        "Resize",
        [("x", feeds["x"]), ("roi", None), ("scales", feeds["scales"])],
        opset=19,
        constants=["scales"],
        mode="linear",
        coordinate_transformation_mode=mode,
    )
    (wanted,) = reference(model, {"x": feeds["x"]})
    assert same(run(model, {"x": feeds["x"]})[0], wanted)
    assert same(evaluate(model.SerializeToString(), [feeds["x"]])[0], wanted)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_old_grid_sample(mode: str) -> None:
    rng = np.random.default_rng(3)
    feeds = {"x": rng.normal(size=(1, 2, 4, 5)), "grid": rng.uniform(-1.2, 1.2, (1, 3, 2, 2))}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    agree(one_operator("GridSample", list(feeds.items()), opset=16, mode=mode), feeds)
