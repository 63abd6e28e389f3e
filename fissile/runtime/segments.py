"""A call in segments: native steps, then an operator in Python, then native steps again (DESIGN 3.1, 3.8).

In: a frame, a binding and the arrays of the inputs. Out: the output arrays. After every operator the extents that it
decides are read off its results, and the slots are bound anew; what was known before does not move.
Invariant: all state is the frame's own, so calls may run side by side.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fissile.errors import CompileError, Place
from fissile.runtime.bind import Binding, bind_late
from fissile.runtime.feeds import Array, check_out, check_overlap
from fissile.runtime.frame import Frame
from fissile.runtime.lend import Lender
from fissile.runtime.memory import Bytes, Words, address_of
from fissile.runtime.plan import ARENA, Call, Operand, contradiction
from fissile.runtime.program import Program

Seconds = npt.NDArray[np.float64]


@dataclass
class Run:
    """One run. arrays: of inputs; lenders: of outputs' memory; out: arrays to write into; seconds: of every call."""

    program: Program
    frame: Frame
    binding: Binding
    arrays: list[Array]
    lenders: Sequence[Lender]
    out: Mapping[str, Array] = field(default_factory=dict)
    seconds: Seconds | None = None


def run_segments(run: Run, gang: int = 0, stamps: int = 0) -> list[Array]:
    """The outputs. gang: address of the gang's block, 0 = alone; stamps: as in `Frame.run`.

    InvalidFeed where the extents found during the run contradict the model; CompileError F310 for an operator that
    fails or answers something else than its types say.
    """
    plan, frame = run.program.plan, run.frame
    slots = frame.begin(run.binding, [address_of(a) for a in run.arrays], gang, stamps)
    symbols = run.binding.symbols.copy()
    outputs: list[Array | None] = [None] * len(plan.outputs)
    done = 0
    for level in range(len(plan.calls) + 1):
        if level == 0:
            _known(run, 0, slots, outputs)
        end = plan.calls[level].step if level < len(plan.calls) else len(plan.steps) - 1
        frame.run_steps(done, end)
        done = end
        if level == len(plan.calls):
            break
        start = time.perf_counter()
        _call(run, level, symbols, slots, outputs)
        if run.seconds is not None:
            run.seconds[level] = time.perf_counter() - start
    return [array for array in outputs if array is not None]


def _known(run: Run, level: int, slots: Words, outputs: list[Array | None]) -> None:
    """Memory for everything whose extents are known now."""
    plan = run.program.plan
    arena, scratch = (int(slots[s]) for s in plan.sums[level])
    run.frame.extend(arena, scratch)
    for index, tensor in enumerate(plan.outputs):
        if tensor.level != level:
            continue
        shape = tuple(int(slots[s]) for s in tensor.slots)
        given = run.out.get(tensor.info.name)
        if given is not None:
            check_out(tensor.info, given, shape)
            check_overlap({tensor.info.name: given}, run.arrays)
            array, address = given, address_of(given)
        else:
            array, address = run.lenders[index].lend(shape, tensor.info.dtype)
        outputs[index] = array
        run.frame.place_output(index, address)


def _call(
    run: Run, number: int, symbols: Words, slots: Words, outputs: list[Array | None]
) -> None:
    """Run call `number`, bind what it decides, and put its results into their places."""
    plan, frame = run.program.plan, run.frame
    call = plan.calls[number]
    inputs = [_view(run, operand, slots, outputs) for operand in call.inputs]
    for array in inputs:
        array.flags.writeable = False
    try:
        if call.model not in frame.evaluators:
            assert run.program.evaluator is not None
            frame.evaluators[call.model] = run.program.evaluator(call, frame.threads)
        results = [np.asarray(r) for r in frame.evaluators[call.model](inputs)]
    except Exception as error:
        raise _failed(call, f"{type(error).__name__}: {error}") from error
    if any(operand.output >= len(results) for operand in call.outputs):
        raise _failed(call, f"it gives {len(results)} results")
    found = [results[operand.output] for operand in call.outputs]
    for index, late in enumerate(plan.late, start=len(plan.symbols)):
        if late.call == number and late.axis < found[late.output].ndim:
            symbols[index] = found[late.output].shape[late.axis]
    bind_late(run.program, symbols, slots, number + 1)
    _known(run, number + 1, slots, outputs)
    for operand, array in zip(call.outputs, found, strict=True):
        shape = tuple(int(slots[s]) for s in operand.slots)
        if array.shape != shape or array.dtype != operand.dtype:
            text = f"it gives {array.dtype}{array.shape} where {operand.dtype}{shape} is expected"
            raise _failed(call, text)
        _view(run, operand, slots, outputs)[...] = array


def _view(run: Run, operand: Operand, slots: Words, outputs: list[Array | None]) -> Array:
    """A tensor where it lies."""
    shape = tuple(int(slots[s]) for s in operand.slots)
    index = operand.base - 2
    if index >= len(run.arrays):
        array = outputs[index - len(run.arrays)]
        assert array is not None
        return array.view()
    if index >= 0:
        return run.arrays[index].view()
    size = math.prod(shape) * operand.dtype.itemsize
    offset = int(slots[operand.offset])
    place = run.frame.bytes_at(offset, size) if operand.base == ARENA else _weights(run, offset, size)
    if min(shape, default=0) < 0 or offset < 0 or len(place) != size:
        raise contradiction(f"a tensor of {size} bytes does not lie in its memory")
    return place.view(operand.dtype).reshape(shape)


def _weights(run: Run, offset: int, size: int) -> Bytes:
    member = run.program.artifact.member("weights.safetensors")
    start = len(member) - run.program.weight_bytes + offset
    return np.frombuffer(member, np.uint8)[start : start + size]


def _failed(call: Call, reason: str) -> CompileError:
    return CompileError(
        "F310",
        f"an operator that runs in {call.provider or 'Python'} failed",
        where=Place(call.name, call.operator),
        reason=reason,
    )
