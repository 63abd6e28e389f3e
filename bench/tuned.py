"""Tuning of every model of a folder, from an empty store and from a full one: what is proved, what it costs and brings.

    python bench/tuned.py FOLDER [--seconds 60] [--threads N] [--json docs/tuned.json] [--again] [NAME ...]

Writes docs/tuned.md: the table of Korch's search (primitives, execution states, candidates, measured kernels, time),
the gaps, predicted beside measured totals, and the times before and after. Every model is tuned by the `fissile`
command in a process of its own, with a store and a cache of its own. A row is kept in the JSON file as soon as it is
known and not made again unless `--again` is given. FOLDER: see bench/zoo.py. The bar for every figure is in `MARKS`;
what misses one is listed at the end of the page.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from zoo import inflated, shapes_of

from fissile import __version__, pipeline
from fissile.commands.options import parse_shapes
from fissile.compare.table import machine_line
from fissile.options import Options, resolve_target
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.units import units_of
from fissile.pipeline import Work
from fissile.runtime.machine import facts
from fissile.runtime.threads import default_threads

MOST_STATES = 100_000
BEFORE = "untuned"


@dataclass(frozen=True)
class Row:
    """What one model took and what is proved of its plan. Seconds; gaps and interval as fractions.

    states: None where there are more than MOST_STATES. empty, full: seconds of the whole command. predicted, measured:
    of `plan`, the one that was kept where measurements predict it, else the cheapest; measured by its own time stamps.
    tuned, untuned: 10th percentiles, whole; ratio: untuned over kept. why: what failed.
    """

    model: str
    threads: int = 0
    budget: float = 0.0
    primitives: int = 0
    states: int | None = None
    candidates: int = 0
    measured: int = 0
    distinct: int = 0
    kernels: int = 0
    rounds: int = 0
    empty: float = 0.0
    full: float = 0.0
    gap: float = 0.0
    window_gap: float = 0.0
    admissible_gap: float = 0.0
    is_complete: bool = False
    plan: str = ""
    predicted: float = 0.0
    measured_total: float = 0.0
    kept: str = ""
    untuned: float = 0.0
    tuned: float = 0.0
    ratio: float = 1.0
    low: float = 1.0
    high: float = 1.0
    rejected: int = 0
    why: str = ""

    @property
    def each(self) -> float:
        """Measured kernels per distinct kernel of the plan."""
        return self.measured / max(self.distinct, 1)

    @property
    def error(self) -> float:
        """How far the prediction is from what was measured, as a fraction of that."""
        return self.predicted / self.measured_total - 1 if self.measured_total else 0.0


# what is asked of every model: the figure, how it is written, and the bar
MARKS: tuple[tuple[str, Callable[[Row], float], str, float], ...] = (
    ("measured kernels per distinct kernel", lambda r: r.each, "{:.1f}", 8.0),
    ("seconds from an empty store", lambda r: r.empty, "{:.0f}", 900.0),
    ("seconds from a full store", lambda r: r.full, "{:.0f}", 30.0),
    ("gap of a window", lambda r: r.window_gap, "{:.2%}", 0.01),
    ("gap of the whole graph", lambda r: r.gap, "{:.2%}", 0.03),
    ("prediction off by", lambda r: abs(r.error), "{:.1%}", 0.10),
)


# ---------------------------------------------------------------- one model


def state_count(reads: Sequence[Sequence[int]], most: int) -> int | None:
    """How many execution states a graph has (sets of finished units that a run passes through); None beyond `most`."""
    needs = [sum(1 << s for s in dict.fromkeys(sources)) for sources in reads]
    readers: list[list[int]] = [[] for _ in reads]
    for unit, sources in enumerate(reads):
        for source in dict.fromkeys(sources):
            readers[source].append(unit)
    first = tuple(u for u, need in enumerate(needs) if not need)
    seen, stack = {0}, [(0, first)]
    while stack:
        state, ready = stack.pop()
        for unit in ready:
            after = state | 1 << unit
            if after in seen:
                continue
            if len(seen) >= most:
                return None
            seen.add(after)
            fresh = tuple(r for r in readers[unit] if needs[r] & after == needs[r])
            stack.append((after, (*(u for u in ready if u != unit), *fresh)))
    return len(seen)


def size_of(model: Path, threads: int) -> tuple[int, int | None]:
    """Primitives (as orchestration counts them) of the graph that is planned, and its execution states."""
    given = parse_shapes([text.removeprefix("--shape=") for text in shapes_of(model)])
    work = Work(model, None, (resolve_target("native"),), threads, Options(), given)
    graph = pipeline.run(work, lambda event: None, "plan").known("graph")
    plan = greedy_plan(graph)
    units = units_of(plan.graph, {n for kernel in plan.kernels() for n in kernel.outputs})
    return len(units.all), state_count(units.reads, MOST_STATES)


def tune(model: Path, args: argparse.Namespace, to: Path, folder: Path) -> tuple[float, dict[str, Any]]:
    """Seconds of `fissile tune`, and its answer. RuntimeError with its last words."""
    command = [sys.executable, "-m", "fissile.cli", "tune", model, "--budget", f"{args.seconds:g}s"]
    command += ["-o", to, "--json", *shapes_of(model)]
    command += ["--threads", args.threads] if args.threads else []
    home = {"FISSILE_STORE": str(folder / "store.sqlite"), "FISSILE_CACHE_DIR": str(folder / "cache")}
    start = time.perf_counter()
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, env={**os.environ, **home}
    )
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or ["died"])[-1])
    return time.perf_counter() - start, json.loads(done.stdout)


def examine(name: str, args: argparse.Namespace) -> Row:
    """The row of a model."""
    threads = args.threads or default_threads()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        try:
            model = inflated(args.folder, name, folder)
            empty, found = tune(model, args, folder / "first.fsl", folder)
            full, _ = tune(model, args, folder / "second.fsl", folder)
            primitives, states = size_of(model, threads)
        except RuntimeError as error:
            return Row(name, threads, args.seconds, why=str(error))
    facts_of = found["certificate"]
    of_windows = facts_of["gap"] if facts_of["window_gap"] is None else facts_of["window_gap"]
    plan = found["name"] if found["times"].get(found["name"], {}).get("predicted") else "plan 1"
    told, kept = found["times"].get(plan, {}), found["times"].get(found["name"], {})
    ratio = kept.get("ratio", {})
    return Row(
        name, threads, args.seconds, primitives, states, facts_of["candidates"], facts_of["measured"],
        facts_of["distinct"], facts_of["kernels"], facts_of["rounds"], empty, full, facts_of["gap"],
        of_windows, facts_of["admissible_gap"], facts_of["complete"], plan,
        told.get("predicted") or 0.0, told.get("launches_seconds") or 0.0, found["name"],
        found["times"].get(BEFORE, {}).get("seconds", 0.0), kept.get("seconds", 0.0),
        ratio.get("ratio", 1.0), ratio.get("low", 1.0), ratio.get("high", 1.0), len(found["rejected"]),
    )  # fmt: skip


# ---------------------------------------------------------------- the page


def page(rows: Sequence[Row]) -> str:
    """docs/tuned.md."""
    good = [row for row in rows if not row.why]
    return "\n".join([*_head(rows), *_search(good), *_proof(good), *_brings(good), *_missed(rows)]) + "\n"


def _head(rows: Sequence[Row]) -> list[str]:
    counts = sorted({row.threads for row in rows})
    threads = f"{' and '.join(map(str, counts))} thread{'s' * (counts != [1])}"
    return [
        "# Tuning the networks",
        "",
        f"One machine. Made by `bench/tuned.py`, {time.strftime('%Y-%m-%d')}, fissile {__version__}.",
        "",
        f"    {machine_line(facts(), {})}",
        "",
        f"`fissile tune MODEL --budget` on {threads}, each model with an empty store of its own, then again with",
        "what that has left in it. Free dimensions stay free and are measured at the extents of",
        "[the benchmark page](benchmarks.md).",
        "",
    ]


def _search(rows: Sequence[Row]) -> list[str]:
    """What was looked at, and what it cost: the columns of Korch's Table 2, and some more."""
    titles = (
        "primitives", "execution states", "candidates", "measured", "share", "kernels", "distinct",
        "measured per distinct", "rejected", "rounds", "budget s", "empty store s", "full store s",
    )  # fmt: skip
    lines = [*_table("## The search", titles)]
    for r in rows:
        states = f"{r.states:,}" if r.states is not None else f"> {MOST_STATES:,}"
        cells = [
            r.primitives, states, r.candidates, r.measured, f"{r.measured / max(r.candidates, 1):.1%}",
            r.kernels, r.distinct, f"{r.each:.1f}", r.rejected, r.rounds, f"{r.budget:.0f}",
            f"{r.empty:.0f}", f"{r.full:.0f}",
        ]  # fmt: skip
        lines.append(_line(r.model, cells))
    return [
        *lines,
        "",
        "primitives: as the program counts them; an elementwise one that only one other reads is part of that.",
        "measured: distinct kernels that were timed. kernels, distinct: of the cheapest plan. Seconds are those of the",
        "whole command, reading the model, substitutions and whole runs of the best plans included.",
        "",
    ]


