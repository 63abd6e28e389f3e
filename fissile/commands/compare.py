"""`fissile bench`, `verify` and `fission`: the commands that set fissile beside other engines.

In: a model or an artifact, and engines. Out: a table on stdout, JSON in a file, a model for other
engines. Exit 3: it ran, and the answer is no.
"""

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fissile.commands.opening import existing, open_model
from fissile.commands.options import (
    Command,
    choosing,
    common,
    compiling,
    parse_shapes,
    read_inputs,
    talking,
)
from fissile.commands.writing import MODEL, TIMES, Output, check_outputs, forcing
from fissile.console import plain, say, set_up, silent

if TYPE_CHECKING:
    from fissile.compare.bisect import Finding
    from fissile.compare.draws import Draw


def rivals_option(default: str) -> Callable[[Command], Command]:
    """`--against A,B`."""
    return click.option(
        "--against", default=default, show_default=True, help="Engines, separated by commas."
    )


@click.command("bench")
@click.argument("model", type=click.Path(path_type=Path))
@rivals_option("onnxruntime,openvino")
@click.option("--model", "source", type=click.Path(path_type=Path), help="The .onnx of a .fsl.")
@click.option("--input", "inputs", multiple=True, help="x=file.npy, or a .npz with all inputs.")
@click.option("--seed", default=0, show_default=True, help="Of inputs that are not given.")
@click.option("--rounds", default=40, show_default=True, type=click.IntRange(min=5))
@click.option("--seconds", default=60.0, show_default=True, help="At most, per thread count.")
@click.option("--patience", default=600.0, show_default=True, help="Seconds a rival may load.")
@click.option(
    "--json", "file", is_flag=False, flag_value="-", help="Records and samples to FILE or stdout."
)
@click.option("--fail-below", type=float, help="Exit 3 if a ratio is below this.")
@click.option("--threads", "counts", default="1", show_default=True, help="One or several: 1,2")
@forcing
@choosing
@talking
def bench_command(
    model: Path,
    against: str,
    source: Path | None,
    inputs: tuple[str, ...],
    seed: int,
    rounds: int,
    seconds: float,
    patience: float,
    file: str | None,
    fail_below: float | None,
    counts: str,
    force: bool,
    quiet: bool,
    **choices: Any,
) -> int:
    """Time MODEL (.onnx or .fsl) beside other engines, interleaved, each in its own process."""
    set_up(quiet=quiet, verbose=choices.pop("verbose"))
    from fissile.compare import bench, feeds, pair, table
    from fissile.runtime.artifact import atomic_file
    from fissile.runtime.machine import facts

    silence = quiet or file == "-"
    rivals = tuple(name for name in against.split(",") if name)
    bench.check_engines(rivals)
    written = None if file in (None, "-") else Path(file)
    check_outputs([Output("--json", written, TIMES)], force, [model, source])
    threads = _counts(counts)
    machine = facts()  # before the work, whose load would be shown otherwise
    executable = open_model(existing(model), silence, **choices | {"threads": threads[-1]})
    given = read_inputs(inputs, executable)
    extents = feeds.low_ends(parse_shapes(choices["shapes"]))
    arrays = feeds.complete_feeds(executable.inputs, given, extents, seed)
    with tempfile.TemporaryDirectory() as folder:
        artifact = model
        if model.suffix == ".fsl":
            if rivals:
                source = pair.find_model(model, executable.manifest, source)
        else:
            artifact, source = Path(folder) / "model.fsl", model
            executable.save(artifact)
        request = bench.Request(
            artifact=artifact, model=source or model, feeds=arrays, rivals=rivals,
            threads=threads, rounds=rounds, seconds=seconds, seed=seed, patience=patience,
        )  # fmt: skip
        found = bench.bench(request, silent if silence else say)
    document = {"machine": machine, **found.as_dict()}
    if file == "-":
        print(json.dumps(document))
    else:
        print(plain(table.text(found, machine)))
        if written is not None:
            with atomic_file(written) as stream:
                stream.write(json.dumps(document).encode())
    low = [r for r in found.rivals() if fail_below is not None and r.ratio < fail_below]
    return 3 if low else 0


