"""Rules that merge or remove layout and broadcast primitives (Korch section 4).

In: two adjacent primitives that only move elements, or one that moves none. Out: one or none. Invariant: exact, bit for
bit, and no node is added but views.
"""

from __future__ import annotations

from collections.abc import Sequence

from fissile.ir.dim import DimLike, less_equal
from fissile.ir.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, DType, dtype
from fissile.ir.graph import Node, make
from fissile.ir.primitive import (
    BROADCAST,
    CAST,
    CONCAT,
    GATHER,
    PAD,
    PRIMITIVES,
    RESHAPE,
    SLICE,
    TRANSPOSE,
    cast,
    scalar,
)
from fissile.rewrite.rule import Outcome, Refused, rule
from fissile.rewrite.shape import (
    broadcast,
    is_same,
    is_same_shape,
    is_unit,
    moves_only_units,
    permuted,
    view,
)


def _all_zero(extents: Sequence[DimLike]) -> bool:
    return all(is_same(d, 0) for d in extents)


@rule("transpose(transpose(x, p), q) -> transpose(x, p[q])", "transpose")
def merge_transposes(node: Node) -> Outcome:
    """Two permutations are one."""
    inner = node.inputs[0]
    if inner.primitive is not TRANSPOSE:
        return Refused("the operand is no transpose")
    perm = tuple(inner.attr("perm")[q] for q in node.attr("perm"))
    return make(TRANSPOSE, inner.inputs[0], perm=perm)


@rule("transpose(x, p) -> reshape(x), p moving unit axes only", "transpose")
def transpose_to_reshape(node: Node) -> Outcome:
    """The order in memory does not change (the identity included)."""
    x = node.inputs[0]
    if not moves_only_units(x.shape, node.attr("perm")):
        return Refused("axes that are not provably 1 change places")
    return view(x, permuted(x.shape, node.attr("perm")))


@rule("reshape(reshape(x, s), t) -> reshape(x, t)", "reshape")
def merge_reshapes(node: Node) -> Outcome:
    """Only the last shape counts; a reshape to the shape at hand is nothing."""
    x = node.inputs[0]
    if x.primitive is not RESHAPE and not is_same_shape(x.shape, node.shape):
        return Refused("the operand is no reshape and has another shape")
    return view(x, node.shape)


@rule("slice(x, everything) -> x", "slice")
def drop_slice(node: Node) -> Outcome:
    """Every element in order."""
    x = node.inputs[0]
    if not is_same_shape(x.shape, node.shape) or not _all_zero(node.attr("starts")):
        return Refused("it leaves something out")
    steps = zip(node.attr("steps"), node.shape, strict=True)
    if not all(is_same(step, 1) or is_unit(d) for step, d in steps):
        return Refused("it does not step by 1")
    return x


@rule("slice(slice(x, s, t), u, v) -> slice(x, s + t*u, t*v)", "slice")
def merge_slices(node: Node) -> Outcome:
    """A slice of a slice is one with composed starts and steps."""
    inner = node.inputs[0]
    if inner.primitive is not SLICE:
        return Refused("the operand is no slice")
    first = list(zip(inner.attr("starts"), inner.attr("steps"), strict=True))
    second = list(zip(node.attr("starts"), node.attr("steps"), strict=True))
    starts = tuple(s + t * u for (s, t), (u, _) in zip(first, second, strict=True))
    steps = tuple(t * v for (_, t), (_, v) in zip(first, second, strict=True))
    return make(SLICE, inner.inputs[0], starts=starts, steps=steps, shape=node.shape)


@rule("slice(concat(.., x, ..)) -> slice(x), all of it lying in x", "slice")
def slice_of_concat(node: Node) -> Outcome:
    """The piece is read directly."""
    whole = node.inputs[0]
    if whole.primitive is not CONCAT:
        return Refused("the operand is no concat")
    axis = whole.attr("axis")
    start, step, n = node.attr("starts")[axis], node.attr("steps")[axis], node.shape[axis]
    if not isinstance(step, int) or step < 1:
        return Refused(f"step {step} along the joined axis")
    end = start + step * (n - 1) + 1
    offset: DimLike = 0
    for piece in whole.inputs:
        if less_equal(offset, start) is not True:
            break  # nor is it of a piece behind: a proof of many extents that calls decide takes long
        after = offset + piece.shape[axis]
        if less_equal(end, after) is True:
            starts = list(node.attr("starts"))
            starts[axis] = start - offset
            steps = node.attr("steps")
            return make(SLICE, piece, starts=tuple(starts), steps=steps, shape=node.shape)
        offset = after
    return Refused("no single piece provably holds it")


