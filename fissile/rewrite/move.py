"""Elementwise primitives exchanged with what only moves elements: borders, gathers, slices, concats.

In: an elementwise primitive next to a pad, gather, slice or concat. Out: the same in the other order, so that the
function is computed of fewer elements, or where a kernel can take it in. Invariant: exact, bit for bit, NaN and
infinities included, but for sums in `small_operands_first`; both directions exist, so the search decides by cost.
"""

from __future__ import annotations

import numpy as np

from fissile.ir.dim import DimLike, less_equal
from fissile.ir.graph import Node, data, make
from fissile.ir.primitive import BROADCAST, CONCAT, GATHER, PAD, SLICE, constant, constant_value
from fissile.rewrite.merge import slice_along
from fissile.rewrite.rule import ELEMENTWISE, Outcome, Refused, rule
from fissile.rewrite.shape import (
    broadcast,
    expanded,
    is_constant,
    is_same,
    is_unit,
    uniform,
)

_FLOATS = tuple(n for n in ELEMENTWISE if n not in ("cast", "select", "not"))


def _moved_operand(node: Node, kinds: tuple[str, ...]) -> int | Refused:
    """The one operand that only moves elements, beside broadcasts and constants."""
    found = [k for k, x in enumerate(node.inputs) if x.name in kinds]
    others = [x for x in node.inputs if x.name not in kinds]
    if len(found) != 1:
        return Refused(f"not one operand is a {' or '.join(kinds)}")
    if not all(x.primitive is BROADCAST or is_constant(x) for x in others):
        return Refused("another operand is neither constant nor a broadcast")
    return found[0]


def _unvarying(x: Node, axis: int, shape: tuple[DimLike, ...]) -> Node | None:
    """A broadcast that is the same along an axis, as one to `shape`; None if it varies there."""
    small = x.inputs[0] if x.primitive is BROADCAST else x
    at = axis - (len(shape) - small.type.rank)
    if at >= 0 and not is_unit(small.shape[at]):
        return None
    return make(BROADCAST, small, shape=shape)


@rule("f(pad(x, v), c) -> pad(f(x, c), f(v, c)), c uniform", *_FLOATS, regime="substitute")
def function_before_pad(node: Node) -> Outcome:
    """The border is not computed, and the pad meets the window or the pad that reads it."""
    k = _moved_operand(node, ("pad",))
    if isinstance(k, Refused):
        return k
    border = node.inputs[k]
    x, value = border.inputs[0], border.attr("value").array
    numbers = [value if n == k else uniform(i) for n, i in enumerate(node.inputs)]
    if any(n is None for n in numbers):
        return Refused("another operand is not the same everywhere")
    inside = [x if n == k else broadcast(constant(np.asarray(v)), x.shape)
              for n, v in enumerate(numbers)]  # fmt: skip
    edge = np.asarray(node.primitive.reference(*map(np.asarray, numbers), **dict(node.attrs)))
    sides = {side: border.attr(side) for side in ("low", "high")}
    small = make(node.primitive, *inside, **dict(node.attrs))
    return make(PAD, small, value=data(edge.astype(node.dtype.numpy)), **sides)


@rule("f(gather(x, i), c) -> gather(f(x, c), i), c the same along the axis", *_FLOATS,
      regime="substitute")  # fmt: skip
def function_before_gather(node: Node) -> Outcome:
    """Repeated elements (reflected borders, enlarged images) are computed once."""
    k = _moved_operand(node, ("gather",))
    if isinstance(k, Refused):
        return k
    x, indices = node.inputs[k].inputs
    axis = node.inputs[k].attr("axis")
    if indices.type.rank != 1:
        return Refused("the indices are no vector")
    operands = [x if n == k else _unvarying(i, axis, x.shape) for n, i in enumerate(node.inputs)]
    known = [o for o in operands if o is not None]
    if len(known) < len(operands):
        return Refused("another operand varies along the axis")
    return make(GATHER, make(node.primitive, *known, **dict(node.attrs)), indices, axis=axis)


@rule("f(concat(x, y), c) -> concat(f(x, c'), f(y, c''))", *_FLOATS, regime="substitute",
      opens=False)  # fmt: skip
def function_before_concat(node: Node) -> Outcome:
    """The function meets what made each piece."""
    k = _moved_operand(node, ("concat",))
    if isinstance(k, Refused):
        return k
    whole = node.inputs[k]
    axis = whole.attr("axis")
    pieces = []
    start: DimLike = 0
    for x in whole.inputs:
        extent = x.shape[axis]
        cut = [x if n == k else slice_along(i, axis, start, extent)
               for n, i in enumerate(node.inputs)]  # fmt: skip
        pieces.append(make(node.primitive, *cut, **dict(node.attrs)))
        start = start + extent
    return make(CONCAT, *pieces, axis=axis)


@rule("concat(f(x, c), f(y, d)) -> f(concat(x, y), concat(c, d))", "concat", regime="substitute",
      opens=False)  # fmt: skip
def function_after_concat(node: Node) -> Outcome:
    """One primitive instead of several; constants are joined now."""
    first, *others = node.inputs
    axis = node.attr("axis")
    is_like = first.primitive.kind == "elementwise" and all(
        x.primitive is first.primitive and x.attrs == first.attrs for x in others
    )
    if not is_like:
        return Refused("the pieces are not made by one elementwise primitive")
    columns = list(zip(*(x.inputs for x in node.inputs), strict=True))
    moved = [c for c in columns if not all(map(is_constant, c))]
    if len(moved) != 1:
        return Refused("not one operand varies")
    operands = [_joined(c, axis, node.shape) for c in columns]
    return make(first.primitive, *operands, **dict(first.attrs))


