"""Lazy profiling in rounds: what would be selected is measured, until all that is selected has been (DESIGN 3.4).

In: candidates, and what kernels cost: a bound for any, measurements of many at a time, perhaps a `Prior`. Out: `Round`
after `Round`, and at any moment the best selection of kernels that have been measured. Rounds ask the relaxation what
would be selected, and the windows once that is near; at the end what matters is timed again. Invariant: an
interruption loses nothing, since every measured cost is in `Profiling.known` before the round that used it ends.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fissile.orchestrate.candidates import Candidates
from fissile.orchestrate.orchestrate import Certificate, problem_of
from fissile.orchestrate.partition import Memory, Sizes, improve
from fissile.orchestrate.plan import Kernel
from fissile.orchestrate.program import Problem, Relaxation, relax, run_order

Measure = Callable[[Sequence[Kernel], int], Sequence[float]]
Lookup = Callable[[Sequence[Kernel]], Sequence[float | None]]
Bound = Callable[[Kernel], float]
RELAXED_ROUNDS = 20
STEPS = 4  # relaxations between two plans, at least
FEW = 2  # kernels of a family that are measured before its expectations are looked at again
NEARLY = 3.0  # times the gap at which measuring stops: from there on windows are asked
NEAR = 0.03  # reduced cost, as a share of a kernel's own, that noise may hide
MARGIN = 1.05  # how far above the highest peak seen the peak is taken to be
AT_ONCE = 32  # kernels after which an interruption keeps what is known
AGAIN = 4  # times the samples for what matters
MOST_AGAIN = 4  # times that what matters may turn out to be something else
WINDOWS = Sizes(whole=0.0)
PATIENT = Sizes(whole=30.0)  # a proof saves measurements; on an idle machine it takes seconds
_UNWANTED = 100.0  # times its bound: the cost of a kernel that cannot run
_RARE = 10.0  # percentile of measured / guessed that kernels of a family nobody has measured are taken to reach
NEIGHBOURS = 4  # of its family, nearest by guess and by bound beside it, that tell what a kernel may reach
_UNSEEN = 0.15  # over how many of its family were measured: how much faster than the nearest one may be
_SOME = 8  # measurements from which that percentile means anything


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
        return _gap(self.plan_seconds, self.bound_seconds)


def _of_nearest(places: np.ndarray, known: np.ndarray, ratios: np.ndarray) -> np.ndarray:
    """For every column of `places` the least ratio of the NEIGHBOURS columns of `known` that are nearest."""
    far = np.abs(places[:, :, None] - known[:, None, :]).sum(axis=0)
    count = min(NEIGHBOURS, far.shape[1])
    nearest = np.argpartition(far, count - 1, axis=1)[:, :count]
    return np.asarray(ratios[nearest].min(axis=1))


def _gap(plan: float, bound: float) -> float:
    return max(0.0, plan / bound - 1) if bound > 0 else 0.0


@dataclass(frozen=True)
class Prior:
    """What is thought of kernels nobody has measured: none is much faster, beside its guess, than those most like it.

    guess: seconds. family: kernels with equal answers are as far from their guesses as those of them that are measured
    and have about the same guess and bound; the more have been measured, the less is hoped of the others. What is
    proved then holds as far as that does. enough: gap at which no more is measured.
    """

    guess: Callable[[Kernel], float]
    family: Callable[[Kernel], Hashable]
    enough: float = 0.0


@dataclass
class Profiling:
    """Everything that is known so far. keys: of candidates, equal for kernels that cost the same.

    raised: from a kernel and its seconds, below its bound, new bounds for all. start: a selection that runs.
    selected: the best that has been measured, once anything is. guesses, families: of the prior, by candidate;
    first_bounds: when nothing was measured.
    """

    found: Candidates
    keys: np.ndarray
    bounds: np.ndarray
    base: Problem
    start: list[int]
    selected: list[int]
    raised: Callable[[Kernel, float], Bound]
    enough: float = 0.0
    guesses: np.ndarray | None = None
    families: np.ndarray | None = None
    first_bounds: np.ndarray = field(default_factory=lambda: np.zeros(0))
    members: tuple[np.ndarray, ...] = ()  # candidates by family
    memory: Memory = field(default_factory=Memory)
    known: dict[int, float] = field(default_factory=dict)
    again: set[int] = field(default_factory=set)  # keys that were timed again
    violations: int = 0
    noise: float = 0.0
    rounds: int = 0
    settling: float = 0.0  # seconds that the best plan took to find
    first_bound: float = 0.0
    window_gap: float | None = None  # once windows, or the relaxation, were asked at the end of a search
    proved: float = 0.0  # no selection costs less at the costs known now, as windows found
    is_measured: bool = False  # all that is selected, once
    is_complete: bool = False  # and timed again

    def measured(self) -> np.ndarray:
        """Seconds of every candidate; NaN for those that have not been measured, infinity for what cannot run."""
        table = np.full(int(self.keys.max(initial=-1)) + 1, np.nan)
        for key, seconds in self.known.items():
            table[key] = seconds
        return np.asarray(table[self.keys])

    def costs(self, *, admissible: bool = False) -> np.ndarray:
        """The cost of every candidate by now. admissible: the prior is left out."""
        measured = self.measured()
        least = self.bounds if admissible else self._expected(measured)
        costs = np.where(np.isnan(measured), least, measured)
        return np.asarray(np.where(np.isinf(costs), self.bounds * _UNWANTED, costs))

    def _expected(self, measured: np.ndarray) -> np.ndarray:
        """Bounds, raised to what those that are measured and most alike have reached at best."""
        if self.guesses is None or self.families is None:
            return self.bounds
        known = np.isfinite(measured)
        ratios = measured / self.guesses
        rare = np.percentile(ratios[known], _RARE) if known.sum() >= _SOME else 0.0
        places = np.log(np.stack((self.guesses, self.guesses / self.first_bounds)))
        reached = np.full(len(measured), rare)
        for members in self.members:
            rows = np.concatenate((places, ratios[None]))[:, members[known[members]]]
            if rows.size:
                seen = np.unique(rows.round(3), axis=1)
                nearest = _of_nearest(places[:, members], seen[:-1], seen[-1])
                reached[members] = nearest * (1 - _UNSEEN / seen.shape[1])
        return np.asarray(np.maximum(self.bounds, self.guesses * reached))

    def problem(self, costs: np.ndarray) -> Problem:
        """The program at these costs."""
        rows = zip(self.base.choices, costs.tolist(), strict=True)
        return replace(self.base, choices=tuple(replace(c, cost=cost) for c, cost in rows))

    def seconds(self, selected: Sequence[int] | None = None) -> float:
        """What a selection costs by now, the best by default; what has not been measured as much as is guessed."""
        costs = self.costs()
        if self.guesses is not None:
            costs = np.where(np.isnan(self.measured()), np.maximum(costs, self.guesses), costs)
        return float(costs[[*(self.selected if selected is None else selected)]].sum())


def begin(
    found: Candidates,
    bound: Bound,
    same: Callable[[Kernel], Hashable] = lambda kernel: kernel,
    raised: Callable[[Kernel, float], Bound] | None = None,
    prior: Prior | None = None,
) -> Profiling:
    """Nothing measured; selected is the greedy plan, or what the prior likes best.

    same: kernels with equal answers cost the same. raised: new bounds once a kernel took fewer seconds than its bound;
    by default all of them shrink alike.
    """
    keys = _numbered([same(c.kernel) for c in found.all])
    costs = _of_keys(found, keys, bound)
    base = problem_of(found, costs.tolist())
    greedy, stuck = run_order(base, dict.fromkeys(found.greedy))
    if stuck:
        raise ValueError("the greedy plan does not run")
    lower = relax(base).objective
    raising = raised or _Shrinking(bound).raised
    state = Profiling(found, keys, costs, base, greedy, greedy, raising, first_bound=lower)
    if prior is not None:
        state.enough = prior.enough
        state.guesses = np.maximum(_of_keys(found, keys, prior.guess), costs)
        state.families = _numbered([prior.family(c.kernel) for c in found.all])
        kinds = range(int(state.families.max(initial=-1)) + 1)
        state.members = tuple(np.flatnonzero(state.families == kind) for kind in kinds)
        state.first_bounds = costs
        likely = improve(
            state.problem(state.guesses), greedy, sizes=WINDOWS, memory=state.memory, enough=prior.enough
        )
        state.start = state.selected = [*likely.selected]
    return state


def _numbered(values: Sequence[Hashable]) -> np.ndarray:
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(v, len(numbers)) for v in values], np.int64)


def _of_keys(found: Candidates, keys: np.ndarray, cost: Bound) -> np.ndarray:
    known: dict[int, float] = {}
    for key, candidate in zip(keys.tolist(), found.all, strict=True):
        if key not in known:
            known[key] = cost(candidate.kernel)
    return np.array([known[key] for key in keys.tolist()])


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
    yield from _search(state, measure)
    state.is_measured = True
    for _ in range(MOST_AGAIN):
        if not _again(state, measure):
            break
        yield from _search(state, measure)
    state.is_complete = True


def remember(state: Profiling, lookup: Lookup) -> None:
    """Take over what is known already. lookup: seconds of kernels, None where nothing is."""
    _, numbers = np.unique(state.keys, return_index=True)
    found = lookup([state.found.all[k].kernel for k in numbers])
    for k, seconds in zip(numbers.tolist(), found, strict=True):
        if seconds is not None:
            _learn(state, k, seconds)


def settle(state: Profiling, *, in_windows: bool = False) -> list[int]:
    """The best selection of what has been measured, in an order that runs; the first one before any round.

    in_windows: windows alone are solved, and only where the relaxation shows more than is enough to be gained.
    """
    if state.rounds > 0:
        began = time.monotonic()
        state.selected = best_of(state, state.costs(), in_windows=in_windows)
        state.settling = time.monotonic() - began
    return state.selected


def best_of(state: Profiling, costs: np.ndarray, *, in_windows: bool = False) -> list[int]:
    """The best selection of measured candidates under these costs, in an order that runs."""
    seconds, start = state.measured(), set(state.start)
    able = [k for k, s in enumerate(seconds.tolist()) if math.isfinite(s) or k in start]
    place = {k: n for n, k in enumerate(able)}
    whole = state.problem(costs)
    part = replace(whole, choices=tuple(whole.choices[k] for k in able))
    found = improve(
        part,
        [place[k] for k in state.selected],
        sizes=WINDOWS if in_windows and state.enough else None,
        memory=state.memory,
        enough=state.enough if in_windows else 0.0,
    )
    return [able[n] for n in found.selected]


def certificate(state: Profiling) -> Certificate:
    """What is proved about the selection; the gap holds as far as the prior does."""
    now = standing(state)
    plan, lower = now.plan_seconds, now.bound_seconds
    return Certificate(
        candidates=len(state.found.all),
        measured=len(state.known),
        rounds=state.rounds,
        lower_bound_seconds=lower,
        predicted_seconds=plan,
        gap=_gap(plan, lower),
        window_gap=state.window_gap if state.is_measured else None,
        roofline_gap=_gap(plan, relax(state.problem(state.bounds)).objective),
        noise=state.noise,
        violations=state.violations,
        kernels=len(state.selected),
    )


def admissible_gap(state: Profiling) -> float:
    """The gap of the selection to what is proved without the prior: from measurements and bounds alone."""
    lower = relax(state.problem(state.costs(admissible=True))).objective
    return _gap(state.seconds(), lower)


def distinct(state: Profiling) -> int:
    """How many different kernels the selection has."""
    return len({state.keys[k] for k in state.selected})


def standing(state: Profiling) -> Round:
    """Where it stands now."""
    lower = max(relax(state.problem(state.costs())).objective, min(state.proved, state.seconds()))
    return Round(state.rounds, len(state.known), state.seconds(), lower)


def _round(state: Profiling, bound: float) -> Round:
    state.rounds += 1
    return Round(state.rounds, len(state.known), state.seconds(), bound)


def _search(state: Profiling, measure: Measure) -> Iterator[Round]:
    """Rounds that measure what the relaxation would select, then what windows do, until nothing new is.

    Near the end the relaxation lies below every plan by more than measuring can mend: windows decide earlier.
    """
    relaxed = 0
    while True:
        settle(state, in_windows=True)
        problem = state.problem(state.costs())
        found = relax(problem)
        yield _round(state, found.objective)
        if state.seconds() <= found.objective * (1 + state.enough):
            state.window_gap = _gap(state.seconds(), found.objective)
            return
        relaxed += 1
        is_near = state.seconds() <= found.objective * (1 + NEARLY * state.enough)
        by_relaxing = relaxed <= RELAXED_ROUNDS and not is_near and _relaxing(state, found, measure)
        if not by_relaxing and not _windows(state, problem, measure):
            return


def _relaxing(state: Profiling, found: Relaxation, measure: Measure) -> bool:
    """Measure what relaxations select, a few of every family at a time, for what they show is expected of the others.

    It goes on for as long as the last plan took to find. Whether there was anything.
    """
    is_new = False
    began = time.monotonic()
    for step in itertools.count():
        if step >= STEPS and time.monotonic() - began > state.settling:
            break
        wanted = _few(state, found)
        if not _time(state, wanted, measure):
            break
        is_new = True
        found = relax(state.problem(state.costs()))
        if state.seconds() <= found.objective * (1 + NEARLY * state.enough):
            break
    return is_new


def _few(state: Profiling, found: Relaxation) -> list[int]:
    """Of what is selected and not measured those that matter most, FEW of each family."""
    new = [k for k in np.flatnonzero(found.values > 1e-6).tolist() if int(state.keys[k]) not in state.known]
    if state.families is None:
        return new
    shares = found.values * state.costs()
    by_family: dict[int, dict[int, int]] = {}
    for k in sorted(new, key=lambda k: -shares[k]):
        by_family.setdefault(int(state.families[k]), {}).setdefault(int(state.keys[k]), k)
    return [k for of_family in by_family.values() for k in [*of_family.values()][:FEW]]


def _windows(state: Profiling, problem: Problem, measure: Measure) -> bool:
    """Measure what a solution to the optimum selects; whether that may change anything."""
    part = improve(
        problem, state.selected, sizes=PATIENT, memory=state.memory, enough=state.enough
    )
    now, left, total = state.seconds(), *(_gap(state.seconds(), x) for x in (part.cost, part.bound))
    state.window_gap, state.proved = min(max(part.gap, left), total), part.bound
    is_near = part.cost > part.bound * (1 + state.enough) and left <= state.enough
    if left <= 1e-9 or total <= state.enough or is_near:
        return False
    is_new = _time(state, part.selected, measure)
    seconds = float(state.measured()[[*part.selected]].sum())
    if seconds < now:  # not if one of them cannot run
        state.selected = [*part.selected]
    if not is_new:
        state.window_gap, state.proved = _gap(state.seconds(), part.bound), part.bound
    return is_new


def _again(state: Profiling, measure: Measure) -> bool:
    """Time the selection, and what noise alone may keep out of it, with more samples; whether any had not been."""
    costs = state.costs()
    reduced = relax(state.problem(costs)).reduced
    seconds = state.measured()
    near = np.flatnonzero((reduced <= NEAR * costs) & np.isfinite(seconds)).tolist()
    new = [k for k in (*state.selected, *near) if int(state.keys[k]) not in state.again]
    _time(state, new, measure, AGAIN)
    state.again.update(int(state.keys[k]) for k in new)
    return bool(new)


def _time(
    state: Profiling, numbers: Sequence[int], measure: Measure, times: int = 1
) -> bool:
    """Measure those that are not known, or all of them again, dearest first; whether there were any."""
    costs = state.costs()
    wanted = {
        int(state.keys[k]): k
        for k in sorted(numbers, key=lambda k: -costs[k])
        if times > 1 or int(state.keys[k]) not in state.known
    }
    numbers = [*wanted.values()]
    for first in range(0, len(numbers), AT_ONCE):
        some = numbers[first : first + AT_ONCE]
        found = measure([state.found.all[k].kernel for k in some], times)
        for k, seconds in zip(some, found, strict=True):
            _learn(state, k, seconds)
    return bool(wanted)


def _learn(state: Profiling, number: int, seconds: float) -> None:
    """Keep a measurement; one below its bound raises the peak that the bounds are made from."""
    key = int(state.keys[number])
    before = state.known.get(key, 0.0)
    if math.isfinite(before) and before > 0:
        state.noise = max(state.noise, abs(seconds / before - 1))
    state.known[key] = seconds
    state.proved = 0.0
    if seconds < state.bounds[number]:
        state.violations += 1
        raised = state.raised(state.found.all[number].kernel, seconds)
        state.bounds = _of_keys(state.found, state.keys, raised)
