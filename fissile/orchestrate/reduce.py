"""A program made smaller before it is solved: what no cheapest selection needs is left out (DESIGN 3.4).

In: a problem and a selection that runs. Out: `Reduced`: the problem without dominated choices, its relaxation, and the
better of that selection and what the relaxation rounds to; and the solution of what may still be cheaper. Invariant:
the cheapest selection costs the same as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fissile.orchestrate.program import (
    Problem,
    Relaxation,
    Solution,
    Tensor,
    cost_of,
    relax,
    run_order,
    solve,
)


@dataclass(frozen=True)
class Reduced:
    """numbers: of the choices of `problem` in the one it was made from. best: a selection that runs, in order."""

    problem: Problem
    numbers: tuple[int, ...]
    relaxed: Relaxation
    best: tuple[int, ...]

    @property
    def cost(self) -> float:
        """Of the best selection known."""
        return cost_of(self.problem, self.best)

    def original(self, selected: Iterable[int]) -> list[int]:
        """The numbers that choices of the reduced problem have in the original one."""
        return [self.numbers[k] for k in selected]


def reduced(problem: Problem, start: Sequence[int]) -> Reduced:
    """The problem without dominated choices. start: must run.

    The relaxation is nearly integral: often what it selects is a plan already, and proves that by its cost.
    """
    order, stuck = run_order(problem, dict.fromkeys(start))
    if stuck:
        raise ValueError("the selection to start from does not run")
    numbers = sorted({*undominated_choices(problem), *order})
    place = {k: n for n, k in enumerate(numbers)}
    small = part(problem, numbers)
    relaxed = relax(small)
    best = [place[k] for k in order]
    rounded, stuck = run_order(small, np.flatnonzero(relaxed.values > 0.5).tolist())
    written = {t for k in rounded for t in small.choices[k].outputs}
    if not stuck and written.issuperset(small.needed) and cost_of(small, rounded) < cost_of(small, best):
        best = rounded
    return Reduced(small, tuple(numbers), relaxed, tuple(best))


def solve_near(
    given: Reduced, *, time_limit: float, gap: float, nodes: int | None = None
) -> Solution:
    """`solve` from the best selection known, among the choices that may be in a cheaper one.

    Those have a reduced cost within what that selection lies above the relaxation.
    """
    above = given.cost - given.relaxed.objective
    near = np.flatnonzero(given.relaxed.reduced <= above).tolist()
    kept = sorted({*near, *given.best})
    place = {k: n for n, k in enumerate(kept)}
    start = [place[k] for k in given.best]
    found = solve(part(given.problem, kept), time_limit=time_limit, start=start, gap=gap, nodes=nodes)
    if found.cost > given.cost:  # a selection within the gap, yet none better
        return replace(found, selected=given.best, cost=given.cost, bound=min(found.bound, given.cost))
    return replace(found, selected=tuple(kept[k] for k in found.selected))


def undominated_choices(problem: Problem) -> list[int]:
    """Those for which no other choice writes the same, reads no more and costs no more (of equals the first)."""
    groups: dict[tuple[Tensor, ...], list[int]] = {}
    for k, choice in enumerate(problem.choices):
        groups.setdefault(choice.outputs, []).append(k)
    kept: list[int] = []
    for group in groups.values():
        least: list[frozenset[Tensor]] = []
        for k in sorted(group, key=lambda k: (problem.choices[k].cost, k)):
            reads = frozenset(problem.choices[k].inputs)
            if not any(less <= reads for less in least):
                least.append(reads)
                kept.append(k)
    return sorted(kept)


def part(problem: Problem, numbers: Sequence[int]) -> Problem:
    """The problem with these choices alone."""
    return replace(problem, choices=tuple(problem.choices[k] for k in numbers))
