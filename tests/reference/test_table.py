"""Every operator that runs in Python, over its attributes: what it computes, and the types it is compiled with."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest

from fissile.errors import UnsupportedError
from fissile.fission import fission, placed
from fissile.frontend import read_model
from fissile.ir.graph import evaluate as meaning
from fissile.reference import evaluate, runner
from tests.fission.oracle import onnxruntime_errors, reference, same, symbols_of
from tests.reference.cases import ML, Array, Case, every
from tests.reference.learned_cases import learned, tensors
from tests.reference.shaped_cases import shaped

CASES = {case.name: case for case in [*every(), *learned(), *shaped()]}
NATIVE = (
    "Scaler", "Normalizer", "Imputer", "Binarizer", "ArrayFeatureExtractor", "FeatureVectorizer", "LinearRegressor",
)  # fmt: skip
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


def _of_three_classes(case: Case) -> list[np.ndarray]:
    """Two classes that are both voted for are as two of three; onnxruntime's label is whether the second is above 0."""
    more = dict(case.attributes)
    more["classlabels_int64s"] = [*more["classlabels_int64s"], 0]
    if "base_values" in more:
        more["base_values"] = [*more["base_values"], -100.0]
    other = dataclasses.replace(case, attributes=more)
    label, scores = reference(other.model(), other.feeds())
    return [label, scores[:, :2]]


def _expected(case: Case) -> list[np.ndarray]:
    if case.name.startswith("TreeEnsembleClassifier both"):
        return _of_three_classes(case)
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
    foreign = any(node.name == "foreign" for node in graph.nodes())
    assert foreign == (
        case.kind not in NATIVE or bool(case.attributes.get("post_transform", "NONE") != "NONE")
    )
    found = meaning(graph, case.feeds(), symbols_of(graph, case.feeds()), evaluate).values()
    for got, want in zip(found, _expected(case), strict=True):
        assert same(got, want), f"{got} is not {want}"


@pytest.mark.parametrize("name", sorted(REFUSED_BY_ONNXRUNTIME))
def test_what_onnxruntime_refuses(name: str) -> None:
    """The list of exceptions holds nothing that could be compared as it is."""
    with pytest.raises(onnxruntime_errors):
        reference(CASES[name].model(), CASES[name].feeds())


@pytest.mark.parametrize("of", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("to", [np.float32, np.float64, np.int16, np.int64])
def test_label_encoder_of_any_types(of: type, to: type) -> None:
    """Most of them onnxruntime does not have."""
    case = tensors(of, to)
    (got,) = evaluate(case.model().SerializeToString(), list(case.feeds().values()))
    want: Array = np.array([[2, 4], [3, 6], [3, 4]], to)
    assert same(got, want)


def test_trees_of_integers() -> None:
    """onnxruntime has none of opset 3."""
    case = CASES["TreeEnsembleRegressor SUM NONE"]
    model = case.model()
    whole = np.array([[0, 1], [2, 0], [-3, 1]])
    floats = dataclasses.replace(case, inputs={"x": whole.astype(np.float32)})
    (want,) = reference(floats.model(), floats.feeds())
    (got,) = evaluate(model.SerializeToString(), [whole])
    assert same(got, want)


def test_a_support_vector_machine_without_vectors() -> None:
    """It is linear; onnxruntime refuses it without kernel parameters."""
    more = {"coefficients": [0.5, -1.0], "rho": [0.25], "kernel_type": "LINEAR"}
    x = np.array([[1, 2], [3, 0.5]], np.float32)
    case = Case("linear", "SVMRegressor", 1, {"x": x}, more, domain=ML)
    (got,) = evaluate(case.model().SerializeToString(), [x])
    assert same(got, np.array([[-1.25], [1.25]], np.float32))


@pytest.mark.parametrize(
    ("kind", "attribute", "value"),
    [
        ("RNN plain", "activations", ["Wave"]),
        ("TreeEnsembleRegressor SUM NONE", "nodes_modes", ["BRANCH_X"] + ["LEAF"] * 7),
        ("TreeEnsembleClassifier one 0 mixed NONE", "post_transform", "PROBIT"),
        ("TreeEnsembleClassifier one 0 mixed NONE", "base_values", [0.1, 0.2]),
        ("TreeEnsembleClassifier one 1 mixed NONE", "base_values", [0.1, 0.2]),
    ],
)
def test_refused_when_compiled(kind: str, attribute: str, value: Any) -> None:
    """What no run could do right is refused before any: `check` promises what a run does."""
    case = CASES[kind]
    bad = dataclasses.replace(case, attributes={**case.attributes, attribute: value})
    operators = read_model(bad.model())
    with pytest.raises(UnsupportedError) as caught:
        fission(operators, foreign=True)
    assert caught.value.code == "F021"
    assert [p.node for p in placed(operators)[1]] == ["it"]


def test_classifying_support_vector_machines_are_refused() -> None:
    """The reference differs from onnxruntime in 26 of 64 combinations of kernel, classes, transform, probabilities."""
    more = {
        "kernel_type": "LINEAR", "kernel_params": [0.5, 0.0, 3.0], "classlabels_ints": [3, 4],
        "vectors_per_class": [1, 1],
        "support_vectors": [1.0, 0.0, 0.0, 1.0], "coefficients": [1.0, -1.0], "rho": [0.1],
    }  # fmt: skip
    case = Case("svm", "SVMClassifier", 1, {"x": np.ones((2, 2), np.float32)}, more, ("l", "s"), domain=ML)
    made = case.model()
    with pytest.raises(ValueError, match="not right in Python"):
        runner(made)
    for output, rank in zip(made.graph.output, (1, 2), strict=True):
        output.type.tensor_type.elem_type = onnx.TensorProto.INT64 if rank == 1 else onnx.TensorProto.FLOAT
        for _ in range(rank):
            output.type.tensor_type.shape.dim.add()
    with pytest.raises(UnsupportedError):
        fission(read_model(made), foreign=True)
