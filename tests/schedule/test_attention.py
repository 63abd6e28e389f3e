"""Attention kernels: what the three kernels mean that they are made of, to the bit, at awkward and free extents."""

from __future__ import annotations

import numpy as np
import pytest

from fissile.ir.dim import DimLike, symbol
from fissile.ir.graph import Graph, Node
from fissile.ir.primitive import constant
from fissile.orchestrate.attention import attentions
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.identify import Refusal
from fissile.orchestrate.inline import followed
from fissile.orchestrate.plan import Kernel, Plan
from tests.schedule.joined import agrees, with_one
from tests.schedule.test_kernels import given, graph_of, kept, prim, softmax

B, M, N = symbol("b"), symbol("m"), symbol("n")


def attention(
    batch: tuple[DimLike, ...], m: DimLike, n: DimLike, k: int, d: int, *, mask: bool = False
) -> Graph:
    """softmax(q kT / 2 + mask) v"""
    q, kt, v = given("q", *batch, m, k), given("k", *batch, k, n), given("v", *batch, n, d)
    scores = prim("matmul", q, kt)
    half = constant(np.array(0.5, np.float32))
    scores = prim("mul", scores, prim("broadcast", half, shape=scores.shape))
    if mask:
        row = prim("reshape", given("mask", n), shape=(*(1 for _ in batch), 1, n))
        scores = prim("add", scores, prim("broadcast", row, shape=scores.shape))
    return graph_of(prim("neg", prim("matmul", softmax(scores), v)))


def divided_late(m: DimLike, n: DimLike) -> Graph:
    """exp(q kT) v / sums: the division behind the second product."""
    q, kt, v = given("q", 2, m, 3), given("k", 2, 3, n), given("v", 2, n, 5)
    scores = prim("matmul", q, kt)
    e = prim("exp", prim("sub", scores, kept(scores, prim("reduce_max", scores, axes=(2,)))))
    total, mixed = prim("reduce_sum", e, axes=(2,)), prim("matmul", e, v)
    return graph_of(prim("div", mixed, kept(mixed, total)))


def joined(graph: Graph) -> Plan:
    """The greedy plan with its attention as one kernel."""
    plan = greedy_plan(graph)
    (found,) = attentions(plan, followed(plan.graph))
    assert isinstance(found, Kernel), found
    return with_one(plan, found, 3)


def check(graph: Graph, target: str, *, loops: bool = True, **symbols: int) -> None:
    agrees(graph, joined(graph), target, loops=loops, **symbols)


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("mask", [False, True])
def test_heads(target: str, mask: bool) -> None:
    check(attention((2, 3), 7, 9, 5, 6, mask=mask), target)


@pytest.mark.parametrize(
    ("m", "n", "k", "d"), [(1, 2, 1, 1), (49, 70, 8, 33), (100, 33, 65, 3), (48, 16, 16, 16)]
)
def test_one_matrix(m: int, n: int, k: int, d: int) -> None:
    check(attention((), m, n, k, d), "x86-64-v3", loops=False)


@pytest.mark.parametrize(
    ("b", "m", "n"), [(1, 1, 1), (2, 5, 3), (1, 50, 300), (0, 4, 4), (2, 0, 5), (1, 3, 0)]
)
def test_free_extents(b: int, m: int, n: int) -> None:
    loops = b * m * n < 100
    check(attention((B, 2), M, N, 4, 5, mask=True), "x86-64-v3", loops=loops, b=b, m=m, n=n)


@pytest.mark.parametrize(("m", "n"), [(1, 2), (50, 7), (3, 40)])
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_a_division_behind_the_second_product(m: int, n: int, target: str) -> None:
    check(divided_late(m, n), target)
    check(divided_late(M, N), target, m=m, n=n)


def test_rows_longer_than_local_memory_are_refused() -> None:
    plan = greedy_plan(attention((), 8, 4096, 4, 4))
    (found,) = attentions(plan, followed(plan.graph))
    assert found == Refusal("what lies between two linear primitives does not fit local memory")


def test_scores_that_are_also_written_stay_in_memory() -> None:
    graph = attention((2,), 8, 9, 4, 4)
    scores: Node = next(n for n in graph.nodes() if n.name == "div")
    plan = greedy_plan(Graph(graph.inputs, (*graph.outputs, ("y1", scores))))
    assert not list(attentions(plan, followed(plan.graph)))
