"""The page of tuned networks: execution states are counted as they are defined, rows are kept, misses are listed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fissile.orchestrate.states import states

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def page() -> ModuleType:
    sys.path.insert(0, str(BENCH))
    try:
        spec = importlib.util.spec_from_file_location("tuned_bench", BENCH / "tuned.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCH))
    return module


@st.composite
def reads(draw: st.DrawFn) -> list[list[int]]:
    count = draw(st.integers(0, 7))
    return [draw(st.lists(st.integers(0, k - 1), max_size=3)) if k else [] for k in range(count)]


@given(reads())
def test_states_are_counted_as_they_are_defined(page: ModuleType, graph: list[list[int]]) -> None:
    count = len(states(graph))
    assert page.state_count(graph, 1000) == count
    assert page.state_count(graph, count) == count
    assert count == 1 or page.state_count(graph, count - 1) is None


def test_what_misses_its_mark_is_listed(page: ModuleType, tmp_path: Path) -> None:
    fine: dict[str, Any] = {"measured": 8, "distinct": 2, "predicted": 1.0, "measured_total": 1.0}
    good = page.Row("good", is_complete=True, **fine)
    bad = page.Row("bad", is_complete=False, **{**fine, "predicted": 1.2}, gap=0.04)
    text = page.page([good, bad, page.Row("gone", why="F999")])
    missed = text.partition("## What misses its mark")[2]
    assert "good" not in missed
    for said in ("bad: prediction off by 20.0%", "bad: gap of the whole graph 4.00%", "bad: the budget", "gone: F999"):
        assert said in missed
    kept = tmp_path / "rows.json"
    kept.write_text(json.dumps([vars(good), vars(page.Row("gone", why="F999"))]))
    assert page.kept_rows(kept) == {"good": good}
    assert page.kept_rows(tmp_path / "none.json") == {}
