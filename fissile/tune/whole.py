"""Whole models timed against each other, and which of them is kept (PRODUCT 2.4, DESIGN 6).

In: artifacts by path. Out: seconds of each, and the number of the one to install. They run in turns in one child, in
random order. Invariant: one that is slower than the artifact it would replace is never chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fissile.runtime.measure import Request, measure
from fissile.runtime.statistic import Ratio, Samples, compare, summarize

ROUNDS = 20
LIMIT_SECONDS = 300.0


@dataclass(frozen=True)
class Whole:
    """Seconds (10th percentile) and median of an artifact, and its ratio to the first one: above 1 = faster."""

    seconds: float
    median: float
    ratio: Ratio


def time_whole(
    paths: Sequence[Path], threads: int, numbers: Mapping[str, int], rounds: int = ROUNDS
) -> list[Whole]:
    """Every artifact `rounds` times, interleaved. CompileError F411 when one of them dies."""
    request = Request(tuple(map(str, paths)), threads, dict(numbers), samples=rounds, seconds=1e-3)
    found = [replace(samples, whole=True) for samples in measure(request, LIMIT_SECONDS)]
    return [_whole(samples, found[0]) for samples in found]


def keep(found: Sequence[Whole]) -> int:
    """The number of the artifact to keep; the first is what is there now, and stays unless one is surely no slower."""
    best = min(range(len(found)), key=lambda k: found[k].seconds)
    return best if found[best].ratio.verdict != "slower" else 0


def _whole(samples: Samples, first: Samples) -> Whole:
    summary = summarize(samples)
    return Whole(summary.p10, summary.median, compare(samples, first))
