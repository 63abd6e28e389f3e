"""The options and arguments that commands share.

In: a command, or the text of arguments. Out: the command with its options, or what the text means.
Invariant: a wrong text is a usage error (exit 2) or names the file or input that is wrong.
"""

import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fissile.errors import FileAccess, FileMissing, InvalidFeed, did_you_mean

if TYPE_CHECKING:
    from fissile.runtime.executable import Executable

Command = TypeVar("Command", bound=Callable[..., Any])
Extent = int | tuple[int, int] | None


def common(command: Command) -> Command:
    """The options every command has."""
    flag = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
    return talking(flag(command))


def talking(command: Command) -> Command:
    """How much is said."""
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="Errors only."),
        click.option("-v", "--verbose", is_flag=True, help="More detail; tracebacks."),
    ):
        command = option(command)
    return command


def compiling(command: Command) -> Command:
    """The options of commands that may compile."""
    threads = click.option("--threads", type=click.IntRange(min=1), help="Threads of one call.")
    return common(choosing(threads(command)))


def choosing(command: Command) -> Command:
    """What may be chosen about a compilation, beside its threads."""
    for option in (
        click.option("--target", default="native", show_default=True, help="Instruction set."),
        click.option("--shape", "shapes", multiple=True, help="batch=1..16 or x:1..16,3,?,?"),
        click.option("--disable", multiple=True, metavar="RULE", help="Leave a rewrite out."),
        click.option(
            "--substitute/--no-substitute", default=True, help="Search for cheaper graphs (default)."
        ),
        click.option("--overridable", multiple=True, metavar="NAME", help="Feed an initializer."),
        click.option("--foreign", type=click.Choice(["error", "warn", "allow"]), default="warn"),
        click.option("--no-cache", is_flag=True, help="Neither read nor fill the compile cache."),
    ):
        command = option(command)
    return command


def parse_bytes(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """`2G`, `512M`, `64K` (of 1024) or a number of bytes."""
    if text is None:
        return None
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not (number.isascii() and number.isdigit()) or unit not in _UNITS or int(number) == 0:
        raise click.BadParameter(f"{text!r} is no size; write 2G, 512M or a number of bytes")
    return int(number) << _UNITS[unit]


_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}


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
            raise InvalidFeed(
                "F603",
                f"the model has no input {name!r}",
                reason=f"inputs: {', '.join(names)}",
                remedy=did_you_mean(name, names),
            )
    return feeds


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """What numpy.savez would write, but for any output name ("file" is one) and any file name."""
    from numpy.lib import format as npy

    from fissile.runtime.artifact import atomic_file

    with atomic_file(path) as stream, zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, array, allow_pickle=False)
