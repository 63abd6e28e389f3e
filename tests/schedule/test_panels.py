"""Products that end in panels: the right operand of another product, written where it is computed, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from fissile.ir.dim import DimLike, symbol
from fissile.ir.graph import Graph, Node, bind
from fissile.ir.interpret import interpret
from fissile.ir.primitive import constant
from fissile.orchestrate.candidates import Candidate, candidates_of
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.plan import Anchor, Plan
from fissile.schedule.lower import lower
from fissile.target import named
from tests.e2e.draw import values_of
from tests.orchestrate.test_candidates import stored_form
from tests.orchestrate.test_candidates import values_of as inner_values
from tests.schedule.joined import agrees, with_one
from tests.schedule.test_kernels import given, graph_of, prim

B, M, N = symbol("b"), symbol("m"), symbol("n")


def product_then(
    batch: tuple[DimLike, ...], m: DimLike, k: int, n: int, *, heads: int = 1, turned: bool = False
) -> Graph:
    """q (x w + c), its right operand split into heads; turned: q (x w + c)T"""
    x = given("x", *batch, m, k)
    w = constant(np.random.default_rng(3).standard_normal((k, n)).astype(np.float32))
    w = prim(
        "broadcast", prim("reshape", w, shape=(*(1 for _ in batch), k, n)), shape=(*batch, k, n)
    )
    right = prim("matmul", x, w)
    c = prim("reshape", given("c", n), shape=(*(1 for _ in batch), 1, n))
    right = prim("add", right, prim("broadcast", c, shape=right.shape))
    if heads > 1:
        rank = len(batch)
        right = prim("reshape", right, shape=(*batch, m, heads, n // heads))
        order = (*range(rank), rank + 1, rank, rank + 2)
        right = prim("transpose", right, perm=order)
    if turned:
        rank = right.type.rank
        right = prim("transpose", right, perm=(*range(rank - 2), rank - 1, rank - 2))
    q = given("q", *right.shape[:-2], 3, right.shape[-2])
    return graph_of(prim("matmul", q, right))


def found_in(graph: Graph) -> list[Candidate]:
    """Candidates that compute a product into panels."""
    plan = greedy_plan(graph)
    return [
        c
        for c in candidates_of(plan).all
        if c.kernel.anchor is Anchor.LINEAR and c.kernel.outputs[-1].name == "pack"
    ]


def joined(graph: Graph) -> Plan:
    """The greedy plan, the product and its packing one kernel."""
    plan = greedy_plan(graph)
    found = max(found_in(graph), key=lambda c: len(c.executes)).kernel
    inside = set(found.nodes)
    count = sum(1 for k in plan.kernels() if inside.intersection(k.nodes))
    assert count > 1
    return with_one(plan, found, count)


def check(graph: Graph, target: str, *, loops: bool = True, **symbols: int) -> None:
    agrees(graph, joined(graph), target, loops=loops, same=True, **symbols)


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(7, 5, 9), (17, 3, 50), (1, 1, 20), (33, 6, 16), (5, 3, 2)]
)
def test_one_matrix(target: str, turned: bool, m: int, k: int, n: int) -> None:
    check(product_then((), m, k, n, turned=turned), target, loops=m * n < 100)


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("turned", [False, True])
def test_heads(target: str, turned: bool) -> None:
    check(product_then((2,), 21, 5, 32 * 3, heads=3, turned=turned), target, loops=False)
    check(product_then((3,), 5, 4, 32, heads=2, turned=turned), target)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("b", "m"), [(1, 1), (2, 5), (0, 4), (2, 0), (1, 230), (3, 32)])
def test_free_extents(turned: bool, b: int, m: int) -> None:
    graph = product_then((B,), M, 4, 37, turned=turned)
    check(graph, "x86-64-v3", loops=b * m < 11, b=b, m=m)


def test_deep_products_are_padded_once() -> None:
    """Several blocks of depth and of rows: the zeros do not depend on which of them a task has."""
    check(product_then((), 201, 1100, 301), "x86-64-v3", loops=False)
    check(product_then((), 201, 1100, 301, turned=True), "x86-64-v4", loops=False)


@pytest.mark.parametrize("turned", [False, True])
def test_a_convolution(turned: bool) -> None:
    """Rows of all images are one matrix; every image has panels of its own."""
    w = constant(np.random.default_rng(3).standard_normal((2, 3, 3, 19)).astype(np.float32))
    y = prim("conv", given("x", 2, 6, 7, 3), w, groups=1, strides=(1, 1), dilations=(1, 1))
    y = prim("reshape", y, shape=(2, 25, 19))
    if turned:
        y = prim("transpose", y, perm=(0, 2, 1))
    q = given("q", 2, 4, y.shape[1])
    check(graph_of(prim("matmul", q, y)), "x86-64-v3", loops=False)


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("b", "m"), [(1, 1), (2, 5), (0, 4), (2, 0), (1, 35), (3, 16)])
def test_every_element_of_the_panels_is_written(target: str, turned: bool, b: int, m: int) -> None:
    """What lies behind the last column becomes zero, whatever was there."""
    graph, numbers = product_then((B,), M, 3, 21, turned=turned), {"b": b, "m": m}
    found = max(found_in(graph), key=lambda c: len(c.executes)).kernel
    rng = np.random.default_rng(5)
    feeds = {
        n.attr("name"): values_of(rng, n.dtype, bind(n.shape, numbers), "whole")
        for n in graph.inputs
    }
    (output,) = found.outputs
    values = inner_values(graph, [*found.inputs, output], feeds, numbers)
    memory = {n: stored_form(n, a, numbers) for n, a in values.items()}
    want = memory[output].copy()
    memory[output][...] = np.nan
    row = lower(found, named(target))
    arguments = {
        p.name: memory[a] if isinstance(a, Node) else bind(a, numbers)
        for p, a in zip(row.function.params, row.arguments, strict=True)
    }
    interpret(row.function, arguments)
    np.testing.assert_allclose(memory[output], want, 1e-5, 1e-5)


@pytest.mark.parametrize("turned", [False, True])
def test_one_column(turned: bool) -> None:
    check(product_then((2,), 5, 3, 1, turned=turned), "x86-64-v3")


def test_heads_that_end_inside_a_panel_are_refused() -> None:
    """A vector of columns would belong to two heads."""
    assert not found_in(product_then((2,), 9, 4, 30, heads=3))
    assert not found_in(product_then((2,), 21, 4, 30, heads=3, turned=True))
    assert found_in(
        product_then((2,), 9, 4, 30, heads=3, turned=True)
    )  # one panel: heads lie in a row
