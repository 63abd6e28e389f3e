"""A model -> the same model with what substitutions made cheaper, as standard ONNX (PRODUCT 1.6, Korch Fig. 7).

In: a model. Out: a model of the same inputs, outputs, opset and metadata. An operator whose computation no substitution
touched stays the node it was, with all its attributes: composite operators need no recognition there, and a runtime's
own fusions find what they know. Only what changed is written anew, out of primitives (`forms`). Invariant: every value
that both graphs have is the same, so that mixing old nodes and new ones is right by construction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import onnx
from onnx import checker, inliner

from fissile.errors import CompileError
from fissile.fission.writer import Writer
from fissile.frontend import read_model
from fissile.frontend.operator_graph import OperatorGraph
from fissile.ir.graph import Node, users, waits_for
from fissile.optimizer.cost import PORTABLE, portable
from fissile.optimizer.follow import Followed, core, follow
from fissile.optimizer.forms import FORMS
from fissile.optimizer.held import Held, Scribe, below, plain
from fissile.rewrite.rule import RULES
from fissile.rewrite.substitute import Budget, Cost, Firing

OLDEST_OPSET = 13  # axes and sizes are inputs from here on
LEAST_GAIN = 1.03  # an estimate of less says nothing
_LIMIT = 2_000_000_000  # bytes of one protobuf message, with room for what is not weights
Model: TypeAlias = str | Path | bytes | onnx.ModelProto


@dataclass(frozen=True)
class Optimized:
    """The model, what fired, and the estimated gain (old seconds over new)."""

    model: onnx.ModelProto
    log: tuple[Firing, ...]
    gain: float
    kept: int
    written: int
    note: str = ""

    def text(self) -> str:
        """The same for people."""
        if not self.log:
            return f"nothing to gain, {self.kept} nodes as they were{self.note and ': ' + self.note}"
        rules = ", ".join(dict.fromkeys(f.rule for f in self.log))
        return f"{self.kept} nodes as they were, {self.written} new · {rules}"


def optimized(
    model: Model,
    base_dir: Path | None = None,
    disabled: Iterable[str] = (),
    budget: Budget | None = None,
    cost: Cost | None = None,
) -> Optimized:
    """Substitute what gains in any runtime, or by `cost`.

    Errors are those of `read_model` and `fission`; OptionError F603 for an unknown rule.
    """
    operators = read_model(model, base_dir)
    proto = _loaded(model, base_dir)
    opset = operators.metadata.opsets.get("", 0)
    if opset < OLDEST_OPSET:
        return _untouched(proto, f"opset {opset} is older than {OLDEST_OPSET}")
    off = {r.name for r in RULES.values() if r.regime == "substitute"} - PORTABLE
    guide = cost or portable(_one_image(operators))
    followed = follow(operators, guide, off | set(disabled), budget)
    if not followed.log:
        return _untouched(proto, "")
    gain = followed.cost_before / followed.cost
    if cost is None and gain < LEAST_GAIN:
        return _untouched(proto, f"what was found would gain {gain - 1:.1%}")
    if proto.functions:
        proto = inliner.inline_local_functions(proto)
    composed = _composed(proto, operators, followed, opset)
    if composed is None:
        return _untouched(proto, "what was found has no form in ONNX beside the old nodes")
    result, kept = composed
    try:
        _check(result)
    except checker.ValidationError as error:
        return _untouched(proto, f"what was found has no form in opset {opset} ({error})")
    written = len(result.graph.node) - kept
    return Optimized(result, followed.log, gain, kept, written)


def _one_image(operators: OperatorGraph) -> dict[str, int]:
    """Free first extents as 1: a batch of one is what people wait for."""
    firsts = [(v.name, v.shape[0]) for v in operators.inputs if v.shape]
    return {d or f"{name}:0": 1 for name, d in firsts if not isinstance(d, int)}


def content_of(model: onnx.ModelProto) -> bytes:
    """The model in one message. CompileError F414 when it is over 2 GB."""
    if not fits(model):
        raise CompileError(
            "F414", "the model is over 2 GB", remedy="fissile optimize MODEL -o FILE writes weights apart"
        )
    return bytes(model.SerializeToString(deterministic=True))


def fits(model: onnx.ModelProto) -> bool:
    """Whether the model is one protobuf message, which holds 2 GB."""
    parts = (*model.graph.initializer, *model.graph.node, *model.functions)
    size: int = sum(part.ByteSize() for part in parts)
    return size < _LIMIT


def _loaded(model: Model, base_dir: Path | None) -> onnx.ModelProto:
    """The model with all its weights in memory; a given object is not changed."""
    if isinstance(model, str | Path):
        return onnx.load(str(model))
    proto = onnx.ModelProto()
    if isinstance(model, onnx.ModelProto):
        proto.CopyFrom(model)
    else:
        proto.ParseFromString(bytes(model))
    if base_dir is not None:
        onnx.load_external_data_for_model(proto, str(base_dir))
    return proto


def _untouched(proto: onnx.ModelProto, note: str) -> Optimized:
    return Optimized(proto, (), 1.0, len(proto.graph.node), 0, note)


def _check(model: onnx.ModelProto) -> None:
    """ONNX's checker, with inputs in place of weights where those are too large for it."""
    if fits(model):
        checker.check_model(model)
        return
    light = onnx.ModelProto()
    light.CopyFrom(model)
    for tensor in light.graph.initializer:
        known = {i.name for i in light.graph.input}
        if tensor.name not in known:
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            light.graph.input.append(info)
    del light.graph.initializer[:]
    checker.check_model(light)


