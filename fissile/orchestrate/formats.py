"""Formats a plan gives to tensors: operands of linear primitives in panels; outputs as tensors of their own."""

from __future__ import annotations

from dataclasses import replace

from fissile.ir.dim import equal
from fissile.ir.graph import Graph, Node, make, map_graph
from fissile.ir.primitive import RESHAPE, pack


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
        if node.name == "matmul":
            packed = pack(b, b.type.rank - 2)
        else:
            packed = pack(b, 0, node.attr("groups"))
        return make(node.primitive, a, packed, **dict(node.attrs))

    return map_graph(graph, change)


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
