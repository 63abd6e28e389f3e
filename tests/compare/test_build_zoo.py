"""`bench/build_zoo.py`: a torch module becomes a file whose batch is free, and fissile runs it."""

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Command

SCRIPT = Path(__file__).parents[2] / "bench" / "build_zoo.py"


def test_a_torch_module_becomes_a_model(fissile: Command, tmp_path: Path) -> None:
    for package in ("torch", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    command = [sys.executable, str(SCRIPT), str(tmp_path), "torch/mlp", "nowhere/net"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1
    assert "agrees" in done.stdout, done.stderr
    assert "nowhere/net" in done.stdout
    verified = fissile("verify", tmp_path / "mlp.onnx", "--against", "onnxruntime")
    assert verified.returncode == 0, verified.stdout + verified.stderr
