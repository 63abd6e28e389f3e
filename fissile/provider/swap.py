"""Plans whose offers have become calls.

In: a plan with kernels that packages run. Out: the same plan, in whose graph a foreign node stands for every output of
such a kernel; it is called between native segments like any operator that runs in Python, and its model says which
package runs it. Invariant: steps and kernels keep their order, and all other kernels compute what they computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx

from fissile.ir.graph import Node, data, make
from fissile.ir.primitive import FOREIGN
from fissile.orchestrate.plan import Anchor, Kernel, Plan, Step, verify
from fissile.provider.offer import arguments, model_of, rebuilt

PROVIDER = "fissile.provider"  # the key of a model's metadata


def accept(plan: Plan) -> Plan:
    """The plan with calls for the kernels that packages run; Refused where there is no model for one."""
    if all(kernel.anchor is not Anchor.PACKAGE for kernel in plan.kernels()):
        return plan
    made: dict[Node, Node] = {}  # what is stored, as it was -> as it is now
    pieces: dict[Node, dict[int, Node]] = {}
    local: dict[int, dict[Node, Node]] = {}  # by kernel: it may compute again what others store
    origins = dict(plan.graph.origins)
    for number, kernel in enumerate(plan.kernels()):
        known = {n: made.get(n, n) for n in kernel.inputs}
        local[number] = known
        if kernel.anchor is Anchor.PACKAGE:
            served = _served(plan, kernel.nodes)
            nodes = _foreign(kernel, number, known, served)
            made.update(zip(kernel.outputs, nodes, strict=True))
            origins.update(dict.fromkeys(nodes, served))
        elif kernel.anchor is Anchor.PIECE:
            (node,) = kernel.nodes
            row = pieces.setdefault(node, {})
            row[kernel.piece] = rebuilt(node.inputs[kernel.piece], known)
            if len(row) == len(node.inputs):
                inputs = [row[k] for k in range(len(row))]
                made[node] = make(node.primitive, *inputs, **dict(node.attrs))
        else:
            made.update((n, rebuilt(n, known)) for n in kernel.outputs)
        for old, new in known.items():
            if old in origins:
                origins.setdefault(new, origins[old])
    outputs = tuple((name, made[node]) for name, node in plan.graph.outputs)
    changed = plan.graph.changed(outputs, made)
    graph = type(changed)(changed.inputs, outputs, origins, changed.guards, changed.late)
    rows = iter(local.values())
    steps = tuple(Step(tuple(_moved(k, next(rows), made) for k in s.kernels)) for s in plan.steps)
    result = Plan(graph, steps)
    verify(result)
    return result


def _moved(kernel: Kernel, known: dict[Node, Node], made: dict[Node, Node]) -> Kernel:
    """The kernel among the nodes of now."""
    outputs = tuple(made[n] for n in kernel.outputs)
    if kernel.anchor is Anchor.PACKAGE:
        inputs = tuple(dict.fromkeys(known[n] for n in arguments(kernel)))
        return Kernel(Anchor.FOREIGN, outputs, inputs, outputs, 0, kernel.provider)
    inputs = tuple(known[n] for n in kernel.inputs)
    nodes = outputs if kernel.anchor is Anchor.PIECE else tuple(rebuilt(n, known) for n in kernel.nodes)
    return Kernel(kernel.anchor, nodes, inputs, outputs, kernel.piece)


def _served(plan: Plan, nodes: Iterable[Node]) -> tuple[str, ...]:
    """The ONNX nodes that primitives come from."""
    return tuple(dict.fromkeys(o for n in nodes for o in plan.graph.origins.get(n, ())))


def _foreign(
    kernel: Kernel, number: int, known: dict[Node, Node], served: tuple[str, ...]
) -> tuple[Node, ...]:
    """The foreign nodes that stand for what a package writes."""
    proto = onnx.load_from_string(model_of(kernel))
    proto.metadata_props.add(key=PROVIDER, value=kernel.provider)
    content = data(np.frombuffer(proto.SerializeToString(deterministic=True), np.uint8))
    reads = [known[n] for n in arguments(kernel)]
    key = f"{kernel.provider} {number}: {(*served, kernel.outputs[0].name)[0]}"
    return tuple(
        make(FOREIGN, *reads, model=content, key=key, output=k, dtype=n.dtype.name, shape=n.shape)
        for k, n in enumerate(kernel.outputs)
    )


def provider_of(model: onnx.ModelProto) -> str:
    """Who runs a foreign model; "" for an operator that runs in Python."""
    return next((p.value for p in model.metadata_props if p.key == PROVIDER), "")


def called(plan: Plan) -> dict[str, Any]:
    """What a manifest says of calls: the operators that run in Python, and what other packages run, by package."""
    keys: dict[str, list[str]] = {"": []}
    for kernel in plan.foreign():
        proto = onnx.load_from_string(kernel.nodes[0].attr("model").array.tobytes())
        keys.setdefault(provider_of(proto), []).append(kernel.nodes[0].attr("key"))
    foreign = keys.pop("")
    return {"foreign": foreign, **({"providers": keys} if keys else {})}
