"""Orchestrated plans of drawn graphs: valid, equal in meaning, and as cheap as any selection."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from fissile.ir.graph import Graph, Node, evaluate
from fissile.orchestrate import plan as plans
from fissile.orchestrate.bound import prices
from fissile.orchestrate.candidates import Limits, candidates_of
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.nominal import nominal
from fissile.orchestrate.orchestrate import (
    choose,
    orchestrate,
    plan_of,
    problem_of,
)
from fissile.orchestrate.plan import Kernel
from fissile.orchestrate.plan_file import plan_text
from fissile.orchestrate.program import solve
from fissile.orchestrate.reduce import undominated_choices
from fissile.target import named
from tests.e2e.draw import Case, cases, feeds_of
from tests.orchestrate.test_candidates import constant_table, found_in, leaf, op

drawn = settings(
    max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
LIMITS = Limits(per_sink=12, largest=8)


@drawn
@given(cases())
def test_a_plan_under_any_costs_means_what_the_graph_means(case: Case) -> None:
    """Costs by chance select candidates of all kinds."""
    found = found_in(case.graph)
    table = constant_table(found, random.Random(case.seed))
    problem = problem_of(found, [table[c.kernel] for c in found.all])
    plan = plan_of(found, choose(problem, found.greedy))
    for values in case.assignments:
        feeds = feeds_of(case, values)
        with np.errstate(all="ignore"):
            want, got = evaluate(case.graph, feeds, values), plans.evaluate(plan, feeds, values)
        for name, array in want.items():
            np.testing.assert_array_equal(got[name], array)


@drawn
@given(cases())
def test_no_plan_is_dearer_than_the_greedy_one(case: Case) -> None:
    def price(kernel: Kernel) -> tuple[float, float]:
        return 0.5, 1.0 + 0.1 * len(kernel.inputs)

    plan, certificate = orchestrate(case.graph, price, LIMITS)
    plans.verify(plan)
    greedy = sum(price(k)[1] for k in greedy_plan(case.graph).kernels())
    assert certificate.predicted_seconds <= greedy * (1 + 1e-9)
    assert certificate.lower_bound_seconds <= certificate.predicted_seconds * (1 + 1e-9)


@drawn
@given(cases())
def test_the_choice_is_the_optimum_but_for_what_guesses_do_not_tell_apart(case: Case) -> None:
    found = found_in(case.graph)
    table = constant_table(found, random.Random(case.seed))
    problem = problem_of(found, [table[c.kernel] for c in found.all])
    chosen = choose(problem, found.greedy)
    best = solve(problem).cost
    assert best * (1 - 1e-9) <= sum(problem.choices[k].cost for k in chosen) <= best * (1 + 2e-4)


@drawn
@given(cases())
def test_what_is_dominated_is_in_no_cheaper_plan(case: Case) -> None:
    found = found_in(case.graph)
    rng = random.Random(case.seed)
    problem = problem_of(found, [float(rng.randint(1, 3)) for _ in found.all])
    kept = undominated_choices(problem)
    part = replace(problem, choices=tuple(problem.choices[k] for k in kept))
    assert solve(part).cost == pytest.approx(solve(problem).cost, rel=1e-9)


def test_equal_graphs_have_equal_plans() -> None:
    machine = nominal(named("x86-64-v3"), 2)
    made = [orchestrate(chain(12), lambda k: prices(k, machine)) for _ in range(2)]
    assert plan_text(made[0][0]) == plan_text(made[1][0])
    assert made[0][1] == made[1][1]


def test_the_certificate_says_that_nothing_is_measured() -> None:
    machine = nominal(named("x86-64-v3"), 1)
    plan, proof = orchestrate(chain(12), lambda k: prices(k, machine))
    assert proof.measured == 0
    assert proof.kernels == len(plan.kernels())
    assert proof.predicted_seconds == pytest.approx(sum(prices(k, machine)[1] for k in plan.kernels()))
    assert proof.gap == pytest.approx(proof.predicted_seconds / proof.lower_bound_seconds - 1)


def test_a_tensor_with_two_writers_is_written_by_the_first() -> None:
    x = leaf("x", 4, 6)
    e = op("exp", x)
    graph = Graph(
        (x,), (("a", op("reduce_sum", e, axes=(1,))), ("b", op("reduce_max", e, axes=(1,))))
    )
    found = candidates_of(greedy_plan(graph), Limits())
    both = [k for k, c in enumerate(found.all) if e in c.kernel.outputs and len(c.writes) == 2]
    plan = plan_of(found, both[:2])
    writers = [k for k in plan.kernels() if e in k.outputs]
    assert len(both) >= 2
    assert len(writers) == 1


def chain(length: int) -> Graph:
    """Reductions and what they are subtracted from, one after the other."""
    x = leaf("x", 4, 6)
    node: Node = x
    for k in range(length):
        row = op("reduce_max" if k % 2 else "reduce_sum", node, axes=(1,))
        wide = op("broadcast", op("reshape", row, shape=(4, 1)), shape=(4, 6))
        node = op("exp" if k % 3 else "abs", op("sub", node, wide))
    return Graph((x,), (("y", node),))
