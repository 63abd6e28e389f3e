"""`fissile tune`, and `fissile compile --budget`: measuring within a budget, with what is said meanwhile (PRODUCT 2.4).

In: a model and a budget. Out: an artifact that is no slower than the one it replaces. Exit 130: interrupted, and the
best so far has been written. On a terminal the last line is a bar that moves; elsewhere it is one line every ten
seconds, and with --json every event is a line of JSON on stderr.
"""

import json
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from fissile.commands.opening import check_rules, existing
from fissile.commands.options import compiling, parse_shapes
from fissile.commands.writing import ARTIFACT, PLAN, Output, check_outputs, forcing
from fissile.console import is_terminal, plain, say, set_up
from fissile.options import Event, Options

if TYPE_CHECKING:
    from fissile.tune.tune import Tuned
    from fissile.tune.whole import Whole

QUIET_SECONDS = 10.0
NO_BUDGET = "0.001s"  # what is measured already has to do
BAR_WIDTH = 30
LABELS = ("model", "store", "start", "rejected", "whole", "proved", "interrupted")


@click.command("tune")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--budget", required=True, help="10m, 600s, 1h or 200trials.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Default: MODEL's stem.fsl.")
@forcing
@click.option("--save-plan", type=click.Path(path_type=Path), help="Write the choice of kernels.")
@click.option(
    "--providers", default="", metavar="A,B", help="May run kernels: openblas, onnxruntime, openvino."
)
@compiling
def tune_command(
    model: Path,
    budget: str,
    output: Path | None,
    force: bool,
    save_plan: Path | None,
    as_json: bool,
    quiet: bool,
    **choices: Any,
) -> int:
    """Compile MODEL by measuring kernels. Resumable: what was measured is kept, whatever happens."""
    set_up(quiet=quiet, verbose=choices.pop("verbose"))
    path = output or Path(f"{model.stem}.fsl")
    return tune_model(
        model, budget, path, force=force, save_plan=save_plan, as_json=as_json, quiet=quiet,
        **choices,
    )  # fmt: skip


def tune_model(
    model: Path,
    budget: str,
    path: Path,
    *,
    force: bool,
    save_plan: Path | None,
    as_json: bool,
    quiet: bool,
    threads: int | None,
    target: str,
    shapes: tuple[str, ...],
    disable: tuple[str, ...],
    foreign: Literal["error", "warn", "allow"],
    no_cache: bool,
    providers: str = "",
    **choices: Any,
) -> int:
    """Tune and write; the exit code. no_cache: nothing tuned is in the compile cache anyway."""
    outputs = [Output("-o", path, ARTIFACT), Output("--save-plan", save_plan, PLAN)]
    check_outputs(outputs, force, [model])
    existing(model)
    check_rules(disable)
    chosen = tuple(filter(None, providers.split(",")))
    options = Options(disable=disable, providers=chosen, **choices)
    from fissile.tune.interrupt import listening

    with listening(signal.SIGTERM) as heard:
        from fissile import compiler

        screen = Screen(quiet, as_json)

        def tune(budget: str, installed: Path | None) -> "Tuned":
            found: Tuned = compiler.tune(
                model,
                budget,
                threads=threads,
                target=target.split(","),
                shapes=parse_shapes(shapes) or None,
                foreign=foreign,
                options=options,
                installed=installed,
                progress=heard.passing(screen.show),
            )
            return found

        found, is_ours = tuned_beside(path, budget, tune)
        with heard.holding():
            screen.clear()
            _install(found, path if is_ours else None, save_plan)
        is_interrupted = found.is_interrupted or heard.is_pending
    if as_json:
        print(json.dumps({"artifact": str(path), "bytes": len(found.artifact), **_document(found)}))
    elif is_ours:
        print(plain(f"wrote    {path} · {len(found.artifact) / 1e6:.1f} MB · {found.summary()}"))
    else:
        print(plain(f"kept     {path} · it was written meanwhile, and has not run against what was found"))
    return 130 if is_interrupted else 0


