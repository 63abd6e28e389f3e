"""Extents that depend on data beside ready tensors: drawn models against onnxruntime, in a child with guard pages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEEDS_PER_SECOND = 4


def test_drawn_models_with_late_extents(request: pytest.FixtureRequest) -> None:
    seconds = float(request.config.getoption("--fuzz-seconds"))
    first = 1000 * int(request.config.getoption("--fuzz-seed"))
    count = max(1, int(seconds * SEEDS_PER_SECOND))
    command = [sys.executable, "-W", "ignore", "-m", "tests.e2e.late", str(first), str(count)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120 + 10 * seconds
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"seed {lines[-1:]} ended the process: {done.stderr[-2000:]}"
    wrong = [line for line in lines if isinstance(line, list) and line[1]]
    assert not wrong, wrong[:3]
    assert len(lines) == 2 * count
