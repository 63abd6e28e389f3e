"""Commands, streams and exit codes of PRODUCT 5; a tiny model goes through all of them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fissile import cli
from fissile.commands.options import parse_shapes


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FISSILE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y[n, 3] = relu(x[n, 3]) * 2, saved as model.onnx."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
    two = helper.make_tensor("two", TensorProto.FLOAT, [], [2.0])
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("Mul", ["r", "two"], ["y"], name="double"),
    ]
    graph = helper.make_graph(nodes, "tiny", [x], [y], [two])
    path = tmp_path / "model.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    return path


def run(*arguments: str) -> int:
    """The exit code of a command line."""
    with pytest.raises(SystemExit) as leaving:
        cli.main(arguments)
    code = leaving.value.code
    assert isinstance(code, int)
    return code


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    text = capsys.readouterr().out
    for command in ("compile", "run", "check", "show", "cache", "doctor", "demo"):
        assert f"\n  {command} " in text
    assert run("-h") == 0
    capsys.readouterr()
    assert run("--version") == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()][0::6] == ["fissile", "CPU"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("compil",),
        ("compile",),
        ("compile", "m.onnx", "--foreign", "maybe"),
        ("compile", "m.onnx", "--threads", "0"),
        ("cache", "wash"),
        ("show", "--after"),
    ],
    ids=" ".join,
)
def test_usage_errors_are_2(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Error" in captured.err


def test_a_missing_model_is_one_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    Path("modle.onnx").touch()
    assert run("compile", "model.onnx") == 1
    err = capsys.readouterr().err
    assert err.splitlines()[-2:] == [
        "error F501: model.onnx does not exist",
        '  do: did you mean "modle.onnx"?',
    ]
    assert run("compile", "model.onnx", "-v") == 1
    assert "Traceback" in capsys.readouterr().err


def test_errors_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "none.fsl", "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["error"]["code"] == "F501"


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("batch=8", {"batch": 8}),
        ("batch=1..16", {"batch": (1, 16)}),
        ("x:1..16,3,?,0", {"x": [(1, 16), 3, None, 0]}),
        ("a:b:2", {"a:b": [2]}),
    ],
)
def test_shapes(text: str, shapes: dict[str, Any]) -> None:
    assert parse_shapes([text]) == shapes


@pytest.mark.parametrize(
    "text", ["batch", "batch=", "batch=16..1", "batch=a", ":1", "x:1,", "b=-1"]
)
def test_bad_shapes(text: str) -> None:
    with pytest.raises(click.UsageError):
        parse_shapes([text])


def test_cache_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("cache", "info", "--json") == 0
    (tmp_path / "cache" / "a.fsl").write_bytes(b"12")
    capsys.readouterr()
    assert run("cache", "clear", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["artifacts"], document["bytes"]) == (1, 2)
    assert not list((tmp_path / "cache").glob("*.fsl"))


def test_compile_and_run(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compile", str(model)) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("wrote    model.fsl")
    assert "done in" in captured.err
    x = np.array([[1.0, -2.0, 3.0]], np.float32)
    np.save(tmp_path / "x.npy", x)
    arguments = ("--input", "x=x.npy", "--output", "out.npz", "--json")
    assert run("run", "model.fsl", *arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["outputs"] == [{"name": "y", "dtype": "float32", "shape": [1, 3]}]
    with np.load(tmp_path / "out.npz") as out:
        np.testing.assert_array_equal(out["y"], np.maximum(x, 0) * 2)
    assert run("run", "model.fsl", "--shape", "n=5", "-q") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("y  float32[5, 3]")
    assert captured.err == ""


def test_json_is_alone_on_stdout(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compile", str(model), "-o", "other.fsl", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["artifact"] == "other.fsl"
    assert document["bytes"] == Path("other.fsl").stat().st_size
    assert document["manifest"]


def test_only_artifacts_are_overwritten(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("precious.txt").write_text("keep me")
    assert run("compile", str(model), "-o", "precious.txt") == 1
    assert "--force" in capsys.readouterr().err
    assert Path("precious.txt").read_text() == "keep me"
    assert run("compile", str(model), "-o", "nowhere/model.fsl") == 1
    assert "does not exist" in capsys.readouterr().err


def test_inputs_are_checked(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("text.npy").write_text("no array")
    assert run("run", str(model), "--input", "x=none.npy") == 1
    assert "F501" in capsys.readouterr().err
    assert run("run", str(model), "--input", "x=text.npy") == 1
    assert "F510" in capsys.readouterr().err
    np.save("x.npy", np.ones((1, 3), np.float32))
    assert run("run", str(model), "--input", "X=x.npy") == 1
    assert 'did you mean "x"' in capsys.readouterr().err


def test_check_and_show(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", str(model)) == 0
    assert "2 operators: 2 native, 0 foreign, 0 unsupported" in capsys.readouterr().out
    assert run("show") == 0
    stages = capsys.readouterr().out.split()
    for stage in stages:
        assert run("show", str(model), "--after", stage) == 0
        assert capsys.readouterr().out.strip()
    assert run("show", str(model), "--after", "fisson") == 2
    assert 'did you mean "fission"' in capsys.readouterr().err


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor") == 0
    out = capsys.readouterr().out
    assert out.endswith("everything is fine\n")
    assert run("doctor", "--json") == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []


def test_help_is_quick_to_import() -> None:
    code = (
        "import sys, fissile.cli;"
        "heavy = {'onnx', 'llvmlite', 'highspy', 'onnxruntime', 'numpy'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("compile model.onnx --disable nosuch", "no rule"),
        ("optimize model.onnx --disable nosuch", "no rule"),
        ("compile model.onnx --target nosuch", "x86-64-v3"),
        ("compile model.onnx --shape nosuch=3", "no dimension"),
        ("compile model.onnx --budget soon", "1h30m"),
        ("tune model.onnx --budget 1m --disable nosuch", "no rule"),
        ("tune model.onnx --budget 1m --providers mkl", "openblas, onnxruntime, openvino"),
        ("bench model.onnx --against nosuch", "no engine"),
        ("show model.onnx --why nosuch", "no rule"),
        ("show --rules --why merge_matmuls", "--why"),
        ("show --why merge_matmuls", "--why"),
        ("show --rules --after plan", "--after"),
        ("show model.fsl --why merge_matmuls", "is compiled"),
        ("show model.fsl --after plan", "is compiled"),
    ],
)
def test_what_is_typed_wrong_is_usage(
    model: Path, command: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*command.split()) == 2
    assert said in capsys.readouterr().err
    assert [p.name for p in Path().iterdir() if p.name != "cache"] == ["model.onnx"]
