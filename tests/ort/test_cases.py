"""Small graphs rebuilt from public bug reports give their right answers through `fissile.ort`, as machine code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import SUMMARY
from tests.named_cases import COUNT, FIXED, OVERRIDDEN, REFUSED
from tests.ort.cases import FOLDER

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in FOLDER.glob("*.onnx"))


def _child(names: list[str], cache: Path) -> list[tuple[str, str, list[str]]]:
    """Name, what is wrong and warnings of every case."""
    command = [sys.executable, "-m", "tests.ort.cases", *names]
    env = {**os.environ, "FISSILE_CACHE_DIR": str(cache)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1200)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"{lines[-1:]} ended the child: {done.stderr[-2000:]}"
    return [(row[0], row[1], row[2]) for row in lines if isinstance(row, list)]


@pytest.mark.timeout(1500)
def test_cases(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    count = min(len(os.sched_getaffinity(0)), 4)
    with ThreadPoolExecutor(count) as pool:
        parts = pool.map(_child, [NAMES[k::count] for k in range(count)], [tmp_path] * count)
    rows = [row for part in parts for row in part]
    wrong = {name: what for name, what, _ in rows if what}
    in_python = {n: t for n, _, texts in rows for t in texts if "in Python" in t}
    again = {n for n, _, texts in rows for t in texts if "compiled once more" in t}
    right = len(rows) - len(wrong)
    request.config.stash.setdefault(SUMMARY, []).append(
        f"cases from bug reports: {right} of {len(rows)} right, {len(in_python)} of them with operators in Python; "
        f"{len(wrong)} refused: {', '.join(sorted(wrong))}"
    )
    assert sorted(name for name, *_ in rows) == NAMES
    assert len(NAMES) == COUNT
    assert wrong.keys() == REFUSED.keys() | OVERRIDDEN.keys(), wrong
    for name, (code, _) in REFUSED.items():
        assert f"error {code}" in wrong[name]
    for name in OVERRIDDEN:
        assert "fissile.overridable_initializers" in wrong[name]
    assert again == FIXED.keys()
