"""Drawn graphs, free extents included: rules come to an end soon, canonical ones stay there, and the search, too."""

from __future__ import annotations

import warnings

from hypothesis import HealthCheck, given, settings

from fissile.errors import FissileWarning
from fissile.rewrite import Budget, canonicalize, estimator, substitute
from tests.e2e.draw import Case, cases

FIRINGS_PER_NODE = 12
DRAWN = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@given(cases())
@DRAWN
def test_canonical_rules_come_to_an_end_and_stay_there(case: Case) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FissileWarning)
        done = canonicalize(case.graph)
        again = canonicalize(done.graph)
    nodes = len(case.graph.nodes())
    assert sum(done.fired.values()) <= FIRINGS_PER_NODE * nodes, done.fired
    assert not again.fired
    assert again.graph.outputs == done.graph.outputs


@given(cases())
@DRAWN
def test_the_search_comes_to_an_end(case: Case) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FissileWarning)
        graph = canonicalize(case.graph).graph
        found = substitute(graph, estimator(), Budget())
    assert found
