"""Initializers that are fed: those that an option names, and no other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fissile.errors import OptionError
from fissile.frontend import as_inputs, read_model
from tests.fission.oracle import reference, run

W = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
X = np.random.default_rng(2).normal(size=(2, 4)).astype(np.float32)


def model() -> onnx.ModelProto:
    """y = (x @ w) + b with w and b as defaults of inputs."""
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
             for n, s in (("x", ["n", 4]), ("w", [4, 3]), ("b", [3]))]  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["t"]),
        helper.make_node("Add", ["t", "b"], ["y"]),
    ]
    weights = [numpy_helper.from_array(W, "w"), numpy_helper.from_array(W[0], "b")]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph(nodes, "g", infos, [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=8)


def test_a_named_initializer_is_an_input() -> None:
    operators = as_inputs(read_model(model()), ["w"])
    assert [v.name for v in operators.inputs] == ["x", "w"]
    assert list(operators.initializers) == ["b"]
    feeds = {"x": X, "w": 2 * W}
    (got,) = run(operators, feeds)
    np.testing.assert_allclose(got, reference(model(), feeds)[0], rtol=1e-5)


def test_others_are_constants() -> None:
    operators = read_model(model())
    assert [v.name for v in operators.inputs] == ["x"]
    (got,) = run(operators, {"x": X})
    np.testing.assert_allclose(got, reference(model(), {"x": X})[0], rtol=1e-5)


def test_a_name_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="did you mean") as caught:
        as_inputs(read_model(model()), ["ww"])
    assert caught.value.code == "F617"
