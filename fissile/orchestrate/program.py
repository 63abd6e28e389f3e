"""The binary linear program that chooses kernels (Korch section 5, DESIGN 3.4), solved with HiGHS.

In: a `Problem` of plain data: candidate kernels with the tensors they read and write, the primitives they execute and
their costs. Out: the cheapest set of candidates that computes what is needed, in an order that runs, with the bounds
that prove it. Two formulations have the same optimum: Korch's as printed, and the tight one with coverage, edge and
producer constraints, whose relaxation is nearly integral. Invariant: a selection that cannot run is never returned;
where formats or several outputs would allow one, a constraint that cuts it off is added and the program solved again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import highspy
import numpy as np

Tensor = tuple[int, str]  # the primitive whose value it is, and the format it is held in
_INF = float("inf")
_SELECTED = 0.5


@dataclass(frozen=True)
class Choice:
    """A candidate: reads `inputs`, writes `outputs`, executes `primitives`. A conversion of formats executes none.

    Tensors that are in memory from the start are not listed. cost: any unit, not negative.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    primitives: frozenset[int]
    cost: float


@dataclass(frozen=True)
class Problem:
    """What may be chosen, the tensors that must be written, and (producer, reader) pairs of primitives.

    A choice that executes the reader of an edge either executes its producer or reads a tensor of it. live: the
    primitives that every plan executes, None for all; the readers of edges are live.
    """

    choices: tuple[Choice, ...]
    needed: tuple[Tensor, ...]
    edges: tuple[tuple[int, int], ...]
    live: frozenset[int] | None = None

    @cached_property
    def writers(self) -> Mapping[Tensor, tuple[int, ...]]:
        """For every tensor the choices that write it."""
        found: dict[Tensor, list[int]] = {}
        for k, choice in enumerate(self.choices):
            for tensor in choice.outputs:
                found.setdefault(tensor, []).append(k)
        return {tensor: tuple(ks) for tensor, ks in found.items()}

    @cached_property
    def sources(self) -> Mapping[int, tuple[int, ...]]:
        """For every primitive those that it reads."""
        found: dict[int, list[int]] = {}
        for producer, reader in self.edges:
            found.setdefault(reader, []).append(producer)
        return {reader: tuple(ps) for reader, ps in found.items()}


@dataclass(frozen=True)
class Relaxation:
    """The linear relaxation: its objective, and value and reduced cost of every choice."""

    objective: float
    values: np.ndarray
    reduced: np.ndarray


@dataclass(frozen=True)
class Solution:
    """selected: numbers of choices in an order that runs. cost: their sum. bound: proved, no plan costs less.

    relaxed: objective of the linear relaxation. rounds: solves, more than one where cuts were needed.
    optimal: whether the solver finished in its time.
    """

    selected: tuple[int, ...]
    cost: float
    bound: float
    relaxed: float
    rounds: int
    seconds: float
    optimal: bool


def solve(
    problem: Problem,
    *,
    tight: bool = True,
    time_limit: float = 10.0,
    start: Sequence[int] = (),
    gap: float = 0.0,
    nodes: int | None = None,
) -> Solution:
    """The cheapest executable selection. ValueError when there is none, or none was found in time and no `start`.

    tight: the constraints of DESIGN 3.4 instead of Korch's. time_limit: seconds. start: a selection that runs, from
    which on the solver looks for a better one. gap: relative, of what counts as the optimum. nodes: of the search
    tree, after which the best so far is taken.
    """
    began = time.perf_counter()
    if not problem.needed:
        return Solution((), 0.0, 0.0, 0.0, 0, 0.0, True)
    rows = _tight(problem) if tight else _printed(problem)
    solver, scale = _load(problem, rows)
    relaxed = _relaxed(solver) / scale
    _make_binary(solver, rows.columns)
    given = rows.values_of(problem, start)
    solver.setOptionValue("mip_rel_gap", gap)
    if nodes is not None:
        solver.setOptionValue("mip_max_nodes", nodes)
    rounds = 0
    while True:
        rounds += 1
        left = time_limit - (time.perf_counter() - began)
        finished = left > 0 and _run(solver, solver.getRunTime() + left, given)
        bound = max(relaxed, solver.getInfo().mip_dual_bound / scale)
        chosen = _chosen(solver, problem)
        if finished and given is not None and not _is_found(solver, problem, chosen, scale):
            given = None
            continue
        order, stuck = run_order(problem, chosen)
        if chosen and not stuck and left > 0:
            break
        if not finished:
            order, stuck = run_order(problem, start)
            if not start or stuck:
                raise ValueError("no selection was found in time")
            break
        for cut in _cuts(problem, order, stuck):
            solver.addRow(0.0, _INF, len(cut), np.array([*cut]), np.array([*cut.values()]))
    cost = cost_of(problem, order)
    seconds = time.perf_counter() - began
    return Solution(tuple(order), cost, min(bound, cost), relaxed, rounds, seconds, finished)


