"""The artifact, `.fsl`: a zip of stored, page-aligned members (DESIGN 3.8, PRODUCT 5.4).

In: code, plan, weights and manifest of one or several targets; or a path or the bytes of a file.
Out: bytes that depend on nothing else (no date, no path); or an `Artifact` whose members are views
into one mapping. Invariant: a file is written whole or not at all, and nothing of it is trusted
before the hashes of manifest, plan and code have been checked.
"""

import hashlib
import io
import json
import mmap
import os
import struct
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from fissile.errors import ArtifactError, FileAccess, OptionError
from fissile.files import open_regular, stranger
from fissile.runtime.abi import ABI
from fissile.runtime.manifest import FORMAT, WEIGHTS, damaged, read_manifest
from fissile.runtime.weights import Buffer, Weight, chunks, data_start, view
from fissile.target import cpu_name, missing_features

PAGE = 4096
FOREIGN = "foreign/"  # how the names of the models of foreign nodes begin
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)
_PADDING_ID = 0xFE51
_ZIP64_BYTES = 20
_ZIP64_FROM = 1 << 31


@dataclass(frozen=True)
class TargetCode:
    """What one instruction set needs: its image and the plan that runs it (`plan["entries"]`)."""

    name: str
    features: tuple[str, ...]
    code: bytes
    plan: Mapping[str, Any]


@dataclass(frozen=True)
class Contents:
    """Everything an artifact is made of; `manifest` lacks only what is derived from the rest."""

    manifest: Mapping[str, Any]
    targets: tuple[TargetCode, ...]
    weights: tuple[Weight, ...] = ()
    report: Mapping[str, Any] | None = None
    extra: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, eq=False)
class Artifact:
    """An artifact in memory. `spans[name]` = (offset, size) in `buffer`.

    path and status (of the file that was opened) are None for an artifact given as bytes.
    """

    path: Path | None
    status: os.stat_result | None
    buffer: mmap.mmap
    spans: Mapping[str, tuple[int, int]]
    manifest: Mapping[str, Any]
    sha256: str

    def member(self, name: str) -> memoryview:
        """The bytes of a member, not copied; ArtifactError if there is none."""
        if name not in self.spans:
            raise damaged(self.path, f"member {name} is missing")
        offset, size = self.spans[name]
        return memoryview(self.buffer)[offset : offset + size]


def artifact_bytes(contents: Contents) -> bytes:
    """The artifact as bytes; equal contents give equal bytes."""
    stream = io.BytesIO()
    _write(contents, stream)
    return stream.getvalue()


def write_artifact(contents: Contents, path: str | os.PathLike[str]) -> None:
    """Write to `path` atomically; FileAccess if that is impossible."""
    with atomic_file(path) as stream:
        _write(contents, stream)


@contextmanager
def atomic_file(path: str | os.PathLike[str], mode: int = 0o666) -> Iterator[BinaryIO]:
    """A stream that becomes `path` when the block ends well, and leaves no trace otherwise.

    mode: permissions, less those that the umask takes. A device or a pipe is written as it is: a file in its place
    would be another thing. FileAccess F503.
    """
    if not isinstance(path, str | os.PathLike):
        raise OptionError("F601", f"{path!r} is no path", remedy="a path to write to")
    goal = Path(path)
    if _is_special(goal):
        held = io.BytesIO()
        yield held
        _write_special(goal, held.getvalue())
        return
    try:
        handle, name = tempfile.mkstemp(prefix=f".{goal.name}.", dir=goal.parent)
    except (OSError, ValueError) as error:
        raise _unwritable(goal, error) from error
    try:
        with open(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, mode & ~_umask())
        os.replace(name, goal)
    except OSError as error:
        _remove(name)
        raise _unwritable(goal, error) from error
    except BaseException:
        _remove(name)
        raise


