"""What a kernel has to do at least: bytes it must move and operations it must make (DESIGN 3.4).

In: a kernel. Out: its `Work` as extents. Bytes are compulsory ones: what is stored and read, each once,
and of a tensor that is only sliced or gathered the part that is taken. Operations are those of its compute
definitions; a function such as exp counts as many as its polynomial has. Invariant: nothing computes the
kernel by doing less.
"""

from __future__ import annotations

from dataclasses import dataclass

from fissile.ir.dim import DimLike, min_, product
from fissile.ir.graph import Node
from fissile.orchestrate.liveness import stored_bytes
from fissile.orchestrate.plan import Anchor, Kernel, is_stored_leaf

FEW = 8  # operations of a division or a root
MANY = 16  # operations of a function by a polynomial
_PARTS = ("slice", "gather", "window")
_FEW = ("div", "mod", "rem", "sqrt", "floordiv")
_MANY = (
    "exp", "log", "log1p", "expm1", "tanh", "erf", "sigmoid", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "pow",
)  # fmt: skip


@dataclass(frozen=True)
class Work:
    """constants: bytes of weights read; bytes: of everything else read and written; operations: in float32."""

    constants: DimLike
    bytes: DimLike
    operations: DimLike


def work(kernel: Kernel) -> Work:
    """The least that the kernel does at a shape."""
    if kernel.anchor is Anchor.PIECE:
        return Work(0, 2 * stored_bytes(kernel.nodes[0].inputs[kernel.piece]), 0)
    inside = _inside(kernel)
    sizes = {node: _read_bytes(node, inside) for node in kernel.inputs}
    constants = [d for n, d in sizes.items() if is_stored_leaf(n) and n.name != "input"]
    others = [d for n, d in sizes.items() if not is_stored_leaf(n) or n.name == "input"]
    written = [stored_bytes(node) for node in kernel.outputs]
    return Work(_sum(constants), _sum([*others, *written]), _sum([_operations(n) for n in inside]))


def _sum(extents: list[DimLike]) -> DimLike:
    total: DimLike = 0
    for extent in extents:
        total = total + extent
    return total


def _inside(kernel: Kernel) -> list[Node]:
    """The primitives between the kernel's inputs and its nodes, those that are only followed included."""
    found: dict[Node, None] = {}
    stack = list(kernel.nodes)
    while stack:
        node = stack.pop()
        if node not in found and node not in kernel.inputs:
            found[node] = None
            stack.extend(node.inputs)
    return list(found)


def _read_bytes(node: Node, inside: list[Node]) -> DimLike:
    """All of a tensor, or no more than what the primitives that take parts of it take."""
    parts: list[DimLike] = []
    for reader in inside:
        if node in reader.inputs:
            if reader.name not in _PARTS or node in reader.inputs[1:]:
                return stored_bytes(node)
            parts.append(product(reader.shape) * node.dtype.bytes)
    return min_(stored_bytes(node), _sum(parts)) if parts else stored_bytes(node)


def _operations(node: Node) -> DimLike:
    """Multiplications and additions of one primitive, twice as many where elements are twice as wide."""
    kind, wide = node.primitive.kind, max(node.dtype.compute.bytes // 4, 1)
    if kind == "elementwise":
        each = FEW if node.name in _FEW else MANY if node.name in _MANY else 1
        return product(node.shape) * (each * wide) if node.dtype.is_float else 0
    if kind == "reduce":
        return product(node.inputs[0].shape) * wide if node.dtype.is_float else 0
    if kind == "linear" and node.primitive.reduced is not None:
        return product((*node.shape, *node.primitive.reduced(node))) * (2 * wide)
    return 0
