"""Windows: they improve, they never break a plan, and blocks that repeat are solved once."""

from __future__ import annotations

import random

import pytest

from fissile.orchestrate.partition import Memory, Sizes, canonical, improve
from fissile.orchestrate.program import Choice, Problem, run_order, solve
from tests.orchestrate.test_program import draw_problem


def blocks(count: int) -> Problem:
    """A chain of equal blocks: three primitives that are cheaper together, and a dear one."""
    choices: list[Choice] = []
    for k in range(0, 4 * count, 4):
        for first in range(k, k + 4):
            for last in range(first, k + 4):
                inputs = ((first - 1, "plain"),) if first else ()
                cost = 1.0 + 0.1 * (last - first) if last < k + 3 else 2.0 * (last - first + 1)
                members = frozenset(range(first, last + 1))
                choices.append(Choice(inputs, ((last, "plain"),), members, cost))
    edges = tuple((p, p + 1) for p in range(4 * count - 1))
    return Problem(tuple(choices), ((4 * count - 1, "plain"),), edges)


def triangles(count: int) -> Problem:
    """Equal blocks whose relaxation is a half of each of three pairs: three primitives, two of which go together."""
    choices: list[Choice] = []
    for k in range(0, 3 * count, 3):
        for members in ((k,), (k + 1,), (k + 2,), (k, k + 1), (k + 1, k + 2), (k, k + 2)):
            written = tuple((m, "plain") for m in members)
            choices.append(Choice((), written, frozenset(members), 0.8 + 0.2 * len(members)))
    return Problem(tuple(choices), tuple((k, "plain") for k in range(3 * count)), ())


def singles(problem: Problem) -> list[int]:
    """The plan that runs every primitive by itself."""
    return [k for k, c in enumerate(problem.choices) if len(c.primitives) == 1]


def test_repeated_blocks_are_solved_once() -> None:
    problem = triangles(20)
    memory = Memory()
    found = improve(problem, singles(problem), sizes=Sizes(primitives=6, whole=0), memory=memory)
    assert found.cost == pytest.approx(20 * 2.2)
    assert found.bound == pytest.approx(20 * 1.8)
    assert found.windows > 3 * found.distinct
    assert found.gap == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("seed", range(40))
def test_windows_run_and_never_make_it_worse(seed: int) -> None:
    rng = random.Random(seed)
    problem = draw_problem(rng, 9)
    start = run_order(problem, singles(problem))[0]
    before = sum(problem.choices[k].cost for k in start)
    found = improve(problem, start, sizes=Sizes(primitives=4, whole=0))
    assert run_order(problem, found.selected) == (list(found.selected), [])
    assert found.cost <= before * (1 + 1e-9)
    best = solve(problem)
    assert found.cost >= best.cost * (1 - 1e-9)
    whole = improve(problem, start, sizes=Sizes(primitives=50, whole=0))
    assert whole.cost == pytest.approx(best.cost)
    at_once = improve(problem, start)
    assert at_once.cost == pytest.approx(best.cost)
    assert at_once.bound == pytest.approx(best.cost)


def test_the_relaxation_that_is_a_plan_is_taken() -> None:
    problem = blocks(20)
    found = improve(problem, singles(problem), sizes=Sizes(whole=0))
    assert found.cost == pytest.approx(20 * (1.2 + 2.0)) == found.bound


def test_what_is_near_enough_is_not_improved() -> None:
    problem = triangles(3)
    best = solve(problem)
    alike = [0, 4, 6, 10, 12, 16]
    assert improve(problem, alike, enough=0.3).selected == tuple(alike)
    found = improve(problem, singles(problem), enough=0.01)
    assert found.cost == pytest.approx(best.cost) == found.bound


def test_the_canonical_form_does_not_know_numbers() -> None:
    def moved(by: int) -> Problem:
        one = Choice((), ((by, "plain"),), frozenset({by}), 1.0)
        two = Choice(((by, "plain"),), ((by + 2, "plain"),), frozenset({by + 2}), 1.0)
        return Problem((one, two), ((by + 2, "plain"),), ((by, by + 2),))

    assert canonical(moved(0)) == canonical(moved(7))
    assert canonical(moved(0)) != canonical(Problem((), (), ()))


def test_a_selection_that_does_not_run_is_refused() -> None:
    problem = blocks(1)
    with pytest.raises(ValueError, match="does not run"):
        improve(problem, [len(problem.choices) - 1], sizes=Sizes(whole=0))
