"""All meanings of a drawn graph side by side: graph, plan, loop programs, machine code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fissile import pipeline
from fissile.ir.dtype import BFLOAT16, DType, dtype
from fissile.ir.graph import Graph, Node, bind, evaluate
from fissile.ir.interpret import interpret
from fissile.ir.primitive import from_bfloat16, packed_extents
from fissile.orchestrate import plan as plans
from fissile.rewrite import canonicalize
from fissile.target import Target
from tests.e2e import machine
from tests.e2e.draw import Case, feeds_of

Array = npt.NDArray[Any]
INTERPRETED = 4000  # scalar terms of a program that the interpreter does in a moment
_DIGITS = {"float64": 1e-5, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}


def assert_agree(case: Case, targets: list[Target], threads: tuple[int, ...] = (1, 2, 3)) -> None:
    """Every meaning of the case is the same at all of its assignments."""
    graph = canonicalize(case.graph).graph if case.canonical else case.graph
    feeds = [feeds_of(case, values) for values in case.assignments]
    with np.errstate(all="ignore"):
        wanted = [evaluate(case.graph, f, v) for f, v in zip(feeds, case.assignments)]
    tolerance = max(_DIGITS.get(n.dtype.name, 0) for n in (*case.graph.nodes(), *graph.nodes()))
    if case.canonical:
        for f, v, want in zip(feeds, case.assignments, wanted):
            _compare("canonical graph", evaluate(graph, f, v), want, graph, tolerance)
    for target in targets:
        work = machine.lowered(graph, target)
        plan = work.known("plan")
        for f, v, want in zip(feeds, case.assignments, wanted):
            _compare("plan", plans.evaluate(plan, f, v), want, graph, tolerance)
            if _terms(plan, v) <= INTERPRETED:
                got = interpreted(work, f, v)
                _compare(f"loops for {target.name}", got, want, graph, tolerance)
        built = machine.build(work)
        for f, v, want in zip(feeds, case.assignments, wanted):
            bits = []
            for count in threads:
                got = machine.run(built, v, f, count, lead=count == 2)
                _compare(f"{target.name} on {count} threads", got, want, graph, tolerance)
                bits.append({name: a.tobytes() for name, a in got.items()})
            assert all(b == bits[0] for b in bits), "other bits at another number of threads"


def _compare(
    who: str, got: Mapping[str, Array], want: Mapping[str, Array], graph: Graph, tolerance: float
) -> None:
    for name, node in graph.outputs:
        a, b = _wide(got[name], node.dtype), _wide(want[name], node.dtype)
        assert a.shape == b.shape, f"{who}: {name} is {a.shape}, not {b.shape}"
        if not node.dtype.is_float:
            np.testing.assert_array_equal(a, b, f"{who}: {name}")
            continue
        finite = np.abs(b[np.isfinite(b)])
        allowed = max(tolerance * float(finite.max(initial=0)), 1e-37)  # denormals are coarse
        np.testing.assert_allclose(
            a, b, tolerance, allowed, equal_nan=True, err_msg=f"{who}: {name}"
        )


def _wide(a: Array, of: DType) -> Array:
    if of is BFLOAT16:
        return from_bfloat16(a).astype(np.float64)
    return a.astype(np.float64) if of.is_float else a


# ---------------------------------------------------------------- loop programs


def _terms(plan: plans.Plan, values: Mapping[str, int]) -> int:
    """About how many scalar terms the plan's kernels compute."""
    total = 0
    for node in plan.graph.nodes():
        reduced = node.primitive.reduced(node) if node.primitive.reduced else ()
        total += math.prod(bind((*node.shape, *reduced), values))
    return total


def interpreted(
    work: pipeline.Work, feeds: Mapping[str, Array], values: Mapping[str, int]
) -> dict[str, Array]:
    """The outputs by the interpreter of loop programs, kernel after kernel."""
    plan = work.known("plan")
    memory: dict[Node, Array] = {n: np.array(w.data) for n, w in work.weights}
    for node in plan.graph.inputs:
        memory[node] = np.asarray(feeds[node.attr("name")], order="C")
    for _, row in work.loops[0].lowered:
        args: dict[str, Array | int] = {}
        for parameter, argument in zip(row.function.params, row.arguments, strict=True):
            if isinstance(argument, Node):
                if argument not in memory:
                    memory[argument] = _storage(argument, values)
                args[parameter.name] = memory[argument]
            else:
                args[parameter.name] = bind(argument, values)
        interpret(row.function, args)
    return {name: memory[n].reshape(bind(n.shape, values)) for name, n in plan.graph.outputs}


def _storage(node: Node, values: Mapping[str, int]) -> Array:
    """Memory for a tensor in its format, filled with what nobody may read."""
    shape = bind(packed_extents(node) if node.name == "pack" else node.shape, values)
    raw = np.full(math.prod(shape) * node.dtype.bytes, 0xA5, np.uint8)
    if node.dtype is dtype("bool"):
        raw[:] = 1
    return raw.view(node.dtype.numpy).reshape(shape)
