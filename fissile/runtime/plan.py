"""The plan an artifact carries: launches, patches, shapes and guards, as the runtime needs them.

In: the JSON of `plan.json`. Out: a frozen `Plan` whose tables are laid out as native code reads
them (codegen/support/gang.ll). Invariant: all that native code reads without looking is of its type
and in its range, and no launch depends on what is known only after a later call (`_check_levels`).
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np

from fissile.errors import ArtifactError
from fissile.runtime.memory import Words, aligned_words

_EXTENSION_TYPES = ("bfloat16", "float8", "int4", "uint4", "float4", "int2", "uint2")
_PLAIN_TYPES = frozenset(
    ["bool", "float16", "float32", "float64", "complex64", "complex128"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
_RELATIONS = ("eq", "le", "ge")
_WORD = 1 << 63
ARENA, WEIGHTS = 0, 1  # bases; then inputs, then outputs

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

    level: how many calls must have returned before all extents are known; nothing for inputs.
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
    """A kernel over a grid: `arguments` slots from `first` on, task count in slot `tasks`.

    work: slots of the bytes of weights, other bytes and operations it needs at least; () when not known.
    """

    kernel: str
    first: int
    tasks: int
    step: int
    nodes: tuple[str, ...]
    work: tuple[int, ...] = ()
    arguments: int = 0


@dataclass(frozen=True, eq=False)
class Plan:
    """`steps[i]`: number of the first launch of step i, and one more entry for the end.

    template: what the slots hold before a shape is bound. arena: the slot with its size in bytes,
    scratch: the slot with the bytes per thread. width: most launches in one step. patches: (destination slot, base,
    offset slot), bases being arena, weights, inputs, outputs. sums: per number of calls that have returned, the slots
    of the arena's bytes and of those of scratch. levels: for every slot how many calls must have returned before its
    number is final. weight_bytes: of all constants.
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
    levels: Words = field(default_factory=lambda: aligned_words(0))
    weight_bytes: int = 0

    @cached_property
    def offsets(self) -> Words:
        """The patches' (base, offset slot), each once."""
        return np.unique(self.patches[:, 1:], axis=0)

    @cached_property
    def final(self) -> tuple[Words, ...]:
        """By level: the slots whose numbers no later call changes. Those of addresses are not among them."""
        addresses = np.isin(np.arange(len(self.levels)), self.patches[:, 0])
        known = np.where(addresses, len(self.calls) + 1, self.levels)
        return tuple(np.flatnonzero(known <= level) for level in range(len(self.calls) + 1))


def read_plan(text: bytes | memoryview, again: str = "compile the model again") -> Plan:
    """Parse and check `plan.json`; ArtifactError F104 if it contradicts itself.

    F113 for one of a version whose launches may come before the calls that tell where they write; again: what to do.
    """
    try:
        raw = json.loads(bytes(text))
        if raw.get("calls") and "levels" not in raw:
            raise _outdated(again)
        plan = _parsed(raw)
        _check(plan)
        _check_patches(plan)
        _check_calls(plan)
        _check_levels(plan)
    except ArtifactError:
        raise
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError,
            ValueError) as error:  # fmt: skip
        raise contradiction(f"{type(error).__name__}: {error}") from error
    return plan


def numpy_dtype(name: str) -> DType:
    """The numpy type of a tensor at the boundary; types numpy lacks come from ml_dtypes."""
    if name.startswith(_EXTENSION_TYPES):
        extension: DType = np.dtype(getattr(import_module("ml_dtypes"), name))
        return extension
    if name not in _PLAIN_TYPES:
        raise ValueError(f"there is no type {name!r}")
    return np.dtype(name)


