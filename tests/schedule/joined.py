"""Kernels that stand for several of the greedy plan: the plan with them, and that they mean the same to the bit."""

from __future__ import annotations

import numpy as np

from fissile import pipeline
from fissile.ir.graph import Graph, bind, evaluate
from fissile.options import Options
from fissile.orchestrate.greedy import greedy_plan, steps_of
from fissile.orchestrate.plan import Kernel, Plan, verify
from fissile.target import named
from tests.e2e import machine
from tests.e2e.agree import interpreted
from tests.e2e.draw import values_of


def with_one(plan: Plan, found: Kernel, count: int) -> Plan:
    """The plan with `found` in place of the `count` kernels whose nodes it has."""
    inside = set(found.nodes)
    rest = [k for k in plan.kernels() if not inside.intersection(k.nodes)]
    assert len(plan.kernels()) - len(rest) == count
    result = Plan(plan.graph, steps_of([*rest, found], {}))
    verify(result)
    return result


def work_of(graph: Graph, plan: Plan, target: str) -> pipeline.Work:
    """The plan as LLVM text."""
    work = pipeline.Work(b"", None, (named(target),), 1, Options(), graph=graph, plan_given=plan)
    for stage in (pipeline.plan_kernels, pipeline.lower_kernels, pipeline.emit_text):
        work = stage(work)
    return work


def agrees(
    graph: Graph, plan: Plan, target: str, *, loops: bool = True, same: bool = True, **symbols: int
) -> None:
    """The loop program means what the graph means, and so does the machine, with the same bits for any threads.

    same: those are the bits of the kernels by themselves.
    """
    rng = np.random.default_rng(7)
    feeds = {
        n.attr("name"): values_of(rng, n.dtype, bind(n.shape, symbols), "real")
        for n in graph.inputs
    }
    want = evaluate(graph, feeds, symbols)["y0"]
    near = 1e-5 * float(np.max(np.abs(want), initial=1))
    work = work_of(graph, plan, target)
    if loops:
        np.testing.assert_allclose(interpreted(work, feeds, symbols)["y0"], want, 1e-4, near)
    built = machine.build(work)
    apart = machine.build(work_of(graph, greedy_plan(graph), target)) if same else built
    single = machine.run(apart, symbols, feeds, 1, lead=False)["y0"]
    for threads in (1, 2, 3):
        run = machine.run(built, symbols, feeds, threads, lead=threads == 2)["y0"]
        assert run.tobytes() == single.tobytes()
        np.testing.assert_allclose(run, want, 1e-4, near)
