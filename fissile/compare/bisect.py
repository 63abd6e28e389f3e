"""Which level brings a difference in: fission, a rewrite rule, the plan, or a kernel (DESIGN 1, point 5).

In: a model, one call that differs, the oracle it differs from. Out: a `Finding` that names the first
ONNX operator, firing of a rule, or kernel whose values are wrong, or None. Levels are compared from left
to right, each with the one before it: oracle, primitive graph, canonical graph, plan, machine code.
Invariant: a kernel is judged on the inputs that the machine code itself made, so that rounding before it
does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fissile import pipeline
from fissile.compare.difference import Difference, difference, worst
from fissile.compare.oracle import load_oracle
from fissile.fission import fission
from fissile.frontend import OperatorGraph, Value
from fissile.ir.dim import Dim, solve
from fissile.ir.graph import PLAIN, Graph, Node, bind, evaluate
from fissile.orchestrate import plan as plans
from fissile.orchestrate.plan import Anchor, Kernel, Plan
from fissile.reference import evaluate as run_foreign
from fissile.rewrite.canonicalize import FAMILIES
from fissile.rewrite.engine import rewrite
from fissile.rewrite.rule import Outcome, Rule, enabled
from fissile.runtime.executable import load

Array = np.ndarray[Any, np.dtype[Any]]
Values = dict[str, Array]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Finding:
    """level: "fission", "rule", "stage", "plan" or "kernel". name: of operator, rule or kernel; nodes: of ONNX."""

    level: str
    name: str
    nodes: tuple[str, ...]
    detail: str
    found: Difference

    def text(self) -> str:
        """Three lines for people."""
        gap = self.found.reason or f"max rel {self.found.max_rel:.1e}"
        served = ", ".join(self.nodes) or "(no name)"
        lines = [
            f"the difference comes in with {self.level} {self.name}: {gap}",
            f"  {self.detail}",
        ]
        lines.append(f"  ONNX nodes: {served}")
        if self.level == "rule":
            lines.append(f"  do: --disable {self.name}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Case:
    """One call that differs: arrays by input name, the oracle, and what counts as a difference."""

    feeds: Mapping[str, Array]
    oracle: str
    tolerance: float


def bisect(work: pipeline.Work, model: Path, case: Case, progress: Progress) -> Finding | None:
    """The first level whose values differ from the level before it. CompileError of a stage that fails."""
    plan_stage = next(stage for stage in pipeline.STAGES if stage.name == "plan")
    silent: Callable[[Any], None] = lambda event: None  # noqa: E731
    work = pipeline.run(work, silent, "fission")
    graph: Graph = work.known("graph")
    extents = symbol_values(graph, case.feeds)
    progress(f"fission beside {case.oracle}")
    expected = load_oracle(case.oracle, model)(case.feeds)
    meant = evaluate(graph, case.feeds, extents, run_foreign)
    if not worst(expected, meant).within(case.tolerance):
        return first_operator(work.known("operators"), model, case, extents)
    for stage in _between("fission", "plan"):
        progress(stage.name)
        before, work = work, stage.run(work)
        if not _within(work.known("graph"), meant, case, extents):
            if stage.name == "canonicalize":
                return first_firing(graph, work.options.disable, meant, case, extents)
            return wrong_rule(stage, before, meant, case, extents)
    progress("plan")
    work = plan_stage.run(work)
    plan: Plan = work.known("plan")
    planned = worst(meant, plans.evaluate(plan, case.feeds, extents, run_foreign))
    if not planned.within(case.tolerance):
        return Finding("plan", "greedy_plan", (), "kernel by kernel in numpy it differs", planned)
    progress("kernels")
    return first_kernel(work, case, extents)


def _between(first: str, last: str) -> tuple[pipeline.Stage, ...]:
    names = [stage.name for stage in pipeline.STAGES]
    return pipeline.STAGES[names.index(first) + 1 : names.index(last)]


def symbol_values(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, int]:
    """The numbers of the free dimensions, read off the inputs."""
    values: dict[str, int] = {}
    for node in graph.inputs:
        for extent, n in zip(node.shape, feeds[node.attr("name")].shape, strict=True):
            solved = solve(extent) if isinstance(extent, Dim) else None
            if solved is not None:
                symbol, scale, offset = solved
                values.setdefault(symbol.name, (n - offset) // scale)
    return values


def _within(graph: Graph, meant: Values, case: Case, extents: Mapping[str, int]) -> bool:
    return _gap(graph, meant, case, extents).within(case.tolerance)


def _gap(graph: Graph, meant: Values, case: Case, extents: Mapping[str, int]) -> Difference:
    """How far a graph's values are from what is meant; one that cannot be evaluated is as wrong as can be."""
    try:
        return worst(meant, evaluate(graph, case.feeds, extents, run_foreign))
    except (AssertionError, ValueError, IndexError) as error:
        return Difference(np.inf, np.inf, f"it cannot be evaluated: {error}")


