"""RNN, GRU and LSTM in Python, with every attribute that ONNX gives them.

In: x[T, N, I] (or [N, T, I] by `layout`), weights per direction, lengths and first states. Out: all states, then the
last. Invariant: what lies behind the length of a sequence is zero and changes no state; a sequence of length 0 ends
in zeros, as in onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fissile.reference.base import Array, Corrected

Activation = Callable[[Array], Array]


def _affine(x: Array, alpha: float, beta: float) -> Array:
    return alpha * x + beta


def _relu(x: Array, alpha: float, beta: float) -> Array:
    return np.maximum(x, 0)


def _leaky(x: Array, alpha: float, beta: float) -> Array:
    return np.where(x >= 0, x, alpha * x)


def _thresholded(x: Array, alpha: float, beta: float) -> Array:
    return np.asarray(np.where(x > alpha, x, 0))


def _tanh(x: Array, alpha: float, beta: float) -> Array:
    return np.tanh(x)


def _scaled_tanh(x: Array, alpha: float, beta: float) -> Array:
    return alpha * np.tanh(beta * x)


def _sigmoid(x: Array, alpha: float, beta: float) -> Array:
    return 1 / (1 + np.exp(-x))


def _hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    return np.clip(alpha * x + beta, 0, 1)


def _elu(x: Array, alpha: float, beta: float) -> Array:
    return np.where(x >= 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _softsign(x: Array, alpha: float, beta: float) -> Array:
    return np.asarray(x / (1 + np.abs(x)))


def _softplus(x: Array, alpha: float, beta: float) -> Array:
    return np.logaddexp(x, 0)


# Function, then the defaults of alpha and beta; None where the function has none of the name.
ACTIVATIONS: dict[
    str, tuple[Callable[[Array, float, float], Array], float | None, float | None]
] = {
    "affine": (_affine, 0.0, 0.0),
    "relu": (_relu, None, None),
    "leakyrelu": (_leaky, 0.01, None),
    "thresholdedrelu": (_thresholded, 1.0, None),
    "tanh": (_tanh, None, None),
    "scaledtanh": (_scaled_tanh, 0.0, 0.0),
    "sigmoid": (_sigmoid, None, None),
    "hardsigmoid": (_hard_sigmoid, 0.2, 0.5),
    "elu": (_elu, 1.0, None),
    "softsign": (_softsign, None, None),
    "softplus": (_softplus, None, None),
}


def activations(
    names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]
) -> list[Activation]:
    """The functions, each with the next alpha and beta that it takes. ValueError for a name that ONNX does not have."""
    left, right = list(alphas), list(betas)

    def made(name: str) -> Activation:
        if name.lower() not in ACTIVATIONS:
            raise ValueError(f"unknown activation {name!r}")
        function, alpha, beta = ACTIVATIONS[name.lower()]
        first = left.pop(0) if alpha is not None and left else alpha or 0.0
        second = right.pop(0) if beta is not None and right else beta or 0.0
        return lambda x: np.asarray(function(x, first, second), x.dtype)

    return [made(name) for name in names]


class _Recurrent(Corrected):
    """What the three share: directions, lengths, layout, clip."""

    gates = 1
    defaults: tuple[str, ...] = ("Tanh",)

    def __init__(self, onnx_node: Any, run_params: dict[str, Any]) -> None:
        super().__init__(onnx_node, run_params)
        count = 2 if self.given("direction", "forward") == "bidirectional" else 1
        names = self.given("activations") or list(self.defaults) * count
        made = activations(
            names, self.given("activation_alpha", ()), self.given("activation_beta", ())
        )
        per = len(self.defaults)
        self.functions = [made[k * per : (k + 1) * per] for k in range(count)]

    def clipped(self, x: Array) -> Array:
        """x within the threshold, where there is one."""
        most = self.given("clip", 0.0)
        return np.clip(x, -most, most).astype(x.dtype) if most > 0 else x

    def _run(
        self,
        x: Array,
        w: Array,
        r: Array,
        b: Array | None = None,
        lengths: Array | None = None,
        h0: Array | None = None,
        c0: Array | None = None,
        p: Array | None = None,
        **attributes: Any,
    ) -> tuple[Array, ...]:
        batch_first = bool(self.given("layout", 0))
        if batch_first:
            x = x.swapaxes(0, 1)
            h0, c0 = (None if a is None else a.swapaxes(0, 1) for a in (h0, c0))
        directions, hidden = w.shape[0], r.shape[-1]
        batch = x.shape[1]
        bias = np.zeros((directions, 2 * self.gates * hidden), x.dtype) if b is None else b
        first = [
            np.zeros((directions, batch, hidden), x.dtype) if s is None else s for s in (h0, c0)
        ]
        peepholes = np.zeros((directions, 3 * hidden), x.dtype) if p is None else p
        ends = np.full(batch, len(x)) if lengths is None else np.asarray(lengths, np.int64)
        backward = {"reverse": [True], "bidirectional": [False, True]}
        ways = backward.get(self.given("direction", "forward"), [False])
        done = [
            self._direction(
                k, back, x, (w[k], r[k], bias[k], peepholes[k]), [s[k] for s in first], ends
            )
            for k, back in enumerate(ways)
        ]
        y = np.stack([d[0] for d in done], 1)
        last = [np.stack([d[n] for d in done], 0) for n in (1, 2)]
        if batch_first:
            y, last = y.transpose(2, 0, 1, 3), [s.swapaxes(0, 1) for s in last]
        return (y, *last)[: max(len(self.onnx_node.output), 1)]

    def _direction(
        self,
        k: int,
        back: bool,
        x: Array,
        weights: tuple[Array, ...],
        states: list[Array],
        ends: Array,
    ) -> tuple[Array, Array, Array]:
        """Every state, then the last ones, of one direction."""
        rows = np.arange(x.shape[1])
        y = np.zeros((*x.shape[:2], weights[1].shape[-1]), x.dtype)
        hidden, cell = states
        for turn in range(len(x)):
            runs = turn < ends
            at = np.where(runs, ends - 1 - turn, turn) if back else np.full(len(rows), turn)
            now = self.step(self.functions[k], x[at, rows], weights, hidden, cell)
            hidden, cell = (
                np.where(runs[:, None], new, old) for new, old in zip(now, (hidden, cell))
            )
            y[at[runs], rows[runs]] = hidden[runs]
        some = (ends > 0)[:, None]
        return y, np.where(some, hidden, 0).astype(x.dtype), np.where(some, cell, 0).astype(x.dtype)

    def step(
        self,
        functions: list[Activation],
        x: Array,
        weights: tuple[Array, ...],
        hidden: Array,
        cell: Array,
    ) -> tuple[Array, Array]:
        """The states after one turn."""
        raise NotImplementedError


class RNN(_Recurrent):
    """h = f(x W + h R + b)."""

    def step(
        self,
        functions: list[Activation],
        x: Array,
        weights: tuple[Array, ...],
        hidden: Array,
        cell: Array,
    ) -> tuple[Array, Array]:
        """The states after one turn."""
        w, r, b, _ = weights
        wb, rb = np.split(b, 2)
        return functions[0](self.clipped(x @ w.T + hidden @ r.T + wb + rb)), cell


class GRU(_Recurrent):
    """Gates z, r and the new state h, in this order."""

    gates = 3
    defaults = ("Sigmoid", "Tanh")

    def step(
        self,
        functions: list[Activation],
        x: Array,
        weights: tuple[Array, ...],
        hidden: Array,
        cell: Array,
    ) -> tuple[Array, Array]:
        """The states after one turn."""
        w, r, b, _ = weights
        n = hidden.shape[-1]
        wb, rb = np.split(b, 2)
        inside = x @ w.T + wb
        gates = functions[0](self.clipped(inside[:, : 2 * n] + hidden @ r[: 2 * n].T + rb[: 2 * n]))
        z, reset = gates[:, :n], gates[:, n:]
        if self.given("linear_before_reset", 0):
            recurrent = reset * (hidden @ r[2 * n :].T + rb[2 * n :])
        else:
            recurrent = (reset * hidden) @ r[2 * n :].T + rb[2 * n :]
        new = functions[1](self.clipped(inside[:, 2 * n :] + recurrent))
        return (1 - z) * new + z * hidden, cell


class LSTM(_Recurrent):
    """Gates i, o, f and the new cell c, in this order; peepholes i, o, f."""

    gates = 4
    defaults = ("Sigmoid", "Tanh", "Tanh")

    def step(
        self,
        functions: list[Activation],
        x: Array,
        weights: tuple[Array, ...],
        hidden: Array,
        cell: Array,
    ) -> tuple[Array, Array]:
        """The states after one turn."""
        w, r, b, p = weights
        f, g, h = functions
        wb, rb = np.split(b, 2)
        i, o, forget, c = np.split(x @ w.T + hidden @ r.T + wb + rb, 4, -1)
        pi, po, pf = np.split(p, 3)
        i = f(self.clipped(i + pi * cell))
        keep = 1 - i if self.given("input_forget", 0) else f(self.clipped(forget + pf * cell))
        cell = keep * cell + i * g(self.clipped(c))
        return f(self.clipped(o + po * cell)) * h(cell), cell
