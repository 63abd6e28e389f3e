"""Constants of low precision that a model dequantizes: numbers while compiling; everything else is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fissile.errors import UnsupportedError
from fissile.fission import fission, placed
from fissile.frontend import read_model
from tests.fission.oracle import reference, run, same

X = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)


def model(
    of: int, zero: int | None, scale: np.ndarray, kind: str = "DequantizeLinear", **more: Any
) -> onnx.ModelProto:
    """x @ (levels - zero) * scale, levels[4, 6]."""
    levels = helper.make_tensor("q", of, [4, 6], np.arange(24) % 7)
    weights = [levels, numpy_helper.from_array(scale, "s")]
    names = ["q", "s"] if kind == "DequantizeLinear" else ["q"]
    if zero is not None:
        weights.append(helper.make_tensor("z", of, scale.shape, np.full(scale.size, zero)))
        names.append("z")
    nodes = [
        helper.make_node(kind, names, ["w"], **more),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


ONE = np.array(0.5, np.float32)
COLUMNS = np.linspace(0.1, 0.9, 6, dtype=np.float32)
BLOCKS = np.linspace(0.1, 0.9, 12, dtype=np.float32).reshape(2, 6)


@pytest.mark.parametrize(
    "of", [TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2]
)
@pytest.mark.parametrize(
    ("scale", "more"), [(ONE, {}), (COLUMNS, {"axis": 1}), (BLOCKS, {"axis": 0, "block_size": 2})]
)
@pytest.mark.parametrize("zero", [None, 2])
def test_dequantized(of: int, scale: np.ndarray, more: dict[str, Any], zero: int | None) -> None:
    if of in (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2):
        zero = None if zero is None else 0
    made = model(of, zero, scale, **more)
    (want,) = reference(made, {"x": X})
    (got,) = run(made, {"x": X})
    assert same(got, want)


def test_what_meets_data_is_refused() -> None:
    made = model(TensorProto.INT4, None, ONE)
    made.graph.initializer.pop()
    made.graph.input.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, []))
    with pytest.raises(UnsupportedError, match="int4") as caught:
        fission(read_model(made), foreign=True)
    assert caught.value.code == "F021"


def test_an_output_of_a_strange_type_is_refused() -> None:
    made = model(TensorProto.INT4, None, ONE)
    made.graph.output.append(onnx.ValueInfoProto(name="q"))
    with pytest.raises(UnsupportedError) as caught:
        fission(read_model(made), foreign=True)
    assert caught.value.code == "F021"
    assert [p.node for p in placed(read_model(made))[1]] == ["q"]
