"""`fissile run --profile`: rows add up, carry their nodes and bounds, and the trace opens."""

import json
from pathlib import Path

import pytest

from .conftest import Command


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "store.sqlite"
    monkeypatch.setenv("FISSILE_STORE", str(path))
    return path


def test_rows_and_trace(fissile: Command, model: Path, tmp_path: Path, store: Path) -> None:
    trace = tmp_path / "trace.json"
    shape = ("--shape", "n=1", "--shape", "h=33", "--shape", "w=35")
    options = (*shape, "--profile", "--runs", 3, "--threads", 1, "--json", "--trace", trace)
    done = fissile("run", model, *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    rows = found["rows"]
    assert store.exists()
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)
    assert sum(row["seconds"] for row in rows) == pytest.approx(found["seconds"])
    conv = next(row for row in rows if "c1" in row["nodes"])
    assert conv["operations"] >= 17 * 18 * 16 * 27 * 2
    assert all(row["bytes"] > 0 and row["bound_seconds"] > 0 for row in rows)
    assert len(json.loads(trace.read_text())["traceEvents"]) == len(rows)
    again = fissile("run", model, *shape, "--profile", "--runs", 3)
    assert "peaks of one core" in again.stdout
    assert "over 2% of the time" in again.stdout
