"""Convolutions of images repeated by two: each parity of rows and columns is a smaller convolution of the small image.

In: a convolution whose input is a small image, its places repeated twice along both axes, with any border (zeros,
reflected, repeated). Out: one convolution of the small image that makes the four phases as channels, and their
interleaving. Invariant: exact but for the order of summation; taps that read the same place are added beforehand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fissile.ir.graph import Node, data, make
from fissile.ir.primitive import CONCAT, CONV, GATHER, PAD, SLICE, constant, constant_value
from fissile.rewrite.rule import Outcome, Refused, rule
from fissile.rewrite.shape import is_concrete, view

_MOVES = ("reshape", "broadcast", "gather", "slice", "pad", "transpose")
_FACTOR = 2
_LARGEST = 1 << 22  # elements whose places are followed


@dataclass(frozen=True)
class Axis:
    """One axis: what each of its places reads.

    reads: places of the small image for every place of the padded one that the phases read, -1 for zero. begin: where
    each parity starts in it. taps: [parity, new tap, old tap], which old taps a new one adds up. outs: per parity.
    """

    reads: np.ndarray
    begin: tuple[int, int]
    taps: np.ndarray
    outs: int


@rule("conv(border(repeat(x, 2))) -> interleave(conv(border(x)) of four phases)", "conv",
      regime="substitute")  # fmt: skip
def convolve_phases(node: Node) -> Outcome:
    """Nearest upsampling by two and a convolution: fewer taps over the small image."""
    x, w = node.inputs
    weights = constant_value(w)
    if weights is None or not is_concrete(x.shape) or x.type.rank != 4:
        return Refused("it is no convolution of a known image with constant weights")
    plain = node.attr("groups") == 1 and set(node.attr("strides") + node.attr("dilations")) == {1}
    if not plain:
        return Refused("it has groups, strides or dilations")
    found = _places(x)
    if isinstance(found, Refused):
        return found
    source, *places = found
    axes = [_phases(s, k) for s, k in zip(places, weights.shape, strict=False)]
    if any(axis is None for axis in axes):
        return Refused("no smaller windows of the places give the phases")
    rows, columns = (axis for axis in axes if axis is not None)
    return _interleaved(_all_phases(source, rows, columns, weights), node, rows, columns)


def _places(x: Node) -> tuple[Node, np.ndarray, np.ndarray] | Refused:
    """The image [n, h, w, c] that x only moves, and which row (column) of it each of x's reads, -1 for zero."""
    chain: list[Node] = []
    source = x
    while source.name in _MOVES and _is_simple(source):
        chain.append(source)
        source = source.inputs[0]
    if not any(n.name == "broadcast" or n.name == "gather" for n in chain):
        return Refused("the input repeats nothing")
    sizes = [np.prod([d for d in n.shape if isinstance(d, int)]) for n in (source, *chain)]
    if not is_concrete(source.shape) or max(sizes) > _LARGEST:
        return Refused("the image is too large, or its size is not known")
    index = np.arange(1, int(sizes[0]) + 1).reshape(_numbers(source))
    for n in reversed(chain):
        index = _moved(n, index)
    images, channels = index.shape[0], index.shape[-1]
    places = np.where(index > 0, (index - 1) // channels, -1)
    if np.any(
        np.where(index > 0, (index - 1) % channels, np.arange(channels)) != np.arange(channels)
    ):
        return Refused("the input moves channels")
    return _separated(source, places[..., 0], images, channels, int(sizes[0]))


def _is_simple(node: Node) -> bool:
    if node.name == "gather":
        return constant_value(node.inputs[1]) is not None
    return node.name != "pad" or not np.any(node.attr("value").array)


def _numbers(node: Node) -> tuple[int, ...]:
    return tuple(d for d in node.shape if isinstance(d, int))


def _moved(node: Node, index: np.ndarray) -> np.ndarray:
    attrs = dict(node.attrs)
    if node.name == "pad":
        attrs["value"] = data(np.array(0, index.dtype))
    others = [a for a in map(constant_value, node.inputs[1:]) if a is not None]
    return np.asarray(node.primitive.reference(index, *others, **attrs))


def _separated(
    source: Node, places: np.ndarray, n: int, channels: int, size: int
) -> tuple[Node, np.ndarray, np.ndarray] | Refused:
    """Rows and columns of an image of `size` elements that `places` [n, H, W] reads."""
    first = places[0]
    inside = first >= 0
    rows, columns = inside.any(axis=1), inside.any(axis=0)
    if not rows.any() or not np.array_equal(inside, rows[:, None] & columns[None]):
        return Refused("zeros are not a border")
    i, j = int(np.argmax(rows)), int(np.argmax(columns))
    steps = np.diff(first[rows][:, j])
    if not np.any(steps > 0):
        return Refused("there is only one row")
    width = int(steps[steps > 0].min())
    height = size // (n * channels * width)
    if n * height * width * channels != size:
        return Refused("the rows have no common length")
    down = np.where(rows, first[:, j] // width, -1)
    along = np.where(columns, first[i] % width, -1)
    whole = np.where(inside, down[:, None] * width + along[None], -1)
    images = np.arange(n)[:, None, None] * (height * width)
    if not np.array_equal(places, np.where(whole >= 0, whole + images, -1)):
        return Refused("rows and columns are moved together")
    return view(source, (n, height, width, channels)), down, along


def _phases(reads: np.ndarray, taps: int) -> Axis | None:
    """The axis whose places read `reads` under `taps`, by parity of the output; None if that gains nothing."""
    outs = len(reads) - taps + 1
    each = -(-outs // _FACTOR)
    for shift in range(_FACTOR):
        at = np.array([[(p + t - shift) // _FACTOR for t in range(taps)] for p in range(_FACTOR)])
        at -= at.min()
        begin = at.min(axis=1)
        width = int((at.max(axis=1) - begin).max()) + 1
        small = np.full(each + int(begin.max()) + width - 1, -2)
        if width >= taps or not _agrees(reads, at, small, outs):
            continue
        table = np.zeros((_FACTOR, width, taps))
        for p in range(_FACTOR):
            table[p, at[p] - begin[p], range(taps)] = 1
        small[small == -2] = -1
        return Axis(small, (int(begin[0]), int(begin[1])), table, each)
    return None


def _agrees(reads: np.ndarray, at: np.ndarray, small: np.ndarray, outs: int) -> bool:
    """Fill `small` so that output o reads small[o // 2 + at[o % 2]]; whether that can be."""
    for o in range(outs):
        q, p = divmod(o, _FACTOR)
        for t in range(at.shape[1]):
            k, want = q + at[p, t], reads[o + t]
            if small[k] not in (-2, want):
                return False
            small[k] = want
    return True


def _all_phases(source: Node, rows: Axis, columns: Axis, weights: np.ndarray) -> Node:
    """conv(border(x)) with the four phases as channels [row parity, column parity, out]."""
    for axis, reads in ((1, rows.reads), (2, columns.reads)):
        source = _bordered(source, axis, reads)
    wide = weights.astype(np.float64)
    phased = np.einsum("pit,qju,tuco->ijcpqo", rows.taps, columns.taps, wide)
    flat = phased.reshape(*phased.shape[:3], math.prod(phased.shape[3:])).astype(weights.dtype)
    attrs = {"strides": (1, 1), "dilations": (1, 1), "groups": 1}
    return make(CONV, source, constant(np.ascontiguousarray(flat)), **attrs)


def _bordered(x: Node, axis: int, reads: np.ndarray) -> Node:
    """x gathered along an axis by places, zeros where they are -1 (at the ends)."""
    inside = np.flatnonzero(reads >= 0)
    low, high = int(inside[0]), len(reads) - 1 - int(inside[-1])
    middle = reads[low : len(reads) - high]
    extent = x.shape[axis]
    if not isinstance(extent, int) or not np.array_equal(middle, np.arange(extent)):
        x = make(GATHER, x, constant(np.maximum(middle, 0)), axis=axis)
    sides = {"low": [0] * 4, "high": [0] * 4}
    sides["low"][axis], sides["high"][axis] = low, high
    if not low and not high:
        return x
    zero = data(np.array(0, x.dtype.numpy))
    return make(PAD, x, value=zero, **{k: tuple(v) for k, v in sides.items()})


def _interleaved(phases: Node, node: Node, rows: Axis, columns: Axis) -> Node:
    n, height, width, outs = node.shape
    lines = []
    for p in range(_FACTOR):
        pieces = []
        for q in range(_FACTOR):
            starts = (0, rows.begin[p], columns.begin[q], (p * _FACTOR + q) * outs)
            shape = (n, rows.outs, columns.outs, outs)
            pieces.append(make(SLICE, phases, starts=starts, steps=(1,) * 4, shape=shape))
        line = make(CONCAT, *pieces, axis=3)
        lines.append(view(line, (n, rows.outs, _FACTOR * columns.outs * outs)))
    whole = make(CONCAT, *lines, axis=2)
    image = view(whole, (n, _FACTOR * rows.outs, _FACTOR * columns.outs, outs))
    if image.shape == node.shape:
        return image
    return make(SLICE, image, starts=(0,) * 4, steps=(1,) * 4, shape=(n, height, width, outs))