def _joined(pieces: tuple[Node, ...], axis: int, shape: tuple[DimLike, ...]) -> Node:
    """concat of operands; constants stay small where they are the same along other axes."""
    if not all(map(is_constant, pieces)):
        return make(CONCAT, *pieces, axis=axis)
    smalls = [expanded(x.inputs[0] if x.primitive is BROADCAST else x, len(shape)) for x in pieces]
    same = _unvarying(pieces[0], axis, shape)
    if same is not None and all(s is smalls[0] for s in smalls):
        return same
    if any(not is_unit(d) for s in smalls for a, d in enumerate(s.shape) if a != axis):
        return make(CONCAT, *pieces, axis=axis)
    lines = [
        broadcast(s, (*s.shape[:axis], x.shape[axis], *s.shape[axis + 1 :]))
        for s, x in zip(smalls, pieces, strict=True)
    ]
    return broadcast(make(CONCAT, *lines, axis=axis), shape)


@rule("slice(f(x, y)) -> f(slice(x), slice(y))", "slice", regime="substitute")
def function_after_slice(node: Node) -> Outcome:
    """What is left out is not computed."""
    inner = node.inputs[0]
    if inner.primitive.kind != "elementwise":
        return Refused("what is sliced is no elementwise primitive")
    cut = [make(SLICE, x, **dict(node.attrs)) for x in inner.inputs]
    return make(inner.primitive, *cut, **dict(inner.attrs))


@rule("slice(concat(x, y)) -> concat(slice(x), slice(y))", "slice", regime="substitute")
def slice_before_concat(node: Node) -> Outcome:
    """What is left out is not joined."""
    whole = node.inputs[0]
    if whole.primitive is not CONCAT:
        return Refused("the operand is no concat")
    axis = whole.attr("axis")
    starts, steps, shape = (node.attr(key) for key in ("starts", "steps", "shape"))
    if not is_same(steps[axis], 1):
        return Refused("it steps along the joined axis")
    is_all = is_same(shape[axis], whole.shape[axis])
    taken = [(x, 0, x.shape[axis]) for x in whole.inputs] if is_all else _taken(node, whole)
    if taken is None:
        return Refused("which pieces it cuts is not known")
    pieces = [
        make(SLICE, x, starts=(*starts[:axis], start, *starts[axis + 1 :]), steps=steps,
             shape=(*shape[:axis], n, *shape[axis + 1 :]))
        for x, start, n in taken
    ]  # fmt: skip
    return make(CONCAT, *pieces, axis=axis)


def _taken(node: Node, whole: Node) -> list[tuple[Node, DimLike, DimLike]] | None:
    """(piece, start, extent) of what a slice takes of the pieces of a concat."""
    axis = whole.attr("axis")
    first, n = node.attr("starts")[axis], node.shape[axis]
    extents = [x.shape[axis] for x in whole.inputs]
    known = [d for d in extents if isinstance(d, int)]
    if not isinstance(first, int) or not isinstance(n, int) or len(known) < len(extents):
        return None
    found: list[tuple[Node, DimLike, DimLike]] = []
    offset = 0
    for x, extent in zip(whole.inputs, known, strict=True):
        begin, end = max(first - offset, 0), min(first + n - offset, extent)
        if begin < end:
            found.append((x, begin, end - begin))
        offset += extent
    return found or None


@rule("(x + r) + s -> x + (r + s), r and s repeated; the same for max, min", "add",
      "max", "min", regime="substitute", opens=False)  # fmt: skip
def small_operands_first(node: Node) -> Outcome:
    """What is repeated along the same axes is combined where it is small. Not products: r s may overflow where x r
    s does not.
    """
    for inner, second in (node.inputs, node.inputs[::-1]):
        if inner.primitive is not node.primitive or second.primitive is not BROADCAST:
            continue
        for x, first in (inner.inputs, inner.inputs[::-1]):
            if first.primitive is BROADCAST and x.primitive is not BROADCAST:
                return make(node.primitive, x, make(node.primitive, first, second))
        return Refused("the inner operator has not one broadcast as an operand")
    return Refused("it is no operator over one of the same name and a broadcast")


@rule("gather(f(x, c), i) -> f(gather(x, i), c), i constant and fewer", "gather",
      regime="substitute")  # fmt: skip
def function_after_gather(node: Node) -> Outcome:
    """Only the chosen elements are computed."""
    inner, indices = node.inputs
    axis = node.attr("axis")
    if inner.primitive.kind != "elementwise" or indices.type.rank != 1:
        return Refused("what is gathered is no elementwise primitive, or not along a vector")
    if constant_value(indices) is None or less_equal(inner.shape[axis], indices.shape[0]) is True:
        return Refused("the indices are not known, or no fewer than there are elements")
    found: list[Node] = []
    for x in inner.inputs:
        same = _unvarying(x, axis, node.shape) if x.primitive is BROADCAST else None
        found.append(same or make(GATHER, x, indices, axis=axis))
    return make(inner.primitive, *found, **dict(inner.attrs))
