"""Values of primitives in an ONNX graph, in whatever layout they were made.

In: primitives, producers first. Out: ONNX nodes, and for every primitive a `Held`: a tensor that is its value reshaped
and transposed. Invariant: reshapes and transposes cost nothing until somebody needs another layout, and the same layout
is made once. So a chain of convolutions and elementwise operators stays channels-first, as ONNX's convolutions are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fissile.fission.export import EXPORTS
from fissile.fission.writer import Writer
from fissile.ir.graph import Node, waits_for
from fissile.ir.primitive import constant_value
from fissile.rewrite.shape import (
    Perm,
    Shape,
    inverse,
    is_same_shape,
    moves_only_units,
    permuted,
    proved_groups,
)


@dataclass(frozen=True)
class Held:
    """The tensor `name` is transpose(reshape(value, shape), perm)."""

    name: str
    shape: Shape
    perm: Perm

    @property
    def tensor(self) -> Shape:
        """The extents of the tensor."""
        return permuted(self.shape, self.perm)

    @property
    def is_plain(self) -> bool:
        """Whether no axis is moved."""
        return self.perm == tuple(range(len(self.perm)))


def bare(node: Node) -> Node:
    """What a node is a view of, reshapes taken off."""
    while node.name == "reshape":
        node = node.inputs[0]
    return node


def plain(name: str, shape: Shape) -> Held:
    """A tensor that is the value itself."""
    return Held(name, shape, tuple(range(len(shape))))


def turned(held: Held, shape: Shape, perm: Perm) -> Held | None:
    """transpose(value, perm) of a value of that shape, held by the tensor that holds the value.

    None where an axis of the value is no run of axes of what is held.
    """
    groups = proved_groups(held.shape, shape)
    if groups is None or any(len(want) != 1 for _, want in groups):
        return None
    runs = {want[0]: have for have, want in groups}
    order = [a for p in perm for a in runs.get(p, ())]
    if len(order) != len(held.shape):
        return None
    cut = tuple(held.shape[a] for a in order)
    return Held(held.name, cut, tuple(order.index(p) for p in held.perm))


def below(held: Held, node: Node) -> Held | None:
    """The operand of a transpose or reshape, held by what holds `node`; None where that is cut otherwise."""
    if node.name == "reshape":
        return held
    return turned(held, node.shape, inverse(node.attr("perm")))


@dataclass
class Scribe:
    """The ONNX graph so far. held: how each primitive's value is there. late: what gives data-dependent extents.

    readers: how many primitives read each. opset: of the written model. aliases: old values that new nodes make.
    """

    writer: Writer
    readers: Mapping[Node, int]
    late: Mapping[str, Node]
    opset: int
    held: dict[Node, Held] = field(default_factory=dict)
    aliases: set[str] = field(default_factory=set)
    _made: dict[tuple[str, Shape, Perm], str] = field(default_factory=dict)

    def emit(self, operator: str, *inputs: str, **attributes: object) -> str:
        """Add a node of one output; its name."""
        return self.writer.emit(operator, *inputs, **attributes)

    def plain(self, node: Node) -> str:
        """The tensor that is the value of `node`."""
        return self.laid(node, node.shape, tuple(range(node.type.rank)))

    def laid(self, node: Node, shape: Shape, perm: Perm) -> str:
        """The tensor transpose(reshape(value of node, shape), perm)."""
        held, known = self.held[node], constant_value(node)
        numbers = [d for d in shape if isinstance(d, int)]
        if known is not None and len(numbers) == len(shape):
            array = np.asarray(known).reshape(numbers).transpose(perm)
            return self.writer.constant(np.ascontiguousarray(array).reshape(array.shape), node.dtype)
        if not is_same_shape(held.shape, shape):
            flat = self._transposed(held.name, held.tensor, inverse(held.perm))
            held = plain(self._reshaped(flat, shape), shape)
        order = tuple(held.perm.index(p) for p in perm)
        return self._transposed(held.name, held.tensor, order)

    def _transposed(self, name: str, shape: Shape, perm: Perm) -> str:
        """A tensor of that shape with its axes permuted; a reshape where only axes of extent 1 move."""
        if perm == tuple(range(len(perm))):
            return name
        if moves_only_units(shape, perm):
            return self._reshaped(name, permuted(shape, perm))
        key = (name, (), perm)
        if key not in self._made:
            self._made[key] = self.emit("Transpose", name, perm=perm)
        return self._made[key]

    def _reshaped(self, name: str, shape: Shape) -> str:
        key = (name, shape, ())
        if key not in self._made:
            extents = self.writer.vector(shape)
            more = {"allowzero": 1} if self.opset >= 14 and 0 in shape else {}
            self._made[key] = self.emit("Reshape", name, extents, **more)
        return self._made[key]

    def write(self, node: Node, forms: Mapping[str, tuple[Form, ...]]) -> None:
        """Add what computes `node` out of its inputs, by the first form that fits, or as `fission.export` says it."""
        for giver in waits_for(node, self.late):
            if giver not in node.inputs:
                self.writer.names[giver] = self.plain(giver)
        for form in forms.get(node.name, ()):
            found = form(self, node)
            if found is not None:
                self.held[node] = found
                return
        reads = [self.plain(i) for i in node.inputs]
        self.held[node] = plain(EXPORTS[node.name](self.writer, node, reads), node.shape)


Form = Callable[[Scribe, Node], Held | None]


def channels_first(rank: int) -> Perm:
    """The permutation from channels-last to channels-first."""
    return (0, rank - 1, *range(1, rank - 1))


def moved(values: Shape, held: Held) -> Shape:
    """Extents by axis in the order of the tensor's axes."""
    return permuted(values, held.perm)
