"""A model or artifact that a command opens: compiled with its progress on stderr, or loaded.

In: a path and the options of `compiling`. Out: an `Executable`. Invariant: a model that is not there is said with the
nearest name.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fissile.commands.options import parse_shapes
from fissile.console import say
from fissile.errors import FileMissing, OptionError, did_you_mean
from fissile.options import Event, Options, resolve_target
from fissile.target import cpu_name

if TYPE_CHECKING:
    from fissile.runtime.executable import Executable


def open_model(model: Path, quiet: bool, **choices: Any) -> "Executable":
    """An artifact loaded, or a model compiled."""
    from fissile.runtime.executable import load

    if existing(model).suffix == ".fsl":
        return load(model, threads=choices["threads"])
    return compile_model(model, quiet, [], **choices)


def compile_model(
    model: Path,
    quiet: bool,
    stages: list[Event],
    *,
    threads: int | None,
    target: str,
    shapes: tuple[str, ...],
    disable: tuple[str, ...],
    substitute: bool,
    overridable: tuple[str, ...],
    foreign: Literal["error", "warn", "allow"],
    no_cache: bool,
    plan: Path | None = None,
    max_memory: int | None = None,
) -> "Executable":
    """A model compiled; its progress goes to `stages`, and to stderr unless `quiet`."""
    existing(model)
    check_rules(disable)
    from fissile import compiler

    targets = target.split(",")

    def progress(event: Event) -> None:
        stages.append(event)
        if not quiet and event.stage != "cached":
            print_event(event)
        if not quiet and event.stage == "model":
            print_event(_target_line(targets, threads))

    executable = compiler.compile(
        model,
        threads=threads,
        target=targets[0] if len(targets) == 1 else targets,
        shapes=parse_shapes(shapes) or None,
        foreign=foreign,
        options=Options(
            disable=disable, substitute=substitute, overridable=overridable, plan=plan,
            max_memory=max_memory,
        ),  # fmt: skip
        cache=not no_cache,
        progress=progress,
    )
    if is_cached(stages) and not quiet:
        for line in (_model_line(executable), _target_line(targets, threads), stages[0]):
            print_event(line)
    return executable


def write_plan(
    model: Path,
    path: Path,
    *,
    threads: int | None,
    target: str,
    shapes: tuple[str, ...],
    disable: tuple[str, ...],
    substitute: bool,
    overridable: tuple[str, ...],
    plan: Path | None,
    **_: Any,
) -> None:
    """The plan file of an untuned compilation."""
    from fissile import compiler
    from fissile.runtime.artifact import atomic_file

    options = Options(
            disable=disable, substitute=substitute, overridable=overridable, plan=plan
        )
    found = parse_shapes(shapes) or None
    text = compiler.plan_file(
        model, threads=threads, target=target.split(","), shapes=found, options=options
    )
    with atomic_file(path) as stream:
        stream.write(text.encode())


def check_rules(names: Sequence[str]) -> None:
    """Before the work: OptionError F603 for a rule that nothing is called."""
    from fissile import compiler

    known = [name for rules in compiler.rule_laws().values() for name in rules] if names else []
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise OptionError("F603", f"no rule is called {name}", remedy=hint)


def is_cached(stages: Sequence[Event]) -> bool:
    """Whether the compile cache had it."""
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


def print_event(event: Event) -> None:
    """A stage with its seconds, or a line of its own."""
    if event.seconds is not None:
        say(f"{event.stage:12} {event.seconds:6.2f} s   {event.text}".rstrip())
    elif event.text:
        say(f"{event.stage:12} {event.text}")


def existing(model: Path) -> Path:
    """`model`, which is there; FileMissing F501 with the nearest name."""
    if not model.exists():
        near = did_you_mean(model.name, [p.name for p in Path(model.parent).glob("*.*")])
        raise FileMissing("F501", f"{model} does not exist", remedy=near)
    return model
