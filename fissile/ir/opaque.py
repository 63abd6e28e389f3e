"""Primitives that nothing fuses across: scatter, cumulative sums and products, the k largest (DESIGN 3.1).

In: tensors in memory. Out: one tensor, computed by a kernel of its own (`fissile.schedule.opaque`). Invariant: the
meaning is sequential, element after element in row-major order, so the result does not depend on threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fissile.ir.dim import DimLike
from fissile.ir.dtype import INT64
from fissile.ir.graph import Attrs, Constraints, Node, Primitive, TensorType, make
from fissile.ir.primitive import PRIMITIVES, need_elements

COMBINES = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
Types = tuple[TensorType, ...]


def _scatter_type(types: Types, attrs: Attrs, need: Constraints) -> TensorType:
    x, places, updates = types
    fits = x.rank == updates.rank == 2 and places.rank == 1
    if not fits or places.dtype is not INT64 or x.dtype is not updates.dtype:
        raise ValueError(f"scatter of {updates} to {places} in {x}")
    need.equal(places.shape[0], updates.shape[0], "scatter updates")
    need.equal(x.shape[1], updates.shape[1], "scatter rows")
    need_elements(x, 0, places.shape, need)
    return x


def _scatter_reference(
    x: np.ndarray, places: np.ndarray, updates: np.ndarray, *, combine: str
) -> np.ndarray:
    result = x.copy()
    with np.errstate(all="ignore"):
        for place, row in zip(places, updates, strict=True):
            if 0 <= place < len(x):
                result[place] = COMBINES[combine](result[place], row) if combine else row
    return result


def _cumulate_type(types: Types, attrs: Attrs, need: Constraints) -> TensorType:
    return types[0]


def _cumulate_reference(
    x: np.ndarray, *, axis: int, combine: str, exclusive: bool, reverse: bool
) -> np.ndarray:
    ordered = np.flip(x, axis) if reverse else x
    with np.errstate(all="ignore"):
        result = COMBINES[combine].accumulate(ordered, axis, dtype=x.dtype)
    if exclusive:
        first = np.full_like(np.take(x, [0] if x.shape[axis] else [], axis), combine == "mul")
        result = np.concatenate([first, np.take(result, range(x.shape[axis] - 1), axis)], axis)
    return np.flip(result, axis) if reverse else result


def _top_k_type(types: Types, attrs: Attrs, need: Constraints) -> TensorType:
    shape = list(types[0].shape)
    shape[attrs["axis"]] = attrs["k"]
    return TensorType(INT64, tuple(shape))


def _top_k_reference(x: np.ndarray, *, axis: int, k: int, largest: bool) -> np.ndarray:
    if largest:  # a stable order of falling values: that of the flipped array, flipped
        order = x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis, kind="stable")
        order = np.flip(order, axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    return np.take(order, range(k), axis).astype(np.int64)


def _row(name: str, infer: Any, reference: Any) -> Primitive:
    return PRIMITIVES.setdefault(name, Primitive(name, "opaque", infer, reference))


# x[n, m] with row places[j] replaced by updates[j], or combined with it, j ascending; places out of range do nothing
SCATTER = _row("scatter", _scatter_type, _scatter_reference)
# each element combined with all before it along an axis ("add" or "mul"), itself left out if exclusive
CUMULATE = _row("cumulate", _cumulate_type, _cumulate_reference)
# along an axis the indices of the k largest (or smallest) elements, the best first, equal ones in their order
TOP_K = _row("top_k", _top_k_type, _top_k_reference)


def scatter(x: Node, places: Node, updates: Node, combine: str = "") -> Node:
    """x[n, m] with row places[j] replaced by, or combined ("add", "mul", "min", "max") with, updates[j, m]."""
    return make(SCATTER, x, places, updates, combine=combine)


def cumulate(x: Node, axis: int, combine: str, exclusive: bool, reverse: bool) -> Node:
    """Running sums ("add") or products ("mul") along an axis."""
    attrs = {"combine": combine, "exclusive": exclusive, "reverse": reverse}
    return make(CUMULATE, x, axis=axis, **attrs)


def top_k(x: Node, axis: int, k: DimLike, largest: bool) -> Node:
    """Indices of the k largest or smallest elements along an axis."""
    return make(TOP_K, x, axis=axis, k=k, largest=largest)
