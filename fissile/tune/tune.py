"""Tuning: the plan that measurements choose, run end to end before it is kept (PRODUCT 2.4, DESIGN 3.4).

In: what to compile, a budget, the store, perhaps the artifact that is there already. Out: `Tuned`: the artifact to
install, what is proved about it, and the times of the whole models. Invariant: whenever it is interrupted, an artifact
comes out that is no slower than what was there, and every finished measurement is in the store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fissile.errors import FissileError
from fissile.ir.graph import Graph
from fissile.options import Event, environment
from fissile.orchestrate.nominal import representative
from fissile.orchestrate.plan import Kernel
from fissile.orchestrate.plan_file import plan_text
from fissile.pipeline import Progress, Work, run, said
from fissile.runtime.report import KEY, document
from fissile.runtime.roofline import Peaks
from fissile.runtime.store import Store, default_paths
from fissile.tune import told
from fissile.tune.budget import Budget
from fissile.tune.interrupt import Interrupts, listening
from fissile.tune.measure import OutOfTime, Setting, Tally, known_before, known_beside, seconds_of
from fissile.tune.offers import is_own, with_packages
from fissile.tune.peak import machine_peaks
from fissile.tune.planned import planned
from fissile.tune.plans import (
    INSTALLED,
    UNTUNED,
    Chosen,
    Made,
    TimeWhole,
    as_before,
    choose,
    choose_again,
    compiled_plans,
    is_same,
    other_name,
    predictions,
    proof,
    silent,
)
from fissile.tune.race import (
    Race,
    is_settled,
    note,
    noted,
    race_name,
    race_text,
    repeated,
    taken_up,
)
from fissile.tune.record import tuning_of
from fissile.tune.rounds import Measure, Profiling, Round, profile, remember, settle, standing
from fissile.tune.start import machine_of, profiling_of, setting_of
from fissile.tune.whole import Whole, time_whole

TUNED = "tuned"


@dataclass(frozen=True)
class Tuned:
    """artifact: what to install; kept: whether it is the tuned, the untuned or the installed one.

    plan: text of its plan file ("": none). certificate: as in the manifest. times: whole models; name: which of them
    was kept; predicted: what measured kernels make of them, where all were. rejected: kernels and their reasons.
    is_remembered: the times are of an earlier run, after which nothing was measured.
    """

    artifact: bytes
    kept: str
    name: str
    plan: str
    certificate: Mapping[str, Any]
    times: Mapping[str, Whole]
    predicted: Mapping[str, float]
    rejected: Mapping[str, str]
    is_interrupted: bool
    rounds: tuple[Round, ...]
    is_remembered: bool = False

    def summary(self) -> str:
        """Untuned and kept in one line."""
        if not self.times:
            return "not timed as a whole"
        before, after = self.times[UNTUNED].seconds, self.times[self.name].seconds
        when = "when it was tuned before" if self.is_remembered else "just now"
        text = f"untuned {said(before)} → {said(after)} ({before / after:.2f}x, both measured {when})"
        return text if self.kept == TUNED else f"{text}: the {self.kept} artifact stays"


@dataclass
class _Run:
    """One run of tuning: what does not change, and what has been found out."""

    work: Work
    untuned: Work  # planned; compiled once somebody needs it
    budget: Budget
    began: float
    each: float  # seconds that the untuned compilation took
    heard: Interrupts
    progress: Progress
    tally: Tally = field(default_factory=Tally)
    rounds: list[tuple[float, Round]] = field(default_factory=list)
    is_interrupted: bool = False
    other: Work | None = None  # with the graph that planning left aside
    race: Race | None = None  # the last one of this model, as the store noted it

    def now(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    def built(self) -> Work:
        """The untuned compilation."""
        if not self.untuned.artifact:
            at = time.monotonic()
            self.untuned = run(self.untuned, silent, first="lower")
            self.each += time.monotonic() - at
        return self.untuned

    def interrupted(self) -> None:
        """Take note of an interruption."""
        self.heard.take()
        self.is_interrupted = True


def tune(
    work: Work,
    budget: Budget,
    progress: Progress,
    *,
    installed: Path | None = None,
    measured: Callable[..., list[float]] = seconds_of,
    timed: TimeWhole = time_whole,
    peaks: Callable[[], Peaks] = machine_peaks,
) -> Tuned:
    """Measure within the budget and choose. KeyboardInterrupt ends measuring, not choosing.

    installed: an artifact that the result would replace. measured, timed, peaks: for tests.
    """
    with listening() as heard, Store(environment().store or default_paths()) as store:
        began, progress = time.monotonic(), heard.passing(progress)
        work = run(work, progress, "substitute")
        at = time.monotonic()
        untuned = planned(work, store)
        this = _Run(work, untuned, budget, began, time.monotonic() - at, heard, progress)
        graph: Graph = untuned.known("graph")  # planning may prefer the one without substitutions
        this.other = _other_graph(work, graph)
        this.work = work = replace(work, graph=graph, log=untuned.log, plain=None)
        numbers = representative(graph, work.shapes)
        machine = machine_of(peaks(), work.threads)
        setting = setting_of(untuned, budget, numbers, began)
        setting = replace(setting, told=lambda t: progress(told.measuring(t, budget, began)))
        state = profiling_of(untuned, setting, machine)
        _look_up(this, state, setting, store)
        progress(Event("store", told.store_text(store, setting)))
        progress(Event("start", told.start_text(state, setting)))

        def native(kernels: Sequence[Kernel], times: int) -> list[float]:
            found = measured(kernels, setting, store, this.tally, times=times)
            if times > 1:
                remember(state, lambda k: known_beside(kernels, k, setting, store, this.tally))
            return found

        this.race = noted(store, race_name(untuned, setting))
        if this.race is not None and is_settled(this.race, state):
            _told(this, standing(state))
        else:
            this.built()
            _measure(this, state, with_packages(native, setting, store, this.tally))
        there = installed if installed and is_same(installed, untuned) else None
        return _settled(this, state, setting, store, there, timed)


def _other_graph(work: Work, taken: Graph) -> Work | None:
    """The work with the substituted graph where the plain one was taken, or the other way round; None for one alone."""
    if work.plain is None:
        return None
    if taken is work.graph:
        return replace(work, graph=work.plain, log=(), plain=None)
    return replace(work, plain=None)


def _measure(this: _Run, state: Profiling, measure: Measure) -> None:
    """Rounds, until all is known, the budget is used up, or somebody interrupts."""
    if this.race is not None:
        taken_up(this.race, state)
    try:
        for row in profile(state, measure):
            _told(this, row)
    except OutOfTime:
        pass  # what is known by now decides
    except (FissileError, OSError) as error:
        this.progress(Event("interrupted", f"nothing can be measured any longer: {_in_short(error)}"))
    except KeyboardInterrupt:
        this.interrupted()
        this.progress(Event("interrupted", "choosing among what has been measured"))
    if this.tally.rejected:
        this.progress(Event("rejected", told.rejected_text(this.tally.rejected)))


def _look_up(this: _Run, state: Profiling, setting: Setting, store: Store) -> None:
    """Take over what the store knows."""
    remember(state, lambda kernels: known_before(kernels, setting, store, this.tally))


def _told(this: _Run, row: Round) -> None:
    this.rounds.append((this.now(), row))
    this.progress(Event("round", told.round_text(row, this.now())))


def _settled(
    this: _Run, state: Profiling, setting: Setting, store: Store, there: Path | None, timed: TimeWhole
) -> Tuned:
    """The best plans made and run, and the best of all kept; what has been chosen by then, whatever goes wrong."""
    made: list[Made] = []
    chosen: Chosen | None = None
    try:
        if not state.is_complete:
            _look_up(this, state, setting, store)  # what was measured of a list that came to no end
        if this.tally.measured or not state.is_complete:
            settle(state)
        race = None if this.tally.measured else this.race
        chosen = repeated(race, this.work, _rivals(this), there, state) if race else None
        if race and chosen:
            this.progress(Event("whole", f"{race_text(race, chosen)}, as found before"))
            made = [chosen.made] if chosen.made else []
        else:
            made = _compiled(this, state)
            beside = this.built(), there, setting.numbers, timed, this.progress
            chosen = choose_again(made, lambda rows: choose(rows, *beside), this.progress)
            note(store, race_name(this.untuned, setting), chosen, made, state)
    except KeyboardInterrupt:
        this.interrupted()
    except (FissileError, OSError) as error:
        this.progress(Event("whole", f"not all could be run whole: {_in_short(error)}"))
    chosen = chosen or as_before(this.untuned if there else this.built(), there)
    return _finished(this, state, setting, store, chosen, made)


def _in_short(error: FissileError | OSError) -> str:
    return f"{error.message} ({error.reason})" if isinstance(error, FissileError) else str(error)


def _compiled(this: _Run, state: Profiling) -> list[Made]:
    """The plans that are worth a run."""
    rivals = [*_rivals(this).values()]
    return compiled_plans(this.work, state, rivals, this.began + this.budget.seconds, this.each)


def _rivals(this: _Run) -> dict[str, Work]:
    """What is compiled by guesses, by name: the untuned work, and one with the other graph, if there is any."""
    others = [] if this.other is None else [this.other]
    return {UNTUNED: this.untuned, **{other_name(work): work for work in others}}


def _finished(
    this: _Run, state: Profiling, setting: Setting, store: Store, chosen: Chosen, made: list[Made]
) -> Tuned:
    """What is chosen, with its certificate and its record."""
    predicted = predictions(state, [Made(UNTUNED, this.untuned, None, None), *made])
    proved = proof(state, chosen)
    artifact = chosen.artifact
    try:
        this.progress(Event("proved", told.proved_text(state)))
        if chosen.made is not None and chosen.made.name != UNTUNED:
            facts_of = this.rounds, chosen, made, setting, store, this.tally, str(this.budget)
            artifact = _with(chosen, proved, document(tuning_of(state, *facts_of, this.now())))
    except KeyboardInterrupt:
        this.interrupted()  # the artifact is whole but for what a report would show of tuning
    except (FissileError, OSError) as error:
        this.progress(Event("proved", f"without a record of tuning: {_in_short(error)}"))
    kept = chosen.kept if chosen.kept in (UNTUNED, INSTALLED) else TUNED
    made_plan = None if chosen.made is None else chosen.made.work.known("plan")
    plan = plan_text(made_plan) if made_plan is not None and is_own(made_plan) else ""
    rounds = tuple(row for _, row in this.rounds)
    return Tuned(
        artifact, kept, chosen.kept, plan, proved, chosen.times, predicted, this.tally.rejected,
        this.is_interrupted, rounds, chosen.is_remembered,
    )  # fmt: skip


def _with(chosen: Chosen, proved: Mapping[str, Any], record: Mapping[str, Any]) -> bytes:
    """The artifact that is kept, with its certificate and what tuning found out."""
    if chosen.made is None:
        return chosen.artifact
    work = replace(chosen.made.work, certificate=proved, report={KEY: record}, is_trial=False)
    return run(work, silent, first="artifact").artifact

