"""Engines that say what a model means: ONNX's own reference, and onnxruntime with its optimizations off.

In: a model. Out: a function from feeds to outputs; `every` adds all intermediate tensors to the outputs.
Invariant: nothing is fused or rewritten, so what comes out is what the model says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from fissile.errors import FileMissing, OptionError, did_you_mean

Array = np.ndarray[Any, np.dtype[Any]]
Oracle = Callable[[Mapping[str, Array]], dict[str, Array]]


def load_oracle(name: str, model: Path, *, every: bool = False) -> Oracle:
    """The oracle called `name` for `model`; OptionError F608 for a name nobody has, FileMissing F505 where absent."""
    if name not in ORACLES:
        known = ", ".join(ORACLES)
        hint = did_you_mean(name, ORACLES)
        raise OptionError(
            "F608", f"nothing is called {name!r}", reason=f"known: {known}", remedy=hint
        )
    if name != "reference" and find_spec(name) is None:
        raise FileMissing("F505", f"{name} is not installed", remedy=f"pip install {name}")
    return ORACLES[name](_with_every_output(model) if every else model)


def run_node(model: bytes, arrays: list[Array]) -> list[Array]:
    """The outputs of a serialized model of one operator, by ONNX's reference."""
    evaluator = import_module("onnx.reference").ReferenceEvaluator(onnx.load_from_string(model))
    feeds = dict(zip(evaluator.input_names, arrays, strict=True))
    return [np.asarray(result) for result in evaluator.run(None, feeds)]


def _onnxruntime(model: Path | onnx.ModelProto) -> Oracle:
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(None, dict(feeds)), strict=True))


def _reference(model: Path | onnx.ModelProto) -> Oracle:
    loaded = onnx.load(model) if isinstance(model, Path) else model
    evaluator = import_module("onnx.reference").ReferenceEvaluator(loaded)
    names = list(evaluator.output_names)

    def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
        with np.errstate(all="ignore"):
            results = evaluator.run(None, dict(feeds))
        return {name: np.asarray(result) for name, result in zip(names, results, strict=True)}

    return run


ORACLES: dict[str, Callable[[Path | onnx.ModelProto], Oracle]] = {
    "reference": _reference,
    "onnxruntime": _onnxruntime,
}


def _with_every_output(path: Path) -> onnx.ModelProto:
    """The model with all tensors of its main graph among its outputs."""
    model = onnx.load(path)
    known = {output.name for output in model.graph.output}
    for node in model.graph.node:
        for name in node.output:
            if name and name not in known:
                known.add(name)
                model.graph.output.append(onnx.ValueInfoProto(name=name))
    return model
