"""The statistic of every reported time: robust on machines that neighbours share (DESIGN 6).

In: samples of one program, each with wall time, processor time and involuntary switches. Out: the
10th percentile with a bootstrap interval, the median of the clean samples, the share discarded; and
a verdict between two programs. Invariant: a verdict needs an interval that excludes 1, and a busy
machine gives "inconclusive". All functions are pure; resampling is seeded.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Verdict = Literal["faster", "slower", "same", "inconclusive"]
Array = npt.NDArray[np.float64]

STOLEN = 1.05
BUSY_SHARE = 0.5
RESAMPLES = 400
PERCENTILE = 10.0


@dataclass(frozen=True, eq=False)
class Samples:
    """seconds and cpu: per run, one entry per sample; switches: involuntary ones in the sample.

    whole: samples of a whole model, of which none is discarded.
    """

    seconds: Array
    cpu: Array
    switches: Array
    threads: int = 1
    whole: bool = False

    @property
    def disturbed(self) -> npt.NDArray[np.bool_]:
        """Samples during which something else ran on the processor."""
        return (self.switches > 0) | (self.seconds > STOLEN * np.maximum(self.cpu, 1e-12))

    @property
    def clean(self) -> Array:
        """Seconds of the samples that count: for several threads and whole models all do."""
        if self.threads > 1 or self.whole or self.disturbed.all():
            return self.seconds
        return np.asarray(self.seconds[~self.disturbed])


@dataclass(frozen=True)
class Summary:
    """Seconds per run. low and high: 95 % interval of p10. discarded: share of disturbed samples."""

    p10: float
    low: float
    high: float
    median: float
    p90: float
    count: int
    discarded: float


@dataclass(frozen=True)
class Ratio:
    """The other's 10th percentile over ours: above 1 = ours is faster. 95 % interval low to high."""

    ratio: float
    low: float
    high: float
    verdict: Verdict


def summarize(samples: Samples, seed: int = 0) -> Summary:
    """The numbers that are reported; at least one sample."""
    clean = samples.clean
    low, high = np.percentile(_resampled(clean, seed), (2.5, 97.5))
    return Summary(
        float(np.percentile(clean, PERCENTILE)),
        float(low),
        float(high),
        float(np.median(clean)),
        float(np.percentile(clean, 90.0)),
        len(samples.seconds),
        float(samples.disturbed.mean()),
    )


def compare(ours: Samples, other: Samples, seed: int = 0) -> Ratio:
    """Which of two interleaved programs is faster, if that can be said at all."""
    ratios = _resampled(other.clean, seed) / _resampled(ours.clean, seed + 1)
    low, high = (float(x) for x in np.percentile(ratios, (2.5, 97.5)))
    p10 = [float(np.percentile(s.clean, PERCENTILE)) for s in (ours, other)]
    busy = any(
        s.threads == 1 and not s.whole and s.disturbed.mean() > BUSY_SHARE for s in (ours, other)
    )
    verdict: Verdict = "same"
    if busy:
        verdict = "inconclusive"
    elif low > 1.0:
        verdict = "faster"
    elif high < 1.0:
        verdict = "slower"
    return Ratio(p10[1] / p10[0], low, high, verdict)


def _resampled(values: Array, seed: int) -> Array:
    """10th percentiles of bootstrap resamples."""
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(values), (RESAMPLES, len(values)))
    return np.asarray(np.percentile(values[picks], PERCENTILE, axis=1))