@rule("slice(broadcast(x)) -> broadcast(slice(x))", "slice")
def slice_of_broadcast(node: Node) -> Outcome:
    """Broadcast axes need no slicing; the others are sliced where they are small."""
    inner = node.inputs[0]
    if inner.primitive is not BROADCAST:
        return Refused("the operand is no broadcast")
    x = inner.inputs[0]
    lead = inner.type.rank - x.type.rank
    starts, steps, shape = [], [], []
    for axis, extent in enumerate(x.shape):
        is_kept = is_same(extent, inner.shape[lead + axis])
        if not is_kept and not is_unit(extent):
            return Refused(f"axis {axis} is broadcast or not, which only a call knows")
        is_unit_axis = is_unit(extent)
        starts.append(0 if is_unit_axis else node.attr("starts")[lead + axis])
        steps.append(1 if is_unit_axis else node.attr("steps")[lead + axis])
        shape.append(extent if is_unit_axis else node.shape[lead + axis])
    if is_same_shape(shape, x.shape) and _all_zero(starts) and all(is_same(s, 1) for s in steps):
        return broadcast(x, node.shape)
    small = make(SLICE, x, starts=tuple(starts), steps=tuple(steps), shape=tuple(shape))
    return broadcast(small, node.shape)


@rule("slice(gather(x, i)) -> gather(slice(x), slice(i))", "slice")
def slice_of_gather(node: Node) -> Outcome:
    """What is left out is neither looked up nor read."""
    inner = node.inputs[0]
    if inner.primitive is not GATHER:
        return Refused("the operand is no gather")
    x, indices = inner.inputs
    axis, count = inner.attr("axis"), indices.type.rank
    columns = {key: node.attr(key) for key in ("starts", "steps", "shape")}
    chosen = {key: c[axis : axis + count] for key, c in columns.items()}
    whole: dict[str, tuple[DimLike, ...]] = {"starts": (0,), "steps": (1,)}
    whole["shape"] = (x.shape[axis],)
    kept = {key: (*c[:axis], *whole[key], *c[axis + count :]) for key, c in columns.items()}
    return make(GATHER, make(SLICE, x, **kept), make(SLICE, indices, **chosen), axis=axis)


@rule("slice(pad(x)) -> pad(slice(x)), or slice(x) where it takes nothing of the border", "slice")
def slice_of_pad(node: Node) -> Outcome:
    """A border that is cut off again is not made."""
    border = node.inputs[0]
    if border.primitive is not PAD:
        return Refused("the operand is no pad")
    attrs = [node.attr(key) for key in ("starts", "steps", "shape")]
    sides = border.attr("low"), border.attr("high")
    rows = [_within(*row) for row in zip(*attrs, *sides, border.inputs[0].shape, strict=True)]
    known = [row for row in rows if row is not None]
    if len(known) < len(rows):
        return Refused("how much of the border is taken is not known, or nothing but border")
    starts, shape, low, high = (tuple(column) for column in zip(*known, strict=True))
    inside = make(SLICE, border.inputs[0], starts=starts, steps=attrs[1], shape=shape)
    return make(PAD, inside, low=low, high=high, value=border.attr("value"))


_Row = tuple[DimLike, DimLike, DimLike, DimLike]


def _within(
    start: DimLike, step: DimLike, n: DimLike, low: DimLike, high: DimLike, extent: DimLike
) -> _Row | None:
    """(start, extent, low, high) of a slice of a padded axis: first the slice of what is inside, then its border."""
    if is_same(low, 0) and is_same(high, 0):
        return start, n, 0, 0
    if (
        not isinstance(step, int)
        or less_equal(0, low) is not True
        or less_equal(0, high) is not True
    ):
        return None
    first, last = (start, start + step * (n - 1)) if step > 0 else (start + step * (n - 1), start)
    if less_equal(low, first) is True and less_equal(last + 1, low + extent) is True:
        return start - low, n, 0, 0
    numbers = [d for d in (start, n, low, extent) if isinstance(d, int)]
    if len(numbers) < 4 or step != 1:
        return None
    at, count, before, size = numbers
    begin, end = max(at - before, 0), min(at + count - before, size)
    if begin >= end:
        return None
    return begin, end - begin, max(before - at, 0), max(at + count - before - size, 0)


