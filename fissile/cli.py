"""The command line: parses arguments, calls the pipeline, prints (PRODUCT 2.2, 5.1, 5.2).

In: arguments. Out: results on stdout, progress and errors on stderr, an exit code: 0 done, 1 failed,
2 usage, 3 ran and the answer is no, 130 interrupted. Invariant: `--json` prints one document on
stdout and nothing else there; a traceback only with `-v`. Every command imports what it needs when
it runs, so that `--help` is quick.
"""

import json
import os
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from fissile.console import plain, say, set_up, silent, versions, why_cores
from fissile.errors import (
    FileAccess,
    FileMissing,
    FissileError,
    OptionError,
    Place,
    UnsupportedError,
    did_you_mean,
)
from fissile.options import ENVIRONMENT, Event, Options, environment, resolve_target
from fissile.target import cpu_name, native

if TYPE_CHECKING:
    from fissile.runtime.executable import Executable

Command = TypeVar("Command", bound=Callable[..., Any])
Extent = int | tuple[int, int] | None

EXAMPLES = """\b
Examples:
  fissile compile model.onnx -o model.fsl --shape batch=1..16
  fissile run model.fsl --input x=image.npy --output out.npz
  fissile demo
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point `fissile`; always leaves through SystemExit."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(_run(given))


def _run(given: list[str]) -> int:
    """Run the command line; the exit code."""
    try:
        answer = cli.main(args=given, prog_name="fissile", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("interrupted")
        return 130
    except BrokenPipeError:
        # The reader is gone; python's own flush at exit would complain about that once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except FissileError as error:
        return _fail(error, given)
    except OSError as error:
        name = error.filename or ""
        return _fail(FileAccess("F502", f"{name}: {error.strerror or error}"), given)
    return answer if isinstance(answer, int) else 0


def _fail(error: FissileError, given: Sequence[str]) -> int:
    if "-v" in given or "--verbose" in given:
        traceback.print_exception(error)
    else:
        say(str(error), style="red")
    if "--json" in given:
        print(json.dumps({"error": error.as_dict()}))
    return 1


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    epilog=EXAMPLES,
)
@click.option("--version", "show_version", is_flag=True, help="Versions and CPU.")
@click.pass_context
def cli(context: click.Context, show_version: bool) -> None:
    """Compile ONNX models to artifacts that run with numpy alone."""
    if show_version:
        for name, value in versions().items():
            print(f"{name:8} {value}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def common(command: Command) -> Command:
    """The options every command has."""
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="Errors only."),
        click.option("-v", "--verbose", is_flag=True, help="More detail; tracebacks."),
        click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout."),
    ):
        command = option(command)
    return command


def compiling(command: Command) -> Command:
    """The options of commands that may compile."""
    for option in (
        click.option("--threads", type=click.IntRange(min=1), help="Threads of one call."),
        click.option("--target", default="native", show_default=True, help="Instruction set."),
        click.option("--shape", "shapes", multiple=True, help="batch=1..16 or x:1..16,3,?,?"),
        click.option("--disable", multiple=True, metavar="RULE", help="Leave a rewrite out."),
        click.option("--foreign", type=click.Choice(["error", "warn", "allow"]), default="warn"),
        click.option("--no-cache", is_flag=True, help="Neither read nor fill the compile cache."),
    ):
        command = option(command)
    return common(command)


@cli.command("compile")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Default: MODEL's stem.fsl.")
@click.option("--force", is_flag=True, help="Overwrite a file that is no .fsl.")
@compiling
def compile_command(
    model: Path, output: Path | None, force: bool, as_json: bool, quiet: bool, **choices: Any
) -> int:
    """Compile MODEL (.onnx) into one artifact (.fsl)."""
    started = time.perf_counter()
    set_up(quiet=quiet, verbose=choices.pop("verbose"))
    path = output or Path(f"{model.stem}.fsl")
    _check_output(path, force)
    stages: list[Event] = []
    executable = _compile(model, quiet, stages, **choices)
    executable.save(path)
    size = path.stat().st_size
    seconds = time.perf_counter() - started
    if as_json:
        times = [{"stage": e.stage, "seconds": e.seconds, "text": e.text} for e in stages]
        manifest = dict(executable.manifest)
        document = {"artifact": str(path), "bytes": size, "seconds": seconds}
        print(json.dumps({**document, "stages": times, "manifest": manifest}, default=str))
        return 0
    needs = "needs onnx for foreign nodes" if executable.foreign else "needs numpy only"
    print(plain(f"wrote    {path} · {size / 1e6:.1f} MB · {needs}"))
    if not quiet:
        how = "from the compile cache" if _is_cached(stages) else "compiled"
        say(f"done in {seconds:.1f} s, {how}. Not tuned: nothing was measured.")
        say(f"next     fissile run {path}")
    return 0


@cli.command("run")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--input", "inputs", multiple=True, help="x=file.npy, or a .npz with all inputs.")
@click.option("--output", type=click.Path(path_type=Path), help="Write the outputs to a .npz.")
@click.option("--seed", default=0, show_default=True, help="Of inputs that are not given.")
@compiling
def run_command(
    model: Path,
    inputs: tuple[str, ...],
    output: Path | None,
    seed: int,
    as_json: bool,
    quiet: bool,
    **choices: Any,
) -> int:
    """Run MODEL (.onnx or .fsl); inputs that are not given are random."""
    set_up(quiet=quiet, verbose=choices.pop("verbose"))
    extents = _low_ends(parse_shapes(choices["shapes"]))
    executable = _open(model, quiet, **choices)
    feeds = complete_feeds(executable, read_inputs(inputs, executable), extents, seed)
    started = time.perf_counter()
    results = executable.run(feeds)
    seconds = time.perf_counter() - started
    if output is not None:
        _write_npz(output, results)
    if as_json:
        print(json.dumps({"seconds": seconds, "outputs": _describe(results)}))
        return 0
    for name, array in results.items():
        print(f"{name}  {array.dtype}{list(array.shape)}  {_summary(array)}")
    if not quiet:
        say(f"ran in {seconds * 1e3:.2f} ms (first call included)")
    return 0


@cli.command("check")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--target", default="native", show_default=True)
@common
def check_command(model: Path, target: str, as_json: bool, quiet: bool, verbose: bool) -> int:
    """Say what of MODEL runs natively, without compiling; exit 3 if something does not run."""
    set_up(quiet=quiet, verbose=verbose)
    _existing(model)
    from fissile import compiler

    try:
        support = compiler.check(model, target=target)
    except UnsupportedError as error:
        # an unknown opset or domain: the model cannot even be read, but the answer is known
        answer = _fail(error, ["--json"] * as_json + ["-v"] * verbose)
        return 3 if answer else 0
    if as_json:
        kinds = {"foreign": support.foreign, "unsupported": support.unsupported}
        places = {kind: [vars(place) for place in found] for kind, found in kinds.items()}
        print(json.dumps({"operators": support.operators, **places}))
        return 3 if support.unsupported else 0
    native_count = support.operators - len(support.foreign) - len(support.unsupported)
    print(f"{support.operators} operators: {native_count} native, {len(support.foreign)} foreign, "
          f"{len(support.unsupported)} unsupported")  # fmt: skip
    for title, found in (("foreign", support.foreign), ("unsupported", support.unsupported)):
        for place in found:
            print(f"  {title:12} {_place(place)}")
    return 3 if support.unsupported else 0


@cli.command("show")
@click.argument("model", type=click.Path(path_type=Path), required=False)
@click.option("--after", "stage", help="A stage; without it, the stages are listed.")
@click.option("--rules", is_flag=True, help="List the rewrite rules and their laws.")
@click.option("--target", default="native", show_default=True)
@click.option("--shape", "shapes", multiple=True, help="batch=8 fixes a dimension.")
@click.option("--disable", multiple=True, metavar="RULE", help="Leave a rewrite out.")
@common
def show_command(
    model: Path | None,
    stage: str | None,
    rules: bool,
    target: str,
    shapes: tuple[str, ...],
    disable: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Print MODEL as text after a stage of the compiler, or what there is to show."""
    from fissile import compiler

    set_up(quiet=quiet, verbose=verbose)
    if rules:
        laws = compiler.rule_laws()
        width = max(map(len, laws))
        lines = (f"{name:{width}}  {law}" for name, law in laws.items())
        print(json.dumps({"rules": laws}) if as_json else "\n".join(lines))
        return 0
    names = compiler.stage_names()
    if model is None or stage is None:
        print(json.dumps({"stages": names}) if as_json else "\n".join(names))
        return 0
    if stage not in names:
        hint = did_you_mean(stage, names)
        raise click.UsageError(f"no stage {stage!r}; stages: {', '.join(names)}. {hint}")
    text = compiler.show(
        _existing(model),
        stage,
        target=target,
        shapes=parse_shapes(shapes),
        options=Options(disable=disable),
    )
    print(json.dumps({"stage": stage, "text": text}) if as_json else text)
    return 0


