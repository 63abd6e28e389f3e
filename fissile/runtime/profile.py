"""Where the time of a run goes, launch by launch, from time stamps taken on thread 0.

In: seconds per run and launch, and the plan's names. Out: a table, times by node, a trace file.
Invariant: the times are those of the stitched program; a launch ends where the next one begins, so
waiting at the barrier belongs to the launch before it and the sum is the whole run.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fissile.runtime.memory import Words
from fissile.runtime.plan import Launch, Plan
from fissile.runtime.roofline import Bound, Peaks, bound

SHARE, EXCESS = 0.02, 8.0  # what is reported as slow: of the whole run, and over the bound
Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """One launch: seconds, share of the run, bytes and operations at least, and its roofline bound (None: unknown)."""

    kernel: str
    nodes: tuple[str, ...]
    seconds: float
    share: float
    bytes: int
    operations: int
    bound_seconds: float | None
    limit: str

    @property
    def excess(self) -> float | None:
        """Time over bound; None where there is no bound."""
        return self.seconds / self.bound_seconds if self.bound_seconds else None

    def text(self) -> str:
        """A line of the table."""
        least, excess = "", ""
        if self.bound_seconds is not None:
            least = f"{self.bound_seconds * 1e6:.1f}"
            excess = "-" if self.excess is None else f"{self.excess:.1f}"
        numbers = f"{self.seconds * 1e6:>10.1f} {100 * self.share:>5.1f}% {least:>9} {excess:>7}"
        work = f"{self.bytes / 1e6:>8.3f} {self.operations / 1e9:>7.4f}"
        names = ", ".join(self.nodes)
        return f"{numbers} {self.limit:>8} {work}  {self.kernel:<10} {names}".rstrip()


@dataclass(frozen=True, eq=False)
class Profile:
    """`seconds[run, launch]` for the launches of a plan, in program order.

    work[launch]: bytes of weights, other bytes and operations it needs at least; -1 where not known.
    weights: bytes of the model's weights.
    """

    launches: tuple[Launch, ...]
    seconds: Seconds
    work: npt.NDArray[np.int64]
    threads: int = 1
    weights: int = 0

    @property
    def median(self) -> Seconds:
        """Median seconds per launch."""
        if not len(self.launches):
            return np.zeros(0)
        return np.asarray(np.median(self.seconds, axis=0))

    def by_node(self) -> dict[str, float]:
        """Median seconds per ONNX node; a fused kernel's time is shared evenly by its nodes."""
        total: dict[str, float] = {}
        for launch, seconds in zip(self.launches, self.median.tolist()):
            names = launch.nodes or (launch.kernel,)
            for name in names:
                total[name] = total.get(name, 0.0) + seconds / len(names)
        return total

    def rows(self, peaks: Peaks | None = None) -> list[Row]:
        """Launches by falling time, with their bounds where the machine's peaks are given."""
        median = self.median.tolist()
        whole = sum(median) or 1.0
        order = sorted(range(len(median)), key=lambda i: -median[i])
        return [self._row(i, median[i], whole, peaks) for i in order]

    def table(self, limit: int | None = None, peaks: Peaks | None = None) -> str:
        """Launches by falling time: microseconds, share, bound, how far from it, MB, GFLOP, kernel, nodes."""
        head = f"{'us':>10} {'share':>6} {'bound us':>9} {'x bound':>7} {'limit':>8} {'MB':>8} "
        lines = [f"{head}{'GFLOP':>7}  {'kernel':<10} nodes"]
        lines += [row.text() for row in self.rows(peaks)[:limit]]
        return "\n".join(lines)

    def slow(self, peaks: Peaks) -> list[Row]:
        """The launches with more than SHARE of the time that take more than EXCESS times their bound."""
        rows = self.rows(peaks)
        return [r for r in rows if r.share > SHARE and r.excess is not None and r.excess > EXCESS]

    def least(self, index: int, peaks: Peaks) -> Bound | None:
        """The bound of a launch in program order; None where its work is not known."""
        constants, moved, operations = (int(x) for x in self.work[index])
        if constants < 0:
            return None
        return bound(constants, moved, operations, self.weights, peaks, self.threads)

    def _row(self, index: int, seconds: float, whole: float, peaks: Peaks | None) -> Row:
        launch = self.launches[index]
        constants, moved, operations = (int(x) for x in self.work[index])
        least = None if peaks is None else self.least(index, peaks)
        return Row(
            launch.kernel,
            launch.nodes,
            seconds,
            seconds / whole,
            max(constants, 0) + max(moved, 0),
            max(operations, 0),
            None if least is None else least.seconds,
            "" if least is None else least.limit,
        )

    def to_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the first run as a trace that chrome://tracing and Perfetto open."""
        events: list[dict[str, Any]] = []
        start = 0.0
        for launch, seconds in zip(self.launches, self.seconds[0].tolist()):
            name = ", ".join(launch.nodes) or launch.kernel
            events.append(
                {"name": name, "cat": launch.kernel, "ph": "X", "pid": 0, "tid": 0}
                | {"ts": start * 1e6, "dur": seconds * 1e6}
            )
            start += seconds
        Path(path).write_text(json.dumps({"traceEvents": events}), encoding="utf-8")


def profile_of(
    plan: Plan,
    slots: Words,
    stamps: npt.NDArray[np.int64],
    calls: Seconds,
    ticks_per_second: float,
) -> Profile:
    """The profile of runs: stamps as in `launch_seconds`, calls: seconds [run, call] of operators in Python.

    slots: of the shape that ran; where calls decide about extents, work is not known. An operator in
    Python stands among the launches as kernel "foreign", what a package runs under the package's name.
    """
    launches: list[Launch] = []
    columns: list[Seconds] = []
    first = 0
    for number in range(len(plan.calls) + 1):
        step = plan.calls[number].step if number < len(plan.calls) else len(plan.steps) - 1
        end = int(plan.steps[step])
        if first < end:
            launches.extend(plan.launches[first:end])
            columns.append(launch_seconds(stamps[:, 2 * first : 2 * end], ticks_per_second))
        if number < len(plan.calls):
            call = plan.calls[number]
            launches.append(Launch(call.provider or "foreign", 0, 0, 0, (call.name,)))
            columns.append(calls[:, number : number + 1])
        first = end
    known = [launch.work if launch.work and not plan.calls else None for launch in launches]
    work = np.array([(-1,) * 3 if w is None else slots[list(w)] for w in known], np.int64)
    seconds = np.concatenate([np.zeros((len(stamps), 0)), *columns], axis=1)
    return Profile(tuple(launches), seconds, work.reshape(-1, 3))


def launch_seconds(stamps: npt.NDArray[np.int64], ticks_per_second: float) -> Seconds:
    """Stamps [run, 2 * launch] (before, after) -> seconds [run, launch], barriers included."""
    before, after = stamps[:, 0::2], stamps[:, 1::2]
    ends = np.concatenate([before[:, 1:], after[:, -1:]], axis=1)
    return (ends - before) / ticks_per_second
