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
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the child said about every check."""
    command = [sys.executable, "-m", "tests.e2e.foreign_checks", str(tmp_path_factory.mktemp("a"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result: dict[str, str] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("name", CHECKS)
def test_foreign(found: dict[str, str], name: str) -> None:
    assert not found[name], found[name]
