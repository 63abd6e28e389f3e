"""Signals that raise during calls: the next call works, gives equal bits, and nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_calls_that_signals_end(request: pytest.FixtureRequest) -> None:
    count = int(request.config.getoption("--signals"))
    command = [sys.executable, "-W", "ignore", "-m", "tests.e2e.signals", str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600 + count)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 7
    for kind, row in found.items():
        assert not row["wrong"], (kind, row)
        assert row["raised"] >= (100 if kind == "nested" else count)
        assert row["ended"] >= 0.9 * count or kind == "nested", (kind, row)
