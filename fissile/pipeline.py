"""THE file to read first: the ordered list of stages from an ONNX model to the bytes of an artifact.

A stage is a function from what is known so far (`Work`) to what is known after it; `STAGES` names them in order, for
`fissile show --after NAME`, for progress and for timing. This is the only room that knows all the others; the front
door with the compile cache is `fissile.compiler`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from fissile import __version__
from fissile.codegen.build import Compiling, compiling
from fissile.codegen.link import Image, link
from fissile.codegen.llvm import (
    FunctionText,
    emit_function,
    emit_module,
    module_text,
    scratch_bytes,
)
from fissile.codegen.main import Call, Launch, Memory, bind_module, expr_dim, stitch
from fissile.codegen.support import ENTRIES, support_text
from fissile.errors import (
    CompileError,
    OptionError,
    Place,
    did_you_mean,
    dispensable,
    one_form,
)
from fissile.fission import fission
from fissile.frontend import OperatorGraph, Value, as_inputs, fix_extents, read_model
from fissile.ir import loop as L
from fissile.ir import text
from fissile.ir.dim import DimLike
from fissile.ir.graph import Graph, Node
from fissile.ir.graph import show as show_graph
from fissile.ir.primitive import constant_value, pack_array
from fissile.ir.verify import problems
from fissile.options import Event, Options, plan_file_text
from fissile.orchestrate import plan as plans
from fissile.orchestrate.liveness import assign
from fissile.orchestrate.nominal import guesses, representative
from fissile.orchestrate.orchestrate import orchestrate
from fissile.orchestrate.plan import Anchor, Kernel, Plan
from fissile.orchestrate.plan_file import read_plan
from fissile.orchestrate.roofline import work as work_of
from fissile.provider import accept, called, provider_of
from fissile.report import record
from fissile.rewrite import canonicalize, estimator, substitute
from fissile.rewrite.engine import Firing
from fissile.runtime.artifact import Contents, TargetCode, artifact_bytes
from fissile.runtime.seal import sealed
from fissile.runtime.weights import Weight, layout
from fissile.schedule.kernel import Lowered
from fissile.schedule.lower import lower_all
from fissile.target import Target

Progress = Callable[[Event], None]
SUBSTITUTED_GAIN = 1.02  # how much cheaper the plan of a substituted graph must be: guesses err by more
MODULE_LINES = 2500  # lines of LLVM text that go into one module: enough to share out, few enough to start quickly


@dataclass(frozen=True)
class Loops:
    """The kernels of a plan as loop functions for one target: each distinct function once, by name."""

    target: Target
    functions: Mapping[str, L.Function]
    lowered: tuple[tuple[str, Lowered], ...]  # for every kernel of the plan: function name, arguments


@dataclass(frozen=True)
class Code:
    """What one target runs: image and plan.json."""

    target: Target
    image: Image
    plan: Mapping[str, Any]
    functions: int
    lines: int


@dataclass(frozen=True)
class Work:
    """Everything known about a compilation; each stage adds its part and keeps the rest."""

    model: str | Path | bytes | onnx.ModelProto
    base_dir: str | Path | None
    targets: tuple[Target, ...]
    threads: int
    options: Options
    shapes: Mapping[str, Any] = field(default_factory=dict)
    operators: OperatorGraph | None = None
    graph: Graph | None = None
    fired: Mapping[str, int] | None = None
    examples: tuple[Firing, ...] = ()  # of what `fired` counts
    log: tuple[Firing, ...] = ()
    plain: Graph | None = None  # before substitutions, where they made another of it
    plan: Plan | None = None
    weights: tuple[tuple[Node, Weight], ...] = ()
    loops: tuple[Loops, ...] = ()
    texts: tuple[tuple[str, ...], ...] = ()
    code: tuple[Code, ...] = ()
    artifact: bytes = b""
    compiling: tuple[Compiling, ...] = ()  # per target: modules sent ahead to LLVM
    plan_given: Plan | None = None  # of this graph; the compiler chooses where there is none
    certificate: Mapping[str, Any] = field(default_factory=dict)  # what is proved about the plan
    report: Mapping[str, Any] = field(default_factory=dict)  # what else is kept in report.json
    is_trial: bool = False  # to be timed only: nothing is recorded for people

    def known(self, name: str) -> Any:
        """A part that an earlier stage must have made."""
        value = getattr(self, name)
        if value is None or value == ():
            raise ValueError(f"no stage has made {name} yet")
        return value


@dataclass(frozen=True)
class Stage:
    """One stage: its name, what it does to the work, one line about the result, and the result as text."""

    name: str
    run: Callable[[Work], Work]
    summary: Callable[[Work], str]
    show: Callable[[Work], str]


# ---------------------------------------------------------------- the stages


def import_model(work: Work) -> Work:
    """Model -> operator graph, with the extents that the user fixes."""
    operators = as_inputs(read_model(work.model, work.base_dir), work.options.overridable)
    return replace(work, operators=fix_extents(operators, work.shapes))


def split_operators(work: Work) -> Work:
    """Operator graph -> primitive graph (Korch section 3)."""
    return replace(work, graph=fission(work.known("operators"), foreign=True))


def canonicalize_graph(work: Work) -> Work:
    """Primitive graph -> the same in canonical form, constants folded."""
    disabled = frozenset(work.options.disable)
    done = canonicalize(work.known("graph"), disabled) if work.options.rewrite else None
    if done is None:
        return replace(work, fired={})
    return replace(work, graph=done.graph, fired=done.fired, examples=done.log)


def substitute_graph(work: Work) -> Work:
    """Primitive graph -> the cheapest one found by substitutions, unless none are wanted (Korch section 4)."""
    if not (work.options.substitute and work.options.rewrite):
        return work
    graph: Graph = work.known("graph")
    cost = estimator(extents=representative(graph, work.shapes))
    search = partial(substitute, graph, cost, disabled=work.options.disable)
    best, *_ = dispensable("the search for substitutions", search, (None,))
    if best is None or not best.log:
        return work
    return replace(work, graph=best.graph, log=best.log, plain=graph)


def plan_kernels(work: Work) -> Work:
    """Primitive graph -> plan: what is given, else what probably costs least (Korch section 5)."""
    if work.plan_given is not None:
        plan = work.plan_given
    elif work.options.plan is not None:
        work, plan = _plan_of_file(work, plan_file_text(work.options.plan))
    else:
        work, plan = _orchestrated(work)
    plan = accept(plan)
    plans.verify(plan)
    leaves = dict.fromkeys(
        n for k in plan.kernels() for n in k.inputs if plans.is_stored_leaf(n) and n.name != "input"
    )
    weights = [(n, _weight(f"w{k}", n)) for k, n in enumerate(leaves)]
    return replace(work, plan=plan, weights=tuple(weights))


def _plan_of_file(work: Work, text: str) -> tuple[Work, Plan]:
    """The plan that a file describes, of the substituted graph or of the plain one. OptionError F612."""
    try:
        return work, read_plan(text, work.known("graph"))
    except OptionError:
        if work.plain is None:
            raise
    return replace(work, graph=work.plain, log=(), plain=None), read_plan(text, work.plain)


def _orchestrated(work: Work) -> tuple[Work, Plan]:
    """The plan that probably costs least, of the substituted graph or of the plain one, with its certificate."""
    price = guesses(work.known("graph"), work.targets[0], work.threads, work.shapes)
    plan, proof = orchestrate(work.known("graph"), price)
    if work.plain is not None:
        without, least = orchestrate(work.plain, price)
        if least.predicted_seconds < proof.predicted_seconds * SUBSTITUTED_GAIN:
            work = replace(work, graph=work.plain, log=())
            plan, proof = without, least
    return replace(work, certificate={**asdict(proof), "complete": False}, plain=None), plan


def lower_kernels(work: Work) -> Work:
    """Plan -> loop programs, one set per target; equal functions are kept once."""
    plan: Plan = work.known("plan")
    native = [k for k in plan.kernels() if k.anchor is not Anchor.FOREIGN]
    return replace(work, loops=tuple(loops_of(native, t) for t in work.targets))


def emit_text(work: Work) -> Work:
    """Loop programs -> LLVM text in modules of similar size; each goes on to LLVM as soon as it is written."""
    texts: list[tuple[str, ...]] = []
    for i, loops in enumerate(work.loops):
        modules: list[str] = []
        for module in _modules(loops):
            modules.append(module)
            if work.compiling:
                work.compiling[i].add(module)
        texts.append(tuple(modules))
    return replace(work, texts=tuple(texts))


def build_images(work: Work) -> Work:
    """LLVM text -> objects -> one flat image per target, with its plan."""
    with ExitStack() as stack:
        if not work.compiling:
            work = _compile_ahead(work, stack)
            for compiler, texts in zip(work.compiling, work.texts, strict=True):
                for module in texts:
                    compiler.add(module)
        rows = zip(work.loops, work.texts, work.compiling, strict=True)
        return replace(work, code=tuple(_build(work, *row) for row in rows), compiling=())


def pack_artifact(work: Work) -> Work:
    """Image, plan and weights -> the bytes of the artifact."""
    targets = tuple(
        TargetCode(c.target.name, c.target.features, c.image.code, c.plan) for c in work.code
    )
    weights = tuple(w for _, w in work.weights)
    models = [(f"foreign/{k}.onnx", m) for k, m in enumerate(foreign_models(work.known("plan")))]
    report = {**work.report, **({} if work.is_trial else _told(work))}
    contents = Contents(_manifest(work), targets, weights, report, tuple(models))
    return replace(work, artifact=artifact_bytes(contents))


def run(
    work: Work, progress: Progress, until: str | None = None, first: str = "import"
) -> Work:
    """Run the stages in order, from `first` up to and with `until`, telling `progress` about each."""
    names = [stage.name for stage in STAGES]
    last = len(names) - 1 if until is None else names.index(until)
    with ExitStack() as stack:
        for stage in STAGES[names.index(first) : last + 1]:
            progress(Event(stage.name))
            start = time.perf_counter()
            if stage.name == "lower" and last >= names.index("build"):
                work = _compile_ahead(work, stack)
            work = _advance(stage, work)
            if stage is STAGES[0]:
                progress(Event("model", dispensable("the summary", partial(_said_model, work), "")))
            seconds = time.perf_counter() - start
            summary = dispensable(f"the summary of {stage.name}", partial(stage.summary, work), "")
            progress(Event(stage.name, summary, seconds))
    return work


def _advance(stage: Stage, work: Work) -> Work:
    """The work after the stage; a failure that nobody foresaw is told in the form of all others."""
    with one_form(f"stage {stage.name}"):
        done = stage.run(work)
        return _verified(done) if work.options.verify and done.loops is not work.loops else done


def _verified(work: Work) -> Work:
    """The work, once its loop programs are found well-formed. CompileError F402."""
    functions = (f for loops in work.loops for f in loops.functions.values())
    wrong = [Place(f.name, detail=text) for f in functions for text in problems(f)]
    if wrong:
        raise CompileError("F402", "loop programs are malformed", where=wrong)
    return work


def show(work: Work, stage: str) -> str:
    """The work as text after a stage. OptionError for a stage that does not exist."""
    for row in STAGES:
        if row.name == stage:
            return row.show(run(work, lambda event: None, stage))
    names = [row.name for row in STAGES]
    raise OptionError("F605", f"there is no stage {stage}", remedy=did_you_mean(stage, names))


# ---------------------------------------------------------------- parts of stages


def _weight(name: str, node: Node) -> Weight:
    """The stored form of a constant, packed if a kernel reads it in panels."""
    array = stored_array(node)
    return Weight(name, node.dtype.name, array.shape, np.ascontiguousarray(array))


def stored_array(node: Node) -> np.ndarray:
    """The elements of a constant as they lie in memory, in its format."""
    if node.name == "pack":
        source = stored_array(node.inputs[0])
        attrs: dict[str, Any] = dict(node.attrs)
        return pack_array(source, **attrs)
    if node.name == "reshape":
        return stored_array(node.inputs[0]).reshape(tuple(d for d in node.shape if isinstance(d, int)))
    value = constant_value(node)
    if value is None:
        raise ValueError(f"{node} is not a constant")
    return value


def loops_of(kernels: Sequence[Kernel], target: Target) -> Loops:
    """The loop functions of kernels; equal ones are kept once."""
    names: dict[L.Function, str] = {}
    lowered: list[tuple[str, Lowered]] = []
    for row in lower_all(kernels, target):
        name = names.setdefault(row.function, f"k{len(names)}")
        lowered.append((name, row))
    functions = {name: replace(f, name=name) for f, name in names.items()}
    return Loops(target, functions, tuple(lowered))


def _modules(loops: Loops) -> Iterator[str]:
    group: list[FunctionText] = []
    size = 0
    for function in loops.functions.values():
        emitted = emit_function(function, loops.target)
        if group and size + len(emitted.lines) > MODULE_LINES:
            yield module_text(group, loops.target)
            group, size = [], 0
        group.append(emitted)
        size += len(emitted.lines)
    if group:
        yield module_text(group, loops.target)


def _compile_ahead(work: Work, stack: ExitStack) -> Work:
    """The work with LLVM running beside the stages to come: its support module goes first."""
    made = [stack.enter_context(compiling(t, work.options.workers)) for t in work.targets]
    for target, compiler in zip(work.targets, made, strict=True):
        compiler.add(support_text(target.arch))
    return replace(work, compiling=tuple(made))


def _build(work: Work, loops: Loops, texts: Sequence[str], compiler: Compiling) -> Code:
    plan: Plan = work.known("plan")
    stitched, bind = stitch(plan.graph, launches(plan, loops), memory(work, loops), calls(plan))
    compiler.add(bind_module(emit_module([bind], loops.target)))
    support, *objects = compiler.objects()
    image = link([*objects, support], [*ENTRIES, "fissile_bind", *loops.functions])
    weights = layout([w for _, w in work.weights]).size
    told = {**stitched, "entries": image.symbols, "weights": weights}
    code = Image(sealed(image.code, told), image.symbols)
    return Code(loops.target, code, told, len(loops.functions), sum(t.count("\n") for t in texts))


def launches(plan: Plan, loops: Loops) -> list[Launch]:
    """The launches of a plan whose kernels are lowered, in order."""
    rows = iter(loops.lowered)
    result: list[Launch] = []
    for number, step in enumerate(plan.steps):
        for kernel in step.kernels:
            if kernel.anchor is Anchor.FOREIGN:
                continue
            name, row = next(rows)
            served = dict.fromkeys(n for m in kernel.nodes for n in plan.graph.origins.get(m, ()))
            least = work_of(kernel)
            result.append(
                Launch(
                    name,
                    row.arguments,
                    row.tasks,
                    number,
                    tuple(served),
                    (least.constants, least.bytes, least.operations),
                )
            )
    return result


def calls(plan: Plan) -> list[Call]:
    """The calls into Python between the native segments of a plan, in order."""
    models = foreign_models(plan)
    result: list[Call] = []
    for number, step in enumerate(plan.steps):
        for kernel in step.kernels:
            if kernel.anchor is Anchor.FOREIGN:
                first = kernel.nodes[0]
                model = first.attr("model").array.tobytes()
                proto = onnx.load_from_string(model)
                name, at, provider = first.attr("key"), models.index(model), provider_of(proto)
                operator = provider or proto.graph.node[0].op_type
                sides = first.inputs, kernel.outputs
                result.append(Call(name, operator, at, number, *sides, provider))
    return result


def foreign_models(plan: Plan) -> list[bytes]:
    """The one-operator models of the plan's foreign kernels, each once."""
    models = (kernel.nodes[0].attr("model").array.tobytes() for kernel in plan.foreign())
    return list(dict.fromkeys(models))


