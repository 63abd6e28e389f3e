"""All meanings of a drawn graph side by side: graph, plan, loop programs, machine code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fissile import pipeline
from fissile.ir.dtype import BFLOAT16, DType, dtype
from fissile.ir.graph import Graph, Node, bind, evaluate
from fissile.ir.interpret import interpret
from fissile.ir.primitive import packed_extents
from fissile.ir.scalar import from_bfloat16
from fissile.orchestrate import plan as plans
from fissile.rewrite import canonicalize
from fissile.target import Target
from tests.e2e import machine
from tests.e2e.draw import Case, feeds_of

Array = npt.NDArray[Any]
INTERPRETED = 4000  # scalar terms of a program that the interpreter does in a moment
_NOISY_RUNS = 6
_SLACK = 8.0  # roundings add up over a sum's terms; the noise is one per primitive
_DIGITS = {"float64": 1e-5, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}


def assert_agree(case: Case, targets: list[Target], threads: tuple[int, ...] = (1, 2, 3)) -> None:
    """Every meaning of the case is the same at all of its assignments."""
    graph = canonicalize(case.graph).graph if case.canonical else case.graph
    feeds = [feeds_of(case, values) for values in case.assignments]
    with np.errstate(all="ignore"):
        wanted = [evaluate(case.graph, f, v) for f, v in zip(feeds, case.assignments)]
    tolerance = max(_DIGITS.get(n.dtype.name, 0) for n in (*case.graph.nodes(), *graph.nodes()))
    noise = [Noise(case.graph, f, v) for f, v in zip(feeds, case.assignments)]
    runs = list(zip(feeds, case.assignments, wanted, noise))
    if case.canonical:
        for f, v, want, spread in runs:
            _compare("canonical graph", evaluate(graph, f, v), want, graph, tolerance, spread)
    for target in targets:
        work = machine.lowered(graph, target)
        plan = work.known("plan")
        for f, v, want, spread in runs:
            _compare("plan", plans.evaluate(plan, f, v), want, graph, tolerance, spread)
            if _terms(plan, v) <= INTERPRETED:
                got = interpreted(work, f, v)
                _compare(f"loops for {target.name}", got, want, graph, tolerance, spread)
        built = machine.build(work)
        for f, v, want, spread in runs:
            bits = []
            for count in threads:
                got = machine.run(built, v, f, count, lead=count == 2)
                who = f"{target.name} on {count} threads"
                _compare(who, got, want, graph, tolerance, spread)
                bits.append({name: a.tobytes() for name, a in got.items()})
            assert all(b == bits[0] for b in bits), "other bits at another number of threads"


@dataclass
class Noise:
    """How far roundings may move the outputs: the graph evaluated again with every float off by an ulp or so.

    The sine of a large sum is worth no digit; what a case cannot promise is not asked of it. Evaluated only when a
    comparison fails otherwise.
    """

    graph: Graph
    feeds: Mapping[str, Array]
    values: Mapping[str, int]
    _found: dict[str, Array] = field(default_factory=dict)

    def of(self, name: str) -> Array:
        """Largest deviation seen per element of an output."""
        if not self._found:
            rng = np.random.default_rng(5)
            runs = [self._once(None), *(self._once(rng) for _ in range(_NOISY_RUNS))]
            for key, node in self.graph.outputs:
                exact, *moved = (_wide(run[node], node.dtype) for run in runs)
                with np.errstate(all="ignore"):
                    gaps = [np.abs(np.asarray(m, np.float64) - exact) for m in moved]
                same = [
                    np.isnan(m) == np.isnan(exact) if m.dtype.kind == "f" else True for m in moved
                ]
                loose = [np.where(s, np.nan_to_num(g, nan=0.0), np.inf) for s, g in zip(same, gaps)]
                self._found[key] = np.max(loose, axis=0)
        return self._found[name]

    def _once(self, rng: np.random.Generator | None) -> dict[Node, Array]:
        values: dict[Node, Array] = {}
        for node in self.graph.nodes():
            attrs = {k: bind(v, self.values) for k, v in node.attrs}
            if node.name == "input":
                values[node] = np.asarray(self.feeds[node.attr("name")])
                continue
            arrays = [values[i] for i in node.inputs]
            with np.errstate(all="ignore"):
                result = np.asarray(node.primitive.reference(*arrays, **attrs))
                if result.dtype.kind == "f" and rng is not None:
                    size = result
                    if node.primitive.combine == "add":  # a sum is as exact as its terms are large
                        size = node.primitive.reference(*map(np.abs, arrays), **attrs)
                    off = np.finfo(result.dtype).eps * rng.uniform(-2, 2, result.shape) * size
                    result = (result + off).astype(result.dtype)
            values[node] = result
        return values


def _compare(
    who: str,
    got: Mapping[str, Array],
    want: Mapping[str, Array],
    graph: Graph,
    tolerance: float,
    noise: Noise,
) -> None:
    for name, node in graph.outputs:
        a, b = _wide(got[name], node.dtype), _wide(want[name], node.dtype)
        assert a.shape == b.shape, f"{who}: {name} is {a.shape}, not {b.shape}"
        finite = np.abs(b[np.isfinite(b)]) if node.dtype.is_float else np.zeros(0)
        allowed = max(tolerance * float(finite.max(initial=0)), 1e-37)  # denormals are coarse
        relative = tolerance if node.dtype.is_float else 0.0
        close = np.isclose(a, b, relative, allowed, equal_nan=True)
        if not close.all():
            close |= np.abs(np.asarray(a, np.float64) - b) <= _SLACK * noise.of(name)
        if not close.all():
            np.testing.assert_allclose(
                a, b, relative, allowed, equal_nan=True, err_msg=f"{who}: {name}"
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
