"""The tuning store: layers, concurrent writers, kill -9, and files that are not one."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from fissile.errors import FissileWarning, StoreError
from fissile.runtime.statistic import Samples
from fissile.runtime.store import FORMAT, Key, Reject, Row, Store, StoreToRead

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


def many(count: int) -> Samples:
    return Samples(np.ones(count), np.ones(count), np.zeros(count), 2)


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


HALF = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("pragma cache_size = 1")
connection.execute("begin")
for _ in range(500):
    connection.execute("insert into record values ('abc', 'i', 1, 'w', 'e', ?)", ("x" * 1000,))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    "opened", [lambda p: StoreToRead([p]), lambda p: Store([p, p.parent / "mine.db"]), lambda p: Store([p])]
)
def test_what_a_killed_writer_left_half_done_is_taken_back(
    tmp_path: Path, opened: Callable[[Path], Store]
) -> None:
    """Its journal says what there was before; a connection that only reads could not follow it."""
    path = tmp_path / "store.db"
    with Store([path]) as store:
        store.add(KEY, samples(1.0))
    subprocess.run([sys.executable, "-c", HALF, str(path)], check=False, timeout=60)
    assert Path(f"{path}-journal").stat().st_size > 0
    with opened(path) as store:
        assert [r.seconds[0] for r in store.records(KEY)] == [1.0]
        assert len(store.rows()) == 1


def full(connection: sqlite3.Connection) -> None:
    (pages,) = connection.execute("pragma page_count").fetchone()
    connection.execute(f"pragma max_page_count = {pages}")


def locked(connection: sqlite3.Connection) -> None:
    connection.execute("pragma query_only = 1")


@pytest.mark.parametrize(("spoil", "reason"), [(full, "full"), (locked, "readonly")])
def test_a_store_that_takes_no_more_warns_and_goes_on(
    tmp_path: Path, spoil: Callable[[sqlite3.Connection], None], reason: str
) -> None:
    path = tmp_path / "store.db"
    with Store([path]) as store:
        store.add(KEY, samples(1.0))
        spoil(store.layers[-1])
        with pytest.warns(FissileWarning, match=f"{path} cannot be written .*{reason}"):
            store.add_all([(KEY, many(3000)), (KEY, samples(2.0))])
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # said once
            store.keep_notes({"a": "b"})
            store.raise_peak("m", "flops", 1.0)
            store.reject(Reject(KEY, "label", "reason"))
        assert [len(r.seconds) for r in store.records(KEY)] == [2, 3000, 2]
        assert (store.notes(["a"]), store.peak("m", "flops")) == ({"a": "b"}, 1.0)
        assert store.reason(KEY) == "reason"
        with pytest.raises(StoreError, match="F510"):
            store.merge([Row(KEY, "[[1], [1], [1]]")], [])
    with Store([path]) as store:
        assert len(store.records(KEY)) == 1


def test_what_is_added_at_once_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with Store([path]) as store:
        store.add_all([(KEY, samples(1.0)), (KEY, samples(2.0))])
        full(store.layers[-1])
        with pytest.warns(FissileWarning):
            store.add_all([(KEY, samples(3.0)), (KEY, many(9000))])
    with Store([path]) as store:
        assert [r.seconds[0] for r in store.records(KEY)] == [1.0, 2.0]


def test_a_store_that_cannot_be_written_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with Store([path]) as store:
        store.add(KEY, samples(1.0))
        store.layers[-1].execute("pragma user_version = 0")  # as older versions left it
    holder = sqlite3.connect(path)
    holder.execute("begin immediate")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fissile.runtime.store.WAIT_SECONDS", 0.1)
        with pytest.warns(FissileWarning, match="locked"):
            store = Store([path])
    store.add(KEY, samples(2.0))
    assert [r.seconds[0] for r in store.records(KEY)] == [1.0, 2.0]
    store.close()
    holder.close()


def test_an_older_store_gets_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with Store([path]) as store:
        store.add(KEY, samples(1.0))
    with sqlite3.connect(path) as old:
        old.executescript("drop table note; drop table peak; drop table reject; pragma user_version = 0")
    with StoreToRead([path]) as store:
        assert (store.notes(["a"]), store.peak("m", "q"), store.rejects()) == ({}, None, [])
        assert store.stamp()
    with Store([path]) as store:
        store.keep_notes({"a": "b"})
        store.raise_peak("m", "q", 2.0)
    with Store([path, tmp_path / "mine.db"]) as store:
        assert (store.notes(["a"]), store.peak("m", "q")) == ({"a": "b"}, 2.0)
        assert len(store.records(KEY)) == 1


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with Store([path]) as store:
        store.layers[-1].execute(f"pragma user_version = {FORMAT + 1}")
    for paths in ([path], [path, tmp_path / "mine.db"]):
        with pytest.raises(StoreError, match="F513"):
            Store(paths)
    with pytest.raises(StoreError, match="F513"):
        StoreToRead([path])


def test_a_database_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "photos.db"
    with sqlite3.connect(path) as other:
        other.execute("create table photo (name text)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="F511"):
        Store([path])
    assert path.read_bytes() == before


def everything(path: Path) -> None:
    """Ask a store for all it may hold."""
    with Store([path]) as store:
        store.records(KEY)
        store.rows()
        store.rejects()
        store.notes(["a"])
        store.peak("m", "q")


@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_damage_is_named_wherever_it_is(tmp_path: Path, at: int) -> None:
    path = tmp_path / "store.db"
    with Store([path]) as store:
        store.add_all([(KEY, many(200))] * 40)
    good = path.read_bytes()
    path.write_bytes(good[: at * 4096 + 100] + b"\xa5" * 4096 + good[at * 4096 + 4196 :])
    with suppress(StoreError):  # where nothing that is asked for is damaged
        everything(path)
    path.write_bytes(good[: at * 4096 + 100])
    with pytest.raises(StoreError, match="F511") as caught:
        everything(path)
    assert str(path) in str(caught.value)


def test_samples_that_are_none_are_named(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with Store([path]) as store:
        store.add(KEY, samples(1.0))
        for text in ("[1, {", "[[1], [1]]", "[[1], [2], [null, [3]]]", "7"):
            with store.layers[-1] as layer:
                layer.execute("update record set samples = ?", (text,))
            with pytest.raises(StoreError, match="F511"):
                store.records(KEY)


def test_an_empty_layer_and_the_null_device_hold_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Store([tmp_path / "empty.db", "/dev/null"]) as store:
            assert store.name == "in memory"
            store.add(KEY, samples(1.0))
            assert len(store.records(KEY)) == 1
