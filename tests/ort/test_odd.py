"""Sessions asked for odd things: an error of onnxruntime's classes that says what was wrong, and nothing hangs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fissile.ort as ort
from fissile.ort.errors import Fail, InvalidArgument
from tests.test_odd_arguments import REFUSED, TAKEN, X, model


@pytest.fixture(scope="module")
def session() -> ort.InferenceSession:
    return ort.InferenceSession(model())


def refused(kind: type[Exception], ask: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        ask()
    assert len(str(caught.value)) > 5
    return str(caught.value)


@pytest.mark.parametrize("name", TAKEN)
def test_feeds_that_are_taken(session: ort.InferenceSession, name: str) -> None:
    assert np.array_equal(session.run(None, {"x": TAKEN[name]})[0], X)


@pytest.mark.parametrize("name", sorted(set(REFUSED) - {"generator"}))
def test_feeds_that_are_refused(session: ort.InferenceSession, name: str) -> None:
    said = refused(ValueError, lambda: session.run(None, {"x": REFUSED[name][1]}))
    assert "x" in said


@pytest.mark.parametrize("feeds", [None, [X], 5, "x"])
def test_feeds_that_are_no_mapping(session: ort.InferenceSession, feeds: Any) -> None:
    assert "mapping" in refused(InvalidArgument, lambda: session.run(None, feeds))


@pytest.mark.parametrize("feeds", [{}, {0: X}, {None: X}])
def test_feeds_without_the_input(session: ort.InferenceSession, feeds: Any) -> None:
    assert "['x']" in refused(ValueError, lambda: session.run(None, feeds))


@pytest.mark.parametrize("names", [[0], [None], [["y"]], [{}], ["z"], 1, object()])
def test_outputs_that_are_no_names(session: ort.InferenceSession, names: Any) -> None:
    refused(InvalidArgument, lambda: session.run(names, {"x": X}))


@pytest.mark.parametrize("source", ["/dev/null", "/dev/zero", "/tmp", "a\0b", "\ud800"])
def test_sources_that_are_no_files(source: str) -> None:
    refused(Fail, lambda: ort.InferenceSession(source))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "named pipe" in refused(Fail, lambda: ort.InferenceSession(tmp_path / "pipe"))


@pytest.mark.parametrize("providers", [5, [5], [None], [()]])
def test_providers(providers: Any) -> None:
    refused(ValueError, lambda: ort.InferenceSession(model(), providers=providers))


def test_options() -> None:
    refused(TypeError, lambda: ort.InferenceSession(model(), 5))  # type: ignore[arg-type]
    options = ort.SessionOptions()
    for value in ("a", None, 1.5):
        refused(TypeError, lambda value=value: setattr(options, "intra_op_num_threads", value))  # type: ignore[misc]
    refused(TypeError, lambda: setattr(options, "log_severity_level", []))
    for extent in ("a", None, 1.5):
        with pytest.raises(InvalidArgument, match="whole number"):
            options.add_free_dimension_override_by_name("n", extent)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(-1, 3), (1 << 62,), (2, "a"), 5, None, (1 << 40, 1 << 40)])
def test_shapes_of_values(session: ort.InferenceSession, shape: Any) -> None:
    make = ort.OrtValue.ortvalue_from_shape_and_type
    refused(InvalidArgument, lambda: make(shape, np.float32))
    binding = session.io_binding()
    refused(InvalidArgument, lambda: binding.bind_input("x", "cpu", 0, np.float32, shape, 64))


def test_values_of_odd_kinds(session: ort.InferenceSession) -> None:
    binding = session.io_binding()
    for kind in ("nope", 77):
        with pytest.raises(InvalidArgument, match="element type"):
            ort.OrtValue.ortvalue_from_shape_and_type((2,), kind)
    for address in (0, -8, 1.5, None):
        with pytest.raises(InvalidArgument, match="address"):
            binding.bind_input("x", "cpu", 0, np.float32, (2, 3), address)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="OrtValue is needed"):
        binding.bind_ortvalue_input("x", X)  # type: ignore[arg-type]
    refused(TypeError, lambda: session.run_with_iobinding(None))  # type: ignore[arg-type]
