"""Indices out of range, as the README promises: gathers clamp, scatters leave out, an empty axis is an error.

In: the arrays of an operator by the names that the table of operators gives them, and its attributes. Out: its result,
element by element in plain Python. IndexError where there is nothing to clamp to, or where shapes do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
Rule = Callable[[Arrays, Mapping[str, Any]], np.ndarray]
_COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": max,
    "min": min,
}


def _demand_elements(extents: Sequence[int], count: int) -> None:
    if count and not all(extents):
        raise IndexError("an index into an empty axis")


def _clamped(index: Any, extent: int) -> int:
    return int(np.clip(index + extent if index < 0 else index, 0, extent - 1))


def _demand(fits: bool) -> None:
    if not fits:
        raise IndexError("shapes do not fit")


def _gather(a: Arrays, attributes: Mapping[str, Any]) -> np.ndarray:
    x, index, axis = a["x"], a["i"], attributes.get("axis", 0) % a["x"].ndim
    _demand_elements([x.shape[axis]], index.size)
    result = np.zeros((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), x.dtype)
    for at in np.ndindex(result.shape):
        before, own, after = at[:axis], at[axis : axis + index.ndim], at[axis + index.ndim :]
        place: tuple[int, ...] = (*before, _clamped(index[own], x.shape[axis]), *after)
        result[at] = x[place]
    return result


def _moved(at: Sequence[int], axis: int, index: int) -> tuple[int, ...]:
    return (*at[:axis], index, *at[axis + 1 :])


def _within(x: np.ndarray, index: np.ndarray, axis: int) -> None:
    pairs = enumerate(zip(index.shape, x.shape, strict=True))
    _demand(all(n <= most for k, (n, most) in pairs if k != axis))


def _gather_elements(a: Arrays, attributes: Mapping[str, Any]) -> np.ndarray:
    x, index, axis = a["x"], a["i"], attributes.get("axis", 0) % a["x"].ndim
    _within(x, index, axis)
    _demand_elements(x.shape, index.size)
    result = np.zeros(index.shape, x.dtype)
    for at in np.ndindex(index.shape):
        result[at] = x[_moved(at, axis, _clamped(index[at], x.shape[axis]))]
    return result


def _gather_nd(a: Arrays, attributes: Mapping[str, Any]) -> np.ndarray:
    x, index, batch = a["x"], a["i"], attributes.get("batch_dims", 0)
    _demand(x.shape[:batch] == index.shape[:batch])
    depth = batch + index.shape[-1]
    _demand_elements(x.shape[:depth], int(np.prod(index.shape[:-1])))
    result = np.zeros((*index.shape[:-1], *x.shape[depth:]), x.dtype)
    for at in np.ndindex(result.shape):
        own, rest = at[: index.ndim - 1], at[index.ndim - 1 :]
        chosen = zip(index[own], x.shape[batch:depth], strict=True)
        places = [_clamped(i, n) for i, n in chosen]
        result[at] = x[(*at[:batch], *places, *rest)]
    return result


def _scattered(
    x: np.ndarray, pairs: Sequence[tuple[tuple[int, ...], Any]], kind: str
) -> np.ndarray:
    result = x.copy()
    for at, value in pairs:
        place = tuple(i + x.shape[k] if i < 0 else i for k, i in enumerate(at))
        if all(0 <= i < n for i, n in zip(place, x.shape, strict=True)):
            result[place] = _COMBINED[kind](result[place], value)
    return result


def _scatter_elements(a: Arrays, attributes: Mapping[str, Any]) -> np.ndarray:
    x, index, updates = a["x"], a["i"], a["u"]
    axis = attributes.get("axis", 0) % x.ndim
    _within(x, index, axis)
    _demand(index.shape == updates.shape)
    pairs = [(_moved(at, axis, int(index[at])), updates[at]) for at in np.ndindex(index.shape)]
    _demand_elements(x.shape, index.size)
    return _scattered(x, pairs, attributes.get("reduction", "none"))


def _scatter_nd(a: Arrays, attributes: Mapping[str, Any]) -> np.ndarray:
    x, index, updates = a["x"], a["i"], a["u"]
    depth = index.shape[-1]
    _demand(updates.shape == (*index.shape[:-1], *x.shape[depth:]))
    rank = index.ndim - 1
    pairs = [
        ((*map(int, index[at[:rank]]), *at[rank:]), updates[at]) for at in np.ndindex(updates.shape)
    ]
    _demand_elements(x.shape[:depth], int(np.prod(index.shape[:-1])))
    return _scattered(x, pairs, attributes.get("reduction", "none"))


def _reverse_sequence(a: Arrays, attributes: Mapping[str, Any]) -> np.ndarray:
    """A length beyond the sequence is that of the sequence."""
    x, lengths = a["x"], a["l"]
    time, batch = attributes["time_axis"], attributes["batch_axis"]
    _demand(len(lengths) == x.shape[batch])
    result = np.moveaxis(x, (time, batch), (0, 1)).copy()
    for k, n in enumerate(lengths):
        result[:n, k] = result[:n, k][::-1].copy()
    return np.moveaxis(result, (0, 1), (time, batch))


RULES: dict[str, Rule] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "ReverseSequence": _reverse_sequence,
}