# ---------------------------------------------------------------- operators


def first_operator(
    operators: OperatorGraph, model: Path, case: Case, extents: Mapping[str, int]
) -> Finding | None:
    """The first ONNX operator with a tensor that differs from the oracle's."""
    expected = load_oracle(case.oracle, model, every=True)(case.feeds)
    produced = {name: op for op in operators.operators for name in op.outputs if name in expected}
    wanted = tuple(Value(name, "", None) for name in produced)
    graph = fission(replace(operators, outputs=wanted), foreign=True)
    found = evaluate(graph, case.feeds, extents, run_foreign)
    for name, operator in produced.items():
        gap = difference(np.asarray(expected[name]), found[name])
        if not gap.within(case.tolerance):
            detail = f"tensor {name}, as {dict(graph.outputs)[name].type}"
            return Finding("fission", operator.title, (operator.where,), detail, gap)
    return None


# ---------------------------------------------------------------- rules


def wrong_rule(
    stage: pipeline.Stage,
    before: pipeline.Work,
    meant: Values,
    case: Case,
    extents: Mapping[str, int],
) -> Finding:
    """The rule without which the stage is right; the stage itself where no single rule makes the difference."""
    gap = _gap(stage.run(before).known("graph"), meant, case, extents)
    for rule in enabled("substitute", before.options.disable):
        disable = (*before.options.disable, rule.name)
        without = stage.run(replace(before, options=replace(before.options, disable=disable)))
        if _within(without.known("graph"), meant, case, extents):
            return Finding("rule", rule.name, (), rule.law, gap)
    return Finding("stage", stage.name, (), "no single rule makes the difference", gap)


@dataclass
class _Firings:
    """Counts firings; from number `limit` on rules refuse. `last`: rule, node and replacement of the last one."""

    limit: float
    count: int = 0
    last: tuple[str, Node, Node] | None = None


def first_firing(
    graph: Graph,
    disabled: Sequence[str],
    meant: Values,
    case: Case,
    extents: Mapping[str, int],
) -> Finding | None:
    """The firing of a rule after which the graph's values differ, by binary search over the firings in order."""
    right, wrong = 0, _fire(graph, disabled, np.inf)[1].count
    while wrong - right > 1:
        middle = (right + wrong) // 2
        is_right = _within(_fire(graph, disabled, middle)[0], meant, case, extents)
        right, wrong = (middle, wrong) if is_right else (right, middle)
    changed, firings = _fire(graph, disabled, wrong)
    if firings.last is None:
        return None
    name, before, after = firings.last
    gap = _gap(changed, meant, case, extents)
    nodes = changed.origins.get(after, ()) or graph.origins.get(before, ())
    return Finding("rule", name, nodes, f"firing {wrong}: {before} -> {after}", gap)


def _fire(graph: Graph, disabled: Sequence[str], limit: float) -> tuple[Graph, _Firings]:
    """The graph after the first `limit` firings of the canonical rules."""
    state = _Firings(limit)
    rules = sorted(enabled("canonicalize", disabled), key=lambda r: FAMILIES.index(r.family))
    return rewrite(graph, [_counted(rule, state) for rule in rules]).graph, state


