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

from fissile.runtime.plan import Launch, Plan

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Profile:
    """`seconds[run, launch]` for the launches of a plan, in program order."""

    launches: tuple[Launch, ...]
    seconds: Seconds

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

    def table(self, limit: int | None = None) -> str:
        """Launches by falling time: microseconds, share, kernel, nodes."""
        median = self.median.tolist()
        whole = sum(median) or 1.0
        order = sorted(range(len(median)), key=lambda i: -median[i])[:limit]
        lines = [f"{'us':>10} {'share':>6}  {'kernel':<10} nodes"]
        for i in order:
            launch = self.launches[i]
            share = f"{100 * median[i] / whole:.1f}%"
            nodes = ", ".join(launch.nodes)
            lines.append(
                f"{median[i] * 1e6:>10.1f} {share:>6}  {launch.kernel:<10} {nodes}".rstrip()
            )
        return "\n".join(lines)

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
    plan: Plan, stamps: npt.NDArray[np.int64], calls: Seconds, ticks_per_second: float
) -> Profile:
    """The profile of runs: stamps as in `launch_seconds`, calls: seconds [run, call] of operators in Python.

    An operator in Python stands among the launches as kernel "foreign".
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
            launches.append(Launch("foreign", 0, 0, 0, (plan.calls[number].name,)))
            columns.append(calls[:, number : number + 1])
        first = end
    return Profile(tuple(launches), np.concatenate([np.zeros((len(stamps), 0)), *columns], axis=1))


def launch_seconds(stamps: npt.NDArray[np.int64], ticks_per_second: float) -> Seconds:
    """Stamps [run, 2 * launch] (before, after) -> seconds [run, launch], barriers included."""
    before, after = stamps[:, 0::2], stamps[:, 1::2]
    ends = np.concatenate([before[:, 1:], after[:, -1:]], axis=1)
    return (ends - before) / ticks_per_second
