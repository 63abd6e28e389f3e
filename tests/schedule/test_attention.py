"""Attention kernels: what the three kernels mean that they are made of, to the bit, at awkward and free extents."""

from __future__ import annotations

import numpy as np
import pytest

from fissile.ir.dim import DimLike, symbol
from fissile.ir.graph import Graph, Node, evaluate
from fissile.ir.primitive import constant
from fissile.orchestrate.attention import attention_of, attentions, in_pieces
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.identify import Refusal
from fissile.orchestrate.inline import followed
from fissile.orchestrate.plan import Kernel, Plan
from tests.e2e import machine
from tests.schedule.joined import agrees, with_one, work_of
from tests.schedule.test_kernels import given, graph_of, kept, prim, softmax

B, M, N = symbol("b"), symbol("m"), symbol("n")


def attention(
    batch: tuple[DimLike, ...], m: DimLike, n: DimLike, k: int, d: int, *, mask: bool = False,
    fill: float | None = None,
) -> Graph:  # fmt: skip
    """softmax(q kT / 2 + mask) v; fill: what NaN becomes between."""
    q, kt, v = given("q", *batch, m, k), given("k", *batch, k, n), given("v", *batch, n, d)
    scores = prim("matmul", q, kt)
    half = constant(np.array(0.5, np.float32))
    scores = prim("mul", scores, prim("broadcast", half, shape=scores.shape))
    if mask:
        row = prim("reshape", given("mask", n), shape=(*(1 for _ in batch), 1, n))
        scores = prim("add", scores, prim("broadcast", row, shape=scores.shape))
    shares = softmax(scores) if fill is None else filled(softmax(scores), fill)
    return graph_of(prim("neg", prim("matmul", shares, v)))


def filled(x: Node, value: float) -> Node:
    """x, but a value for NaN."""
    single = constant(np.array(value, np.float32))
    return prim("select", prim("ne", x, x), prim("broadcast", single, shape=x.shape), x)


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


def check(
    graph: Graph, target: str, *, loops: bool = True, same: bool = True, **symbols: int
) -> None:
    agrees(graph, joined(graph), target, loops=loops, same=same, **symbols)


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
    check(attention((B, 2), M, N, 4, 5, mask=True), "x86-64-v3", loops=loops, same=False, b=b, m=m, n=n)


@pytest.mark.parametrize(("m", "n"), [(1, 2), (50, 7), (3, 40)])
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_a_division_behind_the_second_product(m: int, n: int, target: str) -> None:
    check(divided_late(m, n), target)
    check(divided_late(M, N), target, same=False, m=m, n=n)


def centred(n: DimLike) -> Graph:
    """(q kT less its row's largest) v: no softmax."""
    q, kt, v = given("q", 8, 4), given("k", 4, n), given("v", n, 4)
    scores = prim("matmul", q, kt)
    top = kept(scores, prim("reduce_max", scores, axes=(1,)))
    return graph_of(prim("matmul", prim("sub", scores, top), v))


def found_in(graph: Graph) -> Kernel | Refusal:
    """The one attention kernel of the greedy plan."""
    plan = greedy_plan(graph)
    (found,) = attentions(plan, followed(plan.graph))
    return found


def test_rows_longer_than_local_memory_are_refused_but_for_a_softmax() -> None:
    no = Refusal("what lies between two linear primitives does not fit local memory")
    assert found_in(centred(4096)) == no
    assert found_in(attention((), 8, 4096, 4, 300)) == no
    found = found_in(attention((), 8, 4096, 4, 4))
    assert isinstance(found, Kernel)
    assert in_pieces(attention_of(found)) is not None


def test_rows_that_fit_and_no_softmax_are_not_cut() -> None:
    for graph in (attention((), 8, 256, 4, 4), attention((), 8, N, 4, 300), centred(N)):
        found = found_in(graph)
        assert isinstance(found, Kernel)
        assert in_pieces(attention_of(found)) is None
    check(centred(N), "x86-64-v3", n=70)


