"""Plans in which offers take the place of kernels.

In: a plan and offers that do not overlap. Out: a plan whose graph has one foreign node per output of an offer; it
is called between native segments like any operator that runs in Python, and its model says which package runs it.
Invariant: all other kernels stay what they were, in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from fissile.ir.graph import Node, data, make
from fissile.ir.primitive import FOREIGN
from fissile.orchestrate.plan import Anchor, Kernel, Plan, Step, verify
from fissile.provider.offer import Offer, rebuilt

PROVIDER = "fissile.provider"  # the key of a model's metadata


def accept(plan: Plan, offers: Sequence[Offer]) -> Plan:
    """The plan with the offers' models in the place of their kernels. AssertionError where offers overlap."""
    order = {k: n for n, k in enumerate(plan.kernels())}
    taken = [k for offer in offers for k in offer.kernels]
    assert len(set(taken)) == len(taken), "offers overlap"
    made: dict[Node, Node] = {}
    results: dict[Offer, tuple[Node, ...]] = {}
    gone = set(taken)
    for kernel in sorted(order, key=lambda k: order[k]):
        for offer in (o for o in offers if o.kernels[-1] == kernel):
            results[offer] = _foreign(plan, offer, len(results), made)
            made.update(zip(offer.writes, results[offer], strict=True))
        if kernel not in gone:
            for node in kernel.outputs:
                rebuilt(node, made)
    outputs = tuple((name, rebuilt(node, made)) for name, node in plan.graph.outputs)
    origins = {made.get(n, n): names for n, names in plan.graph.origins.items()}
    changed = plan.graph.changed(outputs, made)
    graph = type(changed)(changed.inputs, outputs, origins, changed.guards, changed.late)
    result = Plan(graph, tuple(_steps(plan, offers, results, made, gone)))
    verify(result)
    return result


def _steps(
    plan: Plan,
    offers: Sequence[Offer],
    results: dict[Offer, tuple[Node, ...]],
    made: dict[Node, Node],
    gone: set[Kernel],
) -> list[Step]:
    steps: list[Step] = []
    for at, step in enumerate(plan.steps):
        kept = tuple(_moved(k, made) for k in step.kernels if k not in gone)
        steps += [Step(kept)] if kept else []
        mine = [o for o in offers if o.last == at]
        steps += [Step((_call(results[o]),)) for o in mine]
        behind = tuple(_moved(o.rest, made) for o in mine if o.rest is not None)
        steps += [Step(behind)] if behind else []
    return steps


def _call(nodes: tuple[Node, ...]) -> Kernel:
    return Kernel(Anchor.FOREIGN, nodes, tuple(dict.fromkeys(nodes[0].inputs)), nodes)


def _moved(kernel: Kernel, made: dict[Node, Node]) -> Kernel:
    sets = (kernel.nodes, kernel.inputs, kernel.outputs)
    nodes, inputs, outputs = (tuple(rebuilt(n, made) for n in row) for row in sets)
    return Kernel(kernel.anchor, nodes, inputs, outputs, kernel.piece)


def _foreign(plan: Plan, offer: Offer, number: int, made: dict[Node, Node]) -> tuple[Node, ...]:
    """The foreign nodes that stand for what an offer writes."""
    proto = onnx.load_from_string(offer.model)
    proto.metadata_props.add(key=PROVIDER, value=offer.provider)
    content = data(np.frombuffer(proto.SerializeToString(deterministic=True), np.uint8))
    reads = [rebuilt(n, made) for n in offer.reads]
    served = (o for k in offer.kernels for n in k.nodes for o in plan.graph.origins.get(n, ()))
    key = f"{offer.provider} {number}: {next(iter(served), offer.writes[0].name)}"
    return tuple(
        make(FOREIGN, *reads, model=content, key=key, output=k, dtype=n.dtype.name, shape=n.shape)
        for k, n in enumerate(offer.writes)
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
