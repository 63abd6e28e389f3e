"""Feeds, outputs, extents, paths and options of odd kinds: each is one clear error, or taken for what it is."""

from __future__ import annotations

import decimal
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import fissile
from fissile import Options, compiler
from fissile.errors import FissileError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def model() -> bytes:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    made: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    return bytes(made.SerializeToString())


@pytest.fixture(scope="module")
def executable() -> fissile.Executable:
    return fissile.compile(model(), threads=1, cache=False)


def rows(code: str, key: str, *values: Any) -> list[tuple[str, Any]]:
    """The code expected of each value of a named argument."""
    return [(code, {key: value}) for value in values]


def refused(code: str, ask: Callable[[], object]) -> FissileError:
    """The error, which has this code, a message, and a reason, a place or a remedy."""
    with pytest.raises(FissileError, match=code) as caught:
        ask()
    assert caught.value.code == code
    assert caught.value.message
    return caught.value


class NoArray:
    def __array__(self, *given: object, **named: object) -> object:
        raise RuntimeError("gone")


class NoTensor:
    def __dlpack__(self, *given: object, **named: object) -> object:
        raise BufferError("on another device")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


class Endless:
    def __len__(self) -> int:
        return 2**62

    def __getitem__(self, index: int) -> float:
        return 0.0


def itself() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


READ_ONLY = X.copy()
READ_ONLY.flags.writeable = False
TAKEN: dict[str, Any] = {
    "list": X.tolist(), "list of arrays": list(X), "every second": np.repeat(X, 2, 1)[:, ::2],
    "Fortran order": np.asfortranarray(X), "other bytes": X.astype(">f4"), "read-only": READ_ONLY,
    "backwards": X[::-1][::-1], "memory": memoryview(X),  # type: ignore[arg-type]
    "unaligned": np.frombuffer(b"x" + X.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, 3),
    "nothing masked": np.ma.masked_array(X, mask=False),
}  # fmt: skip
REFUSED: dict[str, tuple[str, Any]] = {
    "None": ("F207", None),
    "objects": ("F203", X.astype(object)),
    "Nones": ("F203", [[None] * 3]),
    "ragged": ("F203", [[1.0, 2.0], [3.0]]),
    "number": ("F204", 1.0),
    "scalar": ("F204", np.float32(1)),
    "no axes": ("F204", np.array(1, np.float32)),
    "text": ("F203", "abc"),
    "bytes": ("F203", b"abc"),
    "half a pair": ("F203", "\ud800"),
    "texts": ("F203", [["a", "b", "c"]]),
    "text array": ("F203", np.array([["a"] * 3] * 2)),
    "records": ("F203", np.zeros((2, 3), [("a", "f4")])),
    "void": ("F203", np.zeros((2, 3), "V4")),
    "dates": ("F203", np.zeros((2, 3), "M8[s]")),
    "spans": ("F203", np.zeros((2, 3), "m8[s]")),
    "complex": ("F203", X.astype(complex)),
    "complex list": ("F203", [[1j, 2, 3]]),
    "wider": ("F203", X.astype(np.float64)),
    "half": ("F203", X.astype(np.float16)),
    "bool": ("F203", X.astype(bool)),
    "large": ("F203", [[2**70] * 3]),
    "decimal": ("F203", decimal.Decimal(1)),
    "dict": ("F203", {"a": 1}),
    "set": ("F203", {1, 2}),
    "generator": ("F203", (i for i in range(3))),
    "type": ("F203", float),
    "function": ("F203", len),
    "array that fails": ("F203", NoArray()),
    "tensor elsewhere": ("F203", NoTensor()),
    "endless": ("F203", Endless()),
    "itself": ("F203", itself()),
    "masked": ("F203", np.ma.masked_array(X, mask=X > 2)),
    "deep": ("F204", [[[[]]]]),
    "empty": ("F204", []),
}


@pytest.mark.parametrize("name", TAKEN)
def test_feeds_that_are_taken(executable: fissile.Executable, name: str) -> None:
    assert np.array_equal(executable.run({"x": TAKEN[name]})["y"], X)


@pytest.mark.parametrize("name", REFUSED)
def test_feeds_that_are_refused(executable: fissile.Executable, name: str) -> None:
    code, value = REFUSED[name]
    error = refused(code, lambda: executable.run({"x": value}))
    assert isinstance(error, ValueError)
    assert "x" in error.message
    refused(code, lambda: executable(value))


@pytest.mark.parametrize(
    ("code", "feeds"),
    [("F202", feeds) for feeds in (None, [X], X, 5, "x", {0: X}, {None: X}, {("x",): X}, {"x": X, 3: X})]
    + [("F201", {})],
)  # fmt: skip
def test_names_of_feeds(executable: fissile.Executable, code: str, feeds: Any) -> None:
    refused(code, lambda: executable.run(feeds))


@pytest.mark.parametrize("outputs", [[0], 0, 1.5, object(), "y", b"y", [None], [["y"]], [b"y"], ["z"], [{}]])
def test_outputs_that_are_no_names(executable: fissile.Executable, outputs: Any) -> None:
    error = refused("F209", lambda: executable.run({"x": X}, outputs))
    assert "outputs: y" in error.reason


@pytest.mark.parametrize("outputs", [["y"], ("y",), {"y"}, {"y": 1}, ["y", "y"], []])
def test_outputs_that_are_names(executable: fissile.Executable, outputs: Any) -> None:
    assert list(executable.run({"x": X}, outputs)) == (["y"] if outputs else [])