# ---------------------------------------------------------------- pieces


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 64 scores, whatever would fit."""
    monkeypatch.setattr("fissile.schedule.attention.PIECE", 64)
    monkeypatch.setattr("fissile.orchestrate.attention.SCORES_BYTES", 0)


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(("m", "n", "k", "d"), [(5, 63, 3, 1), (7, 64, 5, 17), (3, 65, 1, 4), (2, 130, 2, 2)])
@pytest.mark.usefixtures("short")
def test_rows_in_pieces(target: str, m: int, n: int, k: int, d: int) -> None:
    check(attention((2,), m, n, k, d, mask=True, fill=0.5 if m == 3 else None), target, same=False)


@pytest.mark.parametrize(("m", "n"), [(1, 2), (50, 197), (3, 128), (0, 5), (4, 0)])
@pytest.mark.usefixtures("short")
def test_rows_of_any_length_in_pieces(m: int, n: int) -> None:
    check(divided_late(M, N), "x86-64-v4", same=False, loops=m * n < 400, m=m, n=n)
    check(attention((2,), M, N, 3, 33, fill=0), "x86-64-v3", same=False, loops=m * n < 400, m=m, n=n)


@pytest.mark.parametrize("fill", [None, 0, 0.25])
@pytest.mark.usefixtures("short")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_not_finite_stays_so_piece_by_piece(fill: float | None) -> None:
    """Masked pieces before, between and behind others; a row that is masked as a whole; +inf and NaN."""
    q, k, v, mask = (given(*row) for row in (("q", 8, 2), ("k", 2, N), ("v", N, 35), ("mask", 8, N)))
    scores = prim("add", prim("matmul", q, k), mask)
    shares = softmax(scores) if fill is None else filled(softmax(scores), fill)
    graph = graph_of(prim("matmul", shares, v))
    rng, n = np.random.default_rng(3), 197
    feeds = {a: rng.standard_normal(s).astype(np.float32) for a, s in
             {"q": (8, 2), "k": (2, n), "v": (n, 35), "mask": (8, n)}.items()}  # fmt: skip
    feeds["mask"][0, :70] = feeds["mask"][1, 60:130] = feeds["mask"][2, 50:] = -np.inf
    feeds["mask"][3] = -np.inf
    feeds["mask"][4, 100], feeds["mask"][5, 3], feeds["mask"][6, 190] = np.inf, np.nan, -1e38
    feeds["mask"][7, :90], feeds["mask"][7, 90:] = -np.inf, -300
    feeds["v"][2, 3], feeds["v"][150, 33], feeds["v"][190, 1] = np.inf, -np.inf, np.nan
    want = evaluate(graph, feeds, {"n": n})["y0"]
    assert np.isfinite(want[[0, 1, 2, 6, 7]]).sum() == 5 * 32
    assert np.isfinite(want[3:6]).sum() == (0 if fill is None else 3 * 32)
    for target in ("x86-64-v3", "x86-64-v4"):
        built = machine.build(work_of(graph, joined(graph), target))
        got = machine.run(built, {"n": n}, feeds, 1, lead=False)["y0"]
        np.testing.assert_allclose(got, want, 1e-4, 1e-5)


@pytest.mark.usefixtures("short")
def test_pieces_are_as_accurate_as_whole_rows() -> None:
    """Against float64, with scores that rise by thousands along the row, so that all that is summed is scaled again."""
    graph = attention((), 9, N, 4, 5)
    rng, n = np.random.default_rng(5), 1000
    feeds = {a: rng.standard_normal(s).astype(np.float32)
             for a, s in {"q": (9, 4), "k": (4, n), "v": (n, 5)}.items()}  # fmt: skip
    feeds["k"] *= np.linspace(0, 3, n, dtype=np.float32) ** 4
    scores = feeds["q"].astype(float) @ feeds["k"].astype(float) / 2
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    want = -(e / e.sum(axis=1, keepdims=True)) @ feeds["v"].astype(float)
    errors = []
    for plan in (joined(graph), greedy_plan(graph)):
        built = machine.build(work_of(graph, plan, "x86-64-v3"))
        got = machine.run(built, {"n": n}, feeds, 1, lead=False)["y0"]
        errors.append(float(np.abs(got - want).max()))
    assert errors[0] < max(2 * errors[1], 1e-6)


def test_scores_that_are_also_written_stay_in_memory() -> None:
    graph = attention((2,), 8, 9, 4, 4)
    scores: Node = next(n for n in graph.nodes() if n.name == "div")
    plan = greedy_plan(Graph(graph.inputs, (*graph.outputs, ("y1", scores))))
    assert not list(attentions(plan, followed(plan.graph)))
