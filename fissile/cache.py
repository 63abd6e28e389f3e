"""The compile cache: content-addressed artifacts in a folder that may be deleted at any time.

In: what determines an artifact (model hash, options, target, threads, versions). Out: the path where
it is, or will be kept. Invariant: a file in the folder is whole, two processes that want the same
artifact make it once, and a folder that cannot be used means one warning, never an error. Artifacts are code: none is
used that somebody else than this user and root could have written, or into whose folder they could write.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import platformdirs

from fissile import __version__
from fissile.errors import ArtifactError, FileAccess, FileMissing, FissileError
from fissile.errors import warn as warn
from fissile.files import kind_of, open_regular, stranger
from fissile.options import environment
from fissile.runtime.artifact import Artifact, atomic_file, check_members, read_artifact
from fissile.runtime.manifest import WEIGHTS
from fissile.runtime.weights import Buffer, view

CAP_BYTES = 2 << 30
STALE_SECONDS = 3600
TELL_SECONDS = 5.0  # after which a lock that another process holds is told of
LOCK_SECONDS = 600.0  # after which nobody waits for a lock any longer
_LOOK_SECONDS = 0.05
_MODE = 0o644
_NOTE = ".checked"  # beside an artifact: that its weights are those of their hash
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_TOLD: set[tuple[Path, str]] = set()


@dataclass(frozen=True)
class Contents:
    """What the cache holds now. directory None: caching is off or impossible."""

    directory: Path | None
    artifacts: int
    size: int


def key(parts: Mapping[str, object]) -> str:
    """Hash of plain data (str, int, bool, None, list, dict), whatever the order of its keys."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def versions() -> dict[str, str]:
    """Of everything that makes code, by package."""
    found = {"fissile": f"{__version__} {_code_stamp()}"}
    for package in ("llvmlite", "onnx"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found


@cache
def _code_stamp() -> str:
    """A hash of names, sizes and times of the package's files: reading them all would take too long."""
    root = Path(__file__).parent
    facts = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            status = os.stat(os.path.join(folder, name))
            facts.append(f"{name} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def directory() -> Path | None:
    """The folder, made if need be; None if FISSILE_CACHE=0, or where it cannot be written or trusted."""
    env = environment()
    if not env.cache:
        return None
    folder = (env.cache_dir or _default()).absolute()
    problem = _unusable(folder)
    if problem and (folder, problem) not in _TOLD:
        _TOLD.add((folder, problem))
        warn(f"no compile cache in {shown(folder)}: {problem}; set FISSILE_CACHE_DIR")
    return None if problem else folder


@contextmanager
def entry(name: str) -> Iterator[Path | None]:
    """The path for key `name`, locked against other processes while the block runs.

    The block looks whether the file is there and makes it otherwise. None: do without a cache.
    """
    folder = directory()
    if folder is None:
        yield None
        return
    path = folder / f"{name}.fsl"
    with _locked(folder / f"{name}.lock"):
        _touch(path)
        yield path


def opened(path: Path) -> Artifact:
    """A kept artifact, its weights compared with their hash if that has not been done since the machine started.

    FileMissing, FileAccess, ArtifactError; F114 for what somebody else could have written.
    """
    artifact = read_artifact(path, is_own=True)
    stamp = _stamp(artifact.status, artifact.sha256)
    if not stamp or stamp != _noted(path):
        check_members(artifact, [WEIGHTS])
        _note(path, stamp)
    return artifact


def keep(path: Path, content: Buffer, sha256: str = "") -> bool:
    """Write an artifact (atomically) to `path`, then drop the least recently used.

    sha256: the hash of its manifest, where this process has computed that of its weights. False, with a warning, where
    that fails: a full disk must not fail a compilation.
    """
    try:
        forget(path)
        with atomic_file(path, _MODE) as stream:
            stream.write(view(content))
        if sha256:
            _note(path, _stamp(path.lstat(), sha256))
    except (OSError, FileAccess) as error:
        text = f"not kept in the compile cache: {_reason(error)}"
        warn(text)
        return False
    trim(path.parent, keep_path=path)
    return True


def forget(path: Path) -> None:
    """Delete an artifact of the cache, or whatever is in its place, unless it is a folder."""
    for each in (path, path.with_suffix(_NOTE)):
        with contextlib.suppress(OSError):
            each.unlink(missing_ok=True)


def trim(folder: Path, *, cap: int = CAP_BYTES, keep_path: Path | None = None) -> None:
    """Delete the least recently used artifacts until at most `cap` bytes are left."""
    found = sorted(_artifacts(folder), key=lambda item: item[1].st_mtime, reverse=True)
    total = 0
    for path, status in found:
        total += status.st_size
        if total > cap and path != keep_path:
            forget(path)
            with contextlib.suppress(OSError):
                path.with_suffix(".lock").unlink(missing_ok=True)
    for path in folder.glob(".*.fsl.*"):  # what a killed process was writing
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime < time.time() - STALE_SECONDS:
                path.unlink(missing_ok=True)


def contents() -> Contents:
    """Count and size in bytes."""
    folder = directory()
    sizes = [status.st_size for _, status in _artifacts(folder)] if folder else []
    return Contents(folder, len(sizes), sum(sizes))


def damaged() -> list[tuple[Path, str]]:
    """Artifacts that do not match their hashes, weights included, and why; all of them are read."""
    folder = directory()
    found = []
    for path, _ in sorted(_artifacts(folder)) if folder else []:
        try:
            check_members(read_artifact(path, is_own=True))
        except FileMissing:
            continue  # another process has deleted it since
        except (ArtifactError, FileAccess) as error:
            found.append((path, error.reason or error.message))
    return found


def clear() -> Contents:
    """Delete every artifact; what was there before."""
    before = contents()
    if before.directory is not None:
        for pattern in ("*.fsl", "*.lock", f"*{_NOTE}", ".*.fsl.*"):
            for path in before.directory.glob(pattern):
                with contextlib.suppress(OSError):  # a folder, which nobody here has made
                    path.unlink(missing_ok=True)
    return before


def shown(path: Path) -> str:
    """A path as text that can be printed, whatever its bytes are."""
    return str(path).encode(errors="backslashreplace").decode()


def _default() -> Path:
    return Path(platformdirs.user_cache_dir("fissile"))


def _unusable(folder: Path) -> str:
    """Why nothing can be kept in the folder, which is made if need be; "" if it can."""
    if "~" in folder.parts:
        return "its name has a ~ in place of the home folder"
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        problem = stranger(folder.stat())
    except OSError as error:
        return _reason(error)
    if problem:
        return f"{problem} (chmod go-w {shown(folder)})" if "others" in problem else problem
    return _unwritable(folder)


@cache
def _unwritable(folder: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return _reason(error)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """An exclusive lock while the block runs; none where there can be none, or another process never lets go of it."""
    handle = _lock_file(path)
    try:
        if handle is not None:
            _wait_for(path, handle)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _lock_file(path: Path) -> int | None:
    """The lock's file, made if need be; None, with a warning, where something else is in its place."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        handle = os.open(path, flags, 0o600)
    except OSError as error:
        kind = "it is a symbolic link" if path.is_symlink() else _reason(error)
        warn(f"no lock on {shown(path)}: {kind}")
        return None
    if kind := kind_of(os.fstat(handle)):
        os.close(handle)
        warn(f"no lock on {shown(path)}: it is {kind}")
        return None
    return handle


def _wait_for(path: Path, handle: int) -> None:
    """Take the lock. It is told when that takes long, and given up when another process never lets go."""
    start, is_told = time.monotonic(), False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = time.monotonic() - start
        except OSError as error:
            warn(f"no lock on {shown(path)}: {_reason(error)}")
            return
        else:
            return
        if waited >= LOCK_SECONDS:
            warn(f"no lock on {shown(path)}: another process has held it for {waited:.0f} s")
            return
        if waited >= TELL_SECONDS and not is_told:
            is_told = True
            warn(f"another process compiles the same model; waiting for its lock {shown(path)}")
        time.sleep(_LOOK_SECONDS)


def _stamp(status: os.stat_result | None, sha256: str) -> str:
    """What says that a file is the one whose weights were checked, and that the machine runs since; "" if unknown."""
    try:
        boot = _BOOT.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return f"{boot} {status.st_dev} {status.st_ino} {status.st_size} {sha256}\n" if status else ""


def _noted(path: Path) -> str:
    """The stamp beside an artifact; "" where there is none to be trusted."""
    try:
        with open_regular(path.with_suffix(_NOTE), follow=False) as stream:
            own = not stranger(os.fstat(stream.fileno()))
            return stream.read(512).decode("ascii", "replace") if own else ""
    except OSError:  # FileMissing and FileAccess are such
        return ""


def _note(path: Path, stamp: str) -> None:
    goal = path.with_suffix(_NOTE)
    with contextlib.suppress(OSError):
        if stamp and (not os.path.lexists(goal) or not kind_of(goal.lstat())):
            with atomic_file(goal, _MODE) as stream:
                stream.write(stamp.encode())


def _artifacts(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for path in folder.glob("*.fsl"):
        try:
            status = path.lstat()
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            yield path, status


def _touch(path: Path) -> None:
    try:
        os.utime(path, follow_symlinks=False)
    except OSError:
        return


def _reason(error: Exception) -> str:
    if isinstance(error, FissileError):
        return error.reason or error.message
    return getattr(error, "strerror", None) or str(error)
