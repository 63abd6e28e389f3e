"""Whole networks, one artifact each at several shapes, against onnxruntime, in a child process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.networks import NETWORKS, models_folder

ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-4  # of the largest finite magnitude of an output


@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str) -> None:
    network = NETWORKS[name]
    if network.is_trained and models_folder() is None:
        pytest.skip("rapidocr-onnxruntime, which carries the trained networks, is not installed")
    command = [sys.executable, "-P", str(ROOT / "tests/e2e/networks.py"), name]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(rows) == len(network.shapes)
    for row in rows:
        assert row["error"] <= TOLERANCE, row
        assert row["same_bits"], row