def relax(problem: Problem, *, tight: bool = True) -> Relaxation:
    """The linear relaxation alone. ValueError when even that is infeasible."""
    if not problem.needed:
        zeros = np.zeros(len(problem.choices))
        return Relaxation(0.0, zeros, zeros)
    solver, scale = _load(problem, _tight(problem) if tight else _printed(problem))
    objective = _relaxed(solver) / scale
    found = solver.getSolution()
    count = len(problem.choices)
    values, reduced = np.array(found.col_value[:count]), np.array(found.col_dual[:count])
    return Relaxation(objective, values, reduced / scale)


def cost_of(problem: Problem, selected: Iterable[int]) -> float:
    """The cost of a selection."""
    return sum(problem.choices[k].cost for k in selected)


def run_order(problem: Problem, chosen: Iterable[int]) -> tuple[list[int], list[int]]:
    """(those of the chosen that can run, in an order that does; those that wait for each other or for nothing)."""
    numbers = list(chosen)
    left: list[int] = []
    readers: dict[Tensor, list[int]] = {}
    for place, k in enumerate(numbers):
        needed = set(problem.choices[k].inputs)
        left.append(len(needed))
        for tensor in needed:
            readers.setdefault(tensor, []).append(place)
    now = [place for place, count in enumerate(left) if count == 0]
    order: list[int] = []
    while now:
        order += now
        following: list[int] = []
        for tensor in (t for place in now for t in problem.choices[numbers[place]].outputs):
            for place in readers.pop(tensor, ()):
                left[place] -= 1
                if left[place] == 0:
                    following.append(place)
        now = sorted(following)
    return [numbers[p] for p in order], [k for p, k in enumerate(numbers) if left[p] > 0]


# ---------------------------------------------------------------- constraints


@dataclass
class _Rows:
    """Sparse rows `low <= sum(coefficient * variable) <= high` over `columns` binary variables, choices first.

    tensors: the column of each that has one.
    """

    columns: int
    tensors: Mapping[Tensor, int] = field(default_factory=dict)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    start: list[int] = field(default_factory=lambda: [0])
    index: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)

    def add(self, terms: Mapping[int, float], low: float, high: float = _INF) -> None:
        """One more row."""
        self.low.append(low)
        self.high.append(high)
        self.index.extend(terms)
        self.value.extend(terms.values())
        self.start.append(len(self.index))

    def values_of(self, problem: Problem, selected: Iterable[int]) -> np.ndarray | None:
        """The variables of a selection; None of an empty one."""
        chosen = [*selected]
        written = {t for k in chosen for t in problem.choices[k].outputs}
        values = np.zeros(self.columns)
        values[[*chosen, *(self.tensors[t] for t in written if t in self.tensors)]] = 1.0
        return values if chosen else None


def _printed(problem: Problem) -> _Rows:
    """Korch's program: what is needed is written, and so is whatever a chosen kernel reads."""
    rows = _Rows(len(problem.choices))
    for tensor in problem.needed:
        rows.add(dict.fromkeys(problem.writers.get(tensor, ()), 1.0), 1.0)
    for k, choice in enumerate(problem.choices):
        for tensor in choice.inputs:
            terms = dict.fromkeys(problem.writers.get(tensor, ()), 1.0)
            terms[k] = terms.get(k, 0.0) - 1.0
            rows.add(terms, 0.0)
    return rows


