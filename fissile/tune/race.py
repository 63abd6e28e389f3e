"""Whole models that ran against each other before need not do so again (PRODUCT 2.4).

In: what tuning would run, and what the store noted of the last time. Out: the same choice, as long as nothing has been
measured since, the cheapest plan is one of those that ran, and no other artifact has taken the place of the one kept.
Invariant: a race is noted under everything that decides about it: model, shapes, options, machine, compiler.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fissile.errors import FissileError
from fissile.orchestrate.orchestrate import plan_of
from fissile.orchestrate.plan_file import plan_text, read_plan
from fissile.pipeline import Work, run
from fissile.runtime.artifact import read_artifact
from fissile.runtime.statistic import Ratio
from fissile.runtime.store import Store
from fissile.tune.measure import Setting
from fissile.tune.offers import is_own
from fissile.tune.planned import facts_of, note_name
from fissile.tune.plans import INSTALLED, UNTUNED, WITH, WITHOUT, Chosen, Made, compiled, silent
from fissile.tune.rounds import Profiling, standing
from fissile.tune.told import whole_text
from fissile.tune.whole import Whole


@dataclass(frozen=True)
class Race:
    """kept: the name of what stayed, and of its code a hash. plans: plan files by name. times: of all that ran.

    selected: the candidates of the cheapest plan. keys, known: which kernels were measured, and a hash of what they
    take. is_complete: measuring had ended by itself. window_gap, proved, noise: what it had found out from them, as in
    `Profiling`.
    """

    kept: str
    code: str
    plans: Mapping[str, str]
    predicted: Mapping[str, float | None]
    times: Mapping[str, Whole]
    selected: Sequence[int]
    keys: Sequence[int]
    known: str
    is_complete: bool
    window_gap: float | None
    proved: float
    noise: float


def race_name(untuned: Work, setting: Setting) -> str:
    """What a race is noted under."""
    own = {"key": asdict(setting.key("")), "numbers": dict(setting.numbers)}
    return note_name("race", facts_of(untuned) | own)


def note(store: Store, name: str, chosen: Chosen, made: Sequence[Made], state: Profiling) -> None:
    """Keep how a race ended."""
    own = {row.name: row.work.known("plan") for row in made if row.name not in (WITH, WITHOUT)}
    row = Race(
        chosen.kept,
        _code(chosen.artifact),
        {name: plan_text(plan) for name, plan in own.items() if is_own(plan)},
        {row.name: row.predicted for row in made},
        {name: _short(whole) for name, whole in chosen.times.items()},
        [*state.selected],
        _measured(state),
        _known(state, _measured(state)),
        state.is_complete,
        state.window_gap,
        state.proved,
        state.noise,
    )
    store.keep_notes({name: json.dumps(asdict(row))})


def noted(store: Store, name: str) -> Race | None:
    """How the last race of this name ended."""
    text = store.notes([name]).get(name)
    if text is None:
        return None
    try:
        found: dict[str, Any] = json.loads(text)
        return Race(**{**found, "times": {n: _whole(row) for n, row in found["times"].items()}})
    except (ValueError, LookupError, TypeError, AttributeError):
        return None  # not of our making


def taken_up(race: Race, state: Profiling) -> bool:
    """Select what had been the best at the end of a race; whether all of it is known, and ran."""
    count, before = len(state.found.all), state.selected
    if not all(isinstance(k, int) and 0 <= k < count for k in race.selected):
        return False
    needed = {int(state.keys[k]) for k in (*state.start, *race.selected)}
    if not all(math.isfinite(state.known.get(key, math.inf)) for key in needed):
        return False
    state.selected = [*race.selected]
    if _best(state) not in _ran(race).values():
        state.selected = before
        return False
    return True


def is_settled(race: Race, state: Profiling) -> bool:
    """Whether measuring had come to its end with what is known now; the state is then as it was.

    Where more is known than then, the plan must still be as near to what is proved as measuring asks for.
    """
    if not race.is_complete or race.known != _known(state, race.keys) or not taken_up(race, state):
        return False
    if [*race.keys] == _measured(state):
        state.window_gap, state.proved = race.window_gap, race.proved
    else:
        gap = standing(state).gap
        if gap > state.enough:
            return False
        state.window_gap = gap
    state.noise, state.rounds = race.noise, 1
    state.is_measured = state.is_complete = True
    return True


def repeated(
    race: Race, work: Work, rivals: Mapping[str, Work], there: Path | None, state: Profiling
) -> Chosen | None:
    """The choice of a race, made again; None where it must be run again, anything having been measured since.

    rivals: by name, what is compiled without a plan that is given. there: the artifact that is installed.
    """
    ran, best = _ran(race), _best(state)
    is_same = race.known == _known(state, race.keys)
    if not (is_same and (state.is_complete or [*race.keys] == _measured(state)) and best in ran.values()):
        return None
    if there is not None:
        if _code(there) != race.code:
            return None
        times = {INSTALLED: race.times[race.kept], **race.times}
        return Chosen(INSTALLED, there.read_bytes(), None, times, is_remembered=True)
    done = _made_again(race, work, rivals)
    if done is None or _code(done.artifact) != race.code:
        return None
    is_own = race.kept not in rivals
    selected = tuple(state.selected) if is_own and ran[race.kept] == best else None
    row = Made(race.kept, done, selected, race.predicted.get(race.kept))
    times = {name: whole for name, whole in race.times.items() if name != INSTALLED}
    return Chosen(race.kept, done.artifact, row, times, is_remembered=True)


def _made_again(race: Race, work: Work, rivals: Mapping[str, Work]) -> Work | None:
    """What a race has kept, compiled; None where it did not note how."""
    if race.kept in rivals:
        rival = rivals[race.kept]
        if rival.artifact:
            return rival
        trial = replace(rival, is_trial=rival.is_trial or race.kept != UNTUNED)
        return run(trial, silent, first="plan" if rival.plan is None else "lower")
    text = race.plans.get(race.kept)
    try:
        return None if text is None else compiled(work, read_plan(text, work.known("graph")))
    except FissileError:
        return None  # of the graph that planning left aside


def _best(state: Profiling) -> frozenset[str]:
    return _kernels(plan_text(plan_of(state.found, state.selected)))


def _kernels(plan: str) -> frozenset[str]:
    """The kernels of a plan file, in whatever order they run, and the graph that they are of."""
    found = json.loads(plan)
    return frozenset([found["graph"], *(json.dumps(k) for step in found["steps"] for k in step)])


def _ran(race: Race) -> dict[str, frozenset[str]]:
    return {name: _kernels(text) for name, text in race.plans.items()}


def _measured(state: Profiling) -> list[int]:
    """The keys of what was measured; what cannot run, or runs in Python, is not looked up by name."""
    return sorted(key for key, seconds in state.known.items() if seconds > 0 and np.isfinite(seconds))


def _known(state: Profiling, keys: Sequence[int]) -> str:
    """A hash of what kernels take, as far as they are known."""
    rows = [(key, state.known.get(key)) for key in keys]
    return hashlib.blake2b(repr(rows).encode(), digest_size=16).hexdigest()


def race_text(race: Race, chosen: Chosen) -> str:
    """How long whole models took, and which is kept."""
    plans = [name for name in chosen.times if race.predicted.get(name) is not None]
    return whole_text(chosen.times, plans, chosen.kept, race.predicted.get(race.kept))


def _code(artifact: bytes | Path) -> str:
    """A hash of what an artifact runs; "" for one that cannot be read."""
    try:
        found = read_artifact(artifact)
    except FissileError:
        return ""
    members = found.manifest["members"].items()
    hashes = sorted(row["sha256"] for name, row in members if name.startswith(("code-", "plan")))
    return " ".join(hashes)


def _short(whole: Whole) -> Whole:
    """The launches of one run alone, of that at the 10th percentile."""
    seconds = whole.launches_seconds
    if seconds is None:
        return whole
    run = int(np.argmin(np.abs(np.sum(whole.launches, axis=0) - seconds)))
    return replace(whole, launches=tuple((row[run],) for row in whole.launches))


def _whole(row: Mapping[str, Any]) -> Whole:
    launches = tuple(map(tuple, row["launches"]))
    return Whole(row["seconds"], row["median"], Ratio(**row["ratio"]), launches)
