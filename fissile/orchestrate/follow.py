"""Following indices through primitives: what a kernel reads, where, and where its results go.

`pull` goes from an output index to the reads behind it (through whatever is inlined); `push` goes from a value's index
to the index of the same element after a layout primitive. Both speak `fissile.ir` expressions in a `Space`.
"""

from __future__ import annotations

from collections.abc import Callable

from fissile.ir import loop as L
from fissile.ir.affine import Space
from fissile.ir.dim import equal
from fissile.ir.graph import Node
from fissile.ir.primitive import constant_value, flatten, literal, reshape_groups, unflatten

_LITERAL = 8

Index = tuple[L.Expr, ...]
Leaf = Callable[[Node, Index], L.Expr | None]


def natural(space: Space, node: Node, prefix: str) -> Index:
    """Fresh loop variables for the axes of a node; unit axes are 0."""
    return tuple(
        L.const(0) if equal(d, 1) is True else space.loop(f"{prefix}{a}", d)
        for a, d in enumerate(node.shape)
    )


def single_value(node: Node) -> L.Const | None:
    """A constant of one element that is worth a literal: an integer, or a small whole number.

    Other numbers are read from memory, so that kernels which differ in a learned factor alone are one function.
    """
    value = constant_value(node)
    if value is None or value.size != 1:
        return None
    number = literal(value.reshape(()), node.dtype)
    if node.dtype.is_float and number.value != int_or_zero(number.value):
        return None
    return number


def int_or_zero(value: float) -> float:
    """`value` if it is a whole number of at most 8, else 0 (so that zero is whole, NaN and infinity are not)."""
    return value if abs(value) <= _LITERAL and value == round(value) else 0.0


def pull(space: Space, node: Node, at: Index, leaf: Leaf) -> L.Expr:
    """The value of `node` at `at`. `leaf` answers for tensors in memory or registers, None means inline the node."""
    memo: dict[tuple[Node, Index], L.Expr] = {}

    def value(n: Node, where: Index) -> L.Expr:
        where = tuple(space.canonical(i) for i in where)
        found = memo.get((n, where))
        if found is None:
            found = leaf(n, where) or single_value(n)
            if found is None:
                found = space.canonical(definition(space, n, where, (), value))
            memo[n, where] = found
        return found

    return value(node, at)


def definition(
    space: Space, node: Node, at: Index, reduced: Index, value: Callable[[Node, Index], L.Expr]
) -> L.Expr:
    """One term of a node's compute definition, its reads answered by `value`."""
    define = node.primitive.define
    if define is None:
        raise ValueError(f"nothing fuses across {node}")
    result: L.Expr = define(
        node, at, reduced, lambda k, where: value(node.inputs[k], where), space.extent
    )
    return result


def push(space: Space, node: Node, at: Index) -> Index | None:
    """Where the element `at` of the node's input stands in the output of a reshape or transpose, None for others."""
    if node.name == "transpose":
        return tuple(at[p] for p in node.attr("perm"))
    if node.name != "reshape":
        return None
    source, target = node.inputs[0].shape, node.shape
    index: list[L.Expr] = []
    for from_axes, to_axes in reshape_groups(source, target):
        have = [a for a in from_axes if equal(source[a], 1) is not True]
        need = [a for a in to_axes if equal(target[a], 1) is not True]
        flat = flatten([at[a] for a in have], tuple(source[a] for a in have), space.extent)
        parts = dict(zip(need, unflatten(flat, tuple(target[a] for a in need), space.extent)))
        index.extend(parts.get(a, L.const(0)) for a in to_axes)
    return tuple(space.canonical(i) for i in index)