@cli.command("cache")
@click.argument("action", type=click.Choice(["info", "clear"]), default="info")
@common
def cache_command(action: str, as_json: bool, quiet: bool, verbose: bool) -> int:
    """Say what the compile cache holds, or empty it."""
    from fissile import cache

    set_up(quiet=quiet, verbose=verbose)
    found = cache.clear() if action == "clear" else cache.contents()
    if as_json:
        folder = str(found.directory) if found.directory else None
        document = {"directory": folder, "artifacts": found.artifacts, "bytes": found.size}
        print(json.dumps({"action": action, **document}))
        return 0
    word = "deleted" if action == "clear" else "holds"
    where = found.directory or "(no cache)"
    print(f"{where}  {word} {found.artifacts} artifacts, {found.size / 1e6:.1f} MB")
    return 0


@cli.command("doctor")
@common
def doctor_command(as_json: bool, quiet: bool, verbose: bool) -> int:
    """Describe this machine and installation, and say whether everything is fine."""
    from fissile import cache
    from fissile.runtime import threads

    set_up(quiet=quiet, verbose=verbose)
    problems: list[str] = []
    try:
        target = native(environment().target)
        isa = f"{target.name} ({target.vector_bits} bit, {target.vector_registers} registers)"
    except FissileError as error:
        isa = "none"
        problems.append(error.message)
    allowed = threads.allowed_cpus()
    held = cache.contents()
    if held.directory is None:
        problems.append("there is no compile cache (see the warning above, or FISSILE_CACHE)")
    facts = {
        **versions(),
        "target": isa,
        "cores": f"{allowed} allowed of {os.cpu_count()} ({why_cores()})",
        "cache": f"{held.directory or 'none'}, {held.artifacts} artifacts, {held.size / 1e6:.1f} MB",
    }
    settings = {v.name: os.environ[v.name] for v in ENVIRONMENT if v.name in os.environ}
    if as_json:
        print(json.dumps({**facts, "environment": settings, "problems": problems}))
    else:
        for name, value in {**facts, **settings}.items():
            print(f"{name:10} {value}")
        print("\n".join(f"problem: {p}" for p in problems) or "everything is fine")
    return 1 if problems else 0


