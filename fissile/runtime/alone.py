"""A kernel timed alone finds memory as in a network: what it reads has just been written, constants are far away.

In: an artifact of one kernel (`fissile.tune.trial`) and its arrays. Out: where these lie, and samples of the
launches that count, by their own time stamps. Invariant: what is not the kernel itself is not counted: the launches
that write its tensors before it, waking the threads, Python (DESIGN 3.4, 6).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fissile.runtime.memory import ALIGNMENT, Arena, aligned_empty
from fissile.runtime.plan import TensorInfo
from fissile.runtime.profile import launch_seconds

KEY = "alone"  # of the manifest
LINE_WORDS = 8  # of 64 bits, in a cache line


@dataclass(frozen=True)
class Alone:
    """timed: numbers of the launches that count. constants: how many inputs, the first ones, no kernel writes.

    far: bytes that a run of the model touches between two launches that touch the same one of these.
    """

    timed: tuple[int, ...]
    constants: int
    far: int

    def seconds(self, stamps: npt.NDArray[np.int64], ticks: float) -> float:
        """Seconds of all launches that count, from the stamps [2 * launch] of one run."""
        return float(launch_seconds(stamps[None], ticks)[0, list(self.timed)].sum())


def alone_of(manifest: Mapping[str, Any]) -> Alone | None:
    """What the manifest says; None for whole models."""
    found = manifest.get(KEY)
    if found is None:
        return None
    return Alone(tuple(found["timed"]), int(found["constants"]), int(found["far"]))


def placed(
    arrays: Sequence[np.ndarray], outputs: Sequence[tuple[tuple[int, ...], TensorInfo]], constants: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs and outputs where the runtime would put them: constants in ordinary pages, all else in one arena."""
    shapes = [(a.shape, a.dtype) for a in arrays[constants:]] + [(s, i.dtype) for s, i in outputs]
    sizes = [-(-math.prod(s) * d.itemsize // ALIGNMENT) * ALIGNMENT for s, d in shapes]
    arena = Arena()
    arena.reserve(sum(sizes) + ALIGNMENT)
    places = np.cumsum([0, *sizes])
    inside = [
        np.ndarray(s, d, arena.memory, int(at)) for (s, d), at in zip(shapes, places[:-1], strict=True)
    ]
    moved = [aligned_empty(a.shape, a.dtype)[0] for a in arrays[:constants]]
    moved += inside[: len(arrays) - constants]
    for to, array in zip(moved, arrays, strict=True):
        to[...] = array
    return moved, inside[len(arrays) - constants :]


def touch(array: np.ndarray) -> None:
    """Read a part of every cache line."""
    lines = array.reshape(-1).view(np.uint8)
    words = lines[: len(lines) // 8 * 8].view(np.int64)[::LINE_WORDS]
    if len(words):
        words.max()


def touch_far(constants: Sequence[np.ndarray], others: np.ndarray, far: int) -> None:
    """Touch what the kernel will read of constants, then others [bytes]: `far` bytes in all, if there are so many."""
    for array in constants:
        touch(array)
    touch(others[: max(0, far - sum(array.nbytes for array in constants))])
