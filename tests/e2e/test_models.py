"""Drawn ONNX models, run as whole artifacts in child processes, against onnxruntime and the reference."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import SUMMARY

ROOT = Path(__file__).parents[2]
AT_ONCE = 250  # models of one child: its guarded memory is never given back while views of it live
FAULTS = ("wrong", "bits", "bare", "failed", "less", "crashed")
Found = tuple[int, str, str]  # a seed, what came of it, more about it


def _tried(first: int, end: int) -> Iterator[Found]:
    """What comes of the models of the seeds from `first` up to `end`; one that ends its process is passed over."""
    while first < end:
        count = min(AT_ONCE, end - first)
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "tests.e2e.model_checks",
            f"{first}",
            f"{count}",
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60 * count)
        for line in map(json.loads, done.stdout.splitlines()):
            first = line if isinstance(line, int) else first + 1
            if isinstance(line, list):
                yield line[0], line[1], line[2]
        if done.returncode:
            yield first, "crashed", f"{done.returncode} {done.stderr[-500:]}"
            first += 1


@pytest.mark.timeout(40_000)
def test_drawn_models(request: pytest.FixtureRequest) -> None:
    count = int(request.config.getoption("--models"))
    start = int(request.config.getoption("--fuzz-seed"))
    workers = min(len(os.sched_getaffinity(0)), 8)
    each = -(-count // workers)
    with ThreadPoolExecutor(workers) as pool:
        shares = [(start + k * each, start + min(count, (k + 1) * each)) for k in range(workers)]
        found = [f for part in pool.map(lambda s: list(_tried(*s)), shares) for f in part]
    counts = Counter(word for _, word, _ in found)
    said = ", ".join(f"{n} {word}" for word, n in counts.most_common())
    request.config.stash.setdefault(SUMMARY, []).append(f"drawn ONNX models: {said}")
    assert len(found) == count
    faults = [f for f in found if f[1] in FAULTS]
    assert not faults, "\n\n".join(f"seed {s}: {word}: {more}" for s, word, more in faults[:10])
    assert counts["right"] > 0.9 * count