@cli.command("demo")
@click.option("--threads", type=click.IntRange(min=1))
@common
def demo_command(threads: int | None, as_json: bool, quiet: bool, verbose: bool) -> int:
    """Compile a small network and run it at three shapes, compared and timed; offline."""
    from fissile import demo

    set_up(quiet=quiet, verbose=verbose)
    outcome = demo.run(threads=threads, progress=silent if quiet or as_json else say)
    print(json.dumps(outcome.as_dict()) if as_json else outcome.text())
    return 0 if outcome.agrees else 1


# ---- arguments -----------------------------------------------------------------------------------


def parse_shapes(texts: Sequence[str]) -> dict[str, Any]:
    """`batch=1..16` -> {"batch": (1, 16)}; `x:1..16,3,?` -> {"x": [(1, 16), 3, None]}."""
    shapes: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if separator:
            shapes[name] = _extent(value, text)
            continue
        name, separator, value = text.rpartition(":")
        if not separator or not name:
            raise click.UsageError(f"--shape {text}: write batch=1..16 or x:1..16,3,224,224")
        shapes[name] = [_extent(part, text) for part in value.split(",")]
    return shapes


def _extent(text: str, whole: str) -> Extent:
    if text == "?":
        return None
    low, dots, high = text.partition("..")
    if low.isdigit() and (high.isdigit() or not dots):
        if not dots:
            return int(low)
        if int(low) <= int(high):
            return int(low), int(high)
    raise click.UsageError(f"--shape {whole}: {text!r} is no extent; write 8 or 1..16 or ?")


