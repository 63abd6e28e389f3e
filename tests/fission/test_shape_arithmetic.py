"""Drawn shape arithmetic, negative and float intermediates included: no node of it runs in Python.

Each graph computes integers from the extents of its input and uses them as data and as a shape. Its values are those of
ONNX Runtime at many extents, by the primitive graph and by machine code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import fissile
from fissile.fission.driver import fission
from fissile.fission.export import export
from fissile.fission.values import known
from fissile.frontend.read import read_model
from fissile.ir.graph import evaluate

EXTENTS = ((0, 1), (1, 0), (1, 1), (2, 3), (5, 4), (8, 33), (97, 14))
_PAIRS = ("Add", "Sub", "Mul", "Max", "Min", "Div", "Mod")
_RELATIONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")


@dataclass
class Drawn:
    """A model under construction: integers (rank 1, one element), floats and truths by name."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)
    real: list[str] = field(default_factory=list)
    truth: list[str] = field(default_factory=list)

    def emit(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def some(self, values: list[str]) -> str:
        return values[int(self.rng.integers(len(values)))]

    def positive(self) -> str:
        if self.rng.random() < 0.7:
            return self.constant([int(self.rng.integers(1, 9))])
        return self.emit("Max", self.some(self.whole), self.constant([1]))


def _whole(d: Drawn) -> str:
    name = d.some([*_PAIRS])
    a = d.some(d.whole)
    if name in ("Div", "Mod"):
        b = d.positive()
        if name == "Mod":
            return d.emit("Mod", a, b, fmod=int(d.rng.integers(2)))
        return d.emit("Div", a, d.emit("Neg", b) if d.rng.random() < 0.2 else b)
    b = d.some(d.whole) if d.rng.random() < 0.4 else d.constant([int(d.rng.integers(-9, 10))])
    return d.emit(name, a, b)


def _single(d: Drawn) -> str:
    return d.emit(d.some(["Neg", "Abs", "Sign"]), d.some(d.whole))


def _truth(d: Drawn) -> None:
    kind = int(d.rng.integers(4))
    if kind == 0 or not d.truth:
        b = d.some(d.whole) if d.rng.random() < 0.5 else d.constant([int(d.rng.integers(-5, 9))])
        d.truth.append(d.emit(d.some([*_RELATIONS]), d.some(d.whole), b))
    elif kind == 1:
        d.truth.append(d.emit("Not", d.some(d.truth)))
    elif kind == 2:
        d.truth.append(d.emit(d.some(["And", "Or", "Xor"]), d.some(d.truth), d.some(d.truth)))
    else:
        d.truth.append(d.emit("Cast", d.some(d.whole), to=TensorProto.BOOL))


def _real(d: Drawn) -> None:
    if not d.real or d.rng.random() < 0.2:
        d.real.append(d.emit("Cast", d.some(d.whole), to=TensorProto.FLOAT))
        return
    a, kind = d.some(d.real), int(d.rng.integers(4))
    if kind == 0:
        d.real.append(d.emit(d.some(["Floor", "Ceil", "Neg", "Abs", "Round"]), a))
    elif kind == 1:
        by = d.emit("Cast", d.positive(), to=TensorProto.FLOAT)
        d.real.append(d.emit("Div", a, by))
    else:
        scale = d.some(["0.5", "0.1", "1.3333334", "2", "-0.75", "16"])
        b = d.constant([float(scale)], np.float32) if d.rng.random() < 0.7 else d.some(d.real)
        d.real.append(d.emit(d.some(["Mul", "Add", "Sub", "Min", "Max"]), a, b))


def _step(d: Drawn) -> None:
    kind = int(d.rng.integers(8))
    if kind < 3:
        d.whole.append(_whole(d))
    elif kind == 3:
        d.whole.append(_single(d))
    elif kind == 4:
        _truth(d)
    elif kind == 5 and d.truth:
        if d.rng.random() < 0.4:
            d.whole.append(d.emit("Cast", d.some(d.truth), to=TensorProto.INT64))
        else:
            d.whole.append(d.emit("Where", d.some(d.truth), d.some(d.whole), d.some(d.whole)))
    elif kind == 6 and d.real:
        limit = d.constant([1e6], np.float32)  # what ONNX does not define is not asked for
        low = d.emit("Max", d.emit("Min", d.some(d.real), limit), d.constant([-1e6], np.float32))
        d.whole.append(d.emit("Cast", low, to=TensorProto.INT64))
    else:
        _real(d)
    if d.whole[-1] == f"v{len(d.nodes) - 1}":  # so that products stay small
        d.whole[-1] = d.emit("Mod", d.whole[-1], d.constant([1009]), fmod=1)


def drawn(seed: int) -> onnx.ModelProto:
    """A model of input x [s, t]: integers `y` computed from s and t, and zeros `z` of a shape made of them."""
    d = Drawn(np.random.default_rng(seed))
    shape = d.emit("Shape", "x")
    d.whole += [d.emit("Gather", shape, d.constant([k]), axis=0) for k in (0, 1)]
    for _ in range(int(d.rng.integers(3, 14))):
        _step(d)
    d.nodes.append(helper.make_node("Concat", d.whole, ["y"], axis=0))
    size = d.emit("Mod", d.emit("Abs", d.whole[-1]), d.constant([7]))
    d.nodes.append(helper.make_node("ConstantOfShape", [size], ["z"]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["s", "t"])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [None])
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, [None])
    graph = helper.make_graph(d.nodes, "drawn", [x], [y, z], d.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def _wanted(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [np.asarray(v) for v in session.run(["y", "z"], feeds)]


@pytest.mark.parametrize("seed", range(40))
def test_primitive_graph_agrees(seed: int) -> None:
    model = drawn(seed)
    graph = fission(read_model(model))
    outputs = dict(graph.outputs)
    assert known(outputs["y"]) is not None, "the values are not extents"
    for s, t in EXTENTS:
        x = {"x": np.zeros((s, t), np.float32)}
        y, z = _wanted(model, x)
        got = evaluate(graph, x, {"s": s, "t": t})
        np.testing.assert_array_equal(got["y"], y, err_msg=f"at {s}, {t}")
        assert got["z"].shape == z.shape


@pytest.mark.parametrize("seed", range(40))
def test_exported_graph_agrees(seed: int) -> None:
    model = drawn(seed)
    exported = export(fission(read_model(model)))
    for s, t in EXTENTS:
        x = {"x": np.zeros((s, t), np.float32)}
        for got, want in zip(_wanted(exported, x), _wanted(model, x), strict=True):
            np.testing.assert_array_equal(got, want, err_msg=f"at {s}, {t}")


@pytest.mark.parametrize("seed", range(1000, 1008))
def test_machine_code_agrees(seed: int) -> None:
    model = drawn(seed)
    exe = fissile.compile(model)
    for s, t in EXTENTS:
        x = {"x": np.zeros((s, t), np.float32)}
        y, z = _wanted(model, x)
        got = exe.run(x)
        np.testing.assert_array_equal(got["y"], y, err_msg=f"at {s}, {t}")
        assert got["z"].shape == z.shape
