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
    """An input or output as the plan sees it: `slots[axis]` holds its extent once bound."""

    info: TensorInfo
    slots: tuple[int, ...]


@dataclass(frozen=True)
class Symbol:
    """A free dimension: extent of `axis` of input number `input` = value * scale + offset."""

    name: str
    input: int
    axis: int
    scale: int
    offset: int


@dataclass(frozen=True)
class Guard:
    """Two slots that must stand in `relation` for this plan to be valid."""

    left: int
    right: int
    relation: str
    message: str


@dataclass(frozen=True)
class Launch:
    """A kernel over a grid: arguments from slot `first` on, task count in slot `tasks`."""

    kernel: str
    first: int
    tasks: int
    step: int
    nodes: tuple[str, ...]


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


def read_plan(text: bytes | memoryview) -> Plan:
    """Parse and check `plan.json`; ArtifactError F104 if it contradicts itself."""
    try:
        plan = _parsed(json.loads(bytes(text)))
        _check(plan)
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
    launches = tuple(
        Launch(x["kernel"], x["first"], x["tasks"], x["step"], tuple(x.get("nodes", ())))
        for x in raw["launches"]
    )
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
            Guard(x["left"], x["right"], x["relation"], x["message"]) for x in raw.get("guards", ())
        ),
        raw["arena"],
        raw["scratch"],
        dict(raw["entries"]),
    )


def _tensor(raw: Mapping[str, Any]) -> Tensor:
    info = TensorInfo(raw["name"], numpy_dtype(raw["dtype"]), tuple(raw["shape"]))
    return Tensor(info, tuple(raw["slots"]))


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
    slots += [s for launch in plan.launches for s in (launch.first, launch.tasks)]
    slots += [s for tensor in (*plan.inputs, *plan.outputs) for s in tensor.slots]
    slots += [s for guard in plan.guards for s in (guard.left, guard.right)]
    if any(not 0 <= s < count for s in slots):
        raise _contradiction(f"a slot number is not below {count}")
    bases = 2 + len(plan.inputs) + len(plan.outputs)
    if any(not 0 <= base < bases for base in plan.patches[:, 1]):
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


def _contradiction(reason: str) -> ArtifactError:
    return ArtifactError(
        "F104",
        "the artifact's plan contradicts itself",
        reason=reason,
        remedy="compile the model again; if it happens twice, it is a bug of the compiler",
    )
