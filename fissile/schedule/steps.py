"""All schedule steps, and their application one after another.

In: a loop program and a schedule, which is a tuple of steps. Out: a loop program of the same
meaning. Invariant: replaying a schedule on the same program gives the same program; a step that
would break its law raises `ScheduleError` and names it. To add a step: one frozen dataclass with
its law `before -> after` as the first line, and its name here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fissile.ir.loop import Function
from fissile.schedule.loop_steps import Fuse, Parallel, Reorder, Split, Unroll, Vectorize
from fissile.schedule.rfactor import Rfactor
from fissile.schedule.stage_steps import CacheRead, CacheWrite, ComputeAt, ComputeRoot, Inline
from fissile.schedule.tensorize import Tensorize, View

__all__ = [
    "STEPS",
    "CacheRead",
    "CacheWrite",
    "ComputeAt",
    "ComputeRoot",
    "Fuse",
    "Inline",
    "Parallel",
    "Reorder",
    "Rfactor",
    "Schedule",
    "Split",
    "Step",
    "Tensorize",
    "Unroll",
    "Vectorize",
    "View",
    "apply",
]


class Step(Protocol):
    """One edit of a loop program."""

    def apply(self, f: Function) -> Function:
        """`f` after this step. ScheduleError: the step's law would not hold."""


Schedule = Sequence[Step]

STEPS = (
    Split,
    Fuse,
    Reorder,
    ComputeAt,
    Inline,
    ComputeRoot,
    CacheWrite,
    CacheRead,
    Rfactor,
    Vectorize,
    Parallel,
    Unroll,
    Tensorize,
)


def apply(f: Function, schedule: Schedule) -> Function:
    """`f` after every step of `schedule`, in order. ScheduleError: the first step that refuses."""
    for step in schedule:
        f = step.apply(f)
    return f
