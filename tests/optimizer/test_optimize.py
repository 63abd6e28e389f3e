"""`optimize`: equal values in onnxruntime, the same face, and nodes that nothing touched left as they were."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from fissile.commands.optimize import optimize_command
from fissile.compare.split import write_model
from fissile.errors import FileAccess, OptionError
from fissile.frontend import read_model
from fissile.ir.graph import Graph
from fissile.optimizer import model as model_room
from fissile.optimizer import optimized
from fissile.optimizer.cost import portable
from fissile.optimizer.follow import core, follow
from fissile.rewrite.substitute import Budget, Cost

F = TensorProto.FLOAT
DRAW = np.random.default_rng(5)


def weight(name: str, *shape: int) -> onnx.TensorProto:
    array = DRAW.standard_normal(shape) / max(prod(shape[1:]), 1) ** 0.5
    return numpy_helper.from_array(array.astype(np.float32), name)


def model_of(
    nodes: list[onnx.NodeProto],
    weights: list[onnx.TensorProto],
    inputs: dict[str, list[int | str]],
    outputs: list[str],
    opset: int = 18,
) -> onnx.ModelProto:
    ins = [helper.make_tensor_value_info(n, F, s) for n, s in inputs.items()]
    outs = [helper.make_tensor_value_info(n, F, None) for n in outputs]
    graph = helper.make_graph(nodes, "net", ins, outs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    helper.set_model_props(model, {"made": "here"})
    model.producer_name = "somebody"
    return onnx.shape_inference.infer_shapes(model)


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray], level: str) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: list[np.ndarray] = session.run(None, feeds)
    return found


def agree(before: onnx.ModelProto, after: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    onnx.checker.check_model(after, full_check=True)
    assert list(after.graph.input) == list(before.graph.input)
    assert [o.name for o in after.graph.output] == [o.name for o in before.graph.output]
    assert after.opset_import == before.opset_import
    assert after.metadata_props == before.metadata_props
    assert after.producer_name == before.producer_name
    expected = run(before, feeds, "ORT_DISABLE_ALL")
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        for x, y in zip(run(after, feeds, level), expected, strict=True):
            assert x.shape == y.shape
            assert np.abs(x - y).max(initial=0) <= 1e-4 * max(np.abs(y).max(initial=0), 1e-6)


def feeds_for(model: onnx.ModelProto, free: int) -> dict[str, np.ndarray]:
    shapes = {
        i.name: [d.dim_value or free for d in i.type.tensor_type.shape.dim] for i in model.graph.input
    }
    return {n: DRAW.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def decode_head(batch: int | str, opset: int = 18) -> onnx.ModelProto:
    """Features of two sizes, made equally large, side by side, and mixed by a convolution of one tap."""
    node = helper.make_node
    sizes = numpy_helper.from_array(np.array([1, 1, 4, 4], np.float32), "sizes")
    nodes = [
        node("Conv", ["a", "wa"], ["fa"], name="low"),
        node("Resize", ["fa", "", "sizes"], ["ra"], mode="linear"),
        node("Conv", ["b", "wb"], ["fb"]),
        node("Concat", ["ra", "fb"], ["both"], axis=1),
        node("Conv", ["both", "w", "bias"], ["mixed"]),
        node("Relu", ["mixed"], ["y"]),
    ]
    weights = [
        weight("wa", 64, 8, 1, 1), weight("wb", 64, 8, 1, 1), weight("w", 24, 128, 1, 1),
        weight("bias", 24), sizes,
    ]  # fmt: skip
    shapes: dict[str, list[int | str]] = {"a": [batch, 8, 9, 7], "b": [batch, 8, 36, 28]}
    return model_of(nodes, weights, shapes, ["y"], opset)


@pytest.mark.parametrize("opset", [13, 17, 18, 20])
def test_resize_and_mixing_change_places(opset: int) -> None:
    before = decode_head(1, opset)
    done = optimized(before)
    assert done.gain > 1.2
    kinds = Counter(n.op_type for n in done.model.graph.node)
    assert kinds["Concat"] == 0
    assert kinds["Transpose"] == 0
    assert kinds["Resize"] == 1
    assert kinds["Relu"] == 1
    agree(before, done.model, feeds_for(before, 1))


def test_free_batch_stays_free() -> None:
    before = decode_head("n")
    done = optimized(before)
    assert done.log
    for n in (1, 3):
        agree(before, done.model, feeds_for(before, n))


def test_repeated_pixels_before_a_convolution() -> None:
    node = helper.make_node
    twice = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "twice")
    border = numpy_helper.from_array(np.array([0, 0, 1, 1, 0, 0, 1, 1]), "border")
    nodes = [
        node("Conv", ["x", "w0"], ["r"], pads=[1, 1, 1, 1]),
        node("Resize", ["r", "", "twice"], ["u"], mode="nearest",
             coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        node("Pad", ["u", "border"], ["p"], mode="reflect"),
        node("Conv", ["p", "w", "b"], ["c"]),
        node("InstanceNormalization", ["c", "s", "t"], ["y"]),
    ]  # fmt: skip
    weights = [weight("w0", 64, 3, 3, 3), weight("w", 32, 64, 3, 3), weight("b", 32)]
    weights += [weight("s", 32), weight("t", 32)]
    before = model_of(nodes, [*weights, twice, border], {"x": [1, 3, 24, 26]}, ["y"])
    done = optimized(before)
    kinds = Counter(n.op_type for n in done.model.graph.node)
    assert kinds["DepthToSpace"] == 1
    assert kinds["InstanceNormalization"] == 1
    agree(before, done.model, feeds_for(before, 1))


def test_what_nothing_gains_is_left_alone() -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    before = model_of(nodes, [weight("w", 4, 3, 3, 3)], {"x": [1, 3, 9, 9]}, ["y"])
    done = optimized(before)
    assert not done.log
    assert done.model == before
    assert optimized(before.SerializeToString()).model == before


def test_old_opsets_are_left_alone_and_named() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    done = optimized(model_of(nodes, [], {"x": [1, 3, 9, 9]}, ["y"], 11))
    assert "opset 11" in done.note


def test_rules_can_be_left_out() -> None:
    done = optimized(decode_head(1), disabled=["split_product", "product_before_map"])
    assert not {"split_product", "product_before_map"} & {f.rule for f in done.log}
    with pytest.raises(OptionError, match="F603"):
        optimized(decode_head(1), disabled=["split_produkt"])


def test_large_weights_lie_beside_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = decode_head(1)
    monkeypatch.setattr(model_room, "_LIMIT", 4096)
    path = tmp_path / "m.onnx"
    write_model(before, path)
    write_model(before, path)  # again: nothing is appended
    assert (tmp_path / "m.onnx.data").stat().st_size < 100_000
    agree(before, optimized(path).model, feeds_for(before, 1))


def test_subgraphs_read_what_new_nodes_make() -> None:
    """A branch that reads a value whose computation changed."""
    node, info = helper.make_node, helper.make_tensor_value_info
    before = decode_head(1)
    taken, other = (
        helper.make_graph([node(op, ["mixed"], [f"{op}_out"])], op, [], [info(f"{op}_out", F, None)])
        for op in ("Neg", "Abs")
    )
    nodes = [
        *before.graph.node,
        node("ReduceSum", ["y"], ["total"], keepdims=0),
        node("Greater", ["total", "level"], ["is_high"]),
        node("If", ["is_high"], ["z"], then_branch=taken, else_branch=other),
    ]
    level = numpy_helper.from_array(np.array(0, np.float32), "level")
    shapes: dict[str, list[int | str]] = {"a": [1, 8, 9, 7], "b": [1, 8, 36, 28]}
    whole = model_of(nodes, [*before.graph.initializer, level], shapes, ["y", "z"])
    done = optimized(whole)
    assert done.log
    agree(whole, done.model, feeds_for(whole, 1))


def fancy(seed: int) -> Cost:
    """A cost by which any rule may pay: what a primitive costs is drawn."""

    def cost(graph: Graph) -> float:
        names = (f"{n.name}{n.shape}{seed}" for n in graph.nodes())
        return sum(1 + zlib.crc32(name.encode()) % 97 for name in names)

    return cost


@st.composite
def networks(draw: st.DrawFn) -> onnx.ModelProto:
    """Branches over one image: convolutions, joins, halves, larger images, sums."""
    node = helper.make_node
    batches: list[int | str] = [1, 2, "n"]
    n = draw(st.sampled_from(batches))
    high, wide = draw(st.sampled_from([(4, 6), (5, 3), (1, 4)]))
    weights = [numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "twice")]
    nodes, images, large = [], [("x", 4)], []
    for k in range(draw(st.integers(3, 8))):
        kind = draw(st.sampled_from(["conv", "point", "concat", "split", "add", "relu", "large"]))
        (a, ca), (b, cb) = (draw(st.sampled_from(images)) for _ in "ab")
        y, outs = f"v{k}", draw(st.sampled_from([1, 3, 4]))
        if kind in ("conv", "point"):
            size = 3 if kind == "conv" else 1
            weights += [weight(f"w{k}", outs, ca, size, size), weight(f"b{k}", outs)]
            nodes.append(node("Conv", [a, f"w{k}", f"b{k}"], [y], pads=[size // 2] * 4))
            images.append((y, outs))
        elif kind == "concat":
            nodes.append(node("Concat", [a, b], [y], axis=1))
            images.append((y, ca + cb))
        elif kind == "split" and ca % 2 == 0:
            nodes.append(node("Split", [a], [y, f"{y}_"], axis=1, num_outputs=2))
            images += [(y, ca // 2), (f"{y}_", ca // 2)]
        elif kind == "add" and ca == cb:
            nodes.append(node("Add", [a, b], [y]))
            images.append((y, ca))
        elif kind == "large":
            mode = draw(st.sampled_from(["nearest", "linear"]))
            how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            weights.append(weight(f"w{k}", outs, ca, 1, 1))
            nodes.append(node("Resize", [a, "", "twice"], [f"{y}_"], mode=mode, **how))
            nodes.append(node("Conv", [f"{y}_", f"w{k}"], [y]))
            large.append(y)
        else:
            nodes.append(node("Relu", [a], [y]))
            images.append((y, ca))
    outputs = [*large, *(o for o in nodes[-1].output if o not in large)]
    return model_of(nodes, weights, {"x": [n, 4, high, wide]}, outputs)


@settings(max_examples=25, deadline=None)
@given(networks(), st.integers(0, 3))
def test_whatever_fires_the_values_stay(before: onnx.ModelProto, seed: int) -> None:
    done = optimized(before, cost=fancy(seed), budget=Budget(graphs=60))
    assert not done.note, done.note
    agree(before, done.model, feeds_for(before, 2))


# ---------------------------------------------------------------- everything out of primitives


def anew(before: onnx.ModelProto) -> onnx.ModelProto:
    """The model with no old node left that could be written anew."""
    operators = read_model(before)
    followed = follow(operators, portable(), [])
    live = set(followed.graph.nodes())
    names = frozenset(n for n, node in followed.nodes.items() if core(node) in live)
    opset = operators.metadata.opsets[""]
    composed = model_room._composed(before, operators, replace(followed, changed=names), opset)
    assert composed is not None
    return composed[0]


@settings(max_examples=15, deadline=None)
@given(networks())
def test_networks_out_of_primitives(before: onnx.ModelProto) -> None:
    after = anew(before)
    agree(before, after, feeds_for(before, 2))


@pytest.mark.parametrize("extent", [1, 3, "n"])
@pytest.mark.parametrize("last", ["Div", "Sub", "Add", "Mul", "Max", "Exp"])
def test_scalars_have_no_last_axis(extent: int | str, last: str) -> None:
    """A product, a sum and a root of rank 0, in all the places where the patterns look at the last axis."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w"], ["p"]), node("ReduceSum", ["p"], ["s"], keepdims=0),
        node("Mul", ["s", "s"], ["q"]), node("Add", ["q", "one"], ["e"]), node("Sqrt", ["e"], ["r"]),
        node("Sub", ["s", "r"], ["d"]), node("Exp", ["d"], ["t"]), node("Div", ["t", "r"], ["u"]),
        node("Reshape", ["u", "none"], ["v"]), node(last, ["v", "one"][: 1 + (last != "Exp")], ["y"]),
        node("Transpose", ["v"], ["z"]), node("Expand", ["v", "wide"], ["k"]),
    ]  # fmt: skip
    constants = [
        numpy_helper.from_array(np.array(1.5, np.float32), "one"), weight("w", 3, 1),
        numpy_helper.from_array(np.zeros(0, np.int64), "none"),
        numpy_helper.from_array(np.array([2, 1]), "wide"),
    ]  # fmt: skip
    before = model_of(nodes, constants, {"x": [extent, 3]}, ["y", "z", "k"])
    after = anew(before)
    for n in (1, 4):
        agree(before, after, feeds_for(before, n))


