"""Maps along the leading axes: what moves or mixes places and treats every channel (last axis) alike.

In: a node. Out: a `Map`, that is its operand and how to apply the same to a tensor with other channels, or why it is
none. Gathers, slices, zero borders, repetition, linear interpolation, sums over places and reshapes that keep the last
axis are maps. Invariant: `map.build(map.source)` is the node itself in value and type. A map commutes with every
product over channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fissile.ir.graph import Node, make
from fissile.ir.primitive import (
    BROADCAST,
    GATHER,
    PAD,
    PRIMITIVES,
    RESHAPE,
    SLICE,
    TRANSPOSE,
    WINDOW,
    constant_value,
)
from fissile.rewrite.rule import Refused
from fissile.rewrite.shape import broadcast, is_same, is_unit, small_constant, uniform, view

ADD, MUL, REDUCE_SUM = PRIMITIVES["add"], PRIMITIVES["mul"], PRIMITIVES["reduce_sum"]
ROOTS = ("gather", "slice", "pad", "add", "reduce_sum", "reshape", "broadcast")
_SUM_TOLERANCE = 1e-6  # two float32 weights that should add up to 1 do so to about this


@dataclass(frozen=True)
class Map:
    """source: the operand. build: the map of a tensor of the source's shape but for the last extent.

    unit: whether the same value at every place stays that value (weights add up to 1).
    """

    source: Node
    build: Callable[[Node], Node]
    unit: bool


def mapped(node: Node) -> Map | Refused:
    """`node` as a map along all axes but its last."""
    if node.type.rank < 2:
        return Refused("it has no axis before the channels")
    recognise = _KINDS.get(node.name)
    if recognise is None:
        return Refused(f"{node.name} is no map along places")
    found = recognise(node)
    if found is None:
        return Refused(f"the {node.name} changes the channels or does not treat them alike")
    return found


def apply_map(along: Map, channels: Node) -> Node:
    """The map of a matrix of rows [places of the source, channels]."""
    return along.build(view(channels, (*along.source.shape[:-1], channels.shape[-1])))


def _keeps_last(node: Node) -> bool:
    x = node.inputs[0]
    return x.type.rank >= 1 and is_same(x.shape[-1], node.shape[-1]) and not is_unit(node.shape[-1])


def _reshaped(node: Node) -> Map | None:
    if not _keeps_last(node):
        return None
    lead = node.shape[:-1]
    return Map(node.inputs[0], lambda z: view(z, (*lead, z.shape[-1])), True)


def _repeated(node: Node) -> Map | None:
    if not _keeps_last(node) or node.inputs[0].type.rank < 2:
        return None
    lead = node.shape[:-1]
    return Map(node.inputs[0], lambda z: broadcast(z, (*lead, z.shape[-1])), True)


def _gathered(node: Node) -> Map | None:
    x, indices = node.inputs
    axis = node.attr("axis")
    if axis == x.type.rank - 1:
        return None
    return Map(x, lambda z: make(GATHER, z, indices, axis=axis), True)


def _sliced(node: Node) -> Map | None:
    starts, steps, lead = node.attr("starts"), node.attr("steps"), node.shape[:-1]
    if not _keeps_last(node) or not is_same(starts[-1], 0) or not is_same(steps[-1], 1):
        return None

    def build(z: Node) -> Node:
        return make(SLICE, z, starts=starts, steps=steps, shape=(*lead, z.shape[-1]))

    return Map(node.inputs[0], build, True)


def _padded(node: Node) -> Map | None:
    attrs = dict(node.attrs)
    if not _keeps_last(node) or np.any(node.attr("value").array != 0):
        return None
    return Map(node.inputs[0], lambda z: make(PAD, z, **attrs), False)


def _summed(node: Node) -> Map | None:
    x, axes = node.inputs[0], node.attr("axes")
    if x.name == "window":
        return _pooled(x, axes)
    if x.type.rank - 1 in axes:
        return None
    return Map(x, lambda z: make(REDUCE_SUM, z, axes=axes), False)


def _pooled(windows: Node, axes: tuple[int, ...]) -> Map | None:
    """Sums over whole windows along places (average pooling)."""
    x, attrs = windows.inputs[0], dict(windows.attrs)
    channels, rank = x.type.rank - 1, windows.type.rank
    if axes != tuple(range(channels + 1, rank)) or channels in windows.attr("axes"):
        return None
    return Map(x, lambda z: make(REDUCE_SUM, make(WINDOW, z, **attrs), axes=axes), False)


def _interpolated(node: Node) -> Map | None:
    """share * x[.., i, ..] + other * x[.., j, ..] along one axis."""
    left, right = (_share(term) for term in node.inputs)
    if left is None or right is None:
        return None
    (x, i, axis, u), (y, j, other, v) = left, right
    if x is not y or axis != other:
        return None

    def build(z: Node) -> Node:
        parts = [make(GATHER, z, k, axis=axis) for k in (i, j)]
        shares = [broadcast(w, parts[0].shape) for w in (u, v)]
        return make(ADD, *(make(MUL, p, w) for p, w in zip(parts, shares, strict=True)))

    return Map(x, build, _add_up_to_one(u, v))


def _share(term: Node) -> tuple[Node, Node, int, Node] | None:
    """(x, indices, axis, weight) of gather(x, indices, axis) * broadcast(weight), which varies along that axis."""
    if term.name != "mul":
        return None
    part, share = term.inputs
    if part.primitive is not GATHER or share.primitive is not BROADCAST:
        return None
    x, indices = part.inputs
    axis, weight = part.attr("axis"), share.inputs[0]
    if indices.type.rank != 1 or axis == x.type.rank - 1:
        return None
    at = axis - (x.type.rank - weight.type.rank)
    if any(not is_unit(d) for a, d in enumerate(weight.shape) if a != at):
        return None
    return x, indices, axis, weight


def _add_up_to_one(u: Node, v: Node) -> bool:
    a, b = constant_value(u), constant_value(v)
    if a is not None and b is not None:
        return bool(np.all(np.abs(a.astype(np.float64) + b - 1) <= _SUM_TOLERANCE))
    return any(_is_rest(p, q) for p, q in ((u, v), (v, u)))


def _is_rest(p: Node, q: Node) -> bool:
    """Whether p is 1 - q."""
    p, q = _bare(p), _bare(q)
    if p.name != "sub" or _bare(p.inputs[1]) is not q:
        return False
    return uniform(p.inputs[0]) == 1


def _bare(node: Node) -> Node:
    while node.primitive is RESHAPE:
        node = node.inputs[0]
    return node


def _permuted(node: Node) -> Map | None:
    perm = node.attr("perm")
    if perm[-1] != len(perm) - 1:
        return None
    return Map(node.inputs[0], lambda z: make(TRANSPOSE, z, perm=perm), True)


_KINDS: dict[str, Callable[[Node], Map | None]] = {
    "reshape": _reshaped,
    "broadcast": _repeated,
    "gather": _gathered,
    "slice": _sliced,
    "pad": _padded,
    "reduce_sum": _summed,
    "add": _interpolated,
    "transpose": _permuted,
}


def per_channel(node: Node) -> np.ndarray | None:
    """The values of a constant that varies along the last axis only: a vector of one or all channels."""
    array = small_constant(node)
    if array is None or any(d != 1 for d in array.shape[:-1]):
        return None
    return array.reshape(-1)
