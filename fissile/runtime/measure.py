"""Timing artifacts in a child process, interleaved, through the real runtime (DESIGN 6).

In: a `Request`: artifacts (one kernel each, or whole models), threads, shapes, cache state. Out: the
raw samples of each. The child is `python -m fissile.runtime.measure`, a request on its standard
input and the samples on its standard output, both JSON.
Invariant: generated code that crashes takes the child down, never the caller; inputs are random.
"""

import json
import math
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fissile.errors import CompileError
from fissile.runtime.bind import Binding, bind_extents
from fissile.runtime.executable import Executable, load
from fissile.runtime.frame import Frame
from fissile.runtime.memory import address_of, aligned_empty
from fissile.runtime.plan import TensorInfo
from fissile.runtime.program import Program
from fissile.runtime.statistic import Samples
from fissile.runtime.threads import gang

FLUSH_BYTES = 1 << 28
DRAWN = 1 << 18  # numbers drawn for one array
WARM_UP_SECONDS = 0.02

Run = Callable[[], None]


@dataclass(frozen=True)
class Request:
    """Time each artifact `samples` times; a sample repeats its run until `seconds` have passed.

    shapes: dimension values by name. cold: caches are flushed before every run (one run a sample).
    """

    artifacts: tuple[str, ...]
    threads: int = 1
    shapes: dict[str, int] = field(default_factory=dict)
    samples: int = 30
    seconds: float = 2e-3
    cold: bool = False
    seed: int = 0


def measure(request: Request, timeout: float = 600.0) -> list[Samples]:
    """Samples per artifact, taken in a child; CompileError F411 if the child dies."""
    command = [sys.executable, "-m", "fissile.runtime.measure"]
    try:
        done = subprocess.run(
            command, input=json.dumps(asdict(request)), capture_output=True, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise _died(request, f"no answer within {timeout:.0f} s") from error
    if done.returncode != 0:
        raise _died(request, _last_words(done.returncode, done.stderr))
    rows = json.loads(done.stdout.splitlines()[-1])
    return [_samples(np.array([row[k] for k in _COLUMNS], float), request) for row in rows]


def _last_words(code: int, said: str) -> str:
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return (said.strip().splitlines() or [f"exit status {code}"])[-1]


def measure_here(request: Request) -> list[Samples]:
    """The same in this process."""
    rng = np.random.default_rng(request.seed)
    runs = [
        _prepare(load(path, threads=request.threads), request, rng) for path in request.artifacts
    ]
    flush = np.zeros(FLUSH_BYTES if request.cold else 0, np.uint8)
    repeats = [1 if request.cold else _repeats(run, request.seconds) for run in runs]
    order = [i for i in range(len(runs)) for _ in range(request.samples)]
    random.Random(request.seed).shuffle(order)
    rows: list[list[tuple[float, float, float]]] = [[] for _ in runs]
    for index in order:
        flush += 1
        rows[index].append(_sample(runs[index], repeats[index]))
    return [_samples(np.array(row).reshape(-1, 3).T, request) for row in rows]


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


def _prepare(executable: Executable, request: Request, rng: np.random.Generator) -> Run:
    """A call without Python in the way: arrays, frame and addresses are made once."""
    program: Program = executable.program
    binding: Binding = bind_extents(program, request.shapes)
    arrays = [
        random_feed(info, shape, rng) for info, shape in zip(executable.inputs, binding.inputs)
    ]
    if program.plan.calls:
        feeds = {info.name: array for info, array in zip(executable.inputs, arrays)}
        return lambda: _ran(executable, feeds)
    results = [aligned_empty(s, i.dtype) for i, s in zip(executable.outputs, binding.outputs)]
    addresses = [address_of(array) for array in arrays] + [address for _, address in results]
    frame = Frame(program, request.threads)
    block = 0
    if request.threads > 1:
        crew = gang(program.image)
        crew.acquire(request.threads, "wait")
        crew.release()
        block = crew.block

    def run(keep: Any = (arrays, results)) -> None:
        frame.run(binding, addresses, block)

    return run


def _ran(executable: Executable, feeds: dict[str, np.ndarray]) -> None:
    executable.run(feeds)


def _repeats(run: Run, seconds: float) -> int:
    """Runs in a sample, found while warming up."""
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


def _samples(columns: npt.NDArray[np.float64], request: Request) -> Samples:
    return Samples(columns[0], columns[1], columns[2], request.threads)


def _died(request: Request, reason: str) -> CompileError:
    return CompileError("F411", "measuring failed", where=list(request.artifacts), reason=reason)


def main() -> None:
    """A request on standard input, samples on standard output."""
    raw = json.load(sys.stdin)
    request = Request(**{**raw, "artifacts": tuple(raw["artifacts"])})
    rows = measure_here(request)
    print(json.dumps([{k: getattr(row, k).tolist() for k in _COLUMNS} for row in rows]))


if __name__ == "__main__":
    main()
