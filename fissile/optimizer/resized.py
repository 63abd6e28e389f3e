"""Images made larger or smaller, recognised as ONNX's Resize.

In: weighted sums of two gathers along an axis, and repetitions along an axis. Out: one Resize over all axes of a chain.
Invariant: the weights of every output element are, to rounding of float32, those that Resize defines for one of its
coordinate modes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fissile.ir.dim import exact_div
from fissile.ir.dtype import FLOAT32
from fissile.ir.graph import Node
from fissile.ir.primitive import constant_value
from fissile.optimizer.held import Held, Scribe, bare
from fissile.rewrite.shape import Shape, is_same, is_same_shape, is_unit, view

_MODES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
_TOLERANCE = 2e-6
_OPSET = 13  # Resize as it is written here


@dataclass(frozen=True)
class _Step:
    """One axis of an image: the operand, the axis, what its coordinates may be."""

    source: Node
    axis: int
    modes: frozenset[str]


def interpolated(scribe: Scribe, node: Node) -> Held | None:
    """Linear interpolation along the axes of an image."""
    source, taken, modes = node, set[int](), frozenset(_MODES)
    while (step := _linear(source)) is not None and step.axis not in taken and modes & step.modes:
        source, modes = step.source, modes & step.modes
        taken.add(step.axis)
    if not taken or not _is_image(scribe, node.shape, taken):
        return None
    mode = next(m for m in _MODES if m in modes)
    return _resize(scribe, source, node.shape, taken, {"mode": "linear", "coordinate_transformation_mode": mode})


def repeated(scribe: Scribe, node: Node) -> Held | None:
    """Every pixel several times along the axes of an image, before the copies of an axis become part of it."""
    step = _repeat(node)
    if step is None or not _is_image(scribe, step.image, {step.axis}):
        return None
    source, taken, image = step.source, {step.axis}, step.image
    while (more := _repeat(bare(source))) is not None and more.axis not in taken:
        if not is_same_shape(more.image, source.shape) or len(taken) > 1:
            break
        source = more.source
        taken.add(more.axis)
    if source not in scribe.held:  # a view that no primitive is
        scribe.held[source] = scribe.held[bare(source)]
    how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return _resize(scribe, source, image, taken, {"mode": "nearest", **how})


def _is_image(scribe: Scribe, shape: Shape, taken: set[int]) -> bool:
    return len(shape) == 4 and len(taken) <= 2 and scribe.opset >= _OPSET


def _resize(
    scribe: Scribe, source: Node, shape: Shape, taken: set[int], how: Mapping[str, str]
) -> Held:
    """The axes that are resized go last, where runtimes expect them."""
    beside = [a for a in (2, 1, 3, 0) if a not in taken]
    last = sorted((*taken, *beside[: 2 - len(taken)]))
    perm = (*(a for a in range(4) if a not in last), *last)
    x = scribe.laid(source, source.shape, perm)
    factors = [exact_div(shape[p], source.shape[p]) for p in perm]
    if all(isinstance(f, int) for f in factors):  # runtimes have faster ways for whole factors
        scales = scribe.writer.constant(np.array(factors, np.float32), FLOAT32)
        return Held(scribe.emit("Resize", x, "", scales, **how), shape, perm)
    sizes = scribe.writer.vector(tuple(shape[p] for p in perm))
    return Held(scribe.emit("Resize", x, "", "", sizes, **how), shape, perm)


# ---------------------------------------------------------------- along one axis


def _linear(node: Node) -> _Step | None:
    """u * x[.., i, ..] + v * x[.., j, ..] with known weights, if Resize has such a mode."""
    if node.name != "add":
        return None
    terms = [_weighted(term) for term in node.inputs]
    left, right = terms
    if left is None or right is None or left[0] is not right[0] or left[1] != right[1]:
        return None
    source, axis = left[:2]
    before = source.shape[axis]
    if not isinstance(before, int) or before == 0:
        return None
    matrix = np.zeros((len(left[2]), before))
    for _, _, places, weights in (left, right):
        np.add.at(matrix, (np.arange(len(places)), np.clip(places, 0, before - 1)), weights)
    modes = frozenset(m for m in _MODES if _agrees(matrix, m))
    return _Step(source, axis, modes) if modes else None


def _weighted(term: Node) -> tuple[Node, int, np.ndarray, np.ndarray] | None:
    """(x, axis, places, weights) of gather(x, places, axis) * broadcast(weights)."""
    if term.name != "mul" or term.inputs[0].name != "gather":
        return None
    part, share = term.inputs
    places, axis = constant_value(part.inputs[1]), part.attr("axis")
    small = share.inputs[0] if share.name == "broadcast" else share
    weights = constant_value(small)
    if places is None or places.ndim != 1 or weights is None:
        return None
    at = axis - (part.type.rank - small.type.rank)
    if any(d != 1 for a, d in enumerate(weights.shape) if a != at) and weights.size > 1:
        return None
    return part.inputs[0], axis, places, np.broadcast_to(weights.reshape(-1), places.shape)


def _agrees(matrix: np.ndarray, mode: str) -> bool:
    after, before = matrix.shape
    places = np.clip(_coordinates(after, before, mode), 0, before - 1)
    low = np.minimum(np.floor(places).astype(int), before - 1)
    high = np.minimum(low + 1, before - 1)
    expected = np.zeros_like(matrix)
    rows = np.arange(after)
    np.add.at(expected, (rows, low), 1 - (places - low))
    np.add.at(expected, (rows, high), places - low)
    return bool(np.all(np.abs(matrix - expected) <= _TOLERANCE))


def _coordinates(after: int, before: int, mode: str) -> np.ndarray:
    i = np.arange(after, dtype=np.float64)
    if mode == "align_corners":
        return i * (before - 1) / (after - 1) if after > 1 else i
    if mode == "asymmetric":
        return i * before / after
    if mode == "pytorch_half_pixel" and after == 1:
        return i
    return (i + 0.5) * before / after - 0.5


@dataclass(frozen=True)
class _Repeat:
    """source: the operand, without the axis of copies. image: the shape with the copies in the axis before them."""

    source: Node
    axis: int
    image: Shape


def _repeat(wide: Node) -> _Repeat | None:
    """broadcast(x[.., n, 1, ..] to [.., n, k, ..])."""
    if wide.name != "broadcast":
        return None
    small = wide.inputs[0]
    lead = wide.type.rank - small.type.rank
    if any(not is_unit(d) for d in wide.shape[:lead]):
        return None
    padded = (1,) * lead + small.shape
    grown = [a for a in range(wide.type.rank) if not is_same(padded[a], wide.shape[a])]
    if len(grown) != 1 or grown[0] == 0 or not is_unit(padded[grown[0]]):
        return None
    at = grown[0]
    image = (*wide.shape[: at - 1], wide.shape[at - 1] * wide.shape[at], *wide.shape[at + 1 :])
    return _Repeat(view(small, (*padded[:at], *padded[at + 1 :])), at - 1, image)
