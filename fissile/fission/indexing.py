"""Indexing operators: Gather and its kin, OneHot, ReverseSequence.

In: a tensor and indices (negative ones count from the end). Out: `gather` along one axis, with
index arithmetic in int64 where several axes are indexed at once. Invariant: no index is read wild;
the gather primitive clamps.
"""

from __future__ import annotations

from fissile.fission.build import (
    add,
    apply,
    concat,
    const,
    extent_scalar,
    gather,
    iota,
    mul,
    normal_axis,
    reshape,
    select,
    slice_axis,
    squeeze,
    sub,
    unsqueeze,
)
from fissile.fission.table import Call, Refusal, fission
from fissile.fission.values import known_list
from fissile.ir.dim import Dim, DimLike, product
from fissile.ir.dtype import INT64
from fissile.ir.graph import Node
from fissile.ir.opaque import scatter
from fissile.ir.primitive import cast, constant_value


@fission("Gather", raw=True)
def gather_slices(call: Call, x: Node, indices: Node) -> Node:
    """x[.., indices, ..] along one axis."""
    axis = normal_axis(call.attr("axis", 0), x.type.rank)
    chosen = constant_value(indices)
    if chosen is not None and chosen.ndim == 0 and chosen >= 0:
        return squeeze(slice_axis(x, axis, int(chosen), 1), [axis])
    return gather(x, indices, axis)


def wrapped(indices: Node, extent: DimLike) -> Node:
    """Indices in int64, counted from the front."""
    wide = cast(indices, INT64)
    from_end = add(wide, extent_scalar(extent, INT64))
    return select(apply("lt", wide, const(0, wide)), from_end, wide)


@fission("GatherElements", raw=True)
def gather_elements(call: Call, x: Node, indices: Node) -> Node:
    """out[i, j, ..] = x[i, .., indices[i, j, ..], ..]."""
    return gather_along(x, indices, normal_axis(call.attr("axis", 0), x.type.rank))


def gather_along(x: Node, indices: Node, axis: int) -> Node:
    """out[i, j, ..] = x[i, .., indices[i, j, ..], ..]."""
    flat = positions_along(x, indices, axis)
    return x if flat is None else gather(reshape(x, (product(x.shape),)), flat, 0)


def positions_along(x: Node, indices: Node, axis: int) -> Node | None:
    """Where x[i, .., indices[i, j, ..], ..] stands in x read as one row; None for a scalar."""
    flat: Node | None = None
    for k, extent in enumerate(x.shape):
        if k == axis:
            own = wrapped(indices, extent)
        else:
            n = indices.shape[k]
            own = reshape(iota(n), tuple(n if a == k else 1 for a in range(x.type.rank)))
        flat = own if flat is None else add(mul(flat, extent_scalar(extent, INT64)), own)
    return flat


@fission("GatherND", raw=True)
def gather_nd(call: Call, x: Node, indices: Node) -> Node:
    """Slices of x at index tuples: the indexed axes merged into one, and one gather along it."""
    batch = call.attr("batch_dims", 0)
    depth = indices.shape[-1]
    if isinstance(depth, Dim):
        raise Refusal("the number of axes that GatherND indexes depends on the input's extents")
    last = indices.type.rank - 1
    flat: Node | None = None
    for k in range(batch):
        n = x.shape[k]
        own = reshape(iota(n), (*(n if a == k else 1 for a in range(last)),))
        flat = own if flat is None else add(mul(flat, extent_scalar(n, INT64)), own)
    for k in range(depth):
        extent = x.shape[batch + k]
        own = wrapped(squeeze(slice_axis(indices, last, k, 1), [last]), extent)
        flat = own if flat is None else add(mul(flat, extent_scalar(extent, INT64)), own)
    merged, rest = x.shape[: batch + depth], x.shape[batch + depth :]
    assert flat is not None
    return gather(reshape(x, (product(merged), *rest)), flat, 0)


_COMBINES = {"none": "", "add": "add", "mul": "mul", "min": "min", "max": "max"}


