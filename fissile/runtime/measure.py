"""Timing artifacts in a child process, interleaved, through the real runtime (DESIGN 6).

In: a `Request`: artifacts (one kernel each, or whole models), threads, shapes, cache state. Out: the
raw samples of each, on request with the time stamps of its launches. The child is
`python -m fissile.runtime.measure`, a request on its standard input and the answer on its standard
output, both JSON. Invariant: generated code that crashes takes the child down, never the caller;
inputs are random; what is done before the timing is done at a low priority.
"""

import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fissile.child import end_with_parent
from fissile.errors import CompileError
from fissile.runtime.alone import Alone, alone_of, placed, touch_far
from fissile.runtime.bind import Binding, bind_extents
from fissile.runtime.executable import Executable, load
from fissile.runtime.frame import Frame
from fissile.runtime.hold import Hold
from fissile.runtime.memory import address_of, aligned_empty
from fissile.runtime.plan import TensorInfo
from fissile.runtime.profile import launch_seconds
from fissile.runtime.program import Program
from fissile.runtime.statistic import Samples
from fissile.runtime.threads import gang, measure_ticks

FLUSH_BYTES = 1 << 28
DRAWN = 1 << 18  # numbers drawn for one array
WARM_UP_SECONDS = 0.02

NICE = 5

T = TypeVar("T")
Run = Callable[[], None]


@dataclass(frozen=True)
class Request:
    """Time each artifact `samples` times; a sample repeats its run until `seconds` have passed.

    Of artifacts of one kernel (`Alone`) a sample is one run, and its seconds those of the launches that count.

    shapes: dimension values by name. cold: caches are flushed before every run (one run a sample).
    stamped: every sample is one run with time stamps (`measure_whole`).
    """

    artifacts: tuple[str, ...]
    threads: int = 1
    shapes: dict[str, int] = field(default_factory=dict)
    samples: int = 30
    seconds: float = 2e-3
    cold: bool = False
    seed: int = 0
    stamped: bool = False


@dataclass(frozen=True, eq=False)
class Stamped:
    """Runs of a whole model: samples of whole runs, and of the same runs seconds [run, launch] by its own stamps."""

    samples: Samples
    launches: npt.NDArray[np.float64]


def measure(request: Request, timeout: float = 600.0) -> list[Samples]:
    """Samples per artifact, taken in a child; CompileError F411 if the child dies."""
    return [_samples(_columns(row), request) for row in _answer(request, timeout)]


def measure_whole(request: Request, timeout: float = 600.0) -> list[Stamped]:
    """The same for whole models, with the time stamps of every run; of those that call Python there are none."""
    rows = _answer(replace(request, stamped=True), timeout)
    return [
        Stamped(replace(_samples(_columns(row), request), whole=True), np.array(row["launches"]))
        for row in rows
    ]


def _answer(request: Request, timeout: float) -> list[dict[str, Any]]:
    """What the child says: a row per artifact."""
    rows: list[dict[str, Any]] = answer_of(
        "fissile.runtime.measure", asdict(request), timeout, request.artifacts
    )
    return rows


def answer_of(module: str, asked: dict[str, Any], timeout: float, where: Sequence[str]) -> Any:
    """What a module says in a child; CompileError F411 if that dies or takes longer than `timeout` seconds.

    The child's process group is its own, so Ctrl-C reaches the caller alone; it ends with its caller where it says
    `fissile.child.end_with_parent`. where: what is measured, for people.
    """
    command = [sys.executable, "-m", module, str(os.getpid())]
    try:
        done = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True,
            timeout=timeout, check=False, process_group=0,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise _died(where, f"no answer within {timeout:.0f} s") from error
    if done.returncode != 0:
        raise _died(where, _last_words(done.returncode, done.stderr))
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise _died(where, "it ended without an answer") from error


def _columns(row: dict[str, Any]) -> npt.NDArray[np.float64]:
    return np.array([row[k] for k in _COLUMNS], float)


def _last_words(code: int, said: str) -> str:
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return (said.strip().splitlines() or [f"exit status {code}"])[-1]


def measure_here(request: Request) -> list[Samples]:
    """The same as `measure` in this process."""
    return [row.samples for row in _measured(request)]


def _measured(request: Request) -> list[Stamped]:
    runs = [_prepare(*found, request) for found in in_background(lambda: _loaded(request))]
    flush = np.zeros(FLUSH_BYTES if request.cold else 0, np.uint8)
    once = request.cold or request.stamped
    others = np.ones(max((run.alone.far for run in runs if run.alone), default=0), np.uint8)
    repeats = [_repeats(run, request.seconds) for run in runs]
    order = [i for i in range(len(runs)) for _ in range(request.samples)]
    random.Random(request.seed).shuffle(order)
    rows: list[list[tuple[float, float, float]]] = [[] for _ in runs]
    for index in order:
        flush += 1
        run, number = runs[index], len(rows[index])
        if run.alone:
            touch_far(run.constants, others, run.alone.far)
            rows[index].append(_sample_alone(run, run.alone, run.stamps[number]))
            continue
        row = run.stamps[number] if request.stamped else None
        call = partial(run, 0 if row is None else address_of(row))
        rows[index].append(_sample(call, 1 if once else repeats[index]))
    samples = [_samples(np.array(row).reshape(-1, 3).T, request) for row in rows]
    return [Stamped(s, run.seconds()) for s, run in zip(samples, runs)]


