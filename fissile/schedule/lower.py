"""A kernel of the plan to its loop program, by what it is built around."""

from __future__ import annotations

from fissile.orchestrate.plan import Anchor, Kernel
from fissile.schedule.elementwise import lower_elementwise
from fissile.schedule.kernel import Lowered
from fissile.schedule.linear import lower_linear, lower_pack
from fissile.schedule.reduction import lower_reduction
from fissile.schedule.rows import lower_rows
from fissile.schedule.scan import lower_scan
from fissile.target import Target

_ACCUMULATORS = 4  # vectors summed side by side: hides the latency of an addition


def lower(kernel: Kernel, target: Target) -> Lowered:
    """The loop function of a kernel, its launch arguments and its number of tasks."""
    if kernel.anchor is Anchor.LINEAR:
        return lower_linear(kernel, target)
    if kernel.anchor is Anchor.PACK:
        return lower_pack(kernel)
    if kernel.anchor is Anchor.ROWS:
        return lower_rows(kernel, _lanes(kernel, target))
    if kernel.anchor is Anchor.REDUCE:
        return lower_reduction(kernel, _lanes(kernel, target))
    if kernel.anchor is Anchor.SCAN:
        return lower_scan(kernel)
    return lower_elementwise(kernel)


def _lanes(kernel: Kernel, target: Target) -> int:
    widest = max(n.dtype.compute.bytes for n in kernel.nodes)
    return _ACCUMULATORS * target.lanes(widest)