# ---------------------------------------------------------------- old nodes and new ones


Item: TypeAlias = int | Node  # an old node by its number, or a primitive


@dataclass
class _Composition:
    """One model on the way.

    old: the model's nodes. made_by: the number of the node that makes a value. at: the values at every core primitive.
    again: nodes that are written anew, though nothing in them changed, since new nodes need what they make earlier.
    """

    proto: onnx.ModelProto
    followed: Followed
    scribe: Scribe
    old: list[onnx.NodeProto]
    made_by: Mapping[str, int]
    at: Mapping[Node, tuple[str, ...]]
    live: set[Node]
    again: set[int] = field(default_factory=set)

    def is_new(self, name: str) -> bool:
        """Whether a value comes out of new nodes."""
        if name not in self.made_by:
            return False
        if name in self.followed.changed:
            return True
        node = self.followed.nodes.get(name)
        return self.made_by[name] in self.again and node is not None and core(node) in self.live

    def needs(self, item: Item) -> list[Item]:
        """What must be there before an item."""
        if isinstance(item, int):
            return [i for name in _reads(self.old[item]) for i in self._source(name)]
        value = self.value_at(item)
        if value is not None:
            return [] if value[0] not in self.made_by else [self.made_by[value[0]]]
        return list(waits_for(item, self.followed.graph.late))

    def _source(self, name: str) -> list[Item]:
        if self.is_new(name):
            return [self.followed.nodes[name]]
        return [self.made_by[name]] if name in self.made_by else []

    def value_at(self, node: Node) -> tuple[str, Held] | None:
        """An old value that holds the primitive."""
        for name in self.at.get(node, ()):
            if self.is_new(name):
                continue
            held = self._held_by(name, node)
            if held is not None:
                return name, held
        return None

    def _held_by(self, name: str, node: Node) -> Held | None:
        top = self.followed.nodes[name]
        held: Held | None = plain(name, top.shape)
        while top is not node and held is not None:
            held = below(held, top)
            top = top.inputs[0]
        return held


def _composed(
    proto: onnx.ModelProto, operators: OperatorGraph, followed: Followed, opset: int
) -> tuple[onnx.ModelProto, int] | None:
    """The model of old nodes and new ones, and how many are old; None where they would wait for each other."""
    work = _composition(proto, operators, followed, opset)
    outputs = [o.name for o in proto.graph.output]
    order: list[Item] | None = None
    for _ in range(len(work.old) + 1):
        roots = [i for name in outputs for i in work._source(name)]
        found = _ordered(work, roots)
        if isinstance(found, list):
            order = found
            break
        if found is None or found in work.again:
            return None
        work.again.add(found)
    if order is None:
        return None
    for item in order:
        _write(work, item)
    for name in outputs:
        _alias(work, name)
    return _finished(work)


def _composition(
    proto: onnx.ModelProto, operators: OperatorGraph, followed: Followed, opset: int
) -> _Composition:
    graph = followed.graph
    nodes = graph.nodes()
    taken = {n for node in proto.graph.node for n in (*node.input, *node.output)}
    taken.update(_inner_names(proto.graph))
    writer = Writer(graph, taken | {t.name for t in proto.graph.initializer}, opset)
    readers = {n: len(r) for n, r in users(nodes).items()}
    for _, node in graph.outputs:
        readers[node] += 1
    scribe = Scribe(writer, readers, graph.late, opset)
    for node in graph.inputs:
        writer.names[node] = node.attr("name")
        scribe.held[node] = plain(node.attr("name"), node.shape)
    made_by = {n: k for k, node in enumerate(proto.graph.node) for n in node.output if n}
    at: dict[Node, list[str]] = {}
    for name, node in followed.nodes.items():
        if name in made_by:
            at.setdefault(core(node), []).append(name)
    return _Composition(
        proto, followed, scribe, list(proto.graph.node), made_by,
        {n: tuple(names) for n, names in at.items()}, set(nodes),
    )  # fmt: skip


