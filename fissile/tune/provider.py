"""One kernel as an artifact of its own, so that it is timed by the runtime that will run it (DESIGN 3.4, 6).

In: kernels, a target, the representative extents, the cache state. Out: for each a `Trial` (its text and what every
launch passes, with a hash that equal kernels of any model share), and from trials the bytes of artifacts. Tensors are
flat inputs and outputs of the artifact; what is far away when a launch finds it has several copies, used in turn.
Invariant: the machine code is what the whole model would get; only addresses and extents are the measurement's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fissile import __version__
from fissile.codegen.build import compiling
from fissile.codegen.link import link
from fissile.codegen.llvm import emit_function, emit_module, module_text
from fissile.codegen.main import Launch, Memory, bind_entry, stitch
from fissile.codegen.support import ENTRIES, support_text
from fissile.ir import loop as L
from fissile.ir.dim import DimLike, evaluate, symbols
from fissile.ir.graph import Graph, Node, make
from fissile.ir.primitive import INPUT
from fissile.orchestrate.liveness import stored_bytes
from fissile.orchestrate.plan import Kernel, is_stored_leaf
from fissile.pipeline import scratch_of, stored_array
from fissile.runtime.artifact import Contents, TargetCode, artifact_bytes
from fissile.runtime.weights import Weight, layout
from fissile.schedule.kernel import Lowered
from fissile.schedule.lower import lower_all
from fissile.target import Target

FREE = 8  # the number of a free extent that nobody says anything about
NAME = "k0"
MOST_LAUNCHES = 1024
FEW_LAUNCHES = 64  # up to which a run is made as long as a sample, so that as much memory as possible is touched
RUN_SECONDS = 5e-4  # of one run: Python's share of it is then small
SAMPLE_SECONDS = 2e-3


@dataclass(frozen=True)
class State:
    """What a kernel finds in the caches (DESIGN 3.4, 6).

    constants: bytes of all the model's constants, which are touched between two runs of it; taken as a power of two, so
    that models of one size share measurements. share: bytes of the last level that are ours.
    """

    constants: int
    share: int

    @property
    def name(self) -> str:
        """What measurements are kept under."""
        return f"constants {self.touched >> 10}k"

    @property
    def touched(self) -> int:
        """The constants as a power of two, at most twice the share."""
        return min(_power(self.constants), 2 * self.share)

    def between(self, node: Node, size: int, is_output: bool) -> int:
        """Bytes of tensors like this one that are touched between two launches that touch it.

        What is read has been written just before, and what is written takes the place of something read lately: of two
        such places, as it were. That is far away only if it is large itself.
        """
        if is_stored_leaf(node) and node.name != "input":
            return self.touched
        if 2 * size > self.share:
            return 2 * self.share
        return size if is_output else 0


def _power(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


@dataclass(frozen=True)
class Tensor:
    """A tensor that a launch gets: its bytes, and those of others that are touched before it is touched again."""

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
    stitched = [_stitched(trial, most) for trial in found]
    binds = [emit_module([bind], target) + bind_entry() for _, _, bind in stitched]
    texts = dict.fromkeys((*(trial.text for trial in found), *binds))
    with compiling(target, workers) as compiler:
        compiler.add(support_text(target.arch))
        for text in texts:
            compiler.add(text)
        support, *objects = compiler.objects()
    made = dict(zip(texts, objects, strict=True))
    result = []
    for trial, bind, (plan, weights, _) in zip(found, binds, stitched, strict=True):
        image = link([made[trial.text], made[bind], support], [*ENTRIES, "fissile_bind", NAME])
        code = TargetCode(
            target.name, target.features, image.code, {**plan, "entries": image.symbols}
        )
        result.append(artifact_bytes(Contents(_manifest(threads), (code,), weights)))
    return result


def launches_of(trial: Trial) -> int:
    """How many launches of the kernel one run of its artifact makes."""
    seconds = max(trial.seconds, 1e-9)
    few = min(FEW_LAUNCHES, round(SAMPLE_SECONDS / seconds))
    return max(1, few, min(MOST_LAUNCHES, round(RUN_SECONDS / seconds)))


def _manifest(threads: int) -> dict[str, object]:
    model = {"name": "", "sha256": ""}
    return {"fissile": __version__, "model": model, "foreign": [], "threads": threads}


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
            row_of = Tensor(argument, size, state.between(argument, size, written), written)
            tensors.setdefault(argument, row_of)
            arguments.append(([*tensors].index(argument),))
        else:
            arguments.append(number(argument, extents))
    tasks, scratch = number(row.tasks, extents), number(scratch_of(row), extents)
    facts = [(t.node.dtype.name, t.bytes, t.is_output) for t in tensors.values()]
    code = hashlib.blake2b(repr((text, facts, arguments, tasks)).encode(), digest_size=16)
    return Trial(
        kernel, code.hexdigest(), function, text, tuple(tensors.values()), tuple(arguments), tasks,
        scratch, seconds,
    )  # fmt: skip


def number(value: DimLike, extents: Mapping[str, int]) -> int:
    """An extent at the representative point."""
    return evaluate(value, {s.name: extents.get(s.name, FREE) for s in symbols(value)})


def _stitched(
    trial: Trial, most: int
) -> tuple[dict[str, object], tuple[Weight, ...], L.Function]:
    """Plan, weights and bind function of the artifact of a trial."""
    count = launches_of(trial)
    weights: dict[Node, Weight] = {}
    copies: list[list[Node]] = []
    for k, tensor in enumerate(trial.tensors):
        if _must_be_right(tensor):
            weights[tensor.node] = _weight(f"w{k}", tensor.node)
            copies.append([tensor.node])
            continue
        wanted = 1 + min(tensor.between, most) // max(tensor.bytes, 1)
        extent = tensor.bytes // tensor.node.dtype.bytes
        of = tensor.node.dtype.name
        names = [f"t{k}.{c}" for c in range(min(wanted, count))]
        copies.append([make(INPUT, name=name, dtype=of, shape=(extent,)) for name in names])
    launches = []
    for step in range(count):
        arguments = [
            copies[a[0]][step % len(copies[a[0]])] if isinstance(a, tuple) else a
            for a in trial.arguments
        ]
        launches.append(Launch(NAME, tuple(arguments), trial.tasks, step, ()))
    inputs = [n for t, c in zip(trial.tensors, copies) if not t.is_output for n in c]
    outputs = [n for t, c in zip(trial.tensors, copies) if t.is_output for n in c]
    graph = Graph(
        tuple(n for n in inputs if n not in weights), tuple((n.attr("name"), n) for n in outputs)
    )
    offsets = layout([*weights.values()]).offsets
    placed = {node: offsets[weight.name] for node, weight in weights.items()}
    plan, bind = stitch(graph, launches, Memory(placed, {}, (), (trial.scratch,)))
    return plan, tuple(weights.values()), bind


def _must_be_right(tensor: Tensor) -> bool:
    """Whether the values decide what is read: the integers among the constants do."""
    constant = is_stored_leaf(tensor.node) and tensor.node.name != "input"
    return constant and not tensor.node.dtype.is_float


def _weight(name: str, node: Node) -> Weight:
    array = stored_array(node)
    return Weight(name, node.dtype.name, array.shape, array)
