"""Signal handlers that raise during calls: `python -m tests.e2e.signals COUNT` prints a JSON object.

Out: for every kind of call, how many signals raised, how many of them ended a call, and what is wrong ("" if nothing):
after each the next call gives the bits that it gave before, nobody waits for ever, and the executable has as many
frames as before. Signals come at random instants of a call, from its first bytecode to behind its last.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

import fissile
from fissile import pipeline
from fissile.errors import CompileError
from fissile.runtime.executable import Executable
from fissile.runtime.threads import gang
from tests.e2e.foreign_checks import chosen, model, some
from tests.e2e.here import compiling_here

Array = npt.NDArray[Any]
SECONDS = 300  # after which a child that hangs says where
FLOAT = TensorProto.FLOAT


class Raised(BaseException):
    """What the handler raises: no code may take it for a failure of its own."""


class Late(RuntimeError):
    """What the handler raises every other time: `except Exception` catches it."""


@dataclass
class Found:
    """What became of a kind of call."""

    raised: int = 0
    ended: int = 0
    wrong: str = ""


def native() -> tuple[Executable, dict[str, Array]]:
    """Two kernels over rows, with an output that is lent and an arena."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["s"], axis=1),
        helper.make_node("ReduceSum", ["s"], ["t"], keepdims=0),
        helper.make_node("Mul", ["s", "t"], ["y"]),
    ]
    made = model(nodes, [("x", FLOAT, ["n", 64])], [("y", FLOAT, ["n", 64]), ("t", FLOAT, [])])
    executable = fissile.compile(made, threads=1, cache=False)
    return executable, {"x": np.random.default_rng(1).normal(size=(96, 64)).astype(np.float32)}


def foreign() -> tuple[Executable, dict[str, Array]]:
    """Native segments with two operators in Python between them."""
    return fissile.compile(chosen(), threads=1, cache=False, foreign="allow"), some(17)


class Disturbed:
    """Calls with a signal in each."""

    def __init__(self, executable: Executable, feeds: dict[str, Array]) -> None:
        self.executable, self.feeds = executable, feeds
        self.found = Found()
        self.rng = np.random.default_rng(3)
        self.wanted = self.bits()
        start = time.perf_counter()
        for _ in range(20):
            self.bits()
        self.length = (time.perf_counter() - start) / 20
        signal.signal(signal.SIGALRM, self.handler)

    def bits(self) -> dict[str, bytes]:
        """The results of a call."""
        return {name: a.tobytes() for name, a in self.executable.run(self.feeds).items()}

    def handler(self, number: int, frame: FrameType | None) -> None:
        self.found.raised += 1
        raise Raised if self.found.raised % 2 else Late

    def hit(self) -> None:
        """A call, and a signal at some instant of it, or shortly behind it."""
        delay = max(1e-6, self.rng.uniform(0, 1.1 * self.length))
        before = self.found.raised
        try:
            signal.setitimer(signal.ITIMER_REAL, delay)
            self.executable.run(self.feeds)
            while self.found.raised == before:
                time.sleep(1e-4)
        except (Raised, Late):
            self.found.ended += 1
        except CompileError as error:
            if not isinstance(error.__cause__, Late):  # an operator in Python that the handler ended
                raise
            self.found.ended += 1

    def rounds(self, count: int, frames: int) -> Found:
        """So many hits; the call after each has the right bits, and no frame is lost or new."""
        for number in range(count):
            self.hit()
            if self.bits() != self.wanted:
                self.found.wrong = f"other bits after signal {number}"
            if len(self.executable._living) > frames:
                self.found.wrong = f"{len(self.executable._living)} frames after signal {number}"
            if self.found.wrong:
                break
        return self.found


def disturbed(made: Callable[[], tuple[Executable, dict[str, Array]]], threads: int, count: int) -> Found:
    """One caller alone."""
    executable, feeds = made()
    calls = Disturbed(executable.with_threads(threads), feeds)
    found = calls.rounds(count, 1)
    owner = gang(executable.program.image).owner
    if owner is not None and not owner.over:
        found.wrong = found.wrong or "the gang is lost"
    return found


def beside(made: Callable[[], tuple[Executable, dict[str, Array]]], count: int) -> Found:
    """Others wait for the gang while the main thread's calls are disturbed."""
    executable, feeds = made()
    calls = Disturbed(executable.with_threads(2), feeds)
    stop, done, wrong = threading.Event(), [0, 0], list[str]()

    def call(k: int) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        while not stop.is_set():
            if calls.bits() != calls.wanted:
                wrong.append("other bits beside signals")
            done[k] += 1

    threads = [threading.Thread(target=call, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    found = calls.rounds(count, 3)
    stop.set()
    for thread in threads:
        thread.join()
    found.wrong = found.wrong or "".join(wrong[:1]) or ("" if min(done) else "somebody never ran")
    return found


def nested() -> Found:
    """A handler that calls the model itself, in the midst of its calls."""
    executable, feeds = native()
    calls = Disturbed(executable.with_threads(2), feeds)
    found = calls.found

    def handler(number: int, frame: FrameType | None) -> None:
        found.raised += 1
        if calls.bits() != calls.wanted:
            found.wrong = "other bits in a handler"

    signal.signal(signal.SIGALRM, handler)
    for _ in range(100):
        signal.setitimer(signal.ITIMER_REAL, max(1e-6, calls.rng.uniform(0, calls.length)))
        if calls.bits() != calls.wanted:
            found.wrong = "other bits around a handler"
        time.sleep(calls.length)
    return found


def main() -> None:
    """All kinds of calls, with so many signals each."""
    count = int(sys.argv[1])
    faulthandler.dump_traceback_later(SECONDS + count, exit=True)
    with patch.object(pipeline, "compiling", compiling_here):
        kinds = {
            f"{made.__name__} on {threads}": disturbed(made, threads, count)
            for made in (native, foreign)
            for threads in (1, 2)
        }
        kinds["native beside others"] = beside(native, count)
        kinds["foreign beside others"] = beside(foreign, count)
        kinds["nested"] = nested()
    print(json.dumps({name: vars(found) for name, found in kinds.items()}))


if __name__ == "__main__":
    main()
