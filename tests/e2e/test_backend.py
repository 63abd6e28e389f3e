"""ONNX's node cases through the compiler: how many run natively, with operators in Python, and not at all.

By default every 32nd case runs, in one child process; `--backend-every 1` runs them all (ten minutes or so).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.fission.test_backend import CASES, DISPUTED

ROOT = Path(__file__).parents[2]
ALWAYS = {"test_averagepool_2d_pads", "test_loop11", "test_nonzero_example", "test_scan_sum"}


@pytest.mark.timeout(1800)
def test_node_cases(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    every = int(request.config.getoption("--backend-every"))
    names = sorted({*sorted(set(CASES) - DISPUTED)[::every], *ALWAYS})
    command = [sys.executable, "-W", "ignore", "-m", "tests.e2e.backend", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"{lines[-1:]} ended the child: {done.stderr[-2000:]}"
    found = dict(line for line in lines if isinstance(line, list))
    wrong = {n: v for n, v in found.items() if v not in ("native", "foreign", "refused")}
    with capsys.disabled():
        print(f"\n{len(found)} node cases: {dict(Counter(found.values()))}")
    assert not wrong
    assert set(found) == set(names)
