"""Whole programs as machine code in a child process, every buffer of theirs between guard pages.

In: a drawn graph (or its plan) and a target; then feeds and a number of threads. Out: the output arrays. Inputs,
outputs, each weight, each place of the arena, each thread's scratch, the slots and the context lie apart. Invariant: an
access behind (or, in every second run, before) a buffer kills the child, which is an AssertionError here.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from fissile import pipeline
from fissile.codegen.link import link
from fissile.codegen.llvm import emit_module
from fissile.codegen.main import bind_module, stitch
from fissile.codegen.support import ENTRIES, support_text
from fissile.codegen.worker import Machine, compile_text, read_frame, target_machine, write_frame
from fissile.ir.graph import Graph
from fissile.ir.loop import Function
from fissile.options import Options
from fissile.runtime.hold import Hold
from fissile.runtime.image import Image
from fissile.runtime.threads import Gang
from fissile.runtime.weights import layout
from fissile.target import Target, named

Array = npt.NDArray[Any]
PAGE = mmap.PAGESIZE
CANARY = 0xA5
SECONDS = 60  # a run that takes longer hangs
ROOT = Path(__file__).resolve().parents[2]


# ---------------------------------------------------------------- the parent


@dataclass(frozen=True)
class Built:
    """A program for the child: its work, its plan.json without the entries, the code that binds slots, and texts."""

    work: pipeline.Work
    loops: pipeline.Loops
    plan: Mapping[str, Any]
    bind: Function
    texts: tuple[str, ...]


def lowered(graph: Graph, target: Target) -> pipeline.Work:
    """The work of the pipeline from the plan to the text, for one target."""
    work = pipeline.Work(b"", None, (target,), 1, Options(), graph=graph)
    for stage in (pipeline.plan_kernels, pipeline.lower_kernels, pipeline.emit_text):
        work = stage(work)
    return work


def build(work: pipeline.Work) -> Built:
    """Stitch the lowered work; the child compiles it when it is first run."""
    loops, texts = work.loops[0], work.texts[0]
    plan = work.known("plan")
    stitched, bind = stitch(
        plan.graph, pipeline.launches(plan, loops), pipeline.memory(work, loops)
    )
    main = bind_module(emit_module([bind], loops.target))
    return Built(work, loops, stitched, bind, (*texts, main))


@dataclass
class _Child:
    """The child process and what it holds."""

    process: subprocess.Popen[bytes]
    held: Built | None = None


_CHILDREN: list[_Child] = []


def run(
    built: Built, symbols: Mapping[str, int], feeds: Mapping[str, Array], threads: int, lead: bool
) -> dict[str, Array]:
    """The outputs by name. lead: whether guard pages lie right before the buffers instead of behind them."""
    plan = built.plan
    arrays = [np.asarray(feeds[x["name"]], order="C") for x in plan["inputs"]]
    head = {
        "symbols": [symbols[x["name"]] for x in plan["symbols"]],
        "shapes": [a.shape for a in arrays],
        "threads": threads,
        "lead": lead,
    }
    if not _CHILDREN:
        _CHILDREN.append(_started())
    child = _CHILDREN[0]
    if child.held is not built:
        _ask(child, _build_request(built))
        child.held = built
    answer = _ask(child, [json.dumps(head).encode(), b"".join(a.tobytes() for a in arrays)])
    (length,) = np.frombuffer(answer, np.int64, 1)
    shapes = json.loads(answer[8 : 8 + length])
    return _outputs(plan["outputs"], shapes, answer[8 + length :])


def _outputs(infos: Sequence[Any], shapes: Sequence[Any], content: bytes) -> dict[str, Array]:
    found, at = {}, 0
    for info, shape in zip(infos, shapes, strict=True):
        kind = np.dtype("uint16" if info["dtype"] == "bfloat16" else info["dtype"])
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        found[info["name"]] = np.frombuffer(content[at : at + size], kind).reshape(shape)
        at += size
    return found


def _build_request(built: Built) -> list[bytes]:
    weights = [w for _, w in built.work.weights]
    places = layout(weights)
    blobs = [np.ascontiguousarray(w.data).tobytes() for w in weights]
    head = {
        "build": built.loops.target.name,
        "plan": built.plan,
        "kernels": list(built.loops.functions),
        "texts": built.texts,
        "weights": [[places.offsets[w.name], len(b)] for w, b in zip(weights, blobs)],
    }
    return [json.dumps(head).encode(), b"".join(blobs)]


def _started() -> _Child:
    process = subprocess.Popen(
        [sys.executable, "-P", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    atexit.register(_end, process)
    return _Child(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    cast(BinaryIO, process.stdin).close()
    process.wait()


def _ask(child: _Child, parts: Sequence[bytes]) -> bytes:
    answer = None
    try:
        for part in parts:
            write_frame(cast(BinaryIO, child.process.stdin), part)
        answer = read_frame(cast(BinaryIO, child.process.stdout))
    except BrokenPipeError:
        pass
    except BaseException:
        # a time limit in half a conversation: both sides would wait for each other for ever
        _CHILDREN.remove(child)
        child.process.kill()
        raise
    if answer is None:
        _CHILDREN.remove(child)
        raise AssertionError(f"the program ended its process with {child.process.wait()}")
    if answer[:1] != b"\x01":
        raise AssertionError(answer[1:].decode())
    return answer[1:]


# ---------------------------------------------------------------- guarded memory


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


@dataclass
class Guarded:
    """`count` buffers of `size` bytes each, `stride` apart from `start` on, a page of nothing between them."""

    base: int
    whole: int
    start: int
    stride: int
    count: int
    size: int

    @staticmethod
    def of(size: int, lead: bool, count: int = 1) -> Guarded:
        """Fresh memory full of canaries."""
        pages = max(1, -(-size // PAGE))
        stride = (pages + 1) * PAGE
        whole = count * stride + PAGE
        base = int(_libc.mmap(None, whole, mmap.PROT_READ | mmap.PROT_WRITE, 0x22, -1, 0))
        for k in range(count + 1):
            _libc.mprotect(base + k * stride, PAGE, 0)
        start = base + PAGE + (0 if lead else pages * PAGE - size)
        for k in range(count):
            ctypes.memset(base + PAGE + k * stride, CANARY, pages * PAGE)
        return Guarded(base, whole, start, stride, count, size)

    @staticmethod
    def holding(data: bytes, lead: bool) -> Guarded:
        """Memory that holds `data`."""
        made = Guarded.of(len(data), lead)
        ctypes.memmove(made.start, data, len(data))
        return made

    def read(self) -> bytes:
        """The bytes of the first buffer."""
        return ctypes.string_at(self.start, self.size)

    def release(self) -> None:
        """Give the memory back; ValueError when a canary beside a buffer is gone."""
        pages = self.stride - PAGE
        for k in range(self.count):
            first, at = self.base + PAGE + k * self.stride, self.start + k * self.stride
            around = ctypes.string_at(first, at - first)
            around += ctypes.string_at(at + self.size, first + pages - at - self.size)
            if around.strip(bytes([CANARY])):
                raise ValueError("written beside a buffer")
        _libc.munmap(self.base, self.whole)


# ---------------------------------------------------------------- the child


@dataclass
class _Held:
    """What the child has compiled."""

    code: mmap.mmap
    address: int
    entries: Mapping[str, int]
    plan: Mapping[str, Any]
    weights: Mapping[int, bytes]


class _Server:
    """Compiles programs and runs them."""

    def __init__(self) -> None:
        self.machines: dict[str, tuple[Any, bytes]] = {}
        self.held: _Held | None = None
        self.gang: Gang | None = None
        self.kept: mmap.mmap | None = None

    def machine(self, name: str) -> tuple[Any, bytes]:
        """LLVM's machine of a target and the support object."""
        if name not in self.machines:
            target = named(name)
            facts = (target.llvm_triple, target.llvm_cpu, target.llvm_features)
            support = compile_text(support_text(), target_machine(Machine(*facts, 2)), 2)
            self.machines[name] = (target_machine(Machine(*facts, 1)), support)
        return self.machines[name]

    def build(self, head: Mapping[str, Any], data: bytes) -> bytes:
        machine, support = self.machine(head["build"])
        objects = [compile_text(text, machine, 1) for text in head["texts"]]
        image = link([*objects, support], [*ENTRIES, "fissile_bind", *head["kernels"]])
        code, address = _mapped(image.code)
        entries = {name: address + at for name, at in image.symbols.items()}
        weights, at = {}, 0
        for offset, size in head["weights"]:
            weights[offset] = data[at : at + size]
            at += size
        self.held = _Held(code, address, entries, head["plan"], weights)
        if self.gang is None:
            self.kept = code
            self.gang = Gang(_image(code, entries))
        return b""

    def run(self, head: Mapping[str, Any], data: bytes) -> bytes:
        assert self.held is not None
        assert self.gang is not None
        call = _Call(self.held, head, data)
        hold = Hold()
        try:
            if head["threads"] > 1:
                self.gang.acquire(hold, head["threads"], "wait")
            call.run(self.gang.block if head["threads"] > 1 else 0)
        finally:
            self.gang.release(hold)
        return call.answer()


