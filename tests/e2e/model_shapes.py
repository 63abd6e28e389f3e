"""Operations of drawn ONNX models whose extents come from shapes or data, and those that run in Python.

As in `tests.e2e.model_numbers`.
"""

from __future__ import annotations

import numpy as np

from tests.e2e.model_numbers import an_axis
from tests.e2e.model_pool import LONGEST, Pool, Unfit, Value, code_of

# ---------------------------------------------------------------- shapes


def shape_number(p: Pool) -> object:
    """Arithmetic with an extent, as exporters write it, and a tensor of that size."""
    v = p.some(lambda v: v.rank > 0)
    (name,) = p.node("Shape", [v])
    shape = p.made(name, "int64", [v.rank], LONGEST, True)
    number = p.apply("Gather", [shape, p.ints(an_axis(p, v))], shape, [1])
    for _ in range(p.integer(1, 3)):
        by = p.ints(p.choice((1, 2, 3, -1)))
        kind = p.choice(("Add", "Sub", "Mul", "Div", "Max"))
        number = p.apply(kind, [number, by], number, bound=1000)
    size = p.apply("Max", [number, p.ints(0)], number)
    size = p.apply("Min", [size, p.ints(LONGEST)], size)
    if p.flip():
        one = p.leaf("float32", [1])
        return p.apply("Expand", [one, size], one, [p.extent()])
    (name,) = p.node("ConstantOfShape", [size])
    return p.made(name, "float32", [p.extent()], 0, True)


def ranged(p: Pool) -> object:
    """A Range up to an extent, or up to what data say."""
    v = p.some(lambda v: v.rank > 0)
    if p.flip():
        (name,) = p.node("Shape", [v])
        shape = p.made(name, "int64", [v.rank], LONGEST, True)
        end = p.apply("Gather", [shape, p.constant(np.array(an_axis(p, v)))], shape, [])
    else:
        end = p.apply("Abs", [_scalar(p)], p.ints(0), [], 8)
    zero, one = p.constant(np.array(0)), p.constant(np.array(p.choice((1, 2))))
    return p.apply("Range", [zero, end, one], end, [p.extent()], LONGEST)


def _scalar(p: Pool) -> Value:
    """A small whole number that data decide."""
    v = p.some(lambda v: v.exact and v.kind in ("int64", "float32") and v.bound <= 8 and not p.odd)
    flat = p.apply("Reshape", [v, p.ints(-1)], v, [p.extent()])
    zero = p.constant(np.zeros(1), v.kind)
    with_zero = p.apply("Concat", [flat, zero], v, [p.extent()], axis=0)
    top = p.apply("ReduceMax", [with_zero, p.ints(0)], v, [], keepdims=0)
    (name,) = p.node("Cast", [top], to=code_of("int64"))
    return p.made(name, "int64", [], 8, True)


# ---------------------------------------------------------------- what data decide, and what runs in Python


def nonzero(p: Pool) -> object:
    v = p.some(lambda v: v.exact and v.rank > 0 and v.kind in ("float32", "int64", "bool", "int32"))
    (name,) = p.node("NonZero", [v])
    return p.made(name, "int64", [v.rank, p.extent()], LONGEST, True)


def unique(p: Pool) -> object:
    v = p.some(lambda v: v.exact and v.kind in ("float32", "int64", "int8") and not p.odd)
    names = p.node("Unique", [v], 4)
    extent = p.extent()
    found = p.made(names[0], v.kind, [extent], v.bound, True)
    if p.flip():
        p.made(names[3], "int64", [extent], 2000, True)
    return found


def compress(p: Pool) -> object:
    v = p.some(lambda v: v.rank > 0)
    axis = an_axis(p, v)
    keep = p.leaf("bool", [v.shape[axis]])
    shape = [p.extent() if a == axis else d for a, d in enumerate(v.shape)]
    return p.apply("Compress", [v, keep], v, shape, axis=axis)


def slice_by_data(p: Pool) -> object:
    v = p.some(lambda v: v.rank > 0)
    end = p.apply("Reshape", [_scalar(p), p.ints(1)], p.ints(0), [1], 8)
    axis = an_axis(p, v)
    shape = [p.extent() if a == axis else d for a, d in enumerate(v.shape)]
    return p.apply("Slice", [v, p.ints(0), end, p.ints(axis)], v, shape)


def foreign(p: Pool) -> object:
    """Operators without native definition."""
    kind = p.choice(("Det", "NonMaxSuppression", "GridSample"))
    if kind == "Det":
        v = p.some(lambda v: v.kind == "float32" and v.rank >= 2 and v.bound <= 8 and not p.odd)
        square = p.ints(*([0] * (v.rank - 2)), 2, 2)
        if v.shape[-2:] != (2, 2) or not square:
            raise Unfit
        return p.apply("Det", [v], v, v.shape[:-2], v.bound**2 * 2, exact=False)
    if kind == "GridSample":
        v = p.some(lambda v: v.kind == "float32" and v.rank == 4 and not p.odd and 0 not in v.shape)
        grid = p.leaf("float32", [v.shape[0], 3, 2, 2])
        shape = [*v.shape[:2], 3, 2]
        mode = p.choice(("nearest", "linear"))
        return p.apply("GridSample", [v, grid], v, shape, exact=False, mode=mode, align_corners=1)
    boxes = p.leaf("float32", [1, 5, 4])
    scores = p.leaf("float32", [1, 2, 5])
    most = p.ints(2)
    limits = [p.constant(np.array([x]), "float32") for x in (0.5, 0.5)]
    (name,) = p.node("NonMaxSuppression", [boxes, scores, most, *limits])
    return p.made(name, "int64", [p.extent(), 3], 5, True)
