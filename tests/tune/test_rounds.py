"""Rounds of lazy profiling: the optimum of measuring everything, and a plan that runs wherever they stop."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fissile.orchestrate.orchestrate import plan_of, problem_of
from fissile.orchestrate.plan import Kernel, verify
from fissile.orchestrate.program import Problem, solve
from fissile.tune.rounds import (
    Prior,
    Profiling,
    Round,
    admissible_gap,
    begin,
    certificate,
    profile,
    remember,
    settle,
)
from tests.e2e.draw import Case, cases
from tests.orchestrate.test_candidates import constant_table, found_in

drawn = settings(
    max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


class Stop(Exception):
    pass


@drawn
@given(cases())
def test_rounds_reach_the_optimum_of_measuring_everything(case: Case) -> None:
    found = found_in(case.graph)
    rng = random.Random(case.seed)
    truth = constant_table(found, rng)
    bounds = {kernel: seconds * rng.uniform(0.3, 1.0) for kernel, seconds in truth.items()}
    state = begin(found, lambda kernel: bounds[kernel])

    def measure(kernels: Sequence[Kernel], times: int) -> list[float]:
        return [truth[kernel] for kernel in kernels]

    rounds = list(profile(state, measure))
    everything = solve(problem_of(found, [truth[c.kernel] for c in found.all]))
    proved = certificate(state)
    assert state.is_complete
    assert proved.predicted_seconds == pytest.approx(everything.cost, rel=1e-6)
    assert proved.noise == proved.violations == 0
    assert rounds[-1].plan_seconds == pytest.approx(proved.predicted_seconds)
    assert all(r.plan_seconds >= r.bound_seconds * (1 - 1e-6) for r in rounds)
    verify(plan_of(found, settle(state)))


@drawn
@given(cases())
def test_what_is_remembered_is_not_measured_again(case: Case) -> None:
    found = found_in(case.graph)
    truth = constant_table(found, random.Random(case.seed))
    asked: set[Kernel] = set()

    def measure(kernels: Sequence[Kernel], times: int) -> list[float]:
        asked.update(kernels)
        return [truth[kernel] for kernel in kernels]

    def run(known: set[Kernel]) -> float:
        state = begin(found, lambda kernel: 0.5 * truth[kernel])
        remember(state, lambda kernels: [truth[k] if k in known else None for k in kernels])
        list(profile(state, measure))
        return certificate(state).predicted_seconds

    first = run(set())
    known = {*asked}
    asked.clear()
    assert run(known) == pytest.approx(first, rel=1e-9)
    assert asked <= known


@drawn
@given(cases())
def test_whenever_rounds_stop_there_is_a_measured_plan(case: Case) -> None:
    found = found_in(case.graph)
    rng = random.Random(case.seed)
    truth = constant_table(found, rng)
    left = rng.randint(0, 2 * len(truth))

    def measure(kernels: Sequence[Kernel], times: int) -> list[float]:
        nonlocal left
        left -= len(kernels)
        if left < 0:
            raise Stop
        return [truth[kernel] for kernel in kernels]

    state = begin(found, lambda kernel: 0.5 * truth[kernel])
    seen: list[Round] = []
    try:
        seen.extend(profile(state, measure))
    except Stop:
        assert not state.is_complete
    selected = settle(state)
    verify(plan_of(found, selected))
    if state.rounds:
        assert all(state.keys[k] in state.known for k in selected)
        greedy = sum(truth[found.all[k].kernel] for k in found.greedy)
        assert sum(truth[found.all[k].kernel] for k in selected) <= greedy * (1 + 1e-9)


@drawn
@given(cases())
def test_what_cannot_run_is_not_selected_where_something_else_can(case: Case) -> None:
    found = found_in(case.graph)
    rng = random.Random(case.seed)
    truth = constant_table(found, rng)
    greedy = {found.all[k].kernel for k in found.greedy}
    broken = {k for k in truth if k not in greedy and rng.random() < 0.5}

    def measure(kernels: Sequence[Kernel], times: int) -> list[float]:
        return [math.inf if kernel in broken else truth[kernel] for kernel in kernels]

    state = begin(found, lambda kernel: 0.9 * truth[kernel])
    list(profile(state, measure))
    assert not broken & {found.all[k].kernel for k in settle(state)}


@drawn
@given(cases())
def test_a_measurement_below_its_bound_lowers_the_bounds(case: Case) -> None:
    found = found_in(case.graph)
    truth = constant_table(found, random.Random(case.seed))
    state = begin(found, lambda kernel: 3 * truth[kernel])
    list(profile(state, lambda kernels, times: [truth[kernel] for kernel in kernels]))
    proved = certificate(state)
    everything = solve(problem_of(found, [truth[c.kernel] for c in found.all]))
    assert proved.violations >= 1
    assert proved.predicted_seconds == pytest.approx(everything.cost, rel=1e-6)


@drawn
@given(cases(), st.sampled_from([0.0, 0.01]))
def test_guesses_that_are_right_within_a_family_save_measurements(case: Case, enough: float) -> None:
    found = found_in(case.graph)
    rng = random.Random(case.seed)
    truth = constant_table(found, rng)
    wrong = {kernel.anchor: rng.uniform(0.3, 3.0) for kernel in truth}
    prior = Prior(lambda k: truth[k] * wrong[k.anchor], lambda k: k.anchor, enough)

    def run(prior: Prior | None) -> tuple[int, float]:
        state = begin(found, lambda k: 0.2 * truth[k], prior=prior)
        list(profile(state, lambda kernels, times: [truth[kernel] for kernel in kernels]))
        verify(plan_of(found, settle(state)))
        proved = certificate(state)
        assert proved.gap <= enough + 1e-9
        assert proved.gap <= admissible_gap(state) + 1e-9
        return proved.measured, proved.predicted_seconds

    (few, predicted), (many, least) = run(prior), run(None)
    assert least * (1 - 1e-9) <= predicted <= least * (1 + enough + 1e-9)
    assert few <= many + len(wrong)


def test_a_kernel_is_judged_by_those_most_like_it() -> None:
    """One family, small kernels far below their guesses and large ones not: what is large does not seem to win."""
    sizes = np.array([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 100.0, 110.0, 120.0, 130.0, 140.0, 150.0])
    guesses = sizes * 1e-6
    nothing: Any = SimpleNamespace(all=())
    state = Profiling(
        nothing, np.arange(12), guesses / 10, Problem((), (), ()), [], [],
        lambda kernel, seconds: lambda other: 0.0,
        guesses=guesses, families=np.zeros(12, np.int64), first_bounds=guesses / 10,
        members=(np.arange(12),),
    )  # fmt: skip
    assert state.costs() == pytest.approx(guesses / 10)
    for k in (0, 1, 2, 3, 6, 7, 8, 9):
        state.known[k] = guesses[k] * (0.2 if k < 6 else 0.9)
    expected = state.costs() / guesses
    assert expected[[4, 5]] == pytest.approx(0.2 * (1 - 0.15 / 8))
    assert expected[[10, 11]] == pytest.approx(0.9 * (1 - 0.15 / 8))
    assert state.costs(admissible=True)[[4, 5, 10, 11]] == pytest.approx(guesses[[4, 5, 10, 11]] / 10)
