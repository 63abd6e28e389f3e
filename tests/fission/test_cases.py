"""Small graphs rebuilt from public bug reports, with their right answers (tests/cases): what they mean once split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fissile.errors import UnsupportedError
from fissile.fission import fission
from fissile.frontend import OperatorGraph, as_inputs, fix_extents, read_model
from fissile.ir.dim import evaluate as number
from fissile.ir.graph import evaluate
from fissile.reference import evaluate as run_foreign
from tests.fission.oracle import symbols_of
from tests.named_cases import COUNT, FIXED, OVERRIDDEN, REFUSED

CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.onnx"))


def opened(model: Path, fixed: bool = True) -> OperatorGraph:
    """The operator graph, with the options that the tables name."""
    operators = as_inputs(read_model(model), OVERRIDDEN.get(model.stem, ()))
    return fix_extents(operators, FIXED.get(model.stem, {}) if fixed else {})


@pytest.mark.parametrize("model", CASES, ids=lambda p: p.stem)
def test_case(model: Path) -> None:
    stored = np.load(model.with_suffix(".npz"))
    feeds = {str(name): stored[f"in_{k}"] for k, name in enumerate(stored["in_names"])}
    if model.stem in REFUSED:
        with pytest.raises(UnsupportedError) as caught:
            fission(opened(model), foreign=True)
        assert caught.value.code == REFUSED[model.stem][0]
        return
    graph = fission(opened(model), foreign=True)
    symbols = symbols_of(graph, feeds)
    for guard in graph.guards if not graph.late else ():
        assert number(guard.left, symbols) == number(guard.right, symbols), guard.message
    tolerance = float(stored["tol"])
    for k, got in enumerate(evaluate(graph, feeds, symbols, run_foreign).values()):
        want = stored[f"out_{k}"]
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", FIXED)
def test_fixed_dimensions_are_needed(name: str) -> None:
    """Without them a guard names the option."""
    model = next(m for m in CASES if m.stem == name)
    guards = fission(opened(model, fixed=False)).guards
    assert any("--shape" in guard.message for guard in guards)


def test_all_cases_are_there() -> None:
    assert len(CASES) == COUNT
    assert {*REFUSED, *OVERRIDDEN, *FIXED} <= {model.stem for model in CASES}