@rule("slice(reshape(x)) -> reshape(slice(x)), the reshape adding or dropping unit axes", "slice")
def slice_of_view(node: Node) -> Outcome:
    """Unit axes are not in the way."""
    inner = node.inputs[0]
    if inner.primitive is not RESHAPE:
        return Refused("the operand is no reshape")
    x = inner.inputs[0]
    here = [a for a, d in enumerate(inner.shape) if not is_unit(d)]
    there = [a for a, d in enumerate(x.shape) if not is_unit(d)]
    if not is_same_shape([inner.shape[a] for a in here], [x.shape[a] for a in there]):
        return Refused("the reshape does more than adding or dropping unit axes")
    if not all(is_unit(d) for a, d in enumerate(node.shape) if a not in here):
        return Refused("nothing is taken along a unit axis")
    starts, steps, shape = [0] * len(x.shape), [1] * len(x.shape), list(x.shape)
    for a, b in zip(here, there, strict=True):
        starts[b], steps[b], shape[b] = (node.attr(k)[a] for k in ("starts", "steps", "shape"))
    cut = make(SLICE, x, starts=tuple(starts), steps=tuple(steps), shape=tuple(shape))
    return view(cut, node.shape)


@rule("pad(x, nothing) -> x", "pad")
def drop_pad(node: Node) -> Outcome:
    """Nothing is added."""
    if not _all_zero(node.attr("low")) or not _all_zero(node.attr("high")):
        return Refused("it adds elements")
    return node.inputs[0]


@rule("pad(pad(x, a, b), c, d) -> pad(x, a + c, b + d), values equal", "pad")
def merge_pads(node: Node) -> Outcome:
    """One border as wide as both."""
    inner = node.inputs[0]
    if inner.primitive is not PAD:
        return Refused("the operand is no pad")
    if inner.attr("value") != node.attr("value"):
        return Refused("the borders have different values")
    sides = {}
    for side in ("low", "high"):
        pairs = zip(inner.attr(side), node.attr(side), strict=True)
        sides[side] = tuple(a + b for a, b in pairs)
    return make(PAD, inner.inputs[0], value=node.attr("value"), **sides)


@rule("dilate(x, 1) -> x", "dilate")
def drop_dilate(node: Node) -> Outcome:
    """No zeros come between elements."""
    pairs = zip(node.attr("factors"), node.inputs[0].shape, strict=True)
    if not all(factor == 1 or is_unit(extent) for factor, extent in pairs):
        return Refused("it adds zeros")
    return node.inputs[0]


@rule("broadcast(x, shape of x) -> x; as a reshape when only unit axes are added", "broadcast")
def drop_broadcast(node: Node) -> Outcome:
    """Every element is there once already."""
    x = node.inputs[0]
    lead = node.type.rank - x.type.rank
    if not is_same_shape((1,) * lead + x.shape, node.shape):
        return Refused("elements are repeated")
    return view(x, node.shape)


@rule("broadcast(broadcast(x, s), t) -> broadcast(x, t)", "broadcast")
def merge_broadcasts(node: Node) -> Outcome:
    """Only the last shape counts."""
    if node.inputs[0].primitive is not BROADCAST:
        return Refused("the operand is no broadcast")
    return make(BROADCAST, node.inputs[0].inputs[0], shape=node.shape)


@rule("broadcast(x[1, .., 1, s], t) -> broadcast(x[s], t)", "broadcast")
def strip_broadcast(node: Node) -> Outcome:
    """Leading unit axes say nothing; without them equal operands look equal."""
    x = node.inputs[0]
    lead = 0
    while lead < x.type.rank and is_unit(x.shape[lead]):
        lead += 1
    if lead == 0:
        return Refused("the operand has no leading unit axis")
    return make(BROADCAST, view(x, x.shape[lead:]), shape=node.shape)


@rule("concat(x) -> x; concat without its empty pieces", "concat")
def drop_concat(node: Node) -> Outcome:
    """A single piece is the whole."""
    axis = node.attr("axis")
    pieces = [x for x in node.inputs if not is_same(x.shape[axis], 0)]
    if len(pieces) == 1:
        return pieces[0]
    if not pieces or len(pieces) == len(node.inputs):
        return Refused("several pieces, none of them provably empty")
    return make(CONCAT, *pieces, axis=axis)


@rule("concat(.., concat(x, y), ..) -> concat(.., x, y, ..) along one axis", "concat")
def merge_concats(node: Node) -> Outcome:
    """Pieces of pieces are pieces."""
    axis = node.attr("axis")
    pieces: list[Node] = []
    for x in node.inputs:
        is_inner = x.primitive is CONCAT and x.attr("axis") == axis
        pieces.extend(x.inputs if is_inner else (x,))
    if len(pieces) == len(node.inputs):
        return Refused("no piece is a concat along the same axis")
    return make(CONCAT, *pieces, axis=axis)


@rule("concat(.., x[a:b], x[b:c], ..) -> concat(.., x[a:c], ..)", "concat")
def concat_of_slices(node: Node) -> Outcome:
    """Neighbouring slices of one tensor are one slice."""
    axis = node.attr("axis")
    pieces: list[Node] = []
    for x in node.inputs:
        joined = _joined(pieces[-1], x, axis) if pieces else None
        if joined is None:
            pieces.append(x)
        else:
            pieces[-1] = joined
    if len(pieces) == len(node.inputs):
        return Refused("no two pieces are neighbouring slices of one tensor")
    return pieces[0] if len(pieces) == 1 else make(CONCAT, *pieces, axis=axis)


