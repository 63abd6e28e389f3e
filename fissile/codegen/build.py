"""LLVM text to objects, in worker processes that run side by side (DESIGN 3.5).

In: module texts and a target. Out: one relocatable ELF object per text, in the same order.
Invariant: a crash of LLVM costs its worker alone and becomes a CompileError that names the
functions; workers are plain subprocesses, so the user's own script is never run again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO, cast

from fissile.codegen.worker import read_frame, write_frame
from fissile.errors import CompileError
from fissile.target import Target

SMALL = 40_000  # characters of text that are not worth a second worker
_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])


@dataclass
class Compiling:
    """Modules on their way through LLVM: `add` texts while others are being written, then ask for `objects`."""

    machine: bytes
    allowed: int
    texts: list[str] = field(default_factory=list)
    todo: queue.SimpleQueue[int | None] = field(default_factory=queue.SimpleQueue)
    made: dict[int, bytes] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)
    failures: list[OSError] = field(default_factory=list)  # why a worker could not be had
    threads: list[threading.Thread] = field(default_factory=list)
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def add(self, text: str) -> None:
        """One more module; its compilation begins at once."""
        self.texts.append(text)
        self.todo.put(len(self.texts) - 1)
        while len(self.threads) < worker_count(self.texts, self.allowed):
            thread = threading.Thread(target=_drive, args=(self,), daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system grants no more of them
                self.allowed = len(self.threads)
                if not self.threads:
                    raise OSError(errno.EAGAIN, "no thread can be started") from error
                return
            self.threads.append(thread)

    def objects(self) -> list[bytes]:
        """The objects of all texts, in their order. CompileError F430 when LLVM refuses or crashes.

        OSError where this machine cannot run a worker.
        """
        self.join()
        if self.problems:
            raise _refusal(self)
        if len(self.made) < len(self.texts):
            raise self.failures[0]
        return [self.made[i] for i in range(len(self.texts))]

    def join(self) -> None:
        """Wait until nothing is left to do."""
        for _ in self.threads:
            self.todo.put(None)
        for thread in self.threads:
            thread.join()


@contextlib.contextmanager
def compiling(target: Target, jobs: int | None = None, level: int = 1) -> Iterator[Compiling]:
    """A `Compiling` whose workers are gone at the end, also when something else fails.

    jobs: most workers (default: one per CPU we may use). level: 0 no optimization, 1 a short pass list for text from
    `emit_module`, 2 and 3 all of LLVM's but its vectorizers.
    """
    machine = {
        "triple": target.llvm_triple,
        "cpu": target.llvm_cpu,
        "features": target.llvm_features,
        "level": level,
    }
    allowed = jobs or len(os.sched_getaffinity(0))
    work = Compiling(json.dumps(machine).encode(), allowed)
    try:
        yield work
    except BaseException:
        work.problems[-1] = "given up"  # what is queued is left alone
        for worker in work.workers:
            worker.kill()
        raise
    finally:
        work.join()


def compile_modules(
    texts: Sequence[str], target: Target, jobs: int | None = None, level: int = 1
) -> list[bytes]:
    """Objects of `texts` in one go: `compiling` says what the rest means."""
    with compiling(target, jobs, level) as work:
        for text in sorted(texts, key=len, reverse=True):
            work.add(text)
        made = dict(zip(work.texts, work.objects(), strict=True))
    return [made[text] for text in texts]


def worker_count(texts: Sequence[str], allowed: int) -> int:
    """How many workers `texts` are worth."""
    worth = 1 + sum(map(len, texts)) // SMALL
    return max(1, min(allowed, len(texts), worth))


def _drive(work: Compiling) -> None:
    """Feed one worker until nothing is left, or something went wrong anywhere."""
    try:
        _feed(work)
    except OSError as error:  # of the others, each goes on
        work.failures.append(error)


def _feed(work: Compiling) -> None:
    with tempfile.TemporaryFile() as said:  # a pipe for stderr that nobody reads could fill up
        worker = _start(work.machine, said)
        work.workers.append(worker)
        while (i := work.todo.get()) is not None and not work.problems:
            answer = _ask(worker, work.texts[i].encode())
            if answer is None:
                work.problems[i] = _last_words(worker, said)
            elif answer[0] == 1:
                work.made[i] = answer[1:]
            else:
                work.problems[i] = answer[1:].decode(errors="replace").strip()
        with contextlib.suppress(BrokenPipeError):
            _pipe(worker.stdin).close()
        worker.wait()


def _start(machine: bytes, said: IO[bytes]) -> subprocess.Popen[bytes]:
    paths = [_PACKAGE_PARENT, *filter(None, [os.environ.get("PYTHONPATH")])]
    worker = subprocess.Popen(
        [sys.executable, "-P", "-m", "fissile.codegen.worker", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=said,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        process_group=0,  # Ctrl-C reaches this process alone
    )
    write_frame(_pipe(worker.stdin), machine)
    return worker


def _last_words(worker: subprocess.Popen[bytes], said: IO[bytes]) -> str:
    """Why a worker died: its exit code and what it wrote to stderr."""
    code = worker.wait()
    said.seek(0)
    text = said.read().decode(errors="replace").strip()
    return f"the compiling process ended with code {code}" + (f": {text}" if text else "")


def _pipe(stream: object) -> BinaryIO:
    return cast(BinaryIO, stream)


def _ask(worker: subprocess.Popen[bytes], payload: bytes) -> bytes | None:
    """The worker's answer; None when it died."""
    try:
        write_frame(_pipe(worker.stdin), payload)
    except BrokenPipeError:
        return None
    return read_frame(_pipe(worker.stdout))


def function_names(text: str) -> list[str]:
    """The kernels a module defines."""
    return re.findall(r"^define void @([a-z0-9_]+)\(", text, re.MULTILINE)


def _refusal(work: Compiling) -> CompileError:
    places = [", ".join(function_names(work.texts[i])) or f"module {i}" for i in work.problems]
    reasons = dict.fromkeys(" ".join(text.split()[:60]) for text in work.problems.values())
    return CompileError(
        "F430",
        "LLVM cannot compile a generated kernel",
        where=places,
        reason="; ".join(reasons),
        remedy="this is a fault of fissile, not of the model; please report it with the model",
    )
