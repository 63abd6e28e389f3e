"""Operators whose free extents turn out to be 0, 1 or smaller than an index, pad or condition."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import onnx
import pytest
from onnx import parser

from fissile.errors import ModelError
from fissile.fission import fission, placed
from fissile.frontend import read_model
from fissile.ir.dim import symbol
from tests.fission.oracle import one_operator, run, symbols_of

COUNTING = np.arange(24, dtype=np.float32) + 1


def filled(*shape: int) -> np.ndarray:
    return COUNTING[: int(np.prod(shape))].reshape(shape)


def model_of(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {text}')


# ---------------------------------------------------------------- indices


@pytest.mark.parametrize("index", [0, 1, 5, 9, -1, -3, -9])
@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_a_constant_index_is_clamped_to_a_free_axis(index: int, n: int) -> None:
    x = filled(n, 3)
    at = np.array(index)
    model = one_operator("Gather", [("x", x), ("i", at)], free={"x": ["n", 3]}, constants=["i"])
    want = x[np.clip(index + n if index < 0 else index, 0, n - 1)]
    np.testing.assert_array_equal(run(model, {"x": x})[0], want)


EMPTY = {
    "Gather": {"i": np.array(2)},
    "GatherElements": {"i": np.zeros((2, 3), np.int64)},
    "GatherND": {"i": np.zeros((4, 1), np.int64)},
}


@pytest.mark.parametrize("kind", EMPTY)
def test_an_index_into_an_empty_axis_is_an_error(kind: str) -> None:
    inputs = [("x", filled(0, 3)), *EMPTY[kind].items()]
    free = one_operator(kind, inputs, free={"x": ["n", 3]}, constants=["i"])
    with pytest.raises(AssertionError, match=r"axis 0 of .*, which is empty"):
        run(free, {"x": filled(0, 3)})
    known = one_operator(kind, [("y", filled(3)), *EMPTY[kind].items()], constants=["y", "i"])
    known.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(filled(0, 3), "y"))
    with pytest.raises(ModelError, match="which is empty"):
        run(known, {})


@pytest.mark.parametrize("kind", ["ArgMax", "ScatterElements", "ScatterND"])
def test_a_place_in_an_empty_axis_is_an_error(kind: str) -> None:
    arrays = {"x": filled(0, 3)}
    if kind != "ArgMax":
        places = (2, 3) if kind == "ScatterElements" else (2, 1)
        arrays |= {"i": np.zeros(places, np.int64), "u": filled(2, 3)}
    free = one_operator(kind, list(arrays.items()), free={"x": ["n", 3]})
    with pytest.raises(AssertionError, match="empty"):
        run(free, arrays)


def test_without_an_index_an_empty_axis_is_no_error() -> None:
    x, none = filled(0, 3), np.zeros((0, 2), np.int64)
    model = one_operator("Gather", [("x", x), ("i", none)], free={"x": ["n", 3], "i": ["k", 2]})
    assert run(model, {"x": x, "i": none})[0].shape == (0, 2, 3)


def test_each_index_is_clamped_to_its_own_axis() -> None:
    x = filled(2, 3)
    wild = np.array([[7, -9, 1], [0, 3, 2]])
    model = one_operator("GatherElements", [("x", x), ("i", wild)], axis=1)
    want = np.take_along_axis(x, np.array([[2, 0, 1], [0, 2, 2]]), 1)
    np.testing.assert_array_equal(run(model, {"x": x, "i": wild})[0], want)
    model = one_operator("GatherND", [("x", x), ("i", wild[:, :2])])
    want = np.array([x[1, 0], x[0, 2]])
    np.testing.assert_array_equal(run(model, {"x": x, "i": wild[:, :2]})[0], want)


@pytest.mark.parametrize("n", [0, 1, 2, 4, 5])
def test_a_condition_may_be_longer_than_a_free_axis(n: int) -> None:
    x, kept = filled(n, 2), np.array([False, True, True, False, True])
    inputs = [("x", x), ("c", kept)]
    model = one_operator("Compress", inputs, free={"x": ["n", 2]}, constants=["c"], axis=0)
    np.testing.assert_array_equal(run(model, {"x": x})[0], x[kept[:n]])


DEMANDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "parts": ("Split", {"x": filled(4), "s": np.array([2, 3])}, {}),
    "equal parts": ("Split", {"x": filled(5)}, {}),
    "updates": (
        "ScatterElements",
        {"x": filled(3, 3), "i": np.zeros((2, 3), np.int64), "u": filled(3, 2)},
        {},
    ),
    "indices": (
        "GatherElements",
        {"x": filled(2, 2), "i": np.zeros((3, 2), np.int64)},
        {"axis": 1},
    ),
    "two, off and on": ("OneHot", {"i": np.array([1]), "d": np.array(3), "v": filled(1)}, {}),
    "must be 1": ("Squeeze", {"x": filled(0, 2, 3), "a": np.array([1])}, {}),
}


@pytest.mark.parametrize("words", DEMANDS)
def test_free_extents_that_do_not_fit_are_refused(words: str) -> None:
    kind, arrays, attributes = DEMANDS[words]
    free = {k: [f"{k}{a}" for a in range(v.ndim)] for k, v in arrays.items() if k in "xuv"}
    fixed = [k for k in arrays if k in "sda"]
    model = one_operator(
        kind, list(arrays.items()), 2 if kind == "Split" else 1, 13, free, fixed, **attributes
    )
    feeds = {k: v for k, v in arrays.items() if k not in fixed}
    with pytest.raises(AssertionError, match=words):
        run(model, feeds)


def test_all_inputs_of_a_scan_have_its_turns() -> None:
    model = model_of(
        "g (float[3] x, float[n] y) => (z) {"
        " z = Scan<num_scan_inputs = 2, body = b (float p, float q) => (float r) { r = Add(p, q) }>(x, y) }"
    )
    x = filled(3)
    np.testing.assert_array_equal(run(model, {"x": x, "y": x})[0], 2 * x)
    with pytest.raises(AssertionError, match="must have the 3 elements of a Scan"):
        run(model, {"x": x, "y": filled(2)})


# ---------------------------------------------------------------- borders


@pytest.mark.parametrize("mode", ["reflect", "edge"])
@pytest.mark.parametrize("pads", [(1, 1), (2, 0), (3, 3), (4, 1), (0, 9)])
@pytest.mark.parametrize("free", [["n"], ["4*n"]])
def test_a_border_may_be_wider_than_a_free_axis(
    mode: Literal["reflect", "edge"], pads: tuple[int, int], free: list[str]
) -> None:
    for n in (1, 2, 3, 4, 5, 8) if free == ["n"] else (4, 8):
        x = filled(n)
        inputs = [("x", x), ("p", np.array(pads))]
        model = one_operator("Pad", inputs, free={"x": free}, constants=["p"], mode=mode)
        np.testing.assert_array_equal(run(model, {"x": x})[0], np.pad(x, pads, mode))


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_a_border_has_nothing_to_repeat_in_an_empty_axis(mode: str) -> None:
    inputs = [("x", filled(0)), ("p", np.array([1, 1]))]
    model = one_operator("Pad", inputs, 1, 19, {"x": ["n"]}, ["p"], mode=mode)
    with pytest.raises(AssertionError, match="must not be empty"):
        run(model, {"x": filled(0)})


# ---------------------------------------------------------------- Squeeze without axes

SQUEEZED = [
    ("float[b,1,4] x", "y", (3, 1, 4), (3, 4)),
    ("float[b,1,4] x", "float[b,4] y", (0, 1, 4), (0, 4)),
    ("float[b,1,4] x", "float[4] y", (1, 1, 4), (4,)),
    ("float[b,c,4] x", "float[c,4] y", (1, 3, 4), (3, 4)),
    ("float[b,c,4] x", "float[b,4] y", (3, 1, 4), (3, 4)),
    ("float[1,b,c] x", "float[5,c] y", (1, 5, 2), (5, 2)),
    ("float[b,4] x", "float[b,1,4,7] y", (2, 4), (2, 4)),  # what is declared cannot be
]


@pytest.mark.parametrize(("given", "made", "shape", "want"), SQUEEZED)
def test_declared_ranks_say_what_squeeze_keeps(
    given: str, made: str, shape: tuple[int, ...], want: tuple[int, ...]
) -> None:
    x = filled(*shape)
    (y,) = run(model_of(f"g ({given}) => ({made}) {{ y = Squeeze(x) }}"), {"x": x})
    np.testing.assert_array_equal(y, x.reshape(want))


@pytest.mark.parametrize(
    ("made", "shape", "words"),
    [
        ("y", (1, 1, 4), "axis 0 .* must not be 1.* --shape b=1"),
        ("float[b,4] y", (1, 1, 4), "axis 0 .* must not be 1"),
        ("float[4] y", (2, 1, 4), "axis 0 .* must be 1"),
    ],
)
def test_a_call_that_squeeze_would_give_another_rank_is_refused(
    made: str, shape: tuple[int, ...], words: str
) -> None:
    model = model_of(f"g (float[b,1,4] x) => ({made}) {{ y = Squeeze(x) }}")
    with pytest.raises(AssertionError, match=words):
        run(model, {"x": filled(*shape)})


def test_later_operators_say_what_squeeze_keeps() -> None:
    """A Conv wants three axes: b must be 1, and is one of the model's numbers then."""
    model = model_of(
        "g (float[b,c,t] x) => (y) <int64[1] a = {0}, float[1,2,1] w = {1, 1}>"
        "{ q = Squeeze(x) u = Unsqueeze(q, a) y = Conv(u, w) }"
    )
    graph = fission(read_model(model))
    assert graph.inputs[0].shape == (1, symbol("c"), symbol("t", 1))
    x = filled(1, 2, 3)
    np.testing.assert_array_equal(run(model, {"x": x})[0], x.sum(1, keepdims=True))
    assert symbols_of(graph, {"x": x}) == {"c": 2, "t": 3}


def test_a_squeeze_that_nothing_decides_runs_in_python() -> None:
    model = model_of("g (float[b,c,4] x) => (float[p,q] y) { y = Squeeze(x) }")
    places, problems = placed(read_model(model))
    assert not problems
    assert "which axes are 1 depends on a call's extents" in places[0].detail
