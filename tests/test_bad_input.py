"""Whatever is wrong with a model, a feed, an artifact or a folder is one clear error (PRODUCT 5.5).

In: a table of things that are wrong, given to the command line. Out: the code and the words, a
reason or a remedy, exit code 1 (3 for `check`), a traceback with -v only, and nothing half-written.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.message import EncodeError
from onnx import TensorProto, helper, numpy_helper

import fissile
from fissile import cli
from fissile.errors import ModelError
from fissile.runtime import artifact

FLOAT = TensorProto.FLOAT


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FISSILE_CACHE_DIR", str(tmp_path / "cache"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


def run(*arguments: str) -> int:
    """The exit code of a command line."""
    with pytest.raises(SystemExit) as leaving:
        cli.main(arguments)
    assert isinstance(leaving.value.code, int)
    return leaving.value.code


def model(
    *nodes: onnx.NodeProto, opset: int = 17, weights: tuple[onnx.TensorProto, ...] = (), **more: Any
) -> onnx.ModelProto:
    """x float32[n, 3] -> y, by the nodes (Relu by default)."""
    steps = nodes or (helper.make_node("Relu", ["x"], ["y"], name="relu"),)
    x = helper.make_tensor_value_info("x", FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", FLOAT, None)
    graph = helper.make_graph(list(steps), "g", [x], [y], weights)
    opsets = [helper.make_opsetid("", opset), *more.pop("opsets", ())]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **more)


def node(kind: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, list(inputs), ["y"], name=f"the_{kind.lower()}", **attributes)


def external(location: str, **entries: Any) -> onnx.ModelProto:
    """y = x + w, the bytes of w in another file."""
    w = numpy_helper.from_array(np.ones(3, np.float32), "w")
    w.ClearField("raw_data")
    w.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        w.external_data.add(key=key, value=str(value))
    return model(node("Add", "x", "w"), weights=(w,))


def save(proto: onnx.ModelProto) -> Path:
    path = Path("m.onnx")
    path.write_bytes(proto.SerializeToString())
    return path


def outside() -> onnx.ModelProto:
    Path("../w.bin").write_bytes(bytes(12))
    return external("../w.bin")


def behind_a_link() -> onnx.ModelProto:
    Path("../w.bin").write_bytes(bytes(12))
    Path("w.bin").symlink_to("../w.bin")
    return external("w.bin")


def too_short() -> onnx.ModelProto:
    Path("w.bin").write_bytes(bytes(8))
    return external("w.bin")


def short_tensor() -> onnx.ModelProto:
    w = helper.make_tensor("w", FLOAT, [3], bytes(12), raw=True)
    w.raw_data = bytes(8)
    return model(node("Add", "x", "w"), weights=(w,))


def no_utf8() -> bytes:
    return bytes(model().SerializeToString().replace(b"relu", b"r\xfa\xa2u"))


def no_utf8_output() -> bytes:
    return bytes(model().SerializeToString().replace(b"\x01y", b"\x01\xfa"))


def wrong_types() -> onnx.ModelProto:
    w = numpy_helper.from_array(np.ones((4, 2), np.float32), "w")
    return model(node("MatMul", "x", "w"), weights=(w,))


@dataclass(frozen=True)
class Bad:
    """A model that is wrong, and what must be said about it."""

    name: str
    make: Callable[[], onnx.ModelProto | bytes]
    code: str
    words: tuple[str, ...]


MODELS = (
    Bad("no protobuf", lambda: b"no model at all", "F011", ("m.onnx", "not an ONNX model")),
    Bad("empty", lambda: b"", "F011", ("m.onnx", "holds no graph")),
    Bad("cut", lambda: model().SerializeToString()[:-7], "F011", ("m.onnx",)),
    Bad("not UTF-8", no_utf8, "F011", ("m.onnx", "UTF-8")),
    Bad("output not UTF-8", no_utf8_output, "F011", ("m.onnx", "UTF-8")),
    Bad("old opset", lambda: model(opset=5), "F020", ("opset 5", "known are 7 to")),
    Bad("new opset", lambda: model(opset=999), "F020", ("opset 999", "version_converter")),
    Bad("operator", lambda: model(node("Frobnicate", "x")), "F021", ("Frobnicate", "reason")),
    Bad(
        "domain",
        lambda: model(
            node("Decode", "x", domain="com.acme"), opsets=(helper.make_opsetid("com.acme", 1),)
        ),
        "F021",
        ("com.acme", "the_decode", "com.acme.Decode", "do:"),
    ),
    Bad("no initializer", lambda: model(node("Add", "x", "w")), "F012", ("w", "reason")),
    Bad("types", wrong_types, "F014", ("the_matmul", "MatMul(17)", "[n, 3]", "[4, 2]")),
    Bad("attribute", lambda: model(node("Relu", "x", beta=2.0)), "F012", ("beta", "the_relu")),
    Bad("tensor", short_tensor, "F013", ("broken tensor", "w")),
    Bad("outside", outside, "F017", ("'../w.bin'", "inside the folder")),
    Bad("absolute", lambda: external("/etc/passwd"), "F017", ("'/etc/passwd'",)),
    Bad("link", behind_a_link, "F017", ("not behind a link",)),
    Bad("missing file", lambda: external("w.bin"), "F016", ("'w.bin'", "do:")),
    Bad("short file", too_short, "F018", ("12 bytes", "has 8")),
    Bad("offset", lambda: external("m.onnx", offset=-4), "F018", ("w",)),
)


@pytest.mark.parametrize("bad", MODELS, ids=lambda bad: bad.name)
def test_bad_models(bad: Bad, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = bad.make()
    path = Path("m.onnx")
    path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    before = sorted(folder.iterdir())
    assert run("compile", str(path)) == 1
    captured = capsys.readouterr()
    _is_one_error(captured.err, bad.code, bad.words)
    assert captured.out == ""
    assert run("check", str(path)) == (3 if bad.code in ("F020", "F021") else 1)
    assert run("run", str(path), "--json") == 1
    capsys.readouterr()
    assert run("compile", str(path), "-v") == 1
    assert "Traceback" in capsys.readouterr().err
    assert sorted(folder.iterdir()) == before
    assert not list((folder.parent / "cache").glob("*.fsl"))


def test_a_model_over_two_gigabytes_is_to_be_saved_apart() -> None:
    class Large:
        def SerializeToString(self, **options: bool) -> bytes:
            raise EncodeError("Failed to serialize proto")

    large: Any = Large()
    for work in (fissile.compile, fissile.check, fissile.optimize):
        with pytest.raises(ModelError, match="F011") as caught:
            work(large)
        assert "2 GB" in str(caught.value)
        assert "save_as_external_data" in str(caught.value)


def _is_one_error(text: str, code: str, words: tuple[str, ...]) -> None:
    assert text.count("error F") == 1, text
    assert f"error {code}: " in text, text
    assert "Traceback" not in text
    for word in words:
        assert word in text, f"{word!r} is missing in\n{text}"


def test_every_operator_in_python_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    steps = (
        helper.make_node("NonZero", ["x"], ["a"], name="first"),
        helper.make_node("Bernoulli", ["x"], ["b"], name="second"),
        helper.make_node("Cast", ["a"], ["c"], to=FLOAT),
        helper.make_node("ReduceSum", ["c"], ["d"], keepdims=0),
        helper.make_node("Add", ["b", "d"], ["y"]),
    )
    path = save(model(*steps))
    assert run("compile", str(path), "--foreign", "error") == 1
    words = ("2 operators", "first", "NonZero(17)", "second", "Bernoulli(17)", "RandomUniformLike")
    _is_one_error(capsys.readouterr().err, "F024", words)
    assert not Path("m.fsl").exists()
    assert run("check", str(path)) == 0
    assert "5 operators: 3 native, 2 foreign, 0 unsupported" in capsys.readouterr().out


def test_operators_that_nothing_can_run_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    path = save(model(node("Cast", "x", to=TensorProto.STRING)))
    assert run("compile", str(path)) == 1
    _is_one_error(capsys.readouterr().err, "F021", ("1 operator", "the_cast", "Cast(17)", "string"))
    assert run("check", str(path)) == 3
    assert "1 unsupported" in capsys.readouterr().out


# ---------------------------------------------------------------- feeds


FEEDS: tuple[tuple[str, dict[str, Any], str, tuple[str, ...]], ...] = (
    ("name", {"X": np.ones((2, 3), np.float32)}, "F20", ("X", "x", "did you mean")),
    ("dtype", {"x": np.ones((2, 3))}, "F20", ("x", "float64", "float32", "do:")),
    ("rank", {"x": np.ones((2, 3, 1), np.float32)}, "F20", ("x", "do:")),
    ("shape", {"x": np.ones((2, 4), np.float32)}, "F20", ("x", "4", "3")),
    ("nothing", {}, "F20", ("x",)),
    ("too many", {"x": np.ones((2, 3), np.float32), "w": np.ones(3)}, "F20", ("w",)),
    ("ragged", {"x": [[1.0, 2.0], [3.0]]}, "F20", ("x",)),
    ("none", {"x": None}, "F20", ("x",)),
    ("object", {"x": np.array([["a", "b", "c"]])}, "F20", ("x",)),
)


@pytest.fixture(scope="module")
def relu() -> fissile.Executable:
    return fissile.compile(model(), cache=False, threads=1)


@pytest.mark.parametrize("case", FEEDS, ids=lambda case: str(case[0]))
def test_bad_feeds(relu: fissile.Executable, case: tuple[str, Any, str, tuple[str, ...]]) -> None:
    _, feeds, code, words = case
    with pytest.raises(fissile.FissileError) as caught:
        relu.run(feeds)
    assert isinstance(caught.value, ValueError)
    assert caught.value.code.startswith(code)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_bad_feeds_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    path = save(model())
    np.save("wide.npy", np.ones((2, 4), np.float32))
    assert run("run", str(path), "--input", "x=wide.npy", "-q") == 1
    assert "error F20" in capsys.readouterr().err
    np.savez("two.npz", x=np.ones((2, 3), np.float32), q=np.ones(1))
    assert run("run", str(path), "--input", "two.npz", "-q") == 1
    _is_one_error(capsys.readouterr().err, "F603", ("'q'", "inputs: x"))


# ---------------------------------------------------------------- artifacts


def _artifact(monkeypatch: pytest.MonkeyPatch, features: tuple[str, ...] = ()) -> Path:
    code = artifact.TargetCode("x86-64-v9", features, b"\xc3" * 64, {"slots": 0})
    contents = artifact.Contents({"model": {"name": "m.onnx"}}, (code,))
    artifact.write_artifact(contents, "m.fsl")
    return Path("m.fsl")


def test_an_artifact_of_another_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _artifact(monkeypatch, ("warp_drive",))
    assert run("run", str(path)) == 1
    words = ("warp_drive", "do: fissile compile m.onnx --target native")
    _is_one_error(capsys.readouterr().err, "F107", words)


def test_an_artifact_of_a_newer_format(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(artifact, "FORMAT", (2, 0))
        path = _artifact(monkeypatch)
    assert run("run", str(path)) == 1
    _is_one_error(capsys.readouterr().err, "F103", ("format 2.0", "upgrade"))


@pytest.mark.parametrize("keep", [0, 1, 1000, -1])
def test_a_truncated_artifact(keep: int, capsys: pytest.CaptureFixture[str]) -> None:
    fissile.compile(model(), cache=False).save("m.fsl")
    path = Path("m.fsl")
    path.write_bytes(path.read_bytes()[:keep])
    assert run("run", "m.fsl") == 1
    _is_one_error(capsys.readouterr().err, "F101", ("m.fsl", "do:"))


def test_a_file_that_is_no_artifact(capsys: pytest.CaptureFixture[str]) -> None:
    Path("m.fsl").write_text("hello")
    assert run("run", "m.fsl") == 1
    _is_one_error(capsys.readouterr().err, "F101", ("m.fsl",))
    assert run("run", "none.fsl") == 1
    _is_one_error(capsys.readouterr().err, "F501", ("none.fsl does not exist",))


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("goal", "code", "words"),
    [
        ("/proc/m.fsl", "F503", ("/proc/m.fsl", "do:")),
        ("nowhere/m.fsl", "F502", ("nowhere", "does not exist", "-o")),
        (".", "F502", ("is a folder",)),
    ],
)
def test_places_that_cannot_be_written(
    goal: str, code: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(model())
    assert run("compile", str(path), "-o", goal, "-q") == 1
    _is_one_error(capsys.readouterr().err, code, words)


def test_outputs_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    path = save(model())
    assert run("run", str(path), "--output", "/proc/out.npz", "-q") == 1
    _is_one_error(capsys.readouterr().err, "F503", ("/proc/out.npz",))


def test_models_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    Path("dir.onnx").mkdir()
    assert run("compile", "dir.onnx") == 1
    _is_one_error(capsys.readouterr().err, "F502", ("dir.onnx", "reason"))
