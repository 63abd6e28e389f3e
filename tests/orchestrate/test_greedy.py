"""Greedy plans of drawn graphs: valid, equal in meaning, and with memory that no living tensor shares."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import HealthCheck, given, settings

from fissile.ir.dim import evaluate as number
from fissile.ir.graph import Node, evaluate
from fissile.orchestrate import plan as plans
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.liveness import Arena, assign, stored_bytes
from fissile.orchestrate.plan import Anchor, Plan
from tests.e2e.draw import Case, cases, feeds_of

drawn = settings(
    max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


@drawn
@given(cases())
def test_a_plan_is_valid_and_means_what_the_graph_means(case: Case) -> None:
    plan = greedy_plan(case.graph)
    plans.verify(plan)
    for values in case.assignments:
        feeds = feeds_of(case, values)
        want, got = evaluate(case.graph, feeds, values), plans.evaluate(plan, feeds, values)
        for name, array in want.items():
            np.testing.assert_array_equal(got[name], array)


@drawn
@given(cases())
def test_kernels_are_convex(case: Case) -> None:
    """No kernel reads what can only be known after one of its own outputs."""
    kernels = greedy_plan(case.graph).kernels()
    writers: dict[Node, set[int]] = {}
    for k, kernel in enumerate(kernels):
        for node in kernel.outputs:
            writers.setdefault(node, set()).add(k)
    before: list[set[int]] = []
    for kernel in kernels:
        direct = set().union(*(writers.get(n, set()) for n in kernel.inputs))
        before.append(direct.union(*(before[k] for k in direct)))
    for k, ancestors in enumerate(before):
        assert k not in ancestors


@drawn
@given(cases())
def test_every_output_is_written_once(case: Case) -> None:
    plan = greedy_plan(case.graph)
    written = [
        n for k in plan.kernels() if k.anchor is not Anchor.PIECE or not k.piece for n in k.outputs
    ]
    assert len(written) == len(set(written))
    assert {n for _, n in plan.graph.outputs} <= set(written)


@drawn
@given(cases())
def test_tensors_that_live_together_lie_apart(case: Case) -> None:
    plan = greedy_plan(case.graph)
    arena = assign(plan)
    lives = _lives(plan)
    for a, b in itertools.combinations(arena.place, 2):
        if arena.place[a] == arena.place[b]:
            (from_a, to_a), (from_b, to_b) = lives[a], lives[b]
            assert to_a < from_b or to_b < from_a
    for values in case.assignments:
        _assert_room(arena, values)


def _lives(plan: Plan) -> dict[Node, tuple[int, int]]:
    """(step that writes it, last step that reads or writes it) of every tensor."""
    found: dict[Node, tuple[int, int]] = {}
    for k, step in enumerate(plan.steps):
        for kernel in step.kernels:
            for node in (*kernel.inputs, *kernel.outputs):
                found[node] = (found.get(node, (k, k))[0], k)
    return found


def _assert_room(arena: Arena, values: dict[str, int]) -> None:
    for node, place in arena.place.items():
        room = max(number(size, values) for size in arena.sizes[place])
        assert number(stored_bytes(node), values) <= room
        assert room % 64 == 0
