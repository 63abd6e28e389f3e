"""Kernel identification: whether a set of primitives is one kernel, and which (Korch section 4, DESIGN 3.4 and 3.5).

In: primitives, what is followed instead of stored, and which values are written. Out: a `Kernel` that
`fissile.schedule.lower` lowers, built around an anchor, or a `Refusal` that says what fits no anchor. Invariant: what a
kernel computes but does not list among its nodes is computed where it is read, from the kernel's inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fissile.ir import loop as L
from fissile.ir.affine import Space
from fissile.ir.dim import ceildiv
from fissile.ir.graph import Node
from fissile.ir.primitive import COLUMNS, PANEL
from fissile.orchestrate.follow import Index, push
from fissile.orchestrate.formats import is_tiled, tile_address
from fissile.orchestrate.grow_linear import linear_index, stores_rows
from fissile.orchestrate.places import Places, agrees, reduces_last
from fissile.orchestrate.plan import Anchor, Kernel

COSTLY = frozenset({
    "exp", "log", "log1p", "expm1", "tanh", "erf", "sigmoid", "sin", "cos", "tan", "pow", "div", "sqrt",
    "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh",
})  # fmt: skip
_LAST = frozenset({"pack", "concat"})
_SCANS = frozenset({"arg_max", "arg_min"})  # what they compare may be computed as they go
_AGAIN = 48  # scalar operations that may be repeated per element because they are read at several indices
_OPERATIONS = (
    160  # primitives evaluated per element: what a loop body holds without spilling everything
)


@dataclass(frozen=True)
class Refusal:
    """Why primitives are not one kernel."""

    reason: str


@dataclass(frozen=True)
class Region:
    """Primitives to be one kernel: `nodes` producers first, `outputs` of them are written, the sink last.

    followed: primitives that are never stored.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[Node, ...]
    followed: Collection[Node]

    @property
    def sink(self) -> Node:
        """The last value written."""
        return self.outputs[-1]

    def inputs(self) -> tuple[Node, ...]:
        """What is read from memory, in order."""
        return memory_reads(self.nodes, self.followed)

    def behind(self, roots: Iterable[Node]) -> list[Node]:
        """What depends on the roots, those that are followed included, producers first."""
        given = set(roots)
        found: dict[Node, None] = {}
        for node in reversed(self.consumers_first()):
            if node not in given and any(s in given or s in found for s in node.inputs):
                found[node] = None
        return list(found)

    def consumers_first(self) -> list[Node]:
        """The nodes and what is followed between them, each before what it reads."""
        inside = set(self.nodes)
        order: list[Node] = []
        seen: set[Node] = set()
        stack = [(n, False) for n in self.outputs]
        while stack:
            node, done = stack.pop()
            if done:
                order.append(node)
            elif node not in seen and (node in inside or node in self.followed):
                seen.add(node)
                stack.append((node, True))
                stack.extend((s, False) for s in reversed(node.inputs))
        return order[::-1]


def memory_reads(nodes: Sequence[Node], followed: Collection[Node]) -> tuple[Node, ...]:
    """The tensors in memory that `nodes` read, through what is followed, in order."""
    inside = set(nodes)
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = [s for node in reversed(nodes) for s in reversed(node.inputs)]
    while stack:
        node = stack.pop()
        if node in inside or node in seen:
            continue
        seen.add(node)
        if node in followed:
            stack.extend(reversed(node.inputs))
        else:
            found[node] = None
    return tuple(found)


def identify(region: Region) -> Kernel | Refusal:
    """The kernel that computes the region."""
    tiled = [n for n in region.nodes if is_tiled(n)]
    reductions = [n for n in region.nodes if n.primitive.reduced is not None and not is_tiled(n)]
    if len(tiled) > 1:
        return Refusal("two linear primitives")
    for node in region.nodes:
        if node.name == "foreign":
            return Refusal("nothing is computed with an operator that runs in Python")
        if (node.name in _LAST or node.primitive.kind == "opaque") and node is not region.sink:
            return Refusal(f"nothing is computed behind {node.name} in its kernel")
    is_opaque = region.sink.primitive.kind == "opaque" and region.sink.name not in _LAST
    if is_opaque and region.sink.name not in _SCANS and len(region.nodes) > 1:
        return Refusal(f"{region.sink.name} reads what is stored")
    if tiled and reductions:
        return Refusal("a reduction fits no anchor of a linear primitive")
    if reason := _repeats(region, tiled):
        return Refusal(reason)
    if tiled:
        return _linear(region, tiled[0])
    if reductions:
        rows = all(reduces_last(n) for n in reductions)
        return _rows(region, reductions) if rows else _reduce(region, reductions)
    if len(region.outputs) == 1:
        other = Anchor.SCAN if is_opaque else Anchor.ELEMENTWISE
        anchor = Anchor.PACK if region.sink.name == "pack" else other
        return _kernel(anchor, (region.sink,), region)
    return _elementwise(region)


def _kernel(anchor: Anchor, nodes: Sequence[Node], region: Region) -> Kernel:
    return Kernel(anchor, tuple(nodes), region.inputs(), region.outputs)


# ---------------------------------------------------------------- anchors


