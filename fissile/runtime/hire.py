"""Timing what another package runs, in a child process (DESIGN 3.4, 6).

In: a `Job`: the provider, a folder with the model and the arrays, threads, samples. Out: samples of one call, the
copies of its results included, as the runtime makes them; the results are in the folder then. The child is
`python -m fissile.runtime.hire`, a job on its standard input and the answer on its standard output, both JSON.
Invariant: a package that crashes or hangs takes the child down, never the caller.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fissile.child import end_with_parent
from fissile.runtime.measure import answer_of, in_background
from fissile.runtime.statistic import Samples
from fissile.runtime.vendor import Array, Evaluator, VendorFailed, evaluator

MODULE = "fissile.runtime.hire"
MODEL, ARGUMENTS, RESULTS = "model.onnx", "arguments", "results"  # in the folder of a job
WARM = 2
CHUNK = 64  # bytes after which memory is touched again


@dataclass(frozen=True)
class Job:
    """touched: bytes of other memory that are touched between two calls; the arguments are near again after that."""

    provider: str
    folder: str
    threads: int
    samples: int
    touched: int = 0


def hire(job: Job, timeout: float) -> Samples:
    """Samples of a call; CompileError F411 if the package fails, the child dies or has no answer in time."""
    rows = answer_of(MODULE, asdict(job), timeout, [job.provider])
    seconds, cpu = (np.array(row, float) for row in rows)
    return Samples(seconds, cpu, np.zeros(len(seconds)), job.threads)


def _timed(job: Job) -> list[list[float]]:
    arrays = read_arrays(job.folder, ARGUMENTS)
    model = (Path(job.folder) / MODEL).read_bytes()
    run = in_background(lambda: evaluator(job.provider, model, job.threads))
    places = [np.array(result) for result in run(arrays)]
    other = np.zeros(job.touched, np.uint8)
    rows = [_once(run, arrays, places, other) for _ in range(WARM + job.samples)]
    write_arrays(job.folder, RESULTS, places)
    return [[*column] for column in zip(*rows[WARM:], strict=True)]


def write_arrays(folder: str, name: str, arrays: Sequence[Array]) -> None:
    """Arrays as files `name.0.npy`, `name.1.npy`..."""
    for k, array in enumerate(arrays):
        np.save(Path(folder) / f"{name}.{k}.npy", array, allow_pickle=False)


def read_arrays(folder: str, name: str) -> list[Array]:
    """What `write_arrays` has written, in order."""
    count = sum(1 for _ in Path(folder).glob(f"{name}.*.npy"))
    return [np.load(Path(folder) / f"{name}.{k}.npy") for k in range(count)]


def _once(
    run: Evaluator, arrays: list[Array], places: list[Array], other: Array
) -> tuple[float, float]:
    """Seconds by the clock and of the processor."""
    other[::CHUNK] += 1
    for array in arrays:
        array.sum()
    start, cpu = time.perf_counter(), time.process_time()
    for place, result in zip(places, run(arrays), strict=True):
        place[...] = result.reshape(place.shape)
    return time.perf_counter() - start, time.process_time() - cpu


def main() -> None:
    """A job on standard input, samples on standard output."""
    end_with_parent()
    raw: dict[str, Any] = json.load(sys.stdin)
    try:
        found = _timed(Job(**raw))
    except VendorFailed as error:
        sys.exit(" ".join(str(error).split()))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
