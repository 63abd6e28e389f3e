"""Crafted and damaged artifacts: one clear error, or results; no signal, no bare exception, nothing that hangs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KINDS = 8


def test_crafted_artifacts(request: pytest.FixtureRequest) -> None:
    count = int(request.config.getoption("--crafted"))
    first = count * int(request.config.getoption("--fuzz-seed"))
    command = [sys.executable, "-W", "ignore", "-m", "tests.e2e.crafted", str(first), str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300 + count)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"number {lines[-1:]} ended the process: {done.stderr[-2000:]}"
    rows = [line for line in lines if isinstance(line, list)]
    assert len(rows) == count
    wrong = [row for row in rows if row[3]]
    assert not wrong, wrong[:3]
    assert count < 100 or len({row[1] for row in rows}) == KINDS