@click.command("verify")
@click.argument("model", type=click.Path(path_type=Path))
@rivals_option("onnxruntime")
@click.option("--bisect", is_flag=True, help="Name the operator, rule or kernel that is wrong.")
@click.option("--model", "source", type=click.Path(path_type=Path), help="The .onnx of a .fsl.")
@click.option("--input", "inputs", multiple=True, help="x=file.npy, or a .npz with all inputs.")
@click.option("--seed", default=0, show_default=True, help="Of what is drawn.")
@click.option("--calls", default=5, show_default=True, help="Calls at different shapes.")
@click.option("--tolerance", default=1e-4, show_default=True, help="Of the largest magnitude.")
@compiling
def verify_command(
    model: Path,
    against: str,
    bisect: bool,
    source: Path | None,
    inputs: tuple[str, ...],
    seed: int,
    calls: int,
    tolerance: float,
    as_json: bool,
    quiet: bool,
    **choices: Any,
) -> int:
    """Compare MODEL (.onnx or .fsl) with engines that say what it means; exit 3 if it differs."""
    set_up(quiet=quiet, verbose=choices.pop("verbose"))
    from fissile.compare import draws, pair, verify

    ranges = parse_shapes(choices["shapes"])
    executable = open_model(existing(model), quiet or as_json, **choices)
    path = pair.find_model(model, executable.manifest, source) if model.suffix == ".fsl" else model
    given = read_inputs(inputs, executable)
    drawn = draws.draws(executable, ranges, seed)
    if given:
        drawn = iter([draws.given(executable, given, ranges, seed)])
    progress = silent if quiet or as_json else say
    oracles = [name for name in against.split(",") if name]
    report = verify.verify(
        executable, path, oracles, drawn, count=calls, tolerance=tolerance, progress=progress
    )
    finding = None
    if bisect and report.failed is not None:
        finding = _bisect(path, report.failed, tolerance, progress, choices)
    if as_json:
        document = report.as_dict() | {"finding": None if finding is None else asdict(finding)}
        print(json.dumps(document))
    else:
        print(plain(report.text(tolerance)))
        if bisect and report.failed is not None:
            print(plain(finding.text() if finding else NO_LEVEL))
    return 0 if report.agrees else 3


NO_LEVEL = "every level agrees with the one before it: roundings add up over many of them"


def _bisect(
    model: Path,
    failed: "tuple[str, Draw]",
    tolerance: float,
    progress: Callable[[str], None],
    choices: Mapping[str, Any],
) -> "Finding | None":
    from fissile.compare.bisect import Case, bisect
    from fissile.options import Options, resolve_target
    from fissile.pipeline import Work

    oracle, draw = failed
    targets = tuple(resolve_target(name) for name in choices["target"].split(","))
    chosen = {name: choices[name] for name in ("disable", "substitute", "overridable")}
    options = Options(**chosen)
    work = Work(model, None, targets, 1, options, parse_shapes(choices["shapes"]))
    case = Case(draw.feeds, oracle, tolerance * draw.factor)
    return bisect(work, model, case, progress)


@click.command("fission")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Default: STEM.fission.onnx")
@click.option("--shape", "shapes", multiple=True, help="batch=8 fixes a dimension.")
@click.option("--canonical", is_flag=True, help="After the rewrite rules that always apply.")
@forcing
@common
def fission_command(
    model: Path,
    output: Path | None,
    shapes: tuple[str, ...],
    canonical: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Write MODEL's primitive graph as standard ONNX, which any engine runs."""
    set_up(quiet=quiet, verbose=verbose)
    from fissile.compare.split import split

    path = output or Path(f"{model.stem}.fission.onnx")
    check_outputs([Output("-o", path, MODEL)], force, [model])
    done = split(existing(model), path, parse_shapes(shapes), canonical=canonical)
    if as_json:
        print(json.dumps({"model": str(path), **asdict(done)}))
    else:
        print(plain(f"wrote    {path} · {done.text()}"))
    return 0


def _counts(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise click.UsageError(f"--threads {text}: write 1 or 1,2")
    return tuple(dict.fromkeys(int(part) for part in parts))
