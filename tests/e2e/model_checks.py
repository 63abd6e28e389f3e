"""Drawn ONNX models through the compiler and other engines: `python -m tests.e2e.model_checks FIRST COUNT`.

Prints the seed of a model before it is tried, and then a JSON list: the seed, a verdict, and what is to be said of it.
Memory that native code sees ends at a page that nobody may touch, so that what goes too far ends the process.

verdicts: "right": as onnxruntime or `onnx.reference` has it, or all refuse; "refused": not compiled, with a reason;
"alone": only our primitives' interpreter agrees; "more": an answer where the others refuse; "less": no answer where
others have one; "skipped": nobody can say what is right; all others are faults.
"""

from __future__ import annotations

import ctypes
import json
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

import fissile
from fissile import pipeline
from fissile.errors import FissileError, UnsupportedError
from fissile.fission import fission
from fissile.frontend import read_model
from fissile.ir.graph import evaluate
from fissile.options import Options
from fissile.reference import evaluate as run_foreign
from fissile.reference.evaluator import runner
from fissile.runtime import frame
from fissile.runtime.lend import Lender
from tests.e2e.here import compiling_here
from tests.e2e.machine import Guarded
from tests.e2e.model_draw import Drawn, drawn
from tests.e2e.model_pool import numpy_type
from tests.fission.oracle import onnxruntime_errors, reference, symbols_of

Array = npt.NDArray[Any]
Answer = list[Array] | str  # the outputs, or why there are none
TOLERANCE = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-2, "bfloat16": 6e-2}
FAULTS = ("wrong", "bits", "bare", "failed")


# ---------------------------------------------------------------- guarded memory


def _view(address: int, shape: Sequence[int], dtype: np.dtype) -> Array:
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = (ctypes.c_uint8 * max(size, 1)).from_address(address)
    array: Array = np.ctypeslib.as_array(raw)[:size].view(dtype).reshape(tuple(shape))
    return array


class _Memory:
    """All that was handed out for one model."""

    def __init__(self) -> None:
        self.held: list[Guarded] = []

    def array(self, shape: Sequence[int], dtype: np.dtype) -> Array:
        """An array that ends at a guard, full of canaries."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.held.append(Guarded.of(size, lead=False))
        return _view(self.held[-1].start, shape, dtype)

    def release(self) -> None:
        """ValueError where something was written before a buffer."""
        while self.held:
            self.held.pop().release()


MEMORY = _Memory()


class GuardedArena:
    """What `fissile.runtime.memory.Arena` does, with a guard behind the last byte asked for."""

    def __init__(self) -> None:
        self.memory: Array | None = None

    def reserve(self, size: int) -> int:
        """Memory for a call that begins: what is there, if it has just this size."""
        size = -(-size // 64) * 64
        if self.memory is None or len(self.memory) != size:
            self.memory = MEMORY.array((size,), np.dtype(np.uint8))
        return int(self.memory.ctypes.data)

    def extend(self, size: int) -> int:
        """At least so much, with the old contents."""
        old = self.memory
        if old is None or size > len(old):
            self.memory = None
            self.reserve(size)
            if old is not None and self.memory is not None:
                self.memory[: len(old)] = old
        assert self.memory is not None
        return int(self.memory.ctypes.data)


def _lend(_: Lender, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Array, int]:
    array = MEMORY.array(shape, dtype)
    return array, int(array.ctypes.data)


# ---------------------------------------------------------------- what is right


def _answer(ask: Callable[[], Sequence[Any]], refusals: tuple[type[Exception], ...]) -> Answer:
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [np.asarray(a) for a in ask()]
    except refusals as error:
        return f"{type(error).__name__}: {str(error).strip()[:200]}"


def _engines(case: Drawn, feeds: dict[str, Array]) -> dict[str, Answer]:
    """The answers of others. An Einsum of nothing ends onnxruntime's process."""
    found = {"reference": _answer(lambda: runner(case.model).run(None, feeds), (Exception,))}
    refusals = (*onnxruntime_errors, RuntimeError)
    if "Einsum" in case.operators:
        found["onnxruntime"] = "RuntimeError: not asked"
    else:
        found["onnxruntime"] = _answer(lambda: reference(case.model, feeds), refusals)
    return found


def _interpreted(case: Drawn, feeds: dict[str, Array]) -> list[Array]:
    """The outputs by our primitives, which have bfloat16 as its bits."""
    graph = fission(read_model(case.model), foreign=True)
    bits = numpy_type("bfloat16")
    given = {n: a.view(np.uint16) if a.dtype == bits else a for n, a in feeds.items()}
    found = evaluate(graph, given, symbols_of(graph, given), run_foreign)
    kinds = [node.dtype.name for _, node in graph.outputs]
    return [a.view(bits) if k == "bfloat16" else a for k, a in zip(kinds, found.values())]


