"""Engines that say what a model means: ONNX's own reference, corrected, and onnxruntime with its optimizations off.

In: a model. Out: a function from feeds to outputs; `every` adds all intermediate tensors to the outputs.
`rounding_noise` says how far roundings may move an oracle's answer: what no engine can promise is not
asked of fissile. Invariant: nothing is fused or rewritten, so what comes out is what the model says.
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
from fissile.reference import runner

Array = np.ndarray[Any, np.dtype[Any]]
NOISY_RUNS = 8
NOISY_ULPS = 4  # the rounding error of a sum of some hundred terms, in ulps of its terms
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


def rounding_noise(
    name: str, model: Path, feeds: Mapping[str, Array], expected: Mapping[str, Array]
) -> dict[str, Array]:
    """How far an output moves, per element, when every weight and float input moves by some ulps.

    What an engine computes in floating point is, up to a small factor, the exact answer for such a neighbouring model:
    the largest of `NOISY_RUNS` moves is the size of roundings, as the oracle itself shows it. Infinite where a move
    makes an element finite that was not, or the other way round.
    """
    noise = {output: np.zeros(np.shape(array)) for output, array in expected.items()}
    for seed in range(NOISY_RUNS):
        draw = np.random.default_rng(seed)
        beside = ORACLES[name](_with_moved_weights(model, draw))
        moved = beside({key: _moved(array, draw) for key, array in feeds.items()})
        for output, array in expected.items():
            if np.shape(moved[output]) == np.shape(array):
                noise[output] = np.maximum(noise[output], _moves(array, moved[output]))
    return noise


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
    evaluator = runner(loaded)
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


def _with_moved_weights(path: Path, draw: np.random.Generator) -> onnx.ModelProto:
    """The model with its float matrices and kernels moved by some ulps; vectors may be scales or exponents."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if len(tensor.dims) > 1 and tensor.data_type in (
            onnx.TensorProto.FLOAT,
            onnx.TensorProto.DOUBLE,
        ):
            moved = _moved(onnx.numpy_helper.to_array(tensor), draw)
            tensor.CopyFrom(onnx.numpy_helper.from_array(moved, tensor.name))
    return model


def _moved(array: Array, draw: np.random.Generator) -> Array:
    """Every float element times 1 + u, u at most `NOISY_ULPS` epsilons in magnitude; others as they are."""
    if array.dtype.kind != "f":
        return array
    most = NOISY_ULPS * float(np.finfo(array.dtype).eps)
    off = draw.uniform(-most, most, array.shape)
    return np.asarray(array * (1 + off), array.dtype)


def _moves(before: Array, after: Array) -> Array:
    """|after - before| per element; infinite where one of them is finite or NaN and the other is not."""
    a, b = np.asarray(before, np.float64), np.asarray(after, np.float64)
    both = np.isfinite(a) & np.isfinite(b)
    with np.errstate(invalid="ignore"):
        gap = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(both, gap, np.where(same, 0.0, np.inf))


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
