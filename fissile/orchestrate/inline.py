"""Which primitives are never stored: their readers follow them, computing the index instead of copying the data."""

from __future__ import annotations

from collections.abc import Callable

from fissile.ir.graph import Graph, Node, users
from fissile.orchestrate.plan import is_stored_leaf

_ALWAYS = frozenset({"extents", "iota", "reshape", "broadcast", "window", "dilate", "slice"})
_CHEAP_DEPTH = 8  # elementwise primitives of a computed index that are worth repeating per reader


def followed(graph: Graph) -> frozenset[Node]:
    """The nodes of `graph` that no plan stores, whatever it costs: following them is as good as free."""
    return _inlined(graph, lambda node, readers, result: False)


def inlined(graph: Graph) -> frozenset[Node]:
    """The nodes of `graph` that the greedy plan does not store. An output of the graph is always stored."""
    return _inlined(graph, _follows)


def _inlined(
    graph: Graph, follows: Callable[[Node, dict[Node, list[Node]], set[Node]], bool]
) -> frozenset[Node]:
    nodes = graph.nodes()
    readers = users(nodes)
    stored = {node for _, node in graph.outputs}
    stored.update(i for n in nodes if n.name == "foreign" for i in n.inputs)  # Python reads arrays
    result: set[Node] = set()
    computed: dict[Node, int] = {}
    for node in nodes:
        depth = _computed_depth(node, computed)
        if depth is not None:
            computed[node] = depth
        if node in stored or is_stored_leaf(node):
            continue
        always = node.name in _ALWAYS or _turns_panels(node)
        if always or depth is not None or follows(node, readers, result):
            result.add(node)
    return frozenset(result)


def _turns_panels(node: Node) -> bool:
    """Whether a node is the transpose of a constant in panels, which single elements are read from."""
    return node.name == "transpose" and node.inputs[0].name == "pack"


def _computed_depth(node: Node, computed: dict[Node, int]) -> int | None:
    """How many primitives compute `node` from loop indices and extents alone; None if it reads memory or is deep."""
    if node.name in ("extents", "iota"):
        return 0
    if node.name == "constant":
        return 0 if node.attr("value").array.size == 1 else None
    if node.primitive.kind not in ("elementwise", "broadcast") and node.name not in _ALWAYS:
        return None
    depths = [computed.get(i) for i in node.inputs]
    known = [d for d in depths if d is not None]
    if len(known) < len(depths) or not depths:
        return None
    depth = max(known) + (node.primitive.kind == "elementwise")
    return depth if depth <= _CHEAP_DEPTH else None


def _follows(node: Node, readers: dict[Node, list[Node]], inline: set[Node]) -> bool:
    """Whether a transpose or pad is better followed than stored."""
    if node.name == "transpose":
        return all(_reads_strided(u, node) for u in readers[node]) or (
            len(readers[node]) == 1
            and not _feeds_windows(node, readers)
            and readers[node][0].name != "matmul"
        )
    if node.name == "pad":
        return _feeds_windows(node, readers) and not _moves_last_axis(node.inputs[0], inline)
    return False


def _reads_strided(user: Node, node: Node) -> bool:
    """Whether `user` is a linear primitive whose packing reads `node` through strides, but along its last axis.

    A right operand is packed once, so any stride will do; rows of a left operand are copied per block of columns.
    """
    return user.name == "pack" or (
        user.name == "matmul" and node.attr("perm")[-1] == node.type.rank - 1
    )


def _feeds_windows(node: Node, readers: dict[Node, list[Node]]) -> bool:
    """Whether every reader is a convolution or window, which reads each element several times."""
    following = readers[node]
    if len(following) == 1 and following[0].name == "pad":
        return _feeds_windows(following[0], readers)
    return bool(following) and all(u.name in ("conv", "window") for u in following)


def _moves_last_axis(node: Node, inline: set[Node]) -> bool:
    """Whether following `node` reads along another axis than its last: then one copy beats many strided reads."""
    while node in inline or node.name == "transpose":
        if node.name == "transpose" and node.attr("perm")[-1] != node.type.rank - 1:
            return True
        if not node.inputs:
            return False
        node = node.inputs[0]
    return False
