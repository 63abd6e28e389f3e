"""The primitives of a graph as orchestration counts them: units, what each reads, and what is followed for free.

In: a packed primitive graph and the tensors that some plan of it stores. Out: `Units`. A unit is one primitive, or an
elementwise one with those that only it reads and that would be dearer to store than to read again; or one input of a
concat, which is written into its place. Invariant: units are numbered in topological order and have one value each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from fissile.ir.dim import evaluate, product, symbols
from fissile.ir.graph import Graph, Node, mentioned, users, waits_for
from fissile.orchestrate.grow import readers_of
from fissile.orchestrate.inline import followed
from fissile.orchestrate.liveness import REPRESENTATIVE, stored_bytes
from fissile.orchestrate.plan import is_stored_leaf

_SMALL = 8  # an operand of this fraction of a tensor is not counted when storing and reading are compared


@dataclass(frozen=True)
class Unit:
    """`nodes` are computed together, the last one is the value; `piece` is the input of a concat that is meant."""

    nodes: tuple[Node, ...]
    piece: int = 0

    @property
    def value(self) -> Node:
        """The node whose value the unit is."""
        return self.nodes[-1]


@dataclass(frozen=True)
class Units:
    """The units of `graph`; `reads[u]`: the units whose values unit u reads, or waits for (late extents)."""

    graph: Graph
    followed: frozenset[Node]
    all: tuple[Unit, ...]
    reads: tuple[tuple[int, ...], ...]

    @cached_property
    def readers(self) -> list[list[int]]:
        """For every unit the units that read it."""
        return readers_of(self.reads)

    @cached_property
    def of(self) -> Mapping[Node, tuple[int, ...]]:
        """The units that make up the value of a node; several for a concat. Inner nodes of a unit have none."""
        found: dict[Node, list[int]] = {}
        for number, unit in enumerate(self.all):
            found.setdefault(unit.value, []).append(number)
        return {node: tuple(numbers) for node, numbers in found.items()}

    @cached_property
    def needed(self) -> tuple[int, ...]:
        """The units whose values are outputs of the graph."""
        outputs = dict.fromkeys(node for _, node in self.graph.outputs)
        return tuple(u for node in outputs for u in self.of[node])


def units_of(graph: Graph, stored: Collection[Node]) -> Units:
    """The units of a packed graph whose outputs are its own; what is `stored` is the value of a unit."""
    free = followed(graph)
    nodes = [n for n in graph.nodes() if n not in free and not is_stored_leaf(n)]
    merged = _merged(nodes, {*stored, *(n for _, n in graph.outputs)}, users(graph.nodes()), free)
    last: dict[Node, Node] = {}
    for node in reversed(nodes):
        last[node] = last[merged[node]] if node in merged else node
    groups: dict[Node, list[Node]] = {}
    for node in nodes:
        groups.setdefault(last[node], []).append(node)
    units: list[Unit] = []
    for node in nodes:
        if node.name == "concat":
            units += [Unit((node,), k) for k in range(len(node.inputs))]
        elif node not in merged:
            units.append(Unit(tuple(groups[node])))
    numbers: dict[Node, list[int]] = {}
    reads: list[tuple[int, ...]] = []
    for number, unit in enumerate(units):
        sources = awaited(unit, free, graph)
        reads.append(tuple(dict.fromkeys(u for s in sources for u in numbers.get(s, ()))))
        numbers.setdefault(unit.value, []).append(number)
    return Units(graph, free, tuple(units), tuple(reads))


def awaited(unit: Unit, free: Collection[Node], graph: Graph) -> list[Node]:
    """The values that must be there before the unit is computed, through what is followed."""
    inside = set(unit.nodes)
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    if unit.value.name == "concat":
        # where a piece begins depends on the extents of the others
        shaped = (unit.value, *unit.value.inputs) if graph.late else ()
        names = [name for n in shaped for name in mentioned(n) if name in graph.late]
        stack = [unit.value.inputs[unit.piece], *(graph.late[name] for name in names)]
    else:
        stack = [s for n in unit.nodes for s in waits_for(n, graph.late)]
    while stack:
        node = stack.pop()
        if node in inside or node in seen:
            continue
        seen.add(node)
        if node in free:
            stack.extend(waits_for(node, graph.late))
        else:
            found[node] = None
    return list(found)


def _merged(
    nodes: list[Node],
    kept: Collection[Node],
    readers: Mapping[Node, list[Node]],
    free: frozenset[Node],
) -> dict[Node, Node]:
    """Elementwise nodes and the one elementwise node that reads each: storing it never pays."""
    result: dict[Node, Node] = {}
    for node in nodes:
        if node in kept or node.primitive.kind != "elementwise":
            continue
        following = readers[node]
        if len(following) != 1 or following[0].primitive.kind != "elementwise":
            continue
        if following[0] in free or following[0].shape != node.shape:
            continue
        if _read_bytes(node, free) <= representative_bytes(node):
            result[node] = following[0]
    return result


def _read_bytes(node: Node, free: frozenset[Node]) -> int:
    """Bytes of what a node reads in memory, small operands left out."""
    most = representative_bytes(node) // _SMALL
    found: set[Node] = set()
    stack = list(node.inputs)
    while stack:
        source = stack.pop()
        if source in free:
            stack.extend(source.inputs)
        else:
            found.add(source)
    sizes = [representative_bytes(n) for n in found]
    return sum(size for size in sizes if size > most)


def representative_bytes(node: Node) -> int:
    """Bytes of a stored tensor when every free extent has a representative value."""
    size = stored_bytes(node)
    return size if isinstance(size, int) else evaluate(size, _numbers(node))


def _numbers(node: Node) -> dict[str, int]:
    return {s.name: REPRESENTATIVE for s in symbols(product(node.shape))}
