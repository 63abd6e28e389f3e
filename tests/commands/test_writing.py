"""What commands overwrite: files of the kind they write, and nothing else without --force; refused before the work."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from fissile import cli, demo
from fissile.commands import writing
from fissile.commands.options import write_npz
from fissile.commands.writing import Kind, Output, check_outputs
from fissile.errors import FileAccess
from fissile.report import page
from fissile.runtime.artifact import atomic_file
from fissile.runtime.profile import Profile

KINDS = [kind for kind in vars(writing).values() if isinstance(kind, Kind)]
COMMANDS = [
    ("compile model.onnx -o", "compile model.onnx --save-plan", "fission model.onnx -o"),
    ("tune model.onnx --budget 1s -o", "tune model.onnx --budget 1s --save-plan"),
    ("compile model.onnx --budget 1s --save-plan", "optimize model.onnx -o", "store export"),
    ("run model.onnx --output", "run model.onnx --trace", "report none.fsl -o"),
    ("bench model.onnx --against= --json",),
]
PRECIOUS = [b"keep me", b"PK\3\4" + bytes(40), b"\x08", b"{}", b"<!doctype html><title>mine"]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FISSILE_CACHE_DIR", "FISSILE_STORE"):
        monkeypatch.setenv(name, str(tmp_path / "kept" / name))
    monkeypatch.chdir(tmp_path)
    onnx.save(demo.network(), "model.onnx")


def run(command: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        cli.main(command.split())
    assert isinstance(leaving.value.code, int)
    return leaving.value.code


@pytest.mark.parametrize("command", [c for row in COMMANDS for c in row])
def test_what_is_of_another_kind_stays(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for number, content in enumerate(PRECIOUS):
        path = Path(f"precious{number}.txt")
        path.write_bytes(content)
        assert run(f"{command} {path}") == 1
        assert "F511" in (said := capsys.readouterr().err)
        assert "--force" in said
        assert path.read_bytes() == content
    model = Path("model.onnx").read_bytes()
    if not command.startswith(("fission", "optimize", "store", "report")):
        assert run(f"{command} model.onnx") == 1
        assert "F511" in capsys.readouterr().err
    assert Path("model.onnx").read_bytes() == model
    for place, said in (("nowhere/file", "does not exist"), (".", "is a folder")):
        assert run(f"{command} {place}") == 1
        assert said in capsys.readouterr().err
    assert not list(Path().glob("nowhere*"))


@pytest.mark.parametrize("command", ["fission", "optimize"])
def test_a_model_is_not_written_over_itself(command: str) -> None:
    before = Path("model.onnx").read_bytes()
    os.symlink("model.onnx", "link.onnx")
    for path in ("model.onnx", "./model.onnx", "link.onnx"):
        assert run(f"{command} model.onnx -o {path}") == 1
    assert Path("model.onnx").read_bytes() == before
    shutil.copy("model.onnx", "other.onnx")
    assert run(f"{command} model.onnx -o other.onnx") == 0
    assert run(f"{command} model.onnx -o model.onnx --force") == 0
    Path("alone.onnx.data").write_bytes(b"weights")
    assert run(f"{command} model.onnx -o alone.onnx") == 1


def test_every_kind_knows_its_own_files_only(tmp_path: Path) -> None:
    assert run("compile model.onnx --no-cache -o model.fsl --save-plan plan.json") == 0
    assert run("store export store.jsonl") == 0
    write_npz(Path("out.npz"), {"y": np.ones(3)})
    times = json.dumps({"machine": {}, "records": []})
    Path("bench.json").write_text(times)
    empty = np.zeros((1, 0))
    Profile((), empty, np.zeros((0, 3), np.int64)).to_chrome_trace("trace.json")
    template = (Path(page.__file__).parent / "page.html").read_bytes()
    Path("report.html").write_bytes(template)
    for kind in KINDS:
        for file in {kind.example for kind in KINDS}:
            output = Output("-o", Path(file), kind)
            if file == kind.example:
                check_outputs([output], False)
                continue
            with pytest.raises(FileAccess, match="F511"):
                check_outputs([output], False)
            check_outputs([output], True)


def test_two_outputs_are_two_files() -> None:
    outputs = [Output("-o", Path("a.fsl"), writing.ARTIFACT)]
    outputs += [Output("--save-plan", Path("./a.fsl"), writing.PLAN)]
    with pytest.raises(FileAccess, match="written twice"):
        check_outputs(outputs, True)
    check_outputs([*outputs[:1], Output("--save-plan", None, writing.PLAN)], False)


def test_a_device_stays_one() -> None:
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    check_outputs([Output("--save-plan", Path("pipe"), writing.PLAN)], False)
    with atomic_file("pipe") as stream:
        stream.write(b"a plan")
    assert os.read(reader, 100) == b"a plan"
    os.close(reader)
    assert Path("pipe").is_fifo()