def _parsed(raw: Mapping[str, Any]) -> Plan:
    launches = tuple(_launch(x) for x in raw["launches"])
    steps = _steps([launch.step for launch in launches])
    count = _number(raw["slots"])
    template = _words(raw["template"])
    if len(template) != count or not count:
        raise ValueError("the template is not as long as the slots")
    patches = _words([_number(x) for row in raw["patches"] for x in _row(row, 3)]).reshape(-1, 3)
    calls = tuple(_call(x, launches) for x in _rows(raw, "calls"))
    sums = [_row(pair, 2) for pair in _rows(raw, "sums")]
    return Plan(
        tuple(_symbol(x) for x in raw["symbols"]),
        tuple(_tensor(x) for x in raw["inputs"]),
        tuple(_tensor(x) for x in raw["outputs"]),
        template,
        patches,
        launches,
        steps,
        int(np.diff(steps).max(initial=1)),
        tuple(_guard(x) for x in _rows(raw, "guards")),
        _number(raw["arena"]),
        _number(raw["scratch"]),
        {_text(name): _number(at) for name, at in raw["entries"].items()},
        tuple(_late(x) for x in _rows(raw, "late")),
        calls,
        tuple((_number(arena), _number(scratch)) for arena, scratch in sums),
        _words(raw["levels"] if calls else [0] * count),
        _number(raw.get("weights", 0)),
    )


def _number(value: Any) -> int:
    """A whole number that fits a word; TypeError or ValueError for anything else."""
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    if not -_WORD <= value < _WORD:
        raise ValueError(f"{value} does not fit a word")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r} is no text")
    return value


def _row(value: Any, length: int) -> Sequence[Any]:
    if type(value) is not list or len(value) != length:
        raise TypeError(f"{value!r} is no row of {length}")
    return value


