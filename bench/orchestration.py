"""What each part of kernel orchestration brings: one table against the frozen greedy plan (DESIGN 6, Korch Fig. 6).

    python bench/orchestration.py FOLDER [--budget 5m] [--threads 1] [--rounds 20] [NAME[:dimension=n] ...]

The baseline is the compiler as it stood at git tag `greedy-plan` (its code, checked out beside this one). The columns
add one thing at a time: the same greedy plan by today's kernels, substitutions, the program that chooses kernels by
guesses, formats (kernels that leave their result in the panels of the next product), Winograd, the same by measuring.
All artifacts of a model are timed interleaved, each in a process of its own; a number is the baseline's 10th percentile
over the column's, with its 95 % interval. FOLDER: see bench/zoo.py.
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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from zoo import inflated

import fissile
from fissile import pipeline
from fissile.compare.bench import Child, Rounds, take
from fissile.compare.difference import worst
from fissile.compare.feeds import complete_feeds
from fissile.ir.graph import Graph
from fissile.options import Options, resolve_target
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.nominal import guesses
from fissile.orchestrate.orchestrate import orchestrate
from fissile.orchestrate.plan import Kernel, Plan
from fissile.orchestrate.plan_file import plan_text
from fissile.pipeline import Work
from fissile.runtime.statistic import compare, summarize

TAG = "greedy-plan"
BASELINE = "baseline"
MODELS = (
    "segformer_b0", "segformer_b0_dynb:batch=16", "efficientvit_b1", "efficientvit_b1_1024",
    "candy_224", "yolox_nano", "yolov4",
)  # fmt: skip
WINOGRAD = ("winograd_2", "winograd_4")
PROHIBITIVE = 1e3  # times its guess: what a kernel costs that is not to be chosen


@dataclass(frozen=True)
class Column:
    """One way to compile a model: options, and who chooses the kernels.

    plan: "greedy", "plain" (the program without formats), "program" or "tune".
    """

    title: str
    options: Options
    plan: str


COLUMNS = (
    Column("fission only", Options(substitute=False), "greedy"),
    Column("+ substitutions", Options(disable=WINOGRAD), "greedy"),
    Column("+ orchestration", Options(disable=WINOGRAD), "plain"),
    Column("+ formats", Options(disable=WINOGRAD), "program"),
    Column("+ Winograd", Options(), "program"),
    Column("+ measuring", Options(), "tune"),
)


@dataclass(frozen=True)
class Cell:
    """Seconds of one artifact, and the baseline's time over its own. difference: relative to the baseline's outputs."""

    column: str
    p10_seconds: float
    ratio: float
    low: float
    high: float
    difference: float
    made_in: float


@dataclass
class Row:
    """A model, its cells, and why some are missing."""

    model: str
    threads: int
    cells: list[Cell] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


@contextmanager
def frozen(tag: str) -> Iterator[Path]:
    """A checkout of the project as of `tag`, for as long as the context lasts."""
    root = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / tag
        git = ["git", "-C", str(root), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(place), tag], check=True)
        try:
            yield place
        finally:
            subprocess.run([*git, "remove", "--force", str(place)], check=True)


def fissile_command(*arguments: object, folder: Path | None = None) -> None:
    """Run a `fissile` command; `folder` is a checkout whose version runs. RuntimeError with its last words.

    Only `tune` sees the tuning store: what it remembers would decide about the other columns.
    """
    command = [sys.executable, "-m", "fissile.cli", *map(str, arguments)]
    home = os.environ if arguments[0] == "tune" else {**os.environ, "FISSILE_STORE": os.devnull}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=home)
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or ["died"])[-1])


def make(column: Column, model: Path, shapes: dict[str, int], args: argparse.Namespace, to: Path) -> None:
    """The artifact of a column."""
    given = [f"--shape={name}={extent}" for name, extent in shapes.items()]
    given += [f"--disable={name}" for name in column.options.disable]
    given += ["--threads", args.threads, "-o", to]
    given += [] if column.options.substitute else ["--no-substitute"]
    if column.plan == "tune":
        fissile_command("tune", model, *given, "--budget", args.budget)
        return
    if column.plan == "program":
        fissile_command("compile", model, *given, "--no-cache")
        return
    plan = to.with_suffix(".json")
    plan.write_text(plan_text(plan_without_formats(column, model, shapes, args)), encoding="utf-8")
    fissile_command("compile", model, *given, "--no-cache", "--plan", plan)


def plan_without_formats(column: Column, model: Path, shapes: dict[str, int], args: argparse.Namespace) -> Plan:
    """The greedy plan of a model, or what the program chooses among kernels that write no panels on the way."""
    work = Work(model, None, (resolve_target("native"),), args.threads, column.options, shapes)
    work = pipeline.run(work, lambda event: None, "substitute")
    graph: Graph = work.known("graph")
    if column.plan == "greedy":
        return greedy_plan(graph)
    price = guesses(graph, work.targets[0], args.threads, shapes)

    def dear(kernel: Kernel) -> tuple[float, float]:
        least, probable = price(kernel)
        return (least, probable * PROHIBITIVE) if writes_panels(kernel) else (least, probable)

    plans = [orchestrate(g, dear) for g in (graph, work.plain) if g is not None]
    return min(plans, key=lambda found: found[1].predicted_seconds)[0]


def writes_panels(kernel: Kernel) -> bool:
    """Whether a kernel leaves what it computes in the panels of the next product."""
    computes = any(node.primitive.kind != "layout" for node in kernel.nodes)
    return computes and any(node.name == "pack" for node in kernel.outputs)


def measure(
    artifacts: dict[str, tuple[Path, Path | None]], row: Row, made: dict[str, float], args: argparse.Namespace
) -> None:
    """Time all artifacts interleaved; their cells go to the row. artifacts: title -> file, checkout that runs it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        first = fissile.load(next(iter(artifacts.values()))[0])
        feeds = complete_feeds(first.inputs, {}, {}, 0)
        np.savez(folder / "feeds.npz", **{str(k): a for k, a in enumerate(feeds.values())})  # type: ignore[arg-type]
        crew, outputs = [], {}
        for title, (path, checkout) in artifacts.items():
            child = stack.enter_context(Child(title, "fissile", checkout))
            places = {"feeds": str(folder / "feeds.npz"), "names": list(feeds)}
            child.ask("load", engine="fissile", path=str(path), threads=args.threads, **places)
            names = child.ask("outputs", path=str(folder / "out.npz"))["names"]
            with np.load(folder / "out.npz") as archive:
                outputs[title] = {name: archive[str(k)] for k, name in enumerate(names)}
            crew.append(child)
        rounds = Rounds(rounds=args.rounds, seconds=args.seconds)
        samples, _ = take(crew, rounds, args.threads, lambda text: None)
    for title, found in samples.items():
        ratio = compare(found, samples[BASELINE])
        gap = worst(outputs[BASELINE], outputs[title]).max_rel
        row.cells.append(
            Cell(title, summarize(found).p10, ratio.ratio, ratio.low, ratio.high, gap, made[title])
        )