def read_artifact(
    source: str | os.PathLike[str] | Buffer, *, mapped: bool = True, is_own: bool = False
) -> Artifact:
    """Open, check the format, the members against each other, and all hashes but those of weights and report.

    mapped: map the file, so that processes share its pages; otherwise copy it into memory. is_own: refuse what
    somebody else than this user and root could have written, and symbolic links. FileMissing, FileAccess, OptionError
    for what is neither a path nor bytes, or ArtifactError with the remedy.
    """
    path, status, buffer = _opened(source, mapped, is_own)
    try:
        with zipfile.ZipFile(_Reader(buffer)) as archive:
            infos = archive.infolist()
            is_ours = "manifest.json" in archive.namelist()
            spans = _spans(buffer, infos) if is_ours else {}
            comment = archive.comment.decode("ascii", "replace")
    except (
        zipfile.BadZipFile, struct.error, ValueError, EOFError, NotImplementedError, LookupError,
        ArithmeticError,
    ) as error:  # fmt: skip
        raise damaged(path, f"not a complete archive ({error})") from error
    if not is_ours:
        raise damaged(path, "no manifest: this is some other zip file")
    offset, size = spans["manifest.json"]
    text = bytes(buffer[offset : offset + size])
    digest = hashlib.sha256(text).hexdigest()
    if comment != f"fissile sha256 {digest}":
        raise damaged(path, "the manifest does not match its hash")
    sizes = {name: span[1] for name, span in spans.items() if name != "manifest.json"}
    manifest = read_manifest(path, text, sizes)
    artifact = Artifact(path, status, buffer, spans, manifest, digest)
    rows = manifest["targets"]
    foreign = [name for name in manifest["members"] if name.startswith(FOREIGN)]
    check_members(artifact, [*(row[part] for row in rows for part in ("code", "plan")), *foreign])
    try:
        data_start(artifact.member(WEIGHTS))
    except ValueError as error:
        raise damaged(path, f"the weights are damaged ({error})") from error
    return artifact


def check_members(artifact: Artifact, names: Iterable[str] | None = None) -> None:
    """Compare members (default: all) with the hashes in the manifest; ArtifactError if one differs."""
    table = artifact.manifest["members"]
    for name in table if names is None else names:
        data = artifact.member(name)
        if hashlib.sha256(data).hexdigest() != table.get(name, {}).get("sha256"):
            raise damaged(artifact.path, f"member {name} does not match its hash")


def choose_target(artifact: Artifact) -> Mapping[str, Any]:
    """The manifest's row for the best target this CPU runs; the rows stand best first."""
    rows = artifact.manifest["targets"]
    for row in rows:
        if not missing_features(tuple(row["features"])):
            return dict(row)
    name = artifact.path.name if artifact.path else "the artifact"
    missing = sorted({f for row in rows for f in missing_features(tuple(row["features"]))})
    model = artifact.manifest.get("model", {}).get("name", "model.onnx")
    raise ArtifactError(
        "F107",
        f"{name} needs {', '.join(missing)}; this CPU lacks them",
        where=[f"{row['name']}" for row in rows],
        reason=f"it was compiled for {', '.join(r['name'] for r in rows)}; this is {cpu_name()}",
        remedy=f"fissile compile {model} --target native -o {name}",
    )


def _write(contents: Contents, stream: BinaryIO) -> None:
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        table: dict[str, dict[str, object]] = {}
        for name, pieces, size in _members(contents):
            table[name] = {"sha256": _store(archive, name, pieces, size), "bytes": size}
        manifest = _manifest(contents, table)
        digest = _store(archive, "manifest.json", [manifest], len(manifest))
        archive.comment = f"fissile sha256 {digest}".encode()
        for info in archive.infolist():
            # only the local header needs the padding
            info.extra = b""


def _members(contents: Contents) -> Iterator[tuple[str, Iterable[Buffer], int]]:
    for target in contents.targets:
        yield f"code-{target.name}.bin", [target.code], len(target.code)
    for target in contents.targets:
        plan = json_bytes(target.plan)
        yield _plan_name(contents, target), [plan], len(plan)
    size = sum(view(piece).nbytes for piece in chunks(contents.weights))
    yield "weights.safetensors", chunks(contents.weights), size
    report = json_bytes(contents.report or {})
    yield "report.json", [report], len(report)
    for name, data in contents.extra:
        yield name, [data], len(data)


def _plan_name(contents: Contents, target: TargetCode) -> str:
    return "plan.json" if len(contents.targets) == 1 else f"plan-{target.name}.json"


