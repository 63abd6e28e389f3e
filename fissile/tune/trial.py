"""One kernel as an artifact of its own, so that it is timed by the runtime that will run it (DESIGN 3.4, 6).

In: kernels, a target, the representative extents, the cache state. Out: for each a `Trial` (its text and what every
launch passes, with a hash that equal kernels of any model share), and from trials the bytes of artifacts. Tensors are
flat inputs and outputs of the artifact. Before every launch that counts come some that do not: they write what it will
write and what it will read, as the kernels before it do in a network. Constants come back from as far as there.
Invariant: the machine code is what the whole model would get; only addresses and extents are the measurement's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from fissile import __version__
from fissile.codegen.build import compiling
from fissile.codegen.link import link
from fissile.codegen.llvm import emit_function, emit_module, module_text
from fissile.codegen.main import Launch, Memory, bind_module, stitch
from fissile.codegen.support import ENTRIES, support_text
from fissile.ir import loop as L
from fissile.ir.dim import DimLike, evaluate, symbol, symbols
from fissile.ir.graph import Graph, Node, make
from fissile.ir.primitive import INPUT, PRIMITIVES
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.liveness import stored_bytes
from fissile.orchestrate.plan import Kernel, is_stored_leaf
from fissile.pipeline import scratch_of, stored_array
from fissile.runtime.artifact import Contents, TargetCode, artifact_bytes
from fissile.runtime.seal import sealed
from fissile.runtime.weights import Weight, layout
from fissile.schedule.kernel import Lowered
from fissile.schedule.lower import lower_all
from fissile.target import Target

FREE = 8  # the number of a free extent that nobody says anything about
NAME, REWRITE = "k0", "k1"
MOST_LAUNCHES = 16  # that count, of one run
RUN_SECONDS = 2e-3  # that they take together, where so many are enough
WORD = 4  # bytes of what is rewritten at a time
_REWRITING = 2e10  # bytes per second, roughly


@dataclass(frozen=True)
class State:
    """What a kernel finds in the caches (DESIGN 3.4, 6).

    constants: bytes of all the model's constants, which are touched between two runs of it; taken as a power of two, so
    that models of one size share measurements. share: bytes of the last level that are ours. arena: bytes of all places
    of intermediate tensors: where they are more than that, a place has left the caches before it is written again.
    """

    constants: int
    share: int
    arena: int = 0

    @property
    def name(self) -> str:
        """What measurements are kept under."""
        far = f" {self.rewritten >> 20}M ago" if self.rewritten else ""
        return f"constants {self.touched >> 10}k, others rewritten{far}"

    @property
    def touched(self) -> int:
        """The constants as a power of two, at most what drives all else out of the share."""
        return min(_power(self.constants), self.share + self.share // 4)

    @property
    def rewritten(self) -> int:
        """What drives all else out of the share, where the arena is larger; 0 for one that stays there."""
        return self.share + self.share // 4 if self.arena > self.share else 0

    def between(self, node: Node, is_output: bool = False) -> int:
        """Bytes touched between two launches that touch this one.

        Of constants and inputs of the model as many as in a run of it; what other kernels write has just been written,
        and where the result goes was touched as long ago as the size of the arena tells.
        """
        if is_output:
            return self.rewritten
        return self.touched if is_stored_leaf(node) else 0


def _power(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


@dataclass(frozen=True)
class Tensor:
    """A tensor that a launch gets: its bytes, and those that are touched before it is touched again."""

    node: Node
    bytes: int
    between: int
    is_output: bool


@dataclass(frozen=True)
class Trial:
    """A kernel ready to be built. code: hash of all that decides how long it runs, names and values left out.

    arguments: tensors by their number in `tensors`, as `(number,)`, and extents as numbers. seconds: estimated.
    """

    kernel: Kernel
    code: str
    function: L.Function
    text: str
    tensors: tuple[Tensor, ...]
    arguments: tuple[tuple[int] | int, ...]
    tasks: int
    scratch: int
    seconds: float


def trials(
    kernels: Sequence[Kernel],
    target: Target,
    extents: Mapping[str, int],
    state: State,
    seconds: Sequence[float],
) -> list[Trial]:
    """Kernels lowered and emitted, `seconds` being what each may take, roughly."""
    texts: dict[L.Function, tuple[L.Function, str]] = {}
    found = []
    for kernel, row, guess in zip(kernels, lower_all(kernels, target), seconds, strict=True):
        if row.function not in texts:
            named = replace(row.function, name=NAME)
            texts[row.function] = named, module_text([emit_function(named, target)], target)
        found.append(_trial(kernel, row, *texts[row.function], extents, state, guess))
    return found


def artifact_of(
    kernel: Kernel,
    target: Target,
    threads: int = 1,
    extents: Mapping[str, int] | None = None,
    state: State | None = None,
) -> bytes:
    """The artifact that runs this kernel alone; free dimensions not in `extents` are FREE."""
    chosen = state or State(0, target.l3)
    return artifacts_of(trials([kernel], target, extents or {}, chosen, [1.0]), target, threads)[0]


def artifacts_of(
    found: Sequence[Trial], target: Target, threads: int, workers: int | None = None, most: int = 0
) -> list[bytes]:
    """An artifact per trial, compiled together. most: bytes that the copies of a tensor may have.

    CompileError F430 when LLVM refuses one of them.
    """
    stitched = [_stitched(trial, target, threads, most) for trial in found]
    binds = [bind_module(emit_module([made.bind], target)) for made in stitched]
    texts = dict.fromkeys((*(trial.text for trial in found), *binds, _rewriting(target).text))
    with compiling(target, workers) as compiler:
        compiler.add(support_text(target.arch))
        for text in texts:
            compiler.add(text)
        support, *objects = compiler.objects()
    made = dict(zip(texts, objects, strict=True))
    rewrite = made[_rewriting(target).text]
    result = []
    for trial, bind, row in zip(found, binds, stitched, strict=True):
        symbols = [*ENTRIES, "fissile_bind", NAME, REWRITE]
        image = link([made[trial.text], made[bind], rewrite, support], symbols)
        plan = {**row.plan, "entries": image.symbols}
        code = TargetCode(target.name, target.features, sealed(image.code, plan), plan)
        result.append(artifact_bytes(Contents(_manifest(threads, row.alone), (code,), row.weights)))
    return result


def launches_of(trial: Trial) -> int:
    """How many launches of the kernel one run of its artifact makes, all of which count."""
    each = max(trial.seconds, 1e-9) + _ago(trial) / _REWRITING
    return max(1, min(MOST_LAUNCHES, round(RUN_SECONDS / each)))


def _ago(trial: Trial) -> int:
    """Bytes touched since the places of its results were."""
    return max((tensor.between for tensor in trial.tensors if tensor.is_output), default=0)


def _manifest(threads: int, alone: Mapping[str, object]) -> dict[str, object]:
    model = {"name": "", "sha256": ""}
    return {"fissile": __version__, "model": model, "foreign": [], "threads": threads, "alone": alone}


def _trial(
    kernel: Kernel,
    row: Lowered,
    function: L.Function,
    text: str,
    extents: Mapping[str, int],
    state: State,
    seconds: float,
) -> Trial:
    tensors: dict[Node, Tensor] = {}
    arguments: list[tuple[int] | int] = []
    for argument in row.arguments:
        if isinstance(argument, Node):
            size = number(stored_bytes(argument), extents)
            written = argument in kernel.outputs
            row_of = Tensor(argument, size, state.between(argument, written), written)
            tensors.setdefault(argument, row_of)
            arguments.append(([*tensors].index(argument),))
        else:
            arguments.append(number(argument, extents))
    tasks, scratch = number(row.tasks, extents), number(scratch_of(row), extents)
    facts = [
        (t.node.dtype.name, t.bytes, t.is_output, _is_rewritten(t)) for t in tensors.values()
    ]
    code = hashlib.blake2b(repr((text, facts, arguments, tasks)).encode(), digest_size=16)
    return Trial(
        kernel, code.hexdigest(), function, text, tuple(tensors.values()), tuple(arguments), tasks,
        scratch, seconds,
    )  # fmt: skip


def number(value: DimLike, extents: Mapping[str, int]) -> int:
    """An extent at the representative point."""
    return evaluate(value, {s.name: extents.get(s.name, FREE) for s in symbols(value)})


@dataclass(frozen=True)
class _Stitched:
    """Plan, weights and bind function of the artifact of a trial, and how its runs are timed (see `Alone`)."""

    plan: dict[str, object]
    weights: tuple[Weight, ...]
    bind: L.Function
    alone: dict[str, object]


def _stitched(trial: Trial, target: Target, threads: int, most: int) -> _Stitched:
    count = launches_of(trial)
    weights: dict[Node, Weight] = {}
    copies: list[list[Node]] = []
    for k, tensor in enumerate(trial.tensors):
        if _must_be_right(tensor):
            weights[tensor.node] = _weight(f"w{k}", tensor.node)
            copies.append([tensor.node])
            continue
        apart = 0 if tensor.is_output else tensor.between
        wanted = 1 + min(apart, most) // max(tensor.bytes, 1)
        of, extent = tensor.node.dtype, tensor.bytes // tensor.node.dtype.bytes
        names = [f"t{k}.{c}" for c in range(min(wanted, count))]
        copies.append([make(INPUT, name=name, dtype=of.name, shape=(extent,)) for name in names])
    before = max(2 * threads * target.l2, _ago(trial))
    lead = make(INPUT, name="lead", dtype="float32", shape=(before // WORD,))
    launches, timed = _launches(trial, target, copies, lead)
    far: list[Node] = []
    read, written = [lead], list[Node]()
    for tensor, nodes in zip(trial.tensors, copies, strict=True):
        group = written if tensor.is_output else far if is_stored_leaf(tensor.node) else read
        group += [n for n in nodes if n not in weights]
    graph = Graph((*far, *read), tuple((n.attr("name"), n) for n in written))
    offsets = layout([*weights.values()]).offsets
    placed = {node: offsets[weight.name] for node, weight in weights.items()}
    scratch = (trial.scratch, _rewriting(target).scratch)
    plan, bind = stitch(graph, launches, Memory(placed, {}, (), scratch))
    between = max((tensor.between for tensor in trial.tensors if not tensor.is_output), default=0)
    alone = {"timed": timed, "constants": len(far), "far": between}
    return _Stitched(plan, tuple(weights.values()), bind, alone)


def _launches(
    trial: Trial, target: Target, copies: Sequence[Sequence[Node]], lead: Node
) -> tuple[list[Launch], list[int]]:
    """All launches, and the numbers of those of the kernel. The last, without tasks, says when that has ended.

    What the kernel will write has been written before `lead` is, which is larger than what the cores have for
    themselves, or than the last level if the arena is: that drives its code from there, too, and wakes all threads.
    What it reads is written last.
    """
    rewriting = _rewriting(target)
    found: list[Launch] = []
    timed = []
    for step in range(launches_of(trial)):
        nodes = [of[step % len(of)] for of in copies]
        rewritten = [(n, t) for n, t in zip(nodes, trial.tensors, strict=True) if _is_rewritten(t)]
        before = [n for n, t in rewritten if t.is_output]
        after = [n for n, t in rewritten if not t.is_output]
        for node in (*before, lead, *after):
            found.append(rewriting.launch(node, len(found)))
        given = tuple(nodes[a[0]] if isinstance(a, tuple) else a for a in trial.arguments)
        timed.append(len(found))
        found.append(Launch(NAME, given, trial.tasks, len(found), ()))
    found.append(replace(rewriting.launch(lead, len(found)), tasks=0))
    return found, timed


@dataclass(frozen=True)
class _Rewriting:
    """The kernel that turns the signs of a tensor's numbers: as good as new, and each of them written again."""

    text: str
    row: Lowered

    @property
    def scratch(self) -> int:
        """Bytes of scratch for a thread."""
        return number(scratch_of(self.row), {})

    def launch(self, node: Node, step: int) -> Launch:
        """A launch over a tensor."""
        size = number(stored_bytes(node), {})
        extents = {s.name: size // WORD for a in self._extents for s in symbols(a)}
        given = tuple(node if isinstance(a, Node) else number(a, extents) for a in self.row.arguments)
        return Launch(REWRITE, given, number(self.row.tasks, extents), step, ())

    @property
    def _extents(self) -> list[DimLike]:
        return [self.row.tasks, *(a for a in self.row.arguments if not isinstance(a, Node))]


@cache
def _rewriting(target: Target) -> _Rewriting:
    x = make(INPUT, name="x", dtype="float32", shape=(symbol("n"),))
    graph = Graph((x,), (("y", make(PRIMITIVES["neg"], x)),))
    (row,) = lower_all(greedy_plan(graph).kernels(), target)
    named = replace(row.function, name=REWRITE)
    return _Rewriting(module_text([emit_function(named, target)], target), row)


def _is_rewritten(tensor: Tensor) -> bool:
    """Whether a launch finds it as another has just written it. Integers stay as they are: they may be indices."""
    is_number = tensor.node.dtype.is_float and tensor.bytes >= WORD
    return is_number and not is_stored_leaf(tensor.node)


def _must_be_right(tensor: Tensor) -> bool:
    """Whether the values decide what is read: the integers among the constants do."""
    constant = is_stored_leaf(tensor.node) and tensor.node.name != "input"
    return constant and not tensor.node.dtype.is_float


def _weight(name: str, node: Node) -> Weight:
    array = stored_array(node)
    return Weight(name, node.dtype.name, array.shape, array)