@pytest.mark.parametrize("opset", [13, 17, 18])
@pytest.mark.parametrize("rows", [1, 5, "n"])
def test_softmax_and_normalization_are_recognised(opset: int, rows: int | str) -> None:
    node = helper.make_node
    nodes = [
        node("ReduceMean", ["x"], ["m"], axes=[-1], keepdims=1) if opset < 18
        else node("ReduceMean", ["x", "last"], ["m"], keepdims=1),
        node("Sub", ["x", "m"], ["d"]),
        node("Mul", ["d", "d"], ["q"]),
        node("ReduceMean", ["q"], ["v"], axes=[-1], keepdims=1) if opset < 18
        else node("ReduceMean", ["q", "last"], ["v"], keepdims=1),
        node("Add", ["v", "eps"], ["e"]),
        node("Sqrt", ["e"], ["r"]),
        node("Div", ["d", "r"], ["normal"]),
        node("MatMul", ["normal", "w"], ["scores"]),
        node("Softmax", ["scores"], ["y"], axis=-1),
    ]  # fmt: skip
    constants = [
        numpy_helper.from_array(np.array(1e-5, np.float32), "eps"),
        numpy_helper.from_array(np.array([-1]), "last"), weight("w", 12, 7),
    ]  # fmt: skip
    before = model_of(nodes, constants, {"x": [2, rows, 12]}, ["y"], opset)
    after = anew(before)
    kinds = Counter(n.op_type for n in after.graph.node)
    assert kinds["Softmax"] == 1
    assert kinds["LayerNormalization"] == (opset >= 17)
    for n in (1, 4):
        agree(before, after, feeds_for(before, n))


@pytest.mark.parametrize("name", ["model.onnx", "model.fsl", "."])
def test_what_must_not_be_overwritten_is_refused_before_the_work(name: str, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"untouched")
    with pytest.raises(FileAccess, match="F5"):
        optimize_command.main([str(model), "-o", str(tmp_path / name)], standalone_mode=False)
    assert model.read_bytes() == b"untouched"
