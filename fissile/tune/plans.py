"""The plans that are run as whole models, and which of them stays (PRODUCT 2.4).

In: what has been measured, and what was there before. Out: the artifact to keep, and the times of all that ran in
turns. Beside the cheapest plan those run that the noise of the measurements may have kept from being it. Invariant:
what is there now stays unless something is surely no slower.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fissile.errors import FissileError
from fissile.options import Event
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.orchestrate import plan_of
from fissile.orchestrate.plan import Kernel, Plan
from fissile.pipeline import Progress, Work, run
from fissile.runtime.artifact import read_artifact
from fissile.tune.rounds import Profiling, admissible_gap, best_of, certificate, distinct
from fissile.tune.told import whole_text
from fissile.tune.whole import Whole, keep

UNTUNED, INSTALLED, GREEDY = "untuned", "installed", "greedy"
WITH, WITHOUT = "with substitutions", "without substitutions"
OWN = "no packages"
MOST_PLANS = 3
DRAWS = 8
LEAST_NOISE, MOST_NOISE = 0.02, 0.05  # relative, of the measurements of kernels
_SPREAD = 0.05  # how much dearer than the cheapest a plan may be that still runs
_GREEDY = 0.15  # and the greedy one
_OTHER = 0.01  # share of its cost in which a plan must differ

TimeWhole = Callable[[Sequence[Path], int, Mapping[str, int]], list[Whole]]


def silent(event: Event) -> None:
    """Stages that run again say nothing."""


@dataclass(frozen=True)
class Made:
    """A compiled plan. selected: its candidates; None where the plan was not chosen among them."""

    name: str
    work: Work
    selected: tuple[int, ...] | None
    predicted: float | None

    @property
    def is_plan(self) -> bool:
        """Whether measurements chose it."""
        return self.selected is not None

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels as they were chosen, where calls of packages are still what they compute."""
        plan: Plan = self.work.plan_given or self.work.known("plan")
        return plan.kernels()


@dataclass(frozen=True)
class Chosen:
    """kept: the name of what stays, and its artifact. made: None for an artifact that was installed already.

    is_remembered: the models did not run now, but when the same was chosen from the same measurements.
    """

    kept: str
    artifact: bytes
    made: Made | None
    times: Mapping[str, Whole]
    is_remembered: bool = False


def best_plans(state: Profiling, count: int, seed: int = 0) -> list[list[int]]:
    """At most `count` selections of measured kernels, the cheapest first.

    The others are those that would be the cheapest if the kernels took as much more or less as noise may hide.
    """
    costs = state.costs()
    found = [[*state.selected]]
    if count < 2:
        return found
    rng = np.random.default_rng(seed)
    noise = min(max(state.noise, LEAST_NOISE), MOST_NOISE)
    keys = int(state.keys.max(initial=-1)) + 1
    drawn = [
        best_of(state, costs * np.exp(noise * rng.standard_normal(keys))[state.keys])
        for _ in range(DRAWS)
    ]
    least = float(costs[found[0]].sum())
    for other in sorted(drawn, key=lambda s: float(costs[s].sum())):
        total = float(costs[other].sum())
        differs = all(costs[[*set(other) - set(f)]].sum() > _OTHER * total for f in found)
        if len(found) < count and total <= least * (1 + _SPREAD) and differs:
            found.append(other)
    return found


def compiled_plans(
    work: Work, state: Profiling, rivals: Sequence[Work], deadline: float, each: float
) -> list[Made]:
    """The best plans, the greedy one, and that of another graph, compiled: as many as there is time for, one at least.

    rivals: the untuned work, and one with the other graph, if there is any. deadline: of `time.monotonic()`. each:
    seconds that one takes to compile and run.
    """
    left = (deadline - time.monotonic()) / max(each, 1e-3)
    count = max(1, min(MOST_PLANS, int(left) if math.isfinite(left) else MOST_PLANS))
    costs = state.costs()
    made = []
    chosen = {f"plan {n}": selected for n, selected in enumerate(best_plans(state, count), 1)}
    if any(state.found.all[k].kernel.provider for selected in chosen.values() for k in selected):
        chosen[OWN] = _own_plan(state)
    for name, selected in chosen.items():
        done = compiled(work, plan_of(state.found, selected))
        made.append(Made(name, done, tuple(selected), state.seconds(selected)))
    for other in rivals[1:]:
        if left > len(made) + 1:
            done = run(replace(other, is_trial=True), silent, first="plan")
            made.append(Made(other_name(other), done, None, None))
    expected = float(costs[[*state.found.greedy]].sum())  # at least, as far as it is not measured
    is_rival = expected <= (1 + _GREEDY) * float(costs[chosen["plan 1"]].sum())
    greedy = _other_greedy(work, rivals[0]) if is_rival and left > len(made) + 1 else None
    if greedy is not None:
        made.append(Made(GREEDY, compiled(work, greedy), None, None))
    return made


def other_name(work: Work) -> str:
    """What the plan of the other graph is called."""
    return WITH if work.log else WITHOUT


def _own_plan(state: Profiling) -> list[int]:
    """The best selection without packages."""
    costs = state.costs()
    packages = np.array([bool(c.kernel.provider) for c in state.found.all])
    return best_of(state, np.where(packages, costs + costs.sum(), costs))


def compiled(work: Work, plan: Plan) -> Work:
    """A given plan, compiled to be timed."""
    trial = replace(work, plan_given=plan, certificate={}, is_trial=True)
    return run(trial, silent, first="plan")


