"""Deep and wide models: what compiling does grows with the nodes, not with their square, and nothing is too deep.

Calls of functions are counted, since times depend on the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fissile
from fissile import compiler, pipeline

Nodes = list[onnx.NodeProto]


def model(nodes: Nodes, x: list[int | str], y: str, constants: dict[str, Any]) -> bytes:
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", y)]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, x)
    kept = [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()]
    graph = helper.make_graph(nodes, "g", [given], sides[1:], kept)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    content: bytes = made.SerializeToString()
    return content


def chain(n: int) -> bytes:
    """Functions one after another."""
    kinds = ("Sin", "Tanh", "Neg", "Sigmoid")
    nodes = [
        helper.make_node(kinds[k % 4], [f"v{k}" if k else "x"], [f"v{k + 1}"]) for k in range(n)
    ]
    return model(nodes, ["n"], f"v{n}", {})


def layers(n: int) -> bytes:
    """Products with what they are added to."""
    nodes, last = Nodes(), "x"
    for k in range(n):
        nodes.append(helper.make_node("MatMul", [last, f"w{k}"], [f"m{k}"]))
        nodes.append(helper.make_node("Relu", [f"m{k}"], [f"r{k}"]))
        nodes.append(helper.make_node("Add", [last, f"r{k}"], [f"v{k}"]))
        last = f"v{k}"
    draw = np.random.default_rng(0)
    weights = {f"w{k}": draw.standard_normal((8, 8)).astype(np.float32) / 32 for k in range(n)}
    return model(nodes, ["b", 8], last, weights)


def branches(n: int) -> bytes:
    """Many readers of one tensor, added up."""
    nodes = [helper.make_node("Tanh", ["x"], ["t"])]
    for k in range(n):
        nodes.append(helper.make_node("Mul", ["t", f"c{k}"], [f"a{k}"]))
        nodes.append(helper.make_node("Sin", [f"a{k}"], [f"b{k}"]))
    nodes.append(helper.make_node("Sum", [f"b{k}" for k in range(n)], ["y"]))
    return model(nodes, ["n", 3], "y", {f"c{k}": np.float32(k + 0.5) for k in range(n)})


def pieces(n: int) -> bytes:
    """One concat of many parts."""
    nodes = [helper.make_node("Split", ["x"], [f"p{k}" for k in range(n)], axis=1, num_outputs=n)]
    for k in range(n):
        kind = "Sin" if k % 2 else "Tanh"
        nodes.append(helper.make_node(kind, [f"p{k}"], [f"q{k}"]))
    nodes.append(helper.make_node("Concat", [f"q{k}" for k in range(n)], ["y"], axis=1))
    return model(nodes, ["b", 2 * n], "y", {})


def planned(content: bytes) -> int:
    """How many calls of functions it takes to plan and lower a model."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    work = compiler._work(pipeline, compiler._request(content, None, "x86-64-v3", 1, None, None))
    sys.setprofile(count)
    try:
        pipeline.run(work, lambda event: None, "lower")
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("build", [chain, layers, branches, pieces])
def test_twice_the_nodes_are_twice_the_work(build: Callable[[int], bytes]) -> None:
    planned(build(10))  # what is found out once
    small, large = planned(build(25)), planned(build(100))
    assert large < 4 * 1.25 * small


@pytest.mark.parametrize(
    ("build", "n", "width"),
    [(chain, 4000, 5), (layers, 200, 8), (branches, 300, 3), (pieces, 200, 400)],
)
def test_a_large_model_runs(build: Callable[[int], bytes], n: int, width: int) -> None:
    ort = pytest.importorskip("onnxruntime")
    content = build(n)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((width,) if build is chain else (2, width)).astype(np.float32)
    got = fissile.compile(content, cache=False, threads=1)(x)
    choices = ort.SessionOptions()
    choices.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(content, choices, providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"x": x})
    assert np.allclose(got, want, rtol=1e-4, atol=1e-4)
