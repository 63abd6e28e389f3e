"""The statistic on drawn samples: what it discards, and when it dares a verdict."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fissile.runtime.statistic import Samples, compare, summarize


def drawn(scale: float, seed: int, count: int = 60, threads: int = 1) -> Samples:
    rng = np.random.default_rng(seed)
    seconds = scale * (1 + 0.02 * rng.random(count))
    return Samples(seconds, seconds / 1.01, np.zeros(count), threads)


@given(st.integers(0, 1000), st.floats(1e-6, 1.0))
def test_the_interval_contains_the_percentile(seed: int, scale: float) -> None:
    s = summarize(drawn(scale, seed))
    assert s.low <= s.p10 <= s.high
    assert s.p10 <= s.median <= s.p90
    assert s.discarded == 0


def test_disturbed_samples_do_not_count() -> None:
    quiet = drawn(1.0, 3)
    stolen = Samples(
        np.append(quiet.seconds, [9.0, 5.0]),
        np.append(quiet.cpu, [1.0, 5.0]),
        np.append(quiet.switches, [0.0, 1.0]),
    )
    assert summarize(stolen).p90 == summarize(quiet).p90
    assert summarize(stolen).discarded == pytest.approx(2 / 62)
    everybody = Samples(stolen.seconds, stolen.cpu, stolen.switches, threads=2)
    assert len(everybody.clean) == 62


@pytest.mark.parametrize(
    ("scale", "verdict"), [(1.03, "faster"), (0.97, "slower"), (1.0, "same"), (1.0001, "same")]
)
def test_verdicts(scale: float, verdict: str) -> None:
    result = compare(drawn(1.0, 1), drawn(scale, 2))
    assert result.verdict == verdict
    assert result.low <= result.ratio <= result.high


def test_a_busy_machine_is_inconclusive() -> None:
    busy = drawn(2.0, 5)
    busy = Samples(busy.seconds, busy.cpu / 2, busy.switches)
    assert compare(drawn(1.0, 4), busy).verdict == "inconclusive"
