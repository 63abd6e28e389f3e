"""What the command line looks like: lines on stderr, colour, plain text, warnings, versions.

In: text. Out: stderr, in ASCII where the encoding is not UTF-8, coloured only where that is wanted
(PRODUCT 5.2). Results on stdout are the commands' own.
"""

import logging
import os
import platform
import sys
import warnings
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import click

from fissile import __version__
from fissile.errors import FissileWarning
from fissile.options import environment
from fissile.target import cpu_name


def say(text: str, style: str | None = None) -> None:
    """A line on stderr, in colour only where that is wanted; lost where nobody reads it any longer."""
    with suppress(OSError):
        click.echo(click.style(plain(text), fg=style) if style else plain(text), err=True,
                   color=_colour())  # fmt: skip


def silent(text: str) -> None:
    """A `say` that says nothing."""


def plain(text: str) -> str:
    """ASCII where the encoding is not UTF-8."""
    if "utf" in (sys.stderr.encoding or "").lower():
        return text
    ascii_signs = {"·": "|", "→": "->", "━": "=", "╸": ">", "µ": "u"}
    for sign, like in ascii_signs.items():
        text = text.replace(sign, like)
    return text.encode("ascii", "replace").decode()


def _colour() -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal()


def is_terminal() -> bool:
    """Whether stderr is a terminal on which a line may be rewritten."""
    dumb = os.environ.get("TERM") == "dumb" or bool(os.environ.get("CI"))
    return sys.stderr.isatty() and not dumb


def set_up(*, quiet: bool, verbose: bool) -> None:
    """Logging and warnings on stderr, as much of them as the options and FISSILE_LOG ask for."""
    level = {"debug": logging.DEBUG, "info": logging.INFO}.get(environment().log, logging.WARNING)
    level = logging.DEBUG if verbose else logging.ERROR if quiet else level
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        if not quiet:
            say(f"warning: {message}" if issubclass(category, FissileWarning) else str(message))

    warnings.showwarning = show


def versions() -> dict[str, str]:
    """Of this package, what it needs, Python and the CPU."""

    def of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    packages = {name: of(name) for name in ("numpy", "onnx", "llvmlite", "highspy")}
    return {"fissile": __version__, **packages, "Python": platform.python_version(),
            "CPU": cpu_name()}  # fmt: skip


def why_cores(quota: float | None) -> str:
    """What limits the CPUs allowed: affinity and the cgroups' quota in CPUs, None where there is none."""
    affinity = len(os.sched_getaffinity(0))
    return f"affinity {affinity}, {'no quota' if quota is None else f'cgroup quota {quota:g}'}"
