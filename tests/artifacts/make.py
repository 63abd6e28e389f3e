"""Make the files of a folder beside this one with the version of fissile that is installed.

In: the name of a new folder. Out: models, artifacts, a plan file, a tuning store, and `cases.npz` with feeds and
outputs. It is run once per layout of artifacts, at the commit that the README names, and never again: files of the
past cannot be made later.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import fissile
from fissile import compiler

FLOAT = TensorProto.FLOAT
Array = np.ndarray[Any, np.dtype[Any]]


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int | str]],
    outputs: dict[str, int],
    weights: dict[str, Array],
) -> onnx.ModelProto:
    """float32 inputs by shape, outputs by element type."""
    given = [helper.make_tensor_value_info(n, FLOAT, shape) for n, shape in inputs.items()]
    found = [helper.make_tensor_value_info(n, kind, None) for n, kind in outputs.items()]
    held = [numpy_helper.from_array(w, name) for name, w in weights.items()]
    graph = helper.make_graph(nodes, "g", given, found, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def models(draw: np.random.Generator) -> dict[str, onnx.ModelProto]:
    """By name."""

    def weight(*shape: int) -> Array:
        return draw.standard_normal(shape).astype(np.float32)

    node = helper.make_node
    head = [
        node("Gemm", ["x", "w", "b"], ["h"], name="head"),
        node("Softmax", ["h"], ["y"], name="odds"),
    ]
    plain = model(head, {"x": [3, 5]}, {"y": FLOAT}, {"w": weight(5, 7), "b": weight(7)})
    window = [
        node("Conv", ["x", "k"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], name="relu"),
        node("ReduceMean", ["r"], ["y"], name="mean", axes=[2, 3], keepdims=0),
        node("Transpose", ["r"], ["z"], name="turn", perm=[0, 2, 3, 1]),
    ]
    shape: list[int | str] = ["n", 3, "h", "w"]
    free = model(window, {"x": shape}, {"y": FLOAT, "z": FLOAT}, {"k": weight(5, 3, 3, 3)})
    picked = [
        node("Mul", ["x", "s"], ["m"], name="scale"),
        node("Unique", ["m"], ["u", "", "back", "count"], name="unique"),
        node("Exp", ["u"], ["e"], name="exp"),
    ]
    outputs = {"e": FLOAT, "back": TensorProto.INT64, "count": TensorProto.INT64}
    foreign = model(picked, {"x": ["n", 3]}, outputs, {"s": weight(3)})
    layers = [
        node("MatMul", ["x", "u"], ["a"], name="up"),
        node("Tanh", ["a"], ["t"], name="tanh"),
        node("MatMul", ["t", "v"], ["d"], name="down"),
        node("Add", ["d", "x"], ["y"], name="residual"),
    ]
    weights = {"u": weight(31, 45), "v": weight(45, 31)}
    gang = model(layers, {"x": ["n", 31]}, {"y": FLOAT}, weights)
    return {"plain": plain, "free": free, "foreign": foreign, "gang": gang}


FEEDS: dict[str, list[tuple[int, ...]]] = {
    "plain": [(3, 5)],
    "free": [(1, 3, 4, 5), (2, 3, 7, 6), (3, 3, 1, 1)],
    "foreign": [(1, 3), (5, 3)],
    "gang": [(1, 31), (257, 31)],
}


def main(folder: Path) -> None:
    """Make everything."""
    folder.mkdir()
    draw = np.random.default_rng(7)
    cases: dict[str, Array] = {}
    for name, proto in models(draw).items():
        path = folder / f"{name}.onnx"
        path.write_bytes(proto.SerializeToString())
        targets = ("x86-64-v3", "x86-64-v4") if name == "gang" else "x86-64-v3"
        threads = 2 if name == "gang" else 1
        made = fissile.compile(path, target=targets, threads=threads, foreign="allow", cache=False)
        made.save(folder / f"{name}.fsl")
        (folder / f"{name}.plan.json").write_text(
            compiler.plan_file(path, target="x86-64-v3"), encoding="utf-8"
        )
        for k, shape in enumerate(FEEDS[name]):
            x = draw.standard_normal(shape).astype(np.float32).round(1)
            cases[f"{name}/{k}/x"] = x
            for output, value in made.run({"x": x}).items():
                cases[f"{name}/{k}/{output}"] = value
    np.savez_compressed(folder / "cases.npz", allow_pickle=False, **cases)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
