"""The compile cache: content-addressed artifacts in a folder that may be deleted at any time.

In: what determines an artifact (model hash, options, target, threads, versions). Out: the path where
it is, or will be kept. Invariant: a file in the folder is whole, two processes that want the same
artifact make it once, and a folder that cannot be used means one warning, never an error
(PRODUCT 5.4).
"""

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import platformdirs

from fissile import __version__
from fissile.errors import ArtifactError, FileAccess, FileMissing, FissileWarning
from fissile.options import environment
from fissile.runtime.artifact import check_members, read_artifact

CAP_BYTES = 2 << 30
STALE_SECONDS = 3600
_OWN = (str(Path(__file__).parent) + os.sep, contextlib.__file__)


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
    """The folder, made if need be; None if FISSILE_CACHE=0 or it cannot be written."""
    env = environment()
    return _usable(env.cache_dir or _default()) if env.cache else None


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
        if path.exists():
            _touch(path)
        yield path


def keep(path: Path, save: Callable[[Path], object]) -> bool:
    """Let `save` write the artifact (atomically) to `path`, then drop the least recently used.

    False, with a warning, where that fails: a full disk must not fail a compilation.
    """
    try:
        save(path)
    except (OSError, FileAccess) as error:
        text = f"not kept in the compile cache: {_reason(error)}"
        warn(text)
        return False
    trim(path.parent, keep_path=path)
    return True


def trim(folder: Path, *, cap: int = CAP_BYTES, keep_path: Path | None = None) -> None:
    """Delete the least recently used artifacts until at most `cap` bytes are left."""
    found = sorted(_artifacts(folder), key=lambda item: item[1].st_mtime, reverse=True)
    total = 0
    for path, status in found:
        total += status.st_size
        if total > cap and path != keep_path:
            path.unlink(missing_ok=True)
            path.with_suffix(".lock").unlink(missing_ok=True)
    for path in folder.glob(".*.fsl.*"):  # what a killed process was writing
        if path.stat().st_mtime < time.time() - STALE_SECONDS:
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
            check_members(read_artifact(path))
        except FileMissing:
            continue  # another process has deleted it since
        except (ArtifactError, FileAccess) as error:
            found.append((path, error.reason or error.message))
    return found


def clear() -> Contents:
    """Delete every artifact; what was there before."""
    before = contents()
    if before.directory is not None:
        for pattern in ("*.fsl", "*.lock", ".*.fsl.*"):
            for path in before.directory.glob(pattern):
                if not path.is_dir():
                    path.unlink(missing_ok=True)
    return before


def warn(text: str) -> None:
    """A FissileWarning that points at the code which called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, FissileWarning, stacklevel=level)


def _default() -> Path:
    return Path(platformdirs.user_cache_dir("fissile"))


@cache
def _usable(folder: Path) -> Path | None:
    """The folder if it can be written; one warning per process and folder otherwise."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        text = f"no compile cache in {folder}: {_reason(error)}; set FISSILE_CACHE_DIR"
        warn(text)
        return None
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """An exclusive lock while the block runs; none where the file system has no locks."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            warn(f"no lock on {path}: {_reason(error)}")
        yield


def _artifacts(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for path in folder.glob("*.fsl"):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        if stat.S_ISREG(status.st_mode):
            yield path, status


def _touch(path: Path) -> None:
    try:
        os.utime(path)
    except OSError:
        return


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error)
