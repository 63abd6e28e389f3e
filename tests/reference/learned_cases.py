"""Cases of the operators of ai.onnx.ml: trees, linear and support vector models, encoders, scalers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import onnx

from tests.reference.cases import ML, Array, Case

X = np.array(
    [[0.5, -1.0], [1.0, 1.0], [2.0, 0.0], [-3.0, 0.25], [np.nan, np.nan], [0.75, np.inf]],
    np.float32,
)
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")


def learned() -> Iterator[Case]:
    """All of them."""
    yield from _regressors()
    yield from _classifiers()
    yield from _linear()
    yield from _supported()
    yield from _encoders()
    yield from _scalers()


# ---- trees ---------------------------------------------------------------------------------------


def _trees(modes: tuple[str, str, str], tracks: bool) -> dict[str, Any]:
    """Two trees: one of three leaves, one of two."""
    first, second, third = (f"BRANCH_{m}" for m in modes)
    made: dict[str, Any] = {
        "nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1],
        "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
        "nodes_featureids": [0, 1, 0, 0, 0, 1, 0, 0],
        "nodes_modes": [first, second, "LEAF", "LEAF", "LEAF", third, "LEAF", "LEAF"],
        "nodes_values": [1.0, 0.0, 0.0, 0.0, 0.0, 0.25, 0.0, 0.0],
        "nodes_truenodeids": [1, 3, 0, 0, 0, 1, 0, 0],
        "nodes_falsenodeids": [2, 4, 0, 0, 0, 2, 0, 0],
    }
    if tracks:
        made["nodes_missing_value_tracks_true"] = [1, 0, 0, 0, 0, 1, 0, 0]
    return made


MODES = (("LT", "GT", "LEQ"), ("LEQ", "GTE", "EQ"), ("GTE", "NEQ", "LT"))


def _votes(kind: str, ids: list[int], weights: list[float]) -> dict[str, Any]:
    return {
        f"{kind}_treeids": [0, 0, 0, 1, 1], f"{kind}_nodeids": [2, 3, 4, 1, 2],
        f"{kind}_ids": ids, f"{kind}_weights": weights,
    }  # fmt: skip


def _regressors() -> Iterator[Case]:
    weights = [1.0, 0.5, 0.25, 3.0, -2.0]

    def case(name: str, x: Array = X, opset: int = 3, **more: Any) -> Case:
        name = f"TreeEnsembleRegressor {name}"
        return Case(name, "TreeEnsembleRegressor", opset, {"x": x}, more, domain=ML)

    one = _votes("target", [0] * 5, weights)
    two = _votes("target", [0, 1, 0, 1, 1], weights)
    plain = _trees(MODES[0], False)
    for modes, tracks in product(MODES, (False, True)):
        yield case(f"{modes} {tracks}", n_targets=1, **_trees(modes, tracks), **one)
    for name, transform in product(("SUM", "AVERAGE", "MIN", "MAX"), TRANSFORMS):
        more: Any = {"aggregate_function": name, "post_transform": transform}
        yield case(f"{name} {transform}", n_targets=1, **more, **plain, **one)
        if transform != "PROBIT":
            yield case(f"{name} {transform} two", n_targets=2, **more, **plain, **two)
    yield case("base", n_targets=1, base_values=[0.5], **plain, **one)
    yield case("bases", n_targets=2, base_values=[0.5, -1.0], **plain, **two)
    yield case("opset 1", opset=1, n_targets=2, **plain, **two)
    yield case("doubles", X.astype(np.float64), n_targets=1, **plain, **one)
    yield case("nothing", X[:0], n_targets=2, **plain, **two)


def _classifiers() -> Iterator[Case]:
    def case(name: str, x: Array = X, **more: Any) -> Case:
        name = f"TreeEnsembleClassifier {name}"
        more = {"classlabels_int64s": [7, 8, 9], **_trees(MODES[0], False), **more}
        outputs = ("label", "scores")
        return Case(name, "TreeEnsembleClassifier", 3, {"x": x}, more, outputs, domain=ML)

    three = _votes("class", [0, 1, 2, 1, 2], [1.0, 0.5, 0.25, 3.0, -2.0])
    both = _votes("class", [0, 1, 0, 1, 1], [1.0, 0.5, 0.25, 3.0, -2.0])
    mixed = [0.2, 0.7, 0.1, 0.3, -0.6]
    positive = [0.2, 0.4, 0.1, 0.3, 0.05]
    pair: Any = {"classlabels_int64s": [4, 5]}
    for transform in TRANSFORMS:
        more: Any = {"post_transform": transform}
        if transform != "PROBIT":
            yield case(f"three {transform}", **more, **three)
            yield case(f"three bases {transform}", base_values=[0.1, 0.2, 0.3], **more, **three)
            if transform in ("NONE", "LOGISTIC"):
                yield case(f"both {transform}", **more, **pair, **both)
                yield case(
                    f"both bases {transform}", base_values=[0.1, 0.2], **more, **pair, **both
                )
        for name, weights in (("mixed", mixed), ("positive", positive)):
            for voted in (0, 1) if transform != "PROBIT" else (1,):
                votes = _votes("class", [voted] * 5, weights)
                yield case(f"one {voted} {name} {transform}", **more, **pair, **votes)
    votes = _votes("class", [0] * 5, mixed)
    yield case("one base", base_values=[0.3], **pair, **votes)
    yield case("doubles", X.astype(np.float64), **three)
    yield case("integers", np.array([[0, 1], [2, 0]]), **three)
    yield case("nothing", X[:0], **pair, **votes)
    yield case("tracks", **{**_trees(MODES[1], True), **three})


# ---- linear and support vector models ------------------------------------------------------------

SOUND = np.where(np.isfinite(X), X, 0.5).astype(np.float32)


def _linear() -> Iterator[Case]:
    three: Any = {"coefficients": [1.0, -2.0, 0.5, 0.5, -1.0, 1.0], "intercepts": [0.1, 0.2, -0.1]}
    two: Any = {"coefficients": [0.5, -0.5, -0.5, 0.25], "intercepts": [0.1, -0.1]}
    one: Any = {"coefficients": [0.5, -0.75], "intercepts": [0.1]}

    def case(name: str, x: Array = SOUND, **more: Any) -> Case:
        outputs = ("label", "scores")
        return Case(
            f"LinearClassifier {name}", "LinearClassifier", 1, {"x": x}, more, outputs, domain=ML
        )

    for transform in TRANSFORMS[:4]:
        for multi in (0, 1):
            more: Any = {"post_transform": transform, "multi_class": multi}
            yield case(f"three {transform} {multi}", classlabels_ints=[10, 20, 30], **more, **three)
            yield case(f"two {transform} {multi}", classlabels_ints=[3, 4], **more, **two)
            yield case(f"one {transform} {multi}", classlabels_ints=[3, 4], **more, **one)
    yield case("doubles", SOUND.astype(np.float64), classlabels_ints=[3, 4], **two)
    yield case("integers", np.array([[1, 2], [0, -3]]), classlabels_ints=[3, 4], **two)
    yield case("nothing", SOUND[:0], classlabels_ints=[3, 4], **two)
    for transform in TRANSFORMS[:4]:
        more = {"post_transform": transform}
        for name, targets, weights in (("one", 1, one), ("two", 2, two), ("three", 3, three)):
            yield Case(f"LinearRegressor {name} {transform}", "LinearRegressor", 1, {"x": SOUND},
                       {"targets": targets, **weights, **more}, domain=ML)  # fmt: skip
    yield Case("LinearRegressor without intercepts", "LinearRegressor", 1, {"x": SOUND},
               {"coefficients": [0.5, -1.0]}, domain=ML)  # fmt: skip


def _supported() -> Iterator[Case]:
    vectors = [0.0, 0.0, 1.0, 1.0, 2.0, 0.5]
    for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        for one_class in (0, 1):
            more: dict[str, Any] = {
                "kernel_type": kernel, "kernel_params": [0.5, 0.25, 3.0], "n_supports": 3,
                "coefficients": [0.5, -1.0, 0.25], "support_vectors": vectors, "rho": [0.1],
                "one_class": one_class,
            }  # fmt: skip
            title = f"SVMRegressor {kernel} {one_class}"
            yield Case(title, "SVMRegressor", 1, {"x": SOUND}, more, domain=ML)


# ---- encoders ------------------------------------------------------------------------------------


KNOWN_TO_ONNXRUNTIME = (
    (np.float32, np.float32), (np.float32, np.int64), (np.float64, np.float64), (np.float64, np.int64),
    (np.int64, np.int64), (np.int64, np.float32), (np.int64, np.float64),
)  # fmt: skip


def tensors(of: type, to: type) -> Case:
    """Keys 1, 5, 9 become 2, 4, 6, everything else 3."""
    more = {
        "keys_tensor": onnx.numpy_helper.from_array(np.array([1, 5, 9], of)),
        "values_tensor": onnx.numpy_helper.from_array(np.array([2, 4, 6], to)),
        "default_tensor": onnx.numpy_helper.from_array(np.array([3], to)),
    }
    x: Array = np.array([[1, 5], [3, 9], [-2, 5]], of)
    name = f"LabelEncoder tensors {of.__name__} {to.__name__}"
    return Case(name, "LabelEncoder", 4, {"x": x}, more, domain=ML)


def _encoder(opset: int, name: str, x: Array, **more: Any) -> Case:
    return Case(f"LabelEncoder {opset} {name}", "LabelEncoder", opset, {"x": x}, more, domain=ML)


def _encoders() -> Iterator[Case]:
    whole = np.array([[1, 5], [3, 9], [-2, 5]])
    parts = np.array([[1.5, np.nan], [3.0, -0.0], [np.inf, 7.0]], np.float32)
    ints: dict[str, Any] = {"keys_int64s": [1, 5, 9]}
    floats: dict[str, Any] = {"keys_floats": [1.5, np.nan, 0.0, 3.0]}
    for opset in (2, 4):
        case = partial(_encoder, opset)
        yield case(
            "ints to floats", whole, values_floats=[0.5, 1.5, 2.5], default_float=-7.0, **ints
        )
        yield case("ints to ints", whole, values_int64s=[10, 20, 30], **ints)
        yield case("floats to floats", parts, values_floats=[0.5, 1.5, 2.5, 3.5], **floats)
        yield case(
            "floats to ints", parts, values_int64s=[10, 20, 30, 40], default_int64=5, **floats
        )
        yield case("nothing", whole[:0], values_int64s=[10, 20, 30], **ints)
    for of, to in KNOWN_TO_ONNXRUNTIME:
        yield tensors(of, to)
    cats: dict[str, Any] = {"cats_int64s": [1, 5, 9]}
    for zeros, x in ((1, whole[:2]), (1, whole[0]), (0, whole[0])):
        more = {**cats, "zeros": zeros}
        title = f"OneHotEncoder {zeros} {x.ndim}"
        yield Case(title, "OneHotEncoder", 1, {"x": x}, more, domain=ML)
    yield Case(
        "OneHotEncoder unknown", "OneHotEncoder", 1, {"x": whole}, {**cats, "zeros": 1}, domain=ML
    )
    yield Case("OneHotEncoder floats", "OneHotEncoder", 1, {"x": whole.astype(np.float32)},
               {**cats, "zeros": 1}, domain=ML)  # fmt: skip


def _scalers() -> Iterator[Case]:
    whole = np.array([[1, 2, -4], [3, 0, 5]])

    def case(kind: str, name: str, x: Array, **more: Any) -> Case:
        return Case(f"{kind} {name}", kind, 1, {"x": x}, more, domain=ML)

    for name, x in (("floats", SOUND), ("doubles", SOUND.astype(np.float64)), ("ints", whole)):
        n = x.shape[1]
        yield case("Scaler", f"{name} one", x, offset=[1.0], scale=[0.5])
        yield case("Scaler", name, x, offset=[1.0, 2.0, 3.0][:n], scale=[0.5, 2.0, -1.0][:n])
        for norm in ("MAX", "L1", "L2"):
            yield case("Normalizer", f"{name} {norm}", x, norm=norm)
            yield case("Normalizer", f"{name} {norm} of zeros", 0 * x, norm=norm)
    yield case("Imputer", "NaN", X, imputed_value_floats=[7.0], replaced_value_float=float("nan"))
    yield case(
        "Imputer", "NaN each", X, imputed_value_floats=[7.0, 8.0], replaced_value_float=float("nan")
    )
    yield case("Imputer", "number", X, imputed_value_floats=[7.0, 8.0], replaced_value_float=1.0)
    yield case("Imputer", "ints", whole, imputed_value_int64s=[7], replaced_value_int64=3)
    yield case(
        "Imputer", "ints each", whole, imputed_value_int64s=[7, 8, 9], replaced_value_int64=0
    )
    yield case("Binarizer", "floats", SOUND, threshold=0.75)
    indexed = {"x": SOUND, "places": np.array([1, 0, 1])}
    yield Case("ArrayFeatureExtractor rows", "ArrayFeatureExtractor", 1, indexed, domain=ML)
    line = {"x": np.arange(5, dtype=np.float32), "places": np.array([[3, 0]])}
    yield Case("ArrayFeatureExtractor line", "ArrayFeatureExtractor", 1, line, domain=ML)
    deep = {"x": np.arange(24).reshape(2, 3, 4), "places": np.array([2])}
    yield Case("ArrayFeatureExtractor deep", "ArrayFeatureExtractor", 1, deep, domain=ML)
    joined = {"x": SOUND, "z": SOUND[:, :1] * 2}
    yield Case(
        "FeatureVectorizer", "FeatureVectorizer", 1, joined, {"inputdimensions": [2, 1]}, domain=ML
    )
    ints = {"x": whole, "z": whole[:, :2]}
    yield Case(
        "FeatureVectorizer ints",
        "FeatureVectorizer",
        1,
        ints,
        {"inputdimensions": [3, 2]},
        domain=ML,
    )
