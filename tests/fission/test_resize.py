"""Cubic interpolation: what onnxruntime and ONNX's reference say, and no pixel beyond the window is touched."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tests.fission.oracle import one_operator, reference, run, same

MODES = ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sizes", [(1, 2, 11, 13), (1, 2, 3, 4), (1, 2, 1, 21), (1, 2, 5, 7)])
@pytest.mark.parametrize("outside", [0, 1])
def test_cubic(mode: str, sizes: tuple[int, ...], outside: int) -> None:
    x = np.random.default_rng(3).standard_normal((1, 2, 5, 7)).astype(np.float32)
    wanted = np.array(sizes, np.int64)
    model = one_operator(
        "Resize", [("x", x), ("", None), ("", None), ("sizes", wanted)], constants=["sizes"],
        mode="cubic", coordinate_transformation_mode=mode, exclude_outside=outside,
    )  # fmt: skip
    assert same(run(model, {"x": x})[0], reference(model, {"x": x})[0])


@pytest.mark.parametrize("sizes", [(1, 1, 19, 23), (1, 1, 7, 8)])
def test_what_is_not_finite_stays_in_its_windows(sizes: tuple[int, ...]) -> None:
    x = np.random.default_rng(4).standard_normal((1, 1, 9, 11)).astype(np.float32)
    x[0, 0, 4, 5] = np.nan
    wanted = np.array(sizes, np.int64)
    model = one_operator(
        "Resize", [("x", x), ("", None), ("", None), ("sizes", wanted)], constants=["sizes"],
        mode="cubic",
    )  # fmt: skip
    with np.errstate(all="ignore"):
        (want,) = ReferenceEvaluator(model).run(None, {"x": x})
        (got,) = run(model, {"x": x})
        x[0, 0, 4, 5] = np.inf
        (infinite,) = run(model, {"x": x})
    assert np.isfinite(want).any()
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
    np.testing.assert_array_equal(np.isfinite(infinite), np.isfinite(want))
