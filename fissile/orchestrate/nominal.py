"""What planning takes for granted before anything is measured: a nominal machine, and numbers for free extents.

In: a target and a number of threads; a graph and the ranges that the user gave. Out: a `Machine`, extents by name.
Invariant: neither depends on the machine that compiles but through `Target`, so an untuned plan is the same everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from fissile.frontend.extents import dim_of
from fissile.ir.dim import evaluate, symbols
from fissile.ir.graph import Graph
from fissile.orchestrate.bound import Machine, prices
from fissile.orchestrate.liveness import REPRESENTATIVE
from fissile.orchestrate.plan import Kernel
from fissile.target import Target

_CLOCK = 3.5e9  # cycles per second that a server's core keeps up under vector code
_VECTORS = 2  # multiply-adds of 256 bits that a core starts in a cycle; wider ones count as two
_L1, _L2 = 64.0, 32.0  # bytes per cycle and core
_L3, _MEMORY = 4e10, 2e10  # bytes per second and core
_DISPATCH, _MEETING = 4e-7, 1.2e-6  # seconds to start a kernel: on one thread, and where several meet at its end


def nominal(target: Target, threads: int) -> Machine:
    """A plausible machine of a target: of `threads` cores together."""
    lanes = min(target.lanes(4), 8)
    rates = _L1 * _CLOCK * threads, _L2 * _CLOCK * threads, _L3 * threads, _MEMORY * threads
    sizes = target.l1 * threads, target.l2 * threads, target.l3, math.inf
    levels = tuple((float(size), rate) for size, rate in zip(sizes, rates, strict=True))
    flops = 2.0 * _VECTORS * lanes * _CLOCK * threads
    return Machine(flops, levels, _DISPATCH if threads == 1 else _MEETING)


def guesses(
    graph: Graph, target: Target, threads: int, shapes: Mapping[str, Any]
) -> Callable[[Kernel], tuple[float, float]]:
    """Seconds at least and probably of a kernel of a graph, on a nominal machine. shapes: as the user gave them."""
    machine, numbers = nominal(target, threads), representative(graph, shapes)
    return lambda kernel: prices(kernel, machine, numbers)


def representative(graph: Graph, shapes: Mapping[str, Any]) -> dict[str, int]:
    """The numbers of free dimensions that plans are made for.

    The middle of a range that the user gave, by ratio; else 1 for the first axis of an input, REPRESENTATIVE for
    others.
    """
    numbers: dict[str, int] = {}
    for node in graph.inputs:
        given = shapes.get(node.attr("name"))
        wishes = given if isinstance(given, list | tuple) else [None] * len(node.shape)
        for axis, extent in enumerate(node.shape):
            for found in symbols(extent):
                wish = shapes.get(found.name, wishes[axis] if axis < len(wishes) else None)
                number = _declared(found.name, axis, shapes) if wish is None else _middle(wish)
                numbers.setdefault(found.name, max(number, found.lower))
    return numbers | dict.fromkeys(graph.late, REPRESENTATIVE)


def _declared(name: str, axis: int, shapes: Mapping[str, Any]) -> int:
    """The number of a dimension without a wish; of an expression that is taken as a name, what it says."""
    extent, default = dim_of(name), 1 if axis == 0 else REPRESENTATIVE
    wishes = {s.name: shapes.get(s.name) for s in symbols(extent)}
    numbers = {n: default if w is None else _middle(w) for n, w in wishes.items()}
    return evaluate(extent, numbers)


def _middle(wish: int | tuple[int, int]) -> int:
    low, high = (wish, wish) if isinstance(wish, int) else wish
    return round(math.sqrt(max(low, 1) * max(high, 1)))
