"""The benchmark page: every model of a folder compiled, verified, profiled and timed beside other engines.

    python bench/zoo.py FOLDER [--against onnxruntime,openvino] [--threads 1,2] [--repeat 3] [NAME ...]

FOLDER holds NAME.onnx, or NAME.light.onnx whose large weights stand in NAME.json as statistics (name, dtype, shape,
mean, deviation) and are drawn anew, always the same for one model. Writes docs/benchmarks.md and docs/benchmarks.json.
Every step is a `fissile` command in a process of its own, so that a failure is a line of the page. Free dimensions stay
free; they are timed at the extents in `EXTENTS`. With `--against ...,inductor` (`fissile[inductor]`) the first run of a
model compiles for minutes: `--once inductor --patience 1800` has it take part in the first repetition only.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from fissile import __version__
from fissile.compare.table import machine_line
from fissile.runtime.machine import facts

EXTENTS = {"batch": 1, "seq": 128, "h4": 56, "w4": 56, "h32": 7, "w32": 7}
# output channels whose logits go through exp: small, so that no box overflows
SMALL_HEADS = {"yolov4": 255}
TIMEOUT = 4000
BEST = "best of them"
CHOICES = (
    "inductor compiles its kernels once for each model and number of threads, for minutes, and keeps them on disk;\n"
    "every run of it tries them again and takes the fastest."
)


@dataclass
class Outcome:
    """What became of one model: answers of the commands by name, and the reasons of those that failed."""

    name: str
    answers: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    benches: list[dict[str, Any]] = field(default_factory=list)


def inflated(folder: Path, name: str, into: Path) -> Path:
    """The model as a file that runs, its weights drawn where only their statistics are kept."""
    whole = folder / f"{name}.onnx"
    if whole.exists():
        return whole
    model = onnx.load(folder / f"{name}.light.onnx")
    rows = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    for tensor, dtype, shape, mean, deviation in rows:
        scale = 1e-4 if shape and shape[0] == SMALL_HEADS.get(name) else 1.0
        draw = np.random.default_rng(zlib.crc32(f"{name}/{tensor}".encode()))
        drawn = draw.standard_normal(shape, dtype=np.float32) * (deviation * scale) + mean * scale
        model.graph.initializer.append(numpy_helper.from_array(drawn.astype(dtype), tensor))
    path = into / f"{name}.onnx"
    onnx.save(model, path)
    return path


def shapes_of(path: Path) -> list[str]:
    """`--shape` options that time free dimensions at EXTENTS without fixing them."""
    model = onnx.load(path, load_external_data=False)
    texts = {d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim}
    known = [name for name in EXTENTS if any(name in text.split("*") for text in texts)]
    return [f"--shape={name}={EXTENTS[name]}..{EXTENTS[name]}" for name in known]


def ask(outcome: Outcome, step: str, *arguments: object) -> Any:
    """The JSON answer of a `fissile` command; None, and a failure in `outcome`, when there is none."""
    command = [sys.executable, "-m", "fissile.cli", *map(str, arguments), "--json"]
    env = {
        **os.environ,
        "FISSILE_STORE": os.devnull,
    }  # not tuned: nothing measured here before counts
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=TIMEOUT, env=env
        )
    except subprocess.TimeoutExpired:
        outcome.failures[step] = f"no answer within {TIMEOUT} s"
        return None
    if done.returncode not in (0, 3):
        words = [w for w in done.stderr.strip().splitlines() if w.startswith("error")]
        outcome.failures[step] = (words or done.stderr.strip().splitlines() or ["died"])[-1]
        return None
    return json.loads(done.stdout)


def examine(path: Path, args: argparse.Namespace, into: Path) -> Outcome:
    """All steps for one model."""
    outcome = Outcome(path.stem)
    artifact = into / f"{path.stem}.fsl"
    start = time.perf_counter()
    made = ask(outcome, "compile", "compile", path, "-o", artifact, "--no-cache")
    if made is None:
        return outcome
    outcome.answers["compile"] = {"seconds": time.perf_counter() - start, "bytes": made["bytes"]}
    options = ["--model", path, *shapes_of(path)]
    oracle = "onnxruntime"
    outcome.answers["verify"] = ask(
        outcome, "verify", "verify", artifact, "--against", oracle, "--calls", 5, "--model", path
    )
    outcome.answers["profile"] = ask(
        outcome, "profile", "run", artifact, "--profile", "--threads", 1, *shapes_of(path)
    )
    for turn in range(args.repeat):
        found = ask(
            outcome, "bench", "bench", artifact, *options, "--against", _rivals(args, turn),
            "--threads", args.threads, "--rounds", args.rounds, "--seconds", args.seconds,
            "--patience", args.patience,
        )  # fmt: skip
        if found is not None:
            outcome.benches.append(found)
    artifact.unlink()
    return outcome


def _rivals(args: argparse.Namespace, turn: int) -> str:
    """The engines of one repetition: those of `--once` are in the first only."""
    names = args.against.split(",")
    return ",".join(n for n in names if turn == 0 or n not in args.once.split(","))


# ---------------------------------------------------------------- the page


def page(outcomes: Sequence[Outcome], args: argparse.Namespace) -> str:
    """docs/benchmarks.md."""
    versions, settings = _of_any(outcomes, "versions"), _of_any(outcomes, "settings")
    lines = [
        "# Benchmarks",
        "",
        f"One machine. Made by `bench/zoo.py` (`make zoo`), {time.strftime('%Y-%m-%d')}, fissile {__version__}.",
        "",
        f"    {machine_line(facts(), versions)}",
        "",
        "Whole models, inputs random (seed 0), float32, warm. Engines run interleaved, each in a process of its own;",
        "times are 10th percentiles; a ratio is the other engine's time over fissile's: **above 1 fissile is faster,",
        "below 1 it is slower**. `?`: inconclusive (the 95 % interval holds 1, or fissile differs from itself by more",
        f"than 3 %). Runs of the whole measurement: {args.repeat}, all shown. fissile is not tuned.",
        *([f"In the first of them only: {args.once}."] if args.once else []),
        "",
        *(f"- {name}: {text}" for name, text in settings.items()),
        "",
        *([CHOICES, ""] if "inductor" in settings else []),
    ]
    for threads in (int(t) for t in args.threads.split(",")):
        lines += _times(outcomes, threads)
    lines += _missing(outcomes)
    lines += _means(outcomes)
    lines += _losses(outcomes)
    lines += _answers(outcomes)
    lines += _slow(outcomes)
    return "\n".join(lines) + "\n"


def _of_any(outcomes: Sequence[Outcome], key: str) -> dict[str, str]:
    """What the measurements say of each engine; one that fails on a model is there when it runs another."""
    found: dict[str, str] = {}
    for outcome in outcomes:
        for one in outcome.benches:
            found |= one[key]
    return found


def _records(outcome: Outcome, threads: int, engine: str) -> list[dict[str, Any]]:
    records = (r for b in outcome.benches for r in b["records"])
    return [r for r in records if r["threads"] == threads and r["engine"] == engine]


def _engines(outcomes: Iterable[Outcome]) -> list[str]:
    found = dict.fromkeys(r["engine"] for o in outcomes for b in o.benches for r in b["records"])
    return [name for name in found if name != "fissile"]


def _times(outcomes: Sequence[Outcome], threads: int) -> list[str]:
    rivals = _engines(outcomes)
    head = [
        "model",
        "fissile ms",
        *(f"{r} ms" for r in rivals),
        *(f"vs {r}" for r in rivals),
        "itself",
    ]
    lines = [f"## {threads} thread{'s' * (threads > 1)}", "", _row(head), _row(["---"] * len(head))]
    for outcome in outcomes:
        ours = _records(outcome, threads, "fissile")
        if not ours:
            lines.append(_row([outcome.name, _why(outcome), *[""] * (len(head) - 2)]))
            continue
        theirs = [_records(outcome, threads, rival) for rival in rivals]
        noise = " ".join(f"{b['noise'][str(threads)]:.2f}" for b in outcome.benches)
        cells = [outcome.name, _ms(ours), *map(_ms, theirs), *map(_ratios, theirs), noise]
        lines.append(_row(cells))
    return [*lines, ""]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _ms(records: Sequence[dict[str, Any]]) -> str:
    return " ".join(f"{r['p10_seconds'] * 1e3:.2f}" for r in records) or "-"


def _ratios(records: Sequence[dict[str, Any]]) -> str:
    marks = (f"{r['ratio']:.2f}{'?' * (r['verdict'] == 'inconclusive')}" for r in records)
    return " ".join(marks) or "-"


def _why(outcome: Outcome) -> str:
    return "; ".join(f"{step} failed: {reason}" for step, reason in outcome.failures.items())


def _missing(outcomes: Sequence[Outcome]) -> list[str]:
    """Engines that did not run a model, and what they said."""
    rows = {
        (o.name, name): why
        for o in outcomes
        for b in o.benches
        for name, why in b["absent"].items()
    }
    if not rows:
        return []
    said = [f"- {model}: {engine}: {why}" for (model, engine), why in rows.items()]
    return ["## Rows that are missing", "", *said, ""]


def _means(outcomes: Sequence[Outcome]) -> list[str]:
    """Geometric mean and minimum of the median ratio of each model, per engine and thread count, and to the best."""
    lines = ["## All models", "", _row(["engine", "threads", "models", "geometric mean", "least"])]
    lines.append(_row(["---"] * 5))
    threads = sorted({r["threads"] for o in outcomes for b in o.benches for r in b["records"]})
    engines = _engines(outcomes)
    medians = {
        (engine, count): {
            o.name: float(np.median([r["ratio"] for r in rows]))
            for o in outcomes
            if (rows := _records(o, count, engine))
        }
        for engine in engines
        for count in threads
    }
    for count in threads:
        each = [medians[engine, count] for engine in engines]
        names = dict.fromkeys(name for rows in each for name in rows)
        medians[BEST, count] = {n: min(rows[n] for rows in each if n in rows) for n in names}
    for (engine, count), ratios in medians.items():
        if ratios:
            mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
            least = min(ratios, key=lambda name: ratios[name])
            said = f"{ratios[least]:.2f} ({least})"
            lines.append(_row([engine, str(count), str(len(ratios)), f"{mean:.2f}", said]))
    return [*lines, ""]


def _losses(outcomes: Sequence[Outcome]) -> list[str]:
    lines = ["## Where fissile is slower", ""]
    for outcome in outcomes:
        for record in (r for b in outcome.benches for r in b["records"]):
            if record["verdict"] == "slower":
                times = f"{record['p10_seconds'] * 1e3:.2f} ms, ratio {record['ratio']:.2f}"
                interval = f"[{record['ratio_low']:.2f}, {record['ratio_high']:.2f}]"
                threads = f"{record['threads']} thread{'s' * (record['threads'] > 1)}"
                lines.append(f"- {outcome.name}, {threads}: {record['engine']} {times} {interval}")
    return [*lines, "" if len(lines) > 2 else "Nowhere with certainty.", ""]


def _answers(outcomes: Sequence[Outcome]) -> list[str]:
    head = [
        "model",
        "verify against onnxruntime",
        "compile s",
        "artifact MB",
        "RSS MB",
        "onnxruntime MB",
    ]
    lines = ["## Answers, sizes, memory", "", _row(head), _row(["---"] * len(head))]
    for outcome in outcomes:
        made = outcome.answers.get("compile")
        if made is None:
            lines.append(_row([outcome.name, _why(outcome), "", "", "", ""]))
            continue
        cells = [outcome.name, _verified(outcome), f"{made['seconds']:.1f}"]
        cells.append(f"{made['bytes'] / 1e6:.1f}")
        for engine in ("fissile", "onnxruntime"):
            peaks = [r["peak_bytes"] for r in _records(outcome, 1, engine)]
            cells.append(f"{max(peaks) / 1e6:.0f}" if peaks else "-")
        lines.append(_row(cells))
    return [*lines, ""]


def _verified(outcome: Outcome) -> str:
    found = outcome.answers.get("verify")
    if not found or not found["rows"]:
        return outcome.failures.get("verify", "nothing compared")
    worst = max(found["rows"], key=lambda row: row["found"]["max_rel"])
    calls = len({row["draw"] for row in found["rows"]})
    verdict = "agrees" if found["agrees"] else "DIFFERS"
    return f"{verdict}, max rel {worst['found']['max_rel']:.0e} in {calls} calls"


def _slow(outcomes: Sequence[Outcome]) -> list[str]:
    lines = ["## Kernels with over 2 % of the time and over 8x their roofline bound (1 thread)", ""]
    for outcome in outcomes:
        rows = (outcome.answers.get("profile") or {}).get("rows", [])
        for row in rows:
            if row["share"] > 0.02 and (row["excess"] or 0) > 8:
                nodes = ", ".join(row["nodes"][:3])
                lines.append(
                    f"- {outcome.name} {row['kernel']}: {row['seconds'] * 1e6:.0f} us, "
                    f"{row['share']:.1%}, {row['excess']:.1f}x ({nodes})"
                )
    return lines if len(lines) > 2 else [*lines, "None."]


def main() -> None:
    """Parse, run, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="models; all when none is named")
    parser.add_argument("--against", default="onnxruntime,openvino")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--once", default="", help="engines that only the first repetition times")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--patience", type=float, default=600.0, help="seconds a rival may load")
    parser.add_argument("--page", type=Path, default=Path("docs/benchmarks.md"))
    args = parser.parse_args()
    files = sorted(
        {p.name.removesuffix(".onnx").removesuffix(".light") for p in args.folder.glob("*.onnx")}
    )
    outcomes = []
    for name in args.names or files:
        with tempfile.TemporaryDirectory() as folder:
            outcome = examine(inflated(args.folder, name, Path(folder)), args, Path(folder))
        outcomes.append(outcome)
        ours = _records(outcome, int(args.threads.split(",")[0]), "fissile")
        print(f"{name:22} {_ms(ours)} ms  {_verified(outcome)}  {_why(outcome)}", flush=True)
        args.page.write_text(page(outcomes, args), encoding="utf-8")
        raw = [vars(o) for o in outcomes]
        args.page.with_suffix(".json").write_text(json.dumps(raw), encoding="utf-8")


if __name__ == "__main__":
    main()
