"""Kernel orchestration: the cheapest plan of a primitive graph, with a certificate (Korch section 5, DESIGN 3.4).

In: a graph, and what kernels cost: at least, and probably. Out: a `Plan`, the cheapest of all selections of candidate
kernels under the probable costs, and a `Certificate`. Nothing is measured here; `fissile.tune.rounds` exchanges costs
for measurements and solves the same program again. Invariant: never dearer than the greedy plan under the same costs;
deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fissile.ir.graph import Graph
from fissile.orchestrate.candidates import Candidates, Limits, candidates_of
from fissile.orchestrate.greedy import greedy_plan, steps_of
from fissile.orchestrate.partition import Sizes, improve
from fissile.orchestrate.plan import Kernel, Plan, verify
from fissile.orchestrate.program import Choice, Problem, Tensor, relax
from fissile.orchestrate.reduce import part, reduced, solve_near, undominated_choices

Price = Callable[[Kernel], tuple[float, float]]  # seconds at least, and seconds probably
QUICK = Limits(per_sink=8, largest=16)  # guesses do not tell more candidates apart
_DOUBT = 1.05  # what kernels that no plan has been made of yet must promise: guesses err by more than that
_LARGE = 20_000  # choices from which the program is solved in windows
_CLOSE = 1e-4  # relative, of the bound: guesses are not that exact
_NODES = 50  # of the solver's search tree
_FOREVER = float("inf")  # a limit of time would make the plan depend on the machine


@dataclass(frozen=True)
class Certificate:
    """What is known about a plan (DESIGN 4). Seconds; gaps are (plan - bound) / bound.

    candidates, measured: kernels considered, and distinct ones measured. lower_bound_seconds: no selection of the
    candidates costs less than this at the costs known now; where nothing is measured, at the least costs. gap refers to
    it, window_gap to what windows solved to the optimum select (None where none was asked), roofline_gap to the bounds
    before anything was measured. noise: largest change when kernels were timed again.
    """

    candidates: int
    measured: int
    rounds: int
    lower_bound_seconds: float
    predicted_seconds: float
    gap: float
    window_gap: float | None
    roofline_gap: float
    noise: float
    violations: int
    kernels: int


def orchestrate(
    graph: Graph, price: Price, limits: Limits = QUICK
) -> tuple[Plan, Certificate]:
    """The plan of a canonical graph that is probably the cheapest, and what is proved about it."""
    found = candidates_of(greedy_plan(graph), limits)
    prices = np.array([price(c.kernel) for c in found.all]).reshape(-1, 2)
    doubted = prices[:, 1] * _DOUBT
    doubted[[*found.greedy]] /= _DOUBT
    selected = choose(problem_of(found, doubted.tolist()), found.greedy)
    bounds = problem_of(found, prices[:, 0].tolist())
    least = relax(part(bounds, undominated_choices(bounds))).objective
    predicted = float(prices[list(selected), 1].sum())
    gap = predicted / least - 1 if least > 0 else 0.0
    proof = Certificate(
        len(found.all), 0, 1, least, predicted, gap, None, gap, 0.0, 0, len(selected)
    )
    return plan_of(found, selected), proof


def choose(problem: Problem, start: Sequence[int]) -> list[int]:
    """A cheapest selection, in an order that runs. start: one that runs."""
    if not problem.needed:
        return []
    if len(problem.choices) > _LARGE:
        return [*improve(problem, start, sizes=Sizes(whole=0.0)).selected]
    known = reduced(problem, start)
    if known.cost <= known.relaxed.objective * (1 + _CLOSE):
        return known.original(known.best)
    found = solve_near(known, time_limit=_FOREVER, gap=_CLOSE, nodes=_NODES)
    return known.original(found.selected)


def problem_of(found: Candidates, costs: Sequence[float]) -> Problem:
    """The program of all candidates at these costs."""
    units = found.units
    forms: list[Tensor] = [(u, unit.value.type.format) for u, unit in enumerate(units.all)]
    choices = tuple(
        Choice(
            tuple(forms[u] for u in c.reads), tuple(forms[u] for u in c.writes), c.executes, cost
        )
        for c, cost in zip(found.all, costs, strict=True)
    )
    edges = tuple((p, c) for c, sources in enumerate(units.reads) for p in sources)
    return Problem(choices, tuple(forms[u] for u in units.needed), edges)


def plan_of(found: Candidates, selected: Sequence[int]) -> Plan:
    """The plan of a selection that runs, its kernels in steps. A tensor is written by its first writer alone."""
    written: set[int] = set()
    kernels: list[Kernel] = []
    for number in selected:
        candidate = found.all[number]
        again = {found.units.all[u].value for u in candidate.writes if u in written}
        outputs = tuple(n for n in candidate.kernel.outputs if n not in again)
        written.update(candidate.writes)
        kernel = replace(candidate.kernel, outputs=outputs) if again else candidate.kernel
        kernels.append(kernel)
    graph = found.units.graph
    plan = Plan(graph, steps_of(kernels, graph.late))
    verify(plan)
    return plan
