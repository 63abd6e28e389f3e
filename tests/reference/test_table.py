"""Every operator that runs in Python, over its attributes: what it computes, and the types it is compiled with."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fissile.fission import fission
from fissile.frontend import read_model
from fissile.ir.graph import evaluate as meaning
from fissile.reference import evaluate
from tests.fission.oracle import onnxruntime_errors, reference, same
from tests.reference.cases import Case, every

CASES = {case.name: case for case in every()}
# What onnxruntime 1.32 does not run. Each is compared with an equal case that it does run.
REFUSED_BY_ONNXRUNTIME = {
    name
    for name, case in CASES.items()
    if case.attributes.get("layout") or "doubles" in name and case.kind in ("RNN", "GRU", "LSTM")
    or (case.kind, case.opset) == ("RoiAlign", 22)
}  # fmt: skip


def _stand_in(case: Case) -> tuple[Case, bool]:
    """A case that onnxruntime runs, and whether its batch stands behind the time."""
    if case.kind == "RoiAlign":
        return dataclasses.replace(case, opset=16), False
    inputs = {n: a.astype(np.float32) if a is not None and a.dtype == np.float64 else a
              for n, a in case.inputs.items()}  # fmt: skip
    if not case.attributes.get("layout"):
        return dataclasses.replace(case, inputs=inputs), False
    swapped = {n: a.swapaxes(0, 1) if a is not None and n in ("x", "h0", "c0") else a
               for n, a in inputs.items()}  # fmt: skip
    plain = {k: v for k, v in case.attributes.items() if k != "layout"}
    return dataclasses.replace(case, inputs=swapped, attributes=plain), True


def _expected(case: Case) -> list[np.ndarray]:
    if case.name not in REFUSED_BY_ONNXRUNTIME:
        return reference(case.model(), case.feeds())
    other, moved = _stand_in(case)
    found = reference(other.model(), other.feeds())
    if moved:
        found = [a.transpose(2, 0, 1, 3) if a.ndim == 4 else a.swapaxes(0, 1) for a in found]
    doubles = any(a is not None and a.dtype == np.float64 for a in case.inputs.values())
    return [a.astype(np.float64) for a in found] if doubles else found


@pytest.mark.parametrize("name", CASES)
def test_values_and_types(name: str) -> None:
    """As machine code would run it: split, in Python where it must, of the types that were inferred."""
    case = CASES[name]
    graph = fission(read_model(case.model()), foreign=True)
    assert any(node.name == "foreign" for node in graph.nodes()), "it has become native"
    found = meaning(graph, case.feeds(), {}, evaluate).values()
    for got, want in zip(found, _expected(case), strict=True):
        assert same(got, want), f"{got} is not {want}"


@pytest.mark.parametrize("name", sorted(REFUSED_BY_ONNXRUNTIME))
def test_what_onnxruntime_refuses(name: str) -> None:
    """The list of exceptions holds nothing that could be compared as it is."""
    with pytest.raises(onnxruntime_errors):
        reference(CASES[name].model(), CASES[name].feeds())