def _proof(rows: Sequence[Row]) -> list[str]:
    titles = (
        "window gap", "gap", "gap from bounds alone", "timed again", "plan", "predicted ms",
        "measured ms", "off by",
    )  # fmt: skip
    lines = [*_table("## What is proved, and how far predictions hold", titles)]
    for r in rows:
        cells = [
            f"{r.window_gap:.2%}", f"{r.gap:.2%}", f"{r.admissible_gap:.0%}", "yes" if r.is_complete else "no",
            r.plan, f"{r.predicted * 1e3:.2f}", f"{r.measured_total * 1e3:.2f}", f"{r.error:+.1%}",
        ]  # fmt: skip
        lines.append(_line(r.model, cells))
    return [
        *lines,
        "",
        "gap: of the cheapest plan to the linear relaxation of the whole graph, or to the bound that the solver proves",
        "beyond it; window gap: to what windows of it select when solved to the optimum (or to the relaxation, where",
        "that is close enough); both under measured costs. Kernels that nobody measured are taken to be no faster,",
        "beside their guess, than the fastest measured most like them. Predicted: the sum of its kernels, each timed",
        "alone. Measured: the sum of the same kernels by the time stamps of a whole run, its 10th percentile. plan:",
        "that which is compared.",
        "",
    ]