def _low_ends(shapes: Mapping[str, Any]) -> dict[str, Any]:
    """Each range replaced by its low end."""

    def low(value: Any) -> Any:
        if isinstance(value, list):
            return [low(v) for v in value]
        return value[0] if isinstance(value, tuple) else value

    return {name: low(value) for name, value in shapes.items()}


def read_inputs(texts: Sequence[str], executable: "Executable") -> dict[str, Any]:
    """Arrays from `name=file.npy` and `file.npz` arguments."""
    import numpy as np

    feeds: dict[str, Any] = {}
    for text in texts:
        name, separator, path = text.partition("=")
        try:
            if separator:
                feeds[name] = np.load(path, allow_pickle=False)
            else:
                with np.load(text, allow_pickle=False) as archive:
                    feeds.update(archive)
        except FileNotFoundError as error:
            raise FileMissing("F501", f"--input {text}: no such file") from error
        except ValueError as error:
            raise FileAccess("F510", f"--input {text} is no array: {error}") from error
    names = [info.name for info in executable.inputs]
    for name in feeds:
        if name not in names:
            raise OptionError(
                "F603",
                f"the model has no input {name!r}",
                reason=f"inputs: {', '.join(names)}",
                remedy=did_you_mean(name, names),
            )
    return feeds


def complete_feeds(
    executable: "Executable", feeds: Mapping[str, Any], extents: Mapping[str, Any], seed: int
) -> dict[str, Any]:
    """`feeds` with random arrays for the missing inputs; free dimensions as in `extents`, else 1."""
    import numpy as np

    draw = np.random.default_rng(seed)
    sizes = dict(extents)
    for info in executable.inputs:
        if info.name in feeds:
            for name, size in zip(info.shape, np.shape(feeds[info.name]), strict=False):
                if isinstance(name, str):
                    sizes.setdefault(name, size)
    complete = dict(feeds)
    for info in executable.inputs:
        if info.name not in complete:
            own = extents.get(info.name)
            own = own if isinstance(own, list) else [None] * len(info.shape)
            shape = [_size(e, o, sizes) for e, o in zip(info.shape, own, strict=False)]
            complete[info.name] = _draw(draw, shape, info.dtype)
    return complete


def _size(extent: int | str | None, own: int | None, sizes: Mapping[str, Any]) -> int:
    if own is not None:
        return own
    if isinstance(extent, int):
        return extent
    return int(sizes.get(extent, 1)) if extent else 1


def _draw(generator: Any, shape: Sequence[int], dtype: Any) -> Any:
    if dtype.kind in "iub":
        return generator.integers(0, 2, shape).astype(dtype)
    return generator.standard_normal(shape).astype(dtype)


def _write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """What numpy.savez would write, but for any output name ("file" is one) and any file name."""
    from numpy.lib import format as npy

    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, array, allow_pickle=False)


# ---- work ----------------------------------------------------------------------------------------


def _open(model: Path, quiet: bool, **choices: Any) -> "Executable":
    """An artifact loaded, or a model compiled."""
    import fissile

    if _existing(model).suffix == ".fsl":
        return fissile.load(model, threads=choices["threads"])
    return _compile(model, quiet, [], **choices)


