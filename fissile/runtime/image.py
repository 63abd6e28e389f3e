"""Code in memory: an image mapped readable and executable, and its entries as functions.

In: the code member of an artifact. Out: an `Image` whose entries can be called through ctypes.
Invariant: no page is ever writable and executable; where the file cannot be mapped for execution
(noexec, or no file) the code is copied to anonymous memory first (DESIGN 3.8).
"""

import ctypes
import mmap
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fissile.errors import ArtifactError, FissileWarning
from fissile.files import kind_of, stranger
from fissile.options import environment
from fissile.runtime.artifact import Artifact
from fissile.runtime.memory import address_of

_LIBC = ctypes.CDLL(None, use_errno=True)
_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_CALL2 = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_CYCLES = ctypes.CFUNCTYPE(ctypes.c_uint64)


@dataclass(frozen=True, eq=False)
class Image:
    """Mapped code. `entries[name]` is an address; it is valid while `memory` is referenced.

    run(context), bind(symbols, slots), worker(gang), stop(gang) take addresses; cycles() returns
    the processor's time-stamp counter.
    """

    memory: object
    entries: Mapping[str, int]
    run: Callable[[int], None]
    bind: Callable[[int, int], None]
    worker: Callable[[int], None]
    stop: Callable[[int], None]
    cycles: Callable[[], int]


def map_image(artifact: Artifact, member: str, offsets: Mapping[str, int]) -> Image:
    """Map the code member; ArtifactError if an entry lies outside of it or is missing."""
    code = artifact.member(member)
    wanted = ("fissile_run", "fissile_bind", "fissile_worker", "fissile_stop", "fissile_cycles")
    bad = [n for n, offset in offsets.items() if not 0 <= offset < len(code)]
    bad += [name for name in wanted if name not in offsets]
    if bad:
        raise ArtifactError("F104", "the plan names code that is not there", where=bad)
    memory = _map_file(artifact, member) or _map_copy(code)
    base = address_of(np.frombuffer(memory, np.uint8))
    entries = {name: base + offset for name, offset in offsets.items()}
    if environment().perf_map:
        _tell_perf(entries, base + len(code))
    return Image(
        memory,
        entries,
        _CALL(entries["fissile_run"]),
        _CALL2(entries["fissile_bind"]),
        _CALL(entries["fissile_worker"]),
        _CALL(entries["fissile_stop"]),
        _CYCLES(entries["fissile_cycles"]),
    )


def _tell_perf(entries: Mapping[str, int], end: int) -> None:
    """Name the code for Linux perf, which looks for a line `start size name` (hexadecimal) per symbol."""
    starts = sorted((address, name) for name, address in entries.items())
    ends = [address for address, _ in starts[1:]] + [end]
    lines = [f"{a:x} {e - a:x} {name}\n" for (a, name), e in zip(starts, ends, strict=True)]
    path = f"/tmp/perf-{os.getpid()}.map"
    # everybody may write to /tmp, so that somebody else's link or file could be in the map's place
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(path, flags, 0o600), "a", encoding="ascii") as file:
            status = os.fstat(file.fileno())
            problem = kind_of(status) or stranger(status)
            if not problem:
                file.writelines(lines)
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        warnings.warn(f"perf is not told the kernels: {path}: {problem}", FissileWarning, 2)


def syscall_address() -> int:
    """The address of libc's `syscall`, through which the gang reaches the futex."""
    return ctypes.cast(_LIBC.syscall, ctypes.c_void_p).value or 0


def _map_file(artifact: Artifact, member: str) -> mmap.mmap | None:
    if artifact.path is None or artifact.status is None:
        return None
    offset, size = artifact.spans[member]
    if offset % mmap.ALLOCATIONGRANULARITY:
        return None
    try:
        with open(artifact.path, "rb") as stream:
            if not os.path.samestat(os.fstat(stream.fileno()), artifact.status):
                return None
            protection = mmap.PROT_READ | mmap.PROT_EXEC
            return mmap.mmap(
                stream.fileno(), size, flags=mmap.MAP_PRIVATE, prot=protection, offset=offset
            )
    except OSError:
        # The file system is mounted noexec, or the file has gone: the copy does as well.
        return None


def _map_copy(code: memoryview) -> mmap.mmap:
    memory = mmap.mmap(-1, len(code), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = code
    address = address_of(np.frombuffer(memory, np.uint8))
    protection = mmap.PROT_READ | mmap.PROT_EXEC
    size = ctypes.c_size_t(len(code))
    if _LIBC.mprotect(ctypes.c_void_p(address), size, protection) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise ArtifactError("F105", "this system does not let a process load code", reason=reason)
    return memory
