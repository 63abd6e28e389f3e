"""Tuning: the plan that measurements choose, run end to end before it is kept (PRODUCT 2.4, DESIGN 3.4).

In: what to compile, a budget, the store, perhaps the artifact that is there already. Out: `Tuned`: the artifact to
install, what is proved about it, and the times of the whole models. Invariant: whenever it is interrupted, an artifact
comes out that is no slower than what was there, and every finished measurement is in the store.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fissile.errors import FissileError
from fissile.ir.dim import symbols
from fissile.ir.graph import Graph
from fissile.options import Event, environment
from fissile.orchestrate.bound import Machine, bound, estimate, family
from fissile.orchestrate.candidates import candidates_of
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.liveness import REPRESENTATIVE
from fissile.orchestrate.orchestrate import plan_of
from fissile.orchestrate.plan import Kernel, Plan
from fissile.orchestrate.plan_file import plan_text
from fissile.pipeline import Work, run
from fissile.runtime.artifact import read_artifact
from fissile.runtime.roofline import LEVELS, Peaks
from fissile.runtime.store import Store, default_paths
from fissile.runtime.weights import view
from fissile.schedule.lower import form
from fissile.tune.budget import Budget, clock
from fissile.tune.measure import OutOfTime, Setting, Tally, seconds_of
from fissile.tune.peak import machine_peaks
from fissile.tune.provider import State
from fissile.tune.rounds import (
    Prior,
    Profiling,
    Round,
    admissible_gap,
    begin,
    certificate,
    distinct,
    profile,
    settle,
)
from fissile.tune.whole import Whole, keep, time_whole

MARGIN = 1.05  # how far above the highest peak seen a bound takes the peak to be
ENOUGH = 0.01  # gap at which measuring stops
DISPATCH = 3e-8  # seconds at least to start a kernel; several threads must meet at its end, too
MEETING = 2e-7
SETTLING = 0.15  # share of the budget that is left for running whole models, and at most so many seconds
MOST_SETTLING = 20.0
UNTUNED, TUNED, INSTALLED = "untuned", "tuned", "installed"

Progress = Callable[[Event], None]
TimeWhole = Callable[[Sequence[Path], int, Mapping[str, int]], list[Whole]]


@dataclass(frozen=True)
class Tuned:
    """artifact: what to install, `kept` says which of the three it is. plan: text of its plan file ("": none).

    times: whole models by the same names. certificate: as in the manifest. rejected: kernels and their reasons.
    """

    artifact: bytes
    kept: str
    plan: str
    certificate: Mapping[str, Any]
    times: Mapping[str, Whole]
    rejected: Mapping[str, str]
    is_interrupted: bool
    rounds: tuple[Round, ...]

    def summary(self) -> str:
        """Untuned and kept in one line."""
        if not self.times:
            return "not timed as a whole"
        before, after = self.times[UNTUNED].seconds, self.times[self.kept].seconds
        text = f"untuned {said(before)} → {said(after)} ({before / after:.2f}x, both measured just now)"
        return text if self.kept == TUNED else f"{text}: the {self.kept} artifact stays"


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
    began = time.monotonic()
    work = run(work, progress, "substitute")
    graph: Graph = work.known("graph")
    numbers = representative(graph, work.shapes)
    untuned = run(work, _silent, first="plan")
    machine = machine_of(peaks(), work.threads)
    with Store(environment().store or default_paths()) as store:
        setting = _setting(untuned, budget, numbers, machine, began)
        setting = replace(setting, told=lambda t: progress(_measuring(t, budget, began)))
        state = _begin(untuned, setting, machine)
        progress(Event("store", _store_text(store, setting)))
        progress(Event("start", _start_text(state, setting)))
        tally, rounds = Tally(), list[Round]()
        is_interrupted = False
        try:
            for row in profile(state, lambda ks, n: measured(ks, setting, store, tally, times=n)):
                rounds.append(row)
                progress(Event("round", f"{clock(time.monotonic() - began)}   {_round_text(row)}"))
        except OutOfTime:
            pass  # what is known by now decides
        except KeyboardInterrupt:
            is_interrupted = True
            progress(Event("interrupted", "choosing among what has been measured"))
    if tally.rejected:
        progress(Event("rejected", _rejected_text(tally.rejected)))
    was = (untuned.artifact, installed if installed and _is_same(installed, untuned) else None)
    try:
        done = _compiled(work, state)
        kept, times = _choose(done, *was, numbers, timed, progress)
        done = _with_times(done, times)
        artifact = done.artifact if kept == TUNED else _before(*was, kept)
    except KeyboardInterrupt:
        is_interrupted = True
        done, times = untuned, {}
        kept = INSTALLED if was[1] else UNTUNED
        artifact = _before(*was, kept)
    progress(Event("proved", _proved_text(state)))
    files = {UNTUNED: untuned, TUNED: done}
    plan = plan_text(files[kept].known("plan")) if kept in files else ""
    return Tuned(
        artifact, kept, plan, done.certificate, times, tally.rejected, is_interrupted, tuple(rounds)
    )


def representative(graph: Graph, shapes: Mapping[str, Any]) -> dict[str, int]:
    """The numbers of free dimensions that kernels are measured at.

    The middle of a range that the user gave, by ratio; else 1 for the first axis of an input, REPRESENTATIVE for
    others.
    """
    numbers: dict[str, int] = {}
    for node in graph.inputs:
        given = shapes.get(node.attr("name"))
        wishes = given if isinstance(given, list | tuple) else [None] * len(node.shape)
        for axis, extent in enumerate(node.shape):
            for found in symbols(extent):
                wish = shapes.get(found.name, wishes[axis] if axis < len(wishes) else None)
                default = 1 if axis == 0 else REPRESENTATIVE
                number = default if wish is None else _middle(wish)
                numbers.setdefault(found.name, max(number, found.lower))
    return numbers | dict.fromkeys(graph.late, REPRESENTATIVE)


def _middle(wish: int | tuple[int, int]) -> int:
    low, high = (wish, wish) if isinstance(wish, int) else wish
    return round(math.sqrt(max(low, 1) * max(high, 1)))


def machine_of(peaks: Peaks, threads: int) -> Machine:
    """What bounds are made from: the highest peaks and some more, of all threads together."""
    rate = {level: peaks.bytes[level] * threads * MARGIN for level in LEVELS}
    levels = [(float(peaks.sizes[x] * threads), rate[x]) for x in ("l1", "l2")]
    levels += [(float(peaks.sizes["l3"]), rate["l3"]), (math.inf, rate["memory"])]
    dispatch = DISPATCH if threads == 1 else MEETING
    return Machine(peaks.operations * threads * MARGIN, tuple(levels), dispatch)


def said(seconds: float) -> str:
    """Seconds as milliseconds with three digits, microseconds where that is more readable."""
    value, unit = (seconds * 1e3, "ms") if seconds >= 1e-4 else (seconds * 1e6, "µs")
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


# ---------------------------------------------------------------- the start


def _setting(
    work: Work, budget: Budget, numbers: Mapping[str, int], machine: Machine, began: float
) -> Setting:
    target, plan = work.targets[0], work.known("plan")
    constants = sum(view(w.data).nbytes for _, w in work.weights)
    left = min(SETTLING * budget.seconds, MOST_SETTLING) if math.isfinite(budget.seconds) else 0.0
    return Setting(
        target,
        work.threads,
        numbers,
        State(constants, target.l3),
        lambda kernel: estimate(kernel, machine, numbers),
        work.options.workers,
        deadline=began + budget.seconds - left,
        trials=budget.trials,
        label=lambda kernel: label(kernel, plan.graph),
    )


def label(kernel: Kernel, graph: Graph) -> str:
    """What a kernel computes, for people: its first primitive and the ONNX nodes it serves."""
    names = list(dict.fromkeys(n for m in kernel.nodes for n in graph.origins.get(m, ())))
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    return f"{kernel.nodes[0].name} ({names[0]}{more})" if names else kernel.nodes[-1].name


def _begin(work: Work, setting: Setting, machine: Machine) -> Profiling:
    """The candidates, bound by the machine's peaks."""
    found = candidates_of(greedy_plan(work.known("graph")))
    peaks = [machine]

    def raised(kernel: Kernel, seconds: float) -> Callable[[Kernel], float]:
        peaks.append(faster(peaks[-1], kernel, seconds, setting.numbers))
        return lambda k: bound(k, peaks[-1], setting.numbers)

    return begin(
        found,
        lambda k: bound(k, machine, setting.numbers),
        lambda k: form(k)[0],
        raised,
        Prior(setting.estimate, alike, ENOUGH),
    )


