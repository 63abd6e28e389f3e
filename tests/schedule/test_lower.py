"""Lowering kernels of one form once is the same as lowering each."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from fissile.ir.graph import Graph, Node
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.plan import Kernel
from fissile.schedule import lower as room
from fissile.schedule.lower import lower, lower_all
from fissile.target import named
from tests.e2e.draw import Case, cases

V4 = named("x86-64-v4")


def renamed(graph: Graph) -> Graph:
    """The graph over inputs of other names."""
    new: dict[Node, Node] = {}
    for node in graph.nodes():
        attrs = node.attrs
        if node.name == "input":
            attrs = tuple((k, f"other_{v}" if k == "name" else v) for k, v in attrs)
        new[node] = Node(node.primitive, tuple(new[i] for i in node.inputs), attrs, node.type)
    inputs = tuple(new[n] for n in graph.inputs if n in new)
    return Graph(inputs, tuple((name, new[n]) for name, n in graph.outputs))


def kernels(graph: Graph) -> list[Kernel]:
    return greedy_plan(graph).kernels()


@settings(max_examples=40, deadline=None)
@given(cases())
def test_each_kernel_is_lowered_as_if_it_were_alone(case: Case) -> None:
    both = [*kernels(case.graph), *kernels(renamed(case.graph))]
    assert lower_all(both, V4) == [lower(k, V4) for k in both]


@settings(max_examples=10, deadline=None)
@given(cases())
def test_the_same_kernels_over_other_tensors_are_not_lowered_again(case: Case) -> None:
    first, second = kernels(case.graph), kernels(renamed(case.graph))
    count = [0]

    def counted(kernel: Kernel, target: object) -> object:
        count[0] += 1
        return lower(kernel, V4)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "lower", counted)
        patch.setattr(room, "_LOWERED", {})
        lower_all(first, V4)
        once = count[0]
        rows = lower_all([*first, *second], V4)
    assert count[0] == once
    assert rows == [lower(kernel, V4) for kernel in (*first, *second)]
