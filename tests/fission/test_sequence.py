"""Sequences of known structure against onnxruntime; what depends on data is refused with its reason."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fissile.errors import UnsupportedError
from fissile.fission import fission, placed
from fissile.frontend import read_model
from tests.fission.oracle import reference, run

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node
A = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
B = np.random.default_rng(2).normal(size=(4, 3)).astype(np.float32)
CONSTANTS = {
    "zero": np.array(0), "one": np.array(1), "back": np.array(-1), "two": np.array(2), "three": np.array(3),
    "parts": np.array([1, 3]), "yes": np.array(True), "unit": np.array(1, np.float32),
}  # fmt: skip


def model(*nodes: onnx.NodeProto, opset: int = 17) -> onnx.ModelProto:
    """a[4, 3], b[4, 3], a position and a condition to y."""
    inputs = [helper.make_tensor_value_info(name, FLOAT, [4, 3]) for name in ("a", "b")]
    inputs += [
        helper.make_tensor_value_info("at", INT64, []),
        helper.make_tensor_value_info("c", BOOL, []),
    ]
    weights = [numpy_helper.from_array(v, n) for n, v in CONSTANTS.items()]
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name="y")], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def feeds() -> dict[str, np.ndarray]:
    return {"a": A, "b": B, "at": np.array(1), "c": np.array(True)}


def of(name: str, *elements: str) -> onnx.NodeProto:
    return node("SequenceConstruct", list(elements), [name])


def join(name: str, axis: int = 0, new: int = 1) -> onnx.NodeProto:
    return node("ConcatFromSequence", [name], ["y"], axis=axis, new_axis=new)


def tensors(*names: str) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(n, FLOAT, [4, 3]) for n in names]


def lists(*names: str) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_sequence_value_info(n, FLOAT, [4, 3]) for n in names]


def looped() -> Sequence[onnx.NodeProto]:
    body = helper.make_graph(
        [
            node("Add", ["now", "unit"], ["next"]),
            node("SequenceInsert", ["so_far", "next"], ["more"]),
            node("Identity", ["goes"], ["on"]),
        ],
        "body",
        [helper.make_tensor_value_info("turn", INT64, []), helper.make_tensor_value_info("goes", BOOL, []),
         *tensors("now"), *lists("so_far")],
        [helper.make_tensor_value_info("on", BOOL, []), *tensors("next"), *lists("more")],
    )  # fmt: skip
    return [
        node("SequenceEmpty", [], ["none"]),
        node("Loop", ["three", "", "a", "none"], ["last", "all"], body=body),
        join("all", axis=1),
    ]


def branches(condition: str) -> Sequence[onnx.NodeProto]:
    made = [
        helper.make_graph([of("s", "a", "b")], "then", [], lists("s")),
        helper.make_graph([of("t", "b", "b")], "else", [], lists("t")),
    ]
    return [node("If", [condition], ["q"], then_branch=made[0], else_branch=made[1]), join("q")]


def mapped() -> Sequence[onnx.NodeProto]:
    nodes = [node("Mul", ["x", "z"], ["m"])]
    body = helper.make_graph(nodes, "body", tensors("x", "z"), tensors("m"))
    return [of("s", "a", "b"), node("SequenceMap", ["s", "a"], ["t"], body=body), join("t")]


CASES: dict[str, Sequence[onnx.NodeProto]] = {
    "joined along an axis": [of("s", "a", "b", "a"), join("s", axis=-1, new=0)],
    "joined along a new axis": [of("s", "a", "b"), join("s", axis=-1)],
    "put in at the end": [of("s", "a"), node("SequenceInsert", ["s", "b"], ["t"]), join("t")],
    "put in at the front": [of("s", "a"), node("SequenceInsert", ["s", "b", "zero"], ["t"]), join("t")],
    "put in before the last": [of("s", "a", "b"), node("SequenceInsert", ["s", "b", "back"], ["t"]), join("t")],
    "taken out at the end": [of("s", "a", "b"), node("SequenceErase", ["s"], ["t"]), join("t")],
    "taken out at the front": [of("s", "a", "b"), node("SequenceErase", ["s", "zero"], ["t"]), join("t")],
    "element": [of("s", "a", "b"), node("SequenceAt", ["s", "one"], ["y"])],
    "element from behind": [of("s", "a", "b", "a"), node("SequenceAt", ["s", "back"], ["y"])],
    "length": [of("s", "a", "b"), node("SequenceLength", ["s"], ["y"])],
    "passed on": [of("s", "a", "b"), node("Identity", ["s"], ["t"]), node("SequenceAt", ["t", "one"], ["y"])],
    "split by one": [node("SplitToSequence", ["a"], ["s"], axis=1), join("s")],
    "split without the axis": [node("SplitToSequence", ["a"], ["s"], keepdims=0), join("s", axis=1)],
    "split by two": [node("SplitToSequence", ["a", "two"], ["s"], axis=-1), join("s", axis=1, new=0)],
    "split by two, the rest": [
        node("SplitToSequence", ["a", "two"], ["s"], axis=1), node("SequenceAt", ["s", "back"], ["y"]),
    ],
    "split into parts": [node("SplitToSequence", ["a", "parts"], ["s"]), node("SequenceAt", ["s", "one"], ["y"])],
    "carried by a loop": looped(),
    "of a constant condition": branches("yes"),
    "mapped": mapped(),
    "optional": [node("Optional", ["a"], ["o"]), node("OptionalGetElement", ["o"], ["y"])],
    "optional is there": [node("Optional", ["a"], ["o"]), node("OptionalHasElement", ["o"], ["y"])],
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    made = model(*CASES[name])
    (want,) = reference(made, feeds())
    (got,) = run(made, feeds())
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("condition", [True, False])
def test_a_condition_of_data_chooses_element_by_element(condition: bool) -> None:
    made = model(*branches("c"))
    given = {**feeds(), "c": np.array(condition)}
    (want,) = reference(made, given)
    (got,) = run(made, given)
    np.testing.assert_array_equal(got, want)


REFUSED = {
    "a position of data": [of("s", "a", "b"), node("SequenceAt", ["s", "at"], ["y"])],
    "parts of data": [node("SplitToSequence", ["a", "at"], ["s"]), join("s", axis=0, new=0)],
    "a sequence as output": [of("y", "a", "b")],
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        fission(read_model(model(*REFUSED[name])), foreign=True)
    assert caught.value.code == "F021"
    assert placed(read_model(model(*REFUSED[name])))[1], "a promise that compiling does not keep"
