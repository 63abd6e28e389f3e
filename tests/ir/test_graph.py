"""The primitive graph: sharing, order, rebuilding, evaluation, and what becomes a guard."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fissile.ir.dim import symbol
from fissile.ir.dtype import FLOAT32
from fissile.ir.graph import (
    Graph,
    Node,
    bind_partial,
    constraints,
    data,
    data_later,
    evaluate,
    make,
    map_graph,
    users,
)
from fissile.ir.primitive import PRIMITIVES, scalar

N, M = symbol("n"), symbol("m")


def P(primitive: str, /, *inputs: Node, **attrs: Any) -> Node:
    return make(PRIMITIVES[primitive], *inputs, **attrs)


def source(name: str, *shape: Any) -> Node:
    return P("input", name=name, dtype="float32", shape=shape)


def diamond() -> tuple[Graph, Node]:
    x = source("x", N, 3)
    shared = P("exp", x)
    y = P("add", P("neg", shared), shared)
    return Graph((x,), (("y", y),), {shared: ("first",), y: ("second",)}), shared


def test_equal_nodes_are_one() -> None:
    x = source("x", N, 3)
    assert P("exp", x) is P("exp", source("x", N, 3))
    assert P("exp", x) is not P("exp", source("y", N, 3))


def test_order_has_producers_first_and_each_node_once() -> None:
    graph, _ = diamond()
    nodes = graph.nodes()
    assert [n.name for n in nodes] == ["input", "exp", "neg", "add"]
    for place, node in enumerate(nodes):
        assert all(nodes.index(i) < place for i in node.inputs)


def test_deep_graphs_need_no_recursion() -> None:
    node = source("x", 2)
    for _ in range(5000):
        node = P("neg", P("exp", node))
    assert len(Graph((), (("y", node),)).nodes()) == 10001


def test_users() -> None:
    graph, shared = diamond()
    readers = users(graph.nodes())
    assert [n.name for n in readers[shared]] == ["neg", "add"]
    assert readers[graph.outputs[0][1]] == []


def test_evaluate() -> None:
    graph, _ = diamond()
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(evaluate(graph, {"x": x}, {"n": 2})["y"], np.zeros((2, 3)))
    with pytest.raises(AssertionError, match="evaluated to"):
        evaluate(graph, {"x": x}, {"n": 3})


def test_rebuilding_keeps_origins() -> None:
    graph, shared = diamond()

    def change(node: Node) -> Node | None:
        return P("tanh", *node.inputs) if node.name == "exp" else None

    rebuilt = map_graph(graph, change)
    assert [n.name for n in rebuilt.nodes()] == ["input", "tanh", "neg", "add"]
    assert rebuilt.origins[rebuilt.nodes()[1]] == graph.origins[shared]
    assert map_graph(graph, lambda node: None).outputs == graph.outputs


def test_unproved_equalities_are_reported_once() -> None:
    y = P("add", source("a", N), source("b", M))
    graph = Graph((), (("y", y), ("z", P("sub", source("a", N), source("b", M)))))
    assert [(str(a), str(b)) for _, a, b in constraints(graph)] == [("n", "m")]


def test_symbols_can_be_bound_in_part() -> None:
    assert bind_partial((N + M, ("x", N)), {"n": 4}) == (M + 4, ("x", 4))


def test_constants_compare_by_content() -> None:
    assert scalar(0.0, FLOAT32) is not scalar(-0.0, FLOAT32)
    assert scalar(float("nan"), FLOAT32) is scalar(float("nan"), FLOAT32)


def test_a_constant_that_is_made_later_is_made_once_and_compares_by_what_it_is_made_of() -> None:
    source, made = data(np.arange(6, dtype=np.float32)), []

    def twice(array: np.ndarray) -> np.ndarray:
        made.append(array)
        return 2 * array

    first, same = (data_later(source, "twice", (6,), twice) for _ in range(2))
    other = data_later(source, "thrice", (6,), twice)
    assert first == same
    assert hash(first) == hash(same)
    assert first not in (other, source)
    node = make(PRIMITIVES["constant"], value=first, dtype="float32")
    assert node is make(PRIMITIVES["constant"], value=same, dtype="float32")
    assert node.shape == (6,)
    assert not made
    np.testing.assert_array_equal(first.array, 2 * source.array)
    assert first.array is first.array
    assert len(made) == 1
    assert not first.array.flags.writeable
