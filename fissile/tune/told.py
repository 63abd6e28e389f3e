"""What tuning says, in the words of PRODUCT 2.4.

In: where tuning stands. Out: one line of text for people. Invariant: "proved" is followed by of what and under what.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from fissile.options import PROVIDERS, Event
from fissile.pipeline import said
from fissile.runtime.store import Store
from fissile.tune.budget import Budget, clock
from fissile.tune.measure import Setting, Tally
from fissile.tune.rounds import Profiling, Round, admissible_gap, certificate
from fissile.tune.whole import Whole


def store_text(store: Store, setting: Setting) -> str:
    """Where measurements are kept, and how many of this machine there are."""
    here = setting.key("").isa
    known = len({row.key for row in store.rows() if row.key.isa == here})
    home = str(Path.home())
    name = f"~{store.name.removeprefix(home)}" if store.name.startswith(f"{home}/") else store.name
    return f"{name} · {known} kernels already measured here"


def start_text(state: Profiling, setting: Setting) -> str:
    """What is known before anything is measured."""
    guess = sum(setting.estimate(state.found.all[k].kernel) for k in state.selected)
    distinct = len({state.keys[k] for k in state.selected})
    return (
        f"predicted {said(guess)} · lower bound {said(state.first_bound)} · "
        f"{distinct} distinct kernels of {len(state.found.all)} candidates · Ctrl-C keeps everything"
    )


def round_text(row: Round, seconds: float) -> str:
    """A line per round. seconds: since tuning began."""
    return (
        f"{clock(seconds)}   round {row.number:<3d} measured {row.measured:3d}   "
        f"plan {said(row.plan_seconds)}   bound {said(row.bound_seconds)}   gap {100 * row.gap:.1f} %"
    )


def measuring(tally: Tally, budget: Budget, began: float) -> Event:
    """The line that changes: how far the budget is used up, and what is being measured."""
    seconds = time.monotonic() - began
    share = max(seconds / budget.seconds, tally.measured / budget.trials)
    more = f" +{len(tally.last) - 1}" if len(tally.last) > 1 else ""
    names = f"{tally.last[0]}{more}" if tally.last else ""
    text = f"{clock(seconds)} / {budget}  {names}  kernel {tally.done}/{tally.wanted}"
    return Event("measuring", text, share=min(share, 1.0))


def rejected_text(rejected: Mapping[str, str]) -> str:
    """How many kernels could not be measured, by kind of reason; what a package failed at, under its name."""
    counts = Counter(_package(label) + _kind(reason) for label, reason in rejected.items())
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    return f"{len(rejected)}: {kinds} (kept: fissile store rejects)"


def _package(label: str) -> str:
    name = label.partition(": ")[0]
    return f"{name} " if name in PROVIDERS else ""


def _kind(reason: str) -> str:
    known = {"no answer": "timed out", "ended by": "crashed", "cannot be lowered": "not lowered",
             "values off": "wrong", "other ": "wrong"}  # fmt: skip
    return next((kind for start, kind in known.items() if reason.startswith(start)), "failed")


def whole_text(
    times: Mapping[str, Whole], plans: Sequence[str], kept: str, predicted: float | None
) -> str:
    """How long whole models took, and which is kept. plans: names of those that measurements chose."""
    best = f"best {len(plans)} plans" if len(plans) > 1 else "best plan"
    rows = ", ".join(said(times[name].seconds) for name in plans)
    others = "".join(f", {n} {said(w.seconds)}" for n, w in times.items() if n not in plans)
    expected = "" if predicted is None else f"predicted {said(predicted)}, "
    found = f"({expected}measured {said(times[kept].seconds)})"
    return f"{best} run end to end: {rows}{others} → {kept} {found}"


def proved_text(state: Profiling) -> str:
    """What the measurements prove of the best plan, and as far as what holds."""
    row = certificate(state)
    share = 100 * row.measured / max(row.candidates, 1)
    measured = f"{row.measured} ({share:.1f} %) measured"
    if not state.is_measured:
        return f"nothing yet: measuring stopped early; gap {100 * row.gap:.1f} %, {measured}"
    if not state.is_complete:
        measured += "; the budget ended before all were timed again"
    what = f"{row.candidates} candidate kernels under measured costs"
    if state.guesses is not None:
        least = 100 * admissible_gap(state)
        measured += (
            f"; as far as no other kernel beats the fastest measured most like it ({least:.0f} % from bounds alone)"
        )
    if row.gap <= 1e-6:
        return f"cheapest of {what}; {measured}"
    return f"within {100 * row.gap:.2g} % of the cheapest of {what}; {measured}"
