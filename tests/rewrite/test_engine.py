"""The engine: fixed point, names, guards, sharing, and the two ways in which a set of rules can be wrong."""

from __future__ import annotations

import doctest
import warnings

import numpy as np
import pytest

from fissile.errors import CompileError, FissileWarning, OptionError
from fissile.ir.dim import symbol
from fissile.ir.dtype import FLOAT64
from fissile.ir.graph import Graph, Node, constraints, evaluate
from fissile.ir.primitive import cast
from fissile.rewrite import RULES, canonicalize, engine
from fissile.rewrite.engine import rewrite
from fissile.rewrite.rule import Outcome, Refused, Rule, enabled, rule
from tests.rewrite.corpus import P, graph_of, source

X = source([2, 3])
Y = source([2, 3], "y")


def _rule(apply: object, *roots: str) -> Rule:
    return Rule("r", "", roots, apply, "tests")  # type: ignore[arg-type]


def test_rules_that_undo_each_other_are_named_and_the_graph_is_used() -> None:
    def swap(node: Node) -> Outcome:
        return P("add", node.inputs[1], node.inputs[0])

    root = P("exp", P("add", X, Y))
    with pytest.warns(FissileWarning, match="the rewrite rules r do not come to an end"):
        done = rewrite(graph_of(root), [_rule(swap, "add")])
    assert done.graph.outputs[0][1] is root


def test_rules_that_make_ever_more_nodes_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "STEPS_PER_NODE", 1)

    def grow(node: Node) -> Outcome:
        return P("add", P("neg", P("neg", node.inputs[0])), Y)

    with pytest.warns(FissileWarning, match="the rewrite rules r do not come to an end"):
        done = rewrite(graph_of(P("add", X, Y)), [_rule(grow, "add")])
    feeds = {name: np.arange(6, dtype=np.float32).reshape(2, 3) for name in "xy"}
    assert np.array_equal(evaluate(done.graph, feeds, {})["y0"], 2 * feeds["x"])


def test_an_exchange_that_the_rules_undo_leaves_the_graph() -> None:
    """A substitution that is the other direction of a canonical rule."""

    def hoist(node: Node) -> Outcome:
        inner = node.inputs[0]
        return P("exp", P("neg", inner.inputs[0])) if inner.name == "exp" else Refused("")

    before = P("tanh", P("exp", P("neg", X)))
    there = P("neg", P("exp", X))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        renewal = engine.Renewal([_rule(hoist, "neg")])
        done = renewal.exchanged(graph_of(before), {before.inputs[0]: there})
    assert done.outputs[0][1] is before


def test_an_exchange_may_contain_what_it_replaces() -> None:
    old = P("exp", X)
    renewal = engine.Renewal([])
    done = renewal.exchanged(graph_of(P("tanh", old)), {old: P("neg", P("neg", old))})
    assert done.outputs[0][1] is P("tanh", old)


def test_a_rule_that_changes_the_type_is_named() -> None:
    def widen(node: Node) -> Outcome:
        return cast(node.inputs[0], FLOAT64)

    with pytest.raises(CompileError, match="rule r changed exp"):
        rewrite(graph_of(P("exp", X)), [_rule(widen, "exp")])


def test_names_are_unique_and_roots_exist() -> None:
    with pytest.raises(ValueError, match="twice"):

        @rule("a law", "add")
        def merge_transposes(node: Node) -> Outcome:
            return Refused("never")

    with pytest.raises(ValueError, match="roots"):

        @rule("a law", "softmax")
        def some_other(node: Node) -> Outcome:
            return Refused("never")

    assert "some_other" not in RULES


def test_every_rule_can_be_switched_off() -> None:
    twice = P("neg", P("neg", X))
    assert canonicalize(graph_of(twice)).graph.outputs[0][1] is X
    off = canonicalize(graph_of(twice), {"drop_double"})
    assert off.graph.outputs[0][1] is twice
    assert off.fired == {}
    for name in RULES:
        assert name not in {r.name for r in enabled(RULES[name].regime, [name])}


def test_an_unknown_name_is_an_error_with_a_hint() -> None:
    with pytest.raises(OptionError, match="did you mean"):
        canonicalize(graph_of(X), {"merge_transpose"})


def test_every_rule_states_its_law() -> None:
    for r in RULES.values():
        assert "->" in r.law
        assert r.apply.__doc__


def test_origins_follow_the_rewriting() -> None:
    t = P("transpose", X, perm=(1, 0))
    e = P("exp", t)
    back = P("transpose", e, perm=(1, 0))
    names = {t: ("T1",), e: ("Exp",), back: ("T2",)}
    graph = Graph((X,), (("out", back),), names)
    done = canonicalize(graph).graph
    (_, root), *_ = done.outputs
    assert root is P("exp", X)
    assert "Exp" in done.origins[root]
    assert set(done.origins) <= set(done.nodes())


def test_inputs_and_output_names_stay() -> None:
    unused = source([4], "unused")
    graph = Graph((X, unused), (("a", P("neg", P("neg", X))), ("b", X)))
    done = canonicalize(graph).graph
    assert done.inputs == (X, unused)
    assert done.outputs == (("a", X), ("b", X))


def test_a_guard_outlives_the_node_it_came_from() -> None:
    a, b = symbol("d4", 1), symbol("d5", 1)
    x = source([a, b])
    both = P("max", P("reshape", P("reshape", x, shape=(b, b)), shape=(a, b)), x)
    graph = graph_of(both)
    assert list(constraints(graph))
    done = canonicalize(graph).graph
    assert done.outputs[0][1] is x
    assert not list(constraints(done))
    assert [(g.left, g.right) for g in done.guards] == [(a * b, b * b)]


def test_shared_nodes_are_rewritten_once() -> None:
    x: Node = X
    for _ in range(200):  # 2**200 paths
        x = P("add", x, P("neg", P("neg", x)))
    done = canonicalize(graph_of(x))
    assert done.fired == {"drop_double": 200}
    assert len(done.graph.nodes()) == 201


def test_depth_is_no_limit() -> None:
    x: Node = X
    for _ in range(3000):
        x = P("exp", P("neg", P("neg", x)))
    assert len(canonicalize(graph_of(x)).graph.nodes()) == 3001


def test_the_example_in_the_docstring() -> None:
    assert doctest.testmod(engine).failed == 0
    assert doctest.testmod(engine).attempted == 6
