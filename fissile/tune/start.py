"""How tuning begins: machine, cache state, extents, candidates with their bounds and guesses (DESIGN 3.4).

In: an untuned compilation, a budget, the machine's peaks. Out: a `Setting` to measure kernels by, and a `Profiling` in
which nothing is measured yet. Invariant: a bound is made from the highest peak ever seen and some more; a measurement
below its bound raises the one peak that explains it with the least change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

from fissile.ir.graph import Graph
from fissile.orchestrate.bound import CALL, Machine, bound, estimate, family
from fissile.orchestrate.candidates import Limits, candidates_of
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.liveness import assign
from fissile.orchestrate.nominal import nominal
from fissile.orchestrate.plan import Anchor, Kernel, Plan
from fissile.pipeline import Work
from fissile.provider import offered
from fissile.runtime.roofline import LEVELS, Peaks
from fissile.runtime.weights import view
from fissile.schedule.lower import form
from fissile.tune.budget import Budget
from fissile.tune.measure import Setting
from fissile.tune.rounds import Prior, Profiling, begin
from fissile.tune.trial import State, number

LIMITS = Limits(per_sink=16, largest=16)  # of the sets that candidates are made from
MARGIN = 1.05  # how far above the highest peak seen a bound takes the peak to be
ENOUGH = 0.01  # gap at which measuring stops
DISPATCH = 3e-8  # seconds at least to start a kernel; several threads must meet at its end, too
MEETING = 2e-7
SETTLING = 0.2  # share of the budget that is left for running whole models, and at most so many seconds
MOST_SETTLING = 60.0


def machine_of(peaks: Peaks, threads: int) -> Machine:
    """What bounds are made from: the highest peaks and some more, of all threads together."""
    rate = {level: peaks.bytes[level] * threads * MARGIN for level in LEVELS}
    levels = [(float(peaks.sizes[x] * threads), rate[x]) for x in ("l1", "l2")]
    levels += [(float(peaks.sizes["l3"]), rate["l3"]), (math.inf, rate["memory"])]
    dispatch = DISPATCH if threads == 1 else MEETING
    return Machine(peaks.operations * threads * MARGIN, tuple(levels), dispatch)


def setting_of(
    work: Work, budget: Budget, numbers: Mapping[str, int], began: float
) -> Setting:
    """How kernels of an untuned compilation are measured. began: `time.monotonic()`, from which the budget counts."""
    target, plan = work.targets[0], work.known("plan")
    guessed = nominal(target, work.threads)
    constants = sum(view(w.data).nbytes for _, w in work.weights)
    left = min(SETTLING * budget.seconds, MOST_SETTLING) if math.isfinite(budget.seconds) else 0.0
    return Setting(
        target,
        work.threads,
        numbers,
        State(constants, target.l3, _arena(plan, numbers)),
        lambda kernel: estimate(kernel, guessed, numbers),
        work.options.workers,
        deadline=began + budget.seconds - left,
        trials=budget.trials,
        label=lambda kernel: label(kernel, plan.graph),
    )


def _arena(plan: Plan, numbers: Mapping[str, int]) -> int:
    """Bytes of all places of intermediate tensors."""
    return sum(max(number(size, numbers) for size in sizes) for sizes in assign(plan).sizes)


def label(kernel: Kernel, graph: Graph) -> str:
    """What a kernel computes, for people: its first primitive and the ONNX nodes it serves."""
    names = list(dict.fromkeys(n for m in kernel.nodes for n in graph.origins.get(m, ())))
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    return f"{kernel.nodes[0].name} ({names[0]}{more})" if names else kernel.nodes[-1].name


def profiling_of(work: Work, setting: Setting, machine: Machine) -> Profiling:
    """The candidates, bound by the machine's peaks; nothing is measured."""
    own = candidates_of(greedy_plan(work.known("graph")), LIMITS)
    offers = offered(own, work.options.providers)
    peaks = [machine]

    def raised(kernel: Kernel, seconds: float) -> Callable[[Kernel], float]:
        peaks.append(faster(peaks[-1], kernel, seconds, setting.numbers))
        return lambda k: bound(k, peaks[-1], setting.numbers)

    def guess(kernel: Kernel) -> float:
        """Of an offer, as if the package took as long as our kernels, and the call beside."""
        if kernel.anchor is not Anchor.PACKAGE:
            return setting.estimate(kernel)
        return CALL + sum(map(setting.estimate, offers.parts[kernel]))

    return begin(
        offers.candidates,
        lambda k: bound(k, machine, setting.numbers),
        lambda k: (k.provider, form(k)[0]),
        raised,
        Prior(guess, lambda k: alike(k, len(offers.parts.get(k, ()))), ENOUGH),
    )


def alike(kernel: Kernel, parts: int = 0) -> Hashable:
    """Kernels that are about as far from their estimates: of one family, or else with the same layouts inside.

    parts: of an offer, how many kernels of ours it stands for.
    """
    if kernel.anchor is Anchor.PACKAGE:
        root = next((n.name for n in kernel.nodes if n.primitive.reduced is not None), "")
        return kernel.provider, root if parts == 1 else ""
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
