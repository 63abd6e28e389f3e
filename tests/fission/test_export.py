"""Primitive graphs as ONNX: accepted by the checker, and of equal value in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from fissile.errors import UnsupportedError
from fissile.fission import fission
from fissile.fission.export import EXPORTS, export
from fissile.ir.dim import symbol
from fissile.ir.graph import Graph, Node, data, evaluate, make
from fissile.ir.primitive import INPUT, PRIMITIVES, constant
from tests.fission.test_cases import opened

onnxruntime = pytest.importorskip("onnxruntime")
CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.onnx"))
# What ONNX cannot say: a convolution of int32, and two outputs of one name.
NOT_ELSEWHERE = {"case_307": "unsupported type", "case_417": "single static assignment"}
N, M = symbol("n"), symbol("m")
SIZES = {"n": 5, "m": 7}


def run_elsewhere(graph: Graph, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    model = export(graph)
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def leaf(name: str, dtype: str, *shape: object) -> Node:
    return make(INPUT, name=name, dtype=dtype, shape=shape)


def p(name: str, *inputs: Node, **attrs: object) -> Node:
    return make(PRIMITIVES[name], *inputs, **attrs)


def check(*nodes: Node, **feeds: np.ndarray) -> None:
    leaves = {n.attr("name"): n for n in Graph((), tuple(enumerate(nodes))).nodes() if n.name == "input"}  # type: ignore[arg-type]
    graph = Graph(tuple(leaves.values()), tuple((f"y{k}", n) for k, n in enumerate(nodes)))
    used = {name: feeds[name] for name in leaves}
    meant, found = evaluate(graph, used, SIZES), run_elsewhere(graph, used)
    for name, want in meant.items():
        assert found[name].dtype == want.dtype
        np.testing.assert_allclose(found[name], want, rtol=3e-6, atol=1e-7)


@pytest.mark.parametrize("model", CASES, ids=lambda path: path.stem)
def test_cases_mean_the_same_elsewhere(model: Path) -> None:
    stored = np.load(model.with_suffix(".npz"))
    feeds = {str(name): stored[f"in_{k}"] for k, name in enumerate(stored["in_names"])}
    try:
        graph = fission(opened(model))
    except UnsupportedError:
        pytest.skip("foreign operators")
    if model.stem in NOT_ELSEWHERE:
        with pytest.raises(
            (onnx.checker.ValidationError, onnx.shape_inference.InferenceError),
            match=NOT_ELSEWHERE[model.stem],
        ):
            onnx.checker.check_model(export(graph), full_check=True)
        return
    tolerance = max(float(stored["tol"]), 1e-6)
    used = {n.attr("name") for n in graph.inputs}
    try:
        found = run_elsewhere(graph, {k: v for k, v in feeds.items() if k in used})
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
        pytest.skip(str(error)[:100])  # the other engine lacks the type
    for k, got in enumerate(found.values()):
        want = stored[f"out_{k}"]
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(got, want)


def test_every_primitive_has_a_form() -> None:
    assert set(EXPORTS) == set(PRIMITIVES) - {"foreign"}


def test_elementwise_at_the_edges() -> None:
    x = leaf("x", "float32", N, 3)
    y = leaf("y", "float32", N, 3)
    values = np.array([-3.5, -1.0, -0.5, -0.0, 0.0, 1e-6, 0.5, 1.0, 2.5, 7.0, -1e-6, 80.0, -90.0, 3.0, 0.3])
    a = values.astype(np.float32).reshape(5, 3)
    b = np.array([2, -2, 3.5, -0.0, 1, 2, -3, 1, 2, 3, 1, -1, -0.0, 2, 5], np.float32).reshape(5, 3)
    check(*(p(n, x) for n in ("expm1", "trunc", "rint", "sigmoid", "erf")), x=a)
    check(p("copysign", x, y), p("copysign", y, x), p("ne", x, y), x=a, y=b)
    check(p("log1p", x), x=np.abs(a))
    nonzero = np.where(b == 0, np.float32(1.5), b)
    check(p("mod", x, y), p("rem", x, y), x=a, y=nonzero)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers(dtype: str) -> None:
    x, y = leaf("x", dtype, 7), leaf("y", dtype, 7)
    a = np.array([7, -7, 5, -5, 0, 100, -1], dtype)
    b = np.array([3, 3, -2, -2, 4, 7, 5], dtype)
    check(p("mod", x, y), p("rem", x, y), p("div", x, y), p("and", x, y), p("not", x), x=a, y=b)
    by = np.array([0, 1, 2, 31, 63, 64, 3], dtype)
    check(p("shift_left", x, y), p("shift_right", x, y), x=a, y=by)


def test_layout_of_symbolic_extents() -> None:
    x = leaf("x", "float32", N, M)
    feeds = {"x": np.arange(35, dtype=np.float32).reshape(5, 7)}
    zero = data(np.array(2.5, np.float32))
    check(
        p("reshape", p("transpose", x, perm=(1, 0)), shape=(N * M,)),
        p("slice", x, starts=(N - 1, 1), steps=(-1, 2), shape=(N, (M - 1) // 2)),
        p("slice", x, starts=(0, M - 1), steps=(1, -2), shape=(N, 1)),
        p("pad", x, low=(1, N - 3), high=(0, M // 3), value=zero),
        p("dilate", x, factors=(2, 3)),
        p("broadcast", x, shape=(3, N, M)),
        p("concat", x, x, axis=1),
        p("window", x, axes=(0, 1), sizes=(2, 3), strides=(1, 2), dilations=(2, 1)),
        p("iota", dtype="float32", shape=(2, M, N), axis=1),
        p("extents", values=(N * M, N % 3, 4), shape=(3,)),
        p("reduce_sum", x, axes=(0,)),
        p("reduce_max", x, axes=()),
        p("arg_max", x, axis=1, last=True),
        x=feeds["x"],
    )


def test_gathered_indices_are_clamped() -> None:
    x = leaf("x", "float32", N, M)
    i = leaf("i", "int64", 2, 3)
    indices = np.array([[0, -1, -9], [4, 8, 2]])
    arrays = {"x": np.arange(35, dtype=np.float32).reshape(5, 7), "i": indices}
    check(p("gather", x, i, axis=0), p("gather", x, constant(indices), axis=1), **arrays)


@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_stand_between_transposes(groups: int) -> None:
    draw = np.random.default_rng(0)
    x = leaf("x", "float32", 2, N, M, 4)
    w = constant(draw.standard_normal((3, 2, 4 // groups, 6)).astype(np.float32))
    feeds = {"x": draw.standard_normal((2, 5, 7, 4)).astype(np.float32)}
    check(p("conv", x, w, strides=(1, 2), dilations=(1, 3), groups=groups), **feeds)


def test_an_input_that_nothing_reads_tells_an_extent() -> None:
    row, fill = leaf("x", "float32", N), constant(np.array(2.5, np.float32))
    graph = Graph((row,), (("y", p("broadcast", fill, shape=(N, 2), axes=())),))
    found = run_elsewhere(graph, {"x": np.zeros(3, np.float32)})
    np.testing.assert_array_equal(found["y"], np.full((3, 2), 2.5, np.float32))
