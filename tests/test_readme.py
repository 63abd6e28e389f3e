"""What the README tells people to type works: commands, Python blocks, the table of variables.

In: README.md as text. Out: each indented `fissile ...` line and each Python block is run in a folder
that holds what they name (a model, an image). Skipped are only lines that install or time.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from fissile import cli, demo
from fissile.options import ENVIRONMENT

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.split("#")[0].strip()
    for line in re.findall(r"^    ((?:fissile|python -m fissile).*)$", README, re.MULTILINE)
]
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """model.onnx with free batch, height and width; image.npy; a rule's name; your_app.py."""
    monkeypatch.setenv("FISSILE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FISSILE_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.chdir(tmp_path)
    onnx.save(demo.network(), "model.onnx")
    np.save("image.npy", np.ones((1, 3, 20, 30), np.float32))
    Path("your_app.py").write_text("import onnxruntime; onnxruntime.InferenceSession('model.onnx')")


def _runs(command: str) -> int:
    stand_ins = {"RULE": "merge_transposes", "10m": "2s"}
    words = [stand_ins.get(w, w) for w in shlex.split(command)]
    if words[0] == "python":
        return subprocess.run([sys.executable, *words[1:]], check=False).returncode
    with pytest.raises(SystemExit) as leaving:
        cli.main(words[1:])
    assert isinstance(leaving.value.code, int)
    return leaving.value.code


def test_the_commands_are_found() -> None:
    names = {line.split()[1] for line in COMMANDS if line.startswith("fissile")}
    assert {"compile", "run", "check", "show", "verify", "doctor", "demo"} <= names


@pytest.mark.parametrize("command", [c for c in COMMANDS if "demo" not in c])
def test_commands(command: str) -> None:
    if "model.fsl" in command and "-o model.fsl" not in command:
        assert _runs("fissile compile model.onnx -o model.fsl") == 0
    if "--plan" in command:
        assert _runs("fissile compile model.onnx --save-plan plan.json") == 0
    if "onnxruntime" in command:
        pytest.importorskip("onnxruntime")
    assert _runs(command) == 0


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_python_blocks(block: str) -> None:
    start = "import numpy as np\nx = np.ones((1, 3, 20, 30), np.float32)\n"
    done = subprocess.run(
        [sys.executable, "-c", start + block],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr


def test_variables_are_those_that_are_read() -> None:
    told = set(re.findall(r"^\| `(FISSILE_\w+)`", README, re.MULTILINE))
    assert told <= {variable.name for variable in ENVIRONMENT}


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (Path(__file__).parents[1] / target).exists(), target
