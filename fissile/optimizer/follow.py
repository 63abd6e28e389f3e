"""What becomes of an ONNX model's values under rewriting and substitution (Korch section 4).

In: an operator graph. Out: `Followed`: the substituted graph, the node that every ONNX value is there, and the values
whose computation changed. Invariant: `nodes[v]` has the value of v, whether or not the graph still computes it; an
operator that is not in `changed` computes what the substituted graph computes in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from fissile.fission import fission
from fissile.frontend.operator_graph import Operator, OperatorGraph, Value
from fissile.frontend.write import values_read
from fissile.ir.dim import DimLike, product
from fissile.ir.graph import Graph, Node, make
from fissile.rewrite import canonicalize
from fissile.rewrite.engine import Renewal
from fissile.rewrite.rule import enabled
from fissile.rewrite.shape import is_same
from fissile.rewrite.substitute import Budget, Cost, Firing, Substituted, substitute

_LEAVES = frozenset({"input", "constant", "extents", "iota"})
_VIEWS = frozenset({"transpose", "reshape", "broadcast"})
_MARK = "\0"  # no symbol's name begins so


@dataclass(frozen=True)
class Followed:
    """graph: the substituted one. nodes: what each value is there. changed: values that are computed otherwise."""

    graph: Graph
    nodes: Mapping[str, Node]
    changed: frozenset[str]
    log: tuple[Firing, ...]
    cost: float
    cost_before: float


def follow(
    operators: OperatorGraph, cost: Cost, disabled: Iterable[str], budget: Budget | None = None
) -> Followed:
    """Substitute, and follow every value. Errors are those of `fission`; OptionError F603 for an unknown rule."""
    off = frozenset(disabled)
    graph, values = _split(operators)
    marked = canonicalize(_watching(graph, values.values()), off).graph
    canonical = dict(zip(values, _watched(marked), strict=True))
    plain = replace(marked, late=_unmarked(marked))
    best = substitute(plain, cost, budget, off)[0]
    images = _replayed(plain, best, off)
    nodes = {name: _image(node, images) for name, node in canonical.items()}
    return Followed(
        best.graph,
        nodes,
        _changed(operators, canonical, images, plain, best.graph),
        best.log,
        best.cost,
        cost(plain),
    )


def _split(operators: OperatorGraph) -> tuple[Graph, dict[str, Node]]:
    """The primitive graph, and what every value is in it that an operator reads."""
    outputs = dict.fromkeys(o.name for o in operators.outputs)
    needed = dict.fromkeys(_live_reads(operators, outputs))
    extra = tuple(Value(name, "", None) for name in needed if name not in outputs)
    whole = fission(replace(operators, outputs=(*operators.outputs, *extra)), foreign=True)
    graph = replace(whole, outputs=whole.outputs[: len(operators.outputs)])
    return graph, dict(whole.outputs)


def _live_reads(operators: OperatorGraph, outputs: Iterable[str]) -> list[str]:
    """The names of values that operators read which some output needs."""
    wanted = set(outputs)
    found: list[str] = []
    for operator in reversed(operators.operators):
        if wanted.intersection(operator.outputs):
            reads = values_read(operator)
            wanted.update(reads)
            found.extend(reads)
    return found


# ---------------------------------------------------------------- following nodes through rewriting


def _watching(graph: Graph, nodes: Iterable[Node]) -> Graph:
    """The graph with `nodes` among those that rewriting keeps account of, though nothing keeps them alive."""
    marks = {f"{_MARK}{k}": node for k, node in enumerate(nodes)}
    return replace(graph, late={**graph.late, **marks})


def _watched(graph: Graph) -> list[Node]:
    return [node for name, node in graph.late.items() if name.startswith(_MARK)]


def _unmarked(graph: Graph) -> dict[str, Node]:
    return {name: node for name, node in graph.late.items() if not name.startswith(_MARK)}


def _replayed(graph: Graph, best: Substituted, off: frozenset[str]) -> dict[Node, Node]:
    """What the nodes of the graph are in the best one."""
    nodes = graph.nodes()
    renewal = Renewal(enabled("canonicalize", off))
    marked = _watching(graph, nodes)
    for window, exchanges in best.windows:
        inner = window.graph.nodes()
        part = _watching(window.graph, inner)
        for exchange in exchanges:
            part = renewal.exchanged(part, exchange)
        images = dict(zip(inner, _watched(part), strict=True))
        made = window.rebuilt(replace(part, late={}))
        new = {
            whole: made[images[node]]
            for whole, node in window.inside.items()
            if images.get(node) in made
        }
        new = {old: image for old, image in new.items() if old is not image}
        marked = renewal.exchanged(marked, new)
    return dict(zip(nodes, _watched(marked), strict=True))


def _image(node: Node, images: Mapping[Node, Node]) -> Node:
    """What a value is in the substituted graph: views of what is computed there need not be part of it."""
    views: list[Node] = []
    while node not in images and node.name in ("transpose", "reshape"):
        views.append(node)
        node = node.inputs[0]
    image = images.get(node, node)
    for view in reversed(views):
        image = make(view.primitive, image, **dict(view.attrs))
    return image


# ---------------------------------------------------------------- what changed


def core(node: Node) -> Node:
    """The node below transposes and reshapes."""
    while node.name in ("transpose", "reshape"):
        node = node.inputs[0]
    return node


def _changed(
    operators: OperatorGraph,
    canonical: Mapping[str, Node],
    images: Mapping[Node, Node],
    before: Graph,
    after: Graph,
) -> frozenset[str]:
    """The values that the graph still has and computes otherwise than before."""
    had, has = set(before.nodes()), set(after.nodes())
    ends = {core(node) for node in canonical.values()}
    same = {n: _is_same_step(n, images.get(n), has) for n in had}
    changed = set()
    for operator in operators.operators:
        for name in operator.outputs:
            node = canonical.get(name)
            if node is None or core(node) not in had:
                continue
            is_kept = all(same.get(n, False) for n in _cone(core(node), ends))
            if not is_kept and core(images[core(node)]) in has:
                changed.add(name)
    return frozenset(changed)


def _cone(top: Node, ends: set[Node]) -> list[Node]:
    """What is computed for `top` out of other values: `top` and what lies below, down to the values."""
    found: dict[Node, None] = {}
    stack = [top]
    while stack:
        node = stack.pop()
        if node in found or node.name in _LEAVES or (node in ends and node is not top):
            continue
        if node.name not in _VIEWS:
            found[node] = None
        stack.extend(node.inputs)
    return list(found)


def _is_same_step(node: Node, image: Node | None, live: set[Node]) -> bool:
    """Whether a node of the substituted graph does as much as `node` did, in any layout."""
    if image is None:
        return False
    image = core(image)
    if image not in live or image.name != node.name or len(image.inputs) != len(node.inputs):
        return False
    pairs = zip((image, *image.inputs), (node, *node.inputs), strict=True)
    return all(is_same(_count(a), _count(b)) for a, b in pairs)


def _count(node: Node) -> DimLike:
    return product(node.shape)


def producers(operators: OperatorGraph) -> dict[str, Operator]:
    """The operator that makes each value."""
    return {name: o for o in operators.operators for name in o.outputs if name}
