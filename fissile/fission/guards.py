"""What the shapes of a call must fulfil for a primitive graph to mean what the model says.

In: a graph, and the demands of its operators. Out: guards with messages in the user's words. Invariant: what no proof
settles is a guard, each pair of extents once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fissile.ir.dim import Dim, DimLike, equal, min_
from fissile.ir.dim_logic import is_natural
from fissile.ir.graph import Graph, Guard, Node, constraints


def guards_of(graph: Graph, own: Iterable[Guard]) -> tuple[Guard, ...]:
    """What a call must fulfil: the operators' demands, unproved equalities, extents that might be negative."""
    found: dict[tuple[DimLike, DimLike], Guard] = {}
    for guard in own:
        found.setdefault((guard.left, guard.right), guard)
    for node, left, right in constraints(graph):
        message = _message(graph.origins, node, left, right)
        found.setdefault((left, right), Guard(left, right, message))
    for node in graph.nodes():
        for extent in node.shape:
            if isinstance(extent, Dim) and not is_natural(extent):
                where = _where(graph.origins, node)
                text = f"{where}: an extent {extent} must not be negative"
                negative = min_(extent, 0)
                found.setdefault((negative, 0), Guard(negative, 0, text))
    return tuple(found.values())


def _where(origins: Mapping[Node, tuple[str, ...]], node: Node) -> str:
    names = origins.get(node, ())
    return names[0] if names else node.name


def _message(
    origins: Mapping[Node, tuple[str, ...]], node: Node, left: DimLike, right: DimLike
) -> str:
    where = _where(origins, node)
    if node.name == "broadcast":
        return f"{where}: shape {_text(node.inputs[0].shape)} must broadcast to {_text(node.shape)}"
    is_scatter = node.name == "scatter" and equal(right, 0) is True
    if node.name == "gather" or is_scatter:
        own, axis = _text(node.inputs[0].shape), 0 if is_scatter else node.attr("axis")
        return f"{where}: an index into axis {axis} of {own}, which is empty"
    if node.name == "reshape":
        source, target = _text(node.inputs[0].shape), _text(node.shape)
        return f"{where}: shapes {source} and {target} must hold equally many elements"
    return f"{where}: the extents {left} and {right} must be equal"


def _text(shape: Iterable[DimLike]) -> str:
    return f"[{', '.join(map(str, shape))}]"
