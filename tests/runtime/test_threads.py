"""Thread counts from affinity, quota and environment; the gang's queue; forks; many callers."""

from pathlib import Path
from typing import Any

import pytest

from fissile.runtime import threads as module
from fissile.runtime.threads import allowed_cpus, cgroup_quota, default_threads


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_quota_of_cgroup_v2_is_the_tightest_on_the_way_up(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/a/b\n")
    write(tmp_path / "fs/cpu.max", "max 100000\n")
    assert cgroup_quota(tmp_path / "proc", tmp_path / "fs") is None
    write(tmp_path / "fs/a/cpu.max", "150000 100000\n")
    write(tmp_path / "fs/a/b/cpu.max", "400000 100000\n")
    assert cgroup_quota(tmp_path / "proc", tmp_path / "fs") == 1.5


def test_quota_inside_a_container_is_at_the_root(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/docker/0123\n")
    write(tmp_path / "fs/cpu.max", "250000 100000\n")
    assert cgroup_quota(tmp_path / "proc", tmp_path / "fs") == 2.5


def test_quota_of_cgroup_v1(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "5:cpu,cpuacct:/a\n2:memory:/a\n")
    write(tmp_path / "fs/cpu/a/cpu.cfs_quota_us", "-1\n")
    write(tmp_path / "fs/cpu/a/cpu.cfs_period_us", "100000\n")
    assert cgroup_quota(tmp_path / "proc", tmp_path / "fs") is None
    write(tmp_path / "fs/cpu/a/cpu.cfs_quota_us", "300000\n")
    assert cgroup_quota(tmp_path / "proc", tmp_path / "fs") == 3.0
    assert cgroup_quota(tmp_path / "nowhere", tmp_path / "fs") is None


def test_a_quota_rounds_down_but_leaves_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_affinity", lambda: {0, 1, 2, 3})
    for quota, cpus in ((None, 4), (2.9, 2), (0.5, 1), (64.0, 4)):
        monkeypatch.setattr(module, "cgroup_quota", lambda quota=quota: quota)
        assert allowed_cpus() == cpus


def test_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FISSILE_NUM_THREADS", "3")
    assert default_threads() == 3
    monkeypatch.delenv("FISSILE_NUM_THREADS")
    monkeypatch.setenv("OMP_NUM_THREADS", "5,2")
    assert default_threads() == 5


def test_barriers_hold_at_every_thread_count(child: Any) -> None:
    text = """
rng = np.random.default_rng(0)
wrong = []
for threads in (1, 2, 3, 5):
    exe = load(TOYS + "/chain.fsl", threads=threads)
    for n in (1, 2, 3, 7, 64, 1001, 0, 2):
        for _ in range(4):
            a = rng.integers(-9, 9, n)
            if not np.array_equal(exe.run({"a": a})["b"], chain(a)):
                wrong.append((threads, n))
answer(wrong)
"""
    assert child(text) == []


def test_nothing_starts_before_the_first_run(child: Any) -> None:
    text = """
import threading
counts = [threading.active_count()]
one = load(TOYS + "/rows.fsl", threads=1)
two = load(TOYS + "/rows.fsl", threads=2)
counts.append(threading.active_count())
one.run(rows_feeds(50)); two.run(rows_feeds(1))
counts.append(threading.active_count())
two.run(rows_feeds(50)); load(TOYS + "/chain.fsl", threads=2).run({"a": np.arange(9)})
counts.append(threading.active_count())
answer(counts)
"""
    assert child(text) == [1, 1, 1, 2]


def test_eight_callers_share_one_gang(child: Any) -> None:
    text = """
import threading
right = []
exes = [load(TOYS + "/rows.fsl", threads=t, busy=b)
        for t, b in ((1, "wait"), (2, "wait"), (3, "solo"), (2, "solo"))]
chains = [load(TOYS + "/chain.fsl", threads=t) for t in (1, 2)]


def caller(seed):
    rng = np.random.default_rng(seed)
    for k in range(40):
        feeds = rows_feeds(int(rng.integers(0, 90)), seed + k)
        ok = rows_right(feeds, exes[k % 4].run(feeds))
        a = rng.integers(-9, 9, int(rng.integers(1, 40)))
        right.append(ok and np.array_equal(chains[k % 2].run({"a": a})["b"], chain(a)))


threads = [threading.Thread(target=caller, args=(100 * i,)) for i in range(8)]
for t in threads: t.start()
for t in threads: t.join()
answer([len(right), bool(all(right)), threading.active_count()])
"""
    count, right, threads = child(text)
    assert (count, right) == (320, True)
    assert threads <= 3, "one gang of at most three serves all"


def test_waiting_callers_are_served_in_order(child: Any) -> None:
    text = """
import threading, time
from fissile.runtime.hold import Hold
from fissile.runtime.threads import gang
exe = load(TOYS + "/rows.fsl", threads=2)
exe.run(rows_feeds(20))
crew = gang(exe.program.image)
first = Hold()
crew.acquire(first, 2, "wait")
first.thread = 0  # not this one, which would be a call inside a call
order = []


def wait(i):
    mine = Hold()
    crew.acquire(mine, 2, "wait")
    order.append(i)
    crew.release(mine)


for i in range(5):
    threading.Thread(target=wait, args=(i,)).start()
    while len(crew.queue) != i + 1: time.sleep(0.001)
error = load(TOYS + "/rows.fsl", threads=2, busy="error")
solo = load(TOYS + "/rows.fsl", threads=2, busy="solo")
feeds = rows_feeds(20)
solo_right = rows_right(feeds, solo.run(feeds))
tiny_right = rows_right(rows_feeds(1), error.run(rows_feeds(1)))
try:
    error.run(feeds)
except RuntimeError as problem:
    code = problem.code
crew.release(first)
while len(order) < 5: time.sleep(0.001)
answer([order, solo_right, tiny_right, code, rows_right(feeds, error.run(feeds))])
"""
    assert child(text) == [[0, 1, 2, 3, 4], True, True, "F701", True]


def test_a_forked_child_starts_its_own_gang(child: Any) -> None:
    text = """
import threading, warnings
warnings.simplefilter("ignore")
exe = load(TOYS + "/chain.fsl", threads=2)
a = np.arange(30)
want = chain(a)
exe.run({"a": a})
pids = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        good = np.array_equal(exe.run({"a": a})["b"], want) and threading.active_count() == 2
        os._exit(0 if good else 1)
    pids.append(pid)
statuses = [os.waitpid(pid, 0)[1] for pid in pids]
answer([statuses, bool(np.array_equal(exe.run({"a": a})["b"], want))])
"""
    assert child(text) == [[0, 0, 0], True]


def test_workers_block_signals_and_can_be_sent_home(child: Any) -> None:
    text = """
import threading
from fissile.runtime.threads import gang
exe = load(TOYS + "/rows.fsl", threads=3)
feeds = rows_feeds(30)
exe.run(feeds)
crew = gang(exe.program.image)
blocked = []
for worker in crew.workers:
    for line in open(f"/proc/self/task/{worker.native_id}/status"):
        if line.startswith("SigBlk"):
            blocked.append(int(line.split()[1], 16) >> 1 & 1)
crew.dismiss()
answer([blocked, threading.active_count()])
"""
    assert child(text) == [[1, 1], 1]


def test_the_callers_float_environment_is_restored_and_not_used(child: Any) -> None:
    text = """
import ctypes
libm = ctypes.CDLL("libm.so.6")
exe = load(TOYS + "/rows.fsl", threads=2)
feeds = {k: np.full((40, 3), np.float32(1) + 2 ** -10 * i, np.float32) for i, k in enumerate("xy")}
feeds["y"] *= np.float32(1e-8)
before = exe.run(feeds)["z"].copy()
libm.fesetround(0x800)  # upwards
during = exe.run(feeds)["z"].copy()
kept = libm.fegetround()
libm.fesetround(0)
answer([bool(np.array_equal(before, during)), kept])
"""
    assert child(text) == [True, 0x800]
