"""Chains of a depthwise window and the products around it: their meaning at awkward extents, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from fissile.ir.dim import DimLike, product, symbol
from fissile.ir.dtype import FLOAT32
from fissile.ir.graph import Graph, Node, bind, data, evaluate
from fissile.ir.primitive import constant
from fissile.orchestrate.candidates import candidates_of
from fissile.orchestrate.chain import chain_of, chains, made_again, strip_of
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.identify import Refusal
from fissile.orchestrate.inline import followed
from fissile.orchestrate.plan import Anchor, Kernel, Plan
from tests.e2e import machine
from tests.e2e.agree import interpreted
from tests.e2e.draw import values_of
from tests.schedule.joined import with_one, work_of
from tests.schedule.test_kernels import given, graph_of, prim

N, H = symbol("n"), symbol("h")
KINDS = {"up": (True, False), "down": (False, True), "both": (True, True)}
ZERO = np.array(0, np.float32)


def weights(seed: int, *shape: int) -> Node:
    return constant(values_of(np.random.default_rng(seed), FLOAT32, shape, "whole"))


def relu(x: Node) -> Node:
    return prim("max", x, prim("broadcast", constant(ZERO), shape=x.shape))


def block(
    kind: str, image: tuple[DimLike, DimLike, int], widths: tuple[int, int, int],
    size: int = 3, stride: int = 1, dilation: int = 1, pad: int = 1,
) -> Graph:  # fmt: skip
    """Pointwise, depthwise, pointwise; widths: channels given, expanded and out."""
    before, behind = KINDS[kind]
    given_width, wide, out = widths
    y = given("x", *image, given_width if before else wide)
    if before:
        y = prim("reshape", y, shape=(product(image), given_width))
        y = prim(
            "reshape", relu(prim("matmul", y, weights(1, given_width, wide))), shape=(*image, wide)
        )
    if pad:
        ends = (0, pad, pad, 0)
        y = prim("pad", y, low=ends, high=ends, value=data(ZERO))
    steps = {"groups": wide, "strides": (stride, stride), "dilations": (dilation, dilation)}
    y = relu(prim("conv", y, weights(2, size, size, 1, wide), **steps))
    if behind:
        y = prim("reshape", y, shape=(product(y.shape[:3]), wide))
        y = prim("matmul", y, weights(3, wide, out))
        y = prim("add", y, prim("broadcast", weights(4, out), shape=y.shape))
    return graph_of(y)


def joined(graph: Graph, count: int) -> Plan:
    """The greedy plan with its longest chain, of `count` kernels, as one."""
    plan = greedy_plan(graph)
    found = [k for k in chains(plan, followed(plan.graph)) if isinstance(k, Kernel)]
    chain = max(found, key=lambda k: len(k.nodes))
    return with_one(plan, chain, count)


def check(graph: Graph, kind: str, target: str, *, loops: bool = True, **symbols: int) -> None:
    """Loop programs and machine code mean what the graph means, at any number of threads."""
    work = work_of(graph, joined(graph, sum(KINDS[kind]) + 1), target)
    rng = np.random.default_rng(7)
    feeds = {
        n.attr("name"): values_of(rng, n.dtype, bind(n.shape, symbols), "whole")
        for n in graph.inputs
    }
    want = evaluate(graph, feeds, symbols)
    if loops:
        got = interpreted(work, feeds, symbols)
        np.testing.assert_array_equal(got["y0"], want["y0"])
    built = machine.build(work)
    for threads in (1, 2, 3):
        run = machine.run(built, symbols, feeds, threads, lead=threads == 2)
        np.testing.assert_array_equal(run["y0"], want["y0"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_a_small_image(kind: str, target: str) -> None:
    check(block(kind, (1, 5, 6), (3, 5, 4)), kind, target)


@pytest.mark.parametrize(
    ("image", "widths", "size", "stride", "dilation", "pad"),
    [
        ((1, 9, 7), (5, 17, 35), 3, 2, 1, 1),
        ((2, 11, 5), (20, 33, 3), 5, 1, 1, 2),
        ((1, 12, 9), (4, 40, 19), 3, 1, 2, 2),
        ((1, 8, 9), (4, 40, 19), 2, 3, 1, 0),
        ((3, 1, 1), (1, 2, 1), 3, 1, 1, 1),
        ((1, 33, 20), (9, 70, 33), 3, 1, 1, 1),
    ],
)
def test_windows_of_all_kinds(
    image: tuple[int, int, int], widths: tuple[int, int, int], size: int, stride: int,
    dilation: int, pad: int,
) -> None:  # fmt: skip
    graph = block("both", image, widths, size, stride, dilation, pad)
    check(graph, "both", "x86-64-v3", loops=False)


@pytest.mark.parametrize(("n", "h"), [(0, 3), (1, 1), (2, 7), (3, 40)])
@pytest.mark.parametrize("kind", ["up", "both"])
def test_free_images_and_rows(kind: str, n: int, h: int) -> None:
    check(block(kind, (N, H, 3), (3, 6, 5)), kind, "x86-64-v3", loops=h < 40, n=n, h=h)


def test_rows_that_do_not_fit_are_refused() -> None:
    plan = greedy_plan(block("both", (1, 64, 512), (8, 512, 8)))
    found = list(chains(plan, followed(plan.graph)))
    reasons = {f.reason for f in found if isinstance(f, Refusal)}
    assert reasons == {"what lies between two linear primitives does not fit local memory"}


def test_a_value_that_others_read_stays_in_memory() -> None:
    graph = block("both", (1, 5, 6), (3, 5, 4))
    inner = next(n for n in graph.nodes() if n.name == "conv")
    both = Graph(graph.inputs, (*graph.outputs, ("y1", inner)))
    plan = greedy_plan(both)
    found = [k for k in chains(plan, followed(plan.graph)) if isinstance(k, Kernel)]
    assert all(k.outputs[-1].type.rank == 4 for k in found)


def test_rows_at_the_ends_of_tasks_are_counted_twice() -> None:
    plan = joined(block("both", (1, 112, 14), (8, 32, 8)), 3)
    chain = next(k for k in plan.kernels() if k.anchor is Anchor.CHAIN)
    strip = strip_of(chain_of(chain))
    assert strip is not None
    assert (strip.task, strip.slots) == (16, strip.group + 2)
    made = max(made_again(chain, lambda extent: int(str(extent))).values())
    assert made == 1 + 6 * 2 / 112


def test_chains_are_candidates() -> None:
    found = candidates_of(greedy_plan(block("both", (1, 20, 14), (8, 32, 8))))
    names = [c.kernel.nodes[0].name for c in found.all if c.kernel.anchor is Anchor.CHAIN]
    assert sorted(names) == ["conv", "matmul", "matmul"]
