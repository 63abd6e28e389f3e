"""Products whose right operand is repeated along the batch: it is packed once, whatever the batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from fissile.ir.dim import DimLike, symbol, symbols
from fissile.ir.graph import Graph, bind, evaluate
from fissile.ir.primitive import constant
from fissile.orchestrate import plan as plans
from fissile.orchestrate.plan import Anchor, Kernel
from fissile.rewrite import canonicalize
from tests.e2e import machine
from tests.e2e.agree import interpreted
from tests.schedule.test_kernels import V3, given, graph_of, prim

B, S = symbol("b"), symbol("s")
DEEP = 300  # columns are summed by lanes


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(-3, 4, shape).astype(np.float32)


def packings(graph: Graph) -> list[Kernel]:
    kernels = machine.lowered(graph, V3).known("plan").kernels()
    return [k for k in kernels if k.anchor is Anchor.PACK]


@pytest.mark.parametrize("perm", [(0, 2, 1), (1, 0, 2), (2, 0, 1)])
@pytest.mark.parametrize("batch", [(B, S), (B, 7), (5, 7)])
def test_a_constant_is_packed_when_compiling(
    perm: tuple[int, ...], batch: tuple[DimLike, DimLike]
) -> None:
    """A transposed left operand, whose rows no reshape can gather."""
    shape: list[DimLike] = [*batch, 24]
    x = given("x", *(shape[perm.index(a)] for a in range(3)))
    left = prim("transpose", x, perm=perm)
    right = prim("broadcast", constant(weights(24, 40)), shape=(batch[0], 24, 40))
    graph = canonicalize(graph_of(prim("matmul", left, right))).graph
    assert packings(graph) == []


def test_a_weight_of_many_elements_is_moved_when_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first linear layer of VGG has 103 million."""
    monkeypatch.setattr("fissile.rewrite.fold.MAX_ELEMENTS", 10)
    flipped = prim("transpose", constant(weights(40, 24)), perm=(1, 0))
    graph = canonicalize(graph_of(prim("matmul", given("x", B, 24), flipped))).graph
    assert packings(graph) == []


@settings(max_examples=25, deadline=None)
@drawn(st.data())
def test_drawn_products(data: st.DataObject) -> None:
    """Some batch axes of the right operand are 1; all meanings agree with the product of repeated matrices."""
    batch = data.draw(st.sampled_from([(B,), (B, S), (3, B), (S, 2), (2, 5)]))
    drawn_sizes: list[tuple[DimLike, int, int]] = [
        (7, 24, 40), (1, 5, 3), (S, 33, 17), (9, DEEP, 3), (13, 600, 20)
    ]  # fmt: skip
    rows, depth, columns = data.draw(st.sampled_from(drawn_sizes))
    small = tuple(d if data.draw(st.booleans()) else 1 for d in batch)
    small = small[data.draw(st.integers(0, len(batch))) :]
    is_known = data.draw(st.booleans()) and all(isinstance(d, int) for d in small)
    known = tuple(d for d in small if isinstance(d, int))
    source = (
        constant(weights(*known, depth, columns))
        if is_known
        else given("w", *small, depth, columns)
    )
    left = given("x", *batch, rows, depth)
    if data.draw(st.booleans()):
        left = prim(
            "transpose",
            given("x", *batch, depth, rows),
            perm=(*range(len(batch)), len(batch) + 1, len(batch)),
        )
    wide = prim("broadcast", source, shape=(*batch, depth, columns))
    graph = graph_of(prim("matmul", left, wide))
    work = machine.lowered(graph, V3)
    for values in ({"b": 2, "s": 3}, {"b": 1, "s": 1}, {"b": 5, "s": 2}):
        used = {s.name: values[s.name] for n in graph.inputs for d in n.shape for s in symbols(d)}
        rng = np.random.default_rng(1)
        feeds = {str(n.attr("name")): rng.integers(-2, 3, bind(n.shape, used)).astype(np.float32)
                 for n in graph.inputs}  # fmt: skip
        want = evaluate(graph, feeds, used)["y0"]
        assert np.array_equal(plans.evaluate(work.known("plan"), feeds, used)["y0"], want)
        if want.size * depth < 4000:
            assert np.array_equal(interpreted(work, feeds, used)["y0"], want)
        got = machine.run(machine.build(work), used, feeds, 2, lead=False)["y0"]
        assert np.array_equal(got, want)