@fission("ScatterElements", "Scatter", raw=False)
def scatter_elements(call: Call, x: Node, indices: Node, updates: Node) -> Node:
    """x with x[i, .., indices[i, j, ..], ..] replaced by, or combined with, updates[i, j, ..]."""
    axis = normal_axis(call.attr("axis", 0), x.type.rank)
    flat = positions_along(x, indices, axis)
    if flat is None:
        raise Refusal("a scatter into a scalar has no native definition")
    count, whole = product(updates.shape), product(x.shape)
    places = select(
        _inside(wrapped(indices, x.shape[axis]), x.shape[axis]), flat, const(-1, flat)
    )
    rows = reshape(x, (whole, 1)), reshape(places, (count,)), reshape(updates, (count, 1))
    return reshape(scatter(*rows, _combine(call)), x.shape)


def _inside(places: Node, extent: DimLike) -> Node:
    low = apply("ge", places, const(0, places))
    return apply("and", low, apply("lt", places, extent_scalar(extent, INT64)))


def _combine(call: Call) -> str:
    return _COMBINES[call.attr("reduction", "none")]


@fission("ScatterND", raw=False)
def scatter_nd(call: Call, x: Node, indices: Node, updates: Node) -> Node:
    """x with its slices at index tuples replaced by, or combined with, slices of `updates`."""
    depth = indices.shape[-1]
    if isinstance(depth, Dim):
        raise Refusal("the number of axes that ScatterND indexes depends on the input's extents")
    last = indices.type.rank - 1
    flat: Node | None = None
    inside: Node | None = None
    for k in range(depth):
        own = wrapped(squeeze(slice_axis(indices, last, k, 1), [last]), x.shape[k])
        fits = _inside(own, x.shape[k])
        inside = fits if inside is None else apply("and", inside, fits)
        flat = own if flat is None else add(mul(flat, extent_scalar(x.shape[k], INT64)), own)
    if flat is None or inside is None:
        raise Refusal("a ScatterND of no indexed axis has no native definition")
    count, rows, width = product(flat.shape), product(x.shape[:depth]), product(x.shape[depth:])
    places = reshape(select(inside, flat, const(-1, flat)), (count,))
    pair = reshape(x, (rows, width)), places, reshape(updates, (count, width))
    return reshape(scatter(*pair, _combine(call)), x.shape)


@fission("OneHot", raw=True)
def one_hot(call: Call, indices: Node, depth: Node, values: Node) -> Node:
    """values[1] where the new axis meets the index (which may count from the end), else values[0]."""
    n = known_list(depth, "the depth of a OneHot")[0]
    axis = normal_axis(call.attr("axis", -1), indices.type.rank + 1)
    classes = iota(n)
    shape = tuple(n if a == axis else 1 for a in range(indices.type.rank + 1))
    hit = apply("eq", unsqueeze(wrapped(indices, n), [axis]), reshape(classes, shape))
    off, on = (squeeze(slice_axis(values, 0, k, 1), [0]) for k in (0, 1))
    return select(hit, on, off)


@fission("ReverseSequence", raw=True)
def reverse_sequence(call: Call, x: Node, lengths: Node) -> Node:
    """The first lengths[b] elements of each batch entry in reverse, the rest as they are."""
    time, batch = call.attr("time_axis", 0), call.attr("batch_axis", 1)
    n, b = x.shape[time], x.shape[batch]
    steps = reshape(iota(n), tuple(n if a == time else 1 for a in range(2)))
    ends = reshape(lengths, tuple(b if a == batch else 1 for a in range(2)))
    back = sub(sub(ends, const(1, ends)), steps)
    place = select(apply("lt", steps, ends), back, steps)
    owner = reshape(iota(b), tuple(b if a == batch else 1 for a in range(2)))
    first, second = (place, owner) if time == 0 else (owner, place)
    flat = add(mul(first, extent_scalar(x.shape[1], INT64)), second)
    return gather(reshape(x, (product(x.shape[:2]), *x.shape[2:])), flat, 0)


@fission("Compress", raw=True)
def compress(call: Call, x: Node, condition: Node) -> Node:
    """The slices where a constant condition holds."""
    chosen = constant_value(condition)
    if chosen is None:
        raise Refusal("how many elements Compress keeps depends on the data")
    axis = call.attr("axis")
    rows = reshape(x, (product(x.shape),)) if axis is None else x
    place = 0 if axis is None else normal_axis(axis, x.type.rank)
    kept = [int(k) for k in chosen.nonzero()[0]]
    if not kept:
        return slice_axis(rows, place, 0, 0)
    return concat([slice_axis(rows, place, k, 1) for k in kept], place)