def _brings(rows: Sequence[Row]) -> list[str]:
    titles = ("untuned ms", "tuned ms", "untuned / tuned", "interval", "kept")
    lines = [*_table("## What it brings", titles)]
    for r in rows:
        cells = [
            f"{r.untuned * 1e3:.2f}", f"{r.tuned * 1e3:.2f}", f"{r.ratio:.2f}",
            f"[{r.low:.2f}, {r.high:.2f}]", r.kept,
        ]  # fmt: skip
        lines.append(_line(r.model, cells))
    return [
        *lines,
        "",
        "Whole models in turns, in one process; 10th percentiles, with the 95 % interval of their ratio. kept: what",
        "was installed; `untuned` where no other plan was faster, `greedy` for the plan that no program chose.",
        "",
    ]


def _missed(rows: Sequence[Row]) -> list[str]:
    good = [row for row in rows if not row.why]
    lines = [f"- {row.model}: {row.why}" for row in rows if row.why]
    for title, figure, form, most in MARKS:
        late = [r for r in good if figure(r) > most]
        lines += [f"- {r.model}: {title} {form.format(figure(r))}, not {form.format(most)}" for r in late]
    lines += [f"- {r.model}: the budget ended before all was timed again" for r in good if not r.is_complete]
    lines += [f"- {r.model}: no plan was predicted and run" for r in good if not r.predicted * r.measured_total]
    bars = ", ".join(f"{title} {form.format(most)}" for title, _, form, most in MARKS)
    return ["## What misses its mark", "", f"At most: {bars}.", "", *(lines or ["Nothing."])]


def _table(title: str, titles: Sequence[str]) -> Iterator[str]:
    yield from (title, "", f"| model | {' | '.join(titles)} |", f"|{'---|' * (len(titles) + 1)}")


def _line(model: str, cells: Sequence[object]) -> str:
    return f"| {model} | {' | '.join(map(str, cells))} |"


# ---------------------------------------------------------------- all of them


def kept_rows(path: Path) -> dict[str, Row]:
    """Rows of an earlier run by model; none where there is no such file. Those that failed are made again."""
    if not path.exists():
        return {}
    names = {f.name for f in fields(Row)}
    known = [Row(**{k: v for k, v in row.items() if k in names}) for row in json.loads(path.read_text())]
    return {row.model: row for row in known if not row.why}


def main() -> None:
    """Parse, run; the page and the rows are written after every model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="models; all when none is named")
    parser.add_argument("--seconds", type=float, default=60.0, help="the budget of a model")
    parser.add_argument("--threads", type=int, default=0, help="threads of a call; default: as `fissile tune`")
    parser.add_argument("--json", type=Path, default=Path("docs/tuned.json"))
    parser.add_argument("--page", type=Path, default=Path("docs/tuned.md"))
    parser.add_argument("--again", action="store_true", help="make rows that are known already, too")
    args = parser.parse_intermixed_args()
    known = kept_rows(args.json)
    files = {p.name.removesuffix(".onnx").removesuffix(".light") for p in args.folder.glob("*.onnx")}
    for name in args.names or sorted(files):
        if name in known and not args.again:
            continue
        row = known[name] = examine(name, args)
        marks = [f"{title} {form.format(figure(row))}" for title, figure, form, _ in MARKS]
        print(f"{name:22} {row.why or ', '.join(marks)}, {row.ratio:.2f}x", flush=True)
        rows = [known[model] for model in sorted(known)]
        args.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n", encoding="utf-8")
        args.page.write_text(page(rows), encoding="utf-8")
    args.page.write_text(page([known[model] for model in sorted(known)]), encoding="utf-8")


if __name__ == "__main__":
    main()
