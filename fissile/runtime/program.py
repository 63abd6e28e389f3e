"""A program: an artifact's plan, code and weights in memory, ready for any number of callers.

In: an `Artifact`. Out: a frozen `Program` with the addresses that native code wants.
Invariant: nothing in it changes after loading, so executables with different thread counts share it.
"""

from dataclasses import dataclass

import numpy as np

from fissile.errors import NotYet
from fissile.runtime.artifact import Artifact, choose_target
from fissile.runtime.image import Image, map_image
from fissile.runtime.memory import Words, address_of, aligned_words
from fissile.runtime.plan import Plan, read_plan
from fissile.runtime.weights import data_start

_LAUNCH_WORDS = 4


@dataclass(frozen=True, eq=False)
class Program:
    """`launches`: one record per launch as in codegen/support/gang.ll; `weights`: their address."""

    artifact: Artifact
    plan: Plan
    image: Image
    launches: Words
    weights: int
    weight_bytes: int


def load_program(artifact: Artifact) -> Program:
    """Map what this CPU needs of the artifact; ArtifactError where it cannot run here."""
    row = choose_target(artifact)
    foreign = artifact.manifest.get("foreign", ())
    if foreign:
        raise NotYet("F109", "artifacts with foreign nodes cannot be run yet", where=list(foreign))
    plan = read_plan(artifact.member(row["plan"]))
    image = map_image(artifact, row["code"], plan.entries)
    launches = aligned_words(_LAUNCH_WORDS * len(plan.launches)).reshape(-1, _LAUNCH_WORDS)
    for index, launch in enumerate(plan.launches):
        launches[index] = (image.entries[launch.kernel], launch.first, launch.tasks, 0)
    member = artifact.member("weights.safetensors")
    start = data_start(member)
    address = address_of(np.frombuffer(member, np.uint8)) + start
    return Program(artifact, plan, image, launches, address, len(member) - start)
