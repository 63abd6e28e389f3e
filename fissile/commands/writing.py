"""Files that a command writes: what may be overwritten, decided in one place and before the work (PRODUCT 5.1).

In: the outputs of a command, each with the option that names it and the kind of file it writes. Out: nothing, or a
FileAccess: F502 where nothing can be written, F511 where something else would be lost. Invariant: a file of another
kind, or what the command reads, is overwritten with --force only.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from fissile.commands.options import Command
from fissile.errors import FileAccess

_HEAD = 512  # bytes that tell the kind of a file
_NEWEST_IR = b"\x08\x40"  # no version of ONNX files is near that


@dataclass(frozen=True)
class Kind:
    """A kind of file: what people call it, a name for one, and whether these first bytes are of one."""

    name: str
    example: str
    fits: Callable[[bytes], bool]


@dataclass(frozen=True)
class Output:
    """What is written: by which option, where (None: not at all), and what."""

    option: str
    path: Path | None
    kind: Kind


def _first_member(head: bytes) -> bytes:
    """The name of the first file in a zip archive."""
    return head[30 : 30 + int.from_bytes(head[26:28], "little")] if head[:4] == b"PK\3\4" else b""


def _opens(text: str) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(text.encode())


ARTIFACT = Kind(".fsl", "model.fsl", lambda head: _first_member(head).startswith(b"code-"))
MODEL = Kind("ONNX model", "model.onnx", lambda head: b"\x08\0" < head[:2] < _NEWEST_IR)
ARRAYS = Kind(
    "archive of arrays", "out.npz",
    lambda head: _first_member(head).endswith(b".npy") or head[:4] == b"PK\5\6",
)  # fmt: skip
PLAN = Kind("plan file", "plan.json", _opens('{"fissile_plan"'))
EXPORT = Kind("export of a tuning store", "store.jsonl", _opens('{"fissile_store"'))
TIMES = Kind("result of fissile bench", "bench.json", _opens('{"machine"'))
TRACE = Kind("trace", "trace.json", _opens('{"traceEvents"'))
REPORT = Kind("report", "report.html", lambda head: b"<title>fissile report" in head)


def forcing(command: Command) -> Command:
    """`--force`."""
    text = "Overwrite files of another kind, or what is read."
    return click.option("--force", is_flag=True, help=text)(command)


def check_outputs(
    outputs: Sequence[Output], force: bool, reads: Sequence[Path | None] = ()
) -> None:
    """Refuse before the work what could not be written after it. FileAccess F502, F511.

    reads: what the command reads, which none of the outputs may be without `force`.
    """
    named = [(output, output.path) for output in outputs if output.path is not None]
    for k, (output, path) in enumerate(named):
        _check_place(output, path)
        if any(path.resolve() == other.resolve() for _, other in named[:k]):
            remedy = f"{output.option} {output.kind.example}"
            raise FileAccess("F511", f"{path} would be written twice", remedy=remedy)
        if not force:
            _check_content(output, path, [read for read in reads if read is not None])


def _check_place(output: Output, path: Path) -> None:
    if path.is_dir():
        remedy = f"{output.option} {path / output.kind.example}"
        raise FileAccess("F502", f"{path} is a folder", remedy=remedy)
    folder = path.resolve().parent
    in_place = path.exists() and not path.is_file()  # a device or a pipe
    if not folder.is_dir() or not os.access(path if in_place else folder, os.W_OK):
        state = "does not exist" if not folder.is_dir() else "cannot be written"
        remedy = f"{output.option} PATH writes it elsewhere"
        raise FileAccess("F502", f"{path if in_place else folder} {state}", remedy=remedy)


def _check_content(output: Output, path: Path, reads: Sequence[Path]) -> None:
    elsewhere = f"{output.option} PATH writes it elsewhere"
    remedy = ("--force overwrites it", elsewhere)
    beside = path.with_name(f"{path.name}.data")
    if output.kind is MODEL and beside.exists() and not path.exists():
        # the weights of another model, which a large one would replace by its own
        raise FileAccess("F511", f"{beside} is there without {path.name}", remedy=remedy)
    if not path.is_file():
        return
    if any(read.exists() and path.samefile(read) for read in reads):
        raise FileAccess("F511", f"{path} is what is read", remedy=remedy)
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileAccess("F502", f"{path} cannot be read", reason=reason, remedy=elsewhere) from error
    if head and not output.kind.fits(head):
        raise FileAccess("F511", f"{path} is no {output.kind.name}", remedy=remedy)
