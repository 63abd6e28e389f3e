"""Machine code under test, run in a child process with guard pages around every buffer.

In: a function, a target and arguments by name (arrays or ints). Out: the arrays afterwards.
Invariant: a byte read or written behind a buffer kills the child, one written before it is found by
its canary; either is an AssertionError here, with the function's text.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from fissile.codegen.build import compile_modules
from fissile.codegen.link import link
from fissile.codegen.llvm import emit_module, scratch_bytes, task_count
from fissile.codegen.support import support_text
from fissile.codegen.worker import Machine, compile_text, read_frame, target_machine, write_frame
from fissile.ir.interpret import interpret, run_expr
from fissile.ir.loop import Buffer, Function, Var
from fissile.target import Target, missing_features, named

Array = npt.NDArray[Any]
PAGE = mmap.PAGESIZE
CANARY = 0xA5
ROOT = Path(__file__).resolve().parents[2]


def targets() -> list[Target]:
    """The x86-64 targets that this machine runs."""
    known = [named("x86-64-v3"), named("x86-64-v4")]
    return [t for t in known if not missing_features(t.features)]


# ---------------------------------------------------------------- the parent


@dataclass
class Child:
    """A running child for one target."""

    process: subprocess.Popen[bytes]


_CHILDREN: dict[str, Child] = {}


def run(
    f: Function, target: Target, args: Mapping[str, Array | int], level: int = 1
) -> dict[str, Array]:
    """The arrays after machine code of `f` ran all its tasks on copies of `args`."""
    values = {p: int(cast(int, args[p.name])) for p in f.params if isinstance(p, Var)}
    arrays = [np.ascontiguousarray(args[p.name]) for p in f.params if isinstance(p, Buffer)]
    text = emit_module([f], target)
    head = {
        "level": level,
        "name": f.name,
        "words": [values[p] if isinstance(p, Var) else None for p in f.params],
        "sizes": [a.nbytes for a in arrays],
        "tasks": int(run_expr(task_count(f), values)),
        "scratch": int(run_expr(scratch_bytes(f), values)),
    }
    child = _child(target)
    parts = [json.dumps(head).encode(), text.encode(), b"".join(a.tobytes() for a in arrays)]
    answer = _exchange(child, parts)
    if answer is None:
        _CHILDREN.pop(target.name)
        code = child.process.wait()
        raise AssertionError(f"{f.name} on {target.name} ended its process with {code}\n{text}")
    if answer[:1] != b"\x01":
        raise AssertionError(f"{answer[1:].decode()}\n{text}")
    return _arrays(f, arrays, answer[1:])


def _arrays(f: Function, arrays: Sequence[Array], data: bytes) -> dict[str, Array]:
    found, at = {}, 0
    for p, a in zip([p for p in f.params if isinstance(p, Buffer)], arrays):
        piece = np.frombuffer(data, np.uint8, a.nbytes, at).copy()
        found[p.name] = piece.view(a.dtype).reshape(a.shape)
        at += a.nbytes
    return found


def expected(f: Function, args: Mapping[str, Array | int]) -> dict[str, Array]:
    """The arrays after the interpreter ran `f` on copies of `args`."""
    copies = {n: a.copy() if isinstance(a, np.ndarray) else a for n, a in args.items()}
    interpret(f, copies)
    return {n: a for n, a in copies.items() if isinstance(a, np.ndarray)}


def assert_same(f: Function, args: Mapping[str, Array | int], level: int = 1) -> None:
    """Machine code of every target leaves the same bits as the interpreter (any NaN for a NaN)."""
    want = expected(f, args)
    for target in targets():
        got = run(f, target, args, level)
        for name, a in want.items():
            np.testing.assert_array_equal(got[name], a, f"{f.name}: {name} on {target.name}")


def _child(target: Target) -> Child:
    known = _CHILDREN.get(target.name)
    if known is None or known.process.poll() is not None:
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, target.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        known = _CHILDREN[target.name] = Child(process)
        atexit.register(_end, process)
    return known


def _end(process: subprocess.Popen[bytes]) -> None:
    cast(BinaryIO, process.stdin).close()
    process.wait()


def _exchange(child: Child, parts: Sequence[bytes]) -> bytes | None:
    try:
        for part in parts:
            write_frame(cast(BinaryIO, child.process.stdin), part)
    except BrokenPipeError:
        return None
    return read_frame(cast(BinaryIO, child.process.stdout))


# ---------------------------------------------------------------- the child


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


@dataclass
class Guarded:
    """Memory whose last byte is followed, and whose first page is preceded, by a page of nothing."""

    base: int
    pages: int
    start: int
    size: int


def guard(data: bytes) -> Guarded:
    """`data` in guarded memory; what lies before it in its first page is canaries."""
    pages = max(1, -(-len(data) // PAGE))
    whole = (pages + 2) * PAGE
    base = int(_libc.mmap(None, whole, mmap.PROT_READ | mmap.PROT_WRITE, 0x22, -1, 0))
    ctypes.memset(base + PAGE, CANARY, pages * PAGE)
    start = base + (pages + 1) * PAGE - len(data)
    ctypes.memmove(start, data, len(data))
    _libc.mprotect(base, PAGE, 0)
    _libc.mprotect(base + (pages + 1) * PAGE, PAGE, 0)
    return Guarded(base, pages, start, len(data))


def release(memory: Guarded) -> bytes:
    """The bytes of guarded memory, which is given back; ValueError when a canary is gone."""
    first = memory.base + PAGE
    before = ctypes.string_at(first, memory.start - first)
    data = ctypes.string_at(memory.start, memory.size)
    _libc.munmap(memory.base, (memory.pages + 2) * PAGE)
    if before.strip(bytes([CANARY])):
        raise ValueError("written before a buffer")
    return data


def execute(head: dict[str, Any], code: bytes, at: int, data: bytes) -> bytes:
    """Run the kernel at offset `at` of `code`."""
    image = mmap.mmap(-1, len(code) + PAGE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    image.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(image))
    memories, offset = [], 0
    for size in head["sizes"]:
        memories.append(guard(data[offset : offset + size]))
        offset += size
    starts = iter([m.start for m in memories])
    words = [next(starts) if w is None else w for w in head["words"]]
    slots = (ctypes.c_int64 * max(1, len(words)))(*words)
    scratch = guard(bytes(-(-head["scratch"] // 64) * 64))
    kernel = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
    )(address + at)
    kernel(ctypes.addressof(slots), 0, head["tasks"], scratch.start)
    release(scratch)
    return b"".join(release(m) for m in memories)


def serve(target: Target) -> None:
    """Compile and run what comes on stdin."""
    machines: dict[int, Any] = {}
    support = compile_modules([support_text()], target, 1, 2)
    while (first := read_frame(sys.stdin.buffer)) is not None:
        head = json.loads(first)
        text, data = read_frame(sys.stdin.buffer), read_frame(sys.stdin.buffer)
        assert text is not None
        assert data is not None
        level = head["level"]
        if level not in machines:
            facts = (target.llvm_triple, target.llvm_cpu, target.llvm_features, level)
            machines[level] = target_machine(Machine(*facts))
        try:
            image = link([compile_text(text.decode(), machines[level], level), *support])
            answer = b"\x01" + execute(head, image.code, image.symbols[head["name"]], data)
        except (RuntimeError, ValueError) as problem:
            answer = b"\x00" + str(problem).encode()
        write_frame(sys.stdout.buffer, answer)


if __name__ == "__main__":
    serve(named(sys.argv[1]))