def _same(got: Sequence[Array], want: Sequence[Array], exact: Sequence[bool]) -> bool:
    return len(got) == len(want) and all(map(_equal, got, want, exact))


def _equal(a: Array, b: Array, exact: bool) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    kind = a.dtype.name
    if kind not in TOLERANCE:
        return bool(np.array_equal(a, b))
    x, y = a.astype(np.float64), b.astype(np.float64)
    finite = np.abs(y[np.isfinite(y)])
    allowed = 0.0 if exact else TOLERANCE[kind] * float(finite.max(initial=1e-30))
    return bool(np.allclose(x, y, 0 if exact else TOLERANCE[kind], allowed, equal_nan=True))


# ---------------------------------------------------------------- one model


def verdict(case: Drawn) -> tuple[str, str]:
    """What comes of the model: a word, and more. Substitutions may move infinities, so odd models have none."""
    options = Options(substitute=not case.odd)
    try:
        one = fissile.compile(case.model, threads=1, cache=False, foreign="allow", options=options)
    except UnsupportedError as error:
        return "refused", str(error)
    except FissileError as error:
        return _uncompiled(case, error)
    except Exception:  # noqa: BLE001 - whatever comes is the finding
        return "bare", traceback.format_exc()[-1500:]
    two = one.with_threads(2)
    found = [_call(case, one, two, feeds) for feeds in case.feeds]
    worst = next((f for f in found if f[0] in FAULTS), None)
    return worst or next((f for f in found if f[0] != "right"), found[0])


def _uncompiled(case: Drawn, error: FissileError) -> tuple[str, str]:
    """A model that others do not take either is no model."""
    if any(_is_answered(_engines(case, feeds)) for feeds in case.feeds):
        return "failed", str(error)
    return "right", "nobody takes it"


def _is_answered(answers: dict[str, Answer]) -> bool:
    """Whether there is an answer. What onnxruntime refuses may be refused, unless it only lacks the operator."""
    runtime, words = answers["onnxruntime"], answers["reference"]
    if isinstance(runtime, str) and not runtime.startswith(("NotImplemented", "RuntimeError")):
        return False
    return isinstance(runtime, list) or isinstance(words, list)


def _call(case: Drawn, one: Any, two: Any, feeds: dict[str, Array]) -> tuple[str, str]:
    guarded = {}
    for name, array in feeds.items():
        guarded[name] = MEMORY.array(array.shape, array.dtype)
        guarded[name][...] = array
    got = _answer(lambda: [a.copy() for a in one.run(guarded).values()], (FissileError,))
    again = _answer(lambda: [a.copy() for a in two.run(guarded).values()], (FissileError,))
    if isinstance(got, list) and isinstance(again, list):
        if any(a.tobytes() != b.tobytes() for a, b in zip(got, again, strict=True)):
            return "bits", f"{got} on one thread, {again} on two"
    elif isinstance(got, list) != isinstance(again, list):
        return "bits", f"{got} on one thread, {again} on two"
    return _compared(case, feeds, got)


def _compared(case: Drawn, feeds: dict[str, Array], got: Answer) -> tuple[str, str]:
    answers = _engines(case, feeds)
    given = {who: a for who, a in answers.items() if isinstance(a, list)}
    if isinstance(got, str):
        if not _is_answered(answers):
            return "right", "others refuse, too"
        return "less", f"{got} | {', '.join(given)} has an answer"
    if any(_same(got, a, case.exact) for a in given.values()):
        return "right", ""
    own = _answer(lambda: _interpreted(case, feeds), (Exception,))
    alike = isinstance(own, list) and _same(got, own, case.exact)
    shapes = {n: a.shape for n, a in feeds.items()}
    said = f"at {shapes}: {got}, not {answers}; primitives: {'the same' if alike else own}"
    if given:
        return ("alone" if alike else "wrong"), said
    return ("more" if alike else "skipped"), said


def main(start: int, count: int) -> None:
    """Try the models of these seeds."""
    with (
        patch.object(pipeline, "compiling", compiling_here),
        patch.object(frame, "Arena", GuardedArena),
        patch.object(Lender, "lend", _lend),
    ):
        for seed in range(start, start + count):
            print(seed, flush=True)
            case = drawn(seed)
            word, more = verdict(case)
            MEMORY.release()
            said = [seed, word, more, sorted(set(case.operators))]
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
