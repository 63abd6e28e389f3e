"""Whether networks are as fast as at another commit: both compilers' artifacts, interleaved, several runs.

    python bench/versions.py FOLDER [NAME ...] --against COMMIT [--threads 1] [--repeats 3] [--rounds 20]

The other compiler and its runtime run from a checkout of COMMIT. Every run loads every artifact anew, in a process of
its own. A ratio is the other's 10th percentile over today's: above 1 = today's is faster. FOLDER: see bench/zoo.py.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from orchestration import fissile_command, frozen
from zoo import EXTENTS, inflated, shapes_of

import fissile
from fissile.compare.bench import Child, Rounds, take
from fissile.compare.feeds import complete_feeds
from fissile.runtime.statistic import Samples, compare, summarize

RESAMPLES = 400
PERCENTILE = 10.0
NOW, THEN = "now", "then"


@dataclass(frozen=True)
class Row:
    """One model: seconds of both, the ratio of each run and of all together with its 95 % interval.

    bytes_now, bytes_then: of the artifacts; seconds_now, seconds_then: to compile, beside whatever else ran.
    """

    model: str
    threads: int
    p10_seconds: float
    ratios: tuple[float, ...]
    ratio: float
    low: float
    high: float
    bytes_now: int
    bytes_then: int
    seconds_now: float
    seconds_then: float


def examine(name: str, checkout: Path, args: argparse.Namespace) -> Row:
    """Compile a model by both, and time both in several runs."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        model = inflated(args.folder, name, folder).resolve()
        places = {NOW: (folder / "now.fsl", None), THEN: (folder / "then.fsl", checkout)}
        took: dict[str, float] = {}
        for title, (path, home) in places.items():
            start = time.perf_counter()
            given = [*shapes_of(model), "--threads", args.threads, "-o", path, "--no-cache"]
            fissile_command("compile", model, *given, folder=home)
            took[title] = time.perf_counter() - start
        runs = [_timed(places, folder, args) for _ in range(args.repeats)]
        sizes = {title: path.stat().st_size for title, (path, _) in places.items()}
    ratios = [compare(run[NOW], run[THEN]) for run in runs]
    whole = compare(*(_joined([run[t] for run in runs]) for t in (NOW, THEN)))
    return Row(
        name,
        args.threads,
        summarize(_joined([run[NOW] for run in runs])).p10,
        tuple(r.ratio for r in ratios),
        whole.ratio,
        whole.low,
        whole.high,
        sizes[NOW],
        sizes[THEN],
        took[NOW],
        took[THEN],
    )


def _timed(
    places: dict[str, tuple[Path, Path | None]], folder: Path, args: argparse.Namespace
) -> dict[str, Samples]:
    """Samples of both, each in a process started for this run."""
    with ExitStack() as stack:
        executable = fissile.load(places[NOW][0])
        feeds = complete_feeds(executable.inputs, {}, EXTENTS, 0)
        np.savez(folder / "feeds.npz", **{str(k): a for k, a in enumerate(feeds.values())})  # type: ignore[arg-type]
        crew = []
        for title, (path, home) in places.items():
            child = stack.enter_context(Child(title, "fissile", home))
            given = {"feeds": str(folder / "feeds.npz"), "names": list(feeds)}
            child.ask("load", engine="fissile", path=str(path), threads=args.threads, **given)
            crew.append(child)
        rounds = Rounds(rounds=args.rounds, seconds=args.seconds)
        samples, _ = take(crew, rounds, args.threads, lambda text: None)
        return samples


def _joined(parts: Sequence[Samples]) -> Samples:
    """The samples of several runs as those of one."""
    columns = zip(*((s.seconds, s.cpu, s.switches) for s in parts), strict=True)
    seconds, cpu, switches = (np.concatenate(column) for column in columns)
    return Samples(seconds, cpu, switches, parts[0].threads, parts[0].whole)


def mean_of(rows: Sequence[Row]) -> tuple[float, float, float]:
    """The geometric mean of the models' ratios, and its interval: models and runs are drawn anew."""
    logs = [[math.log(r) for r in row.ratios] for row in rows]
    rng = np.random.default_rng(0)
    drawn = [
        np.mean([np.mean(rng.choice(runs, len(runs))) for runs in logs]) for _ in range(RESAMPLES)
    ]
    middle = np.mean([np.mean(runs) for runs in logs])
    return tuple(float(np.exp(x)) for x in (middle, *np.percentile(drawn, (2.5, 97.5))))  # type: ignore[return-value]


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown, and the geometric mean."""
    lines = ["| model | ms | ratio | runs | MB | compile s |", f"|{'---|' * 6}"]
    for row in rows:
        runs = ", ".join(f"{r:.3f}" for r in row.ratios)
        ratio = f"{row.ratio:.3f} [{row.low:.3f}, {row.high:.3f}]"
        size = f"{row.bytes_now / 1e6:.1f} ({row.bytes_then / 1e6:.1f})"
        took = f"{row.seconds_now:.1f} ({row.seconds_then:.1f})"
        lines.append(
            f"| {row.model} | {row.p10_seconds * 1e3:.2f} | {ratio} | {runs} | {size} | {took} |"
        )
    mean, low, high = mean_of(rows)
    return "\n".join([*lines, f"| geometric mean | | {mean:.3f} [{low:.3f}, {high:.3f}] | | | |"])


def main() -> None:
    """Parse, run, print; every row is printed as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--against", required=True, help="a commit or tag")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--json", type=Path, help="where the numbers go")
    args = parser.parse_args()
    names = args.names or sorted({p.name.split(".")[0] for p in args.folder.glob("*.onnx")})
    rows: list[Row] = []
    with frozen(args.against) as checkout:
        for name in names:
            rows.append(examine(name, checkout, args))
            print(table(rows[-1:]).splitlines()[2], flush=True)
            if args.json is not None:
                args.json.write_text(json.dumps([asdict(row) for row in rows]), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
