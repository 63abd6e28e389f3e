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
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import click

from fissile.commands.compare import bench_command, fission_command, verify_command
from fissile.commands.opening import (
    compile_model,
    existing,
    is_cached,
    open_model,
    write_plan,
)
from fissile.commands.optimize import optimize_command
from fissile.commands.options import (
    common,
    compiling,
    parse_bytes,
    parse_shapes,
    read_inputs,
    write_npz,
)
from fissile.commands.report import report_command
from fissile.commands.store import store_group
from fissile.commands.tune import tune_command, tune_model
from fissile.commands.writing import (
    ARRAYS,
    ARTIFACT,
    PLAN,
    TRACE,
    Output,
    check_outputs,
    forcing,
)
from fissile.console import plain, say, set_up, silent, versions, why_cores
from fissile.errors import (
    FileAccess,
    FissileError,
    OptionError,
    Place,
    TargetError,
    UnsupportedError,
    did_you_mean,
)
from fissile.options import ENVIRONMENT, Event, Options, environment
from fissile.target import native

# What was typed is wrong: a name that nothing has, a budget that cannot be read, options that exclude each other.
_USAGE = frozenset({"F110", "F603", "F605", "F606", "F607", "F608", "F611", "F613", "F616"})
EXAMPLES = """\b
Examples:
  fissile compile model.onnx -o model.fsl --shape batch=1..16
  fissile run model.fsl --input x=image.npy --output out.npz
  fissile demo
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point `fissile`; always leaves through SystemExit."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.stdout, sys.stderr = _stream(sys.stdout), _stream(sys.stderr)
    sys.exit(_run(given))


def _stream(given: TextIO | None) -> TextIO:
    """A stream that was closed before we began is None: what is written to it goes nowhere."""
    return open(os.devnull, "w", encoding="utf-8") if given is None else given


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
        name = f"{error.filename}: " if error.filename else ""
        return _fail(FileAccess("F502", f"{name}{error.strerror or error}"), given)
    except MemoryError as error:
        return _fail(FissileError("F211", "not enough memory", reason=str(error)), given)
    return answer if isinstance(answer, int) else 0


def _fail(error: FissileError, given: Sequence[str]) -> int:
    if "-v" in given or "--verbose" in given:
        traceback.print_exception(error)
    else:
        say(str(error), style="red")
    if "--json" in given:
        print(json.dumps({"error": error.as_dict()}))
    is_usage = isinstance(error, OptionError | TargetError) and error.code in _USAGE
    return 2 if is_usage else 1


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


@cli.command("compile")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Default: MODEL's stem.fsl.")
@forcing
@click.option("--budget", help="Measure kernels that long: 10m, 600s, 200trials.")
@click.option("--plan", type=click.Path(path_type=Path), help="The choice of kernels, as a file.")
@click.option("--save-plan", type=click.Path(path_type=Path), help="Write the choice of kernels.")
@click.option("--max-memory", callback=parse_bytes, metavar="SIZE", help="Refuse more: 2G, 512M.")
@compiling
def compile_command(
    model: Path,
    output: Path | None,
    force: bool,
    budget: str | None,
    plan: Path | None,
    save_plan: Path | None,
    as_json: bool,
    quiet: bool,
    **choices: Any,
) -> int:
    """Compile MODEL (.onnx) into one artifact (.fsl)."""
    started = time.perf_counter()
    set_up(quiet=quiet, verbose=choices.pop("verbose"))
    path = output or Path(f"{model.stem}.fsl")
    if budget is not None:
        if plan is not None:
            raise click.UsageError("--plan says what to choose; --budget asks to choose")
        return tune_model(
            model, budget, path, force=force, save_plan=save_plan, as_json=as_json, quiet=quiet,
            **choices,
        )  # fmt: skip
    outputs = [Output("-o", path, ARTIFACT), Output("--save-plan", save_plan, PLAN)]
    check_outputs(outputs, force, [model, plan])
    stages: list[Event] = []
    executable = compile_model(model, quiet, stages, plan=plan, **choices)
    executable.save(path)
    if save_plan is not None:
        write_plan(model, save_plan, plan=plan, **choices)
    size = path.stat().st_size
    seconds = time.perf_counter() - started
    if as_json:
        times = [{"stage": e.stage, "seconds": e.seconds, "text": e.text} for e in stages]
        manifest = dict(executable.manifest)
        document = {"artifact": str(path), "bytes": size, "seconds": seconds}
        print(json.dumps({**document, "stages": times, "manifest": manifest}, default=str))
        return 0
    others = [*executable.manifest.get("providers", ())]
    wanted = ["onnx for foreign nodes"] * bool(executable.foreign) + others
    needs = f"needs {', '.join(wanted) or 'numpy only'}"
    print(plain(f"wrote    {path} · {size / 1e6:.1f} MB · {needs}"))
    if not quiet:
        how = "from the compile cache" if is_cached(stages) else "compiled"
        count = executable.manifest.get("certificate", {}).get("measured", 0)
        known = f"{count} kernels were measured before" if count else "nothing was measured"
        say(f"done in {seconds:.1f} s, {how}. Not tuned: {known}.")
        say(f"next     fissile run {path}")
    return 0


@cli.command("run")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--input", "inputs", multiple=True, help="x=file.npy, or a .npz with all inputs.")
@click.option("--output", type=click.Path(path_type=Path), help="Write the outputs to a .npz.")
@click.option("--seed", default=0, show_default=True, help="Of inputs that are not given.")
@click.option("--profile", "is_profiled", is_flag=True, help="Where the time goes, by kernel.")
@click.option("--trace", type=click.Path(path_type=Path), help="A Chrome trace of one run.")
@click.option("--runs", default=20, show_default=True, help="Runs that are profiled.")
@forcing
@compiling
def run_command(
    model: Path,
    inputs: tuple[str, ...],
    output: Path | None,
    seed: int,
    is_profiled: bool,
    trace: Path | None,
    runs: int,
    force: bool,
    as_json: bool,
    quiet: bool,
    **choices: Any,
) -> int:
    """Run MODEL (.onnx or .fsl); inputs that are not given are random."""
    set_up(quiet=quiet, verbose=choices.pop("verbose"))
    from fissile.compare.feeds import complete_feeds, low_ends

    files = [Path(text.rpartition("=")[2]) for text in inputs]
    outputs = [Output("--output", output, ARRAYS), Output("--trace", trace, TRACE)]
    check_outputs(outputs, force, [model, *files])
    extents = low_ends(parse_shapes(choices["shapes"]))
    executable = open_model(model, quiet, **choices)
    feeds = complete_feeds(executable.inputs, read_inputs(inputs, executable), extents, seed)
    started = time.perf_counter()
    results = executable.run(feeds)
    seconds = time.perf_counter() - started
    if output is not None:
        write_npz(output, results)
    if is_profiled or trace is not None:
        from fissile.commands.profile import show_profile

        return show_profile(executable, feeds, runs, trace, as_json=as_json)
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
    existing(model)
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
        weights = {"weight_bytes": support.weight_bytes}
        print(json.dumps({"operators": support.operators, **weights, **places}))
        return 3 if support.unsupported else 0
    native_count = support.operators - len(support.foreign) - len(support.unsupported)
    print(f"{support.operators} operators: {native_count} native, {len(support.foreign)} foreign, "
          f"{len(support.unsupported)} unsupported · {support.weight_bytes / 1e6:.1f} MB weights")  # fmt: skip
    for title, found in (("foreign", support.foreign), ("unsupported", support.unsupported)):
        for place in found:
            print(f"  {title:12} {_place(place)}")
    return 3 if support.unsupported else 0


@cli.command("show")
@click.argument("model", type=click.Path(path_type=Path), required=False)
@click.option("--after", "stage", help="A stage; without it, the stages are listed.")
@click.option("--rules", is_flag=True, help="List the rewrite rules and their laws.")
@click.option("--why", metavar="RULE", help="Where a rule does not fire in MODEL, and why not.")
@click.option("--target", default="native", show_default=True)
@click.option("--shape", "shapes", multiple=True, help="batch=8 fixes a dimension.")
@click.option("--disable", multiple=True, metavar="RULE", help="Leave a rewrite out.")
@click.option("--substitute/--no-substitute", default=True, help="Search for cheaper graphs.")
@common
def show_command(
    model: Path | None,
    stage: str | None,
    rules: bool,
    why: str | None,
    target: str,
    shapes: tuple[str, ...],
    disable: tuple[str, ...],
    substitute: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Print MODEL as text after a stage of the compiler, the kernels of an artifact, or what there is to show."""
    from fissile import compiler

    set_up(quiet=quiet, verbose=verbose)
    if why is not None and (model is None or rules or stage is not None):
        raise click.UsageError("--why RULE is about a model, and stands alone: fissile show MODEL --why RULE")
    if rules and stage is not None:
        raise click.UsageError("--rules lists the rules, --after shows a model: one of them")
    if model is not None and model.suffix == ".fsl":
        if why is not None or stage is not None:
            raise click.UsageError(f"{model} is compiled: --why and --after are about the .onnx")
        return _print_kernels(existing(model), as_json)
    if rules:
        _print_rules(compiler.rule_laws(), as_json)
        return 0
    options = Options(disable=disable, substitute=substitute)
    if why is not None and model is not None:
        misses = compiler.why(existing(model), why, shapes=parse_shapes(shapes), options=options)
        lines = [f"{m.count:5}  {m.reason}  ({m.where or m.node})" for m in misses]
        print(json.dumps([asdict(m) for m in misses]) if as_json else "\n".join(lines))
        return 0
    names = compiler.stage_names()
    if model is None or stage is None:
        print(json.dumps({"stages": names}) if as_json else "\n".join(names))
        return 0
    if stage not in names:
        hint = did_you_mean(stage, names)
        raise click.UsageError(f"no stage {stage!r}; stages: {', '.join(names)}. {hint}")
    text = compiler.show(
        existing(model),
        stage,
        target=target,
        shapes=parse_shapes(shapes),
        options=options,
    )
    print(json.dumps({"stage": stage, "text": text}) if as_json else text)
    return 0


