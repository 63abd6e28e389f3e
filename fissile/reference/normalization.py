"""Softmax and batch normalization of early opsets in Python.

In: arrays. Out: arrays, as the opset of the model defines them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fissile.reference.base import Array, Corrected


class _OldSoftmax(Corrected):
    """Before opset 13 the tensor is read as a matrix, split before `axis`."""

    def _matrix(self, x: Array) -> Array:
        axis = int(self.given("axis", 1))
        split = axis + x.ndim if axis < 0 else axis
        return x.reshape(int(np.prod(x.shape[:split])), int(np.prod(x.shape[split:])))


class Softmax(_OldSoftmax):
    """exp(x - max) / sum(exp(x - max)) over rows."""

    def _run(self, x: Array, **attributes: Any) -> tuple[Array]:
        if x.size == 0:
            return (x,)
        rows = self._matrix(x)
        powers = np.exp(rows - rows.max(1, keepdims=True))
        return ((powers / powers.sum(1, keepdims=True)).reshape(x.shape).astype(x.dtype),)


class LogSoftmax(_OldSoftmax):
    """x - max - log(sum(exp(x - max))) over rows."""

    def _run(self, x: Array, **attributes: Any) -> tuple[Array]:
        if x.size == 0:
            return (x,)
        rows = self._matrix(x)
        moved = rows - rows.max(1, keepdims=True)
        result = moved - np.log(np.exp(moved).sum(1, keepdims=True))
        return (result.reshape(x.shape).astype(x.dtype),)


class Hardmax(_OldSoftmax):
    """1 at the first maximum of a row, else 0."""

    def _run(self, x: Array, **attributes: Any) -> tuple[Array]:
        if x.size == 0:
            return (x,)
        rows = self._matrix(x)
        hit = np.arange(rows.shape[1]) == rows.argmax(1)[:, None]
        return (hit.reshape(x.shape).astype(x.dtype),)


class BatchNormalization(Corrected):
    """Before opset 14 the momentum says nothing about training: with one output it is inference."""

    def _run(
        self, x: Array, scale: Array, bias: Array, mean: Array, var: Array, **attributes: Any
    ) -> tuple[Array]:
        shape = (1, -1, *[1] * (x.ndim - 2))
        epsilon = self.given("epsilon", 1e-5)
        factor = scale / np.sqrt(var + epsilon)
        moved = (x - mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape)
        return (moved.astype(x.dtype),)