def _mapped(content: bytes) -> tuple[mmap.mmap, int]:
    code = mmap.mmap(
        -1, len(content) + PAGE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    )
    code.write(content)
    return code, ctypes.addressof(ctypes.c_char.from_buffer(code))


def _image(code: mmap.mmap, entries: Mapping[str, int]) -> Image:
    one = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    two = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    cycles = ctypes.CFUNCTYPE(ctypes.c_uint64)(entries["fissile_cycles"])
    return Image(
        code,
        entries,
        one(entries["fissile_run"]),
        two(entries["fissile_bind"]),
        one(entries["fissile_worker"]),
        one(entries["fissile_stop"]),
        cycles,
    )


class _Call:
    """One call: memory for everything, and the words that `fissile_run` reads."""

    def __init__(self, held: _Held, head: Mapping[str, Any], data: bytes) -> None:
        self.held, self.plan, self.lead = held, held.plan, head["lead"]
        self.threads = head["threads"]
        self.memory: list[Guarded] = []
        self.slots = self._bound(head["symbols"])
        self._check(head["shapes"])
        self.inputs = self._inputs(head["shapes"], data)
        self.outputs = [self._new(self._bytes(x)) for x in self.plan["outputs"]]

    def _new(self, size: int, count: int = 1) -> Guarded:
        self.memory.append(Guarded.of(size, self.lead, count))
        return self.memory[-1]

    def _hold(self, data: bytes) -> Guarded:
        self.memory.append(Guarded.holding(data, self.lead))
        return self.memory[-1]

    def _words(self, words: Sequence[int]) -> Guarded:
        return self._hold(np.array(words, np.int64).tobytes())

    def _bound(self, symbols: Sequence[int]) -> list[int]:
        slots, given = self._words(self.plan["template"]), self._words(symbols)
        bind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
        bind(self.held.entries["fissile_bind"])(given.start, slots.start)
        found: list[int] = np.frombuffer(slots.read(), np.int64).tolist()
        return found

    def _check(self, shapes: Sequence[Sequence[int]]) -> None:
        for info, shape in zip(self.plan["inputs"], shapes, strict=True):
            if [self.slots[s] for s in info["slots"]] != list(shape):
                raise ValueError(f"{info['name']}: bound to another shape than {shape}")
        for guard in self.plan["guards"]:
            if self.slots[guard["left"]] != self.slots[guard["right"]]:
                raise ValueError(guard["message"])

    def _bytes(self, info: Mapping[str, Any]) -> int:
        kind = "uint16" if info["dtype"] == "bfloat16" else info["dtype"]
        shape = [self.slots[s] for s in info["slots"]]
        return int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize

    def _inputs(self, shapes: Sequence[Sequence[int]], data: bytes) -> list[Guarded]:
        made, at = [], 0
        for info in self.plan["inputs"]:
            size = self._bytes(info)
            made.append(self._hold(data[at : at + size]))
            at += size
        return made

    def _addresses(self) -> dict[tuple[int, int], int]:
        """The address that every (base, offset slot) of the patches stands for."""
        plan, slots = self.plan, self.slots
        found: dict[tuple[int, int], int] = {}
        pairs = sorted({(base, slot) for _, base, slot in plan["patches"]})
        for base, slot in pairs:
            if base == 0:  # the next slot holds where the next place, or the end of the arena, is
                found[base, slot] = self._new(slots[slot + 1] - slots[slot]).start
            elif base == 1:
                found[base, slot] = self._hold(self.held.weights[slots[slot]]).start
            else:
                arrays = [*self.inputs, *self.outputs]
                found[base, slot] = arrays[base - 2].start + slots[slot]
        return found

    def run(self, gang: int) -> None:
        """Lay everything out and call `fissile_run`."""
        plan, held = self.plan, self.held
        where = self._addresses()
        extra = list(dict.fromkeys(where.values()))
        number = {address: len(self.slots) + k for k, address in enumerate(extra)}
        patches = [w for dst, b, s in plan["patches"] for w in (dst, 0, number[where[b, s]])]
        launches: list[int] = []
        steps: list[int] = []
        for k, row in enumerate(plan["launches"]):
            if k == 0 or row["step"] != plan["launches"][k - 1]["step"]:
                steps.append(k)
            launches += [held.entries[row["kernel"]], row["first"], row["tasks"], 0]
        steps.append(len(plan["launches"]))
        width = max((b - a for a, b in zip(steps, steps[1:])), default=1)
        size = -(-self.slots[plan["scratch"]] // 64) * 64
        scratch = self._new(size, self.threads)
        context = [
            self._words([*self.slots, *extra]).start,
            self._words([0]).start,
            self._words(patches).start,
            len(patches) // 3,
            self._words(launches).start,
            self._words(steps).start,
            len(steps) - 1,
            scratch.start,
            scratch.stride,
            self._lines(2 * width * self.threads),
            width,
            self.threads,
            gang,
            0,
        ]
        signal.alarm(SECONDS)
        entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(held.entries["fissile_run"])
        entry(self._words(context).start)
        signal.alarm(0)

    def _lines(self, count: int) -> int:
        memory = self._new(64 * count)
        ctypes.memset(memory.start, 0, 64 * count)
        return memory.start

    def answer(self) -> bytes:
        """Shapes and bytes of the outputs; everything is given back."""
        shapes = [[self.slots[s] for s in x["slots"]] for x in self.plan["outputs"]]
        text = json.dumps(shapes).encode()
        content = b"".join(m.read() for m in self.outputs)
        for m in self.memory:
            m.release()
        return np.int64(len(text)).tobytes() + text + content


def serve() -> None:
    """Do what comes on stdin."""
    server = _Server()
    while (first := read_frame(sys.stdin.buffer)) is not None:
        head, data = json.loads(first), read_frame(sys.stdin.buffer)
        assert data is not None
        try:
            answer = server.build(head, data) if "build" in head else server.run(head, data)
            write_frame(sys.stdout.buffer, b"\x01" + answer)
        except (RuntimeError, ValueError) as problem:
            write_frame(sys.stdout.buffer, b"\x00" + str(problem).encode())


if __name__ == "__main__":
    serve()