def _inner_names(graph: onnx.GraphProto) -> Iterator[str]:
    """All names in the subgraphs of a graph."""
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from (n for node in inner.node for n in (*node.input, *node.output))
                yield from (i.name for i in inner.input)
                yield from (t.name for t in inner.initializer)
                yield from _inner_names(inner)


def _reads(node: onnx.NodeProto) -> list[str]:
    """What a node reads, its subgraphs included."""
    found = [n for n in node.input if n]
    for attribute in node.attribute:
        for inner in (attribute.g, *attribute.graphs):
            found += [n for one in inner.node for n in _reads(one)]
            found += [o.name for o in inner.output]
    return found


def _ordered(work: _Composition, roots: list[Item]) -> list[Item] | int | None:
    """All items needed, each after what it needs; where they wait for each other, an old node in the circle."""
    order: list[Item] = []
    state: dict[Item, int] = {}
    stack: list[tuple[Item, bool]] = [(root, False) for root in reversed(roots)]
    path: list[Item] = []
    while stack:
        item, is_done = stack.pop()
        if is_done:
            state[item] = 2
            order.append(item)
            path.pop()
        elif state.get(item, 0) == 1:
            circle = path[path.index(item) :]
            return next((i for i in circle if isinstance(i, int)), None)
        elif item not in state:
            state[item] = 1
            path.append(item)
            stack.append((item, True))
            stack.extend((i, False) for i in reversed(work.needs(item)))
    return order


# ---------------------------------------------------------------- writing


def _write(work: _Composition, item: Item) -> None:
    scribe = work.scribe
    if isinstance(item, int):
        for name in dict.fromkeys(_reads(work.old[item])):
            _alias(work, name)
        scribe.writer.nodes.append(work.old[item])
        return
    if item in scribe.held:
        return
    value = work.value_at(item)
    if value is not None:
        scribe.held[item] = value[1]
        return
    scribe.write(item, FORMS)


def _alias(work: _Composition, name: str) -> None:
    """Give a value that comes out of new nodes its name."""
    scribe = work.scribe
    if not work.is_new(name) or name in work.scribe.aliases:
        return
    scribe.aliases.add(name)
    source = scribe.plain(work.followed.nodes[name])
    scribe.writer.nodes.append(onnx.helper.make_node("Identity", [source], [name]))


def _finished(work: _Composition) -> tuple[onnx.ModelProto, int]:
    """The model with the new nodes that somebody reads, and their weights."""
    model = onnx.ModelProto()
    model.CopyFrom(work.proto)
    graph, outputs = model.graph, {o.name for o in model.graph.output}
    nodes = _renamed(_needed(work.scribe.writer.nodes, outputs), {id(n) for n in work.old})
    del graph.node[:]
    graph.node.extend(nodes)
    used = {n for node in nodes for n in _reads(node)} | outputs
    weights = [t for t in (*graph.initializer, *work.scribe.writer.initializers) if t.name in used]
    sparse = [t for t in graph.sparse_initializer if t.values.name in used]
    known = {n for node in nodes for n in node.output}
    infos = [v for v in graph.value_info if v.name in known]
    for field_, kept in (
        (graph.initializer, weights), (graph.sparse_initializer, sparse), (graph.value_info, infos),
    ):  # fmt: skip
        copies = [type(k).FromString(k.SerializeToString()) for k in kept]
        del field_[:]
        field_.extend(copies)
    old = {tuple(n.output) for n in work.old}
    return model, sum(tuple(n.output) in old for n in nodes)


def _needed(nodes: list[onnx.NodeProto], outputs: set[str]) -> list[onnx.NodeProto]:
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            wanted.update(_reads(node))
            kept.append(node)
    return kept[::-1]


def _renamed(nodes: list[onnx.NodeProto], old: set[int]) -> list[onnx.NodeProto]:
    """Identities that only give a new node's value its name are left out: the node gives it itself."""
    fresh = {n for node in nodes if id(node) not in old and node.op_type != "Identity"
             for n in node.output}  # fmt: skip
    names: dict[str, str] = {}
    for node in nodes:
        is_name = node.op_type == "Identity" and id(node) not in old and node.input[0] in fresh
        if is_name and node.input[0] not in names:
            names[node.input[0]] = node.output[0]
    result = []
    for node in nodes:
        if node.op_type == "Identity" and names.get(node.input[0]) == node.output[0]:
            continue
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for field_ in (copy.input, copy.output):
            renamed = [names.get(n, n) for n in field_]
            del field_[:]
            field_.extend(renamed)
        result.append(copy)
    return result
