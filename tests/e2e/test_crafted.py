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


LIED = """
from unittest.mock import patch

import numpy as np
from onnx import TensorProto, helper

import fissile
from fissile import pipeline
from fissile.errors import FissileError
from fissile.runtime.artifact import read_artifact
from tests.e2e import crafted
from tests.e2e.here import compiling_here

nodes = [helper.make_node("Unique", ["x"], ["u"]), helper.make_node("Concat", ["x", "u"], ["y"], axis=0)]
made = crafted.model(nodes, [("x", TensorProto.FLOAT, ["n"])], [("y", TensorProto.FLOAT, ["k"])])
with patch.object(pipeline, "compiling", compiling_here):
    right = fissile.compile(made, threads=1, cache=False, foreign="allow")
whole = read_artifact(bytes(right.program.artifact.buffer))
members = {n: bytes(whole.member(n)) for n in whole.spans if n != crafted.MANIFEST}
x = np.array([3, 1, 3], np.float32)
for early, outputs, levels in ((1, 0, 0), (1, 1, 0), (1, 0, 1), (0, 1, 0), (0, 0, 1), (1, 1, 1), (0, 0, 0)):
    parts = crafted.Opened(dict(whole.manifest), dict(members), {})
    row = parts.manifest["targets"][0]
    plan = crafted.json.loads(members[row["plan"]])
    if early:
        for launch in plan["launches"]:
            launch["step"] = -1
    if outputs:
        plan["outputs"][0]["level"] = 0
    if levels:
        plan["levels"] = [0] * len(plan["levels"])
    crafted._seal(parts, row["code"], row["plan"], plan)
    try:
        loaded = fissile.load(crafted.packed(crafted.hashed(parts)), threads=1)
        print(*loaded.run({"x": x})["y"])
    except FissileError as error:
        print(error.code)
"""


def test_lies_about_what_a_call_decides_are_found_out() -> None:
    """Launches before the call, the output placed before it, every word said to be final: each, and together."""
    command = [sys.executable, "-W", "ignore", "-c", LIED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [*["F104"] * 6, "3.0 1.0 3.0 1.0 3.0"]