def memory(work: Work, loops: Loops) -> Memory:
    """Where the tensors of the work are: weights by offset, intermediates by place, and scratch."""
    plan: Plan = work.known("plan")
    arena = assign(plan)
    offsets = layout([w for _, w in work.weights]).offsets
    needed = {name: scratch_bytes(f) for name, f in loops.functions.items()}
    scratch = [scratch_of(row, needed[name]) for name, row in loops.lowered]
    weights = {node: offsets[w.name] for node, w in work.weights}
    sizes = arena.sizes, tuple(dict.fromkeys(scratch)), arena.levels
    return Memory(weights, arena.place, *sizes)


def scratch_of(row: Lowered, needed: L.Expr | None = None) -> DimLike:
    """Bytes of scratch that each thread needs for a kernel. needed: the same by the function's parameters."""
    values = dict(zip(row.function.params, row.arguments, strict=True))
    extents = {p: a for p, a in values.items() if not isinstance(a, Node)}
    return expr_dim(needed or scratch_bytes(row.function), extents)  # type: ignore[arg-type]


def _manifest(work: Work) -> dict[str, Any]:
    operators: OperatorGraph = work.known("operators")
    facts = operators.metadata
    return {
        "fissile": __version__,
        "model": {
            "name": facts.file_name,
            "sha256": facts.sha256,
            "producer_name": facts.producer,
            "producer_version": facts.producer_version,
            "domain": facts.domain,
            "description": facts.doc,
            "graph_name": facts.graph_name,
            "graph_description": facts.graph_doc,
            "version": facts.version,
            "opset": facts.opsets.get("", 0),
        },
        "metadata": dict(facts.custom),
        **called(work.known("plan")),
        "threads": work.threads,
        "shapes": dict(work.shapes),
        "options": work.options.key(),
        **({"certificate": dict(work.certificate)} if work.certificate else {}),
    }


