"""LLVM text to objects, in worker processes that run side by side (DESIGN 3.5).

In: module texts and a target. Out: one relocatable ELF object per text, in the same order.
Invariant: a crash of LLVM costs its worker alone and becomes a CompileError that names the
functions; workers are plain subprocesses, so the user's own script is never run again.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO, cast

from fissile.codegen.worker import read_frame, write_frame
from fissile.errors import CompileError
from fissile.target import Target

SMALL = 40_000  # characters of text that are not worth a second worker
_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])


@dataclass
class _Work:
    """What the threads share: modules to do, objects done, problems met."""

    texts: Sequence[str]
    machine: bytes
    todo: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)
    objects: dict[int, bytes] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)


def compile_modules(
    texts: Sequence[str], target: Target, jobs: int | None = None, level: int = 1
) -> list[bytes]:
    """Objects of `texts`, by at most `jobs` workers (default: one per CPU we may use).

    level: 0 no optimization, 1 a short pass list for text from `emit_module`, 2 and 3 all of LLVM's
    but its vectorizers. CompileError F430 when LLVM refuses or crashes.
    """
    if not texts:
        return []
    count = worker_count(texts, jobs)
    machine = {
        "triple": target.llvm_triple,
        "cpu": target.llvm_cpu,
        "features": target.llvm_features,
        "level": level,
    }
    work = _Work(texts, json.dumps(machine).encode())
    for i in sorted(range(len(texts)), key=lambda i: -len(texts[i])):
        work.todo.put(i)
    threads = [threading.Thread(target=_drive, args=(work,), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if work.problems:
        raise _refusal(work)
    return [work.objects[i] for i in range(len(texts))]


def worker_count(texts: Sequence[str], jobs: int | None) -> int:
    """How many workers `texts` are worth."""
    allowed = jobs or len(os.sched_getaffinity(0))
    worth = 1 + sum(map(len, texts)) // SMALL
    return max(1, min(allowed, len(texts), worth))


def _drive(work: _Work) -> None:
    """Feed one worker until nothing is left, or something went wrong anywhere."""
    worker: subprocess.Popen[bytes] | None = None
    with tempfile.TemporaryFile() as said:  # a pipe for stderr that nobody reads could fill up
        while not work.problems:
            try:
                i = work.todo.get_nowait()
            except queue.Empty:
                break
            worker = worker or _start(work.machine, said)
            answer = _ask(worker, work.texts[i].encode())
            if answer is None:
                work.problems[i] = _last_words(worker, said)
            elif answer[0] == 1:
                work.objects[i] = answer[1:]
            else:
                work.problems[i] = answer[1:].decode(errors="replace").strip()
        if worker is not None:
            with contextlib.suppress(BrokenPipeError):
                _pipe(worker.stdin).close()
            worker.wait()


def _start(machine: bytes, said: IO[bytes]) -> subprocess.Popen[bytes]:
    paths = [_PACKAGE_PARENT, *filter(None, [os.environ.get("PYTHONPATH")])]
    worker = subprocess.Popen(
        [sys.executable, "-P", "-m", "fissile.codegen.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=said,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
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


def _refusal(work: _Work) -> CompileError:
    places = [", ".join(function_names(work.texts[i])) or f"module {i}" for i in work.problems]
    reasons = dict.fromkeys(" ".join(text.split()[:60]) for text in work.problems.values())
    return CompileError(
        "F430",
        "LLVM cannot compile a generated kernel",
        where=places,
        reason="; ".join(reasons),
        remedy="this is a fault of fissile, not of the model; please report it with the model",
    )