def _linear(region: Region, root: Node) -> Kernel | Refusal:
    """A product with what ends on its register tile; what stands before it is computed as rows are copied."""
    if len(region.outputs) > 1:
        return Refusal("a linear primitive writes one tensor")
    space = Space()
    at = linear_index(space, root)
    placed: dict[Node, Index] = {root: at}
    behind = region.behind([root])
    inline = {*region.nodes, *region.followed}.difference(behind)
    for node in behind:
        where = on_tile(space, inline, placed, node)
        if isinstance(where, Refusal):
            return where
        placed[node] = where
    if region.sink not in placed:
        return Refusal("what is written does not depend on the linear primitive")
    if region.sink.name == "pack":
        if reason := _not_in_panels(space, region.sink, placed[region.sink], root, at[-1]):
            return Refusal(reason)
    elif not stores_rows(space, region.sink, placed[region.sink], at):
        return Refusal("rows of a tile are not stored in order")
    before = [n for n in region.nodes if n not in placed]
    if sum(n.name in COSTLY for n in before) > 1:
        return Refusal("two costly functions before a linear primitive")
    return _kernel(Anchor.LINEAR, tuple(placed), region)


def on_tile(
    space: Space, inline: Collection[Node], placed: Mapping[Node, Index], node: Node
) -> Index | Refusal:
    """Where the element of `node` is that belongs to an element of the tile."""
    refusal = Refusal(f"{node.name} does not end on a tile")
    if node.name == "pack":
        return placed.get(node.inputs[0], refusal)
    if node.name in ("reshape", "transpose"):
        source = placed.get(node.inputs[0])
        return refusal if source is None else push(space, node, source) or refusal
    at = next((placed[i] for i in node.inputs if i in placed), None)
    if node.primitive.kind != "elementwise" or at is None:
        return refusal
    if not agrees(space, inline, placed, node, at):
        return Refusal(f"{node.name} reads other elements of a tile than its own")
    return at


def _not_in_panels(space: Space, sink: Node, at: Index, root: Node, n: L.Expr) -> str:
    """A reason why the tiles of a product are not stored in panels; "" if they can be."""
    if root.inputs[1].type.format == COLUMNS:
        return "a product of few columns is not stored in panels"
    columns = root.shape[-1]
    if root.name == "conv" and root.attr("groups") > 1:
        return "columns of a grouped convolution are not stored in panels"
    panel, lane = space.loop("panel", ceildiv(columns, PANEL)), space.loop("lane", PANEL)
    if tile_address(space, sink, at, n, panel, lane) is None:
        return "columns of a tile do not lie in panels"
    return ""


def _rows(region: Region, reductions: Sequence[Node]) -> Kernel | Refusal:
    """Reductions over the same last axes, what they reduce and what follows, row by row."""
    behind = {*region.behind(reductions), *reductions}
    inline = {*region.nodes, *region.followed}
    places = Places(inline, reductions[0], reductions[0].inputs[0])
    for node in region.nodes:
        can = node.primitive.kind == "elementwise" or node in reductions
        if (can and places.add(node)) or (node not in behind and node not in region.outputs):
            continue
        return Refusal(f"{node.name} fits neither row nor column of its kernel")
    return _kernel(Anchor.ROWS, tuple(places.placed), region)


def _reduce(region: Region, reductions: Sequence[Node]) -> Kernel | Refusal:
    """One reduction over any axes, and what follows element by element."""
    if len(reductions) > 1:
        return Refusal("two reductions, not both over the last axes")
    root = reductions[0]
    inside = set(region.nodes)
    behind = [n for n in region.behind([root]) if n in inside]
    places = Places({*region.nodes, *region.followed}, root, root)
    for node in (root, *behind):
        if not places.add(node):
            return Refusal(f"{node.name} does not read a reduction where it stands")
    if any(n not in places.placed for n in region.outputs):
        return Refusal("what is written stands before the reduction")
    before = [n for n in region.nodes if n not in places.placed]
    windowed = root.name == "conv" or root.inputs[0].name == "window"
    if windowed and sum(n.name in COSTLY for n in before) > 1:
        return Refusal("two costly functions before a window")
    return _kernel(Anchor.REDUCE, tuple(places.placed), region)


def _elementwise(region: Region) -> Kernel | Refusal:
    """Several tensors of one shape written by one loop."""
    places = Places({*region.nodes, *region.followed}, region.sink, region.sink)
    for node in region.outputs:
        if node.primitive.kind != "elementwise" or not places.add(node):
            return Refusal(f"{node.name} is not written element by element with the others")
    return _kernel(Anchor.ELEMENTWISE, tuple(places.placed), region)


# ---------------------------------------------------------------- repeated work


def _repeats(region: Region, tiled: Sequence[Node]) -> str:
    """A reason if following layouts computes too much again; "" if not.

    A value that is read through different layouts is computed once for each: the ways to it are counted.
    """
    inside = set(region.nodes)
    ways: dict[Node, set[tuple[Node, ...]]] = {n: {()} for n in region.outputs}
    again = total = 0
    for node in region.consumers_first():
        mine = ways.get(node, set())
        total += len(mine)
        if node.primitive.kind == "elementwise":
            again += (len(mine) - 1) * (8 if node.name in COSTLY else 1)
        if again > _AGAIN or total > _OPERATIONS:
            return "too much would be computed again per element"
        moved = mine if node.primitive.kind == "elementwise" else {(*w, node) for w in mine}
        for source in node.inputs[:1] if node in tiled else node.inputs:
            if source in inside or source in region.followed:
                ways.setdefault(source, set()).update(moved)
    return ""
