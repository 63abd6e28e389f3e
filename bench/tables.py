"""Recorded cost tables: all candidate kernels of parts of real networks, with bound, guess and measurement.

    python bench/tables.py [--models DIR] [--to tests/orchestrate/tables] [--only TITLE] [--samples 9]

One JSON file per part, small enough to keep: what the program sees (tensors by number, primitives by number) and three
costs per candidate. Tests let lazy profiling work on the tables, where measuring costs nothing. Candidates are those of
an untuned compile. DIR holds NAME.onnx. Takes minutes and wants a quiet machine; measurements are kept in the tuning
store, so it may be interrupted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from windows import WINDOWS, Window, canonical, units_between

from fissile.options import environment, resolve_target
from fissile.orchestrate.bound import estimate, family, prices
from fissile.orchestrate.candidates import candidates_of
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.nominal import representative
from fissile.orchestrate.orchestrate import QUICK
from fissile.orchestrate.units import representative_bytes
from fissile.runtime.store import Store, default_paths
from fissile.schedule.lower import form
from fissile.tune.measure import Setting, Tally, seconds_of
from fissile.tune.peak import machine_peaks
from fissile.tune.start import machine_of
from fissile.tune.trial import State


def table(part: Window, folder: Path, samples: int) -> dict[str, Any]:
    """The table of a part as plain data: all its candidates, measured."""
    graph = canonical(folder, part.model)
    found = candidates_of(greedy_plan(graph), QUICK)
    units = units_between(found, part)
    inside = [c for c in found.all if c.executes <= units and c.executes]
    target = resolve_target()
    machine, numbers = machine_of(machine_peaks(), 1), representative(graph, {})
    constants = sum(
        representative_bytes(n) for n in found.units.graph.nodes() if n.name == "constant"
    )
    setting = Setting(
        target, 1, numbers, State(constants, target.l3),
        lambda kernel: estimate(kernel, machine, numbers), samples=samples,
    )  # fmt: skip
    kernels = [c.kernel for c in inside]
    with Store(environment().store or default_paths()) as store:
        measured = seconds_of(kernels, setting, store, Tally())
    keys = _numbered([form(k)[0] for k in kernels])
    families = _numbered([family(k) for k in kernels])
    read = {s for u, sources in enumerate(found.units.reads) if u not in units for s in sources}
    needed = sorted(units & (read | {*found.units.needed}))
    edges = [[p, u] for u in sorted(units) for p in found.units.reads[u] if p in units]
    rows = [
        [
            [r for r in c.reads if r in units], list(c.writes), sorted(c.executes), key, kind,
            *(_micro(s) for s in (*prices(c.kernel, machine, numbers), seconds)),
        ]
        for c, key, kind, seconds in zip(inside, keys, families, measured, strict=True)
    ]  # fmt: skip
    return {"title": part.title, "needed": needed, "edges": edges, "candidates": rows}


def _numbered(values: Sequence[object]) -> list[int]:
    numbers: dict[object, int] = {}
    return [numbers.setdefault(v, len(numbers)) for v in values]


def _micro(seconds: float) -> float:
    """Microseconds with four digits."""
    return float(f"{seconds * 1e6:.4g}")


def text_of(rows: dict[str, Any]) -> str:
    """The table as JSON, a candidate per line."""
    candidates = rows["candidates"]
    head = {key: value for key, value in rows.items() if key != "candidates"}
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in candidates)
    return f'{json.dumps(head, separators=(",", ":"))[:-1]},"candidates":[\n{lines}\n]}}\n'


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", type=Path, default=Path())
    parser.add_argument("--to", type=Path, default=Path("tests/orchestrate/tables"))
    parser.add_argument("--only", default="")
    parser.add_argument("--samples", type=int, default=9)
    args = parser.parse_args()
    args.to.mkdir(parents=True, exist_ok=True)
    for part in WINDOWS:
        if args.only not in ("", part.title):
            continue
        rows = table(part, args.models, args.samples)
        (args.to / f"{part.title}.json").write_text(text_of(rows), encoding="utf-8")
        print(f"{part.title:28} {len(rows['candidates'])} candidates", flush=True)


if __name__ == "__main__":
    main()
