"""The plain operators of ai.onnx.ml: scalers, imputers, normalizers, selections of features, linear regression.

In: rows of features of any number type. Out: float32, where the operator does not keep the type. Invariant: each is a
few elementwise operators or one product; trees, encoders and classifiers run in Python (`fissile.reference.learned`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fissile.fission.build import (
    add,
    apply,
    concat,
    const,
    constant_of,
    div,
    gather,
    matmul,
    mul,
    number,
    pad,
    reduce,
    reshape,
    select,
    slice_axis,
    sub,
)
from fissile.fission.table import Call, Refusal, fission
from fissile.ir.dim import product
from fissile.ir.dtype import FLOAT32
from fissile.ir.graph import Node
from fissile.ir.primitive import cast

ML = "ai.onnx.ml"


def _floats(values: Sequence[float]) -> Node:
    return constant_of(np.asarray(values, np.float32))


@fission("Scaler", domain=ML)
def scaler(call: Call, x: Node) -> Node:
    """(x - offset) * scale, both one number or one of each feature."""
    offset, scale = _floats(call.attr("offset", (0.0,))), _floats(call.attr("scale", (1.0,)))
    return mul(sub(cast(x, FLOAT32), offset), scale)


@fission("Normalizer", domain=ML)
def normalizer(call: Call, x: Node) -> Node:
    """Rows divided by their maximum, sum of magnitudes or length; rows of which that is 0 stay."""
    if x.type.rank not in (1, 2):
        raise Refusal(f"a Normalizer of rank {x.type.rank} has no native definition")
    x, axis, kind = cast(x, FLOAT32), x.type.rank - 1, call.attr("norm", "MAX")
    if kind == "MAX":
        norm = reduce("max", x, [axis])
    elif kind == "L1":
        norm = reduce("sum", apply("abs", x), [axis])
    else:
        norm = apply("sqrt", reduce("sum", mul(x, x), [axis]))
    return select(apply("eq", norm, const(0, norm)), x, div(x, norm))


@fission("Imputer", domain=ML)
def imputer(call: Call, x: Node) -> Node:
    """x, where it is not the value to be replaced, which may be NaN."""
    if x.dtype.is_float:
        values, replaced = call.attr("imputed_value_floats"), call.attr("replaced_value_float", 0.0)
    else:
        values, replaced = call.attr("imputed_value_int64s"), call.attr("replaced_value_int64", 0)
    if not values:
        raise ValueError("it says no value to put in")
    missing = apply("ne", x, x) if np.isnan(replaced) else apply("eq", x, const(replaced, x))
    return select(missing, constant_of(np.asarray(values, x.dtype.numpy)), x)


@fission("Binarizer", domain=ML)
def binarizer(call: Call, x: Node) -> Node:
    """1 where x is above the threshold, else 0."""
    above = apply("gt", x, const(call.attr("threshold", 0.0), x))
    return cast(above, x.dtype)


@fission("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(call: Call, x: Node, indices: Node) -> Node:
    """Elements of the last axis; of a vector, as one row."""
    rows = reshape(x, (1, x.shape[0])) if x.type.rank == 1 else x
    return gather(rows, reshape(indices, (product(indices.shape),)), rows.type.rank - 1)


@fission("FeatureVectorizer", domain=ML)
def feature_vectorizer(call: Call, *parts: Node) -> Node:
    """The columns of all inputs side by side, each cut or filled with zeros to its declared number."""
    made = []
    for x, n in zip(parts, call.attr("inputdimensions"), strict=True):
        if x.type.rank != 2:
            raise Refusal(f"features of rank {x.type.rank} have no native definition")
        have, rows = number(x.shape[1]), cast(x, FLOAT32)
        rows = slice_axis(rows, 1, 0, min(have, n))
        made.append(pad(rows, (0, 0), (0, max(n - have, 0))))
    return concat(made, 1)


@fission("LinearRegressor", domain=ML)
def linear_regressor(call: Call, x: Node) -> Node:
    """x . coefficients + intercepts per target."""
    how = call.attr("post_transform", "NONE")
    if how != "NONE":
        raise Refusal(f"the post_transform {how} has no native definition")
    coefficients = np.asarray(call.attr("coefficients"), np.float32)
    targets = call.attr("targets", 1)
    weights = np.ascontiguousarray(coefficients.reshape(targets, -1).T)
    y = matmul(cast(x, FLOAT32), constant_of(weights))
    intercepts = call.attr("intercepts")
    return add(y, _floats(intercepts)) if intercepts else y
