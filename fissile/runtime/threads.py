"""Threads: how many this process may use, and the one gang that shares them (PRODUCT 4.2).

In: the affinity mask, cgroup quota and environment; the image whose worker code the threads enter.
Out: a default thread count; a gang that one call at a time holds whole, first come first served.
Invariant: nothing starts before the first call with more than one thread; idle workers sleep in a
futex; a forked child starts its own gang.
"""

import os
import signal
import threading
import time
from collections import deque
from pathlib import Path
from typing import Literal

from fissile.errors import BusyError
from fissile.options import environment
from fissile.runtime.hold import Hold
from fissile.runtime.image import Image, syscall_address
from fissile.runtime.memory import address_of, aligned_words

Busy = Literal["wait", "solo", "error"]

SPIN_SECONDS = 50e-6
CALIBRATION_SECONDS = 1e-3
MAX_THREADS = 1000
_LOOK_SECONDS = 0.05  # after which who waits looks whether it is their turn
_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98}
# words of the gang block, see codegen/support/gang.ll
_GANG_WORDS = 64
_SYSCALL, _FUTEX, _SPIN = 34, 35, 36


def allowed_cpus() -> int:
    """CPUs in the affinity mask, or the cgroup quota rounded down if that is less; at least 1."""
    cpus = len(_affinity())
    quota = cgroup_quota()
    return max(1, cpus if quota is None else min(cpus, int(quota)))


def default_threads() -> int:
    """FISSILE_NUM_THREADS, then OMP_NUM_THREADS, then physical cores allowed to this process."""
    asked = environment().num_threads
    if asked is not None:
        return min(asked, MAX_THREADS)
    return min(_physical_cores(), allowed_cpus(), MAX_THREADS)


def cgroup_quota(proc: Path = Path("/proc"), mount: Path = Path("/sys/fs/cgroup")) -> float | None:
    """The tightest CPU quota of this process's cgroups, in CPUs; None where there is none."""
    quotas: list[float] = []
    for line in _read(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        unified = controllers == ""
        if not unified and "cpu" not in controllers.split(","):
            continue
        root = mount if unified else mount / "cpu"
        group = root / path.strip("/")
        # Inside a container the path may be the host's: then only the root exists, which is ours.
        for folder in (group, *(p for p in group.parents if p.is_relative_to(root))):
            quota = _quota_v2(folder) if unified else _quota_v1(folder)
            quotas += [quota] if quota else []
    return min(quotas, default=None)


class Gang:
    """The workers of this process. `acquire`, run one job with `block` as its gang, `release`.

    `block` is the address of the state that native code shares (layout: codegen/support/gang.ll).
    The image that started the gang is kept for ever: its worker code is where the threads sleep.
    """

    def __init__(self, image: Image) -> None:
        self.image = image
        self.words = aligned_words(_GANG_WORDS)
        self.block = address_of(self.words)
        self.ticks_per_second = measure_ticks(image)
        self.words[_SYSCALL] = syscall_address()
        self.words[_FUTEX] = _FUTEX_NUMBERS[os.uname().machine]
        self.workers: list[threading.Thread] = []
        # A signal handler may call while its own thread is in here: it then runs to its end first.
        self.mutex = threading.RLock()
        self.owner: Hold | None = None
        self.queue: deque[Hold] = deque()

    def acquire(self, hold: Hold, threads: int, busy: Busy) -> bool:
        """Take the gang for `hold`, until that is over. BusyError if it is taken and busy="error".

        False if it is taken and busy="solo", and for a call inside a call of the same thread, which would wait for
        itself.
        """
        hold.thread = threading.get_ident()
        with self.mutex:
            self._advance()
            if any(h.thread == hold.thread and not h.over for h in (self.owner, *self.queue) if h):
                return False
            if self.owner is None:
                self.owner = hold
            elif busy == "wait":
                hold.gate = threading.Lock()
                hold.gate.acquire()
                self.queue.append(hold)
                self._advance()
            elif busy == "solo":
                return False
            else:
                raise _busy()
        while self.owner is not hold:
            # Who was interrupted in `release` has woken nobody.
            if hold.gate is not None:
                hold.gate.acquire(timeout=_LOOK_SECONDS)
            with self.mutex:
                self._advance()
        if len(self.workers) < threads - 1:
            self._hire(threads - 1)
        return True

    def release(self, hold: Hold) -> None:
        """Hand the gang to the caller who has waited longest; nothing, if `hold` never had it."""
        hold.over = True
        if self.queue:
            with self.mutex:
                self._advance()

    def dismiss(self) -> None:
        """Send the workers home and wait for them; the gang must be idle."""
        self.image.stop(self.block)
        for worker in self.workers:
            worker.join()
        self.workers.clear()

    def _advance(self) -> None:
        """Where the owner's call is over, the first in the queue whose call is not is the owner."""
        while self.owner is not None and self.owner.over:
            while self.queue and self.queue[0].over:
                self.queue.popleft()
            if not self.queue:
                self.owner = None
                return
            self.owner = self.queue[0]  # while it is still in the queue, so that it is nowhere lost
            gate = self.queue.popleft().gate
            if gate is not None:
                gate.release()

    def _hire(self, count: int) -> None:
        """Start workers up to `count`. With fewer than asked for, a job still completes."""
        while len(self.workers) < count:
            name = f"fissile-{len(self.workers) + 1}"
            worker = threading.Thread(target=self._work, name=name, daemon=True)
            self.workers.append(worker)
            try:
                worker.start()
            except RuntimeError:
                # The system has no thread left: those who are there share the work.
                self.workers.remove(worker)
                break
            except BaseException:
                if worker.ident is None:
                    self.workers.remove(worker)
                raise
        crowded = count + 1 > allowed_cpus()
        self.words[_SPIN] = 0 if crowded else int(SPIN_SECONDS * self.ticks_per_second)

    def _work(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self.image.worker(self.block)


_current: Gang | None = None
_current_lock = threading.Lock()


def gang(image: Image) -> Gang:
    """The gang of this process; the first caller's image serves all of them."""
    global _current
    if _current is None:
        with _current_lock:
            if _current is None:
                _current = Gang(image)
    return _current


def can_gang() -> bool:
    """Whether this system has the futex that the gang sleeps in."""
    return os.name == "posix" and os.uname().sysname == "Linux"


def measure_ticks(image: Image) -> float:
    """Time-stamp counter ticks per second."""
    start, first = time.perf_counter(), image.cycles()
    while time.perf_counter() - start < CALIBRATION_SECONDS:
        pass
    spent, ticks = time.perf_counter() - start, image.cycles() - first
    return ticks / spent


def _forget() -> None:
    """In a forked child the workers do not exist; a new gang starts when one is needed."""
    global _current, _current_lock
    _current, _current_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def _busy() -> BusyError:
    return BusyError(
        "F701",
        "another call holds the threads of this process",
        reason='the executable was loaded with busy="error"',
        remedy=['load(..., busy="wait") or busy="solo"', "threads=1 needs no gang"],
    )


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _physical_cores() -> int:
    """Allowed CPUs, those that share a core counted once."""
    topology = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    cores = {_read(Path(topology.format(cpu))) or str(cpu) for cpu in _affinity()}
    return max(1, len(cores))


def _quota_v2(folder: Path) -> float | None:
    words = _read(folder / "cpu.max").split()
    if len(words) != 2 or words[0] == "max":
        return None
    return int(words[0]) / int(words[1])


def _quota_v1(folder: Path) -> float | None:
    quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    if not quota or not period or int(quota) <= 0:
        return None
    return int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
