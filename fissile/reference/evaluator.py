"""What runs a model in Python: onnx.reference, with corrections where it is known to be wrong.

In: a serialized ONNX model, mostly of one operator, then arrays. Out: the model's results. Invariant: `CORRECTIONS` is
the only place that says which operators are ours; `tests/reference` compares all that run in Python with onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from fissile.reference import (
    control,
    images,
    indexing,
    learned,
    linear,
    normalization,
    recurrent,
    signal,
)
from fissile.reference.base import Array


@dataclass(frozen=True)
class Correction:
    """An operator of ours for the opsets `since` to `before` - 1; wrong: what the reference does there."""

    operator: type[OpRun]
    wrong: str
    since: int = 0
    before: int = 1 << 30


CORRECTIONS = (
    Correction(control.Loop, "fails where a loop takes no turn or its condition is absent"),
    Correction(control.Scan, "knows no Scan over batches", before=9),
    Correction(indexing.NonMaxSuppression, "selects other boxes of equal scores"),
    Correction(indexing.OneHot, "takes indices modulo the depth"),
    Correction(indexing.Pad, "knows no negative pads"),
    Correction(indexing.Unique, "mixes up what is not sorted"),
    Correction(normalization.Softmax, "has the Softmax of opset 13", before=13),
    Correction(normalization.LogSoftmax, "has the LogSoftmax of opset 13", before=13),
    Correction(normalization.Hardmax, "has the Hardmax of opset 13", before=13),
    Correction(normalization.BatchNormalization, "trains where a momentum is set", before=14),
    Correction(images.GridSample, "clamps the points of cubic samples, a Python loop per point"),
    Correction(images.Resize, "rounds products of extents and scales its own way", since=11),
    Correction(images.Upsample, "has no linear one", before=10),
    Correction(images.RoiAlign, "has the RoiAlign of opset 16", before=16),
    Correction(images.MaxUnpool, "reads places of the wanted extents as those of the least"),
    Correction(linear.ConvTranspose, "fails on groups, spreads NaN of infinite weights"),
    Correction(recurrent.RNN, "ignores lengths and clip, knows two activations"),
    Correction(recurrent.GRU, "ignores lengths, clip and activations"),
    Correction(recurrent.LSTM, "ignores lengths, clip, activations and input_forget"),
    Correction(learned.TreeEnsembleRegressor, "fails without tracks of missing values, MIN, MAX"),
    Correction(learned.TreeEnsembleClassifier, "fails likewise; two classes and votes for one"),
    Correction(learned.LinearClassifier, "has the second class and doubles its own way"),
    Correction(learned.LinearRegressor, "makes distributions of single scores"),
    Correction(learned.SVMRegressor, "computes in the type of its input"),
    Correction(learned.SVMClassifier, "has other probabilities and votes; refused"),
    Correction(learned.LabelEncoder, "finds no NaN"),
    Correction(signal.STFT, "fails on signals without an axis of their parts"),
)


def corrections(version: int) -> list[type[OpRun]]:
    """The operators that onnx.reference has wrong at an opset version."""
    return [c.operator for c in CORRECTIONS if c.since <= version < c.before]


def runner(model: onnx.ModelProto) -> ReferenceEvaluator:
    """The evaluator of a model, with the corrections of its opset. NotImplementedError and others where it has none."""
    version = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)
    return ReferenceEvaluator(model, new_ops=corrections(version))


def evaluator(model: bytes) -> Callable[[list[Array]], list[Array]]:
    """What runs the model on arrays in the order of its inputs; for one caller at a time."""
    proto = onnx.load_from_string(model)
    names = [value.name for value in proto.graph.input]
    made = runner(proto)

    def run(arrays: list[Array]) -> list[Array]:
        with np.errstate(all="ignore"):
            return list(made.run(None, dict(zip(names, arrays, strict=True))))

    return run


def evaluate(model: bytes, arrays: list[Array]) -> list[Array]:
    """The results of a one-operator model: the `foreign` that graphs and plans are evaluated with."""
    return evaluator(model)(arrays)
