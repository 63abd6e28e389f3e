"""Small graphs rebuilt from public bug reports, with their right answers (tests/cases)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fissile.errors import UnsupportedError
from tests.fission.oracle import run

CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.onnx"))
NOT_NATIVE = {
    "case_031": "Loop",
    "case_041": "a Range whose length is data",
}


@pytest.mark.parametrize("model", CASES, ids=lambda p: p.stem)
def test_case(model: Path) -> None:
    stored = np.load(model.with_suffix(".npz"))
    feeds = {str(name): stored[f"in_{k}"] for k, name in enumerate(stored["in_names"])}
    if model.stem in NOT_NATIVE:
        with pytest.raises(UnsupportedError, match="native definition"):
            run(model, feeds)
        return
    tolerance = float(stored["tol"])
    for k, got in enumerate(run(model, feeds)):
        want = stored[f"out_{k}"]
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(got, want)


def test_all_cases_are_there() -> None:
    assert len(CASES) == 60
