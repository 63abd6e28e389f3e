"""Orchestrated plans of drawn graphs: valid, equal in meaning, and as cheap as measuring everything makes them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from fissile.ir.graph import Graph, Node, evaluate
from fissile.orchestrate import plan as plans
from fissile.orchestrate.bound import family
from fissile.orchestrate.candidates import Limits, candidates_of
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.orchestrate import (
    Effort,
    near,
    orchestrate,
    plan_of,
    problem_of,
    select,
)
from fissile.orchestrate.plan import Kernel
from fissile.orchestrate.program import solve
from tests.e2e.draw import Case, cases, feeds_of
from tests.orchestrate.test_candidates import constant_table, found_in, leaf, op

drawn = settings(
    max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
EFFORT = Effort(limits=Limits(per_sink=12, largest=8))


@drawn
@given(cases())
def test_a_plan_under_any_costs_means_what_the_graph_means(case: Case) -> None:
    """Costs by chance select candidates of all kinds."""
    found = found_in(case.graph)
    table = constant_table(found, random.Random(case.seed))
    selected, certificate = select(found, lambda kernel: table[kernel])
    plan = plan_of(found, selected)
    assert certificate.kernels == len(selected)
    for values in case.assignments:
        feeds = feeds_of(case, values)
        with np.errstate(all="ignore"):
            want, got = evaluate(case.graph, feeds, values), plans.evaluate(plan, feeds, values)
        for name, array in want.items():
            np.testing.assert_array_equal(got[name], array)


@drawn
@given(cases())
def test_no_plan_is_dearer_than_the_greedy_one(case: Case) -> None:
    def cost(kernel: Kernel) -> float:
        return 1.0 + 0.1 * len(kernel.inputs)

    plan, certificate = orchestrate(case.graph, cost, effort=EFFORT)
    plans.verify(plan)
    greedy = sum(cost(k) for k in greedy_plan(case.graph).kernels())
    assert certificate.predicted_seconds <= greedy * (1 + 1e-9)
    assert certificate.lower_bound_seconds <= certificate.predicted_seconds * (1 + 1e-9)


@settings(drawn, max_examples=25)
@given(cases())
def test_lazy_profiling_reaches_the_optimum_of_measuring_everything(case: Case) -> None:
    found = found_in(case.graph)
    rng = random.Random(case.seed)
    truth = constant_table(found, rng)
    bounds = {kernel: seconds * rng.uniform(0.3, 1.0) for kernel, seconds in truth.items()}
    asked: list[Kernel] = []

    def measure(kernel: Kernel, effort: int) -> float:
        asked.append(kernel)
        return truth[kernel]

    _, certificate = select(found, lambda kernel: bounds[kernel], measure)
    everything = solve(problem_of(found, [truth[c.kernel] for c in found.all]))
    assert certificate.predicted_seconds == pytest.approx(everything.cost, rel=1e-6)
    assert certificate.violations == 0
    assert certificate.measured == len(set(asked))
    assert certificate.noise == 0


@settings(drawn, max_examples=25)
@given(cases())
def test_families_that_share_an_efficiency_need_fewer_measurements(case: Case) -> None:
    found = found_in(case.graph)
    bounds = constant_table(found, random.Random(case.seed))
    share: dict[object, float] = {}
    rng = random.Random(case.seed + 1)
    truth = {k: s / share.setdefault(family(k), rng.uniform(0.3, 1)) for k, s in bounds.items()}
    everything = solve(problem_of(found, [truth[c.kernel] for c in found.all]))
    counts = []
    for known in (family, lambda kernel: None):
        selected, certificate = select(
            found, lambda k: bounds[k], lambda k, effort: truth[k], family=known
        )
        counts.append(certificate.measured)
        assert certificate.predicted_seconds == pytest.approx(everything.cost, rel=1e-6)
    assert counts[0] <= counts[1] + 2


@settings(drawn, max_examples=15)
@given(cases())
def test_what_lies_near_the_guess_holds_the_best_guess(case: Case) -> None:
    found = found_in(case.graph)
    guess = constant_table(found, random.Random(case.seed))
    some = near(found, lambda k: guess[k], 0.0)
    assert set(some.all) <= set(found.all)
    _, best = select(found, lambda k: guess[k])
    _, same = select(near(found, lambda k: guess[k]), lambda k: guess[k])
    assert same.predicted_seconds == pytest.approx(best.predicted_seconds, rel=0.1)


def test_a_measurement_below_its_bound_raises_the_peak() -> None:
    found = found_in(chain(12))
    truth = constant_table(found, random.Random(1))
    wrong = {kernel: seconds * 3 for kernel, seconds in truth.items()}
    selected, certificate = select(found, lambda k: wrong[k], lambda kernel, effort: truth[kernel])
    everything = solve(problem_of(found, [truth[c.kernel] for c in found.all]))
    assert certificate.violations > 0
    assert sum(truth[found.all[k].kernel] for k in selected) == pytest.approx(everything.cost)


def test_kernels_of_one_form_are_measured_once() -> None:
    found = found_in(chain(12))
    asked: list[Kernel] = []

    def measure(kernel: Kernel, effort: int) -> float:
        asked.append(kernel)
        return float(len(kernel.inputs))

    select(found, lambda k: 0.5, measure, same=lambda k: len(k.inputs))
    assert len(asked) <= 2 * len({len(c.kernel.inputs) for c in found.all})


def test_time_is_kept() -> None:
    found = found_in(chain(12))
    effort = Effort(seconds=0.0)
    selected, certificate = select(found, lambda k: 1.0, lambda k, e: 1.0, effort=effort)
    assert certificate.measured == 0
    plans.verify(plan_of(found, selected))


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
