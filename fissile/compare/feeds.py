"""Drawn inputs: arrays for the inputs of a model that nobody gave (PRODUCT 5.1).

In: inputs, arrays at hand, extents by dimension name or by input name, a seed. Out: one array per input.
Floats are standard normal, integers and bools 0 or 1; a free dimension that nothing fixes is 1.
Invariant: the same seed and extents give the same arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fissile.ir.dim import evaluate, parse, symbols
from fissile.runtime.plan import TensorInfo

Array = np.ndarray[Any, np.dtype[Any]]
Extents = Mapping[str, Any]


def complete_feeds(
    inputs: Sequence[TensorInfo], feeds: Mapping[str, Array], extents: Extents, seed: int
) -> dict[str, Array]:
    """`feeds` with drawn arrays for the inputs that are missing.

    extents: dimension name -> number, input name -> list of numbers and None.
    """
    draw = np.random.default_rng(seed)
    sizes = dict(extents)
    for info in inputs:
        if info.name in feeds:
            for name, size in zip(info.shape, np.shape(feeds[info.name]), strict=False):
                if isinstance(name, str):
                    sizes.setdefault(name, size)
    complete = dict(feeds)
    for info in inputs:
        if info.name not in complete:
            own = extents.get(info.name)
            own = own if isinstance(own, list) else [None] * len(info.shape)
            shape = [_size(e, o, sizes) for e, o in zip(info.shape, own, strict=False)]
            complete[info.name] = _drawn(draw, shape, info.dtype)
    return complete


def low_ends(shapes: Extents) -> dict[str, Any]:
    """Each range replaced by its low end."""

    def low(value: Any) -> Any:
        if isinstance(value, list):
            return [low(v) for v in value]
        return value[0] if isinstance(value, tuple) else value

    return {name: low(value) for name, value in shapes.items()}


def _size(extent: int | str | None, own: int | None, sizes: Mapping[str, Any]) -> int:
    if own is not None:
        return own
    if isinstance(extent, int):
        return extent
    if not extent:
        return 1
    if extent in sizes:
        return int(sizes[extent])
    try:
        expression = parse(extent)
    except ValueError:
        return 1  # a name that is no expression
    return evaluate(expression, {s.name: int(sizes.get(s.name, 1)) for s in symbols(expression)})


def _drawn(draw: np.random.Generator, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    if dtype.kind in "iub":
        return draw.integers(0, 2, tuple(shape)).astype(dtype)
    return draw.standard_normal(tuple(shape)).astype(dtype)
