"""Measurements are made once, kept per batch, and what cannot run is rejected with its reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fissile.errors import CompileError
from fissile.ir.dim import symbol
from fissile.ir.graph import data, make
from fissile.ir.primitive import INPUT, PRIMITIVES
from fissile.options import resolve_target
from fissile.orchestrate.plan import Kernel
from fissile.runtime.statistic import Samples
from fissile.runtime.store import Store
from fissile.schedule.lower import form
from fissile.tune import trial
from fissile.tune.measure import (
    OutOfTime,
    Setting,
    Tally,
    known_before,
    known_beside,
    recalled,
    seconds_of,
)
from tests.tune.test_trial import TARGET, WARM, last, product, rows

SETTING = Setting(TARGET, 1, {"n": 2}, WARM, lambda kernel: 1e-4, samples=3)
V3 = replace(resolve_target("x86-64-v3"), l2=1 << 18)
KERNELS = [product(7), product(9), last(make(PRIMITIVES["exp"], rows(3)))]


class Clock:
    """A timer that says what it is told, and counts. broken: a kernel that a signal ends, `fails` times alone."""

    def __init__(self, seconds: float = 1.0, broken: int = -1, fails: int = 2) -> None:
        self.seconds, self.broken, self.fails, self.calls = seconds, broken, fails, list[int]()

    def __call__(self, paths: Sequence[str], samples: int, limit: float) -> list[Samples]:
        self.calls.append(len(paths))
        assert all(Path(path).exists() for path in paths)
        if len(paths) > 1 and self.broken >= 0:
            raise CompileError("F411", "measuring failed", reason="ended by SIGSEGV")
        alone = self.calls.count(1) - 1
        if self.broken >= 0 and len(paths) == 1 and 0 <= alone - self.broken < self.fails:
            raise CompileError("F411", "measuring failed", reason="ended by SIGSEGV")
        one = np.full(samples, self.seconds)
        return [Samples(one, one, 0 * one) for _ in paths]


def test_what_is_known_is_not_measured_again(tmp_path: Path) -> None:
    clock, tally = Clock(), Tally()
    with Store([tmp_path / "s.db"]) as store:
        first = seconds_of(KERNELS, SETTING, store, tally, timed=clock)
        again = seconds_of([*KERNELS[::-1], product(7, seed=3)], SETTING, store, tally, timed=clock)
        more = seconds_of(KERNELS[:1], SETTING, store, tally, times=4, timed=clock)
    assert clock.calls == [3, 1]
    assert (tally.measured, tally.remembered) == (4, 4)
    assert first == again[2::-1] == [pytest.approx(0.0625)] * 3  # sixteen launches a run
    assert again[3] == first[0]
    assert more == first[:1]


def test_what_is_known_is_not_lowered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trials(*_: object) -> object:
        raise AssertionError("the store remembers their hashes")

    with Store([tmp_path / "s.db"]) as store:
        assert known_before(KERNELS, SETTING, store, Tally()) == [None] * 3
        first = seconds_of(KERNELS[:2], SETTING, store, Tally(), timed=Clock())
        monkeypatch.setattr("fissile.tune.measure.trials", trials)
        assert known_before(KERNELS, SETTING, store, Tally()) == [*first, None]
        assert seconds_of(KERNELS[:2], SETTING, store, Tally()) == first
        assert recalled(KERNELS[:2], SETTING, store) == first
        other = replace(SETTING, threads=2)
        assert known_before(KERNELS, other, store, Tally()) == [None] * 3


def test_kernels_of_one_code_share_what_is_measured_later(tmp_path: Path) -> None:
    tally, others = Tally(), [KERNELS[1], product(7, seed=3)]
    with Store([tmp_path / "s.db"]) as store:
        seconds_of(KERNELS, SETTING, store, tally, timed=Clock(2.0))
        known_before(others, SETTING, store, tally)
        (faster,) = seconds_of(KERNELS[:1], SETTING, store, tally, times=4, timed=Clock(1.0))
        assert known_beside(KERNELS[:1], others, SETTING, store, tally) == [None, faster]
        assert known_beside([], others, SETTING, store, tally) == [None, None]


def test_a_hash_is_noted_under_all_that_decides_about_it() -> None:
    at_least = make(INPUT, name="x", dtype="float32", shape=(symbol("n", 4), 3))
    kernels = [*KERNELS, product(7, seed=3), last(make(PRIMITIVES["exp"], at_least))]
    names = [SETTING.name(kernel) for kernel in kernels]
    assert names[0] == names[3]  # other values alone
    assert len(set(names)) == 4
    padded = last(make(PRIMITIVES["pad"], rows(3), low=(1, 0), high=(0, 0), value=data(np.zeros((), np.float32))))
    assert "0x7" not in repr(form(padded)[0])  # no address: another process gives the same name
    longer, other = replace(SETTING, numbers={"n": 3}), replace(SETTING, target=V3)
    assert longer.name(KERNELS[2]) != names[2] != other.name(KERNELS[2])


@pytest.mark.parametrize("broken", [0, 2])
def test_a_crash_costs_its_kernel_alone(tmp_path: Path, broken: int) -> None:
    clock, tally = Clock(broken=broken), Tally()
    with Store([tmp_path / "s.db"]) as store:
        found = seconds_of(KERNELS, SETTING, store, tally, timed=clock)
        (reject,) = store.rejects()
        again = seconds_of(KERNELS, SETTING, store, Tally(), timed=Clock())
    assert clock.calls == [3, *[1] * broken, 1, 0, 1, *[1] * (2 - broken)]
    assert [math.isinf(s) for s in found] == [k == broken for k in range(3)]
    assert again == found
    assert reject.reason == "ended by SIGSEGV"
    assert [*tally.rejected.values()] == [reject.reason]


def test_a_child_that_is_killed_once_costs_nothing(tmp_path: Path) -> None:
    clock = Clock(broken=1, fails=1)
    with Store([tmp_path / "s.db"]) as store:
        found = seconds_of(KERNELS, SETTING, store, Tally(), timed=clock)
        assert store.rejects() == []
    assert clock.calls == [3, 1, 1, 0, 1, 1]
    assert not any(map(math.isinf, found))


def test_no_kernel_is_to_blame_where_the_child_cannot_run_at_all(tmp_path: Path) -> None:
    def timed(paths: Sequence[str], samples: int, limit: float) -> list[Samples]:
        raise CompileError("F411", "measuring failed", reason="ImportError: numpy")

    with Store([tmp_path / "s.db"]) as store:
        with pytest.raises(CompileError, match="measuring failed"):
            seconds_of(KERNELS, SETTING, store, Tally(), timed=timed)
        assert store.rejects() == []
        assert store.rows() == []


def test_what_cannot_be_lowered_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trials(kernels: Sequence[Kernel], *rest: object) -> object:
        if KERNELS[1] in kernels:
            raise ValueError("no such loop")
        return trial.trials(kernels, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("fissile.tune.measure.trials", trials)
    with Store([tmp_path / "s.db"]) as store:
        found = seconds_of(KERNELS, SETTING, store, Tally(), timed=Clock())
        assert "no such loop" in store.rejects()[0].reason
    assert [math.isinf(s) for s in found] == [False, True, False]


def test_nothing_is_measured_after_the_deadline(tmp_path: Path) -> None:
    late = replace(SETTING, deadline=0.0)
    with Store([tmp_path / "s.db"]) as store:
        seconds_of(KERNELS[:1], SETTING, store, Tally(), timed=Clock())
        assert seconds_of(KERNELS[:1], late, store, Tally()) == [pytest.approx(0.0625)]
        with pytest.raises(OutOfTime):
            seconds_of(KERNELS, late, store, Tally())


def test_a_kernel_is_measured_in_the_child(tmp_path: Path) -> None:
    with Store([tmp_path / "s.db"]) as store:
        (seconds,) = seconds_of([product(40)], SETTING, store, Tally())
    assert 0 < seconds < 1e-3