def _counted(rule: Rule, state: _Firings) -> Rule:
    def apply(node: Node) -> Outcome:
        outcome = rule.apply(node)
        if not isinstance(outcome, Node) or outcome is node:
            return outcome
        if state.count >= state.limit:
            return node
        state.count += 1
        state.last = rule.name, node, outcome
        return outcome

    return replace(rule, apply=apply)


# ---------------------------------------------------------------- kernels


def first_kernel(work: pipeline.Work, case: Case, extents: Mapping[str, int]) -> Finding | None:
    """The first kernel whose machine code makes of its inputs what numpy does not."""
    plan: Plan = work.known("plan")
    names = _captured(plan)
    outputs = plan.graph.outputs + tuple((name, node) for node, name in names.items())
    shown = replace(plan, graph=replace(plan.graph, outputs=outputs))
    done = _finish(replace(work, plan=shown))
    with load(done.artifact, threads=1) as executable:
        found = executable.run(case.feeds)
    memory = {node: found[name] for name, node in outputs}
    functions = iter([name for name, _ in done.known("loops")[0].lowered])
    kernels = [kernel for kernel in plan.kernels() if kernel.anchor is not Anchor.FOREIGN]
    last = {node: k for k, kernel in enumerate(kernels) for node in kernel.outputs}
    for k, (kernel, function) in enumerate(zip(kernels, functions, strict=True)):
        complete = [n for n in kernel.outputs if last[n] == k]
        expected = _meant(kernel, complete, memory, case.feeds, extents)
        for node in complete:
            if node not in memory:
                memory[node] = expected[node]
                continue
            gap = difference(expected[node], memory[node])
            if not gap.within(case.tolerance):
                return _kernel_finding(kernel, function, plan.graph, gap)
    return None


def _captured(plan: Plan) -> dict[Node, str]:
    """The intermediate tensors that can be outputs too, each with a name of its own."""
    known = {node for _, node in plan.graph.outputs}
    names: dict[Node, str] = {}
    for k, kernel in enumerate(plan.kernels()):
        for node in kernel.outputs:
            if node not in known and node.type.format == PLAIN and node not in names:
                names[node] = f"kernel {k} output {len(names)}"
    return names


def _finish(work: pipeline.Work) -> pipeline.Work:
    """The stages after the plan, for the first target alone."""
    work = replace(work, targets=work.targets[:1])
    names = [stage.name for stage in pipeline.STAGES]
    for stage in pipeline.STAGES[names.index("plan") + 1 :]:
        work = stage.run(work)
    return work


def _meant(
    kernel: Kernel,
    wanted: Sequence[Node],
    memory: Mapping[Node, Array],
    feeds: Mapping[str, Array],
    extents: Mapping[str, int],
) -> dict[Node, Array]:
    """What numpy makes of the tensors in memory, those that this kernel writes left out."""
    values = {node: array for node, array in memory.items() if node not in kernel.outputs}
    for root in wanted:
        stack = [root]
        while stack:
            node = stack[-1]
            pending = [i for i in node.inputs if i not in values]
            if node not in values and pending:
                stack.extend(pending)
                continue
            stack.pop()
            if node not in values:
                values[node] = _value(node, values, feeds, extents)
    return {node: values[node] for node in wanted}


def _value(
    node: Node,
    values: Mapping[Node, Array],
    feeds: Mapping[str, Array],
    extents: Mapping[str, int],
) -> Array:
    if node.name == "input":
        return feeds[node.attr("name")]
    attrs = {key: bind(value, extents) for key, value in node.attrs}
    return np.asarray(node.primitive.reference(*(values[i] for i in node.inputs), **attrs))


def _kernel_finding(kernel: Kernel, name: str, graph: Graph, gap: Difference) -> Finding:
    served = dict.fromkeys(n for node in kernel.nodes for n in graph.origins.get(node, ()))
    reads = ", ".join(str(n.type) for n in kernel.inputs)
    writes = ", ".join(str(n.type) for n in kernel.outputs)
    primitives = " ".join(node.name for node in kernel.nodes)
    detail = f"{kernel.anchor.value} kernel: {writes} = [{primitives}]({reads})"
    return Finding("kernel", name, tuple(served), detail, gap)
