"""What other runtimes make of fissile's graphs: the study of Korch's Figure 7.

    python bench/portable.py FOLDER [--threads 1,2] [--rounds 20] [--seconds 30] [--page docs/portable.md] [NAME ...]

Every model of FOLDER (see bench/zoo.py) in onnxruntime and OpenVINO as it is, as primitives (`fissile fission`) and as
`fissile optimize` writes it, all interleaved, each in a process of its own. Ratios are times of the original over times
of the other, above 1 where the other is faster, with the 95 % interval; `itself` is the original against itself. The
largest difference of the outputs is relative to the largest value of an output. Writes the page, and every sample to a
JSON file beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from zoo import inflated

from fissile import __version__
from fissile.compare.bench import PATIENCE_SECONDS, Child, Rounds, take
from fissile.compare.engine import ENGINES
from fissile.compare.split import split, write_model
from fissile.compare.table import machine_line
from fissile.errors import CompileError
from fissile.optimizer import optimized
from fissile.runtime.machine import facts
from fissile.runtime.statistic import compare, summarize

NAMES = (
    "segformer_b0", "efficientvit_b1", "efficientvit_b1_1024", "candy_224", "yolox_nano", "yolov4",
)  # fmt: skip
RUNTIMES = ("onnxruntime", "openvino")
FORMS = ("original", "itself", "fission", "optimize")
Array = np.ndarray[Any, np.dtype[Any]]
Row = dict[str, Any]


def written(model: Path, folder: Path) -> tuple[dict[str, Path], str]:
    """The forms of a model as files, and what `optimize` did."""
    paths = {"original": model, "itself": model}
    for form in ("fission", "optimize"):
        paths[form] = folder / f"{model.stem}.{form}.onnx"
    split(model, paths["fission"], {})
    done = optimized(model)
    write_model(done.model, paths["optimize"])
    return paths, done.text()


def drawn(model: Path) -> dict[str, Array]:
    """Normal numbers for every input, 1 for free extents."""
    graph = onnx.load(model, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    draw = np.random.default_rng(0)
    feeds = {}
    for value in graph.input:
        if value.name not in weights:
            kind = value.type.tensor_type
            shape = [d.dim_value or 1 for d in kind.shape.dim]
            of = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            feeds[value.name] = draw.standard_normal(shape).astype(of)
    return feeds


def study(paths: Mapping[str, Path], folder: Path, threads: int, limits: Rounds) -> list[Row]:
    """A row for each runtime and form. paths: the forms of one model."""
    model = paths["original"]
    feeds, place = drawn(model), folder / "feeds.npz"
    np.savez(place, **{str(k): a for k, a in enumerate(feeds.values())})  # type: ignore[arg-type]
    rows: list[Row] = []
    crew: dict[str, Child] = {}
    with ExitStack() as stack:
        for runtime in RUNTIMES:
            for form in FORMS:
                child = stack.enter_context(Child(f"{runtime} {form}", runtime))
                row = {"model": model.stem, "threads": threads, "runtime": runtime, "form": form}
                rows.append(row)
                request = {"engine": runtime, "path": str(paths[form]), "threads": threads}
                try:
                    child.ask(
                        "load",
                        feeds=str(place),
                        names=list(feeds),
                        patience=PATIENCE_SECONDS,
                        **request,
                    )
                    row["outputs"] = outputs_of(child, folder / "outputs.npz")
                    crew[child.name] = child
                except CompileError as error:
                    row["absent"] = error.reason
        samples, rounds = take(list(crew.values()), limits, threads, lambda text: None)
    for row in rows:
        row["rounds"] = rounds
        own, base = (samples.get(f"{row['runtime']} {form}") for form in (row["form"], "original"))
        if own is not None and base is not None:
            ratio = compare(own, base, limits.seed)
            row |= {"seconds": summarize(own).p10, "ratio": ratio.ratio}
            row |= {"low": ratio.low, "high": ratio.high, "samples": own.seconds.tolist()}
    given: list[Any] = [row.pop("outputs", None) for row in rows]
    expected = given[0]
    for row, found in zip(rows, given, strict=True):
        if expected is not None and found is not None:
            row["difference"] = difference(expected, found)
    return rows


def outputs_of(child: Child, path: Path) -> dict[str, Array]:
    """What the child's engine answers, by name."""
    names = child.ask("outputs", path=str(path))["names"]
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[str(k)] for k, name in enumerate(names)}


