"""Untuned compilations with what the tuning store remembers: measurements instead of guesses (DESIGN 3.4).

In: a compilation planned by guesses, and the store. Out: the same with the plan that is the cheapest under what was
measured on this machine, or unchanged where too little was. Nothing is run: what the relaxation would select is looked
up, until it selects nothing new. Kernels that were never measured are not selected but for those of the plans to begin
with; they cost their guess times what measured ones of their family take beside theirs. Invariant: deterministic given
the store; never dearer than the plan by guesses under the same costs.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from fissile.orchestrate.bound import bound
from fissile.orchestrate.candidates import Candidates, candidates_of
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.nominal import nominal, representative
from fissile.orchestrate.orchestrate import choose, plan_of, problem_of
from fissile.orchestrate.plan import Anchor, Kernel, Plan
from fissile.orchestrate.program import Problem, relax
from fissile.pipeline import Work, plan_kernels
from fissile.runtime.store import Store
from fissile.tune.budget import Budget
from fissile.tune.measure import Setting, recalled
from fissile.tune.start import ENOUGH, LIMITS, alike, setting_of

ROUNDS = 12  # of looking up
LEAST_KNOWN = 0.5  # share of a plan's seconds that must be measured: guesses alone compare better with guesses
_RARE = 10.0  # percentile of measured / guessed that kernels of a family nobody has measured are taken to reach
_HOPE = 0.15  # over how many of its family are known: how much faster than the fastest of them one may be
_UNABLE = 1e3  # times its guess: what a kernel costs that cannot run


@dataclass
class _Memory:
    """What the store says of kernels: seconds, infinity for what cannot run, None where it says nothing."""

    setting: Setting
    store: Store
    asked: dict[Kernel, float | None] = field(default_factory=dict)
    ratios: dict[Hashable, list[float]] = field(default_factory=dict)  # measured beside guessed, by family
    typical: tuple[float, ...] = (1.0,)  # of every family that has any
    least: float = 1.0  # what hardly any kernel stays below
    priors: dict[Kernel, tuple[float, Hashable]] = field(default_factory=dict)  # guesses and families

    def ask(self, kernels: Sequence[Kernel]) -> bool:
        """Look kernels up; whether any had not been."""
        new = [k for k in dict.fromkeys(kernels) if k not in self.asked]
        for kernel, seconds in zip(new, recalled(new, self.setting, self.store), strict=True):
            self.asked[kernel] = seconds
            if self.is_measured(kernel):
                ratio = (seconds or 0.0) / self.guess(kernel)
                self.ratios.setdefault(self._prior(kernel)[1], []).append(ratio)
        self.typical = tuple(median(rows) for rows in self.ratios.values()) or (1.0,)
        every = [ratio for rows in self.ratios.values() for ratio in rows]
        self.least = float(np.percentile(every, _RARE)) if every else 1.0
        return bool(new)

    def is_measured(self, kernel: Kernel) -> bool:
        """Whether the store has its seconds."""
        seconds = self.asked.get(kernel)
        is_native = kernel.anchor is not Anchor.FOREIGN
        return is_native and seconds is not None and math.isfinite(seconds)

    def guess(self, kernel: Kernel) -> float:
        """Seconds on a nominal machine."""
        return self._prior(kernel)[0]

    def cost(self, kernel: Kernel) -> float:
        """Seconds as measured; else as guessed, beside what was measured of kernels like it."""
        seconds = self.asked.get(kernel)
        if seconds is None:
            return self.guess(kernel) * median(self._beside(kernel))
        return seconds if math.isfinite(seconds) else self.guess(kernel) * _UNABLE

    def hoped(self, kernel: Kernel) -> float:
        """`cost`, but of what was not looked up yet the least that is likely."""
        if kernel in self.asked:
            return self.cost(kernel)
        own = self.ratios.get(self._prior(kernel)[1])
        beside = min(own) * (1 - _HOPE / len(own)) if own else self.least
        return self.guess(kernel) * beside

    def _beside(self, kernel: Kernel) -> Sequence[float]:
        return self.ratios.get(self._prior(kernel)[1], self.typical)

    def _prior(self, kernel: Kernel) -> tuple[float, Hashable]:
        if kernel not in self.priors:
            seconds = max(self.setting.estimate(kernel), 1e-9)
            self.priors[kernel] = seconds, alike(kernel)
        return self.priors[kernel]

    def known(self, kernels: Sequence[Kernel]) -> float:
        """The share of their seconds that was measured."""
        total = sum(map(self.cost, kernels))
        return sum(self.cost(k) for k in kernels if self.is_measured(k)) / max(total, 1e-12)


def replanned(work: Work, store: Store) -> Work:
    """`work`, which is planned by guesses, planned again by what the store knows; unchanged where that is too little.

    The certificate then counts under `measured` the kernels that the store knew, and under `recalled` those of them
    that the plan has.
    """
    graph, plan = work.known("graph"), work.known("plan")
    numbers = representative(graph, work.shapes)
    memory = _Memory(setting_of(work, Budget(), numbers, 0.0), store)
    memory.ask(plan.kernels())
    if not memory.ratios or memory.known(plan.kernels()) < LEAST_KNOWN:
        return work
    found = candidates_of(greedy_plan(graph), LIMITS)
    hoped = _looked_up(found, memory)
    better = _best(found, memory)
    chosen = min((better, plan), key=lambda p: sum(map(memory.cost, p.kernels())))
    lower = relax(problem_of(found, hoped.tolist())).objective
    proof = {**work.certificate, **_facts(work, found, memory, chosen, lower)}
    return replace(plan_kernels(replace(work, plan_given=chosen, certificate=proof)), plan_given=None)


def _looked_up(found: Candidates, memory: _Memory) -> np.ndarray:
    """What every candidate may cost at least, once all that is worth it has been looked up."""
    memory.ask([found.all[k].kernel for k in found.greedy])
    for _ in range(ROUNDS):
        costs = [memory.hoped(c.kernel) for c in found.all]
        least = relax(problem_of(found, costs))
        known, _able = _known(found, memory)
        if relax(known).objective <= least.objective * (1 + ENOUGH):
            break
        if not memory.ask([found.all[k].kernel for k in np.flatnonzero(least.values > 1e-6)]):
            break
    return np.array([memory.hoped(c.kernel) for c in found.all])


def _known(found: Candidates, memory: _Memory) -> tuple[Problem, list[int]]:
    """The program of measured kernels and of those of the greedy plan, and their numbers."""
    able = [
        k for k, c in enumerate(found.all)
        if k in found.greedy or memory.is_measured(c.kernel) or c.kernel.anchor is Anchor.FOREIGN
    ]  # fmt: skip
    whole = problem_of(found, [memory.cost(c.kernel) for c in found.all])
    return replace(whole, choices=tuple(whole.choices[k] for k in able)), able


def _best(found: Candidates, memory: _Memory) -> Plan:
    """The cheapest plan of measured kernels and of those of the greedy plan."""
    problem, able = _known(found, memory)
    place = {k: n for n, k in enumerate(able)}
    return plan_of(found, [able[n] for n in choose(problem, [place[k] for k in found.greedy])])


def _facts(
    work: Work, found: Candidates, memory: _Memory, plan: Plan, lower: float
) -> dict[str, float | int]:
    kernels = plan.kernels()
    predicted = sum(map(memory.cost, kernels))
    machine = nominal(work.targets[0], work.threads)
    roof = [bound(c.kernel, machine, memory.setting.numbers) for c in found.all]
    lowest = relax(problem_of(found, roof)).objective

    def gap(low: float) -> float:
        return max(0.0, predicted / low - 1) if low > 0 else 0.0

    return {
        "candidates": len(found.all),
        "measured": sum(map(memory.is_measured, memory.asked)),
        "recalled": sum(map(memory.is_measured, kernels)),
        "predicted_seconds": predicted,
        "lower_bound_seconds": min(lower, predicted),
        "gap": gap(lower),
        "roofline_gap": gap(lowest),
        "kernels": len(kernels),
    }
