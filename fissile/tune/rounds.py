"""Lazy profiling in rounds: what would be selected is measured, until all that is selected has been (DESIGN 3.4).

In: candidates, and what kernels cost: a bound for any, measurements of many at a time. Out: `Round` after `Round`, and
at any moment the best selection of kernels that have been measured. Rounds first ask the relaxation alone, then the
windows; at the end what matters is timed again. Invariant: an interruption loses nothing, since every measured cost is
in `Profiling.known` before the round that used it ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fissile.orchestrate.candidates import Candidates
from fissile.orchestrate.orchestrate import Certificate, problem_of
from fissile.orchestrate.partition import Memory, Partition, improve
from fissile.orchestrate.plan import Kernel
from fissile.orchestrate.program import Problem, relax, run_order

Measure = Callable[[Sequence[Kernel], int], Sequence[float]]
Bound = Callable[[Kernel], float]
RELAXED_ROUNDS = 20
NEAR = 0.03  # reduced cost, as a share of a kernel's own, that noise may hide
MARGIN = 1.05  # how far above the highest peak seen the peak is taken to be
AT_ONCE = 32  # kernels after which an interruption keeps what is known
AGAIN = 4  # times the samples for what matters
_UNWANTED = 100.0  # times its bound: the cost of a kernel that cannot run, or has not been measured


@dataclass(frozen=True)
class Round:
    """Where lazy profiling stands. measured: distinct kernels. Seconds: of the best plan now, and proved."""

    number: int
    measured: int
    plan_seconds: float
    bound_seconds: float

    @property
    def gap(self) -> float:
        """(plan - bound) / bound."""
        return max(0.0, self.plan_seconds / self.bound_seconds - 1) if self.bound_seconds > 0 else 0.0


@dataclass
class Profiling:
    """Everything that is known so far. keys: of candidates, equal for kernels that cost the same.

    raised: from a kernel and its seconds, below its bound, new bounds for all.
    """

    found: Candidates
    keys: list[int]
    bounds: np.ndarray
    base: Problem
    selected: list[int]
    raised: Callable[[Kernel, float], Bound]
    memory: Memory = field(default_factory=Memory)
    known: dict[int, float] = field(default_factory=dict)
    violations: int = 0
    noise: float = 0.0
    rounds: int = 0
    first_bound: float = 0.0
    window_gap: float = 0.0
    is_measured: bool = False  # all that is selected, once
    is_complete: bool = False  # and timed again

    def costs(self, *, measured_only: bool = False) -> np.ndarray:
        """The cost of every candidate by now. measured_only: those not measured are made unattractive."""
        costs = self.bounds * (_UNWANTED if measured_only else 1.0)
        for k, key in enumerate(self.keys):
            seconds = self.known.get(key)
            if seconds is not None:
                costs[k] = seconds if math.isfinite(seconds) else self.bounds[k] * _UNWANTED
        return costs

    def problem(self, costs: np.ndarray) -> Problem:
        """The program at these costs."""
        rows = zip(self.base.choices, costs.tolist(), strict=True)
        return replace(self.base, choices=tuple(replace(c, cost=cost) for c, cost in rows))

    def seconds(self) -> float:
        """What the selection costs by now."""
        return float(self.costs()[self.selected].sum())


def begin(
    found: Candidates,
    bound: Bound,
    same: Callable[[Kernel], Hashable] = lambda kernel: kernel,
    raised: Callable[[Kernel, float], Bound] | None = None,
) -> Profiling:
    """Nothing measured, the greedy plan selected. same: kernels with equal answers cost the same.

    raised: new bounds once a kernel took fewer seconds than its bound; by default all of them shrink alike.
    """
    numbers: dict[Hashable, int] = {}
    keys = [numbers.setdefault(same(c.kernel), len(numbers)) for c in found.all]
    costs = _bounds(found, keys, bound)
    base = problem_of(found, costs.tolist())
    greedy, stuck = run_order(base, dict.fromkeys(found.greedy))
    if stuck:
        raise ValueError("the greedy plan does not run")
    lower = relax(base).objective
    raising = raised or _Shrinking(bound).raised
    return Profiling(found, keys, costs, base, greedy, raising, first_bound=lower)


def _bounds(found: Candidates, keys: Sequence[int], bound: Bound) -> np.ndarray:
    known: dict[int, float] = {}
    for key, candidate in zip(keys, found.all, strict=True):
        if key not in known:
            known[key] = bound(candidate.kernel)
    return np.array([known[key] for key in keys])


@dataclass
class _Shrinking:
    """Bounds that all shrink by the factor of the worst violation."""

    bound: Bound
    scale: float = 1.0

    def raised(self, kernel: Kernel, seconds: float) -> Bound:
        self.scale = min(self.scale, seconds / (self.bound(kernel) * MARGIN))
        return lambda other: self.bound(other) * self.scale


def profile(state: Profiling, measure: Measure) -> Iterator[Round]:
    """Rounds until all that is selected is measured, and timed again; the caller may stop after any of them."""
    _time(state, state.selected, measure)
    yield _round(state, state.first_bound)
    for _ in range(RELAXED_ROUNDS):
        found = relax(state.problem(state.costs()))
        if not _time(state, np.flatnonzero(found.values > 1e-6).tolist(), measure):
            break
        yield _round(state, found.objective)
    yield from _windows(state, measure)
    state.is_measured = True
    _again(state, measure)
    yield from _windows(state, measure)
    state.is_complete = True


def settle(state: Profiling) -> list[int]:
    """The best selection of what has been measured, in an order that runs; the greedy one before the first round."""
    if state.rounds == 0:
        return state.selected
    problem = state.problem(state.costs(measured_only=True))
    part = improve(problem, state.selected, memory=state.memory)
    state.selected = list(part.selected)
    return state.selected


def certificate(state: Profiling) -> Certificate:
    """What is proved about the selection."""
    lower, plan = relax(state.problem(state.costs())).objective, state.seconds()

    def gap(low: float) -> float:
        return max(0.0, (plan - low) / low) if low > 0 else 0.0

    return Certificate(
        candidates=len(state.found.all),
        measured=len(state.known),
        rounds=state.rounds,
        lower_bound_seconds=lower,
        predicted_seconds=plan,
        gap=gap(lower),
        window_gap=state.window_gap,
        roofline_gap=gap(relax(state.problem(state.bounds)).objective),
        noise=state.noise,
        violations=state.violations,
        kernels=len(state.selected),
    )


def _round(state: Profiling, bound: float) -> Round:
    state.rounds += 1
    return Round(state.rounds, len(state.known), state.seconds(), bound)


def _windows(state: Profiling, measure: Measure) -> Iterator[Round]:
    """Rounds that solve windows to the optimum, until the selection is measured."""
    while True:
        problem = state.problem(state.costs())
        part: Partition = improve(problem, state.selected, memory=state.memory)
        state.window_gap = part.gap
        before = state.selected
        state.selected = list(part.selected)
        try:
            more = _time(state, state.selected, measure)
        except BaseException:
            state.selected = before  # what was selected then had been measured
            raise
        yield _round(state, relax(problem).objective)
        if not more:
            return


def _again(state: Profiling, measure: Measure) -> None:
    """Time the selection, and what noise alone may keep out of it, with more samples."""
    costs = state.costs()
    reduced = relax(state.problem(costs)).reduced
    near = np.flatnonzero(reduced <= NEAR * costs).tolist()
    known = [k for k in near if math.isfinite(state.known.get(state.keys[k], math.inf))]
    _time(state, [*state.selected, *known], measure, AGAIN)


def _time(
    state: Profiling, numbers: Sequence[int], measure: Measure, times: int = 1
) -> bool:
    """Measure those that are not known, or all of them again; whether there were any."""
    wanted = {state.keys[k]: k for k in numbers if times > 1 or state.keys[k] not in state.known}
    numbers = [*wanted.values()]
    for first in range(0, len(numbers), AT_ONCE):
        some = numbers[first : first + AT_ONCE]
        found = measure([state.found.all[k].kernel for k in some], times)
        for k, seconds in zip(some, found, strict=True):
            _learn(state, k, seconds)
    return bool(wanted)


def _learn(state: Profiling, number: int, seconds: float) -> None:
    """Keep a measurement; one below its bound raises the peak that the bounds are made from."""
    key = state.keys[number]
    before = state.known.get(key, 0.0)
    if math.isfinite(before) and before > 0:
        state.noise = max(state.noise, abs(seconds / before - 1))
    state.known[key] = seconds
    if seconds < state.bounds[number]:
        state.violations += 1
        raised = state.raised(state.found.all[number].kernel, seconds)
        state.bounds = _bounds(state.found, state.keys, raised)
