"""Where intermediate tensors live: places in one arena, shared by tensors whose lives do not overlap (DESIGN 3.8).

In: a plan. Out: for every tensor written by a kernel and not an output of the graph, a place, and for every place the
byte sizes of its tensors; a place is as large as the largest. Sizes may be symbolic; which tensors share a place is
decided at representative extents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fissile.ir.dim import DimLike, ceildiv, evaluate, product, symbols
from fissile.ir.graph import Node
from fissile.ir.primitive import packed_extents
from fissile.orchestrate.plan import Plan

ALIGNMENT = 64
REPRESENTATIVE = 64  # the value every free extent is given when places are chosen


@dataclass(frozen=True)
class Arena:
    """`place[tensor]` is a number; `sizes[place]` are the byte sizes it must hold, each a multiple of 64."""

    place: Mapping[Node, int]
    sizes: tuple[tuple[DimLike, ...], ...]


def stored_bytes(node: Node) -> DimLike:
    """Bytes of a stored tensor in its format."""
    extents = packed_extents(node) if node.name == "pack" else node.shape
    return product(extents) * node.dtype.bytes


def assign(plan: Plan) -> Arena:
    """Places for all intermediate tensors, first fit by size among the free ones."""
    outputs = {node for _, node in plan.graph.outputs}
    last_read: dict[Node, int] = {}
    for k, step in enumerate(plan.steps):
        for kernel in step.kernels:
            last_read.update(dict.fromkeys((*kernel.inputs, *kernel.outputs), k))
    place: dict[Node, int] = {}
    sizes: list[list[DimLike]] = []
    estimate: list[int] = []
    free: list[int] = []
    for k, step in enumerate(plan.steps):
        born = dict.fromkeys(n for kernel in step.kernels for n in kernel.outputs)
        for node in born:
            if node not in outputs and node not in place:
                place[node] = _choose(node, sizes, estimate, free)
        free.extend(place[n] for n, last in last_read.items() if last == k and n in place)
    return Arena(place, tuple(tuple(s) for s in sizes))


def _choose(node: Node, sizes: list[list[DimLike]], estimate: list[int], free: list[int]) -> int:
    """The free place that fits best; a new one when all would have to grow a lot."""
    size = ceildiv(stored_bytes(node), ALIGNMENT) * ALIGNMENT
    wanted = _estimated(size)
    fitting = [p for p in free if wanted <= estimate[p] * 2 or estimate[p] == 0]
    if fitting:
        best = min(fitting, key=lambda p: (abs(estimate[p] - wanted), p))
        free.remove(best)
    else:
        best = len(sizes)
        sizes.append([])
        estimate.append(0)
    if size not in sizes[best]:
        sizes[best].append(size)
    estimate[best] = max(estimate[best], wanted)
    return best


def _estimated(size: DimLike) -> int:
    return evaluate(size, {s.name: REPRESENTATIVE for s in symbols(size)})
