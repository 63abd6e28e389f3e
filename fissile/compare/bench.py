"""fissile beside other engines: interleaved timing of whole models, with intervals and a noise floor (DESIGN 6).

In: an artifact, the model it came from, feeds, engines, thread counts. Out: a `Bench`: one record per
engine and thread count, the raw samples, and how far fissile is from itself. Every engine lives in a
process of its own and the parent lets one run at a time, in an order drawn anew each round.
Invariant: no verdict without an interval that excludes 1, and none at all where fissile differs from
itself by more than 3 %.
"""

from __future__ import annotations

import json
import random
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from fissile import __version__
from fissile.compare.difference import Difference, worst
from fissile.compare.engine import ENGINES
from fissile.errors import CompileError, OptionError, did_you_mean
from fissile.runtime.statistic import Ratio, Samples, compare, summarize

Array = np.ndarray[Any, np.dtype[Any]]
LEAST_SECONDS = 1e-3  # of a sample
SETTLE_SECONDS = 3e-3  # pools of the engine before spin a while after their last run
NOISE = 1.03  # fissile against itself: above this nothing is concluded
FEWEST_ROUNDS = 5
PATIENCE_SECONDS = 600.0
OURS, AGAIN = "fissile", "fissile again"


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """How long to time. rounds: samples of each engine; seconds: at most this long per thread count."""

    rounds: int = 40
    seconds: float = 60.0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Request(Rounds):
    """What to time. patience: seconds that an engine may take to load, which for some means to compile."""

    artifact: Path
    model: Path
    feeds: Mapping[str, Array]
    rivals: tuple[str, ...]
    threads: tuple[int, ...] = (1,)
    patience: float = PATIENCE_SECONDS


@dataclass(frozen=True)
class Record:
    """One engine at one thread count (DESIGN 4).

    ratio: its 10th percentile over fissile's. max_abs_diff, max_rel_diff: None for the reference.
    """

    model: str
    shape: Mapping[str, list[int]]
    threads: int
    engine: str
    p10_seconds: float
    median_seconds: float
    p90_seconds: float
    runs: int
    discarded: float
    ratio: float
    ratio_low: float
    ratio_high: float
    verdict: str
    max_abs_diff: float | None
    max_rel_diff: float | None
    load_seconds: float
    loaded_bytes: int
    peak_bytes: int


@dataclass(frozen=True)
class Bench:
    """noise: threads -> fissile against itself, from 1 up. absent: engine -> why it is not there."""

    records: tuple[Record, ...]
    noise: Mapping[int, float]
    absent: Mapping[str, str]
    versions: Mapping[str, str]
    settings: Mapping[str, str]
    reference: str
    rounds: int
    samples: Mapping[str, list[float]]

    def rivals(self) -> list[Record]:
        """The records of the others."""
        return [record for record in self.records if record.engine != OURS]

    def as_dict(self) -> dict[str, Any]:
        """Plain data; `samples` are the raw seconds, by "engine threads"."""
        return asdict(self) | {"records": [asdict(record) for record in self.records]}


def check_engines(names: Sequence[str]) -> None:
    """OptionError F608 for an engine nobody knows."""
    for name in names:
        if name not in ENGINES or name == OURS:
            known = [n for n in ENGINES if n != OURS]
            reason = f"engines: {', '.join(known)}"
            hint = did_you_mean(name, known)
            raise OptionError("F608", f"there is no engine {name!r}", reason=reason, remedy=hint)


def bench(request: Request, progress: Callable[[str], None] = lambda text: None) -> Bench:
    """Time everything in `request`; CompileError F412 when fissile itself fails."""
    check_engines(request.rivals)
    absent = {
        name: f"not installed: {ENGINES[name].install}"
        for name in request.rivals
        if not ENGINES[name].is_present
    }
    present = [name for name in request.rivals if name not in absent]
    records: list[Record] = []
    noise: dict[int, float] = {}
    samples: dict[str, list[float]] = {}
    rounds = 0
    for threads in request.threads:
        with ExitStack() as stack:
            crew = _start(request, threads, present, absent, stack, progress)
            rows, rounds = take(crew, request, threads, progress)
            found = _records(crew, rows, request, threads)
        records += found[0]
        noise[threads] = found[1]
        samples |= {f"{name} {threads}": s.seconds.tolist() for name, s in rows.items()}
    loaded = [name for name in (OURS, *present) if name not in absent]
    return Bench(
        tuple(records),
        noise,
        absent,
        {name: __version__ if name == OURS else ENGINES[name].version for name in loaded},
        {name: ENGINES[name].settings for name in loaded},
        _reference(loaded),
        rounds,
        samples,
    )


# ---------------------------------------------------------------- children


