"""Formats a plan gives to tensors: operands of linear primitives in panels; outputs as tensors of their own."""

from __future__ import annotations

from dataclasses import replace

from fissile.ir.dim import equal, product
from fissile.ir.graph import Graph, Node, make, map_graph
from fissile.ir.primitive import COLUMNS, PANELS, RESHAPE, pack
from fissile.orchestrate.plan import is_constant

NARROW = 4  # columns up to which a panel is mostly padding
NARROW_DEPTH = (
    256,
    4096,
)  # depths worth it: the final sum over lanes is then small, a block of rows stays near


def is_tiled(node: Node) -> bool:
    """Whether a linear primitive runs on register tiles: all but convolutions of one channel per group."""
    if node.name == "matmul":
        return True
    if node.name != "conv":
        return False
    channels = node.inputs[1].shape[-2]
    return node.attr("groups") == 1 or equal(channels, 1) is not True


def pack_operands(graph: Graph) -> Graph:
    """Every tiled linear primitive reads its right operand from panels."""

    def change(node: Node) -> Node | None:
        if not is_tiled(node) or node.inputs[1].name == "pack":
            return None
        a, b = node.inputs
        batch, groups = (b.type.rank - 2, 1) if node.name == "matmul" else (0, node.attr("groups"))
        packed = pack(b, batch, groups, COLUMNS if _is_narrow(b, groups) else PANELS)
        return make(node.primitive, a, packed, **dict(node.attrs))

    return map_graph(graph, change)


def _is_narrow(b: Node, groups: int) -> bool:
    """Whether a constant operand is better summed along its columns (the named variant `lane_sums`, DESIGN 3.8).

    It has so few columns that most of a panel would be padding, and is deep enough.
    """
    columns, depth = b.shape[-1], product(b.shape[:-1])
    if not (isinstance(columns, int) and isinstance(depth, int) and is_constant(b)):
        return False
    few = columns <= NARROW and NARROW_DEPTH[0] <= depth <= NARROW_DEPTH[1]
    return few and groups == 1 and b.dtype.is_float


def own_outputs(graph: Graph) -> Graph:
    """Every output is a tensor that some kernel writes: inputs, constants and repeated outputs are copied."""
    taken: set[Node] = set()
    outputs: list[tuple[str, Node]] = []
    origins = dict(graph.origins)
    for name, node in graph.outputs:
        own = node
        while own in taken or own.name in ("input", "constant"):
            own = make(RESHAPE, own, shape=own.shape)
        origins.setdefault(own, graph.origins.get(node, ()))
        taken.add(own)
        outputs.append((name, own))
    return replace(graph.changed(tuple(outputs)), origins=origins)
