"""What holds for the kernels of every plan, asked of those that come from a file.

In: a kernel whose sets were read. Out: nothing, or a ValueError that says which law is broken. Invariant: a kernel that
passes computes its outputs from its inputs alone, whatever is not listed among its nodes is computed where it is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from fissile.ir.graph import Node
from fissile.orchestrate.formats import is_tiled
from fissile.orchestrate.plan import Anchor, Kernel, Plan

_WHOLE = frozenset({"pack", "concat", "foreign", "input", "constant"})  # never computed on the way


def check_plan(plan: Plan) -> None:
    """Every kernel by itself, and that every value, or every piece of one, is written once. ValueError."""
    written = Counter((n, k.piece) for k in plan.kernels() for n in k.outputs)
    for (node, piece), count in written.items():
        if count > 1:
            raise ValueError(f"piece {piece} of {node} is written twice")
    for kernel in plan.kernels():
        check_kernel(kernel)
        if kernel.anchor is Anchor.PIECE:
            missing = [k for k in range(len(kernel.nodes[0].inputs)) if not written[kernel.nodes[0], k]]
            if missing:
                raise ValueError(f"piece {missing[0]} of {kernel.nodes[0]} is never written")


def check_kernel(kernel: Kernel) -> None:
    """ValueError unless the kernel computes its outputs from its inputs, and nothing is missing or too much."""
    for nodes in (kernel.nodes, kernel.inputs, kernel.outputs):
        if len(set(nodes)) < len(nodes):
            raise ValueError("a kernel lists a primitive twice")
    if not kernel.outputs or not set(kernel.outputs) <= set(kernel.nodes):
        raise ValueError("a kernel writes what it does not compute")
    if kernel.anchor is Anchor.PIECE:
        _check_piece(kernel)
    elif kernel.piece or any(n.name == "concat" for n in kernel.nodes):
        raise ValueError("only a kernel of a concat has pieces")
    inside = _computed(kernel)
    _check_order(kernel, inside)
    if kernel.anchor not in (Anchor.PIECE, Anchor.FOREIGN, Anchor.PACKAGE):
        _check_members(kernel, inside)


def _check_piece(kernel: Kernel) -> None:
    root = kernel.nodes[0]
    if len(kernel.nodes) > 1 or root.name != "concat" or not 0 <= kernel.piece < len(root.inputs):
        raise ValueError("a piece is one input of a concat")


def _computed(kernel: Kernel) -> list[Node]:
    """All that the kernel computes, operands first; ValueError if an input is missing or none."""
    given, used = set(kernel.inputs), set[Node]()
    order: list[Node] = []
    seen: set[Node] = set()
    starts = kernel.nodes
    if kernel.anchor is Anchor.PIECE:
        starts = (kernel.nodes[0].inputs[kernel.piece],)
    stack = [(n, False) for n in starts]
    members = set(kernel.nodes)
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node in given and node not in members:
            used.add(node)
        elif node not in seen:
            seen.add(node)
            if node not in members and (node.name in _WHOLE or not _is_followed(node)):
                raise ValueError(f"a kernel needs {node}, which it neither reads nor lists")
            stack.append((node, True))
            stack.extend((i, False) for i in node.inputs)
    if used != given:
        raise ValueError("a kernel reads what it does not need")
    return order


def _is_followed(node: Node) -> bool:
    """Whether a reader may compute an element of it on the way."""
    return node.primitive.reduced is None and node.primitive.kind != "opaque" and not is_tiled(node)


def _check_order(kernel: Kernel, inside: Collection[Node]) -> None:
    """ValueError unless members stand behind what they read."""
    place = {n: k for k, n in enumerate(kernel.nodes)}
    before: dict[Node, int] = {}  # of all that is computed: the last member that it needs
    for node in inside:
        last = max((max(before.get(i, -1), place.get(i, -1)) for i in node.inputs), default=-1)
        if node in place and last >= place[node]:
            raise ValueError(f"a kernel computes {node} before what it reads")
        before[node] = last


def _check_members(kernel: Kernel, inside: Collection[Node]) -> None:
    """What stands behind a product or a reduction is listed, but for layouts that its readers follow."""
    members = set(kernel.nodes)
    behind = {n for n in kernel.nodes if n.primitive.reduced is not None}
    linear = kernel.anchor is Anchor.LINEAR
    for node in inside:
        if any(i in behind for i in node.inputs):
            behind.add(node)
            if node not in members and (linear or node.primitive.kind == "elementwise"):
                raise ValueError(f"a kernel leaves out {node}")
