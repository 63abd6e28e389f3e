"""A program: an artifact's plan, code and weights in memory, ready for any number of callers.

In: an `Artifact`. Out: a frozen `Program` with the addresses that native code wants.
Invariant: nothing in it changes after loading, so executables with different thread counts share it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from fissile.errors import ArtifactError
from fissile.runtime.artifact import FOREIGN, Artifact, choose_target
from fissile.runtime.image import Image, map_image
from fissile.runtime.manifest import recompile
from fissile.runtime.memory import Words, address_of, aligned_words
from fissile.runtime.plan import Call, Plan, contradiction, read_plan
from fissile.runtime.seal import check_seal
from fissile.runtime.vendor import Evaluator, evaluator, require
from fissile.runtime.weights import data_start

_LAUNCH_WORDS = 4
_SOME, _VALUES = 3, (3, 5, 1009)  # of free dimensions, and of those that calls decide, where their effect is looked at


@dataclass(frozen=True, eq=False)
class Program:
    """`launches`: one record per launch as in codegen/support/gang.ll; `weights`: their address.

    evaluator: from a call and a thread count to something that runs it, for one caller at a time.
    """

    artifact: Artifact
    plan: Plan
    image: Image
    launches: Words
    weights: int
    weight_bytes: int
    evaluator: Callable[[Call, int], Evaluator] | None = None


def load_program(artifact: Artifact) -> Program:
    """Map what this CPU needs of the artifact; ArtifactError where it cannot run here."""
    row = choose_target(artifact)
    plan = read_plan(artifact.member(row["plan"]), recompile(artifact.path, artifact.manifest))
    called = _evaluator(artifact, plan) if plan.calls else None
    is_old = "abi" not in artifact.manifest
    check_seal(artifact.member(row["code"]), artifact.member(row["plan"]), is_old=is_old)
    image = map_image(artifact, row["code"], plan.entries)
    launches = aligned_words(_LAUNCH_WORDS * len(plan.launches)).reshape(-1, _LAUNCH_WORDS)
    for index, launch in enumerate(plan.launches):
        launches[index] = (image.entries[launch.kernel], launch.first, launch.tasks, 0)
    member = artifact.member("weights.safetensors")
    start = data_start(member)
    if plan.weight_bytes > len(member) - start:
        raise contradiction(f"it reads {plan.weight_bytes} bytes of weights, and there are fewer")
    address = address_of(np.frombuffer(member, np.uint8)) + start
    _check_final(plan, image)
    return Program(artifact, plan, image, launches, address, len(member) - start, called)


def _check_final(plan: Plan, image: Image) -> None:
    """ArtifactError F104 where the code decides a number by a later call than the plan says."""

    def bound(later: int, value: int) -> Words:
        symbols = aligned_words(max(len(plan.symbols) + len(plan.late), 1))
        symbols[:] = _SOME
        late = [k for k, symbol in enumerate(plan.late, len(plan.symbols)) if symbol.call >= later]
        symbols[late] = value
        slots = aligned_words(len(plan.template))
        slots[:] = plan.template
        image.bind(address_of(symbols), address_of(slots))
        return slots

    for number in range(len(plan.calls)):
        final = plan.final[number]
        numbers = (bound(number, value)[final] for value in _VALUES)
        first = next(numbers)
        if any(np.any(first != other) for other in numbers):
            raise contradiction("a call decides a number that is said to be known before it")


def _evaluator(artifact: Artifact, plan: Plan) -> Callable[[Call, int], Evaluator]:
    """Foreign nodes need the onnx package, and kernels of a provider its own; nothing else of an artifact does."""
    for provider in dict.fromkeys(call.provider for call in plan.calls if call.provider):
        require(provider)
    for call in plan.calls:
        artifact.member(f"{FOREIGN}{call.model}.onnx")  # an error here and not in a run
    in_python = _python(artifact) if any(not call.provider for call in plan.calls) else None

    def made(call: Call, threads: int) -> Evaluator:
        model = bytes(artifact.member(f"{FOREIGN}{call.model}.onnx"))
        if in_python is None or call.provider:
            return evaluator(call.provider, model, threads)
        return in_python(model)

    return made


def _python(artifact: Artifact) -> Callable[[bytes], Evaluator]:
    try:
        make: Callable[[bytes], Evaluator] = import_module("fissile.runtime.foreign").evaluator
    except ImportError as error:
        raise ArtifactError(
            "F109",
            "this artifact has foreign nodes, which need the onnx package",
            where=list(artifact.manifest.get("foreign", ())),
            reason=str(error),
            remedy="pip install onnx",
        ) from error
    return make
