"""Models that runtimes load and onnx's checker does not: brought into the form that the checker wants.

In: a parsed model. Out: the same model, changed in place: every domain imported and by one name, no node that no output
needs, nodes in topological order, a name for the graph. Invariant: what the outputs are does not change; a graph that
reads its own results is a ModelError.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import onnx

from fissile.errors import ModelError, Place

CONTRIB = "com.microsoft"
# Operators that onnxruntime keeps in ONNX's own domain, up to the opset from which on ONNX itself has one.
_CONTRIBUTED = {"SimplifiedLayerNormalization": 1 << 30, "LayerNormalization": 17}
_NEWEST = {
    "": onnx.defs.onnx_opset_version(),
    "ai.onnx.ml": onnx.helper.VERSION_TABLE[-1][3],
    CONTRIB: 1,
}
Nodes = Any  # a repeated field of NodeProto, which has no public type


def tidy(model: onnx.ModelProto) -> None:
    """Change `model` as said above. ModelError F012 for a graph that reads its own results."""
    _tidy_graph(model.graph)
    _tidy_imports(model.opset_import, model.graph.node)
    for function in model.functions:
        _order(function.node, function.output)
        _tidy_imports(function.opset_import, function.node)
    model.graph.name = model.graph.name or "graph"
    model.ir_version = min(model.ir_version, onnx.IR_VERSION)


def initializers_read(graph: onnx.GraphProto) -> set[str]:
    """The names that nodes, bodies and outputs of the graph read."""
    names = {o.name for o in graph.output}
    for node in graph.node:
        names.update(_read(node))
    return names


# ---- domains -------------------------------------------------------------------------------------


def _tidy_imports(opsets: Any, nodes: Nodes) -> None:
    versions: dict[str, int] = {}
    for one in opsets:
        versions.setdefault(_plain(one.domain), one.version)
    for node in _all_nodes(nodes):
        domain = _plain(node.domain)
        if not domain and versions.get("", _NEWEST[""]) < _CONTRIBUTED.get(node.op_type, 0):
            domain = CONTRIB
        if node.domain != domain:
            node.domain = domain
        if node.domain in _NEWEST:
            versions.setdefault(node.domain, _NEWEST[node.domain])
    del opsets[:]
    opsets.extend(onnx.helper.make_opsetid(d, v) for d, v in versions.items())


def _plain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes and those of all bodies inside them."""
    for node in nodes:
        yield node
        for body in _bodies(node):
            yield from _all_nodes(body.node)


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


# ---- order ---------------------------------------------------------------------------------------


def _tidy_graph(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        for body in _bodies(node):
            _tidy_graph(body)
    _order(graph.node, [o.name for o in graph.output])


def _order(nodes: Nodes, outputs: Iterable[str]) -> None:
    """Sort the nodes, where they are not, and leave out those that no output needs.

    Where two make values of one name, which the checker refuses, nothing is changed.
    """
    chosen = list(nodes)
    if len(_makers(chosen)) != sum(bool(name) for node in chosen for name in node.output):
        return
    wanted = _needed(chosen, outputs)
    order = _sorted(chosen, wanted)
    if order != list(range(len(chosen))):
        del nodes[:]
        nodes.extend(chosen[k] for k in order)


def _needed(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> set[int]:
    """The numbers of the nodes that the outputs depend on."""
    makers = _makers(nodes)
    stack = [makers[name] for name in outputs if name in makers]
    found: set[int] = set()
    while stack:
        number = stack.pop()
        if number not in found:
            found.add(number)
            stack.extend(makers[n] for n in _read(nodes[number]) if n in makers)
    return found


def _sorted(nodes: Sequence[onnx.NodeProto], wanted: set[int]) -> list[int]:
    """The wanted nodes, each behind those it reads and else as early as it stands."""
    makers = _makers(nodes)
    order: list[int] = []
    done: set[int] = set()
    for first in sorted(wanted):
        path = [(first, iter(sorted(makers[n] for n in _read(nodes[first]) if n in makers)))]
        on_path = {first}
        while path and first not in done:
            number, needs = path[-1]
            need = next((k for k in needs if k not in done), None)
            if need is None:
                path.pop()
                on_path.discard(number)
                done.add(number)
                order.append(number)
            elif need in on_path:
                raise _circle([nodes[k] for k, _ in path[[k for k, _ in path].index(need) :]])
            else:
                on_path.add(need)
                path.append(
                    (need, iter(sorted(makers[n] for n in _read(nodes[need]) if n in makers)))
                )
    return order


def _makers(nodes: Sequence[onnx.NodeProto]) -> dict[str, int]:
    return {name: number for number, node in enumerate(nodes) for name in node.output if name}


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node reads, those that its bodies take from around them included."""
    yield from (n for n in node.input if n)
    for body in _bodies(node):
        own = {v.name for v in body.input} | {t.name for t in body.initializer}
        own.update(name for inner in body.node for name in inner.output)
        yield from (n for inner in body.node for n in _read(inner) if n not in own)
        yield from (o.name for o in body.output if o.name not in own)


def _circle(nodes: Sequence[onnx.NodeProto]) -> ModelError:
    places = [Place(n.name or ", ".join(n.output), n.op_type) for n in nodes]
    return ModelError(
        "F012",
        "the model is not valid ONNX",
        where=places,
        reason="these nodes read each other's results",
    )
