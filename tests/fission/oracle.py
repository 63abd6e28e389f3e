"""What the tests of fission share: run a model through fission and numpy, or through onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from fissile.fission import fission
from fissile.frontend import OperatorGraph, read_model
from fissile.ir.dim import Dim, solve
from fissile.ir.dim import evaluate as number
from fissile.ir.graph import Graph, evaluate

Arrays = Mapping[str, np.ndarray]
_CODES = ("Fail", "InvalidArgument", "InvalidGraph", "NotImplemented", "RuntimeException")
onnxruntime_errors = tuple(
    getattr(onnxruntime.capi.onnxruntime_pybind11_state, name) for name in _CODES
)


def one_operator(
    kind: str,
    inputs: Sequence[tuple[str, np.ndarray | None]],
    outputs: int = 1,
    opset: int = 18,
    free: Mapping[str, Sequence[int | str]] | None = None,
    constants: Sequence[str] = (),
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one operator. free: declared shapes of inputs, where not those of the arrays."""
    infos, weights = [], []
    for name, array in inputs:
        if array is None:
            continue
        if name in constants:
            weights.append(onnx.numpy_helper.from_array(array, name))
        else:
            code = helper.np_dtype_to_tensor_dtype(array.dtype)
            infos.append(
                helper.make_tensor_value_info(name, code, (free or {}).get(name, array.shape))
            )
    names = ["" if array is None else name for name, array in inputs]
    results = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(kind, names, results, name="it", **attributes)
    made = [onnx.ValueInfoProto(name=r) for r in results]
    graph = helper.make_graph([node], "test", infos, made, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def symbols_of(graph: Graph, feeds: Arrays) -> dict[str, int]:
    """The number of every symbol, from the shapes of the feeds."""
    found: dict[str, int] = {}
    for node in graph.inputs:
        for extent, n in zip(node.shape, feeds[node.attr("name")].shape, strict=True):
            if isinstance(extent, Dim) and (solved := solve(extent)) is not None:
                symbol, scale, offset = solved
                found[symbol.name] = (n - offset) // scale
    return found


def run(model: onnx.ModelProto | Path | OperatorGraph, feeds: Arrays) -> list[np.ndarray]:
    """The outputs by fission and the numpy meaning of primitives; no guard may be broken."""
    operators = model if isinstance(model, OperatorGraph) else read_model(model)
    graph = fission(operators)
    return run_graph(graph, feeds)


def run_graph(graph: Graph, feeds: Arrays) -> list[np.ndarray]:
    """The outputs of a primitive graph whose guards hold for these feeds."""
    symbols = symbols_of(graph, feeds)
    for guard in graph.guards:
        assert number(guard.left, symbols) == number(guard.right, symbols), guard.message
    return list(evaluate(graph, feeds, symbols).values())


def reference(model: onnx.ModelProto | Path, feeds: Arrays) -> list[np.ndarray]:
    """The outputs by onnxruntime, nothing optimised."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    content = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return [np.asarray(a) for a in session.run(None, dict(feeds))]


def same(got: np.ndarray, want: np.ndarray, tolerance: float = 1e-4) -> bool:
    """Equal shapes, types and values; floats within the tolerance times the largest magnitude."""
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return False
    if want.dtype.kind != "f" or not want.size:
        return np.array_equal(got, want)
    finite = np.abs(want[np.isfinite(want)].astype(np.float64))
    allowed = tolerance * max(finite.max(initial=0), 1e-30)
    return np.allclose(got, want, rtol=0, atol=allowed, equal_nan=True)
