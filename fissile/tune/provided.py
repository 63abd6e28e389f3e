"""Plans in which other packages run kernels, where that measures faster (DESIGN 3.4; Korch section 5.2).

In: a plan that has run whole, with the seconds of its launches, and the providers that the user allows. Out: per
provider the cheapest plan with its offers accepted, to be run whole against the others. Offers are timed as the runtime
would call them, the copies of their results included. Invariant: without the option nothing here runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fissile.ir.graph import Node
from fissile.options import Event
from fissile.orchestrate.plan import Kernel, Plan
from fissile.pipeline import Progress, Work, run
from fissile.provider import Offer, accept, called, offers
from fissile.runtime.measure import random_feed
from fissile.runtime.plan import TensorInfo
from fissile.runtime.vendor import Evaluator, VendorFailed, evaluator
from fissile.tune.plans import UNTUNED, Chosen, Made
from fissile.tune.provider import number

CALL_SECONDS = 2e-5  # that a segment more costs, beside what the call itself takes
RUNS, WARM = 7, 2
LEAST_SECONDS = 5.0  # for offers, whatever of the budget is left
Seconds = Mapping[Kernel, float]
Timed = Callable[[Offer], float]


def chosen_offers(plan: Plan, provider: str, native: Seconds, timed: Timed) -> list[Offer]:
    """The offers with which the plan's seconds are least; they do not overlap. native: of every kernel."""
    found = [*offers(plan, provider)]
    ahead = sorted(found, key=lambda o: -sum(native[k] for k in o.kernels))
    gains: dict[Offer, float] = {}
    for offer in ahead:
        gain = sum(native[k] for k in offer.kernels) - timed(offer) - CALL_SECONDS
        if gain > 0:
            gains[offer] = gain
    best: list[tuple[float, list[Offer]]] = [(0.0, [])]
    for at in range(len(plan.steps)):
        here = [o for o in gains if o.first == o.last == at and len(o.kernels) == 1]
        gain, taken = best[at]
        rows = [(gain + sum(gains[o] for o in here), [*taken, *here])]
        for offer in (o for o in gains if o.last == at and len(o.kernels) > 1):
            gain, taken = best[offer.first]
            rows.append((gain + gains[offer], [*taken, offer]))
        best.append(max(rows, key=lambda row: row[0]))
    return best[-1][1]


def with_offers(plan: Plan, provider: str, native: Seconds, timed: Timed) -> Plan | None:
    """The plan with the best offers of a provider, None where none is faster."""
    taken = chosen_offers(plan, provider, native, timed)
    return accept(plan, taken) if taken else None


def provided_plans(
    chosen: Chosen,
    made: Sequence[Made],
    untuned: Work,
    numbers: Mapping[str, int],
    deadline: float,
    progress: Progress,
) -> list[Made]:
    """The plan that runs best, with the offers of each provider; compiled.

    Nothing (and that is said) for a plan that calls Python, whose kernels have no time stamps. deadline: of
    `time.monotonic()`.
    """
    rows = [Made(UNTUNED, untuned, None, None), *made]
    rows = [row for row in rows if row.name in chosen.times]
    if not rows:
        return []
    base = min(rows, key=lambda row: chosen.times[row.name].seconds)
    plan: Plan = base.work.known("plan")
    native = native_seconds(plan, chosen.times[base.name].launches)
    timed = timer(numbers, untuned.threads, max(deadline, time.monotonic() + LEAST_SECONDS))
    if not native:
        progress(Event("whole", "providers not tried: an operator runs in Python, so kernels have no times"))
        return []
    found = []
    for provider in untuned.options.providers:
        other = with_offers(plan, provider, native, timed)
        if other is not None:
            work = replace(base.work, plan_given=other, certificate={})
            found.append(Made(f"with {provider}", run(work, lambda event: None, first="plan"), None, None))
    return found


def is_own(plan: Plan) -> bool:
    """Whether no other package runs any of it."""
    return "providers" not in called(plan)


def native_seconds(plan: Plan, launches: Sequence[Sequence[float]]) -> dict[Kernel, float]:
    """Seconds of every kernel by the time stamps of a whole run; {} where there are none."""
    kernels = plan.kernels()
    if len(kernels) != len(launches):
        return {}
    return {k: float(np.percentile(row, 10)) for k, row in zip(kernels, launches, strict=True)}


def timer(numbers: Mapping[str, int], threads: int, deadline: float) -> Timed:
    """Times offers at the representative extents; equal ones once, and none behind the deadline (`monotonic`)."""
    known: dict[Hashable, float] = {}

    def timed(offer: Offer) -> float:
        key = _form(offer)
        if key not in known:
            if time.monotonic() > deadline:
                return float("inf")
            known[key] = _seconds(offer, numbers, threads)
        return known[key]

    return timed


def _form(offer: Offer) -> Hashable:
    """Equal for offers that take equally long: constants may differ."""

    def said(nodes: Iterable[Node]) -> tuple[str, ...]:
        return tuple(f"{n.name} {n.type} {_attributes(n)}" for n in nodes)

    inner = tuple((k.anchor, said(k.nodes), said(k.inputs)) for k in offer.kernels)
    return offer.provider, inner, said(offer.reads), said(offer.writes)


def _attributes(node: Node) -> str:
    return ", ".join(f"{k}={v}" for k, v in node.attrs if k not in ("value", "name"))


def _seconds(offer: Offer, numbers: Mapping[str, int], threads: int) -> float:
    """Infinity where the package cannot run it."""
    rng = np.random.default_rng(0)
    arrays = [_array(n, numbers, rng) for n in offer.reads]
    places = [_array(n, numbers, rng) for n in offer.writes]
    try:
        run = evaluator(offer.provider, offer.model, threads)
        samples = [_once(run, arrays, places, offer) for _ in range(WARM + RUNS)]
    except VendorFailed:
        return float("inf")
    return float(np.percentile(samples[WARM:], 10))


def _once(
    run: Evaluator, arrays: list[np.ndarray], places: list[np.ndarray], offer: Offer
) -> float:
    """What follows a product is taken to cost as much as the copy of it."""
    start = time.perf_counter()
    results = run(arrays)
    called = time.perf_counter()
    for place, result in zip(places, results, strict=True):
        place[...] = np.asarray(result).reshape(place.shape)
    end = time.perf_counter()
    return end - start + (end - called if offer.rest is not None else 0.0)


def _array(node: Node, numbers: Mapping[str, int], rng: np.random.Generator) -> np.ndarray:
    shape = tuple(number(d, numbers) for d in node.shape)
    return random_feed(TensorInfo("", node.dtype.numpy, shape), shape, rng)
