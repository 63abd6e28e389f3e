"""`install()` and `python -m fissile.ort`: programs that import onnxruntime get this package."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
import onnxruntime as ort
from onnxruntime import GraphOptimizationLevel, InferenceSession
from onnxruntime.capi import onnxruntime_pybind11_state
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, NoSuchFile
print(ort.get_build_info().split(",")[0], sys.argv[1:], __name__)
try:
    InferenceSession("none.onnx")
except NoSuchFile as error:
    print(isinstance(error, FileNotFoundError))
sys.exit(7)
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def test_a_program_runs_unmodified(tmp_path: Path) -> None:
    program = tmp_path / "app.py"
    program.write_text(PROGRAM)
    done = python("-m", "fissile.ort", str(program), "a", "-b")
    assert done.stdout.splitlines() == ["fissile ['a', '-b'] __main__", "True"], done.stderr
    assert done.returncode == 7


def test_a_module_runs_unmodified() -> None:
    done = python("-m", "fissile.ort", "-m", "platform")
    assert done.returncode == 0
    assert done.stdout.strip()


def test_install_replaces_and_is_idempotent() -> None:
    code = (
        "import fissile.ort as o; o.install(); o.install(); import onnxruntime;"
        "assert onnxruntime is o;"
        "import onnxruntime.capi.onnxruntime_inference_collection as c;"
        "assert c.InferenceSession is o.InferenceSession"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_install_refuses_when_it_is_too_late() -> None:
    code = (
        "import sys, types; sys.modules['onnxruntime'] = types.ModuleType('onnxruntime');"
        "import fissile.ort; fissile.ort.install()"
    )
    done = python("-c", code)
    assert done.returncode == 1
    assert "F610" in done.stderr


def test_quantization_stays_importable() -> None:
    pytest.importorskip("onnxruntime.quantization")
    code = "import fissile.ort; fissile.ort.install(); import onnxruntime.quantization"
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_importing_it_is_light() -> None:
    code = (
        "import sys, fissile.ort;"
        "heavy = {'onnx', 'llvmlite', 'highspy', 'onnxruntime', 'click', 'rich'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
