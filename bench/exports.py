"""Exports that are hard on a compiler: compiled, compared with onnxruntime at several shapes, timed beside it.

    python bench/build_zoo.py FOLDER exported/NAME ...
    python bench/exports.py FOLDER [NAME ...] [--seconds 20] [--repeat 2] [--results exports.json]

Every step is a `fissile` command in a process of its own, so that a failure is a line of the table. What is done is
kept in the file of results after every step, and not done again: delete the file, or a line in it, to have it again.
Times are of one thread, warm, engines interleaved; a ratio is onnxruntime's time over fissile's, with 95 % interval.
Detectors (`fasterrcnn`, `ssdlite`) are compiled and compared only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TIMEOUT = 1800
TOLERANCE = 1e-3  # of the largest magnitude: networks of random weights do not damp what differs
Shapes = Mapping[str, tuple[int, ...]]
Array = np.ndarray[Any, np.dtype[Any]]


def _images(*sizes: tuple[int, int, int]) -> list[Shapes]:
    return [{"x": (batch, 3, height, width)} for batch, height, width in sizes]


def _masked(*sizes: tuple[int, int, int]) -> list[Shapes]:
    return [{"pixels": (n, 3, h, w), "mask": (n, h, w)} for n, h, w in sizes]


def _latents(*sizes: tuple[int, int, int]) -> list[Shapes]:
    return [
        {"sample": (n, 4, h, w), "timestep": (n,), "context": (n, 77, 256)} for n, h, w in sizes
    ]


def _waves(*sizes: tuple[int, int]) -> list[Shapes]:
    return [{"speech": size} for size in sizes]


def _pictures(*sizes: tuple[int, int]) -> list[Shapes]:
    return [{"image": (3, *size)} for size in sizes]


# Where each is compared; at the first two it is timed, too.
SHAPES: dict[str, Sequence[Shapes]] = {
    "vit_b16_dynamo": _images((1, 224, 224), (2, 224, 224), (3, 224, 224)),
    "vit_b16_size_dynamo": _images((1, 224, 224), (2, 240, 256), (3, 112, 176), (1, 272, 240)),
    "yolov8n_dynamo": _images((1, 320, 352), (1, 640, 640), (2, 224, 416), (3, 96, 160)),
    "detr_dynamo": _masked((1, 320, 384), (1, 480, 640), (2, 321, 353), (3, 160, 224)),
    "detr_script": _masked((1, 320, 384), (1, 480, 640), (2, 321, 353), (3, 160, 224)),
    "xcit_dynamo": _images((1, 224, 224), (2, 224, 240), (3, 112, 176), (1, 272, 304)),
    "edgenext_dynamo": _images((1, 224, 256), (1, 320, 320), (2, 96, 160), (3, 224, 288)),
    "wav2vec2_dynamo": _waves((1, 16000), (1, 48000), (2, 12345), (3, 7777)),
    "unet_dynamo": _latents((2, 32, 40), (1, 64, 64), (1, 20, 28), (3, 44, 12)),
    "fasterrcnn": _pictures((320, 384), (321, 411), (240, 163)),
    "ssdlite": _pictures((320, 384), (321, 411), (240, 163)),
}
NOT_TIMED = ("fasterrcnn", "ssdlite")
Row = dict[str, Any]


def drawn(shapes: Shapes, seed: int) -> dict[str, Array]:
    """Arrays of an input each: the mask of an image covers its upper left part, a time step is below 1000."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for name, shape in shapes.items():
        if name == "mask":
            feeds[name] = np.zeros(shape, np.int64)
            for one, (h, w) in zip(feeds[name], rng.integers(60, 101, (shape[0], 2)), strict=True):
                one[: shape[1] * h // 100, : shape[2] * w // 100] = 1
        elif name == "timestep":
            feeds[name] = rng.integers(0, 1000, shape)
        elif name == "image":
            feeds[name] = rng.random(shape, np.float32)
        else:
            feeds[name] = rng.standard_normal(shape, np.float32)
    return feeds


def ask(*arguments: object) -> tuple[dict[str, Any] | None, str]:
    """The JSON answer of a `fissile` command, or None and what went wrong."""
    command = [sys.executable, "-m", "fissile.cli", *map(str, arguments), "--json"]
    env = {**os.environ, "FISSILE_STORE": os.devnull}  # not tuned: what was measured does not count
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=TIMEOUT, env=env
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {TIMEOUT} s"
    if done.returncode not in (0, 3):
        lines = done.stderr.strip().splitlines()
        words = [line for line in lines if line.startswith("error")] or lines or ["died"]
        return None, f"{words[-1]} (exit {done.returncode})"
    return json.loads(done.stdout), ""


class Results:
    """Rows by model and step, written to a file after every change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, Row] = json.loads(path.read_text()) if path.exists() else {}

    def keep(self, model: str, step: str, found: Any) -> None:
        self.rows.setdefault(model, {})[step] = found
        draft = self.path.with_suffix(".part")
        draft.write_text(json.dumps(self.rows, indent=1), encoding="utf-8")
        draft.replace(self.path)

    def has(self, model: str, step: str) -> bool:
        return step in self.rows.get(model, {})


def examine(path: Path, name: str, results: Results, args: argparse.Namespace) -> None:
    """The steps of one model that are not done yet."""
    todo = [step for step in _steps(name, args) if not results.has(name, step)]
    if not todo:
        return
    with tempfile.TemporaryDirectory() as folder:
        artifact = Path(folder) / f"{name}.fsl"
        start = time.perf_counter()
        made, reason = ask("compile", path, "-o", artifact, "--no-cache")
        seconds = time.perf_counter() - start
        foreign = [] if made is None else [f"{c['operator']}" for c in made.get("calls", ())]
        results.keep(name, "compile", {"seconds": seconds, "reason": reason, "foreign": foreign})
        if made is None:
            return
        for number, shapes in enumerate(SHAPES[name]):
            feeds = Path(folder) / f"{number}.npz"
            np.savez(feeds, **drawn(shapes, number))
            common = (artifact, "--model", path, "--against", "onnxruntime", "--input", feeds)
            if f"verify {number}" in todo:
                answer = ask("verify", *common, "--tolerance", TOLERANCE)
                results.keep(name, f"verify {number}", _verdict(*answer))
            for turn in range(args.repeat):
                if f"bench {number} {turn}" in todo:
                    answer = ask("bench", *common, "--threads", 1, "--seconds", args.seconds)
                    results.keep(name, f"bench {number} {turn}", _times(*answer))


def _steps(name: str, args: argparse.Namespace) -> list[str]:
    timed = 0 if name in NOT_TIMED else 2
    benches = [f"bench {n} {turn}" for n in range(timed) for turn in range(args.repeat)]
    return [*(f"verify {n}" for n in range(len(SHAPES[name]))), *benches]


def _verdict(answer: dict[str, Any] | None, reason: str) -> Row:
    if answer is None:
        return {"reason": reason}
    worst = max((row["found"]["max_rel"] for row in answer["rows"]), default=float("nan"))
    said = [text for row in answer["rows"] if (text := row.get("error"))]
    return {"agrees": answer["agrees"], "max_rel": worst, **({"reason": said[0]} if said else {})}


def _times(answer: dict[str, Any] | None, reason: str) -> Row:
    if answer is None:
        return {"reason": reason}
    records = {r["engine"]: r for r in answer["records"]}
    if "onnxruntime" not in records:
        return {"reason": f"onnxruntime: {answer['absent'].get('onnxruntime')}"}
    ours, theirs = records["fissile"], records["onnxruntime"]
    keys = ("ratio", "ratio_low", "ratio_high")
    times = {"ms": ours["p10_seconds"] * 1e3, "onnxruntime_ms": theirs["p10_seconds"] * 1e3}
    return times | {key: theirs[key] for key in keys}


def table(results: Results, names: Sequence[str]) -> str:
    """The results as Markdown: one row for each model and shape."""
    head = ["model", "shape", "compile s", "agrees", "fissile ms", "onnxruntime ms", "ratio"]
    lines = [_line(head), _line(["---"] * len(head))]
    for name in names:
        row = results.rows.get(name, {})
        made = row.get("compile", {"seconds": 0.0, "reason": "not yet"})
        for number, shapes in enumerate(SHAPES[name]):
            seconds = made["reason"] or f"{made['seconds']:.0f}"
            checked = row.get(f"verify {number}", {"reason": ""})
            said = checked.get("reason") or (
                f"{'yes' if checked['agrees'] else 'NO'} ({checked['max_rel']:.0e})"
                if "agrees" in checked
                else ""
            )
            benches = [v for k, v in row.items() if k.startswith(f"bench {number} ")]
            shape = ", ".join("x".join(map(str, s)) for s in shapes.values())
            cells = [name, shape, seconds if number == 0 else "", said]
            lines.append(_line([*cells, *_timed(benches)]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _timed(benches: Sequence[Row]) -> list[str]:
    good = [b for b in benches if "ms" in b]
    if not good:
        return ["", "", "; ".join(b["reason"] for b in benches)]
    spans = (f"{b['ratio']:.2f} [{b['ratio_low']:.2f}, {b['ratio_high']:.2f}]" for b in good)
    ours, theirs = ([f"{b[key]:.2f}" for b in good] for key in ("ms", "onnxruntime_ms"))
    return [" ".join(ours), " ".join(theirs), " ".join(spans)]


def main() -> None:
    """Parse, run what is not done, print the table; exit 1 where something fails, differs or is below 0.9."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", choices=[*SHAPES, []], help="all where none is named")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument(
        "--repeat", type=int, default=2, help="measurements of each; 0: compare only"
    )
    parser.add_argument("--results", type=Path, default=Path("exports.json"))
    args = parser.parse_args()
    names = args.names or [n for n in SHAPES if (args.folder / f"{n}.onnx").exists()]
    results = Results(args.results)
    for name in names:
        examine(args.folder / f"{name}.onnx", name, results, args)
        print(table(results, [name]), flush=True)
    print(f"\n{table(results, names)}")
    raise SystemExit(int(any(_failed(results.rows[name]) for name in names)))


def _failed(row: Row) -> bool:
    found = row.values()
    return any(
        f.get("reason") or f.get("agrees") is False or f.get("ratio", 1.0) < 0.9 for f in found
    )


if __name__ == "__main__":
    main()
