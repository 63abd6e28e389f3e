"""Models with and without the searched substitutions: estimates, times and the difference of the outputs.

    python bench/substitute.py MODEL.onnx.. [--shape batch=4] [--threads 1,2] [--rounds 15] [--disable RULE]
    python bench/substitute.py MODEL.onnx.. --rounds 0     # estimates only, nothing is compiled

Prints what the cost model expects, which rules fired how often, the 10th percentiles of interleaved runs with the
interval of their ratio (DESIGN section 6), and the largest difference relative to the largest value of an output.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

import fissile
from fissile import pipeline
from fissile.options import Options, resolve_target
from fissile.pipeline import Work
from fissile.rewrite import estimator, firings
from fissile.runtime.executable import Executable
from fissile.runtime.statistic import Samples, compare, summarize

Feeds = dict[str, np.ndarray]


def estimates(model: Path, shapes: dict[str, int], options: Options) -> str:
    """Expected times before and after, and the firings between."""
    work = Work(model, None, (resolve_target("native"),), 1, options, shapes)
    work = pipeline.run(work, lambda event: None, "canonicalize")
    cost = estimator()
    before = cost(work.known("graph"))
    start = time.perf_counter()
    work = pipeline.substitute_graph(work)
    seconds = time.perf_counter() - start
    after = cost(work.known("graph"))
    used = ", ".join(f"{rule} {count}" for rule, count in firings(work.log).items())
    ratio = before / after
    return (
        f"estimate  {before * 1e3:9.3f} ms -> {after * 1e3:9.3f} ms  {ratio:5.2f}x"
        f"  ({len(work.log)} firings, search {seconds:.1f} s)\nfired     {used or 'nothing'}"
    )


def drawn(exe: Executable, shapes: dict[str, int]) -> Feeds:
    """Feeds of normal numbers, or small natural ones for integers."""
    rng = np.random.default_rng(0)
    feeds: Feeds = {}
    for info in exe.inputs:
        shape = tuple(d if isinstance(d, int) else shapes.get(str(d), 1) for d in info.shape)
        kind = np.dtype(info.dtype)
        values = rng.standard_normal(shape) if kind.kind == "f" else rng.integers(0, 2, shape)
        feeds[info.name] = values.astype(kind)
    return feeds


def samples(pair: list[Executable], feeds: Feeds, threads: int, rounds: int) -> list[Samples]:
    """Interleaved runs of both."""
    taken: list[list[tuple[float, float]]] = [[], []]
    for k in range(rounds + 1):
        for one, rows in zip(pair, taken, strict=True):
            start, cpu = time.perf_counter(), time.process_time()
            one.run(feeds)
            if k:
                rows.append((time.perf_counter() - start, time.process_time() - cpu))
    columns = [np.array(rows).T for rows in taken]
    return [Samples(c[0], c[1], np.zeros(len(c[0])), threads, whole=True) for c in columns]


def difference(want: Feeds, got: Feeds) -> float:
    """The largest difference, relative to the largest value of its output."""
    return max(
        float(np.abs(got[k].astype(np.float64) - v).max() / max(np.abs(v).max(), 1e-30))
        for k, v in want.items()
    )


def main() -> None:
    """Parse, compile twice, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--shape", action="append", default=[], help="batch=4")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--disable", action="append", default=[])
    args = parser.parse_args()
    shapes = {name: int(n) for name, n in (s.split("=") for s in args.shape)}
    off = Options(disable=tuple(args.disable), substitute=False)
    for model in args.models:
        print(
            f"{model.stem}\n{estimates(model, shapes, replace(off, substitute=True))}", flush=True
        )
        for threads in (int(t) for t in args.threads.split(",")) if args.rounds else ():
            print(measured(model, shapes, off, threads, args.rounds), flush=True)


def measured(model: Path, shapes: dict[str, int], off: Options, threads: int, rounds: int) -> str:
    """Both compiled and run in turns."""
    pair = [
        fissile.compile(model, threads=threads, shapes=shapes, options=o, cache=False)
        for o in (replace(off, store=False), replace(off, store=False, substitute=True))
    ]
    feeds = drawn(pair[0], shapes)
    want, got = (one.run(feeds) for one in pair)
    before, after = samples(pair, feeds, threads, rounds)
    ratio = compare(after, before)
    return (
        f"{threads} thr     {summarize(before).p10 * 1e3:9.3f} ms -> "
        f"{summarize(after).p10 * 1e3:9.3f} ms  {ratio.ratio:5.2f}x "
        f"[{ratio.low:.2f}, {ratio.high:.2f}] {ratio.verdict}, "
        f"max difference {difference(want, got):.1e}"
    )


if __name__ == "__main__":
    main()
