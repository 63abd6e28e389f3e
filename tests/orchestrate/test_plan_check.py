"""Laws of kernels from files: every candidate keeps them; what has lost a primitive breaks one, or is right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from fissile.ir.graph import Graph, Node
from fissile.orchestrate.candidates import Limits
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.plan import Kernel, Plan, Step
from fissile.orchestrate.plan_check import check_kernel, check_plan
from tests.e2e.draw import Case, cases, feeds_of
from tests.orchestrate.test_candidates import (
    agree,
    found_in,
    leaf,
    op,
    stored_form,
    terms,
    values_of,
)

drawn = settings(
    max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
FEW = Limits(per_sink=6, largest=6)


@drawn
@given(cases())
def test_every_candidate_keeps_the_laws(case: Case) -> None:
    check_plan(greedy_plan(case.graph))
    for candidate in found_in(case.graph).all:
        check_kernel(candidate.kernel)


def shorter(kernel: Kernel) -> Iterator[Kernel]:
    """The kernel with one primitive less in one of its lists."""
    for name in ("nodes", "inputs", "outputs"):
        listed: tuple[Node, ...] = getattr(kernel, name)
        for k in range(len(listed)):
            yield replace(kernel, **{name: listed[:k] + listed[k + 1 :]})  # type: ignore[arg-type]


@drawn
@given(cases())
def test_a_kernel_that_has_lost_something_is_refused_or_right(case: Case) -> None:
    found = found_in(case.graph, FEW)
    graph, numbers = found.units.graph, case.assignments[0]
    with np.errstate(all="ignore"):
        values = values_of(graph, list(graph.nodes()), feeds_of(case, numbers), numbers)
    memory = {n: stored_form(n, a, numbers) for n, a in values.items()}
    for candidate in found.all[:20]:
        for kernel in shorter(candidate.kernel):
            if kernel.is_call or terms(candidate.kernel, numbers) > 1000:
                continue
            try:
                check_kernel(kernel)
            except ValueError:
                continue
            agree(kernel, memory, numbers)


def test_what_is_missing_or_too_much_is_said() -> None:
    x = leaf("x", 4, 6)
    e = op("exp", x)
    total = op("reduce_sum", e, axes=(1,))
    plan = greedy_plan(Graph((x,), (("y", op("log", total)),)))
    (kernel,) = plan.kernels()
    check_plan(plan)
    for change, said in (
        ({"outputs": (x,)}, "does not compute"),
        ({"outputs": ()}, "does not compute"),
        ({"inputs": ()}, "neither reads nor lists"),
        ({"inputs": (x, op("neg", x))}, "does not need"),
        ({"nodes": kernel.nodes[::-1]}, "before what it reads"),
        ({"nodes": (*kernel.nodes, kernel.nodes[-1])}, "twice"),
        ({"piece": 1}, "pieces"),
    ):
        with pytest.raises(ValueError, match=said):
            check_kernel(replace(kernel, **change))
    with pytest.raises(ValueError, match="written twice"):
        check_plan(Plan(plan.graph, (*plan.steps, Step((kernel,)))))