def _tight(problem: Problem) -> _Rows:
    """Coverage, edge, producer and aggregated dependency constraints over choices u and tensors y."""
    count = len(problem.choices)
    read = (t for choice in problem.choices for t in choice.inputs)
    tensors = list(dict.fromkeys((*problem.writers, *problem.needed, *read)))
    y = {tensor: count + k for k, tensor in enumerate(tensors)}
    rows = _Rows(count + len(tensors), y)
    forms: dict[int, list[Tensor]] = {}
    for tensor in tensors:
        forms.setdefault(tensor[0], []).append(tensor)
    executors: dict[int, list[int]] = {}
    for k, choice in enumerate(problem.choices):
        for primitive in choice.primitives:
            executors.setdefault(primitive, []).append(k)
    for primitive, ks in executors.items():
        if problem.live is None or primitive in problem.live:
            rows.add(dict.fromkeys(ks, 1.0), 1.0)
    for producer, reader in problem.edges:
        both = set(executors.get(producer, ())) & set(executors.get(reader, ()))
        terms = dict.fromkeys(sorted(both), 1.0)
        terms.update((y[t], 1.0) for t in forms.get(producer, ()))
        rows.add(terms, 1.0)
    for tensor in problem.needed:
        rows.add({y[tensor]: 1.0}, 1.0)
    for tensor in tensors:
        _producer(problem, rows, y, tensor)
    return rows


def _producer(problem: Problem, rows: _Rows, y: Mapping[Tensor, int], tensor: Tensor) -> None:
    """`tensor` is there if and only if somebody writes it, and then all that its writer reads is there.

    Of two writers with this one output the later is useless; writers with several outputs are bound one by one.
    """
    writers = problem.writers.get(tensor, ())
    alone = [k for k in writers if len(problem.choices[k].outputs) == 1]
    several = [k for k in writers if len(problem.choices[k].outputs) > 1]
    there = {y[tensor]: -1.0}
    rows.add({**dict.fromkeys(writers, 1.0), **there}, 0.0, _INF if several else 0.0)
    groups = ([alone] if several and alone else []) + [[k] for k in several]
    for group in groups:
        rows.add({**dict.fromkeys(group, 1.0), **there}, -_INF, 0.0)
    for group in [alone, *([k] for k in several)]:
        reading: dict[Tensor, list[int]] = {}
        for k in group:
            for source in dict.fromkeys(problem.choices[k].inputs):
                reading.setdefault(source, []).append(k)
        for source, ks in reading.items():
            rows.add({y[source]: 1.0, **dict.fromkeys(ks, -1.0)}, 0.0)


def _cuts(problem: Problem, order: list[int], stuck: list[int]) -> list[dict[int, float]]:
    """Rows `sum >= 0` that the stuck selection violates and every plan that runs fulfils.

    Whatever tensors are missing: the first kernel that writes one of them cannot read any of them. Said of all that
    are missing it always cuts the selection off, said of every knot of kernels alone it cuts off more.
    """
    ready = {t for k in order for t in problem.choices[k].outputs}
    missing = {t for k in stuck for t in problem.choices[k].outputs} - ready
    cuts = []
    for group in (*_knots(problem, stuck, missing), stuck):
        own = missing.intersection(t for k in group for t in problem.choices[k].outputs)
        writers = sorted({k for t in own for k in problem.writers[t]})
        first = [k for k in writers if not own.intersection(problem.choices[k].inputs)]
        cuts += [
            {**dict.fromkeys(first, 1.0), k: -1.0}
            for k in group
            if own.intersection(problem.choices[k].inputs)
        ]
    return cuts


