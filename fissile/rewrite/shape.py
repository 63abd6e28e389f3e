"""Small questions about axes, permutations and constants that many rules ask.

In: nodes, extents, permutations. Out: answers, or nodes that are views of a given node. Invariant: an answer of "yes"
is proved for every value of the symbols; a view never computes anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fissile.ir.dim import DimLike, equal, product
from fissile.ir.graph import Node, make
from fissile.ir.primitive import (
    BROADCAST,
    CONSTANT,
    RESHAPE,
    TRANSPOSE,
    constant_value,
    reshape_groups,
)

Shape = tuple[DimLike, ...]
Perm = tuple[int, ...]
Groups = list[tuple[range, range]]


def is_same(a: DimLike, b: DimLike) -> bool:
    """Whether two extents are provably equal."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return a is b or _is_proved_equal(a, b)


@lru_cache(maxsize=1 << 16)  # the same few extents are compared at every node
def _is_proved_equal(a: DimLike, b: DimLike) -> bool:
    return equal(a, b) is True


def is_unit(extent: DimLike) -> bool:
    """Whether an extent is provably 1."""
    return is_same(extent, 1)


def is_same_shape(a: Sequence[DimLike], b: Sequence[DimLike]) -> bool:
    """Whether two shapes are provably equal."""
    return len(a) == len(b) and all(is_same(x, y) for x, y in zip(a, b, strict=True))


def inverse(perm: Perm) -> Perm:
    """The permutation that undoes `perm`."""
    result = [0] * len(perm)
    for i, p in enumerate(perm):
        result[p] = i
    return tuple(result)


def permuted(values: Sequence[DimLike], perm: Perm) -> Shape:
    """`values` in the order of a transposed tensor's axes."""
    return tuple(values[p] for p in perm)


def moves_only_units(shape: Sequence[DimLike], perm: Perm) -> bool:
    """Whether transposing by `perm` keeps the order of all axes that are not provably 1."""
    order = [p for p in perm if not is_unit(shape[p])]
    return order == sorted(order)


def view(node: Node, shape: Shape) -> Node:
    """`node` reshaped; itself when it has that shape, and reshapes below it skipped."""
    while node.primitive is RESHAPE and not is_same_shape(node.shape, shape):
        node = node.inputs[0]
    return node if is_same_shape(node.shape, shape) else make(RESHAPE, node, shape=shape)


def transpose(node: Node, perm: Perm) -> Node:
    """`node` with its axes permuted; itself for the identity."""
    return node if perm == tuple(range(len(perm))) else make(TRANSPOSE, node, perm=perm)


def broadcast(node: Node, shape: Shape) -> Node:
    """`node` broadcast; itself when it has that shape."""
    return node if is_same_shape(node.shape, shape) else make(BROADCAST, node, shape=shape)


def expanded(node: Node, rank: int) -> Node:
    """`node` with unit axes in front, up to `rank`; a transpose stays outermost."""
    lead = rank - node.type.rank
    if lead and node.primitive is TRANSPOSE:
        perm = (*range(lead), *(p + lead for p in node.attr("perm")))
        return make(TRANSPOSE, expanded(node.inputs[0], rank), perm=perm)
    return view(node, (1,) * lead + node.shape)


def proved_groups(source: Shape, target: Shape) -> Groups | None:
    """`reshape_groups` when every group provably has as many elements on both sides, else None."""
    groups = reshape_groups(source, target)
    for have, want in groups:
        left, right = product(source[a] for a in have), product(target[a] for a in want)
        if not is_same(left, right):
            return None
    return groups


def is_concrete(shape: Sequence[DimLike]) -> bool:
    """Whether every extent is a number."""
    return all(isinstance(d, int) for d in shape)


def small_constant(node: Node) -> np.ndarray | None:
    """The array of a constant, or of a constant under a broadcast; else None."""
    return constant_value(node.inputs[0] if node.primitive is BROADCAST else node)


def is_constant(node: Node) -> bool:
    """Whether the node is a constant or a broadcast of one."""
    source = node.inputs[0] if node.primitive is BROADCAST else node
    return source.primitive is CONSTANT


def uniform(node: Node) -> np.generic | None:
    """The value every element of a constant (or broadcast constant) has, bit for bit; else None."""
    array = small_constant(node)
    if array is None or array.size == 0:
        return None
    flat = np.ascontiguousarray(array).reshape(-1)
    bits = flat.view(f"u{flat.itemsize}")
    if np.any(bits[:8] != bits[0]) or np.any(bits != bits[0]):
        return None
    value: np.generic = flat[0]
    return value