def in_background(work: Callable[[], T]) -> T:
    """What `work` returns; it runs at a low priority, which a thread may take on but never leave again."""
    with ThreadPoolExecutor(1, initializer=_step_back) as pool:
        return pool.submit(work).result()


def _step_back() -> None:
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def random_feed(info: TensorInfo, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Standard normal floats, integers and bools 0 or 1; never all zeros. Large ones repeat themselves."""
    size = math.prod(shape)
    drawn = min(size, DRAWN)
    if info.dtype.kind in "iub":
        values = rng.integers(0, 2, drawn).astype(info.dtype)
    else:
        values = rng.standard_normal(drawn).astype(info.dtype)
    return np.resize(values, tuple(shape)) if size else values.reshape(tuple(shape))


_COLUMNS = ("seconds", "cpu", "switches")


@dataclass
class _Run:
    """A call without Python in the way; `stamps` [sample, 2 * launch] are taken where a row's address is given.

    alone: of an artifact of one kernel; constants: what its inputs are that stand for constants.
    """

    call: Callable[[int], None]
    program: Program
    stamps: npt.NDArray[np.int64]
    ticks: float
    alone: Alone | None = None
    constants: Sequence[np.ndarray] = ()

    def __call__(self, stamps: int = 0) -> None:
        self.call(stamps)

    def seconds(self) -> npt.NDArray[np.float64]:
        """Seconds [sample, launch] by the stamps; without columns where none were taken."""
        if not self.stamps.any():
            return np.zeros((len(self.stamps), 0))
        return launch_seconds(self.stamps, self.ticks)


def _loaded(request: Request) -> list[tuple[Executable, Binding, list[np.ndarray]]]:
    """Executables, their bindings and random inputs."""
    rng = np.random.default_rng(request.seed)
    found = []
    for path in request.artifacts:
        executable = load(path, threads=request.threads)
        binding = bind_extents(executable.program, request.shapes)
        rows = zip(executable.inputs, binding.inputs)
        found.append((executable, binding, [random_feed(i, shape, rng) for i, shape in rows]))
    return found


def _prepare(
    executable: Executable, binding: Binding, arrays: list[np.ndarray], request: Request
) -> _Run:
    """A run whose frame and addresses are made once; the gang's threads are those of the main thread's priority."""
    program: Program = executable.program
    stamps = np.zeros((request.samples, 2 * len(program.plan.launches)), np.int64)
    ticks = measure_ticks(program.image)
    if program.plan.calls:
        feeds = {info.name: array for info, array in zip(executable.inputs, arrays)}
        return _Run(lambda _: _ran(executable, feeds), program, stamps, ticks)
    outputs = [*zip(binding.outputs, executable.outputs, strict=True)]
    alone = alone_of(executable.manifest)
    if alone:
        arrays, results = placed(arrays, outputs, alone.constants)
    else:
        results = [aligned_empty(shape, info.dtype)[0] for shape, info in outputs]
    addresses = [address_of(array) for array in (*arrays, *results)]
    frame = Frame(program, request.threads, Hold())
    block = 0
    if request.threads > 1:
        crew = gang(program.image)
        hold = Hold()
        try:
            crew.acquire(hold, request.threads, "wait")
        finally:
            crew.release(hold)
        block = crew.block

    def run(row: int, keep: Any = (arrays, results)) -> None:
        frame.run(binding, addresses, block, row)

    constants = arrays[: alone.constants] if alone else ()
    return _Run(run, program, stamps, ticks, alone, constants)


def _ran(executable: Executable, feeds: dict[str, np.ndarray]) -> None:
    executable.run(feeds)


def _repeats(run: _Run, seconds: float) -> int:
    """Runs in a sample, found while warming up. A kernel alone does that in every run by itself."""
    if run.alone:
        run()
        return 1
    count, spent = 0, 0.0
    while spent < max(WARM_UP_SECONDS, seconds) and count < 100_000:
        start = time.perf_counter()
        run()
        spent += time.perf_counter() - start
        count += 1
    return max(1, round(seconds * count / spent))


def _sample(run: Run, repeats: int) -> tuple[float, float, float]:
    switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
    cpu, start = time.thread_time(), time.perf_counter()
    for _ in range(repeats):
        run()
    seconds, spent = time.perf_counter() - start, time.thread_time() - cpu
    switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw - switches
    return seconds / repeats, spent / repeats, float(switches)


def _sample_alone(run: _Run, alone: Alone, row: npt.NDArray[np.int64]) -> tuple[float, float, float]:
    """The launches that count; of processor time, as large a share as of the whole run."""
    whole, cpu, switches = _sample(partial(run, address_of(row)), 1)
    seconds = alone.seconds(row, run.ticks)
    return seconds, cpu * seconds / whole, switches


def _samples(columns: npt.NDArray[np.float64], request: Request) -> Samples:
    return Samples(columns[0], columns[1], columns[2], request.threads)


def _died(where: Sequence[str], reason: str) -> CompileError:
    return CompileError("F411", "measuring failed", where=list(where), reason=reason)


def main() -> None:
    """A request on standard input, samples on standard output."""
    end_with_parent()
    raw = json.load(sys.stdin)
    request = Request(**{**raw, "artifacts": tuple(raw["artifacts"])})
    rows = [
        {k: getattr(row.samples, k).tolist() for k in _COLUMNS}
        | ({"launches": row.launches.tolist()} if request.stamped else {})
        for row in _measured(request)
    ]
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
