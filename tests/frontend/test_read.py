"""Reading models: what the operator graph holds, and one clear error for each kind of bad model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fissile.errors import FileMissing, ModelError, UnsupportedError
from fissile.frontend import OperatorGraph, read_model
from fissile.frontend.function import function_body

W = np.arange(12, dtype=np.float32).reshape(3, 4)


def model(opset: int = 18, domain: str = "", kind: str = "MatMul", **more: Any) -> onnx.ModelProto:
    node = helper.make_node(kind, ["x", "w"], ["y"], name="product", domain=domain)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(W, "w")])
    opsets = [helper.make_opsetid("", opset)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **more)


def external(folder: Path) -> Path:
    path = folder / "m.onnx"
    onnx.save(model(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def redirected(path: Path, key: str, value: str) -> Path:
    proto = onnx.load(path, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == key:
            entry.value = value
    path.write_bytes(proto.SerializeToString())
    return path


def test_the_same_from_path_bytes_and_proto(tmp_path: Path) -> None:
    proto = model()
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    before = proto.SerializeToString()
    graphs = [read_model(path), read_model(str(path)), read_model(before), read_model(proto)]
    assert proto.SerializeToString() == before
    assert len({g.metadata.sha256 for g in graphs}) == 1
    for graph in graphs:
        (operator,) = graph.operators
        assert (operator.type, operator.version, operator.inputs) == ("MatMul", 18, ("x", "w"))
        assert graph.inputs[0].shape == ("n", 3)
        np.testing.assert_array_equal(graph.initializers["w"], W)
    assert graphs[0].metadata.file_name == "m.onnx"


def test_metadata() -> None:
    proto = model(producer_name="me", doc_string="words")
    helper.set_model_props(proto, {"character": "a\nb"})
    found = read_model(proto).metadata
    assert (found.producer, found.doc, found.custom) == ("me", "words", {"character": "a\nb"})


def test_external_data_is_mapped(tmp_path: Path) -> None:
    graph = read_model(external(tmp_path))
    array = graph.initializers["w"]
    assert isinstance(array, np.memmap)
    np.testing.assert_array_equal(array, W)


def test_the_digest_covers_external_data(tmp_path: Path) -> None:
    path = external(tmp_path)
    before = read_model(path).metadata.sha256
    (tmp_path / "w.bin").write_bytes((W + 1).tobytes())
    assert read_model(path).metadata.sha256 != before


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "a/../../w.bin", ""])
def test_external_data_outside_the_folder(tmp_path: Path, location: str) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path = redirected(external(inner), "location", location)
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    with pytest.raises(ModelError, match="F017"):
        read_model(path)


def test_external_data_behind_a_link(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path = external(inner)
    (inner / "w.bin").rename(tmp_path / "w.bin")
    os.symlink(tmp_path / "w.bin", inner / "w.bin")
    with pytest.raises(ModelError, match="F017"):
        read_model(path)


def test_external_data_missing_short_or_without_a_folder(tmp_path: Path) -> None:
    path = external(tmp_path)
    with pytest.raises(ModelError, match="F015"):
        read_model(path.read_bytes())
    assert read_model(path.read_bytes(), base_dir=tmp_path).initializers["w"].shape == (3, 4)
    (tmp_path / "w.bin").write_bytes(b"123")
    with pytest.raises(ModelError, match="F018"):
        read_model(path)
    redirected(path, "offset", "-4")
    with pytest.raises(ModelError, match="F018"):
        read_model(path)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(FileMissing, match="F016"):
        read_model(path)


@pytest.mark.parametrize("content", [b"", b"\x00\x01 nonsense", b"\x08\x0a"])
def test_broken_protobuf(content: bytes) -> None:
    with pytest.raises(ModelError, match="not an ONNX model"):
        read_model(content)


def test_truncated_at_any_byte() -> None:
    content = model().SerializeToString()
    for n in range(0, len(content), 7):
        with pytest.raises((ModelError, UnsupportedError)):
            read_model(content[:n])


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileMissing, match="F010"):
        read_model(tmp_path / "none.onnx")


@pytest.mark.parametrize("opset", [1, 6, 999])
def test_unknown_opset(opset: int) -> None:
    with pytest.raises(UnsupportedError, match="F020"):
        read_model(model(opset))


def test_unknown_domain_and_operator() -> None:
    with pytest.raises(UnsupportedError, match="acme"):
        read_model(model(domain="acme", kind="Spin"))
    with pytest.raises(UnsupportedError, match="Spin"):
        read_model(model(kind="Spin"))


def test_missing_initializer_and_wrong_size() -> None:
    proto = model()
    del proto.graph.initializer[:]
    with pytest.raises(ModelError, match="w"):
        read_model(proto)
    proto = model()
    proto.graph.initializer[0].raw_data = b"1234"
    with pytest.raises(ModelError, match="w"):
        read_model(proto)


def test_two_initializers_of_one_name() -> None:
    proto = model()
    proto.graph.initializer.append(proto.graph.initializer[0])
    with pytest.raises(ModelError, match="distinct"):
        read_model(proto)


def test_unnamed_extents() -> None:
    proto = model()
    shape = proto.graph.input[0].type.tensor_type.shape
    shape.dim[0].dim_param = "?"
    shape.dim[1].dim_value = -1
    assert read_model(proto).inputs[0].shape == (None, None)


def test_outputs_need_no_declared_type() -> None:
    proto = model()
    proto.graph.output[0].ClearField("type")
    assert read_model(proto).outputs[0].shape is None


def test_local_functions_are_inlined() -> None:
    body = [helper.make_node("Mul", ["a", "a"], ["b"])]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Square", ["a"], ["b"], body, opsets[:1])
    node = helper.make_node("Square", ["x"], ["y"], domain="own")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
    graph = helper.make_graph([node], "g", [x], [y])
    proto = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=10)
    assert [o.type for o in read_model(proto).operators] == ["Mul"]


def test_attributes_are_python_values() -> None:
    node = helper.make_node(
        "Conv", ["x", "w"], ["y"], kernel_shape=[3, 3], auto_pad="SAME_UPPER", group=1
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 5, 5])
    w = numpy_helper.from_array(np.ones((1, 1, 3, 3), np.float32), "w")
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [x], [y], [w])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (operator,) = read_model(proto).operators
    want = {"kernel_shape": (3, 3), "auto_pad": "SAME_UPPER", "group": 1}
    assert dict(operator.attributes) == want


def test_subgraphs_are_operator_graphs() -> None:
    value = numpy_helper.from_array(np.float32(1), "v")
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, [])
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["o"], value=value)], "b", [], [out]
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    c = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
    graph = helper.make_graph([node], "g", [c], [y])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (operator,) = read_model(proto).operators
    body = operator.attr("then_branch")
    assert isinstance(body, OperatorGraph)
    assert [o.type for o in body.operators] == ["Constant"]


def test_function_bodies_of_operators() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    node = helper.make_node("MeanVarianceNormalization", ["x"], ["y"], axes=[0])
    graph = helper.make_graph([node], "g", [x], [y])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (operator,) = read_model(proto).operators
    body = function_body(operator, [("float32", (2, 3))])
    assert body is not None
    assert {o.type for o in body.operators} >= {"ReduceMean", "Sqrt"}
