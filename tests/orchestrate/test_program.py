"""The program against the cheapest run found by exhaustive search, on drawn graphs of a few primitives."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Sequence

import pytest

from fissile.orchestrate.program import Choice, Problem, Tensor, relax, run_order, solve
from fissile.orchestrate.states import convex_sets, output_sets

FORMATS = ("plain", "blocked")


def draw_reads(rng: random.Random, count: int) -> list[list[int]]:
    """A graph in which every primitive reads up to three earlier ones."""
    return [sorted(rng.sample(range(k), min(k, rng.randint(0, 3)))) for k in range(count)]


def draw_problem(rng: random.Random, count: int) -> Problem:
    """Convex sets with drawn outputs, recomputing ones with one output, formats and conversions; it is solvable."""
    reads = draw_reads(rng, count)
    formats = FORMATS[: rng.choice((1, 1, 2))]
    read = {s for sources in reads for s in sources}
    ends = [k for k in range(count) if k not in read]
    choices = [_alone(rng, reads, k) for k in range(count)]
    sets = sorted(map(sorted, convex_sets(reads)))
    for members in rng.sample(sets, min(len(sets), rng.randint(0, 24))):
        inside = frozenset(members)
        outputs = rng.choice(list(itertools.islice(output_sets(inside, reads), 8)))
        choices.append(_choice(rng, reads, inside, outputs, formats))
    for _ in range(rng.randint(0, 6)):
        sink = rng.randrange(count)
        choices.append(
            _choice(rng, reads, _recomputing(rng, reads, sink), frozenset({sink}), formats)
        )
    if len(formats) > 1:
        for k, (a, b) in itertools.product(range(count), itertools.permutations(formats)):
            if rng.random() < 0.7:
                choices.append(Choice(((k, a),), ((k, b),), frozenset(), rng.random()))
    edges = tuple((source, k) for k, sources in enumerate(reads) for source in sources)
    return Problem(tuple(choices), tuple((k, "plain") for k in ends), edges)


def _alone(rng: random.Random, reads: list[list[int]], k: int) -> Choice:
    inputs = tuple((source, "plain") for source in reads[k])
    return Choice(inputs, ((k, "plain"),), frozenset({k}), 1 + rng.random())


def _choice(
    rng: random.Random,
    reads: list[list[int]],
    members: frozenset[int],
    outputs: frozenset[int],
    formats: Sequence[str],
) -> Choice:
    read = sorted({source for k in members for source in reads[k]} - members)
    inputs = tuple((source, rng.choice(formats)) for source in read)
    written = tuple((k, rng.choice(formats)) for k in sorted(outputs))
    cost = (0.5 + rng.random()) * len(members) ** rng.choice((0.2, 0.5, 1.0))
    return Choice(inputs, written, members, cost)


def _recomputing(rng: random.Random, reads: list[list[int]], sink: int) -> frozenset[int]:
    """Any set that serves one sink, convex or not."""
    members = {sink}
    for k in range(sink - 1, -1, -1):
        if any(k in reads[m] for m in members) and rng.random() < 0.5:
            members.add(k)
    return frozenset(members)


def cheapest(problem: Problem) -> float:
    """The cost of the cheapest run: a shortest path over the sets of written tensors."""
    number = {t: k for k, t in enumerate(dict.fromkeys(_tensors(problem)))}

    def mask(tensors: Sequence[Tensor]) -> int:
        return sum(1 << number[t] for t in tensors)

    moves = [(mask(c.inputs), mask(c.outputs), c.cost) for c in problem.choices]
    goal = mask(problem.needed)
    best = {0: 0.0}
    heap = [(0.0, 0)]
    while heap:
        cost, state = heapq.heappop(heap)
        if state & goal == goal:
            return cost
        if cost > best[state]:
            continue
        for inputs, outputs, extra in moves:
            after = state | outputs
            if inputs & state == inputs and cost + extra < best.get(after, float("inf")):
                best[after] = cost + extra
                heapq.heappush(heap, (cost + extra, after))
    raise AssertionError("the drawn problem has no solution")


def _tensors(problem: Problem) -> list[Tensor]:
    return [t for c in problem.choices for t in (*c.inputs, *c.outputs)]


def side_by_side(problems: Sequence[Problem]) -> tuple[Problem, list[int]]:
    """The problems as one, and for every choice the problem it comes from: one solve answers all of them."""
    choices: list[Choice] = []
    needed: list[Tensor] = []
    edges: list[tuple[int, int]] = []
    origin: list[int] = []
    for number, problem in enumerate(problems):
        base = 16 * number
        for c in problem.choices:
            inputs = tuple((k + base, f) for k, f in c.inputs)
            outputs = tuple((k + base, f) for k, f in c.outputs)
            choices.append(
                Choice(inputs, outputs, frozenset(k + base for k in c.primitives), c.cost)
            )
            origin.append(number)
        needed += [(k + base, f) for k, f in problem.needed]
        edges += [(p + base, c + base) for p, c in problem.edges]
    return Problem(tuple(choices), tuple(needed), tuple(edges)), origin


@pytest.mark.parametrize("part", range(100))
def test_the_optimum_is_that_of_exhaustive_search(part: int) -> None:
    """2,000 graphs, 20 in a program."""
    rngs = [random.Random(seed) for seed in range(part * 20, part * 20 + 20)]
    problems = [draw_problem(rng, rng.randint(1, 9)) for rng in rngs]
    best = [cheapest(problem) for problem in problems]
    whole, origin = side_by_side(problems)
    found = solve(whole)
    assert found.optimal
    assert found.relaxed <= found.bound * (1 + 1e-9) <= found.cost * (1 + 2e-9)
    assert found.bound == pytest.approx(sum(best), rel=1e-6)
    costs = [0.0] * len(problems)
    for k in found.selected:
        costs[origin[k]] += whole.choices[k].cost
    assert costs == pytest.approx(best, rel=1e-5)
    assert run_order(whole, found.selected) == (list(found.selected), [])
    printed = solve(problems[0], tight=False)
    assert printed.cost == pytest.approx(best[0], rel=1e-6)


@pytest.mark.parametrize("seed", [*range(12), 73, 100, 117, 124, 129, 130, 160, 162, 165])
def test_the_optimum_does_not_depend_on_the_start(seed: int) -> None:
    """The later ones are graphs of which HiGHS has returned the start instead of what it found."""
    problem = draw_problem(random.Random(seed), 9)
    start: list[int] = []
    written: set[Tensor] = set()
    for k, choice in enumerate(problem.choices):
        formats = {form for _, form in (*choice.inputs, *choice.outputs)}
        if len(choice.primitives) == 1 and formats == {"plain"} and not written >= {*choice.outputs}:
            start.append(k)
            written |= {*choice.outputs}
    order, stuck = run_order(problem, start)
    assert not stuck
    found, best = solve(problem, start=order), solve(problem)
    assert found.cost == pytest.approx(best.cost) == found.bound
    near = solve(problem, start=order, gap=0.5)
    assert near.optimal
    assert near.bound <= best.cost * (1 + 1e-9)
    assert near.cost <= best.cost / (1 - 0.5) * (1 + 1e-9)


def test_kernels_that_wait_for_each_other_are_cut_off() -> None:
    """a -> c and e -> d; {a, d} needs e, {c, e} needs a: each is a kernel, both together are none."""
    a, c, e, d = range(4)
    plain = "plain"
    single = [
        Choice((), ((a, plain),), frozenset({a}), 1.0),
        Choice(((a, plain),), ((c, plain),), frozenset({c}), 1.0),
        Choice((), ((e, plain),), frozenset({e}), 1.0),
        Choice(((e, plain),), ((d, plain),), frozenset({d}), 1.0),
    ]
    crossed = [
        Choice(((e, plain),), ((a, plain), (d, plain)), frozenset({a, d}), 0.5),
        Choice(((a, plain),), ((c, plain), (e, plain)), frozenset({c, e}), 0.5),
    ]
    needed = ((c, plain), (d, plain))
    problem = Problem((*single, *crossed), needed, ((a, c), (e, d)))
    assert run_order(problem, [4, 5]) == ([], [4, 5])
    for tight in (True, False):
        found = solve(problem, tight=tight)
        assert found.rounds > 1
        assert found.cost == pytest.approx(2.0)  # a alone, {c, e}, {a, d}


def test_conversions_do_not_feed_each_other() -> None:
    there = Choice(((0, "plain"),), ((0, "blocked"),), frozenset(), 0.1)
    back = Choice(((0, "blocked"),), ((0, "plain"),), frozenset(), 0.1)
    made = Choice((), ((0, "blocked"),), frozenset({0}), 5.0)
    found = solve(Problem((there, back, made), ((0, "plain"),), ()))
    assert found.selected == (2, 1)


def test_the_tight_relaxation_is_never_weaker() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        problem = draw_problem(rng, 9)
        assert relax(problem).objective >= relax(problem, tight=False).objective - 1e-7


def test_what_nobody_writes_cannot_be_planned() -> None:
    for tight in (True, False):
        with pytest.raises(ValueError, match="no selection"):
            solve(Problem((), ((0, "plain"),), ()), tight=tight)


def test_nothing_is_needed() -> None:
    assert solve(Problem((), (), ())).selected == ()
    assert relax(Problem((), (), ())).objective == 0.0
