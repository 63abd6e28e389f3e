"""Operators in Python between native segments: right values, extents of data, growth of the arena, callers, errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.foreign_checks import CHECKS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the child leaves an artifact."""
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, str]:
    """What the child said about every check."""
    command = [sys.executable, "-m", "tests.e2e.foreign_checks", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result: dict[str, str] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("name", CHECKS)
def test_foreign(found: dict[str, str], name: str) -> None:
    assert not found[name], found[name]


LOADS = """
import sys
import numpy as np
from fissile.errors import ArtifactError
from fissile.runtime.executable import load
assert "onnx" not in sys.modules
if sys.argv[2] == "without":
    sys.modules["onnx"] = None
try:
    executable = load(sys.argv[1])
except ArtifactError as error:
    print(error.code, error.remedy[0])
else:
    x = np.array([3, 1, 3], np.float32)
    print(*np.log(executable.run({"x": x, "c": np.array(True)})["y"]).round(3))
assert "llvmlite" not in sys.modules
"""


@pytest.mark.parametrize(
    ("onnx", "said"), [("with", "1.0 3.0"), ("without", "F109 pip install onnx")]
)
def test_fresh_process(found: dict[str, str], folder: Path, onnx: str, said: str) -> None:
    assert found
    command = [sys.executable, "-c", LOADS, str(folder / "saved.fsl"), onnx]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == said, done.stderr
