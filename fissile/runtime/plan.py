"""The plan an artifact carries: launches, patches, shapes and guards, as the runtime needs them.

In: the JSON of `plan.json`. Out: a frozen `Plan` whose tables are laid out as native code reads
them (codegen/support/gang.ll). Invariant: every slot number lies inside the slots, every launch
names an entry; native code does not check again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from fissile.errors import ArtifactError
from fissile.runtime.memory import Words, aligned_words

_EXTENSION_TYPES = ("bfloat16", "float8", "int4", "uint4", "float4", "int2", "uint2")
_RELATIONS = ("eq", "le", "ge")

DType = np.dtype[Any]


@dataclass(frozen=True)
class TensorInfo:
    """An input or output. shape: a number, a name, an expression, or None where anything goes."""

    name: str
    dtype: DType
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True)
class Tensor:
    """An input or output as the plan sees it: `slots[axis]` holds its extent once bound.

    level: how many calls must have returned before all extents are known.
    """

    info: TensorInfo
    slots: tuple[int, ...]
    level: int = 0


@dataclass(frozen=True)
class Symbol:
    """A free dimension: extent of `axis` of input number `input` = value * scale + offset."""

    name: str
    input: int
    axis: int
    scale: int
    offset: int


@dataclass(frozen=True)
class LateSymbol:
    """A dimension that depends on data: the extent of `axis` of output `output` of call `call`."""

    name: str
    call: int
    output: int
    axis: int


@dataclass(frozen=True)
class Guard:
    """Two slots that must stand in `relation` for this plan to be valid, once `level` calls have returned."""

    left: int
    right: int
    relation: str
    message: str
    level: int = 0


@dataclass(frozen=True)
class Operand:
    """A tensor that a call reads or writes: type, base and slot of its byte offset, slots of its extents.

    output: its number among the operator's results (0 for what is read).
    """

    dtype: DType
    base: int
    offset: int
    slots: tuple[int, ...]
    output: int = 0


@dataclass(frozen=True)
class Call:
    """An operator that runs in Python. step: how many native steps come before it.

    provider: the package that runs it; "" for operators that Python itself runs.
    """

    name: str
    operator: str
    model: int
    step: int
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    provider: str = ""


@dataclass(frozen=True)
class Launch:
    """A kernel over a grid: arguments from slot `first` on, task count in slot `tasks`.

    work: slots of the bytes of weights, other bytes and operations it needs at least; () when not known.
    """

    kernel: str
    first: int
    tasks: int
    step: int
    nodes: tuple[str, ...]
    work: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Plan:
    """`steps[i]`: number of the first launch of step i, and one more entry for the end.

    template: what the slots hold before a shape is bound. arena: the slot with its size in bytes,
    scratch: the slot with the bytes per thread. width: most launches in one step. patches: (destination slot, base,
    offset slot), bases being arena, weights, inputs, outputs.
    """

    symbols: tuple[Symbol, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    template: Words
    patches: Words
    launches: tuple[Launch, ...]
    steps: Words
    width: int
    guards: tuple[Guard, ...]
    arena: int
    scratch: int
    entries: Mapping[str, int]
    late: tuple[LateSymbol, ...] = ()
    calls: tuple[Call, ...] = ()
    sums: tuple[tuple[int, int], ...] = ()


def read_plan(text: bytes | memoryview) -> Plan:
    """Parse and check `plan.json`; ArtifactError F104 if it contradicts itself."""
    try:
        plan = _parsed(json.loads(bytes(text)))
        _check(plan)
        _check_calls(plan)
    except ArtifactError:
        raise
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise _contradiction(f"{type(error).__name__}: {error}") from error
    return plan


def numpy_dtype(name: str) -> DType:
    """The numpy type of a tensor at the boundary; types numpy lacks come from ml_dtypes."""
    if name.startswith(_EXTENSION_TYPES):
        extension: DType = np.dtype(getattr(import_module("ml_dtypes"), name))
        return extension
    return np.dtype(name)


def _parsed(raw: Mapping[str, Any]) -> Plan:
    launches = tuple(_launch(x) for x in raw["launches"])
    steps = _steps([launch.step for launch in launches])
    if len(raw["template"]) != raw["slots"]:
        raise ValueError("the template is not as long as the slots")
    template = aligned_words(max(raw["slots"], 1))
    template[: raw["slots"]] = raw["template"]
    patches = aligned_words(3 * len(raw["patches"])).reshape(-1, 3)
    patches[:] = np.array(raw["patches"], np.int64).reshape(-1, 3)
    return Plan(
        tuple(
            Symbol(x["name"], x["input"], x["axis"], x.get("scale", 1), x.get("offset", 0))
            for x in raw["symbols"]
        ),
        tuple(_tensor(x) for x in raw["inputs"]),
        tuple(_tensor(x) for x in raw["outputs"]),
        template,
        patches,
        launches,
        steps,
        int(np.diff(steps).max(initial=1)),
        tuple(
            Guard(x["left"], x["right"], x["relation"], x["message"], x.get("level", 0))
            for x in raw.get("guards", ())
        ),
        raw["arena"],
        raw["scratch"],
        dict(raw["entries"]),
        tuple(
            LateSymbol(x["name"], x["call"], x["output"], x["axis"]) for x in raw.get("late", ())
        ),
        tuple(_call(x, launches) for x in raw.get("calls", ())),
        tuple((arena, scratch) for arena, scratch in raw.get("sums", ())),
    )


def _call(raw: Mapping[str, Any], launches: Sequence[Launch]) -> Call:
    before = len({launch.step for launch in launches if launch.step < raw["step"]})
    inputs, outputs = (tuple(map(_operand, raw[side])) for side in ("inputs", "outputs"))
    facts = raw["name"], raw["operator"], raw["model"], before
    return Call(*facts, inputs, outputs, raw.get("provider", ""))


def _operand(raw: Mapping[str, Any]) -> Operand:
    place = raw["base"], raw["offset"], tuple(raw["slots"])
    return Operand(numpy_dtype(raw["dtype"]), *place, raw.get("output", 0))


def _launch(raw: Mapping[str, Any]) -> Launch:
    nodes, work = tuple(raw.get("nodes", ())), tuple(raw.get("work", ()))
    if len(work) not in (0, 3):
        raise ValueError(f"launch of {raw['kernel']} has {len(work)} numbers of work")
    return Launch(raw["kernel"], raw["first"], raw["tasks"], raw["step"], nodes, work)


def _tensor(raw: Mapping[str, Any]) -> Tensor:
    info = TensorInfo(raw["name"], numpy_dtype(raw["dtype"]), tuple(raw["shape"]))
    return Tensor(info, tuple(raw["slots"]), raw.get("level", 0))


def _steps(numbers: Sequence[int]) -> Words:
    """Step numbers of the launches, ascending -> index of the first launch of each, and the end."""
    if any(a > b for a, b in zip(numbers, numbers[1:])):
        raise ValueError("launches are not in the order of their steps")
    starts = [i for i, n in enumerate(numbers) if i == 0 or n != numbers[i - 1]]
    steps = aligned_words(len(starts) + 1)
    steps[:] = [*starts, len(numbers)]
    return steps


def _check(plan: Plan) -> None:
    count = len(plan.template)
    slots = [plan.arena, plan.scratch, *plan.patches[:, 0], *plan.patches[:, 2]]
    slots += [s for launch in plan.launches for s in (launch.first, launch.tasks, *launch.work)]
    slots += [s for tensor in (*plan.inputs, *plan.outputs) for s in tensor.slots]
    slots += [s for guard in plan.guards for s in (guard.left, guard.right)]
    slots += [s for pair in plan.sums for s in pair]
    operands = [o for call in plan.calls for o in (*call.inputs, *call.outputs)]
    slots += [s for o in operands for s in (o.offset, *o.slots)]
    if any(not 0 <= s < count for s in slots):
        raise _contradiction(f"a slot number is not below {count}")
    bases = 2 + len(plan.inputs) + len(plan.outputs)
    if any(not 0 <= base < bases for base in [*plan.patches[:, 1], *(o.base for o in operands)]):
        raise _contradiction(f"a base number is not below {bases}")
    for launch in plan.launches:
        if launch.kernel not in plan.entries:
            raise _contradiction(f"kernel {launch.kernel} has no entry")
    for tensor in (*plan.inputs, *plan.outputs):
        if len(tensor.slots) != len(tensor.info.shape):
            raise _contradiction(f"{tensor.info.name}: rank and slots differ")
    for symbol in plan.symbols:
        rank = len(plan.inputs[symbol.input].slots)
        if symbol.axis >= rank or symbol.scale < 1:
            raise _contradiction(f"symbol {symbol.name} has no such axis, or a bad scale")
    if any(guard.relation not in _RELATIONS for guard in plan.guards):
        raise _contradiction("a guard has an unknown relation")


def _check_calls(plan: Plan) -> None:
    if plan.calls and len(plan.sums) != len(plan.calls) + 1:
        raise _contradiction("calls and segments do not fit")
    for late in plan.late:
        if late.axis >= len(plan.calls[late.call].outputs[late.output].slots):
            raise _contradiction(f"symbol {late.name} has no such axis")


def _contradiction(reason: str) -> ArtifactError:
    return ArtifactError(
        "F104",
        "the artifact's plan contradicts itself",
        reason=reason,
        remedy="compile the model again; if it happens twice, it is a bug of the compiler",
    )
