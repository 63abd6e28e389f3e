"""Whole models timed against each other, and which of them is kept (PRODUCT 2.4, DESIGN 6).

In: artifacts by path. Out: seconds of each, also by launch, and the number of the one to install. They run in turns in
one child, in random order. Invariant: one that is slower than the artifact it would replace is never chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fissile.runtime.measure import Request, Stamped, measure_whole
from fissile.runtime.statistic import Ratio, Samples, compare, summarize

FEWEST, MOST = 20, 200  # runs of each
SECONDS = 1.5  # that each runs at least, unless it has had the most runs
LONG_SECONDS = 120.0  # that all together run: of slow models there are fewer runs, SLOWEST of each
SLOWEST = 5
TRIED = 3  # runs after which it is known how many there should be
LIMIT_SECONDS = 300.0  # for one artifact, before it is known how long a run takes
LATE = 4.0  # how many times longer than expected all may take


@dataclass(frozen=True)
class Whole:
    """Seconds (10th percentile) and median of an artifact, and its ratio to the first one: above 1 = faster.

    launches: of every launch of its plan, seconds in each run by its own time stamps; none where Python is called.
    """

    seconds: float
    median: float
    ratio: Ratio
    launches: tuple[tuple[float, ...], ...] = ()

    @property
    def launches_seconds(self) -> float | None:
        """The 10th percentile of the sums over the launches of a run; None without time stamps.

        Not the sum of percentiles: where a thread wakes late, one launch waits and those after it find their work done.
        """
        return float(np.percentile(np.sum(self.launches, axis=0), 10)) if self.launches else None


def time_whole(
    paths: Sequence[Path], threads: int, numbers: Mapping[str, int], rounds: int | None = None
) -> list[Whole]:
    """Every artifact `rounds` times, interleaved (None: short ones more often). CompileError F411 when one dies."""
    request = Request(tuple(map(str, paths)), threads, dict(numbers), samples=rounds or TRIED)
    found = measure_whole(request, LIMIT_SECONDS * len(paths))
    if rounds is None:
        seconds = [max(float(np.median(row.samples.seconds)), 1e-6) for row in found]
        wanted = runs_of(seconds)
        limit = LIMIT_SECONDS + LATE * wanted * sum(seconds)
        found = measure_whole(replace(request, samples=wanted), limit)
    return [_whole(row, found[0].samples) for row in found]


def runs_of(seconds: Sequence[float]) -> int:
    """How often artifacts run whose single runs take so long."""
    wanted = min(MOST, max(FEWEST, round(SECONDS / min(seconds))))
    return min(wanted, max(SLOWEST, round(LONG_SECONDS / sum(seconds))))


def keep(found: Sequence[Whole]) -> int:
    """The number of the artifact to keep; the first is what is there now, and stays unless one is surely no slower."""
    best = min(range(len(found)), key=lambda k: found[k].seconds)
    return best if found[best].ratio.verdict != "slower" else 0


def _whole(row: Stamped, first: Samples) -> Whole:
    summary = summarize(row.samples)
    launches = tuple(map(tuple, row.launches.T.tolist()))
    return Whole(summary.p10, summary.median, compare(row.samples, first), launches)