class Child:
    """An engine in its own process; `ask` sends a request and waits for the answer.

    folder: where it runs; a checkout of another version of this project runs that version.
    """

    def __init__(self, name: str, engine: str, folder: Path | None = None) -> None:
        self.name, self.engine = name, engine
        self.loaded: dict[str, Any] = {}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the child
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fissile.compare.engine"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, cwd=folder,
        )  # fmt: skip

    def ask(
        self, action: str, *, patience: float | None = None, **arguments: Any
    ) -> dict[str, Any]:
        """The answer; CompileError F412 when the child dies, the engine raises, or `patience` seconds are over."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": action, **arguments}) + "\n")
            self._process.stdin.flush()
            if not select.select([self._process.stdout], [], [], patience)[0]:
                self._process.kill()
                raise self._failure(f"not done after {patience:.0f} s")
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise self._failure(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise self._failure(answer["error"])
        return answer

    def _failure(self, reason: str) -> CompileError:
        return CompileError("F412", f"{self.name} failed", reason=reason)

    def _last_words(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        words = self._errors.read().strip().splitlines()
        return f"the process died ({code}) {words[-1] if words else ''}".rstrip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()


def _start(
    request: Request,
    threads: int,
    present: Sequence[str],
    absent: dict[str, str],
    stack: ExitStack,
    progress: Callable[[str], None],
) -> list[Child]:
    """Every engine loaded and warm, one after the other; a rival that cannot run the model goes to `absent`."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    feeds = folder / "feeds.npz"
    np.savez(feeds, **{str(k): a for k, a in enumerate(request.feeds.values())})  # type: ignore[arg-type]
    crew: list[Child] = []
    for name in (OURS, AGAIN, *present):
        if name in absent:
            continue
        engine = OURS if name == AGAIN else name
        path = request.artifact if engine == OURS else request.model
        progress(f"loading {name}, {threads} thread{'s' * (threads > 1)}")
        child = stack.enter_context(Child(name, engine))
        places = {"feeds": str(feeds), "names": list(request.feeds)}
        try:
            child.loaded = child.ask(
                "load", engine=engine, path=str(path), threads=threads,
                patience=request.patience, **places,
            )  # fmt: skip
            if name != AGAIN:
                child.loaded["outputs"] = _outputs(child, folder / f"{name}.npz")
        except CompileError as error:
            if engine == OURS:
                raise
            absent[name] = error.reason
            continue
        crew.append(child)
    return crew


def _outputs(child: Child, path: Path) -> dict[str, Array]:
    names = child.ask("outputs", path=str(path))["names"]
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[str(k)] for k, name in enumerate(names)}


def take(
    crew: Sequence[Child], request: Rounds, threads: int, progress: Callable[[str], None]
) -> tuple[dict[str, Samples], int]:
    """Samples of all that are loaded, interleaved; and how many rounds there was time for."""
    order = list(crew)
    draw = random.Random(request.seed)
    rows: dict[str, list[tuple[float, float, float]]] = {child.name: [] for child in crew}
    end = time.perf_counter() + request.seconds
    done = 0
    while done < request.rounds and (done < FEWEST_ROUNDS or time.perf_counter() < end):
        draw.shuffle(order)
        for child in order:
            time.sleep(SETTLE_SECONDS)
            answer = child.ask("sample", least=LEAST_SECONDS)
            rows[child.name].append((answer["seconds"], answer["cpu"], answer["switches"]))
        done += 1
        if done % 10 == 0:
            progress(f"round {done} of {request.rounds}, {threads} threads")
    columns = {name: np.array(row, float).T for name, row in rows.items()}
    return {n: Samples(c[0], c[1], c[2], threads, whole=True) for n, c in columns.items()}, done


# ---------------------------------------------------------------- records


def _records(
    crew: Sequence[Child], rows: Mapping[str, Samples], request: Request, threads: int
) -> tuple[list[Record], float]:
    """Records in the order of their times, fissile first, and how far fissile is from itself."""
    itself = compare(rows[OURS], rows[AGAIN], request.seed).ratio
    noise = max(itself, 1 / itself)
    expected = _expected(crew)
    found = []
    for child in crew:
        if child.name == AGAIN:
            continue
        ratio = compare(rows[OURS], rows[child.name], request.seed)
        gap = None
        if expected is not None and child.loaded["outputs"] is not expected:
            gap = worst(expected, child.loaded["outputs"])
        found.append(_record(child, rows[child.name], ratio, gap, request, threads, noise))
    return sorted(found, key=lambda r: (r.engine != OURS, r.p10_seconds)), noise


def _record(
    child: Child,
    samples: Samples,
    ratio: Ratio,
    gap: Difference | None,
    request: Request,
    threads: int,
    noise: float,
) -> Record:
    summary = summarize(samples, request.seed)
    own = child.name == OURS
    return Record(
        model=request.model.stem,
        shape={name: list(array.shape) for name, array in request.feeds.items()},
        threads=threads,
        engine=child.name,
        p10_seconds=summary.p10,
        median_seconds=summary.median,
        p90_seconds=summary.p90,
        runs=summary.count,
        discarded=summary.discarded,
        ratio=1.0 if own else ratio.ratio,
        ratio_low=1.0 if own else ratio.low,
        ratio_high=1.0 if own else ratio.high,
        verdict="" if own else _verdict(ratio, noise),
        max_abs_diff=None if gap is None else gap.max_abs,
        max_rel_diff=None if gap is None else gap.max_rel,
        load_seconds=child.loaded["load_seconds"],
        loaded_bytes=child.loaded["loaded_bytes"],
        peak_bytes=child.ask("memory")["peak_bytes"],
    )


def _verdict(ratio: Ratio, noise: float) -> str:
    """Whether fissile is faster or slower than the rival, if that can be said."""
    if noise > NOISE or ratio.low <= 1.0 <= ratio.high:
        return "inconclusive"
    return "faster" if ratio.low > 1.0 else "slower"


def _reference(names: Sequence[str]) -> str:
    """Whose outputs the others are compared with: onnxruntime's, else those of the first rival."""
    rivals = [name for name in names if name != OURS]
    return "onnxruntime" if "onnxruntime" in rivals else rivals[0] if rivals else ""


def _expected(crew: Sequence[Child]) -> dict[str, Array] | None:
    name = _reference([child.name for child in crew if child.name != AGAIN])
    for child in crew:
        if child.name == name:
            outputs: dict[str, Array] = child.loaded["outputs"]
            return outputs
    return None