def _knots(problem: Problem, stuck: list[int], missing: set[Tensor]) -> list[list[int]]:
    """The groups of stuck kernels that wait for each other, directly or in turn."""
    after: dict[int, set[int]] = {}
    for k in stuck:
        waits = missing.intersection(problem.choices[k].inputs)
        after[k] = {w for w in stuck if waits.intersection(problem.choices[w].outputs)}
    reach = {k: _reachable(after, k) for k in stuck}
    knots = {frozenset(w for w in reach[k] if k in reach[w]) for k in stuck if k in reach[k]}
    return sorted(map(sorted, knots))


def _reachable(after: Mapping[int, set[int]], start: int) -> set[int]:
    found: set[int] = set()
    stack = list(after[start])
    while stack:
        k = stack.pop()
        if k not in found:
            found.add(k)
            stack.extend(after[k])
    return found


# ---------------------------------------------------------------- the solver


class _Solver(highspy.Highs):  # type: ignore[misc]
    """HiGHS without callbacks: installing them prints a banner before any option can forbid it."""

    def enableCallbacks(self) -> None:
        """Nothing."""


def _load(problem: Problem, rows: _Rows) -> tuple[highspy.Highs, float]:
    """A solver that holds the relaxation, and what costs are multiplied with there.

    Seconds are far below the solver's absolute tolerances.
    """
    if any(tensor not in problem.writers for tensor in problem.needed):
        raise ValueError("no selection of the candidates computes what is needed")
    solver = _Solver()
    options = {"output_flag": False, "threads": 1, "mip_rel_gap": 0.0, "mip_abs_gap": 1e-7}
    for option, value in options.items():
        solver.setOptionValue(option, value)
    costs = np.array([choice.cost for choice in problem.choices])
    positive = costs[costs > 0]
    scale = 1.0 / float(positive.mean()) if positive.size else 1.0
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = rows.columns, len(rows.low)
    lp.col_cost_ = np.concatenate((costs * scale, np.zeros(rows.columns - len(costs))))
    lp.col_lower_, lp.col_upper_ = np.zeros(rows.columns), np.ones(rows.columns)
    lp.row_lower_, lp.row_upper_ = np.array(rows.low), np.array(rows.high)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.array(rows.start)
    lp.a_matrix_.index_ = np.array(rows.index)
    lp.a_matrix_.value_ = np.array(rows.value)
    solver.passModel(lp)
    return solver, scale


def _make_binary(solver: highspy.Highs, columns: int) -> None:
    kinds = np.full(columns, int(highspy.HighsVarType.kInteger), dtype=np.uint8)
    solver.changeColsIntegrality(columns, np.arange(columns, dtype=np.int32), kinds)


def _run(solver: highspy.Highs, until: float = _INF, given: np.ndarray | None = None) -> bool:
    """Whether the optimum was found before `until` seconds of solver time. ValueError: there is no solution.

    given: variables of a solution. A basis left by an earlier solve has led HiGHS to a wrong optimum, so each starts
    anew.
    """
    solver.clearSolver()
    if given is not None:
        known = highspy.HighsSolution()
        known.col_value = given.tolist()
        solver.setSolution(known)
    solver.setOptionValue("time_limit", until)
    solver.run()
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        raise ValueError("no selection of the candidates computes what is needed")
    return bool(status == highspy.HighsModelStatus.kOptimal)


def _is_found(
    solver: highspy.Highs, problem: Problem, chosen: Sequence[int], scale: float
) -> bool:
    """Whether these are what the solver says it found: HiGHS has returned what it was given instead of that."""
    cost = cost_of(problem, chosen) * scale
    return bool(cost <= solver.getInfo().objective_function_value * (1 + 1e-6) + 1e-6)


def _relaxed(solver: highspy.Highs) -> float:
    if not _run(solver):
        raise ValueError("the relaxation could not be solved")
    return float(solver.getInfo().objective_function_value)


def _chosen(solver: highspy.Highs, problem: Problem) -> list[int]:
    values = solver.getSolution().col_value
    return [k for k, _ in enumerate(problem.choices) if k < len(values) and values[k] > _SELECTED]