def _told(work: Work) -> dict[str, Any]:
    """What people may read of the compilation, as parts of `report.json`."""
    return dispensable(
        "the record of the compilation", lambda: {record.KEY: record.packed(_recorded(work))}, {}
    )


def _recorded(work: Work) -> record.Parts:
    """What people may want to know of the compilation later; for several targets, the loop programs of the best."""
    loops = work.loops[0]
    return record.Parts(
        operators=work.known("operators"),
        plan=work.known("plan"),
        target=loops.target.name,
        functions=loops.functions,
        lowered=[(name, str(row.tasks)) for name, row in loops.lowered],
        fired=work.fired or {},
        examples=work.examples,
        chosen=work.log,
        disabled=work.options.disable,
    )


# ---------------------------------------------------------------- summaries


def _said_model(work: Work) -> str:
    operators: OperatorGraph = work.known("operators")
    weights = sum(a.nbytes for a in operators.initializers.values()) / 1e6
    opset = operators.metadata.opsets.get("", 0)
    inputs, outputs = map(_said_values, (operators.inputs, operators.outputs))
    return f"opset {opset} · {weights:.1f} MB weights · {inputs} → {outputs}"


def _said_values(values: Sequence[Value]) -> str:
    shapes = [
        "..." if v.shape is None else ",".join("?" if e is None else str(e) for e in v.shape)
        for v in values
    ]
    return ", ".join(f"{v.name} {v.dtype}[{s}]" for v, s in zip(values, shapes, strict=True))


