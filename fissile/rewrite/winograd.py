"""Convolutions of 3x3 taps by Winograd's minimal filtering: fewer multiplications, as products of many small tiles.

In: a convolution with constant 3x3 weights, stride 1. Out: tiles of the input transformed by a constant matrix, one
product per transformed place, and the transform back. Invariant: equal up to rounding that the rule checks on drawn
data of the layer's own size and weights; it refuses where that is worse than `TOLERANCE` of the largest value.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fissile.ir.dim import DimLike, ceildiv
from fissile.ir.graph import Data, Node, data, data_later, make
from fissile.ir.primitive import (
    CONSTANT,
    MATMUL,
    PAD,
    SLICE,
    TRANSPOSE,
    WINDOW,
    constant,
    constant_value,
)
from fissile.rewrite.rule import Outcome, Refused, rule
from fissile.rewrite.shape import view

TAPS = 3
TOLERANCE = 2e-5
DRAWN = 32  # outputs that are checked, about
BLOCK = 4096  # columns of weights transformed at once
FEWEST_CHANNELS = 16  # with fewer, the transforms cost more than they save


@dataclass(frozen=True, eq=False)
class Filter:
    """F(outs, 3): inner [a, a], weights [a, 3], outer [outs, a], with a = outs + 2; all for one axis."""

    outs: int
    inner: np.ndarray
    weights: np.ndarray
    outer: np.ndarray

    @property
    def size(self) -> int:
        """Places of a tile along one axis."""
        return self.outs + TAPS - 1


SMALL = Filter(
    2,
    np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], np.float64),
    np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float64),
    np.array([[1, 1, 1, 0], [0, 1, -1, -1]], np.float64),
)
LARGE = Filter(
    4,
    np.array(
        [
            [4, 0, -5, 0, 1, 0],
            [0, -4, -4, 1, 1, 0],
            [0, 4, -4, -1, 1, 0],
            [0, -2, -1, 2, 1, 0],
            [0, 2, -1, -2, 1, 0],
            [0, 4, 0, -5, 0, 1],
        ],
        np.float64,
    ),
    np.array(
        [
            [1 / 4, 0, 0],
            [-1 / 6, -1 / 6, -1 / 6],
            [-1 / 6, 1 / 6, -1 / 6],
            [1 / 24, 1 / 12, 1 / 6],
            [1 / 24, -1 / 12, 1 / 6],
            [0, 0, 1],
        ],
        np.float64,
    ),
    np.array(
        [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]],
        np.float64,
    ),
)


@rule(
    "conv(x, w of 3x3) -> A' [(G w G') * (B' x B)] A in tiles of 2x2", "conv", regime="substitute"
)
def winograd_2(node: Node) -> Outcome:
    """2.25 times fewer multiplications."""
    return _filtered(node, SMALL)


@rule(
    "conv(x, w of 3x3) -> A' [(G w G') * (B' x B)] A in tiles of 4x4", "conv", regime="substitute"
)
def winograd_4(node: Node) -> Outcome:
    """4 times fewer multiplications, and one more digit lost."""
    return _filtered(node, LARGE)


def _filtered(node: Node, kind: Filter) -> Outcome:
    x, w = node.inputs
    weights = constant_value(w)
    if weights is None or weights.ndim != 4 or weights.shape[:2] != (TAPS, TAPS):
        return Refused("it has no constant weights of 3x3 taps")
    if node.attr("groups") != 1 or set(node.attr("strides") + node.attr("dilations")) != {1}:
        return Refused("it has groups, strides or dilations")
    if min(weights.shape[2:]) < FEWEST_CHANNELS:
        return Refused(f"it has fewer than {FEWEST_CHANNELS} channels")
    error = _error(w, kind)
    if not error <= TOLERANCE:
        return Refused(f"the rounding would reach {error:.1e} of the largest value")
    return _tiled(x, node, kind)


def _two_axes(matrix: np.ndarray) -> np.ndarray:
    return np.kron(matrix, matrix)


def _transformed(weights: np.ndarray, kind: Filter) -> np.ndarray:
    """[a * a, channels, outs]."""
    flat = weights.reshape(TAPS * TAPS, -1)
    matrix = _two_axes(kind.weights)
    result = np.empty((kind.size**2, flat.shape[1]), weights.dtype)
    for first in range(0, flat.shape[1], BLOCK):  # what is wider than the weights stays in a cache
        part = slice(first, first + BLOCK)
        result[:, part] = matrix @ flat[:, part].astype(np.float64)
    return result.reshape(-1, *weights.shape[2:])


def _filters(w: Node, kind: Filter) -> Node:
    """The transformed weights; they are computed for the graph that is taken in the end."""
    value: Data = w.attr("value")
    shape = kind.size**2, *value.shape[2:]
    later = data_later(value, f"winograd_{kind.outs}", shape, lambda a: _transformed(a, kind))
    return make(CONSTANT, value=later, dtype=w.attr("dtype"))


@lru_cache(maxsize=256)
def _error(w: Node, kind: Filter) -> float:
    """How far the filtered convolution of drawn tiles is from the exact one, relative to the largest value."""
    weights = constant_value(w)
    if weights is None or not np.all(np.isfinite(weights)):
        return float("inf")
    weights = weights[..., :: max(weights.shape[-1] // DRAWN, 1)]
    rng = np.random.default_rng(0)
    size, channels = kind.size, weights.shape[2]
    tiles = rng.standard_normal((size * size, 4, channels)).astype(weights.dtype)
    moved = np.tensordot(_two_axes(kind.inner).astype(weights.dtype), tiles, 1)
    products = np.matmul(moved, _transformed(weights, kind))
    got = np.tensordot(_two_axes(kind.outer).astype(weights.dtype), products, 1)
    image = tiles.reshape(size, size, 4, channels).astype(np.float64)
    want = np.zeros((kind.outs, kind.outs, 4, weights.shape[3]))
    for i, j in np.ndindex(TAPS, TAPS):
        part = image[i : i + kind.outs, j : j + kind.outs]
        want += part @ weights[i, j].astype(np.float64)
    gap = np.abs(got.reshape(want.shape) - want).max()
    return float(gap / max(float(np.abs(want).max()), 1e-30))


def _tiled(x: Node, node: Node, kind: Filter) -> Node:
    n, height, width, outs = node.shape
    channels, m, a = x.shape[-1], kind.outs, kind.size
    down, along = ceildiv(height, m), ceildiv(width, m)
    tiles: DimLike = n * down * along
    high = (0, down * m + a - m - x.shape[1], along * m + a - m - x.shape[2], 0)
    zero = data(np.array(0, x.dtype.numpy))
    padded = make(PAD, x, low=(0,) * 4, high=high, value=zero)
    sizes = {"sizes": (a, a), "strides": (m, m), "dilations": (1, 1)}
    windows = make(WINDOW, padded, axes=(1, 2), **sizes)  # [n, down, along, channels, a, a]
    apart = make(TRANSPOSE, windows, perm=(4, 5, 0, 1, 2, 3))
    moved = make(MATMUL, _matrix(kind.inner, x), view(apart, (a * a, tiles * channels)))
    filters = _filters(node.inputs[1], kind)
    products = make(MATMUL, view(moved, (a * a, tiles, channels)), filters)
    back = make(MATMUL, _matrix(kind.outer, x), view(products, (a * a, tiles * outs)))
    places = view(back, (m, m, n, down, along, outs))
    image = view(make(TRANSPOSE, places, perm=(2, 3, 0, 4, 1, 5)), (n, down * m, along * m, outs))
    return make(SLICE, image, starts=(0,) * 4, steps=(1,) * 4, shape=node.shape)


def _matrix(matrix: np.ndarray, like: Node) -> Node:
    return constant(_two_axes(matrix).astype(like.dtype.numpy))
