"""Bounds of drawn kernels: below the guess, and what they say of simple ones is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from fissile.ir.graph import Graph
from fissile.ir.primitive import constant
from fissile.orchestrate.bound import Machine, bound, estimate
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.plan import Kernel
from tests.e2e.draw import Case, cases
from tests.orchestrate.test_candidates import found_in, leaf, op

MACHINE = Machine(1e9, ((1000.0, 1e9), (1e5, 1e8)), 1e-6)
drawn = settings(
    max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def only(graph: Graph) -> Kernel:
    (kernel,) = greedy_plan(graph).kernels()
    return kernel


@drawn
@given(cases())
def test_the_bound_is_below_the_guess(case: Case) -> None:
    for candidate in found_in(case.graph).all:
        least = bound(candidate.kernel, MACHINE)
        assert MACHINE.dispatch <= least <= estimate(candidate.kernel, MACHINE)


def test_bytes_move_at_the_speed_of_the_level_they_fit() -> None:
    small, large = leaf("x", 100), leaf("x", 10_000)
    one = bound(only(Graph((small,), (("y", op("abs", small)),))), MACHINE)
    assert one == pytest.approx(1e-6 + 800 / 1e9)
    many = bound(only(Graph((large,), (("y", op("abs", large)),))), MACHINE)
    assert many == pytest.approx(1e-6 + 80_000 / 1e8)


def test_a_product_makes_two_operations_per_term() -> None:
    x = leaf("x", 50, 40)
    w = constant(np.ones((40, 30), np.float32))
    fast = Machine(1e9, ((1e9, 1e12),), 1e-6)
    seconds = bound(only(Graph((x,), (("y", op("matmul", x, w)),))), fast)
    assert seconds == pytest.approx(1e-6 + 2 * 50 * 40 * 30 / 1e9)


def test_of_what_is_sliced_only_a_part_is_computed_and_read() -> None:
    x = leaf("x", 1000)
    part = op("slice", op("exp", x), starts=(5,), steps=(2,), shape=(10,))
    found = found_in(Graph((x,), (("y", op("abs", part)),)))
    (both,) = (c.kernel for c in found.all if len(c.executes) == 2)
    assert bound(both, MACHINE) <= 1e-6 + 10 * 17 / 1e9
