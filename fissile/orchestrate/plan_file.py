"""Plan files: the choice of kernels without any timing, so that a build can be repeated to the byte (PRODUCT 5.4).

In: a plan, or the text of a file and the graph it was made for. Out: the text, or the plan. Nodes are numbered in the
order of the packed graph, whose hash is in the file, as is that of the steps. Invariant: a plan read from a file has
passed `verify` and `check_plan`. A plan file is valid for one minor version: the next may make another graph.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from fissile import __version__
from fissile.errors import OptionError
from fissile.ir.graph import Graph, Node
from fissile.orchestrate.formats import own_outputs, pack_operands
from fissile.orchestrate.plan import Anchor, Kernel, Plan, Step, verify
from fissile.orchestrate.plan_check import check_plan

FORMAT = 2
_VALID = "a plan file is valid for one minor version"


def plan_text(plan: Plan) -> str:
    """The plan as text. ValueError for a plan whose kernels compute what its graph does not have."""
    numbers = {node: k for k, node in enumerate(plan.graph.nodes())}
    try:
        steps = [[_kernel_row(k, numbers) for k in step.kernels] for step in plan.steps]
    except KeyError as error:
        raise ValueError(f"{error.args[0]} is no node of the plan's graph") from error
    rows = ",\n".join(map(_row_text, steps))
    head = f'"fissile_plan":{FORMAT},\n"version":"{_minor()}",\n"graph":"{graph_hash(plan.graph)}"'
    return f'{{{head},\n"sha256":"{steps_hash(steps)}",\n"steps":[\n{rows}\n]}}\n'


def read_plan(text: str, graph: Graph) -> Plan:
    """The plan that `text` describes for a canonical graph. OptionError F612 when it is of something else."""
    packed = own_outputs(pack_operands(graph))
    try:
        document = json.loads(text)
        found, steps = document["fissile_plan"], document["steps"]
        graph_given, steps_given = document["graph"], document.get("sha256")
        version = document.get("version", _minor())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _refused("it is no plan file") from error
    if found != FORMAT:
        raise _refused(f"it has format {found!r}; this version reads {FORMAT}; {_VALID}")
    if version != _minor():
        raise _refused(f"it was made by fissile {version}, this is {_minor()}; {_VALID}")
    if graph_given != graph_hash(packed):
        raise _refused(
            f"it was made for another model, other options or shapes, or another version; {_VALID}"
        )
    if not isinstance(steps, list) or steps_given != steps_hash(steps):
        raise _refused("it is damaged: its steps are not those that were written")
    nodes = packed.nodes()
    try:
        plan = Plan(packed, tuple(Step(tuple(_kernel(k, nodes) for k in step)) for step in steps))
        verify(plan)
        check_plan(plan)
    except (ValueError, LookupError, TypeError, AssertionError, AttributeError, ArithmeticError,
            RuntimeError) as error:  # fmt: skip
        raise _refused(f"it is damaged: {error}") from error
    return plan


def _minor() -> str:
    """The version without its last number."""
    return __version__.rpartition(".")[0]


def steps_hash(steps: Sequence[Any]) -> str:
    """A hash of the steps of a plan file."""
    return hashlib.sha256("\n".join(map(_row_text, steps)).encode()).hexdigest()


def _row_text(step: Any) -> str:
    return json.dumps(step, separators=(",", ":"))


def graph_hash(graph: Graph) -> str:
    """A hash of everything a graph computes."""
    numbers: dict[Node, int] = {}
    digest = hashlib.sha256()
    for k, node in enumerate(graph.nodes()):
        numbers[node] = k
        sources = [numbers[source] for source in node.inputs]
        digest.update(f"{node.name} {node.type} {node.type.format} {sources} ".encode())
        digest.update(f"{_attributes(node)}\n".encode())
    outputs = [(name, numbers[node]) for name, node in graph.outputs]
    digest.update(repr(outputs).encode())
    return digest.hexdigest()


def _attributes(node: Node) -> str:
    def said(value: Any) -> str:
        inner = ", ".join(map(said, value)) if isinstance(value, tuple) else str(value)
        return f"({inner})" if isinstance(value, tuple) else getattr(value, "digest", inner)

    return " ".join(f"{key}={said(value)}" for key, value in node.attrs)


def _kernel_row(kernel: Kernel, numbers: dict[Node, int]) -> list[Any]:
    sets = (kernel.nodes, kernel.inputs, kernel.outputs)
    row: list[Any] = [kernel.anchor.value, *([numbers[n] for n in nodes] for nodes in sets)]
    return [*row, kernel.piece]


def _kernel(row: Sequence[Any], nodes: Sequence[Node]) -> Kernel:
    anchor, *sets, piece = row
    numbers = [piece, *(k for listed in sets for k in listed)]
    if not all(type(k) is int and 0 <= k < len(nodes) for k in numbers):
        raise ValueError("a number that is none of a primitive")
    members, inputs, outputs = (tuple(nodes[k] for k in listed) for listed in sets)
    return Kernel(Anchor(anchor), members, inputs, outputs, piece)


def _refused(reason: str) -> OptionError:
    return OptionError(
        "F612",
        "the plan file does not fit",
        reason=reason,
        remedy="make it again: fissile compile MODEL --save-plan FILE",
    )
