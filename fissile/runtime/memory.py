"""Memory the native code works in: aligned words, arenas, output arrays (DESIGN 3.8).

In: sizes in bytes, shapes and dtypes. Out: arrays on 64-byte boundaries, and arenas that only grow.
Invariant: the array returned keeps its memory alive; an arena's pages are touched before a run
uses them, and its content means nothing between runs.
"""

import ctypes
import math
import mmap

import numpy as np
import numpy.typing as npt

from fissile.errors import OutOfMemory

ALIGNMENT = 64
PAGE = 4096
HUGE_PAGE = 1 << 21
LARGE = 1 << 20
GROWTH = 1.5

Words = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def address_of(array: np.ndarray) -> int:
    """The address of the first element of a C-contiguous array.

    `array.ctypes` and the array interface take a microsecond; a writable buffer takes a third.
    """
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        # read-only, empty, or of a type that has no buffer format
        return int(array.__array_interface__["data"][0])


def aligned_words(count: int) -> Words:
    """`count` zeroed int64 on a 64-byte boundary."""
    words: Words = aligned_empty((count,), np.dtype(np.int64))[0]
    words[:] = 0
    return words


def aligned_empty(
    shape: tuple[int, ...], dtype: np.dtype, size: int | None = None
) -> tuple[np.ndarray, int]:
    """A C-contiguous, writable, uninitialised array on a 64-byte boundary, and its address.

    size: its bytes, where known.
    """
    if size is None:
        size = math.prod(shape) * dtype.itemsize
    try:
        raw = np.empty(size + ALIGNMENT, np.uint8)
        address = ctypes.addressof(ctypes.c_char.from_buffer(raw))  # type: ignore[arg-type]
        start = -address % ALIGNMENT
        return np.ndarray(shape, dtype, raw, start), address + start
    except (MemoryError, OverflowError, ValueError) as error:
        raise no_room(size, error) from error


class Arena:
    """Bytes for one caller at a time; `reserve` returns the address of at least that many."""

    def __init__(self) -> None:
        self.size = 0
        self.address = 0
        self.memory: Bytes | None = None

    def extend(self, size: int) -> int:
        """Like `reserve`, but what is there stays; the old memory lives as long as somebody has a view of it."""
        old = self.memory
        if size > self.size and old is not None:
            memory = _pages(max(size, int(self.size * GROWTH)))
            memory[: len(old)] = old
            address, length = address_of(memory), len(memory)
            # Nothing comes between these stores: the address is always that of the memory.
            self.memory, self.address, self.size = memory, address, length
        return self.reserve(size)

    def reserve(self, size: int) -> int:
        """Grow geometrically where `size` does not fit; OutOfMemory F211 if the system has no more."""
        if size > self.size:
            wanted = max(size, int(self.size * GROWTH))
            self.size, self.address, self.memory = 0, 0, None
            self.memory = _pages(wanted)
            self.address = address_of(self.memory)
            self.size = wanted
        return self.address


def _pages(size: int) -> Bytes:
    """Fresh, touched pages; large ones lie in huge ones from the first byte to the last, where the system has them.

    Of ordinary pages some share places in a core's cache: what would fit there otherwise does not.
    """
    if size < LARGE:
        memory = np.frombuffer(map_pages(size), np.uint8)
    else:
        memory = np.frombuffer(map_pages(HUGE_PAGE * (1 + -(-size // HUGE_PAGE))), np.uint8)
        start = -address_of(memory) % HUGE_PAGE
        memory = memory[start : start + size]
    memory[::PAGE] = 0
    return memory


def map_pages(size: int) -> mmap.mmap:
    """Fresh private pages, in huge ones where the system has them; OutOfMemory F211 if it has no more."""
    try:
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise no_room(size, error) from error
    if size >= LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        _advise_huge(mapping)
    return mapping


def no_room(size: int, error: Exception) -> OutOfMemory:
    """F211 for `size` bytes that are not to be had."""
    reason = getattr(error, "strerror", None) or str(error)
    return OutOfMemory(
        "F211", f"the system has no {size} bytes", reason=reason, remedy="feed smaller arrays"
    )


def _advise_huge(mapping: mmap.mmap) -> None:
    try:
        mapping.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        # A kernel without transparent huge pages: ordinary ones do.
        return


def check_limit(limit: int | None, weights: int, arena: int, scratch: int) -> None:
    """OutOfMemory F213 where weights, arena and scratch (of all threads), in bytes, are more than `limit`."""
    total = weights + arena + scratch
    if limit is not None and total > limit:
        raise OutOfMemory(
            "F213",
            f"{total} bytes of memory are needed, and max_memory allows {limit}",
            reason=f"weights {weights}, arena {arena}, scratch of all threads {scratch}",
            remedy=["use smaller shapes", f"--max-memory {total}", f"Options(max_memory={total})"],
        )