@pytest.mark.parametrize(
    ("code", "out"),
    [("F208", out) for out in ([X], 5, "y", {"y": None}, {"y": [[1]]}, {"y": READ_ONLY}, {"y": X},
                               {"y": np.zeros((2, 3))}, {"y": np.zeros((3, 3), np.float32)},
                               {"y": np.ma.masked_array(np.zeros((2, 3), np.float32))})]
    + [("F209", {"z": X}), ("F209", {0: X})],
)  # fmt: skip
def test_targets_that_cannot_be_written(executable: fissile.Executable, code: str, out: Any) -> None:
    refused(code, lambda: executable.run({"x": X}, out=out))


@pytest.mark.parametrize(
    ("code", "extents"),
    [("F608", extents) for extents in ([1], 5, "n=1", {"n": -1}, {"n": 1.5}, {"n": "a"}, {"n": None},
                                       {"n": True}, {"n": 1 << 62}, {"n": 1 << 70})]
    + [("F603", {"q": 1}), ("F603", {1: 2})],
)  # fmt: skip
def test_extents_by_name(executable: fissile.Executable, code: str, extents: Any) -> None:
    refused(code, lambda: executable.memory(extents))
    refused(code, lambda: executable.warm(extents))


@pytest.mark.parametrize("runs", [-1, 1.5, "a", None, True, 1 << 62])
def test_counts_of_runs(executable: fissile.Executable, runs: Any) -> None:
    refused("F601", lambda: executable.profile({"x": X}, runs=runs))


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True, 1 << 40, [1]])
def test_counts_of_threads(executable: fissile.Executable, threads: Any) -> None:
    for ask in (
        lambda: executable.with_threads(threads),
        lambda: fissile.load(bytes(executable.program.artifact.buffer), threads=threads),
        lambda: fissile.compile(model(), threads=threads, cache=False),
    ):
        refused("F702", ask)


@pytest.mark.parametrize(
    ("code", "source"),
    [("F615", source) for source in (None, 5, 1.5, [1], object())]
    + [("F502", source) for source in ("", ".", "/dev/null", "/dev/zero", "a\0b")]
    + [("F501", "/nonexistent/m")],
)  # fmt: skip
def test_sources(code: str, source: Any) -> None:
    for ask in (fissile.load, fissile.check, lambda s: fissile.compile(s, cache=False)):
        refused(code, lambda ask=ask: ask(source))  # type: ignore[misc]


def test_named_pipes_are_not_waited_for(tmp_path: Path, executable: fissile.Executable) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    test_sources("F502", pipe)
    refused("F502", lambda: fissile.compile(model(), cache=False, options=Options(plan=pipe)))
    refused("F503", lambda: executable.save(pipe))


@pytest.mark.parametrize(
    ("code", "path"),
    [("F503", path) for path in ("", "a\0b", "/nonexistent/x.fsl", "/tmp", "/dev/full")]
    + [("F601", None), ("F601", 5)],
)
def test_places_to_save_to(executable: fissile.Executable, code: str, path: Any) -> None:
    refused(code, lambda: executable.save(path))


@pytest.mark.parametrize(
    ("code", "named"),
    [
        *rows("F607", "target", 5, None, [], [5], {"native"}),
        *rows("F110", "target", "", "x86", ["x86"]),
        *rows("F305", "target", "aarch64-neon"),
        *rows("F608", "shapes", 5, [1], "n=1", {5: 1}, {"n": -1}, {"n": "a"}, {"n": 1.5}, {"n": (1,)},
              {"n": (5, 1)}, {"n": True}, {"n": object()}, {"q": 1}),
        *rows("F609", "shapes", {"x": [1]}, {"x": [1, 4]}),
        *rows("F019", "shapes", {"n": 1 << 62}, {"n": 1 << 70}),
        *rows("F606", "foreign", 5, None, []),
        *rows("F601", "options", 5, {}, "fast"),
        *rows("F601", "base_dir", 5),
        *rows("F601", "progress", 5),
        *rows("F611", "budget", "abc", -1, [], float("nan")),
    ],
)  # fmt: skip
def test_arguments_of_compile(code: str, named: Any) -> None:
    refused(code, lambda: fissile.compile(model(), **{"cache": False, **named}))


@pytest.mark.parametrize(
    ("code", "named"),
    [
        *[("F601", {key: value}) for key in ("rewrite", "substitute", "strict_shapes", "verify", "store")
          for value in ("x", None, 1)],
        *[("F601", {key: value}) for key in ("disable", "providers") for value in (5, "abc", [5], None)],
        *[("F601", {"seed": s}) for s in ("a", None, 1.5, True)],
        *[("F601", {"workers": w}) for w in (0, -1, "a", 1.5, True)],
        ("F601", {"affinity": 5}),
        ("F601", {"plan": 5}),
        ("F616", {"providers": ["nope"]}),
    ],
)  # fmt: skip
def test_options(code: str, named: Any) -> None:
    refused(code, lambda: Options(**named))


@pytest.mark.parametrize(
    ("code", "named"),
    [("F603", {"disable": ["nope"]}), ("F501", {"plan": "/nonexistent"}), ("F502", {"plan": "/tmp"}),
     ("F502", {"plan": "/dev/zero"}), ("F502", {"plan": "a\0b"})],
)  # fmt: skip
def test_options_that_name_nothing(code: str, named: Any) -> None:
    refused(code, lambda: fissile.compile(model(), cache=False, options=Options(**named)))


def test_optimize_and_show() -> None:
    asked: tuple[Callable[..., object], ...] = (
        fissile.optimize,
        lambda m, **more: compiler.show(m, "plan", **more),
    )
    for ask in asked:
        with pytest.raises(FissileError, match="F615"):
            ask(5)
        with pytest.raises(FissileError, match="F601"):
            ask(model(), options=5)
