"""Windows of a program: parts small enough to be solved to the optimum, and the bound of the whole.

In: the problem of a whole graph and one selection that runs. Out: a better selection, what every window proved about
itself, and the relaxation of the whole. Windows are consecutive kernels of the selection, cut where the fewest tensors
are alive; then windows that straddle the cuts are solved until nothing improves; then the whole, for its bound.
Problems that differ in numbers alone (blocks of a network that repeat) are solved once. Nobody has to say where to cut.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from fissile.orchestrate.program import (
    Choice,
    Problem,
    Solution,
    Tensor,
    cost_of,
    run_order,
    solve,
)
from fissile.orchestrate.reduce import Reduced, reduced, solve_near

_EXACT = 1e-9


@dataclass(frozen=True)
class Sizes:
    """Limits of a window, and of the time for one. whole: seconds for the whole problem, tried after them."""

    primitives: int = 50
    variables: int = 6000
    seconds: float = 10.0
    whole: float = 10.0


@dataclass(frozen=True)
class Partition:
    """selected: a selection that runs, in order. bound: no selection costs less (0: nothing is known of the whole).

    gap: the largest that a window was left with (0: all optimal). windows, distinct: how many were solved, and how many
    of them were not known already.
    """

    selected: tuple[int, ...]
    cost: float
    bound: float
    gap: float
    windows: int
    distinct: int


@dataclass
class Memory:
    """Solutions of windows by their canonical form; may be kept between solves."""

    known: dict[Hashable, Solution] = field(default_factory=dict)
    asked: int = 0


def improve(
    problem: Problem,
    start: Sequence[int],
    *,
    sizes: Sizes | None = None,
    memory: Memory | None = None,
    until: float = math.inf,
    enough: float = 0.0,
) -> Partition:
    """The best selection that windows find from `start`, then that of all, if it is found in the time for the whole.

    start: must run. until: `time.perf_counter()` to stop at. enough: gap at which nothing better is looked for.
    """
    limits, memory = sizes or Sizes(), memory or Memory()
    if not problem.needed:
        return Partition((), 0.0, 0.0, 0.0, 0, 0)
    known = reduced(problem, start)
    found = Partition(known.best, known.cost, known.relaxed.objective, 0.0, 1, 1)
    most = found.bound * (1 + max(enough, _EXACT))
    if found.cost > most:
        found = _windows(known.problem, known.best, found.bound, limits, memory, until)
    left = min(limits.whole, until - time.perf_counter())
    if found.cost > most and left > 0:
        found = _whole(replace(known, best=found.selected), found, left, enough)
    return replace(found, selected=tuple(known.original(found.selected)))


def _whole(known: Reduced, found: Partition, seconds: float, enough: float) -> Partition:
    """What windows found, or something better, with what the solver proves of it."""
    best = solve_near(known, time_limit=seconds, gap=enough)
    gap = max(best.cost / best.bound - 1, 0.0) if best.bound > 0 else 0.0
    gap = gap if best.optimal else min(gap, found.gap)
    return replace(found, selected=best.selected, cost=best.cost, bound=best.bound, gap=gap)


def _windows(
    problem: Problem,
    start: Sequence[int],
    lowest: float,
    limits: Sizes,
    known: Memory,
    until: float,
) -> Partition:
    before, asked = len(known.known), known.asked
    order, stuck = run_order(problem, start)
    if stuck:
        raise ValueError("the selection to start from does not run")
    selected = order
    gap = 0.0
    for straddling in range(12):
        changed = False
        gap = 0.0 if straddling < 2 else gap
        for part in list(_parts(problem, selected, limits, shifted=bool(straddling % 2))):
            if time.perf_counter() > until:
                break
            better, part_gap = _improved(problem, selected, part, limits, known)
            gap = max(gap, part_gap)
            if better is not None:
                selected, changed = better, True
        if straddling and not changed:
            break
    cost = cost_of(problem, selected)
    distinct = len(known.known) - before
    return Partition(tuple(selected), cost, lowest, gap, known.asked - asked, distinct)


def _parts(
    problem: Problem, order: list[int], limits: Sizes, *, shifted: bool
) -> Iterator[frozenset[int]]:
    """Runs of consecutive kernels with at most so many primitives, cut where few tensors are alive."""
    alive = _alive(problem, order)
    begin = 0
    first = True
    while begin < len(order):
        room = limits.primitives // 2 if shifted and first else limits.primitives
        first = False
        most, inside = begin, set[int]()
        while most < len(order):
            inside |= problem.choices[order[most]].primitives
            if len(inside) > room and most > begin:
                break
            most += 1
        end = most
        if most < len(order):  # the fewest live tensors in the last third
            least = begin + max(1, (most - begin) * 2 // 3)
            end = min(range(least, most + 1), key=lambda k: (alive[k], -k))
        yield frozenset(order[begin:end])
        begin = end


def _alive(problem: Problem, order: list[int]) -> list[int]:
    """How many tensors are in memory and still to be read before each kernel of the order, and at its end."""
    last: dict[Tensor, int] = {}
    for place, k in enumerate(order):
        for tensor in problem.choices[k].inputs:
            last[tensor] = place
    steps = [0] * (len(order) + 2)
    for place, k in enumerate(order):
        for tensor in problem.choices[k].outputs:
            if (end := last.get(tensor, place)) > place:
                steps[place + 1] += 1
                steps[end + 1] -= 1
    return [*accumulate(steps[:-1])]


def _improved(
    problem: Problem, selected: list[int], part: frozenset[int], limits: Sizes, memory: Memory
) -> tuple[list[int] | None, float]:
    """(the selection with a part of it exchanged for a cheaper one, None if there is none; the window's gap)."""
    inside = [k for k in selected if k in part]
    if not inside:
        return None, 0.0
    outside = [k for k in selected if k not in part]
    window, numbers = _window(problem, inside, outside, limits)
    start = [numbers.index(k) for k in inside]
    found = _solve_once(window, start, limits.seconds, memory)
    now = cost_of(problem, inside)
    gap = (found.cost - found.bound) / found.bound if found.bound > 0 else 0.0
    if found.cost >= now * (1 - 1e-9):
        return None, gap
    order, stuck = run_order(problem, [*outside, *(numbers[k] for k in found.selected)])
    return (None if stuck else order), gap


def _window(
    problem: Problem, inside: list[int], outside: list[int], limits: Sizes
) -> tuple[Problem, list[int]]:
    """The problem of what the kernels `inside` execute, when those `outside` stay; the numbers of its choices."""
    primitives = frozenset[int]().union(*(problem.choices[k].primitives for k in inside))
    given = {t for k in outside for t in problem.choices[k].outputs}
    read = {t for k in outside for t in problem.choices[k].inputs} | set(problem.needed)
    needed = dict.fromkeys(t for k in inside for t in problem.choices[k].outputs if t in read)
    numbers = [
        k for k, choice in enumerate(problem.choices)
        if k in inside or (choice.primitives <= primitives and choice.outputs)
    ]  # fmt: skip
    if len(numbers) > limits.variables:
        cheap = sorted(numbers, key=lambda k: problem.choices[k].cost / _size(problem.choices[k]))
        numbers = sorted({*inside, *cheap[: limits.variables - len(inside)]})
    available = given | {t for k in numbers for t in problem.choices[k].outputs}
    numbers = [k for k in numbers if available.issuperset(problem.choices[k].inputs)]
    choices = tuple(_without(problem.choices[k], given) for k in numbers)
    wanted = tuple(t for t in needed if t not in given)
    live = _live(problem, {t[0] for t in wanted}, {t[0] for t in given})
    edges = tuple(e for e in problem.edges if e[0] in live and e[1] in live)
    return Problem(choices, wanted, edges, frozenset(live)), numbers


def part_of(problem: Problem, primitives: frozenset[int]) -> Problem:
    """The problem of some primitives alone: all other values are given, and those that others read are needed."""
    choices = [c for c in problem.choices if c.primitives <= primitives and c.primitives]
    read = {p for p, c in problem.edges if c not in primitives} | {t[0] for t in problem.needed}
    written = dict.fromkeys(t for c in choices for t in c.outputs if t[0] in read)
    given = {t for c in choices for t in c.inputs if t[0] not in primitives}
    edges = tuple(e for e in problem.edges if primitives.issuperset(e))
    return Problem(tuple(_without(c, given) for c in choices), tuple(written), edges)


def _live(problem: Problem, wanted: set[int], given: set[int]) -> set[int]:
    """What must be executed for the wanted values when others are given."""
    found: set[int] = set()
    stack = [p for p in wanted if p not in given]
    while stack:
        primitive = stack.pop()
        if primitive not in found:
            found.add(primitive)
            stack.extend(p for p in problem.sources.get(primitive, ()) if p not in given)
    return found


def _size(choice: Choice) -> int:
    return max(1, len(choice.primitives))


def _without(choice: Choice, given: set[Tensor]) -> Choice:
    inputs = tuple(t for t in choice.inputs if t not in given)
    return Choice(inputs, choice.outputs, choice.primitives, choice.cost)


def _solve_once(window: Problem, start: list[int], seconds: float, memory: Memory) -> Solution:
    """`solve`, unless a window of this form has been solved already."""
    memory.asked += 1
    form = canonical(window)
    known = memory.known.get(form)
    if known is None:
        known = solve(window, time_limit=seconds, start=start)
        memory.known[form] = known
    return known


def canonical(problem: Problem) -> Hashable:
    """The problem with its primitives numbered from 0 in their order: equal for blocks that repeat."""
    seen = {p for choice in problem.choices for p in choice.primitives}
    live = seen if problem.live is None else problem.live
    seen |= {*live, *(p for edge in problem.edges for p in edge)}
    seen |= {t[0] for choice in problem.choices for t in (*choice.inputs, *choice.outputs)}
    number = {p: k for k, p in enumerate(sorted(seen))}

    def moved(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple((number[p], f) for p, f in tensors)

    choices = tuple(
        (moved(c.inputs), moved(c.outputs), tuple(sorted(number[p] for p in c.primitives)), c.cost)
        for c in problem.choices
    )
    edges = tuple((number[p], number[c]) for p, c in problem.edges)
    return choices, moved(problem.needed), edges, tuple(sorted(number[p] for p in live))