def _rows(raw: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = raw.get(key, [])
    if type(value) is not list:
        raise TypeError(f"{key} is no list")
    return value


def _numbers(values: Any) -> tuple[int, ...]:
    if type(values) is not list:
        raise TypeError(f"{values!r} is no list of numbers")
    return tuple(_number(value) for value in values)


def _words(values: Any) -> Words:
    """Numbers as native code reads them."""
    numbers = _numbers(values)
    words = aligned_words(len(numbers))
    words[:] = numbers
    return words


def _symbol(raw: Mapping[str, Any]) -> Symbol:
    place = _number(raw["input"]), _number(raw["axis"])
    return Symbol(
        _text(raw["name"]), *place, _number(raw.get("scale", 1)), _number(raw.get("offset", 0))
    )


def _late(raw: Mapping[str, Any]) -> LateSymbol:
    return LateSymbol(_text(raw["name"]), *(_number(raw[x]) for x in ("call", "output", "axis")))


def _guard(raw: Mapping[str, Any]) -> Guard:
    sides = _number(raw["left"]), _number(raw["right"])
    said = _text(raw["relation"]), _text(raw["message"])
    return Guard(*sides, *said, _number(raw.get("level", 0)))


def _call(raw: Mapping[str, Any], launches: Sequence[Launch]) -> Call:
    step = _number(raw["step"])
    if any(launch.step == step for launch in launches):
        raise ValueError("a call shares its step")
    before = len({launch.step for launch in launches if launch.step < step})
    inputs, outputs = (tuple(map(_operand, raw[side])) for side in ("inputs", "outputs"))
    facts = _text(raw["name"]), _text(raw["operator"]), _number(raw["model"]), before
    return Call(*facts, inputs, outputs, _text(raw.get("provider", "")))


def _operand(raw: Mapping[str, Any]) -> Operand:
    place = _number(raw["base"]), _number(raw["offset"]), _numbers(raw["slots"])
    return Operand(numpy_dtype(_text(raw["dtype"])), *place, _number(raw.get("output", 0)))


def _launch(raw: Mapping[str, Any]) -> Launch:
    nodes = tuple(_text(name) for name in _rows(raw, "nodes"))
    work = _numbers(raw.get("work", []))
    if len(work) not in (0, 3):
        raise ValueError(f"launch of {raw['kernel']} has {len(work)} numbers of work")
    first, tasks = _number(raw["first"]), _number(raw["tasks"])
    # Plans of 0.1.0 have the task count right behind the arguments and do not say their number.
    arguments = _number(raw.get("arguments", tasks - first))
    return Launch(_text(raw["kernel"]), first, tasks, _number(raw["step"]), nodes, work, arguments)


def _tensor(raw: Mapping[str, Any]) -> Tensor:
    shape = tuple(raw["shape"])
    if any(type(extent) not in (int, str, type(None)) for extent in shape):
        raise TypeError(f"{raw['name']}: an extent is neither number nor name")
    info = TensorInfo(_text(raw["name"]), numpy_dtype(_text(raw["dtype"])), shape)
    return Tensor(info, _numbers(raw["slots"]), _number(raw.get("level", 0)))


def _steps(numbers: Sequence[int]) -> Words:
    """Step numbers of the launches, ascending -> index of the first launch of each, and the end."""
    if any(a > b for a, b in zip(numbers, numbers[1:])):
        raise ValueError("launches are not in the order of their steps")
    starts = [i for i, n in enumerate(numbers) if i == 0 or n != numbers[i - 1]]
    steps = aligned_words(len(starts) + 1)
    steps[:] = [*starts, len(numbers)]
    return steps


# ---------------------------------------------------------------- checks


def _check(plan: Plan) -> None:
    """Numbers of slots, bases, axes and entries are those of something."""
    count = len(plan.template)
    if any(not 0 <= s < count for s in _slots(plan)):
        raise contradiction(f"a slot number is not below {count}")
    bases = 2 + len(plan.inputs) + len(plan.outputs)
    named = (*plan.patches[:, 1], *(o.base for o in _operands(plan)))
    if any(not 0 <= base < bases for base in named):
        raise contradiction(f"a base number is not below {bases}")
    for launch in plan.launches:
        if launch.kernel not in plan.entries:
            raise contradiction(f"kernel {launch.kernel} has no entry")
        if not 0 <= launch.arguments <= count - launch.first:
            raise contradiction(f"kernel {launch.kernel} has arguments that are no slots")
    for tensor in (*plan.inputs, *plan.outputs):
        if len(tensor.slots) != len(tensor.info.shape):
            raise contradiction(f"{tensor.info.name}: rank and slots differ")
    for symbol in plan.symbols:
        known = 0 <= symbol.input < len(plan.inputs)
        if not known or not 0 <= symbol.axis < len(plan.inputs[symbol.input].slots):
            raise contradiction(f"symbol {symbol.name} has no such axis")
        if symbol.scale < 1:
            raise contradiction(f"symbol {symbol.name} has a bad scale")
    if any(guard.relation not in _RELATIONS for guard in plan.guards):
        raise contradiction("a guard has an unknown relation")


def _slots(plan: Plan) -> Iterator[int]:
    """All numbers of slots that the plan has, but for those of launches' arguments."""
    yield from (*_read_slots(plan), *map(int, plan.patches[:, 0]))
    for launch in plan.launches:
        yield launch.first if launch.arguments else 0


def _read_slots(plan: Plan) -> Iterator[int]:
    """The slots that hold a number and no address: what patches write is none of them."""
    yield from (plan.arena, plan.scratch, *map(int, plan.patches[:, 2]))
    for launch in plan.launches:
        yield from (launch.tasks, *launch.work)
    for tensor in (*plan.inputs, *plan.outputs):
        yield from tensor.slots
    for guard in plan.guards:
        yield from (guard.left, guard.right)
    for pair in plan.sums:
        yield from pair
    for operand in _operands(plan):
        yield from (operand.offset, *operand.slots)


def _operands(plan: Plan) -> list[Operand]:
    return [o for call in plan.calls for o in (*call.inputs, *call.outputs)]


def _check_patches(plan: Plan) -> None:
    """Addresses are written into arguments, and one into each; launches of a kernel have them at equal places."""
    written = {int(slot) for slot in plan.patches[:, 0]}
    if len(written) < len(plan.patches):
        raise contradiction("two addresses are written into one slot")
    if written & set(_read_slots(plan)):
        raise contradiction("an address is written into a slot that holds a number")
    signatures: dict[str, tuple[int, tuple[int, ...]]] = {}
    for launch in plan.launches:
        places = tuple(k for k in range(launch.arguments) if launch.first + k in written)
        signature = launch.arguments, places
        if signatures.setdefault(launch.kernel, signature) != signature:
            raise contradiction(f"launches of kernel {launch.kernel} have unlike arguments")


def _check_calls(plan: Plan) -> None:
    """Calls come in their order, and read and write tensors of the types and extents that those have."""
    if len(plan.sums) != (len(plan.calls) + 1 if plan.calls else 0):
        raise contradiction("calls and segments do not fit")
    if plan.calls and (plan.arena, plan.scratch) != plan.sums[0]:
        raise contradiction("the first segment has sizes of its own")
    if any(a.step > b.step for a, b in zip(plan.calls, plan.calls[1:])):
        raise contradiction("calls are not in the order of their steps")
    for late in plan.late:
        if not 0 <= late.call < len(plan.calls):
            raise contradiction(f"symbol {late.name} has no such call")
        results = plan.calls[late.call].outputs
        if not 0 <= late.output < len(results):
            raise contradiction(f"symbol {late.name} has no such output")
        if not 0 <= late.axis < len(results[late.output].slots):
            raise contradiction(f"symbol {late.name} has no such axis")
    tensors = (*plan.inputs, *plan.outputs)
    for call in plan.calls:
        for operand in (*call.inputs, *call.outputs):
            whole = tensors[operand.base - 2] if operand.base >= 2 else None
            if whole and (whole.info.dtype, whole.slots) != (operand.dtype, operand.slots):
                raise contradiction(f"{call.name} knows {whole.info.name} by another type")
        if any(1 <= o.base < 2 + len(plan.inputs) or o.output < 0 for o in call.outputs):
            raise contradiction(f"{call.name} writes what is only read")


def _check_levels(plan: Plan) -> None:
    """Nothing depends on a number, or on an address, that only a later call decides."""
    last, levels = len(plan.calls), plan.levels.tolist()
    if len(levels) != len(plan.template) or any(not 0 <= x <= last for x in levels):
        raise contradiction("a slot has no level")
    if any(not 0 <= tensor.level <= last for tensor in plan.outputs):
        raise contradiction("an output is never known")
    placed = [0] * (2 + len(plan.inputs)) + [tensor.level for tensor in plan.outputs]
    for slot, base, offset in plan.patches.tolist():
        if levels[slot] < max(levels[offset], placed[base]):
            raise contradiction("an address is written before it is known")
    for what, level, slots, bases in _uses(plan):
        if any(levels[s] > level for s in slots) or any(placed[base] > level for base in bases):
            raise contradiction(f"{what} depends on a number before it is known")


Use = tuple[str, int, Iterable[int], Iterable[int]]


def _uses(plan: Plan) -> Iterator[Use]:
    """(what, how many calls have returned when it is looked at, the slots and the bases that it depends on)."""
    yield "the size of the arena", 0, (plan.arena, plan.scratch), ()
    for level, pair in enumerate(plan.sums):
        yield "the size of the arena", level, pair, ()
    for tensor in plan.inputs:
        yield tensor.info.name, 0, tensor.slots, ()
    for tensor in plan.outputs:
        yield tensor.info.name, tensor.level, tensor.slots, ()
    for guard in plan.guards:
        yield f"the guard {guard.message!r}", guard.level, (guard.left, guard.right), ()
    for number, call in enumerate(plan.calls):
        for level, operands in ((number, call.inputs), (number + 1, call.outputs)):
            for operand in operands:
                yield call.name, level, (operand.offset, *operand.slots), (operand.base,)
    for step, (first, end) in enumerate(zip(plan.steps.tolist(), plan.steps[1:].tolist())):
        returned = sum(call.step <= step for call in plan.calls)
        for launch in plan.launches[first:end]:
            arguments = range(launch.first, launch.first + launch.arguments)
            yield f"kernel {launch.kernel}", returned, (*arguments, launch.tasks), ()


def _outdated(again: str) -> ArtifactError:
    return ArtifactError(
        "F113",
        "this artifact runs operators in Python, and what it computes before them may be wrong",
        reason="its version did not always wait for the sizes that such an operator decides",
        remedy=again,
    )


def contradiction(reason: str) -> ArtifactError:
    """F104."""
    return ArtifactError(
        "F104",
        "the artifact's plan contradicts itself",
        reason=reason,
        remedy="compile the model again; if it happens twice, it is a bug of the compiler",
    )
