"""`fissile report`: one HTML page about an artifact, or about two, with times measured just now where they run here.

In: one or two `.fsl`, perhaps the model, perhaps the records of `fissile bench --json`. Out: a file that needs nothing
else. An artifact that does not run on this machine is reported without times.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fissile import __version__
from fissile.commands.opening import existing
from fissile.commands.options import common, parse_shapes, read_inputs
from fissile.commands.writing import REPORT, Output, check_outputs, forcing
from fissile.console import plain, say, set_up
from fissile.errors import ArtifactError, FileAccess, FileMissing, FissileError

if TYPE_CHECKING:
    from fissile.report.facts import Subject
    from fissile.runtime.artifact import Artifact

SECONDS = 3.0  # of measuring each artifact at each number of threads
MOST_MISSES = 5  # reasons for which a rule does not fire


@click.command("report")
@click.argument("artifacts", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Default: STEM.html.")
@click.option("--model", type=click.Path(path_type=Path), help="The .onnx, for what nearly fired.")
@click.option("--bench", type=click.Path(path_type=Path), help="What bench --json FILE wrote.")
@click.option("--threads", type=click.IntRange(min=1), help="Beside 1; default: all allowed.")
@click.option("--input", "inputs", multiple=True, help="x=file.npy, or a .npz with all inputs.")
@click.option("--shape", "shapes", multiple=True, help="batch=8: what is run.")
@click.option("--seed", default=0, show_default=True, help="Of inputs that are not given.")
@click.option("--no-run", is_flag=True, help="Report without running anything.")
@forcing
@common
def report_command(
    artifacts: tuple[Path, ...],
    output: Path | None,
    model: Path | None,
    bench: Path | None,
    threads: int | None,
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    seed: int,
    no_run: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Write one HTML page about an artifact: what it does, where the time goes, what was chosen and why.

    With a second artifact, also what is different in it.
    """
    set_up(quiet=quiet, verbose=verbose)
    if len(artifacts) > 2:
        raise click.UsageError("one artifact, or two to compare")
    from fissile.report.page import page

    path = output or Path(f"{artifacts[0].stem}.html")
    if path.suffix in (".fsl", ".onnx"):
        raise click.UsageError(f"-o {path}: a report is an .html file")
    check_outputs([Output("-o", path, REPORT)], force, [*artifacts, model, bench])
    opened = [_opened(path) for path in artifacts]
    if not quiet and len({artifact.manifest["model"]["sha256"] for artifact, _ in opened}) > 1:
        say("note     the artifacts are of different models: what differs is not what the compiler did")
    document: dict[str, Any] = {
        "fissile": __version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "artifacts": [facts for _, facts in opened],
        "bench": None if bench is None else _bench(bench),
        "misses": _misses(artifacts[0], opened[0][0].manifest, model),
    }
    if not no_run:
        if not quiet:
            say("measuring")
        subjects = _subjects(artifacts, threads, inputs, shapes, seed, document)
        _run(subjects, document)
    if len(opened) > 1:
        document["artifacts"][1]["record"]["loops"] = {}  # the page shows those of the first
    _write(path, page(document))
    size = path.stat().st_size
    kernels = [len(facts["record"]["kernels"]) for _, facts in opened]
    if as_json:
        print(json.dumps({"report": str(path), "bytes": size, "kernels": kernels}))
    else:
        said = " and ".join(map(str, kernels)) + " kernels"
        print(plain(f"wrote    {path} · {size / 1e3:.0f} kB · {said}"))
    return 0


def _opened(path: Path) -> "tuple[Artifact, dict[str, Any]]":
    from fissile.report.facts import about
    from fissile.runtime.artifact import read_artifact

    artifact = read_artifact(existing(path))
    try:
        return artifact, about(artifact, path.name)
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            "F101",
            f"{path} is not a usable artifact",
            reason=f"its report.json cannot be read: {error}",
            remedy="compile the model again",
        ) from error


def _bench(path: Path) -> dict[str, Any]:
    """The records of `fissile bench --json`."""
    try:
        found = json.loads(existing(path).read_text(encoding="utf-8"))
        keys = ("engine", "threads", "ratio", "p10_seconds", "verdict")
        return {"records": [{key: row[key] for key in keys} for row in found["records"]]}
    except (ValueError, KeyError, TypeError) as error:
        remedy = "fissile bench MODEL --json FILE"
        raise FileAccess(
            "F510", f"{path} is not what bench wrote: {error}", remedy=remedy
        ) from error


def _misses(artifact: Path, manifest: Any, model: Path | None) -> dict[str, Any] | None:
    """Why rules chosen by cost do not fire, where the model is at hand; what the user names must be it."""
    from fissile import compiler
    from fissile.compare.pair import find_model

    try:
        path = find_model(artifact, manifest, model)
    except (FileMissing, ArtifactError):
        if model is not None:
            raise
        return None
    disabled = manifest["options"].get("disable", ())
    found = compiler.near_misses(path, shapes=manifest["shapes"], disable=disabled)
    return {rule: [vars(m) for m in rows[:MOST_MISSES]] for rule, rows in found.items() if rows}


def _subjects(
    paths: Sequence[Path],
    threads: int | None,
    inputs: Sequence[str],
    shapes: Sequence[str],
    seed: int,
    document: dict[str, Any],
) -> "list[tuple[int, Subject]]":
    """What can be run here, at 1 and at n threads, with the number of its artifact; why the others cannot is noted."""
    from fissile.compare.feeds import complete_feeds, low_ends
    from fissile.report.facts import Subject, call_facts
    from fissile.runtime.executable import load

    extents = low_ends(parse_shapes(shapes))
    found: list[tuple[int, Subject]] = []
    for number, path in enumerate(paths):
        facts = document["artifacts"][number]
        try:
            executable = load(path, threads=threads)
            feeds = complete_feeds(
                executable.inputs, read_inputs(inputs, executable), extents, seed
            )
            executable.run(feeds)
            facts["call"] = call_facts(executable, feeds)
        except FissileError as error:
            if inputs or shapes:
                raise
            facts["error"] = f"It was not run here: {error.message}."
            continue
        counts = dict.fromkeys((1, executable.threads))
        found += [(number, Subject(executable.with_threads(n), feeds)) for n in counts]
    return found


def _run(subjects: "Sequence[tuple[int, Subject]]", document: dict[str, Any]) -> None:
    """Add the runs to the artifacts of the document, and the machine they ran on."""
    from fissile.report.facts import measure, run_facts
    from fissile.runtime.machine import facts
    from fissile.tune.peak import machine_peaks

    if not subjects:
        return
    document["machine"] = facts()  # before the work, whose load would be shown otherwise
    peaks = machine_peaks()
    document["peaks"] = {"operations": peaks.operations, "bytes": dict(peaks.bytes)}
    for (number, _), row in zip(subjects, measure([s for _, s in subjects], SECONDS)):
        document["artifacts"][number].setdefault("runs", []).append(run_facts(row, peaks))


def _write(path: Path, text: str) -> None:
    from fissile.runtime.artifact import atomic_file

    with atomic_file(path) as stream:
        stream.write(text.encode())
