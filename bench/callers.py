"""Many callers at once: throughput and latency of N threads that call one model, with and without a CPU quota.

    python bench/callers.py MODEL.onnx ... [--callers 8] [--threads 1,2] [--quota 0,1] [--seconds 4] [--repeat 3]
                            [--against onnxruntime,openvino] [--shape batch=1] [--json FILE]

Every row is a process of its own. In it one caller and N callers take turns, `--repeat` times, for `--seconds` each.
`of cores` is the rate of N callers over the rate of one caller at threads=1 times the cores that may be used: 1 is all
that the machine could give. Latencies are those of the N callers; `bits`: whether every answer equals the first one.

A quota of q CPUs is a control group of that process (cgroup v1 or v2) where the system lets us make one; elsewhere the
process is held on q CPUs by its affinity and the row says `affinity`. 0 is no quota.

Settings: fissile N callers x one executable at `threads`; onnxruntime N sessions at one thread each; openvino
PERFORMANCE_HINT THROUGHPUT and f32, one infer request per caller (its single rate: LATENCY at one thread).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import fissile
from fissile.commands.options import parse_shapes
from fissile.compare.feeds import complete_feeds, low_ends
from fissile.compare.table import machine_line
from fissile.runtime.machine import facts
from fissile.runtime.threads import allowed_cpus

Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[[Mapping[str, Array]], Any]
MOUNT = Path("/sys/fs/cgroup")
PERIOD = 100_000  # microseconds


@dataclass(frozen=True)
class Case:
    """One row: what is called, by how many threads, with what for each call, under which quota (0: none)."""

    engine: str
    path: str
    feeds: str
    names: tuple[str, ...]
    callers: int
    threads: int
    quota: int
    seconds: float
    repeat: int


@dataclass(frozen=True)
class Row:
    """Rates in calls a second, one per repeat; latencies in seconds; how the quota was made."""

    model: str
    engine: str
    callers: int
    threads: int
    quota: int
    held_by: str
    cores: int
    single: list[float]
    many: list[float]
    p50: float
    p99: float
    same_bits: bool

    @property
    def of_cores(self) -> list[float]:
        """Per repeat: the rate of all callers over what the cores could give at the single rate."""
        return [m / (s * self.cores) for s, m in zip(self.single, self.many, strict=True)]


# ---------------------------------------------------------------- the child


def fissile_runs(case: Case) -> tuple[Run, list[Run]]:
    """The call at threads=1, and one call per caller: the same executable for all."""
    one = fissile.load(case.path, threads=1)
    many = one.with_threads(case.threads) if case.threads > 1 else one
    return one.run, [many.run] * case.callers


def onnxruntime_runs(case: Case) -> tuple[Run, list[Run]]:
    """A session of its own for every caller."""
    runtime = import_module("onnxruntime")

    def session(threads: int) -> Run:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        made = runtime.InferenceSession(case.path, options, providers=["CPUExecutionProvider"])
        return lambda feeds: {str(k): a for k, a in enumerate(made.run(None, dict(feeds)))}

    runs = [session(case.threads) for _ in range(case.callers)]
    return session(1) if case.threads > 1 else runs[0], runs


def openvino_runs(case: Case) -> tuple[Run, list[Run]]:
    """One model compiled for throughput, an infer request for every caller."""
    openvino = import_module("openvino")
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    core = openvino.Core()

    def request(model: Any) -> Run:
        made = model.create_infer_request()

        def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
            result = made.infer(dict(feeds), share_inputs=True, share_outputs=True)
            return {str(k): result[k] for k in range(len(model.outputs))}

        return run

    latency = {**settings, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": 1}
    single = core.compile_model(case.path, "CPU", latency)
    many = core.compile_model(case.path, "CPU", {**settings, "PERFORMANCE_HINT": "THROUGHPUT"})
    return request(single), [request(many) for _ in range(case.callers)]


RUNS = {"fissile": fissile_runs, "onnxruntime": onnxruntime_runs, "openvino": openvino_runs}


def measure(case: Case) -> dict[str, Any]:
    """What a child finds: rates of one and of all callers in turns, latencies, bits."""
    with np.load(case.feeds, allow_pickle=False) as archive:
        feeds = {name: archive[str(k)] for k, name in enumerate(case.names)}
    one, many = RUNS[case.engine](case)
    for run in dict.fromkeys((one, *many)):
        for _ in range(3):
            run(feeds)
    wanted = _bits(many[0](feeds))
    single, rates, latencies = [], [], []
    same = True
    for _ in range(case.repeat):
        single.append(_crowd([one], feeds, case.seconds, None)[0])
        rate, seconds, equal = _crowd(many, feeds, case.seconds, wanted)
        rates.append(rate)
        latencies += seconds
        same = same and equal
    p50, p99 = np.percentile(latencies, [50, 99])
    cores = allowed_cpus()
    return {"cores": cores, "single": single, "many": rates, "p50": p50, "p99": p99, "same": same}


def _bits(outputs: Mapping[str, Array]) -> list[bytes]:
    return [np.asarray(array).tobytes() for array in outputs.values()]


def _crowd(
    runs: list[Run], feeds: Mapping[str, Array], seconds: float, wanted: list[bytes] | None
) -> tuple[float, list[float], bool]:
    """Calls a second of all `runs`, one thread each; latencies; whether all answers were `wanted`.

    A call that ends after the time is up counts for the part before it, so that slow models lose nothing.
    """
    latencies: list[float] = []
    wrong: list[Exception | None] = []
    gate = threading.Barrier(len(runs) + 1)
    counts = [0.0] * len(runs)

    def call(k: int) -> None:
        gate.wait()
        start = now = time.perf_counter()
        end = start + seconds
        while now < end:
            try:
                outputs = runs[k](feeds)
            except Exception as error:  # noqa: BLE001 - it is reported by the caller of all threads
                wrong.append(error)
                return
            after = time.perf_counter()
            latencies.append(after - now)
            counts[k] += min(1.0, (end - now) / (after - now))
            if wanted is not None and _bits(outputs) != wanted:
                wrong.append(None)
            now = time.perf_counter()

    crew = [threading.Thread(target=call, args=(k,)) for k in range(len(runs))]
    for thread in crew:
        thread.start()
    gate.wait()
    for thread in crew:
        thread.join()
    raised = [error for error in wrong if error is not None]
    if raised:
        raise raised[0]
    return sum(counts) / seconds, latencies, not wrong


# ---------------------------------------------------------------- the quota


def group(cpus: int) -> Path | None:
    """A new control group that may use `cpus` CPUs; None where the system does not let us."""
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = MOUNT if controllers == "" else MOUNT / "cpu"
        folder = root / path.strip("/") / f"fissile-callers-{os.getpid()}"
        with suppress(OSError):
            folder.mkdir()
            try:
                _limit(folder, cpus, unified=controllers == "")
            except OSError:
                folder.rmdir()
                raise
            return folder
    return None


def _limit(folder: Path, cpus: int, *, unified: bool) -> None:
    if unified:
        (folder / "cpu.max").write_text(f"{cpus * PERIOD} {PERIOD}", encoding="ascii")
        return
    (folder / "cpu.cfs_period_us").write_text(str(PERIOD), encoding="ascii")
    (folder / "cpu.cfs_quota_us").write_text(str(cpus * PERIOD), encoding="ascii")


def ask(case: Case) -> Row:
    """The row of `case`, from a child under its quota."""
    with ExitStack() as stack:
        held_by, folder = "-", None
        if case.quota:
            folder = group(case.quota)
            held_by = "cgroup" if folder else "affinity"
        if folder is not None:
            stack.callback(folder.rmdir)
        done = subprocess.run(
            [sys.executable, __file__, "--child"],
            input=json.dumps({"case": asdict(case), "group": str(folder) if folder else None}),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or ["the child died"])[-1])
    found = json.loads(done.stdout.splitlines()[-1])
    return Row(
        Path(case.path).stem, case.engine, case.callers, case.threads, case.quota, held_by,
        found["cores"], found["single"], found["many"], found["p50"], found["p99"], found["same"],
    )  # fmt: skip


def child() -> None:
    """Enter the quota, then measure: one JSON line."""
    asked = json.loads(sys.stdin.read())
    case = Case(**asked["case"])
    if asked["group"]:
        (Path(asked["group"]) / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    elif case.quota:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: case.quota])
    print(json.dumps(measure(case)))


# ---------------------------------------------------------------- the table

HEAD = (
    f"{'model':18} {'engine':12} {'quota':>10} {'callers':>7} {'threads':>7} {'cores':>5} "
    f"{'1 caller/s':>10} {'all/s':>8}  {'of cores':20} {'p50 ms':>8} {'p99 ms':>8}  bits"
)


def line(row: Row) -> str:
    """A row as people read it: medians of the repeats, all ratios."""
    quota = f"{row.quota} {row.held_by}" if row.quota else "none"
    ratios = " ".join(f"{ratio:.2f}" for ratio in row.of_cores)
    return (
        f"{row.model:18} {row.engine:12} {quota:>10} {row.callers:7} {row.threads:7} {row.cores:5} "
        f"{np.median(row.single):10.2f} {np.median(row.many):8.2f}  {ratios:20} "
        f"{row.p50 * 1e3:8.1f} {row.p99 * 1e3:8.1f}  {'equal' if row.same_bits else 'DIFFER'}"
    )


def cases(model: Path, args: argparse.Namespace, folder: Path) -> list[Case]:
    """The rows of one model; its artifact and feeds are written to `folder`."""
    executable = fissile.compile(model, options=fissile.Options(store=False))
    artifact, feeds = folder / f"{model.stem}.fsl", folder / "feeds.npz"
    executable.save(artifact)
    extents = low_ends(parse_shapes(tuple(args.shape)))
    arrays = complete_feeds(executable.inputs, {}, extents, 0)
    np.savez(feeds, **{str(k): a for k, a in enumerate(arrays.values())})
    rivals = [name for name in args.against.split(",") if name]
    threads, quotas = _numbers(args.threads), _numbers(args.quota)
    kinds = [("fissile", t) for t in threads] + [(name, 1) for name in rivals]
    return [
        Case(
            engine, str(artifact if engine == "fissile" else model), str(feeds), tuple(arrays),
            args.callers, count, quota, args.seconds, args.repeat,
        )
        for quota in quotas
        for engine, count in kinds
    ]  # fmt: skip


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Parse, measure, print."""
    if sys.argv[1:] == ["--child"]:
        child()
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--threads", default="1,2", help="of each call of fissile")
    parser.add_argument("--quota", default="0,1", help="CPUs; 0 is none")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--against", default="", help="of onnxruntime,openvino")
    parser.add_argument("--shape", action="append", default=[], help="extent of a free dimension")
    parser.add_argument("--json", type=Path, help="all rows, to FILE")
    args = parser.parse_args()
    versions = {"fissile": fissile.__version__}
    print(machine_line(facts(), versions), HEAD, sep="\n", flush=True)
    rows: list[Row] = []
    for model in args.models:
        with tempfile.TemporaryDirectory() as folder:
            for case in cases(model, args, Path(folder)):
                try:
                    rows.append(ask(case))
                except RuntimeError as error:
                    print(f"{model.stem:18} {case.engine:12} {error}", flush=True)
                    continue
                print(line(rows[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows]), encoding="utf-8")


if __name__ == "__main__":
    main()
