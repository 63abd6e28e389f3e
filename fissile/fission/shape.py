"""Operators that make or measure shapes: Shape, Size, ConstantOfShape, Range, Expand, Tile.

In: tensors whose extents, or whose known values, say what to build. Out: `extents`, `iota` and
broadcasts. Invariant: a shape that depends on data is refused with its reason, never guessed.
"""

from __future__ import annotations

import math

import numpy as np

from fissile.fission.build import (
    add,
    apply,
    broadcast,
    const,
    constant_of,
    dtype_of_onnx,
    expand,
    extent_scalar,
    iota,
    joined_shape,
    mul,
    reshape,
)
from fissile.fission.table import Call, Refusal, fission
from fissile.fission.values import known, known_list, known_wholes, node_of, objects
from fissile.ir.dim import Dim, DimLike, ceildiv, product
from fissile.ir.dtype import INT64
from fissile.ir.graph import Node
from fissile.ir.primitive import cast, constant_value, scalar


@fission("Shape", raw=True)
def shape_of(call: Call, x: Node) -> Node:
    """The extents from `start` to `end`, as int64."""
    extents = x.shape[slice(call.attr("start", 0), call.attr("end"))]
    return node_of(objects(extents), INT64)


@fission("Size", raw=True)
def size_of(call: Call, x: Node) -> Node:
    """The number of elements, as int64."""
    return extent_scalar(product(x.shape), INT64)


def known_shape(node: Node | None) -> tuple[DimLike, ...]:
    """A shape given as a tensor. Refusal when it depends on data."""
    return tuple(known_list(node, "the shape"))


@fission("ConstantOfShape", raw=True)
def constant_of_shape(call: Call, shape: Node) -> Node:
    """One value everywhere."""
    value = call.attr("value")
    filling = np.zeros((), np.float32) if value is None else np.asarray(value).reshape(())
    extents = known_shape(shape)
    for extent in extents:
        call.demand_natural(extent, "extent")
    return broadcast(constant_of(filling), extents)


@fission("Range")
def ramp(call: Call, start: Node, limit: Node, delta: Node) -> Node:
    """start, start + delta, .. below limit."""
    values = [constant_value(x) for x in (start, limit, delta)]
    if all(v is not None for v in values):
        first, last, step = (v.item() for v in values if v is not None)
        n = max(math.ceil((last - first) / step), 0)
        ramp_values = first + step * np.arange(
            n, dtype=np.float64 if start.dtype.is_float else object
        )
        return constant_of(np.asarray(ramp_values).astype(start.dtype.numpy))
    ends = [known(x) if x.dtype.is_integer else known_wholes(x) for x in (start, limit, delta)]
    if any(end is None for end in ends):
        raise Refusal("the length of a Range depends on the data")
    first, last, step = (end.item() for end in ends if end is not None)
    if isinstance(step, Dim):
        raise Refusal("the step of a Range depends on the input's extents")
    n = call.natural(ceildiv(last - first, step) if step > 0 else ceildiv(first - last, -step))
    steps = cast(iota(n), start.dtype)
    scaled = steps if step == 1 else mul(steps, const(step, steps))
    if not isinstance(first, Dim) and first == 0:
        return scaled
    return add(scaled, extent_scalar(first, start.dtype))


@fission("Expand", raw=True)
def expand_to(call: Call, x: Node, shape: Node) -> Node:
    """x broadcast against a shape."""
    return expand(x, joined_shape(x.shape, known_shape(shape)))


@fission("Tile", raw=True)
def tile(call: Call, x: Node, repeats: Node) -> Node:
    """x repeated along each axis: broadcast along a new axis before it, then merged."""
    times = known_list(repeats, "the number of repeats")
    for axis, n in enumerate(times):
        if not isinstance(n, Dim) and n == 1:
            continue
        before, own, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
        wide = reshape(x, (*before, 1, own, *after))
        x = reshape(broadcast(wide, (*before, n, own, *after)), (*before, n * own, *after))
    return x


@fission("EyeLike", raw=True)
def eye_like(call: Call, x: Node) -> Node:
    """Ones on a diagonal of a matrix of the shape of x."""
    from_code = call.attr("dtype")
    of = x.dtype if from_code is None else dtype_of_onnx(from_code)
    rows, columns = iota(x.shape[0]), iota(x.shape[1])
    place = add(reshape(rows, (x.shape[0], 1)), scalar(call.attr("k", 0), INT64))
    return cast(apply("eq", place, reshape(columns, (1, x.shape[1]))), of)