def _manifest(contents: Contents, table: Mapping[str, object]) -> bytes:
    rows = [
        {
            "name": t.name,
            "features": list(t.features),
            "code": f"code-{t.name}.bin",
            "plan": _plan_name(contents, t),
        }
        for t in contents.targets
    ]
    numbers = {"format": list(FORMAT), "abi": ABI}
    return json_bytes({**contents.manifest, **numbers, "targets": rows, "members": table})


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """How manifest, plan and report are written: equal values are equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _store(archive: zipfile.ZipFile, name: str, pieces: Iterable[Buffer], size: int) -> str:
    """Add a member whose data starts on a page; returns the sha256 of the data."""
    info = zipfile.ZipInfo(name, _FIXED_TIME)
    info.external_attr = 0o644 << 16
    info.create_system = 3
    large = size >= _ZIP64_FROM
    stream = archive.fp
    assert stream is not None
    start = stream.tell() + 30 + len(name.encode()) + 4 + (_ZIP64_BYTES if large else 0)
    padding = -start % PAGE
    info.extra = struct.pack("<HH", _PADDING_ID, padding) + bytes(padding)
    digest = hashlib.sha256()
    with archive.open(info, "w", force_zip64=large) as member:
        for piece in pieces:
            digest.update(view(piece))
            member.write(view(piece))
    return digest.hexdigest()


class _Reader(io.RawIOBase):
    """A seekable file over a mapping; `mmap` itself closes when zipfile is done with it."""

    def __init__(self, buffer: mmap.mmap) -> None:
        self.view = memoryview(buffer)
        self.at = 0

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self.at = (0, self.at, len(self.view))[whence] + offset
        return self.at

    def tell(self) -> int:
        return self.at

    def read(self, size: int = -1, /) -> bytes:
        end = len(self.view) if size < 0 else self.at + size
        piece = bytes(self.view[self.at : end])
        self.at += len(piece)
        return piece


def _spans(buffer: mmap.mmap, infos: list[zipfile.ZipInfo]) -> dict[str, tuple[int, int]]:
    """Offset and size of every member; ValueError where two have a name or a byte in common."""
    spans = {info.filename: _span(buffer, info) for info in infos}
    if len(spans) != len(infos):
        raise ValueError("two members have one name")
    placed = sorted(spans.values())
    if any(offset + size > other for (offset, size), (other, _) in zip(placed, placed[1:])):
        raise ValueError("members overlap")
    return spans


def _span(buffer: mmap.mmap, info: zipfile.ZipInfo) -> tuple[int, int]:
    """Offset and size of a stored member, which lies on a page; ValueError if it cannot lie there."""
    at = info.header_offset
    if at < 0 or buffer[at : at + 4] != b"PK\3\4":
        raise ValueError(f"member {info.filename} has no header")
    name, extra = struct.unpack_from("<HH", buffer, at + 26)
    start = at + 30 + name + extra
    if buffer[at + 30 : at + 30 + name] != info.orig_filename.encode():
        raise ValueError(f"member {info.filename} has another name in its header")
    if info.compress_type != zipfile.ZIP_STORED or start + info.file_size > len(buffer):
        raise ValueError(f"member {info.filename} is compressed or cut off")
    if start % PAGE:
        raise ValueError(f"member {info.filename} does not lie on a page")
    return start, info.file_size


def _opened(
    source: str | os.PathLike[str] | Buffer, mapped: bool, is_own: bool
) -> tuple[Path | None, os.stat_result | None, mmap.mmap]:
    if not isinstance(source, str | os.PathLike):
        return None, None, _given(source)
    path = Path(source)
    with open_regular(path, follow=not is_own) as stream:
        status = os.fstat(stream.fileno())
        if is_own and (problem := stranger(status)):
            raise ArtifactError(
                "F114", f"{path} is not to be trusted", reason=problem, remedy=f"rm {path}"
            )
        try:
            if status.st_size and mapped:
                buffer = mmap.mmap(stream.fileno(), status.st_size, access=mmap.ACCESS_READ)
            else:
                buffer = _copied(stream.read())
        except (OSError, ValueError) as error:
            raise FileAccess("F502", f"{path} cannot be read", reason=str(error)) from error
        return path, status, buffer


def _given(source: object) -> mmap.mmap:
    try:
        return _copied(source)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError) as error:
        raise OptionError(
            "F615",
            f"{type(source).__name__} is no artifact",
            reason="an artifact is a path, or the bytes of a file",
        ) from error


def _copied(data: Buffer) -> mmap.mmap:
    source = view(data)
    buffer = mmap.mmap(-1, max(source.nbytes, 1))
    buffer[: source.nbytes] = source
    return buffer


def _is_special(path: Path) -> bool:
    """Whether there is a device, a pipe or a socket."""
    try:
        return path.exists() and not path.is_file() and not path.is_dir()
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


def _write_special(path: Path, data: bytes) -> None:
    """Write to a device or pipe; nobody is waited for who might open its other end one day."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with open(handle, "wb") as stream:
            os.set_blocking(handle, True)
            stream.write(data)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError | ValueError) -> FileAccess:
    return FileAccess(
        "F503",
        f"{path} cannot be written",
        reason=getattr(error, "strerror", None) or str(error),
        remedy="choose another place with -o",
    )


def _remove(name: str) -> None:
    Path(name).unlink(missing_ok=True)


def _umask() -> int:
    """The process's file mode mask; reading it any other way would change it for other threads."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0o022
    lines = (line.split() for line in status.splitlines())
    return next((int(words[1], 8) for words in lines if words[:1] == ["Umask:"]), 0o022)