def difference(want: Mapping[str, Array], got: Mapping[str, Array]) -> float:
    """The largest difference, relative to the largest value of its output."""
    pairs = zip(want.values(), got.values(), strict=True)
    return max(
        float(np.abs(np.asarray(y, np.float64) - x).max() / max(np.abs(x).max(), 1e-30))
        for x, y in pairs
    )


def line(row: Row) -> str:
    """One row of the table."""
    head = f"{row['model']:22} {row['threads']} {row['runtime']:12} {row['form']:9}"
    if "absent" in row:
        return f"{head} does not run: {row['absent']}"
    interval = f"[{row['low']:.2f}, {row['high']:.2f}]"
    return (
        f"{head} {row['seconds'] * 1e3:10.2f} ms  {row['ratio']:5.2f}x {interval:14}"
        f" difference {row['difference']:.0e}"
    )


def page(rows: Sequence[Row], done: Mapping[str, str], head: str) -> str:
    """docs/portable.md. done: model -> what `optimize` did."""
    lines = [
        "# fissile's graphs in other runtimes",
        "",
        f"Made by `bench/portable.py`, {time.strftime('%Y-%m-%d')}.",
        "",
        f"    {head}",
        "",
        "Whole models as they are, as primitives (`fissile fission`) and as `fissile optimize` writes them, all",
        "interleaved, each in a process of its own, random inputs, float32. A number is the original's 10th percentile",
        "over the other's, with its 95 % interval: **above 1 the other is faster, below 1 it is slower**. `itself` is",
        "the original once more. Differences are relative to the largest value of an output.",
        "",
    ]
    for runtime, threads in dict.fromkeys((r["runtime"], r["threads"]) for r in rows):
        found = [r for r in rows if (r["runtime"], r["threads"]) == (runtime, threads)]
        title = f"## {runtime}, {threads} thread{'s' * (threads > 1)}"
        lines += [title, "", *_table(found), ""]
    lines += ["## What `optimize` did", "", *(f"- {name}: {text}" for name, text in done.items())]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Row]) -> list[str]:
    head = ["model", "original ms", *FORMS[1:], "largest difference: fission", "optimize"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for model in dict.fromkeys(row["model"] for row in rows):
        forms = {row["form"]: row for row in rows if row["model"] == model}
        base = forms["original"]
        cells = [model, f"{base['seconds'] * 1e3:.2f}" if "seconds" in base else _cell(base)]
        cells += [_cell(forms[form]) for form in FORMS[1:]]
        cells += [
            f"{forms[form]['difference']:.0e}" if "difference" in forms[form] else "-"
            for form in ("fission", "optimize")
        ]
        lines.append(f"| {' | '.join(cells)} |")
    means = [
        _mean(row["ratio"] for row in rows if row["form"] == f and "ratio" in row)
        for f in FORMS[1:]
    ]
    return [*lines, f"| geometric mean | | {' | '.join(means)} | | |"]


def _cell(row: Row) -> str:
    if "absent" in row:
        return f"does not run: {row['absent']}"
    return f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}]" if "ratio" in row else "-"


def _mean(ratios: Iterable[float]) -> str:
    logs = [math.log(ratio) for ratio in ratios]
    return f"{math.exp(sum(logs) / len(logs)):.2f}" if logs else "-"


def main() -> None:
    """Parse, time, print; the page and every sample are written after each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--page", type=Path, default=Path("docs/portable.md"))
    args = parser.parse_args()
    machine = facts()
    versions = {"fissile": __version__} | {name: ENGINES[name].version for name in RUNTIMES}
    head = machine_line(machine, versions)
    print(head, flush=True)
    rows: list[Row] = []
    done: dict[str, str] = {}
    limits = Rounds(rounds=args.rounds, seconds=args.seconds)
    for name in args.names:
        with tempfile.TemporaryDirectory() as folder:
            model = inflated(args.folder, name, Path(folder))
            paths, done[name] = written(model, Path(folder))
            print(f"{name}: {done[name]}", flush=True)
            for threads in map(int, args.threads.split(",")):
                found = study(paths, Path(folder), threads, limits)
                print("\n".join(map(line, found)), flush=True)
                rows += found
        args.page.write_text(page(rows, done, head), encoding="utf-8")
        document = {"machine": machine, "versions": versions, "done": done, "rows": rows}
        args.page.with_suffix(".json").write_text(json.dumps(document), encoding="utf-8")


if __name__ == "__main__":
    main()