def _joined(a: Node, b: Node, axis: int) -> Node | None:
    """The slice that is concat(a, b), if there is one."""
    if a.primitive is not SLICE or b.primitive is not SLICE or a.inputs != b.inputs:
        return None
    if a.attr("steps") != b.attr("steps"):
        return None
    for k, (s, t) in enumerate(zip(a.attr("starts"), b.attr("starts"), strict=True)):
        expected = s + a.attr("steps")[k] * a.shape[k] if k == axis else s
        if not is_same(expected, t) or (k != axis and not is_same(a.shape[k], b.shape[k])):
            return None
    shape = list(a.shape)
    shape[axis] = a.shape[axis] + b.shape[axis]
    starts, steps = a.attr("starts"), a.attr("steps")
    return make(SLICE, a.inputs[0], starts=starts, steps=steps, shape=tuple(shape))


# How many binary digits every value of a type has at most.
_DIGITS = {FLOAT64: 53, FLOAT32: 24, FLOAT16: 11, BFLOAT16: 8}
_WIDER = {FLOAT16: (FLOAT32, FLOAT64), BFLOAT16: (FLOAT32, FLOAT64), FLOAT32: (FLOAT64,)}


def is_lossless(source: DType, to: DType) -> bool:
    """Whether a cast keeps every value of `source`."""
    if source is to or source is BOOL:
        return True
    if source.is_float:
        return to in _WIDER.get(source, ())
    digits = source.bits - (source.kind == "i")
    if to.is_float:
        return to in _DIGITS and digits <= _DIGITS[to]
    if not to.is_integer or (source.kind == "i" and to.kind == "u"):
        return False
    return digits <= to.bits - (to.kind == "i")


@rule("cast(cast(x, a), b) -> cast(x, b), a keeping every value", "cast")
def merge_casts(node: Node) -> Outcome:
    """The way through a wider type leaves no trace."""
    inner = node.inputs[0]
    if node.attr("source") == node.attr("to"):
        return inner
    if inner.primitive is not CAST:
        return Refused("the operand is no cast")
    source, middle, to = dtype(inner.attr("source")), inner.dtype, node.dtype
    if not is_lossless(source, middle):
        return Refused(f"{source} to {middle} may change the value")
    if middle.is_float and not source.is_float and to.is_integer:
        return Refused("a float that leaves the range of an integer is no wrapped integer")
    return cast(inner.inputs[0], to)


_SAME_WHEN_ALONE = ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")


@rule("reduce(x, unit axes) -> reshape(x)", *_SAME_WHEN_ALONE)
def drop_reduce(node: Node) -> Outcome:
    """A single element is its own sum, product and extreme."""
    x = node.inputs[0]
    if not all(is_unit(x.shape[a]) for a in node.attr("axes")):
        return Refused("an axis is not provably 1")
    return view(x, node.shape)


_REPEATED = ("reduce_sum", "reduce_max", "reduce_min")


@rule(
    "reduce(broadcast(x)) -> broadcast(reduce(x)), sums times how often x is repeated", *_REPEATED
)
def reduce_of_broadcast(node: Node) -> Outcome:
    """Equal elements are not combined one by one."""
    inner, axes = node.inputs[0], node.attr("axes")
    if inner.primitive is not BROADCAST:
        return Refused("the operand is no broadcast")
    x = inner.inputs[0]
    lead = inner.type.rank - x.type.rank
    own: list[int] = []
    times = 1
    for a in axes:
        extent = inner.shape[a]
        if a >= lead and is_same(x.shape[a - lead], extent):
            own.append(a - lead)
        elif a >= lead and not is_unit(x.shape[a - lead]):
            return Refused(f"axis {a} is broadcast or not, which only a call knows")
        elif not isinstance(extent, int) or extent < 1:
            return Refused("how often it is repeated is not known")
        else:
            times *= extent
    kept = tuple(d for a, d in enumerate(x.shape) if a + lead not in axes)
    small = view(make(node.primitive, x, axes=tuple(own)) if own else x, kept)
    if times > 1 and node.name == "reduce_sum":
        if x.dtype not in (FLOAT32, FLOAT64):
            return Refused("repeated integers are added up one by one, and narrow types cannot say how often")
        factor = make(BROADCAST, scalar(times, x.dtype), shape=kept)
        small = make(PRIMITIVES["mul"], small, factor)
    return broadcast(small, node.shape)
