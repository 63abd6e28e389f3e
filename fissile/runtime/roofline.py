"""The least time a launch can take on a machine whose peaks are known (DESIGN 3.4).

In: bytes and operations of a launch, measured peaks. Out: seconds. Invariant: a bound, not a prediction:
each byte once, from the nearest cache that could hold the launch's tensors, at the highest rate ever
measured; weights come from memory when the model's do not fit into the last cache.
"""

from collections.abc import Mapping
from dataclasses import dataclass

LEVELS = ("l1", "l2", "l3", "memory")


@dataclass(frozen=True)
class Peaks:
    """operations: float32 per second of one core. bytes: per second of one core, by level. sizes: of caches."""

    operations: float
    bytes: Mapping[str, float]
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Bound:
    """seconds at least, and what limits: "compute" or the level of the memory."""

    seconds: float
    limit: str


def level_of(size: int, peaks: Peaks, threads: int) -> str:
    """The nearest level that holds `size` bytes shared out among `threads`."""
    for level in ("l1", "l2"):
        if size <= peaks.sizes[level] * threads:
            return level
    return "l3" if size <= peaks.sizes["l3"] else "memory"


def bound(
    constants: int, moved: int, operations: int, weights: int, peaks: Peaks, threads: int
) -> Bound:
    """The bound of a launch that reads `constants` bytes of weights and moves `moved` others.

    weights: bytes of all weights of the model.
    """
    near = level_of(constants + moved, peaks, threads)
    far = near if weights <= peaks.sizes["l3"] else "memory"
    rate = {level: peaks.bytes[level] * threads for level in LEVELS}
    moving = moved / rate[near] + constants / rate[far]
    computing = operations / (peaks.operations * threads)
    if computing >= moving:
        return Bound(computing, "compute")
    return Bound(moving, far if constants / rate[far] > moved / rate[near] else near)