def _said_imported(work: Work) -> str:
    return f"{len(work.known('operators').operators)} operators"


def _said_fission(work: Work) -> str:
    nodes = work.known("graph").nodes()
    foreign = {n.attr("key") for n in nodes if n.name == "foreign"}
    return f"{len(nodes)} primitives, {len(foreign)} operators foreign"


def _said_canonical(work: Work) -> str:
    fired = work.fired or {}
    nodes = len(work.known("graph").nodes())
    return f"{nodes} primitives left · {len(fired)} rules fired {sum(fired.values())} times"


def _said_substituted(work: Work) -> str:
    rules = dict.fromkeys(f.rule for f in work.log)
    nodes = len(work.known("graph").nodes())
    return f"{nodes} primitives · {len(work.log)} firings of {len(rules)} rules chosen by cost"


def said_plan(work: Work) -> str:
    """The plan and what is known of it in one line."""
    text = f"{len(work.known('plan').kernels())} kernels"
    if not work.certificate:
        return text
    predicted, lower = (said(work.certificate[f"{x}_seconds"]) for x in ("predicted", "lower_bound"))
    measured = work.certificate["measured"]
    return f"{text} · predicted {predicted} · lower bound {lower} · {measured} measured"


def said(seconds: float) -> str:
    """Seconds as milliseconds with three digits, microseconds where that is more readable."""
    value, unit = (seconds * 1e3, "ms") if seconds >= 1e-4 else (seconds * 1e6, "µs")
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def _said_loops(work: Work) -> str:
    distinct = sum(len(loops.functions) for loops in work.loops)
    total = sum(len(loops.lowered) for loops in work.loops)
    return f"{distinct} distinct kernels, {total - distinct} reused"


