"""Candidates of drawn graphs: each computes what the graph means from what it reads, and is lowered."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings

from fissile.ir.dtype import BFLOAT16, FLOAT32
from fissile.ir.graph import Graph, Node, bind, evaluate, make
from fissile.ir.interpret import interpret
from fissile.ir.primitive import PRIMITIVES, constant, pack_array, packed_extents
from fissile.ir.scalar import from_bfloat16
from fissile.orchestrate.candidates import Candidates, Limits, candidates_of
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.grow import is_convex
from fissile.orchestrate.plan import Anchor, Kernel, is_stored_leaf
from fissile.schedule.lower import lower
from fissile.target import named
from tests.e2e.draw import Case, cases, feeds_of

drawn = settings(
    max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
V3 = named("x86-64-v3")
FEW = Limits(per_sink=12, largest=8)


def op(primitive: str, /, *inputs: Node, **attrs: object) -> Node:
    return make(PRIMITIVES[primitive], *inputs, **attrs)


def leaf(name: str, *shape: int) -> Node:
    return op("input", name=name, dtype=FLOAT32.name, shape=shape)


def found_in(graph: Graph, limits: Limits = FEW) -> Candidates:
    return candidates_of(greedy_plan(graph), limits)


def values_of(
    graph: Graph, nodes: list[Node], feeds: Mapping[str, np.ndarray], numbers: Mapping[str, int]
) -> dict[Node, np.ndarray]:
    """The values of inner nodes, by making them outputs."""
    named_nodes = tuple((f"v{k}", n) for k, n in enumerate(nodes))
    values = evaluate(Graph(graph.inputs, named_nodes), feeds, numbers)
    return {n: values[name] for name, n in named_nodes}


@drawn
@given(cases())
def test_a_candidate_computes_what_the_graph_means(case: Case) -> None:
    """Its loop program, interpreted on the values of what it reads, writes the values of what it writes."""
    found = found_in(case.graph, Limits(per_sink=6, largest=6))
    graph, numbers = found.units.graph, case.assignments[0]
    stored = {n for c in found.all for n in (*c.kernel.inputs, *c.kernel.outputs)}
    with np.errstate(all="ignore"):
        values = values_of(
            graph, [n for n in graph.nodes() if n in stored], feeds_of(case, numbers), numbers
        )
    memory = {n: stored_form(n, a, numbers) for n, a in values.items()}
    for candidate in sorted(found.all, key=lambda c: -len(c.executes))[:12]:
        if terms(candidate.kernel, numbers) < 4000:
            agree(candidate.kernel, memory, numbers)


def agree(kernel: Kernel, memory: dict[Node, np.ndarray], numbers: Mapping[str, int]) -> None:
    row = lower(kernel, V3)
    mine = {n: memory[n] for n in kernel.inputs}
    for node in kernel.outputs:
        mine[node] = np.zeros_like(memory[node])
    arguments: dict[str, np.ndarray | int] = {}
    for parameter, argument in zip(row.function.params, row.arguments, strict=True):
        if isinstance(argument, Node):
            arguments[parameter.name] = mine[argument]
        else:
            arguments[parameter.name] = bind(argument, numbers)
    interpret(row.function, arguments)
    for node in kernel.outputs:
        got, want = written(kernel, mine[node], numbers), written(kernel, memory[node], numbers)
        if node.dtype is BFLOAT16:
            got, want = from_bfloat16(got), from_bfloat16(want)
        finite = np.abs(want[np.isfinite(want)].astype(np.float64)) if want.dtype.kind == "f" else 0
        digits = {"float16": 2e-3, "bfloat16": 2e-2}.get(node.dtype.name, 1e-5)
        allowed = digits * float(np.max(finite, initial=1)) if node.dtype.is_float else 0
        np.testing.assert_allclose(
            got, want, digits if node.dtype.is_float else 0, allowed, err_msg=str(kernel)
        )


def written(kernel: Kernel, array: np.ndarray, numbers: Mapping[str, int]) -> np.ndarray:
    """What the kernel writes of an array: one piece of a concat, all of any other."""
    if kernel.anchor is not Anchor.PIECE:
        return array
    node = kernel.nodes[0]
    axis = node.attr("axis")
    ends = np.cumsum([bind(i.shape, numbers)[axis] for i in node.inputs])
    last = int(ends[kernel.piece])
    first = last - bind(node.inputs[kernel.piece].shape, numbers)[axis]
    part: np.ndarray = array[(slice(None),) * axis + (slice(first, last),)]
    return part


def stored_form(node: Node, value: np.ndarray, numbers: Mapping[str, int]) -> np.ndarray:
    """A value as it lies in memory."""
    if node.name != "pack":
        return np.array(value, order="C")
    shape = bind(packed_extents(node), numbers)
    if 0 in value.shape:
        return np.zeros(shape, value.dtype)
    attrs: dict[str, Any] = dict(node.attrs)
    return pack_array(value, **attrs).reshape(shape)


def terms(kernel: Kernel, numbers: Mapping[str, int]) -> int:
    """About how many scalar terms a kernel computes."""
    total = 0
    for node in _computed(kernel):
        reduced = node.primitive.reduced(node) if node.primitive.reduced else ()
        total += math.prod(bind((*node.shape, *reduced), numbers))
    return total


@drawn
@given(cases())
def test_candidates_say_what_they_read_write_and_execute(case: Case) -> None:
    found = found_in(case.graph)
    units = found.units
    assert len(set(found.all)) == len(found.all)
    alone = {c.executes for c in found.all}
    assert all(frozenset({u}) in alone for u in range(len(units.all)))
    for candidate in found.all:
        assert set(candidate.writes) <= candidate.executes
        assert not candidate.executes.intersection(candidate.reads)
        wanted = {s for u in candidate.executes for s in units.reads[u]} - candidate.executes
        assert set(candidate.reads) == wanted
        stored = {n for n in candidate.kernel.inputs if not is_stored_leaf(n)}
        assert stored <= {units.all[u].value for u in candidate.reads}
        if len(candidate.writes) > 1:
            assert is_convex(candidate.executes, units.reads)


def test_softmax_is_one_kernel_and_also_several() -> None:
    x = leaf("x", 5, 7)
    top = op("broadcast", op("reshape", op("reduce_max", x, axes=(1,)), shape=(5, 1)), shape=(5, 7))
    e = op("exp", op("sub", x, top))
    total = op("reshape", op("reduce_sum", e, axes=(1,)), shape=(5, 1))
    y = op("div", e, op("broadcast", total, shape=(5, 7)))
    found = found_in(Graph((x,), (("y", y),)))
    whole = frozenset(range(len(found.units.all)))
    assert any(c.executes == whole and c.kernel.anchor is Anchor.ROWS for c in found.all)
    again = [c for c in found.all if e in _computed(c.kernel) and e not in c.kernel.outputs]
    assert {c.kernel.outputs[-1].name for c in again} >= {"reduce_sum", "div"}
    both = [c for c in found.all if len(c.writes) == 2]
    assert any({n.name for n in c.kernel.outputs} == {"exp", "reduce_sum"} for c in both)


def _computed(kernel: Kernel) -> set[Node]:
    seen: set[Node] = set()
    stack = list(kernel.outputs)
    while stack:
        node = stack.pop()
        if node not in seen and node not in kernel.inputs:
            seen.add(node)
            stack.extend(node.inputs)
    return seen


def test_padding_joins_what_stands_before_it() -> None:
    """Norm, ReLU and a reflecting pad before a convolution: one kernel, or part of the convolution's own copy."""
    x = leaf("x", 1, 6, 6, 3)
    zero = op("broadcast", constant(np.zeros((), np.float32)), shape=(1, 6, 6, 3))
    relu = op("max", op("mul", x, x), zero)
    rows = op("gather", relu, constant(np.array([1, 0, 1, 2, 3, 4, 5, 4])), axis=1)
    both = op("gather", rows, constant(np.array([1, 0, 1, 2, 3, 4, 5, 4])), axis=2)
    w = constant(np.ones((3, 3, 3, 4), np.float32))
    y = op("conv", both, w, groups=1, strides=(1, 1), dilations=(1, 1))
    found = found_in(Graph((x,), (("y", y),)), Limits())
    kinds = {(c.kernel.anchor, len(c.executes)) for c in found.all}
    assert (Anchor.ELEMENTWISE, 3) in kinds  # max(mul) is one unit, two gathers
    assert (Anchor.LINEAR, 4) in kinds


def test_refusals_have_reasons() -> None:
    x, w = leaf("x", 4, 8), leaf("w", 8, 8)
    first = op("matmul", x, w)
    second = op("matmul", first, w)
    found = found_in(Graph((x, w), (("y", op("reduce_sum", second, axes=(1,))),)))
    assert found.refused["two linear primitives"] > 0
    assert found.refused["a reduction fits no anchor of a linear primitive"] > 0


def test_sibling_reductions_share_a_pass() -> None:
    x = leaf("x", 5, 7)
    total, most = op("reduce_sum", x, axes=(1,)), op("reduce_max", x, axes=(1,))
    found = found_in(Graph((x,), (("a", total), ("b", most))))
    assert any(set(c.kernel.outputs) == {total, most} for c in found.all)


def constant_table(found: Candidates, rng: random.Random) -> dict[Kernel, float]:
    """A drawn cost for every kernel: fewer kernels are cheaper in the mean."""
    return {c.kernel: (0.5 + rng.random()) * len(c.executes) ** rng.random() for c in found.all}
