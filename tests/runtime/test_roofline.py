"""Bounds of launches: which level, which limit, and that they only grow with the work."""

from hypothesis import given
from hypothesis import strategies as st

from fissile.runtime.roofline import Peaks, bound, level_of

PEAKS = Peaks(
    100e9,
    {"l1": 200e9, "l2": 100e9, "l3": 50e9, "memory": 10e9},
    {"l1": 32_000, "l2": 1_000_000, "l3": 32_000_000},
)
sizes = st.integers(0, 10**9)


def test_levels() -> None:
    assert [level_of(n, PEAKS, 1) for n in (0, 32_001, 1_000_001, 32_000_001)] == [
        "l1", "l2", "l3", "memory",
    ]  # fmt: skip
    assert level_of(60_000, PEAKS, 2) == "l1"
    assert level_of(40_000_000, PEAKS, 64) == "l2"


def test_what_limits() -> None:
    assert bound(0, 20_000, 10_000_000, 0, PEAKS, 1).limit == "compute"
    assert bound(0, 20_000, 1, 0, PEAKS, 1).limit == "l1"
    cold = bound(20_000, 2_000, 1, 10**9, PEAKS, 1)
    assert cold.limit == "memory"
    assert cold.seconds > bound(20_000, 2_000, 1, 10**6, PEAKS, 1).seconds


@given(sizes, sizes, sizes, sizes, sizes, st.integers(1, 8))
def test_more_work_takes_no_less(
    constants: int, moved: int, operations: int, more: int, weights: int, threads: int
) -> None:
    least = bound(constants, moved, operations, weights, PEAKS, threads).seconds
    assert bound(constants, moved, operations + more, weights, PEAKS, threads).seconds >= least
    assert bound(constants, moved + more, operations, weights, PEAKS, threads).seconds >= least
    assert bound(constants, moved, operations, weights, PEAKS, threads + 1).seconds <= least
