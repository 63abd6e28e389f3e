"""AffineGrid, and the operators that onnxruntime's optimizer writes, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.fission.oracle import one_operator, reference, run, same

CONTRIB = "com.microsoft"


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def agree(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    for got, want in zip(run(model, feeds), reference(model, feeds), strict=True):
        assert same(got, want), f"{got} is not {want}"


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("size", [(1, 3, 4, 5), (2, 1, 3, 2), (1, 1, 1, 4), (2, 3, 2, 3, 4)])
def test_affine_grid(size: tuple[int, ...], corners: int) -> None:
    rank = len(size) - 2
    feeds = {"theta": draw(size[0], rank, rank + 1), "size": np.array(size)}
    model = one_operator(
        "AffineGrid", [*feeds.items()], opset=20, constants=["size"], align_corners=corners
    )
    if corners and 1 in size[2:]:  # onnxruntime divides by zero; the middle is what torch has
        assert np.isfinite(run(model, {"theta": feeds["theta"]})[0]).all()
        return
    agree(model, {"theta": feeds["theta"]})


def test_affine_grid_of_a_free_size() -> None:
    """The size of an image of the call, and as many matrices as it says."""
    nodes = [
        helper.make_node("Shape", ["image"], ["size"]),
        helper.make_node("AffineGrid", ["theta", "size"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, "h", "w"]),
        helper.make_tensor_value_info("theta", TensorProto.FLOAT, ["n", 2, 3]),
    ]
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    for n, h, w in ((1, 5, 4), (3, 2, 7)):
        agree(model, {"image": draw(n, 3, h, w), "theta": draw(n, 2, 3)})


def contributed(
    kind: str, inputs: dict[str, np.ndarray], outputs: int = 1, **more: Any
) -> onnx.ModelProto:
    model = one_operator(kind, [*inputs.items()], outputs=outputs, **more)
    model.graph.node[0].domain = CONTRIB
    model.opset_import.append(helper.make_opsetid(CONTRIB, 1))
    return model


ACTIVATIONS: dict[str, list[float]] = {
    "": [], "Relu": [], "Tanh": [], "Sigmoid": [], "LeakyRelu": [0.2], "Clip": [-0.5, 1.5], "HardSigmoid": [0.3, 0.4],
}  # fmt: skip


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("more", [True, False])
def test_fused_convolution(kind: str, more: bool) -> None:
    feeds = {"x": draw(2, 4, 6, 5), "w": draw(6, 2, 3, 2, seed=1), "b": draw(6, seed=2)}
    if more:
        feeds["z"] = draw(2, 6, 3, 5, seed=3)
    attributes: dict[str, Any] = {"pads": [1, 0, 1, 1], "strides": [2, 1], "group": 2}
    if kind:
        attributes |= {"activation": kind}
    if ACTIVATIONS[kind]:
        attributes |= {"activation_params": ACTIVATIONS[kind]}
    agree(contributed("FusedConv", feeds, **attributes), feeds)


def test_bias_gelu() -> None:
    feeds = {"x": draw(2, 3, 5), "b": draw(5, seed=1)}
    agree(contributed("BiasGelu", feeds), feeds)


@pytest.mark.parametrize("biased", [True, False])
def test_normalization_of_sums(biased: bool) -> None:
    feeds = {"x": draw(2, 3, 5), "s": draw(2, 3, 5, seed=1), "g": draw(5, seed=2)}
    simple = {**feeds, **({"b": draw(5, seed=3)} if biased else {})}
    agree(contributed("SkipSimplifiedLayerNormalization", simple, epsilon=0.1), simple)
    whole = {**feeds, "h": draw(5, seed=4), **({"b": draw(5, seed=3)} if biased else {})}
    model = contributed("SkipLayerNormalization", whole, outputs=4, epsilon=0.1)
    model.graph.node[0].output[1] = model.graph.node[0].output[2] = ""
    del model.graph.output[1:3]
    agree(model, whole)


@pytest.mark.parametrize("of", [np.uint8, np.int8, np.uint16, np.int16])
def test_quantization(of: type) -> None:
    parts = {"x": draw(3, 4), "s": np.array(0.01, np.float32), "z": np.array(7, of)}
    agree(contributed("QuantizeLinear", parts), parts)
    levels = {**parts, "x": np.arange(12, dtype=of).reshape(3, 4)}
    agree(contributed("DequantizeLinear", levels), levels)
