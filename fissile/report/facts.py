"""What a report shows of one artifact, as plain data: from its members, and from runs of it on this machine.

In: an artifact, perhaps a program loaded from it with feeds. Out: a dictionary that `page` turns into HTML. Times are
seconds, sizes bytes. Invariant: what was not recorded or not measured is None or absent, never a guess; kernels stand
in the order in which they run, in the record and in every list of a run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fissile.report.record import unpacked
from fissile.runtime.artifact import Artifact
from fissile.runtime.bind import bind_shapes
from fissile.runtime.executable import Executable
from fissile.runtime.plan import read_plan
from fissile.runtime.profile import Profile
from fissile.runtime.report import tuning_of
from fissile.runtime.roofline import Peaks

SETTLE_SECONDS = 3e-3  # pools spin a while after their last run
DIGITS = 4  # of a time that is shown


@dataclass(frozen=True, eq=False)
class Subject:
    """A loaded artifact at one thread count, with what it is run on."""

    executable: Executable
    feeds: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Measured:
    """whole: seconds of runs; profile: the same kernel by kernel."""

    whole: tuple[float, ...]
    profile: Profile


def about(artifact: Artifact, name: str) -> dict[str, Any]:
    """What the artifact itself says. ValueError where its record is damaged."""
    manifest = artifact.manifest
    report = json.loads(bytes(artifact.member("report.json")))
    tuning = tuning_of(report)
    members = {name: span[1] for name, span in artifact.spans.items()}
    shown = (
        "fissile", "model", "threads", "shapes", "options", "certificate", "foreign", "providers",
    )  # fmt: skip
    return {
        "name": name,
        "bytes": sum(members.values()),
        "members": members,
        "sha256": artifact.sha256,
        "manifest": {key: manifest[key] for key in shown if key in manifest},
        "targets": [row["name"] for row in manifest["targets"]],
        "record": unpacked(report) or _from_plan(artifact),
        "tuning": None if tuning is None else asdict(tuning),
    }


def kernels_of(artifact: Artifact) -> list[dict[str, Any]]:
    """The kernels in the order in which they run: step, what each is built around (or the package that runs it), the
    name of its function ("": it is called), primitives, ONNX nodes it serves. ValueError where the record is damaged.
    """
    found = about(artifact, "")["record"]
    texts, primitives = found["texts"], found["primitives"]
    return [
        {
            "step": row["step"],
            "kernel": row["anchor"],
            "function": row["function"],
            "primitives": [texts[primitives[n][0]] for n in row["nodes"]],
            "serves": [texts[n] for n in row["serves"]],
        }
        for row in found["kernels"]
    ]


def _from_plan(artifact: Artifact) -> dict[str, Any]:
    """A record with what `plan.json` says, for artifacts whose compiler kept none."""
    plan = read_plan(artifact.member(artifact.manifest["targets"][0]["plan"]))
    texts: dict[str, int] = {}

    def row(anchor: str, step: int, function: str, nodes: Sequence[str]) -> dict[str, Any]:
        lists: dict[str, Any] = {key: [] for key in ("nodes", "inputs", "outputs", "stored")}
        served = [texts.setdefault(n, len(texts)) for n in nodes]
        named = {"anchor": anchor, "step": step, "function": function, "tasks": ""}
        return {**lists, **named, "work": ["", "", ""], "serves": served}

    kernels = [row("kernel", x.step, x.kernel, x.nodes) for x in plan.launches]
    for before, call in enumerate(plan.calls):
        at = int(plan.steps[call.step]) + before
        kernels.insert(at, row(call.provider or "foreign", call.step, "", (call.name,)))
    names = ("operators", "primitives", "refusals", "firings", "examples", "disabled")
    lists: dict[str, list[Any]] = {name: [] for name in names}
    rest = {"rules": {}, "loops": {}, "target": "", "texts": list(texts)}
    return {**lists, **rest, "kernels": kernels}


def measure(subjects: Sequence[Subject], seconds: float) -> list[Measured]:
    """Every subject run and profiled, in turns, for about `seconds` each."""
    whole: list[list[float]] = [[] for _ in subjects]
    for subject in subjects:
        subject.executable.run(subject.feeds)
    most = 40
    end = time.perf_counter() + seconds * len(subjects) / 2
    while len(whole[0]) < most and (len(whole[0]) < 5 or time.perf_counter() < end):
        for subject, row in zip(subjects, whole):
            time.sleep(SETTLE_SECONDS)
            start = time.perf_counter()
            subject.executable.run(subject.feeds)
            row.append(time.perf_counter() - start)
    halves: list[list[Profile]] = [[] for _ in subjects]
    for _ in range(2):
        for subject, row, found in zip(subjects, whole, halves):
            runs = int(min(10, max(2, seconds / 4 / min(row))))
            found.append(subject.executable.profile(subject.feeds, runs=runs))
    return [Measured(tuple(row), _joined(found)) for row, found in zip(whole, halves)]


def _joined(profiles: Sequence[Profile]) -> Profile:
    return replace(profiles[0], seconds=np.concatenate([p.seconds for p in profiles]))


def run_facts(measured: Measured, peaks: Peaks) -> dict[str, Any]:
    """A run as plain data: for every kernel its samples, and the least it could take with what limits it."""
    profile = measured.profile
    bounds = [profile.least(k, peaks) for k in range(len(profile.launches))]
    return {
        "threads": profile.threads,
        "whole": _rounded(measured.whole),
        "samples": [_rounded(column) for column in profile.seconds.T.tolist()],
        "floors": [None if b is None else float(f"{b.seconds:.{DIGITS}g}") for b in bounds],
        "limits": [None if b is None else b.limit for b in bounds],
        "bytes": [None if c < 0 else int(c + m) for c, m, _ in profile.work.tolist()],
        "operations": [None if c < 0 else int(o) for c, _, o in profile.work.tolist()],
    }


def call_facts(executable: Executable, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """What it was run on, and the memory that one call needs."""
    program = executable.program
    shapes = {name: tuple(np.shape(array)) for name, array in feeds.items()}
    binding = bind_shapes(program, tuple(shapes[i.name] for i in executable.inputs))
    return {
        "inputs": [f"{i.name} {i.dtype}{list(shapes[i.name])}" for i in executable.inputs],
        "arena": binding.arena,
        "scratch": binding.scratch * executable.threads,
        "weights": program.weight_bytes,
    }


def _rounded(seconds: Sequence[float]) -> list[float]:
    return [float(f"{s:.{DIGITS}g}") for s in seconds]
