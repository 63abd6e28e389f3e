"""ONNX's node cases through the compiler and as machine code: natively, with operators in Python, or not at all.

All of them run, in child processes side by side; the counts stand in the summary of the test run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import SUMMARY
from tests.fission.test_backend import CASES, DISPUTED

ROOT = Path(__file__).parents[2]
LEAST_NATIVE = 1190


def _child(names: list[str]) -> dict[str, str]:
    """What happened to the cases, by name."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.e2e.backend", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"{lines[-1:]} ended the child: {done.stderr[-2000:]}"
    return dict(line for line in lines if isinstance(line, list))


@pytest.mark.timeout(1800)
def test_node_cases(request: pytest.FixtureRequest) -> None:
    every = int(request.config.getoption("--backend-every"))
    names = sorted(CASES)[::every]
    count = min(len(os.sched_getaffinity(0)), 8)
    with ThreadPoolExecutor(count) as pool:
        parts = list(pool.map(_child, [names[k::count] for k in range(count)]))
    found = {name: what for part in parts for name, what in part.items()}
    wrong = {n: v for n, v in found.items() if v not in ("native", "foreign", "refused")}
    counts = Counter(found.values())
    request.config.stash.setdefault(SUMMARY, []).append(
        f"ONNX node cases: {len(found)} run, {counts['native']} native, {counts['foreign']} with "
        f"foreign nodes, {counts['refused']} refused, {len(wrong)} wrong; {len(DISPUTED & set(names))} of them are as "
        "onnxruntime has them"
    )
    assert not wrong
    assert set(found) == set(names)
    assert every > 1 or counts["native"] >= LEAST_NATIVE