def examine(name: str, checkout: Path, args: argparse.Namespace) -> Row:
    """All columns of one model."""
    row = Row(name, args.threads)
    stem, _, fixed = name.partition(":")
    shapes = {key: int(n) for key, _, n in (part.partition("=") for part in fixed.split(",") if part)}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        model = inflated(args.folder, stem, folder).resolve()
        artifacts: dict[str, tuple[Path, Path | None]] = {BASELINE: (folder / "baseline.fsl", checkout)}
        made: dict[str, float] = {BASELINE: 0.0}
        given = [f"--shape={key}={n}" for key, n in shapes.items()]
        target = artifacts[BASELINE][0]
        given += ["--threads", args.threads, "-o", target, "--no-cache"]
        fissile_command("compile", model, *given, folder=checkout)
        for k, column in enumerate(COLUMNS):
            path, start = folder / f"{k}.fsl", time.perf_counter()
            try:
                make(column, model, shapes, args, path)
            except RuntimeError as error:
                row.failures[column.title] = str(error)
                continue
            made[column.title] = time.perf_counter() - start
            artifacts[column.title] = path, None
        measure(artifacts, row, made, args)
    return row


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown, and the geometric mean of each column."""
    titles = [c.title for c in COLUMNS]
    lines = [f"| model | greedy plan ms | {' | '.join(titles)} |", f"|{'---|' * (len(titles) + 2)}"]
    for row in rows:
        known = {cell.column: cell for cell in row.cells}
        cells = [row.model, f"{known[BASELINE].p10_seconds * 1e3:.2f}"]
        for title in titles:
            cell = known.get(title)
            said = row.failures.get(title, "-")
            cells.append(f"{cell.ratio:.2f} [{cell.low:.2f}, {cell.high:.2f}]" if cell else said)
        lines.append(f"| {' | '.join(cells)} |")
    means = [f"{_mean(rows, title):.2f}" for title in titles]
    return "\n".join([*lines, f"| geometric mean | | {' | '.join(means)} |"])


def _mean(rows: Sequence[Row], title: str) -> float:
    """Over models; the sizes of one network count as one, by their own geometric mean."""
    families: dict[str, list[float]] = {}
    for row in rows:
        for cell in row.cells:
            if cell.column == title:
                families.setdefault(row.model.split("_")[0], []).append(math.log(cell.ratio))
    logs = [sum(found) / len(found) for found in families.values()]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def main() -> None:
    """Parse, run, print; every row is written as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(MODELS))
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path, help="where the numbers go")
    args = parser.parse_args()
    rows = []
    with frozen(TAG) as checkout:
        for name in args.names:
            rows.append(examine(name, checkout, args))
            print(table(rows[-1:]), flush=True)
            if args.json is not None:
                args.json.write_text(json.dumps([asdict(row) for row in rows]), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
