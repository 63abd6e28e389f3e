"""Kernel orchestration: the cheapest plan of a primitive graph, with a certificate (Korch section 5, DESIGN 3.4).

In: a graph, and what kernels cost: a lower bound for any, a measurement for those that are asked for. Out: a `Plan` and
a `Certificate`. Profiling is lazy: an unmeasured candidate enters the program with its bound, what is selected is
measured, and the program solved again, until all that is selected is measured; so the result is that of measuring
everything. Without `measure` the plan is the cheapest under the given costs. Invariant: never dearer than the greedy
plan under the same costs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fissile.ir.graph import Graph, Node
from fissile.orchestrate.candidates import Candidate, Candidates, Limits, candidates_of
from fissile.orchestrate.greedy import greedy_plan, steps_of
from fissile.orchestrate.partition import Memory, Partition, Sizes, improve
from fissile.orchestrate.plan import Kernel, Plan, verify
from fissile.orchestrate.program import Choice, Problem, Tensor, relax, run_order

Cost = Callable[[Kernel], float]
Measure = Callable[
    [Kernel, int], float
]  # a kernel and the effort (1, or 4 for what matters) -> seconds
_NEAR = 0.03  # reduced cost, as a share of a kernel's own, that the noise of a measurement may hide
_MARGIN = 1.05  # how far above the highest peak seen the peak is taken to be


@dataclass(frozen=True)
class Certificate:
    """What is known about a plan (DESIGN 4). Seconds; gaps are (plan - bound) / bound.

    candidates, measured: kernels considered, and distinct ones measured. lower_bound_seconds: no selection of the
    candidates costs less than this at the costs known now. gap refers to it, window_gap to the worst window alone,
    roofline_gap to the bounds before anything was measured. noise: largest change when kernels were timed again.
    """

    candidates: int
    measured: int
    rounds: int
    lower_bound_seconds: float
    predicted_seconds: float
    gap: float
    window_gap: float
    roofline_gap: float
    noise: float
    violations: int
    kernels: int


@dataclass(frozen=True)
class Effort:
    """How far orchestration goes. seconds: after which it stops with what it has; rounds: of lazy profiling."""

    limits: Limits = field(default_factory=Limits)
    sizes: Sizes = field(default_factory=Sizes)
    rounds: int = 100
    relaxed_rounds: int = 20
    seconds: float = math.inf


def orchestrate(
    graph: Graph,
    bound: Cost,
    measure: Measure | None = None,
    *,
    same: Callable[[Kernel], Hashable] = lambda kernel: kernel,
    family: Callable[[Kernel], Hashable] = lambda kernel: None,
    effort: Effort | None = None,
) -> tuple[Plan, Certificate]:
    """The cheapest plan of a canonical graph and what is proved about it.

    bound: seconds a kernel takes at least (without `measure`: that it is taken to take). same: kernels with equal
    keys cost the same and are measured once. family: kernels that share an efficiency (`fissile.orchestrate.bound`):
    the best that one of them has reached, with a margin, bounds the others; then far fewer are measured, and the gap
    holds as far as that is so.
    """
    found = candidates_of(greedy_plan(graph), (effort or Effort()).limits)
    selected, certificate = select(found, bound, measure, same=same, family=family, effort=effort)
    return plan_of(found, selected), certificate


def select(
    found: Candidates,
    bound: Cost,
    measure: Measure | None = None,
    *,
    same: Callable[[Kernel], Hashable] = lambda kernel: kernel,
    family: Callable[[Kernel], Hashable] = lambda kernel: None,
    effort: Effort | None = None,
) -> tuple[tuple[int, ...], Certificate]:
    """The cheapest selection of candidates, by number and in an order that runs."""
    kernels = [c.kernel for c in found.all]
    prices = _Prices(
        kernels, bound, measure, [same(k) for k in kernels], [family(k) for k in kernels]
    )
    return _Search(found, prices, effort or Effort()).run()


def near(found: Candidates, guess: Cost, share: float = 0.1) -> Candidates:
    """The candidates that may be worth measuring: those whose guess lies near what the best guessed plan pays.

    Kept is whose reduced cost in the relaxation under the guesses is at most `share` of its own, and the greedy plan.
    What is proved later holds among these.
    """
    problem = problem_of(found, [guess(c.kernel) for c in found.all])
    reduced = relax(problem).reduced
    costs = np.array([c.cost for c in problem.choices])
    kept = sorted({*found.greedy, *np.flatnonzero(reduced <= share * costs).tolist()})
    number = {k: n for n, k in enumerate(kept)}
    rows = tuple(found.all[k] for k in kept)
    return replace(found, all=rows, greedy=tuple(number[k] for k in found.greedy))


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
    givers: dict[int, set[Node]] = {}
    for number in selected:
        candidate = found.all[number]
        again = {found.units.all[u].value for u in candidate.writes if u in written}
        outputs = tuple(n for n in candidate.kernel.outputs if n not in again)
        written.update(candidate.writes)
        kernel = replace(candidate.kernel, outputs=outputs) if again else candidate.kernel
        kernels.append(kernel)
        givers[id(kernel)] = _givers(found, candidate)
    plan = Plan(found.units.graph, steps_of(kernels, lambda kernel: givers[id(kernel)]))
    verify(plan)
    return plan


def _givers(found: Candidates, candidate: Candidate) -> set[Node]:
    values = (found.units.all[u].value for u in candidate.reads)
    return {n for n in values if n.name == "foreign" and n not in candidate.kernel.inputs}


class _Prices:
    """What candidates cost by now: measured, or bound from below."""

    def __init__(
        self,
        kernels: list[Kernel],
        bound: Cost,
        measure: Measure | None,
        keys: list[Hashable],
        families: list[Hashable],
    ) -> None:
        self.kernels, self.measure, self.keys, self.families = kernels, measure, keys, families
        self.reached: dict[Hashable, float] = {}  # by family: the least of measured / bound
        bounds: dict[Hashable, float] = {}
        for kernel, key in zip(self.kernels, keys):
            if key not in bounds:
                bounds[key] = bound(kernel)
        self.bounds = np.array([bounds[key] for key in keys])
        self.known: dict[Hashable, float] = {}
        self.scale = 1.0  # of the bounds, below 1 once a measurement was below its bound
        self.violations = 0
        self.noise = 0.0

    def costs(self) -> list[float]:
        """The cost of every candidate."""
        rows = zip(self.keys, self.bounds, self.families, strict=True)
        return [self.known.get(key, float(low) * self._factor(family)) for key, low, family in rows]

    def _factor(self, family: Hashable) -> float:
        """What the bounds of a family are multiplied with."""
        return max(self.scale, self.reached.get(family, 0.0) / _MARGIN)

    def is_known(self, number: int) -> bool:
        """Whether the candidate has been measured, or never will be."""
        return self.measure is None or self.keys[number] in self.known

    def time(self, number: int, effort: int = 1) -> None:
        """Measure a candidate."""
        if self.measure is None:
            return
        key = self.keys[number]
        seconds = self.measure(self.kernels[number], effort)
        if key in self.known:
            self.noise = max(self.noise, abs(seconds / self.known[key] - 1))
        self.known[key] = seconds
        family, low = self.families[number], float(self.bounds[number])
        if family is not None:
            self.reached[family] = min(self.reached.get(family, math.inf), seconds / low)
        if seconds < low * self.scale:
            self.violations += 1
            self.scale = seconds / (low * _MARGIN)


class _Search:
    """One run of lazy profiling."""

    def __init__(self, found: Candidates, prices: _Prices, effort: Effort) -> None:
        self.found, self.prices, self.effort = found, prices, effort
        self.began = time.perf_counter()
        self.rounds = 0
        self.memory = Memory()
        base = problem_of(found, prices.costs())
        self.base = base
        self.selected, _ = run_order(base, found.greedy)

    def run(self) -> tuple[tuple[int, ...], Certificate]:
        """Price with the relaxation, then with windows, until all that is selected is measured; time it again."""
        first = relax(self.base).objective
        for number in self.selected:
            self._time([number])
        self._relaxed()
        part = self._integer()
        if self.prices.measure is not None and not self._late():
            self._again()
            part = self._integer()
        lower = max(part.bound, relax(self._problem()).objective)
        return part.selected, self._certificate(part, min(lower, part.cost), first)

    def _problem(self) -> Problem:
        rows = zip(self.base.choices, self.prices.costs(), strict=True)
        return replace(self.base, choices=tuple(replace(c, cost=cost) for c, cost in rows))

    def _late(self) -> bool:
        return time.perf_counter() - self.began > self.effort.seconds

    def _time(self, numbers: Sequence[int], effort: int = 1) -> bool:
        """Measure those that are not known; whether there were any."""
        keys = {
            self.prices.keys[k]: k for k in numbers if effort > 1 or not self.prices.is_known(k)
        }
        for number in keys.values():
            if not self._late():
                self.prices.time(number, effort)
        return bool(keys) and not self._late()

    def _relaxed(self) -> None:
        """Rounds that ask the relaxation alone what would be selected."""
        for _ in range(self.effort.relaxed_rounds if self.prices.measure is not None else 0):
            self.rounds += 1
            values = relax(self._problem()).values
            if not self._time(np.flatnonzero(values > 1e-6).tolist()):
                return

    def _integer(self) -> Partition:
        """Rounds of windows, until the selection is measured."""
        for _ in range(self.effort.rounds):
            self.rounds += 1
            until = self.began + self.effort.seconds
            problem = self._problem()
            part = improve(
                problem, self.selected, sizes=self.effort.sizes, memory=self.memory, until=until
            )
            self.selected = list(part.selected)
            if not self._time(part.selected):
                break
        return part

    def _again(self) -> None:
        """Time the selected kernels, and those that noise alone may keep out, with four times the samples."""
        problem = self._problem()
        reduced = relax(problem).reduced
        costs = np.array([c.cost for c in problem.choices])
        near = np.flatnonzero(reduced <= _NEAR * costs).tolist()
        known = [k for k in near if self.prices.is_known(k)]
        self._time([*self.selected, *known], effort=4)

    def _certificate(self, part: Partition, lower: float, first: float) -> Certificate:
        def gap(low: float) -> float:
            return max(0.0, (part.cost - low) / low) if low > 0 else 0.0

        return Certificate(
            candidates=len(self.found.all),
            measured=len(self.prices.known),
            rounds=self.rounds,
            lower_bound_seconds=lower,
            predicted_seconds=part.cost,
            gap=gap(lower),
            window_gap=part.gap,
            roofline_gap=gap(first * min(1.0, self.prices.scale)),
            noise=self.prices.noise,
            violations=self.prices.violations,
            kernels=len(part.selected),
        )