def alike(kernel: Kernel) -> Hashable:
    """Kernels that are about as far from their estimates: of one family, or else with the same layouts inside."""
    return family(kernel) or (kernel.anchor, frozenset(_moves(kernel)))


def _moves(kernel: Kernel) -> set[str]:
    """The names of what is not elementwise between the inputs of a kernel and what it computes."""
    found: set[str] = set()
    seen = set(kernel.inputs)
    stack = [n for n in kernel.nodes if n not in seen]
    while stack:
        node = stack.pop()
        if node.primitive.kind != "elementwise":
            found.add(node.name)
        fresh = [i for i in node.inputs if i not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    return found


def faster(
    machine: Machine, kernel: Kernel, seconds: float, numbers: Mapping[str, int]
) -> Machine:
    """The machine with the peak raised that explains with the least change that `kernel` took only `seconds`."""

    def raised(part: int, factor: float) -> Machine:
        if part == 0:
            return replace(machine, flops=machine.flops * factor)
        levels = list(machine.levels)
        size, speed = levels[part - 1]
        levels[part - 1] = size, speed * factor
        return replace(machine, levels=tuple(levels))

    before = bound(kernel, machine, numbers)
    parts = range(1 + len(machine.levels))
    limiting = [p for p in parts if bound(kernel, raised(p, 2.0), numbers) < before]
    work = before - machine.dispatch
    factor = MARGIN * work / (seconds - machine.dispatch) if seconds > machine.dispatch else math.inf
    left = (seconds - work) / MARGIN
    if not limiting or (left > 0 and machine.dispatch / left < factor):
        return replace(machine, dispatch=max(left, 0.0))
    if math.isinf(factor):
        return replace(machine, dispatch=min(machine.dispatch, 0.5 * seconds))
    return raised(limiting[0], factor)


def _store_text(store: Store, setting: Setting) -> str:
    here = setting.key("").isa
    known = len({row.key for row in store.rows() if row.key.isa == here})
    return f"{store.name} · {known} kernels already measured here"


def _start_text(state: Profiling, setting: Setting) -> str:
    guess = sum(setting.estimate(state.found.all[k].kernel) for k in state.selected)
    return (
        f"predicted {said(guess)} · lower bound {said(state.first_bound)} · "
        f"{len(state.found.all)} candidates · Ctrl-C keeps everything"
    )


# ---------------------------------------------------------------- the end


def _compiled(work: Work, state: Profiling) -> Work:
    """The work done with the best plan of what has been measured."""
    plan: Plan = plan_of(state.found, settle(state))
    return run(replace(work, plan_given=plan, certificate=_proof(state)), _silent, first="plan")


def _proof(state: Profiling) -> dict[str, Any]:
    """The certificate of the manifest; whether lazy profiling came to its end is part of it."""
    more = {"complete": state.is_complete, "distinct": distinct(state)}
    return {**asdict(certificate(state)), "admissible_gap": admissible_gap(state), **more}


def _before(untuned: bytes, installed: Path | None, kept: str) -> bytes:
    return installed.read_bytes() if installed and kept == INSTALLED else untuned


def _with_times(done: Work, times: Mapping[str, Whole]) -> Work:
    """The work with the measured times of the whole in its certificate."""
    measured = {"measured_seconds": times[TUNED].seconds, "untuned_seconds": times[UNTUNED].seconds}
    proof = {**done.certificate, **measured}
    return run(replace(done, certificate=proof), _silent, first="artifact")


def _is_same(path: Path, work: Work) -> bool:
    """Whether an artifact is of this model, for these shapes, threads and targets: then it may be better."""
    try:
        found, mine = read_artifact(path).manifest, read_artifact(work.artifact).manifest
    except FissileError:
        return False
    asked = ("shapes", "threads")
    targets = [[row["name"] for row in m["targets"]] for m in (found, mine)]
    same = all(found.get(part) == mine[part] for part in asked)
    return same and found["model"]["sha256"] == mine["model"]["sha256"] and targets[0] == targets[1]


def _choose(
    done: Work,
    untuned: bytes,
    installed: Path | None,
    numbers: Mapping[str, int],
    timed: TimeWhole,
    progress: Progress,
) -> tuple[str, dict[str, Whole]]:
    """Which artifact is kept, and the times of all: what is there now stays unless it is surely no faster."""
    made = {UNTUNED: untuned, TUNED: done.artifact}
    if installed is not None:
        made = {INSTALLED: installed.read_bytes(), **made}
    free = {row["name"] for row in done.code[0].plan["symbols"]}
    with tempfile.TemporaryDirectory(prefix="fissile-") as folder:
        paths = [Path(folder) / f"{name}.fsl" for name in made]
        for path, artifact in zip(paths, made.values(), strict=True):
            path.write_bytes(artifact)
        at = {name: n for name, n in numbers.items() if name in free}
        found = timed(paths, done.threads, at)
    times = dict(zip(made, found, strict=True))
    kept = [*made][keep(found)]
    row = ", ".join(f"{name} {said(whole.seconds)}" for name, whole in times.items())
    predicted = said(done.certificate["predicted_seconds"])
    progress(Event("whole", f"run end to end: {row} → {kept} (predicted {predicted})"))
    return kept, times


# ---------------------------------------------------------------- what is said


def _silent(event: Event) -> None:
    """Stages that run again say nothing."""


def _round_text(row: Round) -> str:
    return (
        f"round {row.number:<3d} measured {row.measured:3d}   plan {said(row.plan_seconds)}   "
        f"bound {said(row.bound_seconds)}   gap {100 * row.gap:.1f} %"
    )


def _measuring(tally: Tally, budget: Budget, began: float) -> Event:
    text = f"{clock(time.monotonic() - began)} / {budget}  measured {tally.measured}  {tally.last[0]}"
    return Event("measuring", text)


def _rejected_text(rejected: Mapping[str, str]) -> str:
    counts = Counter(_kind(reason) for reason in rejected.values())
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    return f"{len(rejected)}: {kinds} (kept: fissile store rejects)"


def _kind(reason: str) -> str:
    known = {"no answer": "timed out", "ended by": "crashed", "cannot be lowered": "not lowered"}
    return next((kind for start, kind in known.items() if reason.startswith(start)), "failed")


def _proved_text(state: Profiling) -> str:
    row = certificate(state)
    share = 100 * row.measured / max(row.candidates, 1)
    measured = f"{row.measured} ({share:.1f} %) measured"
    if not state.is_complete:
        measured += "; the budget ended before all were timed again"
    if not state.is_measured:
        measured = f"{row.measured} ({share:.1f} %) measured"
        return f"nothing yet: measuring stopped early; gap {100 * row.gap:.1f} %, {measured}"
    what = f"{row.candidates} candidate kernels under measured costs"
    if row.gap <= 1e-6:
        return f"cheapest of {what}; {measured}"
    return f"within {100 * row.gap:.2g} % of the cheapest of {what}; {measured}"
