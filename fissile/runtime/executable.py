"""The executable: a loaded artifact that runs (PRODUCT 4.1 to 4.3).

In: an artifact and feeds. Out: output arrays. A shape is bound once (native code fills the slots);
after that a call writes the addresses of its arrays and makes one native call.
Invariant: an executable is immutable; every concurrent call has a frame of its own (context, slots,
arena, scratch), so any number of threads may call. The bits of a result do not depend on threads.
"""

import json
import mmap as mapping
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import numpy as np

from fissile.errors import ArtifactError, FissileError, InvalidFeed, OptionError, did_you_mean
from fissile.runtime.artifact import Artifact, atomic_file, check_members, read_artifact
from fissile.runtime.bind import Binding, Shape, bind_extents, bind_shapes
from fissile.runtime.feeds import Array, check_names, check_out, check_overlap, convert
from fissile.runtime.frame import Frame
from fissile.runtime.hold import Hold
from fissile.runtime.lend import Lender
from fissile.runtime.manifest import REPORT
from fissile.runtime.memory import address_of
from fissile.runtime.plan import TensorInfo
from fissile.runtime.profile import Profile, profile_of
from fissile.runtime.program import Program, load_program
from fissile.runtime.segments import Run, Seconds, run_segments
from fissile.runtime.threads import (
    MAX_THREADS,
    Busy,
    Gang,
    can_gang,
    default_threads,
    gang,
    measure_ticks,
)
from fissile.runtime.weights import Buffer

_KEPT_BINDINGS = 256
_IDLE_SECONDS = 1.0
_PAGE = 4096
_MOST_RUNS = 1_000_000  # that are profiled at once

__all__ = ["Executable", "Memory", "TensorInfo", "load"]


@dataclass(frozen=True)
class Memory:
    """Bytes: arena and scratch of one call at a shape, and the weights all processes share."""

    arena: int
    weights: int
    scratch: int


def load(
    artifact: str | os.PathLike[str] | Buffer,
    *,
    threads: int | None = None,
    busy: Busy = "wait",
    mmap: bool = True,
    verify: bool = False,
) -> "Executable":
    """Load a `.fsl` file, or its bytes, with numpy alone.

    threads: gang size of one call (None: FISSILE_NUM_THREADS, then the cores allowed). busy: what a
    call does while another one holds the gang. mmap: False copies the file into memory. verify: read the weights, too,
    and compare their hash. ArtifactError, FileMissing, FileAccess, OptionError.
    """
    count = default_threads() if threads is None else checked_threads(threads)
    if busy not in ("wait", "solo", "error"):
        raise OptionError("F604", f"busy={busy!r}", remedy='busy="wait", "solo" or "error"')
    found = read_artifact(artifact, mapped=mmap)
    if verify:
        check_members(found)
    return Executable(load_program(found), count, busy)


def executable_of(artifact: Artifact, threads: int | None = None) -> "Executable":
    """What runs an artifact that has been read; threads as for `load`."""
    count = default_threads() if threads is None else checked_threads(threads)
    return Executable(load_program(artifact), count, "wait")


