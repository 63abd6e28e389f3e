"""Laws of every rule of both regimes where values and extents are extreme: NaN and infinities, and 0, 1 or odd extents
that only a call knows. A rule is covered by being declared: its instances are drawn from the tables of the two corpora.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fissile.ir.dim import DimLike, symbol
from fissile.ir.dim import evaluate as evaluate_dim
from fissile.ir.graph import Graph, Node, constraints, evaluate
from fissile.rewrite import RULES
from fissile.rewrite.engine import Renewal, rewrite
from fissile.rewrite.substitute import sites
from tests.rewrite import corpus, substitutions
from tests.rewrite.corpus import graph_of, number, values_of

EXTREME = (0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 0.5)
EXTENTS = (0, 1, 3, 6)
# What is not finite reaches all of a tile, or what has a weight of 0 for it.
SPREADING = ("winograd_2", "winograd_4", "convolve_phases", "merge_windows")
EDGES = settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)


def drawn(draw: Any, name: str) -> Graph:
    """A graph on which the rule may fire."""
    if RULES[name].regime == "canonicalize":
        return graph_of(corpus.INSTANCES[name](draw))
    return graph_of(*substitutions.INSTANCES[name](draw))


def applied(graph: Graph, name: str) -> Iterator[Graph]:
    """The graph after each firing of the rule."""
    if RULES[name].regime == "canonicalize":
        done = rewrite(graph, [RULES[name]])
        if done.fired:
            yield done.graph
        return
    for site in sites(graph, (RULES[name],), None):
        places = dict(zip(site.nodes, site.new, strict=True))
        yield Renewal(()).exchanged(graph, places)


def extreme_feeds(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    feeds = {}
    for node in graph.inputs:
        shape = tuple(map(number, node.shape))
        values = rng.uniform(0.5, 2, shape)
        if node.dtype.is_float:
            values = np.where(rng.random(shape) < 0.1, rng.choice(EXTREME, shape), values)
        feeds[node.attr("name")] = values.astype(node.dtype.numpy)
    return feeds


@pytest.mark.parametrize("name", RULES)
def test_what_is_not_finite_stays_so_and_where_it_is(name: str) -> None:
    @EDGES
    @given(st.data(), st.integers(0, 99))
    def check(data: st.DataObject, seed: int) -> None:
        graph = drawn(data.draw, name)
        feeds = extreme_feeds(graph, seed)
        with np.errstate(all="ignore"):
            want = values_of(graph, feeds)
            for after in applied(graph, name):
                got = values_of(after, feeds)
                for key, array in want.items():
                    if array.dtype.kind != "f":
                        continue
                    lost = np.isfinite(got[key]) & ~np.isfinite(array)
                    assert not np.any(lost)
                    spread = np.isfinite(array) & ~np.isfinite(got[key])
                    assert name in SPREADING or not np.any(spread)

    check()


# ---------------------------------------------------------------- extents


def unknown(shape: Any) -> list[DimLike]:
    """The shape with every number known in a call only."""
    return [symbol(f"d{d}") if isinstance(d, int) and d > 1 else d for d in shape]


def holds(graph: Graph, extents: dict[str, int]) -> bool:
    """Whether a call with these extents is accepted."""
    try:
        return all(
            evaluate_dim(a, extents) == evaluate_dim(b, extents) for _, a, b in constraints(graph)
        ) and all(
            evaluate_dim(g.left, extents) == evaluate_dim(g.right, extents) for g in graph.guards
        )
    except ArithmeticError:
        return False


def compared(graph: Graph, after: Graph, extents: dict[str, int]) -> bool:
    """Whether both can be evaluated with these extents; AssertionError when the values differ."""
    rng = np.random.default_rng(0)
    feeds = {
        n.attr("name"): rng.uniform(0.5, 2, [evaluate_dim(d, extents) for d in n.shape]).astype(
            n.dtype.numpy
        )
        for n in graph.inputs
    }
    with np.errstate(all="ignore"):
        try:
            want = evaluate(graph, feeds, extents)
        except (ValueError, IndexError, AssertionError):
            return False
        got = evaluate(after, feeds, extents)
    for key, array in want.items():
        assert got[key].shape == array.shape
        np.testing.assert_allclose(
            got[key].astype(float), array.astype(float), rtol=2e-5, atol=2e-5, equal_nan=True
        )
    return True


@pytest.mark.parametrize("name", RULES)
def test_extents_of_a_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = corpus.source

    def source(shape: Any, *args: Any, **kwargs: Any) -> Node:
        return plain(unknown(shape), *args, **kwargs)

    for module in (corpus, substitutions):
        monkeypatch.setattr(module, "source", source)

    @EDGES
    @given(st.data())
    def check(data: st.DataObject) -> None:
        try:
            graph = drawn(data.draw, name)
        except (ValueError, TypeError, AssertionError):
            return  # the instance needs a number
        extents = {f"d{n}": n for n in range(64)}
        for n in data.draw(st.lists(st.integers(2, 9), max_size=2)):
            extents[f"d{n}"] = data.draw(st.sampled_from(EXTENTS))
        if not holds(graph, extents):
            return
        for after in applied(graph, name):
            compared(graph, after, extents)

    check()
