"""What the compiler records about an artifact for people: operators, primitives, kernels, loop programs, rules.

In: what the stages of the pipeline made. Out: plain data under `KEY` of `report.json`, compressed, and back. Invariant:
a function of the model and the options alone, so it holds no times and no dates; it is never read to run a model.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fissile.frontend import OperatorGraph
from fissile.ir import loop as L
from fissile.ir import text
from fissile.ir.graph import Graph, Node, users
from fissile.orchestrate.identify import Refusal, Region, identify
from fissile.orchestrate.plan import Anchor, Kernel, Plan, is_stored_leaf
from fissile.orchestrate.roofline import work
from fissile.rewrite import RULES
from fissile.rewrite.engine import Firing

KEY = "compile"
LONGEST_ATTRS = 160  # characters of a primitive's attributes
MOST_LOOPS = 1_500_000  # characters of loop programs; the largest are left out first
POSSIBLE = "they could be one kernel; apart was found no dearer"


@dataclass(frozen=True)
class Parts:
    """What is recorded. functions: name of the loop function of each native kernel, in order, and its tasks."""

    operators: OperatorGraph
    plan: Plan
    target: str
    functions: Mapping[str, L.Function]
    lowered: Sequence[tuple[str, str]]
    fired: Mapping[str, int]
    examples: Sequence[Firing]
    chosen: Sequence[Firing]
    disabled: Sequence[str]


def packed(parts: Parts) -> dict[str, str]:
    """The record as it lies in `report.json`."""
    plain = json.dumps(record(parts), separators=(",", ":"), ensure_ascii=False).encode()
    return {"zlib": base64.b85encode(zlib.compress(plain, 9)).decode()}


def unpacked(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record in a `report.json`; None where there is none. ValueError where it is damaged."""
    row = report.get(KEY)
    if row is None:
        return None
    try:
        found: dict[str, Any] = json.loads(zlib.decompress(base64.b85decode(row["zlib"])))
    except (zlib.error, KeyError, TypeError) as error:
        raise ValueError(f"the record of the compilation is damaged: {error}") from error
    return found


def record(parts: Parts) -> dict[str, Any]:
    """The record as plain data; nodes, names and types are numbered."""
    plan = parts.plan
    nodes = plan.graph.nodes()
    names = _Table()
    return {
        "operators": _operators(parts.operators, names),
        "primitives": _primitives(plan.graph, nodes, names),
        "kernels": _kernels(parts, {n: k for k, n in enumerate(nodes)}, names),
        "refusals": _refusals(plan),
        "rules": _rules(parts),
        "firings": [_firing(f) for f in parts.chosen],
        "examples": [_firing(f) for f in parts.examples],
        "disabled": list(parts.disabled),
        "target": parts.target,
        "loops": _loops(parts.functions),
        "texts": names.all(),
    }


