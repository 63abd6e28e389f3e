"""A small network as a file, and the command line in a child process: machine code never runs in the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from fissile import demo

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "demo.onnx"
    onnx.save(demo.network(), path)
    return path


@pytest.fixture
def fissile(tmp_path: Path) -> Command:
    """`fissile ARGUMENTS` in a child, in an empty folder; `code` runs before it in the same process."""

    def run(*arguments: object, code: str = "") -> subprocess.CompletedProcess[str]:
        program = f"{code}\nimport sys\nfrom fissile.cli import main\nmain(sys.argv[1:])"
        command = [sys.executable, "-c", program, *map(str, arguments)]
        env = {**os.environ, "FISSILE_CACHE_DIR": str(tmp_path / "cache")}
        return subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=240, check=False
        )

    return run
