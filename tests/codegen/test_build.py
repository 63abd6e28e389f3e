"""Workers: objects in order, refusals and crashes that name the functions."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fissile.codegen import build
from fissile.codegen.build import compile_modules, compiling, function_names, worker_count
from fissile.codegen.link import link
from fissile.errors import CompileError
from fissile.target import named

TARGET = named("x86-64-v3")


def module(name: str, number: int) -> str:
    return f"define void @{name}(ptr %p) {{\nstore i64 {number}, ptr %p\nret void\n}}\n"


def test_objects_come_in_the_order_of_the_texts() -> None:
    texts = [module(f"k{i}", i) for i in range(5)]
    objects = compile_modules(texts, TARGET, jobs=2)
    for i, data in enumerate(objects):
        assert list(link([data]).symbols) == [f"k{i}"]


ORPHAN = """
import json, os, signal, tempfile, time
from fissile.codegen.build import _start
machine = {"triple": "x86_64-unknown-linux-gnu", "cpu": "x86-64-v3", "features": "", "level": 1}
worker = _start(json.dumps(machine).encode(), tempfile.TemporaryFile())
time.sleep(0.3)
os.kill(worker.pid, signal.SIGSTOP)
print(worker.pid, flush=True)
time.sleep(600)
"""


def test_a_busy_worker_ends_with_its_caller() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE) as caller:
        assert caller.stdout is not None
        worker = Path("/proc") / caller.stdout.readline().decode().strip()
        assert worker.exists()
        caller.kill()
    for _ in range(100):
        if not worker.exists() or "State:\tZ" in (worker / "status").read_text():
            return
        time.sleep(0.1)
    raise AssertionError("the worker is still there")


def test_no_modules_need_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_start", None)
    assert compile_modules([], TARGET) == []


def test_same_text_gives_the_same_object() -> None:
    text = module("same", 3)
    first, second = (compile_modules([text, text], TARGET, jobs=1) for _ in range(2))
    assert first == second
    assert first[0] == first[1]


def test_small_work_stays_with_one_worker() -> None:
    assert worker_count([module("a", 1), module("b", 2)], 8) == 1
    assert worker_count(["x" * build.SMALL] * 3, 2) == 2
    assert worker_count(["x" * build.SMALL] * 3, 8) == 3


def test_a_refused_module_is_named() -> None:
    with pytest.raises(CompileError, match="(?s)F430.*bad_one") as caught:
        compile_modules([module("good", 1), "define void @bad_one(ptr %p) { nonsense }"], TARGET)
    assert caught.value.where[0].node == "bad_one"


def test_a_crash_of_llvm_is_an_error_that_names_the_functions() -> None:
    text = module("unlucky", 1).replace("ret void", 'call void asm "nonsense", ""()\nret void')
    with pytest.raises(CompileError, match="unlucky"):
        compile_modules([module("lucky", 1), text], TARGET)


def test_functions_of_a_text() -> None:
    assert function_names(module("one", 1) + module("two", 2)) == ["one", "two"]


def test_modules_may_be_added_while_others_compile() -> None:
    with compiling(TARGET, jobs=2) as work:
        for i in range(4):
            work.add(module(f"k{i}", i) + "; " + "x" * build.SMALL)
        objects = work.objects()
    assert [list(link([data]).symbols) for data in objects] == [[f"k{i}"] for i in range(4)]


def give_up(started: list[build.Compiling]) -> None:
    with compiling(TARGET, jobs=2) as work:
        started.append(work)
        for i in range(20):
            work.add(module(f"k{i}", i) + "; " + "x" * build.SMALL)
        raise ZeroDivisionError


def test_no_worker_outlives_an_error_elsewhere() -> None:
    started: list[build.Compiling] = []
    with pytest.raises(ZeroDivisionError):
        give_up(started)
    assert all(worker.poll() is not None for worker in started[0].workers)
    assert not any(thread.is_alive() for thread in started[0].threads)


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_machine_that_runs_no_worker_is_no_fault_of_a_kernel(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    texts = [module(f"k{i}", i) + "; " + "x" * build.SMALL for i in range(3)]
    start, failed = build._start, list[str]()

    def fails(*arguments: Any) -> Any:
        failed.append("once")
        if len(failed) <= at_once:
            raise BlockingIOError(errno.EAGAIN, "fork")
        return start(*arguments)

    monkeypatch.setattr(build, "_start", fails)
    if at_once == 2:
        with pytest.raises(BlockingIOError):
            compile_modules(texts, TARGET, jobs=2)
    else:  # the other one does it all
        assert len(compile_modules(texts, TARGET, jobs=2)) == 3


@pytest.mark.parametrize("granted", [0, 1])
def test_fewer_threads_than_wished_for(monkeypatch: pytest.MonkeyPatch, granted: int) -> None:
    texts = [module(f"k{i}", i) + "; " + "x" * build.SMALL for i in range(3)]
    start, begun = threading.Thread.start, list[threading.Thread]()

    def limited(thread: threading.Thread) -> None:
        if len(begun) == granted:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    if granted:
        assert len(compile_modules(texts, TARGET, jobs=2)) == 3
    else:
        with pytest.raises(OSError, match="no thread"):
            compile_modules(texts, TARGET, jobs=2)
