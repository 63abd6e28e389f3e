"""Indexing operators: Gather and its kin, OneHot, ReverseSequence.

In: a tensor and indices (negative ones count from the end). Out: `gather` along one axis, with
index arithmetic in int64 where several axes are indexed at once. Invariant: no index is read wild:
each is clamped to its own axis, and an index into an empty axis is refused by a guard.
"""

from __future__ import annotations

from fissile.fission.build import (
    add,
    apply,
    concat,
    const,
    extent_scalar,
    gather,
    integers,
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
from fissile.ir.dim import Dim, DimLike, less_equal, max_, min_, product
from fissile.ir.dtype import INT64
from fissile.ir.graph import Node
from fissile.ir.opaque import scatter
from fissile.ir.primitive import cast, constant_value, lacking


@fission("Gather", raw=True)
def gather_slices(call: Call, x: Node, indices: Node) -> Node:
    """x[.., indices, ..] along one axis."""
    axis = normal_axis(call.attr("axis", 0), x.type.rank)
    chosen = constant_value(indices)
    if chosen is None or chosen.ndim or chosen < 0:
        return gather(x, indices, axis)
    empty = f"an index into axis {axis} of {x.type}, which is empty"
    call.demand(lacking(x.shape[axis], ()), 0, empty)
    start = min_(int(chosen), x.shape[axis] - 1) if chosen else 0
    return squeeze(slice_axis(x, axis, start, 1), [axis])


def _inside_axis(indices: Node, extent: DimLike) -> Node:
    """Indices in int64, counted from the front, the nearest of the axis where they are out of it."""
    last = extent_scalar(extent - 1, INT64)
    own = wrapped(indices, extent)
    return apply("max", apply("min", own, last), const(0, own))


def wrapped(indices: Node, extent: DimLike) -> Node:
    """Indices in int64, counted from the front."""
    wide = cast(indices, INT64)
    from_end = add(wide, extent_scalar(extent, INT64))
    return select(apply("lt", wide, const(0, wide)), from_end, wide)


@fission("GatherElements", raw=True)
def gather_elements(call: Call, x: Node, indices: Node) -> Node:
    """out[i, j, ..] = x[i, .., indices[i, j, ..], ..]."""
    axis = normal_axis(call.attr("axis", 0), x.type.rank)
    _demand_within(call, indices, x, axis)
    return gather_along(x, _inside_axis(indices, x.shape[axis]), axis)


def _demand_within(call: Call, indices: Node, x: Node, axis: int) -> None:
    """Indices reach no further than x along every axis but the indexed one."""
    if indices.type.rank != x.type.rank:
        raise ValueError(f"indices of rank {indices.type.rank} into rank {x.type.rank}")
    for k, (n, most) in enumerate(zip(indices.shape, x.shape, strict=True)):
        if k != axis:
            call.demand_at_most(n, most, f"axis {k} of the indices")


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
        call.demand(indices.shape[k], n, f"axis {k} of the indices and of the data must be equal")
        own = reshape(iota(n), (*(n if a == k else 1 for a in range(last)),))
        flat = own if flat is None else add(mul(flat, extent_scalar(n, INT64)), own)
    for k in range(depth):
        extent = x.shape[batch + k]
        own = _inside_axis(squeeze(slice_axis(indices, last, k, 1), [last]), extent)
        flat = own if flat is None else add(mul(flat, extent_scalar(extent, INT64)), own)
    merged, rest = x.shape[: batch + depth], x.shape[batch + depth :]
    assert flat is not None
    return gather(reshape(x, (product(merged), *rest)), flat, 0)


_COMBINES = {"none": "", "add": "add", "mul": "mul", "min": "min", "max": "max"}


@fission("ScatterElements", "Scatter", raw=False)
def scatter_elements(call: Call, x: Node, indices: Node, updates: Node) -> Node:
    """x with x[i, .., indices[i, j, ..], ..] replaced by, or combined with, updates[i, j, ..]."""
    axis = normal_axis(call.attr("axis", 0), x.type.rank)
    _demand_within(call, indices, x, axis)
    _demand_shape(call, updates, indices.shape)
    flat = positions_along(x, indices, axis)
    if flat is None:
        raise Refusal("a scatter into a scalar has no native definition")
    count, whole = product(updates.shape), product(x.shape)
    places = select(
        _inside(wrapped(indices, x.shape[axis]), x.shape[axis]), flat, const(-1, flat)
    )
    rows = reshape(x, (whole, 1)), reshape(places, (count,)), reshape(updates, (count, 1))
    return reshape(scatter(*rows, _combine(call)), x.shape)


def _demand_shape(call: Call, updates: Node, shape: tuple[DimLike, ...]) -> None:
    """The updates have this shape."""
    if updates.type.rank != len(shape):
        raise ValueError(f"updates of rank {updates.type.rank}, not {len(shape)}")
    for k, (n, want) in enumerate(zip(updates.shape, shape, strict=True)):
        call.demand(n, want, f"axis {k} of the updates must be {want}, not {n}")


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
    _demand_shape(call, updates, (*indices.shape[:-1], *x.shape[depth:]))
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
    call.demand(values.shape[0], 2, "the values of a OneHot are two, off and on")
    hit = apply("eq", unsqueeze(wrapped(indices, n), [axis]), reshape(classes, shape))
    off, on = (squeeze(slice_axis(values, 0, k, 1), [0]) for k in (0, 1))
    return select(hit, on, off)


@fission("ReverseSequence", raw=True)
def reverse_sequence(call: Call, x: Node, lengths: Node) -> Node:
    """The first lengths[b] elements of each batch entry in reverse, the rest as they are."""
    time, batch = call.attr("time_axis", 0), call.attr("batch_axis", 1)
    n, b = x.shape[time], x.shape[batch]
    steps = reshape(iota(n), tuple(n if a == time else 1 for a in range(2)))
    call.demand(lengths.shape[0], b, f"{lengths.shape[0]} lengths of {b} sequences")
    lengths = apply("min", lengths, extent_scalar(n, lengths.dtype))
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
    n = rows.shape[place]
    if not kept or less_equal(kept[-1] + 1, n) is True:
        pieces = [slice_axis(rows, place, k, 1) for k in kept]
        return concat(pieces, place) if pieces else slice_axis(rows, place, 0, 0)
    count: DimLike = 0  # of those that lie in the axis; the condition may be longer
    for k in kept:
        count = count + min_(max_(n - k, 0), 1)
    return gather(rows, slice_axis(integers(kept), 0, 0, count), place)
