"""What tuning found out, as `report.json` of an artifact carries it under "tuning" (PRODUCT 3: views 2, 3, 9).

In: `Tuning`, or the JSON of a report. Out: the other of the two. All times are seconds; every list is plain data.
Invariant: what was not measured is None or empty, never a guess; an artifact that was not tuned has no "tuning", and
fields that a later version adds are ignored here.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

KEY = "tuning"


@dataclass(frozen=True)
class Standing:
    """A round of lazy profiling. seconds: since tuning began; measured: distinct kernels by then.

    plan_seconds, bound_seconds: of the best plan then, and what no plan could cost less than.
    gap: (plan - bound) / bound.
    """

    number: int
    seconds: float
    measured: int
    plan_seconds: float
    bound_seconds: float
    gap: float


@dataclass(frozen=True)
class Alternative:
    """A kernel that was considered and not taken, although it computes what the taken one writes.

    label: for people; primitives: what it computes, producers first. seconds: measured, None if it was not;
    bound_seconds: at least. extra_seconds: how much dearer the whole plan would be with it, at least (reduced cost).
    """

    label: str
    anchor: str
    primitives: tuple[str, ...]
    seconds: float | None
    bound_seconds: float
    extra_seconds: float


@dataclass(frozen=True)
class KernelRow:
    """A kernel of the plan that was kept. launch: its number among the launches of plan.json; None: runs in Python.

    predicted_seconds: what the plan was chosen by, measured alone. samples: those measurements. whole_seconds: one
    sample per run of the whole model, from its own time stamps. alternatives: the two best, best first.
    """

    launch: int | None
    label: str
    anchor: str
    bound_seconds: float
    predicted_seconds: float | None
    samples: tuple[float, ...]
    whole_seconds: tuple[float, ...]
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True)
class WholeRow:
    """A whole model that was run end to end against the others, in turns. name: "plan 1", "untuned", "installed"...

    predicted_seconds: None where kernels of it were not measured. ratio: of the first row's time to this one's, with
    its 95 % interval: above 1 = faster.
    """

    name: str
    predicted_seconds: float | None
    p10_seconds: float
    median_seconds: float
    ratio: float
    ratio_low: float
    ratio_high: float
    is_kept: bool


@dataclass(frozen=True)
class Tuning:
    """Everything a report shows of tuning. The certificate itself is in the manifest.

    machine: what was measured on. refused: why sets of primitives are no kernel -> how often. rejected: label of a
    kernel that could not be measured -> reason. kernels: in the order in which they run.
    """

    machine: str
    threads: int
    budget: str
    seconds: float
    extents: Mapping[str, int]
    rounds: tuple[Standing, ...]
    kernels: tuple[KernelRow, ...]
    whole: tuple[WholeRow, ...]
    refused: Mapping[str, int]
    rejected: Mapping[str, str]


def document(tuning: Tuning) -> dict[str, Any]:
    """The same as JSON."""
    return asdict(tuning)


def tuning_of(report: Mapping[str, Any]) -> Tuning | None:
    """What a `report.json` says of tuning; None for an artifact that was not tuned."""
    if KEY not in report:
        return None
    found = _read(Tuning, report[KEY])
    kernels = tuple(_kernel(row) for row in found["kernels"])
    lists = {"rounds": Standing, "whole": WholeRow}
    parts = {name: tuple(kind(**_read(kind, r)) for r in found[name]) for name, kind in lists.items()}
    return Tuning(**{**found, **parts, "kernels": kernels})


def _kernel(row: Mapping[str, Any]) -> KernelRow:
    found = _read(KernelRow, row)
    rows = (_read(Alternative, a) for a in found["alternatives"])
    others = tuple(Alternative(**{**a, "primitives": tuple(a["primitives"])}) for a in rows)
    samples = {name: tuple(found[name]) for name in ("samples", "whole_seconds")}
    return KernelRow(**{**found, **samples, "alternatives": others})


def _read(kind: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    return {f.name: row[f.name] for f in fields(kind)}
