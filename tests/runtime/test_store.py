"""The tuning store: layers, concurrent writers, kill -9, and files that are not one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fissile.errors import FissileWarning, StoreError
from fissile.runtime.statistic import Samples
from fissile.runtime.store import Key, Store

KEY = Key("abc", "x86-64-v3", 2, "warm", "default")
ROOT = Path(__file__).parents[2]
WRITER = """
import sys
import numpy as np
from fissile.runtime.statistic import Samples
from fissile.runtime.store import Key, Store
one = np.ones(2)
with Store([sys.argv[1]]) as store:
    for i in range(int(sys.argv[2])):
        store.add(Key("abc", "x86-64-v3", 2, "warm", "default"), Samples(one, one, one))
        print(i, flush=True)
"""


def samples(value: float) -> Samples:
    return Samples(np.array([value, 2.5]), np.array([1.0, 2.0]), np.array([0.0, 3.0]), 2)


def writer(path: Path, count: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, str(path), str(count)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def test_records_come_back_in_order_and_by_key(tmp_path: Path) -> None:
    with Store([tmp_path / "deep" / "store.db"]) as store:
        store.add(KEY, samples(1.5))
        store.add(KEY, samples(0.1))
        assert store.records(Key("abc", "x86-64-v3", 1, "warm", "default")) == []
        first, second = store.records(KEY)
    assert (first.seconds[0], second.seconds[0]) == (1.5, 0.1)
    assert first.switches.tolist() == [0.0, 3.0]


def test_only_the_last_layer_is_written(tmp_path: Path) -> None:
    team, mine = tmp_path / "team.db", tmp_path / "mine.db"
    with Store([team]) as store:
        store.add(KEY, samples(1.0))
        store.raise_peak("m", "flops.float32", 5.0)
    before = team.read_bytes()
    with Store([tmp_path / "absent.db", team, mine]) as store:
        store.add(KEY, samples(2.0))
        store.raise_peak("m", "flops.float32", 4.0)
        store.raise_peak("m", "flops.float32", 3.0)
        assert [r.seconds[0] for r in store.records(KEY)] == [1.0, 2.0]
        assert store.peak("m", "flops.float32") == 5.0
        assert store.peak("m", "bytes.l2") is None
    assert team.read_bytes() == before
    with Store([mine]) as store:
        assert store.peak("m", "flops.float32") == 4.0


def test_two_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    for process in [writer(path, 25) for _ in range(2)]:
        process.communicate(timeout=60)
        assert process.returncode == 0
    with Store([path]) as store:
        assert len(store.records(KEY)) == 50


def test_a_killed_writer_leaves_all_that_it_reported(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    process = writer(path, 100_000)
    assert process.stdout is not None
    time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    reported = len(process.stdout.read().splitlines())
    process.wait(timeout=30)
    with Store([path]) as store:
        assert len(store.records(KEY)) >= reported
        store.add(KEY, samples(1.0))


def test_a_store_that_cannot_be_written_warns_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.warns(FissileWarning, match="in memory"):
        store = Store([tmp_path / "file" / "store.db"])
    store.add(KEY, samples(1.0))
    assert len(store.records(KEY)) == 1
    store.close()


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreError, match="F511"):
        Store([path])
