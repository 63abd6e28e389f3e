"""Constant folding, and broadcasts taken out of what is computed on them.

In: primitives whose operands are known, or repeated by a broadcast. Out: constants, or the primitive computed before
the broadcast. Invariant: exact, by the primitive's own numpy meaning; a result much larger than what it is made of
stays a computation, and a repeated scalar stays a rank-0 constant under a broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

from fissile.ir.dim import Dim, DimLike
from fissile.ir.graph import Node, make
from fissile.ir.primitive import BROADCAST, PRIMITIVES, constant, constant_value
from fissile.ir.scalar import SCALAR_OPS
from fissile.rewrite.rule import ELEMENTWISE, Outcome, Refused, rule
from fissile.rewrite.shape import broadcast, is_concrete, is_constant, is_unit, view

SMALL_BYTES = 1 << 16  # a result up to this size is folded whatever it is made of
GROWTH = 2  # a larger one may be this much larger than the constants it is made of
MAX_ELEMENTS = 1 << 26  # nothing is folded by going over more elements, but for GROWTH times those there are

_FOLDED = tuple(
    p.name
    for p in PRIMITIVES.values()
    if p.name not in ("input", "constant", "broadcast", "foreign")
)


def _known(node: Node) -> np.ndarray | None:
    """The value of a constant, or of a constant under a broadcast to a known shape (not copied)."""
    value = constant_value(node)
    if value is None and node.primitive is BROADCAST and is_concrete(node.shape):
        source = constant_value(node.inputs[0])
        value = None if source is None else np.broadcast_to(source, _numbers(node.shape))
    return value


def _numbers(shape: Sequence[DimLike]) -> tuple[int, ...]:
    return tuple(d for d in shape if isinstance(d, int))


def _is_bound(value: Hashable) -> bool:
    if isinstance(value, tuple):
        return all(_is_bound(v) for v in value)
    return not isinstance(value, Dim)


def _bytes(node: Node, values: list[np.ndarray]) -> tuple[int, int]:
    """Bytes of the result, and of the constants it is made of."""
    result = math.prod(_numbers(node.shape)) * node.dtype.bytes
    sources = (i.inputs[0] if i.primitive is BROADCAST else i for i in node.inputs)
    return result, sum(a.nbytes for a in map(constant_value, sources) if a is not None)


@rule("f(constants) -> its value", *_FOLDED)
def fold_constants(node: Node) -> Outcome:
    """What is known now is computed now."""
    values = []
    for k, source in enumerate(node.inputs):
        value = _known(source)
        if value is None:
            return Refused(f"operand {k} is not constant")
        values.append(value)
    if not is_concrete(node.shape) or not all(_is_bound(v) for _, v in node.attrs):
        return Refused("its extents are known only in a call")
    result, sources = _bytes(node, values)
    if result > max(SMALL_BYTES, GROWTH * sources):
        return Refused(f"{result} bytes made of {sources}")
    if sum(v.size for v in values) > max(MAX_ELEMENTS, GROWTH * sources // node.dtype.bytes):
        return Refused("it goes over too many elements")
    array = np.asarray(node.primitive.reference(*values, **dict(node.attrs)))
    return constant(array.astype(node.dtype.numpy, copy=False), node.dtype)


_COMMUTATIVE = tuple(n for n in ELEMENTWISE if n in SCALAR_OPS and SCALAR_OPS[n].commutative)


@rule("f(constant, x) -> f(x, constant), f commutative", *_COMMUTATIVE)
def constant_last(node: Node) -> Outcome:
    """One order, so that other rules look at one place."""
    a, b = node.inputs
    if not is_constant(a) or is_constant(b):
        return Refused("the first operand is not constant, or both are")
    return make(node.primitive, b, a)


@rule("f(broadcast(x), broadcast(y)) -> broadcast(f(x, y))", *ELEMENTWISE)
def hoist_broadcast(node: Node) -> Outcome:
    """Equal elements are computed once."""
    sources = [i.inputs[0] if i.primitive is BROADCAST else i for i in node.inputs]
    joint = _joint_shape(sources, node)
    if not any(is_unit(a) and not is_unit(b) for a, b in zip(joint, node.shape, strict=True)):
        return Refused("every axis has an operand that varies along it")
    while joint and is_unit(joint[0]):
        joint = joint[1:]
    operands = []
    for source in sources:
        extra = max(source.type.rank - len(joint), 0)
        operands.append(broadcast(view(source, source.shape[extra:]), joint))
    small = make(node.primitive, *operands, **dict(node.attrs))
    return make(BROADCAST, small, shape=node.shape)


def _joint_shape(sources: list[Node], node: Node) -> tuple[DimLike, ...]:
    """The smallest shape all sources broadcast to: 1 on every axis along which none varies."""
    joint: list[DimLike] = [1] * node.type.rank
    for source in sources:
        lead = node.type.rank - source.type.rank
        for axis, extent in enumerate(source.shape, start=lead):
            if not is_unit(extent):
                joint[axis] = node.shape[axis]
    return tuple(joint)
