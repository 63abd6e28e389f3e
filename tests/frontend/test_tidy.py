"""Models that onnxruntime loads and onnx's checker refuses: read as onnxruntime reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fissile.errors import ModelError, UnsupportedError
from fissile.frontend import read_model
from tests.fission.oracle import reference, run, same

FLOAT = TensorProto.FLOAT
X = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
W = np.random.default_rng(2).normal(size=4).astype(np.float32)
node = helper.make_node


def model(
    *nodes: onnx.NodeProto,
    opsets: Sequence[tuple[str, int]] = (("", 17),),
    initializers: Sequence[onnx.TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """x[n, 4] to y of any shape."""
    x = helper.make_tensor_value_info("x", FLOAT, ["n", 4])
    y = onnx.ValueInfoProto(name="y")
    weights = [numpy_helper.from_array(W, "w"), *initializers]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    made = helper.make_model(graph, functions=functions, ir_version=10)
    del made.opset_import[:]
    made.opset_import.extend(helper.make_opsetid(*o) for o in opsets)
    return made


def unnamed() -> onnx.ModelProto:
    made = model(node("Relu", ["x"], ["y"]))
    made.graph.ClearField("name")
    return made


def from_the_future() -> onnx.ModelProto:
    made = model(node("Relu", ["x"], ["y"]))
    made.ir_version = onnx.IR_VERSION + 3
    return made


def branching(step: int) -> onnx.ModelProto:
    """In order, or backwards (-1) outside of a body and inside, which reads what stands behind its If."""
    inside = [node("Neg", ["x"], ["late"]), node("Add", ["late", "outer"], ["a"])]
    untyped = [helper.make_tensor_value_info(name, FLOAT, None) for name in ("a", "b")]
    then = helper.make_graph(inside[::step], "then", [], untyped[:1])
    other = helper.make_graph([node("Relu", ["x"], ["b"])], "else", [], untyped[1:])
    nodes = [
        node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True))),
        node("Exp", ["x"], ["outer"]),
        node("If", ["c"], ["q"], then_branch=then, else_branch=other),
        node("Mul", ["q", "w"], ["y"]),
    ]
    return model(*nodes[::step])


def strange_constants() -> onnx.ModelProto:
    strange = [
        helper.make_tensor("text", TensorProto.STRING, [2], [b"a", b"b"]),
        helper.make_tensor("nibbles", TensorProto.INT4, [3], [1, 2, 3]),
        helper.make_tensor("eighths", TensorProto.FLOAT8E4M3FN, [2], [1.0, 2.0]),
    ]
    return model(node("Relu", ["x"], ["y"]), initializers=strange)


READ_BY_BOTH: dict[str, Callable[[], onnx.ModelProto]] = {
    "no name": unnamed,
    "unused constants of strange types": strange_constants,
    "early LayerNormalization": lambda: model(
        node("LayerNormalization", ["x", "w", "w"], ["y"], epsilon=0.1), opsets=[("", 13)]
    ),
    "SimplifiedLayerNormalization": lambda: model(
        node("SimplifiedLayerNormalization", ["x", "w"], ["y"], epsilon=0.1)
    ),
    "the inverse of SimplifiedLayerNormalization": lambda: model(
        node("SimplifiedLayerNormalization", ["x", "w"], ["t", "y"], axis=0)
    ),
    "a contributed operator without its domain imported": lambda: model(
        node("Gelu", ["x"], ["y"], domain="com.microsoft")
    ),
    "ONNX's own domain not imported": lambda: model(
        node("Relu", ["x"], ["y"]), opsets=[("com.microsoft", 1)]
    ),
    "ONNX's own domain by its long name": lambda: model(
        node("Relu", ["x"], ["y"], domain="ai.onnx"), opsets=[("ai.onnx", 17)]
    ),
}


@pytest.mark.parametrize("name", READ_BY_BOTH)
def test_read_as_onnxruntime_reads_it(name: str) -> None:
    made = READ_BY_BOTH[name]()
    (want,) = reference(made, {"x": X})
    (got,) = run(made, {"x": X})
    assert same(got, want)


def test_out_of_order() -> None:
    """onnxruntime itself sorts the outermost graph alone."""
    (want,) = reference(branching(1), {"x": X})
    (got,) = run(branching(-1), {"x": X})
    assert same(got, want)


READ_BY_US: dict[str, Callable[[], onnx.ModelProto]] = {
    "a newer IR": from_the_future,
    "no import at all": lambda: model(node("Relu", ["x"], ["y"]), opsets=[]),
    "an unknown operator that nobody needs": lambda: model(
        node("Foo", ["x"], ["t"], domain="my.ops"), node("Relu", ["x"], ["y"])
    ),
}


@pytest.mark.parametrize("name", READ_BY_US)
def test_read_where_onnxruntime_refuses(name: str) -> None:
    (got,) = run(READ_BY_US[name](), {"x": X})
    assert np.array_equal(got, np.maximum(X, 0))


def test_what_a_model_says_is_kept() -> None:
    made = from_the_future()
    made.graph.ClearField("name")
    found = read_model(made).metadata
    assert (found.ir_version, found.graph_name) == (onnx.IR_VERSION + 3, "")


def test_a_function_of_another_opset() -> None:
    """Its operators mean what its own opset says; here the axes of ReduceSum are an attribute."""
    body = [node("ReduceSum", ["a"], ["o"], axes=[1], keepdims=0)]
    made = helper.make_function("own", "sum", ["a"], ["o"], body, [helper.make_opsetid("", 11)])
    (got,) = run(
        model(
            node("sum", ["x"], ["y"], domain="own"), opsets=[("", 17), ("own", 1)], functions=[made]
        ),
        {"x": X},
    )
    np.testing.assert_allclose(got, X.sum(1), rtol=1e-6)


def test_a_circle_is_refused() -> None:
    made = model(
        node("Add", ["t", "x"], ["y"], name="first"), node("Neg", ["y"], ["t"], name="second")
    )
    with pytest.raises(ModelError) as caught:
        read_model(made)
    assert caught.value.code == "F012"
    assert {p.node for p in caught.value.where} == {"first", "second"}


def test_one_name_for_two_values_is_refused() -> None:
    made = model(node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"]))
    with pytest.raises(ModelError) as caught:
        read_model(made)
    assert caught.value.code == "F012"


def test_an_unknown_operator_is_refused() -> None:
    with pytest.raises(UnsupportedError) as caught:
        read_model(model(node("Foo", ["x"], ["y"])))
    assert caught.value.code == "F021"


def test_a_long_chain_and_a_wide_graph_are_sorted_in_linear_time() -> None:
    """20,000 nodes written backwards; a quadratic sort would take minutes."""
    names = ["x", *(f"t{k}" for k in range(19_999)), "y"]
    nodes = [node("Relu", [a], [b]) for a, b in zip(names, names[1:], strict=False)]
    operators = read_model(model(*reversed(nodes))).operators
    assert [o.outputs[0] for o in operators] == names[1:]


@pytest.mark.parametrize("rows", [0, 2])
def test_a_declared_extent_of_zero_is_open(rows: int) -> None:
    """Some exporters write 0 for what they do not know; onnxruntime then takes no other extent."""
    made = model(node("Relu", ["x"], ["y"]))
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 0
    (got,) = run(made, {"x": X[:rows]})
    assert np.array_equal(got, np.maximum(X[:rows], 0))
