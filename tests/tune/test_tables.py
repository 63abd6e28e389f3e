"""Lazy profiling of recorded cost tables of real networks (bench/tables.py): as good as measuring everything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fissile.orchestrate.orchestrate import problem_of
from fissile.orchestrate.plan import Kernel
from fissile.orchestrate.program import solve
from fissile.tune.rounds import begin, certificate, profile

TABLES = sorted((Path(__file__).parents[1] / "orchestrate" / "tables").glob("*.json"))
FIELDS = ("reads", "writes", "executes", "key", "family", "bound", "guess", "measured")


def found_of(table: dict[str, Any]) -> Any:
    """The candidates of a table; the kernel of each is its row."""
    rows = [SimpleNamespace(**dict(zip(FIELDS, row, strict=True))) for row in table["candidates"]]
    count = 1 + max(u for row in rows for u in (*row.writes, *row.executes, *row.reads))
    plain = SimpleNamespace(value=SimpleNamespace(type=SimpleNamespace(format="plain")))
    reads: list[list[int]] = [[] for _ in range(count)]
    for producer, reader in table["edges"]:
        reads[reader].append(producer)
    units = SimpleNamespace(all=[plain] * count, reads=reads, needed=tuple(table["needed"]))
    candidates = [
        SimpleNamespace(kernel=r, reads=r.reads, writes=r.writes, executes=frozenset(r.executes))
        for r in rows
    ]
    return SimpleNamespace(units=units, all=candidates, greedy=())


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_lazy_profiling_reaches_the_objective_of_measuring_everything(path: Path) -> None:
    found = found_of(json.loads(path.read_text(encoding="utf-8")))
    bounds = problem_of(found, [c.kernel.bound for c in found.all])
    found.greedy = solve(bounds).selected
    everything = solve(problem_of(found, [c.kernel.measured for c in found.all])).cost
    asked: set[int] = set()

    def measure(kernels: Sequence[Kernel], times: int) -> list[float]:
        rows: Any = kernels
        asked.update(row.key for row in rows)
        return [row.measured for row in rows]

    def bound(kernel: Kernel) -> float:
        row: Any = kernel
        return float(row.bound)

    def key(kernel: Kernel) -> int:
        row: Any = kernel
        return int(row.key)

    state = begin(found, bound, key)
    for _ in profile(state, measure):
        pass
    proof = certificate(state)
    assert state.is_complete
    assert proof.predicted_seconds == pytest.approx(everything, rel=1e-6)
    assert proof.lower_bound_seconds <= everything * (1 + 1e-6)
    assert proof.measured == len(asked) <= len({c.kernel.key for c in found.all})
