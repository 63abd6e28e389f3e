"""A kernel of the plan to its loop program, by what it is built around.

In: kernels and a target. Out: for each a `Lowered`. Invariant: a loop program depends on the form of its kernel alone:
what is computed, with the tensors numbered. So kernels of one form are lowered once, as layers of a network are.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TypeAlias

from fissile.ir.graph import Node
from fissile.ir.primitive import COLUMNS
from fissile.orchestrate.attention import is_attention
from fissile.orchestrate.follow import single_value
from fissile.orchestrate.plan import Anchor, Kernel
from fissile.schedule.attention import lower_attention
from fissile.schedule.chain import lower_chain
from fissile.schedule.elementwise import lower_elementwise
from fissile.schedule.kernel import Lowered
from fissile.schedule.linear import lower_linear
from fissile.schedule.narrow import lower_narrow
from fissile.schedule.opaque import is_opaque, lower_opaque
from fissile.schedule.pack import lower_pack
from fissile.schedule.reduction import lower_reduction
from fissile.schedule.rows import lower_rows
from fissile.schedule.scan import lower_scan
from fissile.schedule.sliding import is_sliding, lower_sliding
from fissile.target import Target

_ACCUMULATORS = 4  # vectors summed side by side: hides the latency of an addition


def lower(kernel: Kernel, target: Target) -> Lowered:
    """The loop function of a kernel, its launch arguments and its number of tasks."""
    if kernel.anchor is Anchor.LINEAR:
        narrow = kernel.nodes[0].inputs[1].type.format == COLUMNS
        return lower_narrow(kernel, target) if narrow else lower_linear(kernel, target)
    if kernel.anchor is Anchor.CHAIN:
        if is_attention(kernel):
            return lower_attention(kernel, target, _lanes(kernel, target))
        return lower_chain(kernel, target)
    if kernel.anchor is Anchor.PACK:
        return lower_pack(kernel)
    if kernel.anchor is Anchor.ROWS:
        return lower_rows(kernel, _lanes(kernel, target))
    if kernel.anchor is Anchor.REDUCE and is_sliding(kernel.nodes[0]):
        return lower_sliding(kernel, target)
    if kernel.anchor is Anchor.REDUCE:
        return lower_reduction(kernel, _lanes(kernel, target))
    if kernel.anchor is Anchor.SCAN and is_opaque(kernel.nodes[0]):
        return lower_opaque(kernel)
    if kernel.anchor is Anchor.SCAN:
        return lower_scan(kernel)
    return lower_elementwise(kernel)


def lower_all(kernels: Sequence[Kernel], target: Target) -> list[Lowered]:
    """`lower` of every kernel; of kernels that differ in their tensors alone the first is lowered.

    Some forms are remembered between calls: whoever chooses among plans lowers the same kernels again and again.
    """
    rows: list[Lowered] = []
    for kernel in kernels:
        key, nodes = form(kernel)
        known = _LOWERED.pop((key, target), None) or _unbound(lower(kernel, target), nodes)
        _LOWERED[key, target] = known  # the last one used is the last one forgotten
        if len(_LOWERED) > _MOST:
            _LOWERED.pop(next(iter(_LOWERED)), None)
        row, tensors = known
        arguments = tuple(
            a if t is None else nodes[t] for a, t in zip(row.arguments, tensors, strict=True)
        )
        rows.append(replace(row, arguments=arguments))
    return rows


_Unbound: TypeAlias = tuple[Lowered, tuple[int | None, ...]]
_LOWERED: dict[tuple[Hashable, Target], _Unbound] = {}
_MOST = 300  # forms that are remembered


def _unbound(row: Lowered, nodes: tuple[Node, ...]) -> _Unbound:
    """A lowered kernel with 0 for each tensor among its arguments, and the tensors' numbers in its form."""
    numbers = {node: n for n, node in enumerate(nodes)}
    tensors = tuple(numbers[a] if isinstance(a, Node) else None for a in row.arguments)
    arguments = tuple(0 if isinstance(a, Node) else a for a in row.arguments)
    return replace(row, arguments=arguments), tensors


def form(kernel: Kernel) -> tuple[Hashable, tuple[Node, ...]]:
    """What lowering sees of a kernel with its nodes numbered, and the nodes in the order of their numbers."""
    numbers: dict[Node, int] = {}
    rows: list[Hashable] = []
    stack = [*reversed((*kernel.inputs, *kernel.nodes, *kernel.outputs))]
    while stack:
        node = stack[-1]
        sources = _sources(kernel, node)
        pending = [n for n in sources if n not in numbers]
        if pending and node not in numbers:
            stack.extend(reversed(pending))
            continue
        stack.pop()
        if node not in numbers:
            numbers[node] = len(numbers)
            rows.append((*_description(node), tuple(numbers[n] for n in sources)))
    sets = (kernel.inputs, kernel.nodes, kernel.outputs)
    order = tuple(tuple(numbers[n] for n in nodes) for nodes in sets)
    return (kernel.anchor, kernel.piece, order, tuple(rows)), tuple(numbers)


def _sources(kernel: Kernel, node: Node) -> tuple[Node, ...]:
    """The inputs of a node that the kernel computes or reads."""
    if node in kernel.inputs:
        return ()
    if kernel.anchor is Anchor.PIECE and node is kernel.nodes[0]:
        return (node.inputs[kernel.piece],)
    return node.inputs


def _description(node: Node) -> tuple[Hashable, ...]:
    """A node without its inputs: their types alone, and of a constant only what becomes a literal."""
    attrs: Hashable = node.attrs
    if node.name in ("constant", "input"):
        attrs = single_value(node)
    return node.primitive, attrs, node.type, tuple(n.type for n in node.inputs)


def _lanes(kernel: Kernel, target: Target) -> int:
    """Accumulators of a row, by what is reduced alone: the order of a sum does not depend on what else is computed."""
    widest = max(n.dtype.bytes for n in kernel.nodes if n.primitive.reduced is not None)
    return _ACCUMULATORS * target.lanes(widest)


