"""The measuring child: samples come back, crashes stay inside, and it ends with its caller."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fissile.errors import CompileError
from fissile.runtime.machine import facts, identity
from fissile.runtime.measure import Request, answer_of, measure


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


CALLER = """
import sys
from fissile.runtime.measure import Request, measure
measure(Request((sys.argv[1],), shapes={"n": 5}, samples=100_000, cold=True))
"""
ROOT = Path(__file__).parents[2]


def child_of(pid: int) -> int | None:
    """The number of the one child that measures; None without."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found[0]) if found else None


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_child_ends_when_its_caller_is_killed(toys: Path) -> None:
    """Code that hangs would run on for ever."""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    for wait in (0.0, 1.0):  # while the child starts; while it measures
        caller = subprocess.Popen([sys.executable, "-c", CALLER, str(toys / "rows.fsl")], env=env)
        while (child := child_of(caller.pid)) is None:
            time.sleep(0.01)
        time.sleep(wait)
        caller.send_signal(signal.SIGKILL)
        caller.wait()
        late = time.monotonic() + 30
        while is_running(child):
            assert time.monotonic() < late
            time.sleep(0.05)


def test_a_child_without_an_answer_is_an_error() -> None:
    with pytest.raises(CompileError, match="without an answer"):
        answer_of("this", {}, 60.0, [])