def _said_text(work: Work) -> str:
    lines = sum(t.count("\n") for texts in work.texts for t in texts)
    return f"{sum(len(loops.functions) for loops in work.loops)} functions, {lines} IR lines"


def _said_code(work: Work) -> str:
    return f"{sum(len(c.image.code) for c in work.code) / 1e3:.0f} kB of machine code"


def _said_artifact(work: Work) -> str:
    return f"{len(work.artifact) / 1e6:.1f} MB"


def _show_operators(work: Work) -> str:
    operators: OperatorGraph = work.known("operators")
    rows = (f"{', '.join(o.outputs)} = {o.title}({', '.join(o.inputs)})" for o in operators.operators)
    return "\n".join(rows)


def _show_loops(work: Work) -> str:
    parts = [text.show(f) for loops in work.loops for f in loops.functions.values()]
    return "\n\n".join(parts)


def _show_code(work: Work) -> str:
    rows = [f"{c.target.name} {name} at {at}" for c in work.code for name, at in c.image.symbols.items()]
    return "\n".join(rows)


STAGES = (
    Stage("import", import_model, _said_imported, _show_operators),
    Stage("fission", split_operators, _said_fission, lambda work: show_graph(work.known("graph"))),
    Stage("canonicalize", canonicalize_graph, _said_canonical, lambda work: show_graph(work.known("graph"))),
    Stage("substitute", substitute_graph, _said_substituted, lambda work: show_graph(work.known("graph"))),
    Stage("plan", plan_kernels, said_plan, lambda work: plans.show(work.known("plan"))),
    Stage("lower", lower_kernels, _said_loops, _show_loops),
    Stage("emit", emit_text, _said_text, lambda w: "\n".join(t for ts in w.texts for t in ts)),
    Stage("build", build_images, _said_code, _show_code),
    Stage("artifact", pack_artifact, _said_artifact, lambda w: str(_manifest(w))),
)