def _compile(
    model: Path,
    quiet: bool,
    stages: list[Event],
    *,
    threads: int | None,
    target: str,
    shapes: tuple[str, ...],
    disable: tuple[str, ...],
    foreign: Literal["error", "warn", "allow"],
    no_cache: bool,
) -> "Executable":
    _existing(model)
    from fissile import compiler

    targets = target.split(",")

    def progress(event: Event) -> None:
        stages.append(event)
        if not quiet and event.stage != "cached":
            _print_event(event)
        if not quiet and event.stage == "model":
            _print_event(_target_line(targets, threads))

    executable = compiler.compile(
        model,
        threads=threads,
        target=targets[0] if len(targets) == 1 else targets,
        shapes=parse_shapes(shapes) or None,
        foreign=foreign,
        options=Options(disable=disable),
        cache=not no_cache,
        progress=progress,
    )
    if _is_cached(stages) and not quiet:
        for line in (_model_line(executable), _target_line(targets, threads), stages[0]):
            _print_event(line)
    return executable


def _is_cached(stages: Sequence[Event]) -> bool:
    return bool(stages) and stages[0].stage == "cached"


def _model_line(executable: "Executable") -> Event:
    def said(infos: Sequence[Any]) -> str:
        shapes = (",".join("?" if e is None else str(e) for e in info.shape) for info in infos)
        return ", ".join(f"{i.name} {i.dtype}[{s}]" for i, s in zip(infos, shapes, strict=True))

    opset = executable.manifest["model"]["opset"]
    megabytes = executable.memory().weights / 1e6
    tensors = f"{said(executable.inputs)} → {said(executable.outputs)}"
    return Event("model", f"opset {opset} · {megabytes:.1f} MB weights · {tensors}")


def _target_line(targets: Sequence[str], threads: int | None) -> Event:
    from fissile.runtime.threads import allowed_cpus, default_threads

    names = ", ".join(resolve_target(name).name for name in targets)
    here = f" (this CPU, {cpu_name()})" if targets == ["native"] else ""
    count = threads or default_threads()
    cores = allowed_cpus()
    return Event(
        "target",
        f"{names}{here} · {count} thread{'s' * (count > 1)} "
        f"({cores} core{'s' * (cores > 1)} allowed)",
    )


def _print_event(event: Event) -> None:
    if event.seconds is not None:
        say(f"{event.stage:12} {event.seconds:6.2f} s   {event.text}".rstrip())
    elif event.text:
        say(f"{event.stage:12} {event.text}")


def _existing(model: Path) -> Path:
    if not model.exists():
        near = did_you_mean(model.name, [p.name for p in Path(model.parent).glob("*.*")])
        raise FileMissing("F501", f"{model} does not exist", remedy=near)
    return model


def _check_output(path: Path, force: bool) -> None:
    """Refuse before the work what could not be written after it."""
    if path.is_dir():
        raise FileAccess("F502", f"{path} is a folder", remedy=f"-o {path / 'model.fsl'}")
    if path.exists() and not force:
        with path.open("rb") as file:
            if file.read(2) not in (b"PK", b""):
                raise FileAccess("F511", f"{path} is no .fsl", remedy="--force overwrites it")
    folder = path.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        state = "cannot be written" if folder.is_dir() else "does not exist"
        raise FileAccess("F502", f"{folder} {state}", remedy="-o PATH writes it elsewhere")


# ---- looks ---------------------------------------------------------------------------------------


def _place(place: Place) -> str:
    return "   ".join(text for text in (place.node, place.operator, place.detail) if text)


def _describe(results: Mapping[str, Any]) -> list[dict[str, object]]:
    return [
        {"name": name, "dtype": str(array.dtype), "shape": list(array.shape)}
        for name, array in results.items()
    ]


def _summary(array: Any) -> str:
    if array.size == 0 or array.dtype.kind not in "fiub":
        return ""
    numbers = array.astype(float)
    return f"min {numbers.min():.4g}  mean {numbers.mean():.4g}  max {numbers.max():.4g}"


if __name__ == "__main__":
    main()
