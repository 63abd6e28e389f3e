"""Learned models in Python: trees, linear models, support vector machines, encoders (domain ai.onnx.ml).

In: rows of features. Out: one row of float32 scores for each, and labels. Invariant: what ONNX leaves open (two classes
of which only one is voted for, a NaN as a key) is as onnxruntime has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fissile.reference.base import Array, Corrected

_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "BRANCH_LEQ": np.less_equal,
    "BRANCH_LT": np.less,
    "BRANCH_GTE": np.greater_equal,
    "BRANCH_GT": np.greater,
    "BRANCH_EQ": np.equal,
    "BRANCH_NEQ": np.not_equal,
}


class _Learned(Corrected):
    op_domain = "ai.onnx.ml"

    def numbers(self, name: str, of: type = np.float64) -> Array | None:
        """An attribute of numbers, as floats or as a tensor (`name`_as_tensor); None where it is absent or empty."""
        value = self.given(name)
        value = self.given(f"{name}_as_tensor") if value is None else value
        return None if value is None or not len(value) else np.asarray(value, of)

    def labels(self, *names: str) -> Array:
        """The labels of the classes, of whichever type the node has them."""
        found = next((v for n in names if (v := self.given(n))), None)
        if found is None:
            raise ValueError("it names no classes")
        return np.array(found, np.int64 if isinstance(found[0], int) else np.str_)


# ---- trees ---------------------------------------------------------------------------------------


class _Trees(_Learned):
    """The nodes of all trees one after the other, and what each leaf votes for."""

    kind = "target"

    def __init__(self, onnx_node: Any, run_params: dict[str, Any]) -> None:
        super().__init__(onnx_node, run_params)
        trees, ids = self.given("nodes_treeids"), self.given("nodes_nodeids")
        places = {key: k for k, key in enumerate(zip(trees, ids, strict=True))}
        self.modes = np.array(self.given("nodes_modes"))
        self.inner = self.modes != "LEAF"
        if unknown := set(self.modes[self.inner]) - set(_COMPARE):
            raise ValueError(f"unknown mode {min(unknown)!r}")
        self.features = np.array(self.given("nodes_featureids"))
        self.splits = self.numbers("nodes_values")
        tracks = self.given("nodes_missing_value_tracks_true") or [0] * len(ids)
        self.tracks = np.array(tracks, bool)
        self.children = [
            np.array([places[t, c] if inner else k for k, (t, c, inner) in enumerate(
                zip(trees, self.given(f"nodes_{way}nodeids"), self.inner, strict=True))])
            for way in ("false", "true")
        ]  # fmt: skip
        below = {int(c) for side in self.children for c in side[self.inner]}
        self.roots = [k for k in range(len(ids)) if k not in below]
        self._read_votes(places)

    def _read_votes(self, places: dict[tuple[int, int], int]) -> None:
        columns = (self.given(f"{self.kind}_{part}") for part in ("treeids", "nodeids", "ids"))
        weights = self.numbers(f"{self.kind}_weights")
        assert weights is not None
        self.votes = [
            (places[t, n], int(i), float(w)) for t, n, i, w in zip(*columns, weights, strict=True)
        ]

    def scores(self, x: Array, count: int, how: str = "SUM") -> tuple[Array, Array]:
        """Per row and target: the votes put together, and whether there was one."""
        rows = np.arange(len(x))
        empty = {"MIN": np.inf, "MAX": -np.inf}.get(how, 0.0)
        join = {"MIN": np.minimum, "MAX": np.maximum}.get(how, np.add)
        table = np.full((len(self.modes), count), empty, x.dtype)
        voted = np.zeros((len(self.modes), count), bool)
        for node, target, weight in self.votes:
            table[node, target] = join(table[node, target], weight)
            voted[node, target] = True
        total = np.full((len(x), count), empty, x.dtype)
        some = np.zeros((len(x), count), bool)
        for root in self.roots:
            leaf = self._leaves(x, rows, root)
            total, some = join(total, table[leaf]), some | voted[leaf]
        total = np.where(some, total, 0).astype(x.dtype)
        return (total / len(self.roots) if how == "AVERAGE" else total), some

    def _leaves(self, x: Array, rows: Array, root: int) -> Array:
        at = np.full(len(x), root)
        for _ in range(len(self.modes)):
            inner = self.inner[at]
            if not inner.any():
                return at
            value = x[rows, np.where(inner, self.features[at], 0)]
            split = self.splits[at].astype(x.dtype)  # type: ignore[index]
            true = np.zeros(len(x), bool)
            for mode, compare in _COMPARE.items():
                true |= (self.modes[at] == mode) & compare(value, split)
            true |= self.tracks[at] & np.isnan(value)
            at = np.where(true, self.children[1][at], self.children[0][at])
        raise ValueError("a branch of a tree leads back to itself")


class TreeEnsembleRegressor(_Trees):
    """Per target what the leaves vote for, put together."""

    def _run(self, x: Array, **attributes: Any) -> tuple[Array]:
        count = self.given("n_targets", 1)
        total, some = self.scores(_floats(x), count, self.given("aggregate_function", "SUM"))
        base = self.numbers("base_values")
        if base is not None:  # as in onnxruntime: what nobody votes for stays 0
            total = np.where(some, total + base, 0)
        how = self.given("post_transform", "NONE")
        if count == 1 and how != "PROBIT":  # as in onnxruntime: one score is no distribution
            how = "NONE"
        return (transformed(total.astype(np.float32), how),)


class TreeEnsembleClassifier(_Trees):
    """Labels, and per class what the leaves vote for; of two classes that are one vote, the other is its rest."""

    kind = "class"

    def __init__(self, onnx_node: Any, run_params: dict[str, Any]) -> None:
        super().__init__(onnx_node, run_params)
        names = self.labels("classlabels_int64s", "classlabels_strings")
        voted = {target for _, target, _ in self.votes}
        if len(names) != 2 or len(voted) != 1:
            return
        if voted == {0} and self.given("post_transform") == "PROBIT":
            raise ValueError("the probit of one of two classes is not defined")
        base = self.numbers("base_values")
        if base is not None and len(base) > 1:
            raise ValueError("two base values for votes of one class are not defined")

    def _run(self, x: Array, **attributes: Any) -> tuple[Array, Array]:
        names = self.labels("classlabels_int64s", "classlabels_strings")
        scores, some = self.scores(_floats(x), len(names))
        base, how = self.numbers("base_values"), self.given("post_transform", "NONE")
        only = len({target for _, target, _ in self.votes}) == 1
        if len(names) != 2 or not only:
            some = some if base is None else np.ones_like(some)
            scores = scores if base is None else scores + base
            label = names[np.where(some, scores, -np.inf).argmax(1)]
            return label, transformed(scores.astype(np.float32), how)
        return self._two(names, scores, some, base, how)

    def _two(
        self, names: Array, scores: Array, some: Array, base: Array | None, how: str
    ) -> tuple[Array, Array]:
        first, second = scores.T
        both = some[:, 1]
        if base is not None:
            first = first + base[0]
        positive = all(weight >= 0 for *_, weight in self.votes)
        winner = np.where(both, second, first) > (0.5 if positive else 0)
        label = names[winner.astype(int)]
        whole = transformed(np.stack([first, second], 1).astype(np.float32), how)
        alone = second_of(first.astype(np.float32), how, positive)
        return label, np.where(both[:, None], whole, alone)


# ---- linear models -------------------------------------------------------------------------------


class LinearClassifier(_Learned):
    """x . coefficients + intercepts per class."""

    def _run(self, x: Array, **attributes: Any) -> tuple[Array, Array]:
        names = self.labels("classlabels_ints", "classlabels_strings")
        coefficients = self.numbers("coefficients", np.float32)
        intercepts = self.numbers("intercepts", np.float32)
        assert coefficients is not None
        count = len(names) if intercepts is None else len(intercepts)
        scores = _floats(x).astype(np.float32) @ coefficients.reshape(count, -1).T
        scores = scores if intercepts is None else scores + intercepts
        how = self.given("post_transform", "NONE")
        if count > 1:
            return names[scores.argmax(1)], transformed(scores, how)
        label = names[(scores[:, 0] > 0).astype(int)]
        return label, second_of(scores[:, 0], how, True)


class LinearRegressor(_Learned):
    """x . coefficients + intercepts per target."""

    def _run(self, x: Array, **attributes: Any) -> tuple[Array]:
        coefficients = self.numbers("coefficients", np.float32)
        intercepts = self.numbers("intercepts", np.float32)
        assert coefficients is not None
        count = self.given("targets", 1)
        scores = _floats(x).astype(np.float32) @ coefficients.reshape(count, -1).T
        scores = scores if intercepts is None else scores + intercepts
        how = self.given("post_transform", "NONE")
        if count == 1 and how != "PROBIT":  # as in onnxruntime: one score is no distribution
            how = "NONE"
        return (transformed(scores, how),)


class SVMRegressor(_Learned):
    """The sum over the support vectors of coefficient times kernel, and rho."""

    def _run(self, x: Array, **attributes: Any) -> tuple[Array]:
        x = _floats(x).astype(np.float32)
        coefficients = self.numbers("coefficients", np.float32)
        rho, count = self.numbers("rho", np.float32), self.given("n_supports", 0)
        assert coefficients is not None
        assert rho is not None
        if count:
            vectors = self.numbers("support_vectors", np.float32)
            assert vectors is not None
            score = self._kernel(x, vectors.reshape(count, -1)) @ coefficients + rho[0]
        else:
            score = x @ coefficients + rho[0]
        if self.given("one_class", 0):
            score = np.where(score > 0, 1, -1)
        return (score.reshape(-1, 1).astype(np.float32),)

    def _kernel(self, x: Array, vectors: Array) -> Array:
        kind = self.given("kernel_type", "LINEAR")
        gamma, coef, degree = self.given("kernel_params") or (0.0, 0.0, 0.0)
        if kind == "RBF":
            apart = x[:, None] - vectors
            return np.asarray(np.exp(-gamma * (apart * apart).sum(-1)))
        dot = x @ vectors.T
        if kind == "LINEAR":
            return np.asarray(dot)
        inner = gamma * dot + coef
        return np.asarray(inner**degree if kind == "POLY" else np.tanh(inner))


# ---- encoders ------------------------------------------------------------------------------------


class LabelEncoder(_Learned):
    """The value of the key that each element is, or a default; NaN is a key like others."""

    _defaults = {"floats": ("default_float", -0.0), "int64s": ("default_int64", -1)}

    def _run(self, x: Array, **attributes: Any) -> tuple[Array]:
        keys, values, default = self._table(x)
        result = np.full(x.shape, default, values.dtype)
        left = np.ones(x.shape, bool)
        nans = self.run_params["opsets"].get(self.op_domain, 1) >= 4  # as in onnxruntime
        for key, value in zip(keys, values, strict=True):
            hit = left & (np.isnan(x) if nans and np.isnan(key) else x == key)
            result[hit] = value
            left &= ~hit
        return (result,)

    def _table(self, x: Array) -> tuple[Array, Array, Any]:
        kinds = ("floats", "int64s", "tensor")
        keys = next(v for k in kinds if (v := self.given(f"keys_{k}")) is not None)
        kind = next(k for k in kinds if self.given(f"values_{k}") is not None)
        values = np.asarray(self.given(f"values_{kind}"))
        if kind == "tensor":
            given = self.given("default_tensor")
            default: Any = (
                (-1 if values.dtype.kind == "i" else 0) if given is None else given.item()
            )
        else:
            name, other = self._defaults[kind]
            default = self.given(name, other)
            values = values.astype(np.float32 if kind == "floats" else np.int64)
        return np.asarray(keys).astype(x.dtype), values, default


# ---- scores --------------------------------------------------------------------------------------


def _floats(x: Array) -> Array:
    return x if x.dtype == np.float64 else x.astype(np.float32)


def transformed(scores: Array, how: str) -> Array:
    """Rows of scores after LOGISTIC, SOFTMAX, SOFTMAX_ZERO or PROBIT."""
    if how == "LOGISTIC":
        result = _logistic(scores)
    elif how == "SOFTMAX" or (how == "SOFTMAX_ZERO" and scores.shape[1]):
        most = scores.max(1, keepdims=True, initial=-np.inf)
        powers = np.exp(scores - most)
        if how == "SOFTMAX_ZERO":
            powers = np.where(np.abs(scores) > 1e-7, powers, 0)
        total = powers.sum(1, keepdims=True)
        result = np.where(total > 0, powers / np.where(total > 0, total, 1), powers)
    elif how == "PROBIT":
        result = _probit(scores)
    else:
        result = scores
    return np.asarray(result, np.float32)


def second_of(score: Array, how: str, positive: bool) -> Array:
    """Two columns of the score of one of two classes; positive: whether it is a share of 1."""
    if how == "LOGISTIC":
        return _logistic(np.stack([-score, score], 1))
    return np.stack([1 - score, score] if positive else [-score, score], 1)


def _logistic(x: Array) -> Array:
    near = 1 / (1 + np.exp(-np.abs(x)))
    return np.asarray(np.where(x < 0, 1 - near, near), np.float32)


def _probit(x: Array) -> Array:
    """sqrt(2) * erf_inv(2 x - 1), by the approximation that onnxruntime has."""
    y = 2 * x - 1
    log = np.log((1 - y) * (1 + y))
    half = 2 / (np.pi * 0.147) + 0.5 * log
    root = np.sqrt(-half + np.sqrt(half * half - log / 0.147))
    return np.asarray(1.41421356 * np.where(y < 0, -root, root), np.float32)


class SVMClassifier(_Learned):
    """Refused: probabilities of more than two classes and votes for two are not what onnxruntime has."""

    def __init__(self, onnx_node: Any, run_params: dict[str, Any]) -> None:
        super().__init__(onnx_node, run_params)
        raise ValueError("support vector machines that classify are not right in Python yet")

    def _run(self, x: Array, **attributes: Any) -> tuple[Array]:
        raise NotImplementedError
