"""Memory of large outputs, used again once nobody can see it (DESIGN 3.8).

In: shapes and dtypes of an output. Out: arrays like those of `aligned_empty`, whose memory comes back when the last
array, view or export of it is gone; a caller who keeps outputs keeps their memory.
Invariant: a block is lent to one array or idle, never both. At most two blocks per frame are idle, and there are as
many frames as calls were in flight at once lately. There is no lock: blocks come back wherever a last reference dies.
"""

import ctypes
import math
import mmap
import weakref
from collections import deque
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from fissile.runtime.memory import aligned_empty, map_pages

LEAST = 1 << 22  # below, malloc keeps pages itself and is faster
KEPT = 2  # per frame: what a call writes while its caller still has the output of the call before


@dataclass(frozen=True, eq=False)
class _Block:
    """Pages, and the type of the object that stands for a loan of them: it is what arrays have as their base."""

    pages: mmap.mmap
    loan: type[ctypes.Array[Any]]


class Lender:
    """The memory of one output of an executable. frames: those that exist, each good for one call at a time."""

    def __init__(self, frames: Sized) -> None:
        self._frames = frames
        self._idle: deque[_Block] = deque()

    def lend(self, shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, int]:
        """A C-contiguous, writable, uninitialised array on a 64-byte boundary, and its address."""
        size = math.prod(shape) * dtype.itemsize
        if size < LEAST:
            return aligned_empty(shape, dtype, size)
        size = rounded(size)
        block = self._take(size) or _Block(map_pages(size), ctypes.c_char * size)
        loan = block.loan.from_buffer(block.pages)
        # The lender may go before what it has lent, and the pages live as long as the loan.
        weakref.finalize(loan, _give_back, weakref.ref(self), block).atexit = False
        return np.ndarray(shape, dtype, loan), ctypes.addressof(loan)  # type: ignore[arg-type]

    def give_back(self, block: _Block) -> None:
        """Keep a block that nobody sees; the oldest go where there are too many."""
        self._idle.append(block)
        self.trim()

    def trim(self) -> None:
        """Let go of blocks beyond those that the frames are good for."""
        while len(self._idle) > KEPT * len(self._frames):
            try:
                self._idle.popleft()
            except IndexError:
                return

    def _take(self, size: int) -> _Block | None:
        """An idle block of just that size, the one seen last: it may still be in the caches."""
        for _ in range(len(self._idle)):
            try:
                block = self._idle.pop()
            except IndexError:
                return None
            if len(block.pages) != size:
                self._idle.appendleft(block)
            elif _is_unseen(block):
                return block
        return None


def rounded(size: int) -> int:
    """The size of a block: one of eight per power of two, so that near sizes share."""
    step = 1 << max(size.bit_length() - 4, 0)
    return -(-size // step) * step


def _is_unseen(block: _Block) -> bool:
    """Whether no loan exists. One that was garbage in a cycle may have been brought back by a finalizer."""
    try:
        block.pages.resize(len(block.pages))
    except BufferError:
        return False
    return True


def _give_back(lender: weakref.ref[Lender], block: _Block) -> None:
    home = lender()
    if home is not None:
        home.give_back(block)