def tuned_beside(
    path: Path, budget: str, tune: Callable[[str, Path | None], "Tuned"]
) -> tuple["Tuned", bool]:
    """What is tuned, and whether it may replace the artifact at `path`.

    Where another process has written that meanwhile, the two run against each other, without more measuring; after an
    interruption what is there stays.
    """
    while True:
        before = _stamp(path)
        found = tune(budget, path if before else None)
        if _stamp(path) == before:
            return found, True
        if found.is_interrupted:
            return found, False
        budget = NO_BUDGET


def _stamp(path: Path) -> tuple[int, ...]:
    """Another one for another file; () for none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _install(found: "Tuned", path: Path | None, save_plan: Path | None) -> None:
    """Write what was asked for. path: None where the artifact that is there stays."""
    from fissile.runtime.artifact import atomic_file

    if path is not None:
        with atomic_file(path) as stream:
            stream.write(found.artifact)
    if save_plan is not None and found.plan:
        with atomic_file(save_plan) as stream:
            stream.write(found.plan.encode())


def _document(found: "Tuned") -> dict[str, Any]:
    return {
        "kept": found.kept,
        "name": found.name,
        "interrupted": found.is_interrupted,
        "certificate": dict(found.certificate),
        "times": {name: _times(whole, found.predicted.get(name)) for name, whole in found.times.items()},
        "rejected": dict(found.rejected),
        "rounds": [asdict(row) | {"gap": row.gap} for row in found.rounds],
    }


def _times(whole: "Whole", predicted: float | None) -> dict[str, Any]:
    """Seconds of a whole model: of runs, of its launches by their time stamps, and predicted."""
    facts = {"seconds": whole.seconds, "median": whole.median, "ratio": asdict(whole.ratio)}
    return facts | {"predicted": predicted, "launches_seconds": whole.launches_seconds}


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """How far something is.

    >>> bar(0.5, 8)
    '━━━╸    '
    """
    filled = round(min(max(share, 0.0), 1.0) * width)
    return ("━" * (filled - 1) + "╸" * bool(filled)).ljust(width)


class Screen:
    """What is said while tuning: lines that stay, and on a terminal one that changes."""

    def __init__(self, quiet: bool, as_json: bool = False) -> None:
        self._quiet = quiet
        self._as_json = as_json
        self._is_terminal = is_terminal() and not as_json
        self._last = time.monotonic()
        self._is_dirty = False

    def show(self, event: Event) -> None:
        """Say what has happened, as long as somebody reads it: what is tuned is worth more than what is said."""
        try:
            if not self._quiet:
                self._show(event)
        except OSError:
            self._quiet, self._is_dirty = True, False

    def _show(self, event: Event) -> None:
        if self._as_json:
            self._document(event)
        elif event.stage == "measuring":
            self._status(event)
        elif event.stage == "round":
            self._line(f" {event.text}")
        elif event.stage in LABELS:
            self.clear()
            say(f"{event.stage:8} {event.text}")
        elif event.seconds is None:
            self._status(Event(event.stage, event.stage))

    def clear(self) -> None:
        """Take the changing line away."""
        if self._is_dirty:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
            self._is_dirty = False

    def _line(self, text: str) -> None:
        self.clear()
        self._last = time.monotonic()
        say(text)

    def _document(self, event: Event) -> None:
        facts = {name: value for name, value in asdict(event).items() if value is not None}
        print(json.dumps(facts), file=sys.stderr, flush=True)

    def _status(self, event: Event) -> None:
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            ahead = f"{bar(event.share)}  " if event.share is not None else ""
            shown = plain(f" {ahead}{event.text}")[:width]
            print(f"\r\x1b[2K{shown}", end="", file=sys.stderr, flush=True)
            self._is_dirty = True
        elif time.monotonic() - self._last >= QUIET_SECONDS:
            self._line(f" {event.text}")