class Executable:
    """A compiled model. Made by `load` and `compile`; immutable, thread-safe, picklable."""

    def __init__(self, program: Program, threads: int, busy: Busy) -> None:
        manifest = program.artifact.manifest
        self.inputs: tuple[TensorInfo, ...] = tuple(t.info for t in program.plan.inputs)
        self.outputs: tuple[TensorInfo, ...] = tuple(t.info for t in program.plan.outputs)
        self.manifest: Mapping[str, Any] = MappingProxyType(dict(manifest))
        self.metadata: Mapping[str, str] = MappingProxyType(dict(manifest.get("metadata", {})))
        self.foreign: tuple[str, ...] = tuple(manifest.get("foreign", ()))
        self.threads = threads
        self.busy: Busy = busy
        self._program: Program | None = program
        self._bindings: dict[tuple[Shape, ...], Binding] = {}
        self._living: set[Frame] = set()
        self._recent: Frame | None = None  # the one of them that was used last
        self._lenders = [Lender(self._living) for _ in self.outputs]

    def run(
        self,
        feeds: Mapping[str, Any],
        outputs: Sequence[str] | None = None,
        *,
        out: Mapping[str, Array] | None = None,
    ) -> dict[str, Array]:
        """Arrays by input name -> fresh arrays by output name (all, or those in `outputs`).

        out: arrays to write into, by output name. InvalidFeed names what does not fit and the remedy.
        """
        wanted = None if outputs is None else self._wanted(outputs)
        if out is not None and not isinstance(out, Mapping):
            raise _no_targets(out)
        arrays = self._collect(feeds)
        results = self._call(arrays, out)
        named = {info.name: result for info, result in zip(self.outputs, results)}
        return named if wanted is None else {name: named[name] for name in wanted}

    def __call__(self, *args: Any, **feeds: Any) -> Any:
        """Inputs by position or name -> the output, or a tuple where the model has several."""
        if len(args) > len(self.inputs):
            raise InvalidFeed("F202", f"{len(args)} arrays given, the model has {len(self.inputs)}")
        named = {info.name: value for info, value in zip(self.inputs, args)}
        twice = sorted(named.keys() & feeds.keys())
        if twice:
            raise InvalidFeed("F202", "inputs are given by position and by name", where=twice)
        results = self._call(self._collect({**named, **feeds}), None)
        return results[0] if len(results) == 1 else tuple(results)

    def with_threads(self, threads: int) -> "Executable":
        """The same program with another gang size; code and weights are shared."""
        return Executable(self.program, checked_threads(threads), self.busy)

    def warm(self, shapes: Mapping[str, int] | None = None) -> None:
        """Page in code and weights and reserve the arena for a shape, given by dimension names."""
        program = self.program
        binding = bind_extents(program, shapes)
        self._remember(binding)
        hold = Hold()
        try:
            self._take_frame(program, hold).reserve(binding)
        finally:
            hold.over = True
        if hasattr(mapping, "MADV_WILLNEED"):
            program.artifact.buffer.madvise(mapping.MADV_WILLNEED)
        np.frombuffer(program.artifact.buffer, np.uint8)[::_PAGE].max()

    def memory(self, shapes: Mapping[str, int] | None = None) -> Memory:
        """What one call at a shape (by dimension names, default 1) needs, in bytes."""
        program = self.program
        binding = bind_extents(program, shapes)
        return Memory(binding.arena, program.weight_bytes, binding.scratch * self.threads)

    def profile(self, feeds: Mapping[str, Any], *, runs: int = 20) -> Profile:
        """Time `runs` runs launch by launch, after one that is not counted."""
        program = self.program
        plan = program.plan
        if isinstance(runs, bool) or not isinstance(runs, int) or not 0 <= runs <= _MOST_RUNS:
            raise OptionError("F601", f"runs={runs!r}", remedy=f"a number from 1 to {_MOST_RUNS}")
        arrays = self._collect(feeds)
        stamps = np.zeros((runs, 2 * len(plan.launches)), np.int64)
        calls = np.zeros((runs, len(plan.calls)))
        self._call(arrays, None)
        binding = self._bindings[tuple([array.shape for array in arrays])]
        for row, seconds in zip(stamps, calls):
            if not plan.calls:
                self._call(arrays, None, address_of(row))
            else:
                self._in_segments(program, binding, arrays, None, address_of(row), seconds)
        ticks = measure_ticks(program.image)
        found = profile_of(plan, binding.slots, stamps, calls, ticks)
        return replace(found, threads=self.threads, weights=program.weight_bytes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the artifact; atomic."""
        program = self.program
        with atomic_file(path) as stream:
            stream.write(program.artifact.buffer)

    def report(self) -> Mapping[str, Any]:
        """What the compiler recorded about this program (`report.json`). ArtifactError F101 where it is damaged."""
        artifact = self.program.artifact
        check_members(artifact, [REPORT])
        return dict(json.loads(bytes(artifact.member(REPORT))))

    def close(self) -> None:
        """Let go of code, weights and arenas; calls that are running finish."""
        self._program = None
        self._recent = None
        self._living.clear()
        self._bindings.clear()
        self._trim()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        artifact = self.program.artifact
        if artifact.path is None:
            return _from_bytes, (bytes(artifact.buffer), self.threads, self.busy)
        path = str(artifact.path.resolve())
        return _from_path, (path, artifact.sha256, self.threads, self.busy)

    def __repr__(self) -> str:
        names = ", ".join(f"{i.name}: {i.dtype}{list(i.shape)}" for i in self.inputs)
        return f"<fissile.Executable ({names}), threads={self.threads}>"

    @property
    def program(self) -> Program:
        """What is loaded; an error once the executable is closed."""
        if self._program is None:
            raise FissileError("F106", "this executable has been closed", remedy="load it again")
        return self._program

    def _wanted(self, names: Sequence[str]) -> Sequence[str]:
        known = [info.name for info in self.outputs]
        if isinstance(names, str | bytes) or not isinstance(names, Iterable):
            raise InvalidFeed(
                "F209",
                f"outputs={names!r} is no sequence of names",
                reason=f"outputs: {', '.join(known)}",
                remedy=f"outputs={known[:1]}",
            )
        names = list(names)
        unknown = [name for name in names if name not in known]
        if unknown:
            raise InvalidFeed(
                "F209",
                "the model has no such output",
                where=[str(name) for name in unknown],
                reason=f"outputs: {', '.join(known)}",
                remedy=did_you_mean(str(unknown[0]), known),
            )
        return names

    def _collect(self, feeds: Mapping[str, Any]) -> list[Array]:
        if type(feeds) is not dict and not isinstance(feeds, Mapping):
            raise _no_mapping(feeds, self.inputs)
        if len(feeds) != len(self.inputs) or any(i.name not in feeds for i in self.inputs):
            check_names(self.inputs, feeds)
        arrays: list[Array] = []
        for info in self.inputs:
            value = feeds[info.name]
            # The common case is decided by identity; `convert` decides all others.
            if type(value) is np.ndarray and value.dtype is info.dtype:
                flags = value.flags
                if flags.c_contiguous and flags.aligned and value.ndim == len(info.shape):
                    arrays.append(value)
                    continue
            arrays.append(convert(info, value))
        return arrays

    def _call(
        self, arrays: list[Array], out: Mapping[str, Array] | None, stamps: int = 0
    ) -> list[Array]:
        program = self.program
        shapes = tuple([array.shape for array in arrays])
        binding = self._bindings.get(shapes)
        if binding is None:
            binding = bind_shapes(program, shapes)
            self._remember(binding)
        if program.plan.calls:
            return self._in_segments(program, binding, arrays, out, stamps)
        if out:
            self._check_out(out, binding, arrays)
        results: list[Array] = []
        addresses = [address_of(array) for array in arrays]
        for info, shape, lender in zip(self.outputs, binding.outputs, self._lenders):
            if out and info.name in out:
                result = out[info.name]
                address = address_of(result)
            else:
                result, address = lender.lend(shape, info.dtype)
            results.append(result)
            addresses.append(address)
        self._run_frame(program, binding, addresses, stamps)
        return results

    def _in_segments(
        self,
        program: Program,
        binding: Binding,
        arrays: list[Array],
        out: Mapping[str, Array] | None,
        stamps: int = 0,
        seconds: Seconds | None = None,
    ) -> list[Array]:
        """A run with operators in Python between native segments; the gang is held throughout."""
        self._wanted(list(out or ()))
        hold, crew = Hold(), None
        try:
            crew = gang(program.image) if self.threads > 1 and can_gang() else None
            block = self._block(crew, hold) if crew else 0
            frame = self._take_frame(program, hold)
            run = Run(program, frame, binding, arrays, self._lenders, out or {}, seconds)
            return run_segments(run, block, stamps)
        finally:
            hold.over = True
            self._give_back(crew, hold)

    def _run_frame(
        self, program: Program, binding: Binding, addresses: list[int], stamps: int
    ) -> None:
        hold, crew = Hold(), None
        try:
            alone = self.threads == 1 or binding.is_tiny or not can_gang()
            crew = None if alone else gang(program.image)
            block = self._block(crew, hold) if crew else 0
            self._take_frame(program, hold).run(binding, addresses, block, stamps)
        finally:
            hold.over = True
            if crew or len(self._living) > 1:
                self._give_back(crew, hold)

    def _block(self, crew: Gang, hold: Hold) -> int:
        """The address of the gang, which `hold` then has; 0 where the call is to run alone."""
        return crew.block if crew.acquire(hold, self.threads, self.busy) else 0

    def _give_back(self, crew: Gang | None, hold: Hold) -> None:
        """Tell those who wait that the call is over, and let go of what has not been needed lately."""
        if crew is not None:
            crew.release(hold)
        if len(self._living) > 1:
            self._drop_frame()

    def _check_out(self, out: Mapping[str, Array], binding: Binding, arrays: list[Array]) -> None:
        self._wanted(list(out))
        for info, shape in zip(self.outputs, binding.outputs):
            if info.name in out:
                check_out(info, out[info.name], shape)
        check_overlap(out, arrays)

    def _take_frame(self, program: Program, hold: Hold) -> Frame:
        """A frame of this call's own: the one used last, if no other call has it."""
        frame = self._recent
        if frame is not None and frame.claim(hold):
            if len(self._living) > 1:
                frame.last_used = time.monotonic()
            return frame
        for frame in sorted(self._living, key=_last_used, reverse=True):
            if frame.claim(hold):
                break
        else:
            frame = Frame(program, self.threads, hold)
            self._living.add(frame)
        frame.last_used = time.monotonic()
        self._recent = frame
        return frame

    def _drop_frame(self) -> None:
        """Of several idle frames the oldest goes once no call has needed it lately."""
        idle = [frame for frame in tuple(self._living) if frame.holder.over]
        oldest = min(idle, key=_last_used, default=None)
        if oldest is None or len(idle) < 2 or time.monotonic() - oldest.last_used < _IDLE_SECONDS:
            return
        hold = Hold()
        try:
            if oldest.claim(hold):
                self._living.discard(oldest)
                self._trim()
        finally:
            hold.over = True

    def _trim(self) -> None:
        for lender in self._lenders:
            lender.trim()

    def _remember(self, binding: Binding) -> None:
        bindings = self._bindings
        if len(bindings) >= _KEPT_BINDINGS:
            # Another thread may have dropped it meanwhile.
            bindings.pop(next(iter(bindings.copy())), None)
        bindings[binding.inputs] = binding


def _last_used(frame: Frame) -> float:
    return frame.last_used


def checked_threads(threads: int) -> int:
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
        raise OptionError(
            "F702", f"threads={threads!r}", remedy=f"a number from 1 to {MAX_THREADS}"
        )
    return threads


def _from_bytes(data: bytes, threads: int, busy: Busy) -> Executable:
    return load(data, threads=threads, busy=busy)


def _from_path(path: str, sha256: str, threads: int, busy: Busy) -> Executable:
    executable = load(Path(path), threads=threads, busy=busy)
    found = executable.program.artifact.sha256
    if found != sha256:
        raise ArtifactError(
            "F108",
            f"{path} is no longer the artifact that was pickled",
            reason=f"manifest {found[:12]} instead of {sha256[:12]}",
            remedy="pickle the executable again, or put the old file back",
        )
    return executable


def _no_targets(out: object) -> InvalidFeed:
    return InvalidFeed(
        "F208",
        "out is a mapping from output names to arrays",
        reason=f"{type(out).__name__} given",
        remedy='run(feeds, out={"NAME": array})',
    )


def _no_mapping(feeds: object, inputs: Sequence[TensorInfo]) -> InvalidFeed:
    names = ", ".join(f'"{info.name}": ...' for info in inputs)
    return InvalidFeed(
        "F202",
        "feeds are a mapping from input names to arrays",
        reason=f"{type(feeds).__name__} given",
        remedy=[f"run({{{names}}})", "call the executable itself with arrays in their order"],
    )