def _print_kernels(path: Path, as_json: bool) -> int:
    """A line per kernel of an artifact; what a package runs is under its name."""
    from fissile.report.facts import kernels_of
    from fissile.runtime.artifact import read_artifact

    rows = kernels_of(read_artifact(path))
    if as_json:
        print(json.dumps({"kernels": rows}))
        return 0
    for row in rows:
        served = ", ".join(row["serves"])
        names = " ".join(row["primitives"])
        print(f"step {row['step']:<4d} {row['kernel']:11} {row['function']:6} [{names}]  {served}")
    return 0


def _print_rules(laws: dict[str, dict[str, str]], as_json: bool) -> None:
    """The laws of each regime under its name."""
    if as_json:
        print(json.dumps({"rules": laws}))
        return
    width = max(len(name) for rules in laws.values() for name in rules)
    for regime, rules in laws.items():
        print(f"{regime}:")
        for name, law in rules.items():
            print(f"  {name:{width}}  {law}")


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
    where = cache.shown(found.directory) if found.directory else "(no cache)"
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
    problems += [
        f"{path.name} in the compile cache is damaged ({reason}); do: fissile cache clear"
        for path, reason in cache.damaged()
    ]
    facts = {
        **versions(),
        "target": isa,
        "cores": f"{allowed} allowed of {os.cpu_count()} ({why_cores(threads.cgroup_quota())})",
        "cache": f"{cache.shown(held.directory or Path('none'))}, {held.artifacts} artifacts, {held.size / 1e6:.1f} MB",
    }
    settings = {
        v.name: cache.shown(Path(os.environ[v.name])) for v in ENVIRONMENT if v.name in os.environ
    }
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


cli.add_command(bench_command)
cli.add_command(tune_command)
cli.add_command(store_group)
cli.add_command(verify_command)
cli.add_command(report_command)
cli.add_command(fission_command)
cli.add_command(optimize_command)


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
