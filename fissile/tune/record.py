"""What an artifact's report keeps of tuning (`fissile.runtime.report`).

In: where lazy profiling ended, what was kept, the store. Out: a `Tuning`. Invariant: nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fissile.orchestrate.candidates import Candidate
from fissile.orchestrate.program import relax
from fissile.runtime.machine import identity
from fissile.runtime.report import Alternative, KernelRow, Standing, Tuning, WholeRow
from fissile.runtime.store import Store
from fissile.tune.measure import Setting, Tally, samples_of
from fissile.tune.plans import Chosen, Made, same
from fissile.tune.rounds import Profiling, Round

ALTERNATIVES = 2
MOST_SAMPLES = 40  # of a kernel


def tuning_of(
    state: Profiling,
    rounds: Sequence[tuple[float, Round]],
    chosen: Chosen,
    made: Sequence[Made],
    setting: Setting,
    store: Store,
    tally: Tally,
    budget: str,
    seconds: float,
) -> Tuning:
    """The record. rounds: with the seconds since tuning began. made: all plans that ran. seconds: in all."""
    return Tuning(
        identity(),
        setting.threads,
        budget,
        round(seconds, 1),
        dict(setting.numbers),
        tuple(_standing(at, row) for at, row in rounds),
        _kernels(state, chosen, setting, store, tally),
        tuple(_whole_rows(chosen, made)),
        dict(state.found.refused),
        dict(tally.rejected),
    )


def _standing(seconds: float, row: Round) -> Standing:
    at = round(seconds, 2)
    return Standing(row.number, at, row.measured, row.plan_seconds, row.bound_seconds, row.gap)


def _whole_rows(chosen: Chosen, made: Sequence[Made]) -> Iterable[WholeRow]:
    predicted = {row.name: row.predicted for row in made}
    for name, whole in chosen.times.items():
        ratio = whole.ratio
        yield WholeRow(
            name, predicted.get(name), whole.seconds, whole.median, ratio.ratio, ratio.low, ratio.high,
            name == chosen.kept,
        )  # fmt: skip


def _kernels(
    state: Profiling, chosen: Chosen, setting: Setting, store: Store, tally: Tally
) -> tuple[KernelRow, ...]:
    """A row per kernel of the plan that is kept, in the order in which they run."""
    if chosen.made is None:
        return ()
    kernels = chosen.made.kernels
    numbers = {same(c.kernel): k for k, c in enumerate(state.found.all)}
    reduced = relax(state.problem(state.costs())).reduced
    measured = state.measured()
    whole = chosen.times[chosen.kept].launches if chosen.kept in chosen.times else ()
    found, launch = [], 0
    for kernel, samples in zip(kernels, samples_of(kernels, setting, store, tally), strict=True):
        native = not kernel.is_call
        number = numbers.get(same(kernel))
        runs = whole[launch] if native and launch < len(whole) else ()
        known = number is not None and np.isfinite(measured[number])
        found.append(
            KernelRow(
                launch if native else None,
                setting.label(kernel),
                kernel.provider or kernel.anchor.value,
                0.0 if number is None else _short(state.bounds[number]),
                _short(measured[number]) if known else None,
                tuple(_short(s) for s in samples[:MOST_SAMPLES]),
                tuple(_short(s) for s in runs[:MOST_SAMPLES]),
                () if number is None else _others(state, number, reduced, measured, setting),
            )
        )
        launch += native
    return tuple(found)


def _short(seconds: Any) -> float:
    """Four digits: a report is not larger than what was measured."""
    return float(f"{seconds:.4g}")


def _others(
    state: Profiling, number: int, reduced: np.ndarray, measured: np.ndarray, setting: Setting
) -> tuple[Alternative, ...]:
    """The two other kernels with which the whole plan would be least dear, of those that write the same."""
    mine = state.found.all[number]
    rivals = [
        k for k, c in enumerate(state.found.all)
        if state.keys[k] != state.keys[number] and c.writes[-1:] == mine.writes[-1:]
    ]  # fmt: skip
    best = sorted(rivals, key=lambda k: (float(reduced[k]), k))[:ALTERNATIVES]
    return tuple(_alternative(state.found.all[k], k, state, reduced, measured, setting) for k in best)


def _alternative(
    candidate: Candidate, number: int, state: Profiling, reduced: np.ndarray,
    measured: np.ndarray, setting: Setting,
) -> Alternative:  # fmt: skip
    kernel = candidate.kernel
    seconds = _short(measured[number]) if np.isfinite(measured[number]) else None
    return Alternative(
        setting.label(kernel),
        kernel.provider or kernel.anchor.value,
        tuple(n.name for n in kernel.nodes),
        seconds,
        _short(state.bounds[number]),
        _short(max(0.0, float(reduced[number]))),
    )