class _Table:
    """Texts by number, each once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text_: str) -> int:
        """The number of a text, a new one where it is new."""
        return self._numbers.setdefault(text_, len(self._numbers))

    def all(self) -> list[str]:
        """The texts in the order of their numbers."""
        return list(self._numbers)


def _operators(graph: OperatorGraph, names: _Table) -> list[list[Any]]:
    """Name, type, and the numbers of the operators read, in the order of the file."""
    writer = {name: k for k, o in enumerate(graph.operators) for name in o.outputs if name}
    return [
        [
            names.number(o.where),
            names.number(o.title),
            list(dict.fromkeys(writer[i] for i in o.inputs if i in writer)),
        ]
        for o in graph.operators
    ]


def _primitives(graph: Graph, nodes: Sequence[Node], names: _Table) -> list[list[Any]]:
    """Primitive, attributes, type with format, numbers read, and the ONNX nodes it serves."""
    numbers = {n: k for k, n in enumerate(nodes)}
    return [
        [
            names.number(node.name),
            names.number(_attrs(node)),
            names.number(_type(node)),
            [numbers[i] for i in node.inputs],
            [names.number(name) for name in graph.origins.get(node, ())],
        ]
        for node in nodes
    ]


def _attrs(node: Node) -> str:
    shown = (f"{k}={_plain(v)}" for k, v in node.attrs if k not in ("model", "value"))
    joined = ", ".join(shown)
    return joined if len(joined) <= LONGEST_ATTRS else joined[: LONGEST_ATTRS - 1] + "…"


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_plain, value))})"
    return str(value)


def _type(node: Node) -> str:
    held = node.type.format
    return str(node.type) if held == "plain" else f"{node.type} {held}"


def _kernels(parts: Parts, numbers: Mapping[Node, int], names: _Table) -> list[dict[str, Any]]:
    """Kernels in the order of the plan; the native ones are the launches, in the same order."""
    rows: list[dict[str, Any]] = []
    native = iter(parts.lowered)
    origins = parts.plan.graph.origins
    for step, kernels in enumerate(parts.plan.steps):
        for kernel in kernels.kernels:
            function, tasks = ("", "") if kernel.is_call else next(native)
            least = work(kernel)
            served = dict.fromkeys(n for m in kernel.nodes for n in origins.get(m, ()))
            rows.append(
                {
                    "anchor": kernel.provider or kernel.anchor.value,
                    "step": step,
                    "nodes": [numbers[n] for n in kernel.nodes],
                    "inputs": [numbers[n] for n in kernel.inputs],
                    "outputs": [numbers[n] for n in kernel.outputs],
                    "stored": [numbers[n] for n in kernel.inputs if is_stored_leaf(n)],
                    "serves": [names.number(n) for n in served],
                    "function": function,
                    "tasks": tasks,
                    "work": [str(x) for x in (least.constants, least.bytes, least.operations)],
                }
            )
    return rows


def _loops(functions: Mapping[str, L.Function]) -> dict[str, str]:
    """The loop programs as text, the smallest first where there are too many."""
    shown = {name: text.show(f) for name, f in functions.items()}
    kept: dict[str, str] = {}
    left = MOST_LOOPS
    for name in sorted(shown, key=lambda n: len(shown[n])):
        left -= len(shown[name])
        if left < 0:
            break
        kept[name] = shown[name]
    return {name: kept[name] for name in shown if name in kept}


def _rules(parts: Parts) -> dict[str, dict[str, Any]]:
    """Every rule that fired: its law, its regime, how often."""
    counts = dict(parts.fired)
    for firing in parts.chosen:
        counts[firing.rule] = counts.get(firing.rule, 0) + 1
    return {
        name: {"law": RULES[name].law, "regime": RULES[name].regime, "fired": count}
        for name, count in counts.items()
        if name in RULES
    }


def _firing(firing: Firing) -> list[Any]:
    return [firing.rule, firing.where, firing.before, firing.after, firing.saved]


# ---------------------------------------------------------------- why not fused


def _refusals(plan: Plan) -> list[list[Any]]:
    """[kernel, kernel that reads it, why they are not one]."""
    graph = plan.graph
    kernels = plan.kernels()
    position = {n: k for k, n in enumerate(graph.nodes())}
    readers = users(graph.nodes())
    written = {n: k for k, kernel in enumerate(kernels) for n in kernel.outputs}
    owned = {n for kernel in kernels for n in kernel.nodes}
    free = {n for n in position if n not in owned and n not in written and not is_stored_leaf(n)}
    before, behind = _order(kernels, written)
    rows: list[list[Any]] = []
    for b, reader in enumerate(kernels):
        for a in dict.fromkeys(written[n] for n in reader.inputs if n in written):
            reason = "another kernel stands between them"
            if not before[b] & behind[a]:
                reason = _reason(kernels[a], reader, position, readers, free, graph)
            rows.append([a, b, reason])
    return rows


def _order(kernels: Sequence[Kernel], written: Mapping[Node, int]) -> tuple[list[int], list[int]]:
    """For every kernel those it waits for, directly or not, and those that wait for it, as sets of bits."""
    sources = [
        {written[n] for n in kernel.inputs if written.get(n, b) < b} for b, kernel in enumerate(kernels)
    ]
    before, behind = [0] * len(kernels), [0] * len(kernels)
    for b, mine in enumerate(sources):
        for a in mine:
            before[b] |= before[a] | 1 << a
    for b in reversed(range(len(kernels))):
        for a in sources[b]:
            behind[a] |= behind[b] | 1 << b
    return before, behind


def _reason(
    first: Kernel,
    second: Kernel,
    position: Mapping[Node, int],
    readers: Mapping[Node, Sequence[Node]],
    free: Collection[Node],
    graph: Graph,
) -> str:
    alone = {Anchor.PIECE: "an input of a concat is copied by itself",
             Anchor.FOREIGN: "an operator in Python runs by itself"}  # fmt: skip
    for kernel in (first, second):
        if kernel.provider:
            return f"{kernel.provider} runs one of them"
        if kernel.anchor in alone:
            return alone[kernel.anchor]
    nodes = tuple(sorted({*first.nodes, *second.nodes}, key=position.__getitem__))
    outputs = _still_read(first.outputs, nodes, readers, free, graph)
    region = Region(nodes, (*outputs, *second.outputs), frozenset(free) - set(nodes))
    found = identify(region)
    return found.reason if isinstance(found, Refusal) else POSSIBLE


def _still_read(
    outputs: Iterable[Node],
    inside: Collection[Node],
    readers: Mapping[Node, Sequence[Node]],
    free: Collection[Node],
    graph: Graph,
) -> list[Node]:
    """The outputs that something outside reads, through what is only followed; they would still be written."""
    results = {node for _, node in graph.outputs}
    kept: list[Node] = []
    for node in outputs:
        stack, seen = [node], set[Node]()
        while stack:
            current = stack.pop()
            if current in results or any(
                u not in inside and u not in free for u in readers[current]
            ):
                kept.append(node)
                break
            seen.add(current)
            stack.extend(u for u in readers[current] if u in free and u not in seen)
    return kept