def _other_greedy(work: Work, untuned: Work) -> Plan | None:
    """The greedy plan, unless it is the untuned one."""
    plan = greedy_plan(work.known("graph"))
    same = [k.nodes for k in plan.kernels()] == [k.nodes for k in untuned.known("plan").kernels()]
    return None if same else plan


def choose(
    made: Sequence[Made],
    untuned: Work,
    installed: Path | None,
    numbers: Mapping[str, int],
    timed: TimeWhole,
    progress: Progress,
) -> Chosen:
    """Run all in turns, and keep what is there now unless another is surely no slower."""
    rows = [Made(UNTUNED, untuned, None, None), *made]
    artifacts = {row.name: row.work.artifact for row in rows}
    if installed is not None:
        artifacts = {INSTALLED: installed.read_bytes(), **artifacts}
    free = {row["name"] for row in untuned.code[0].plan["symbols"]}
    with tempfile.TemporaryDirectory(prefix="fissile-") as folder:
        paths = [Path(folder) / f"{k}.fsl" for k in range(len(artifacts))]
        for path, artifact in zip(paths, artifacts.values(), strict=True):
            path.write_bytes(artifact)
        at = {name: n for name, n in numbers.items() if name in free}
        found = timed(paths, untuned.threads, at)
    times = dict(zip(artifacts, found, strict=True))
    kept = [*artifacts][keep(found)]
    by_name = {row.name: row for row in rows}
    best = by_name.get(kept)
    plans = [row.name for row in made if row.is_plan]
    progress(Event("whole", whole_text(times, plans, kept, best.predicted if best else None)))
    return Chosen(kept, artifacts[kept], best, times)


def choose_again(
    made: Sequence[Made], chosen: Callable[[Sequence[Made]], Chosen], progress: Progress
) -> Chosen:
    """`chosen` among all; where that fails with plans that call packages, among the others."""
    try:
        return chosen(made)
    except FissileError as error:
        own = [row for row in made if not any(k.provider for k in row.kernels)]
        if len(own) == len(made):
            raise
        text = f"plans with packages could not be run whole: {error.message} ({error.reason})"
        progress(Event("whole", text))
        return chosen(own)


def same(kernel: Kernel) -> Hashable:
    """Equal for a kernel of a plan and the candidate it was chosen as."""
    sets = kernel.nodes, kernel.inputs, kernel.outputs[-1:]
    return kernel.anchor, kernel.provider, *sets, kernel.piece


def predictions(state: Profiling, rows: Sequence[Made]) -> dict[str, float]:
    """What measured kernels make of every compiled plan, by name; none where one of its kernels was not."""
    measured = state.measured()
    known = {
        same(c.kernel): float(s)
        for c, s in zip(state.found.all, measured, strict=True)
        if math.isfinite(s)
    }
    found = {}
    for row in rows:
        costs = [known.get(same(kernel)) for kernel in row.kernels]
        sure = [c for c in costs if c is not None]
        if len(sure) == len(costs):
            found[row.name] = sum(sure)
    return found


def as_before(untuned: Work, installed: Path | None) -> Chosen:
    """What was there before, nothing having been run."""
    if installed is not None:
        return Chosen(INSTALLED, installed.read_bytes(), None, {})
    return Chosen(UNTUNED, untuned.artifact, Made(UNTUNED, untuned, None, None), {})


def is_same(path: Path, work: Work) -> bool:
    """Whether an artifact may be better: of this model, these shapes, threads, targets and options, and no package
    runs any of it but those that are allowed now.
    """
    try:
        found = read_artifact(path).manifest
    except FissileError:
        return False
    if not {*found.get("providers", ())} <= {*work.options.providers}:
        return False
    asked = {"shapes": dict(work.shapes), "threads": work.threads, "options": work.options.key()}
    same = all(found.get(part) == value for part, value in json.loads(json.dumps(asked)).items())
    targets = [row["name"] for row in found["targets"]] == [t.name for t in work.targets]
    return same and targets and found["model"]["sha256"] == work.known("operators").metadata.sha256


def _offers(state: Profiling) -> dict[str, Any]:
    """By package, how many of the candidates are its, and how many distinct ones were measured."""
    names = [c.kernel.provider for c in state.found.all]
    counts = {
        name: {
            "candidates": names.count(name),
            "measured": len({k for k, n in zip(state.keys.tolist(), names) if n == name} & {*state.known}),
        }
        for name in dict.fromkeys(filter(None, names))
    }
    return {"offers": counts} if counts else {}


def proof(state: Profiling, chosen: Chosen) -> dict[str, Any]:
    """The certificate: of the cheapest plan, with the predicted and measured seconds of the one that is kept."""
    made, times = chosen.made, chosen.times
    more: dict[str, Any] = {"complete": state.is_complete, "distinct": distinct(state)}
    more |= _offers(state)
    found = {**asdict(certificate(state)), "admissible_gap": admissible_gap(state), **more}
    if made is not None and made.predicted is not None:
        found["predicted_seconds"] = made.predicted
    if chosen.kept in times:
        found["measured_seconds"] = times[chosen.kept].seconds
        launches = times[chosen.kept].launches_seconds
        found |= {} if launches is None else {"launches_seconds": launches}
        found["untuned_seconds"] = times[UNTUNED].seconds
    return found
