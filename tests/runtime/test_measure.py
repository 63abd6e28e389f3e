"""The measuring child: samples come back, crashes stay inside."""

from pathlib import Path

import pytest

from fissile.errors import CompileError
from fissile.runtime.machine import facts, identity
from fissile.runtime.measure import Request, measure


@pytest.mark.parametrize("threads", [1, 2])
def test_samples_come_back(toys: Path, threads: int) -> None:
    paths = (str(toys / "rows.fsl"), str(toys / "chain.fsl"))
    found = measure(Request(paths, threads, {"n": 50}, samples=4, seconds=1e-4))
    assert [len(samples.seconds) for samples in found] == [4, 4]
    assert all((samples.seconds > 0).all() for samples in found)


def test_cold_runs_are_single(toys: Path) -> None:
    (found,) = measure(Request((str(toys / "rows.fsl"),), shapes={"n": 5}, samples=2, cold=True))
    assert len(found.seconds) == 2


def test_a_dead_child_is_an_error(toys: Path) -> None:
    with pytest.raises(CompileError, match="F411"):
        measure(Request((str(toys / "nowhere.fsl"),)))


def test_facts_are_plain() -> None:
    found = facts()
    assert found["allowed"] >= 1  # type: ignore[operator]
    assert identity().endswith(str(found["target"]))
