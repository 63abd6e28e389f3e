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
from fissile.orchestrate.plan import Plan, level_of

ALIGNMENT = 64
REPRESENTATIVE = 64  # the value every free extent is given when places are chosen


@dataclass(frozen=True)
class Arena:
    """`place[tensor]` is a number; `sizes[place]` are the byte sizes it must hold, each a multiple of 64.

    `levels[place]`, ascending: how many foreign kernels must have run before its sizes are known. So a place never
    moves when later extents become known.
    """

    place: Mapping[Node, int]
    sizes: tuple[tuple[DimLike, ...], ...]
    levels: tuple[int, ...] = ()


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
    dying: list[list[Node]] = [[] for _ in plan.steps]
    for node, last in last_read.items():
        dying[last].append(node)
    known = plan.levels()
    place: dict[Node, int] = {}
    places: list[_Place] = []
    free: list[int] = []
    for k, step in enumerate(plan.steps):
        born = dict.fromkeys(n for kernel in step.kernels for n in kernel.outputs)
        for node in born:
            if node not in outputs and node not in place:
                place[node] = _choose(node, places, free, known)
        free.extend(place[n] for n in dying[k] if n in place)
    order = sorted(range(len(places)), key=lambda p: places[p].level)
    rank = {p: k for k, p in enumerate(order)}
    return Arena(
        {node: rank[p] for node, p in place.items()},
        tuple(tuple(places[p].sizes) for p in order),
        tuple(places[p].level for p in order),
    )


@dataclass
class _Place:
    """A place while tensors are put into it."""

    level: int
    sizes: list[DimLike]
    estimate: int = 0


def _choose(
    node: Node, places: list[_Place], free: list[int], known: Mapping[str, int]
) -> int:
    """The free place that fits best; a new one when all would have to grow a lot."""
    size = ceildiv(stored_bytes(node), ALIGNMENT) * ALIGNMENT
    wanted, level = _estimated(size), level_of(size, known)
    fitting = [
        p
        for p in free
        if places[p].level == level and (wanted <= places[p].estimate * 2 or places[p].estimate == 0)
    ]
    if fitting:
        best = min(fitting, key=lambda p: (abs(places[p].estimate - wanted), p))
        free.remove(best)
    else:
        best = len(places)
        places.append(_Place(level, []))
    if size not in places[best].sizes:
        places[best].sizes.append(size)
    places[best].estimate = max(places[best].estimate, wanted)
    return best


def _estimated(size: DimLike) -> int:
    return evaluate(size, {s.name: REPRESENTATIVE for s in symbols(size)})
