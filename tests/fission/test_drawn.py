"""Drawn operators, with numbers or names as extents, against onnxruntime or numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from fissile.errors import ModelError, UnsupportedError
from fissile.fission import fission, unsupported
from fissile.frontend import read_model
from fissile.ir.graph import evaluate
from tests.fission.oracle import (
    Arrays,
    one_operator,
    onnxruntime_errors,
    reference,
    run,
    run_graph,
    same,
    symbols_of,
)

Shapes: TypeAlias = Mapping[str, Sequence[int | str]]
EXTENTS = st.sampled_from([0, 1, 2, 3, 5, 7])
DRAWN = settings(max_examples=60, deadline=None)


def values(shape: Sequence[int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def names(name: str, rank: int) -> list[str]:
    return [f"{name}{k}" for k in range(rank)]


def agree(model: onnx.ModelProto, feeds: Arrays, tolerance: float = 2e-5) -> None:
    try:
        want = reference(model, feeds)
    except onnxruntime_errors:
        assume(False)
    got = run(model, feeds)
    for a, b in zip(got, want, strict=True):
        assert same(a, b, tolerance), f"{a.shape} {b.shape}\n{a}\n{b}"


@given(st.data())
@DRAWN
def test_broadcasting(data: st.DataObject) -> None:
    shape = data.draw(st.lists(EXTENTS, max_size=4))
    sides = []
    for _ in range(2):
        ones = data.draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
        side = [1 if one else d for one, d in zip(ones, shape)]
        sides.append(side[data.draw(st.integers(0, len(side))) :])
    a, b = values(sides[0]), values(sides[1], 1)
    kind = data.draw(st.sampled_from(["Add", "Div", "Max", "Where"]))
    inputs = [("a", a), ("b", b)]
    if kind == "Where":
        inputs.insert(0, ("c", np.asarray(values(sides[0], 2) > 0)))
    agree(one_operator(kind, inputs), dict(inputs))


def _met(data: st.DataObject, extent: int) -> tuple[int, int]:
    """Two extents that broadcast to `extent`, or an empty axis and a single element."""
    pairs = [(extent, extent), (extent, 1), (1, extent)]
    return data.draw(st.sampled_from(pairs))


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("extent", [0, 1, 2, 5])
def test_one_element_is_expanded_to_what_may_be_nothing(times: int, extent: int) -> None:
    nodes = [
        onnx.helper.make_node("Slice", ["x", "last", "before", "last"], ["none"]),
        onnx.helper.make_node("Shape", ["none"], ["shape"]),
        onnx.helper.make_node("Mul", ["shape", "times"], ["wanted"]),
        onnx.helper.make_node("Expand", ["one", "wanted"], ["y"]),
    ]
    weights = {"last": [-1], "before": [-2], "times": [times], "one": [3.0]}
    graph = onnx.helper.make_graph(
        nodes,
        "nothing",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n"])],
        [onnx.ValueInfoProto(name="y")],
        [onnx.numpy_helper.from_array(np.array(a), n) for n, a in weights.items()],
    )
    opset = [onnx.helper.make_opsetid("", 18)]
    agree(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), {"x": values([extent])})


@given(st.data())
@DRAWN
def test_broadcasting_of_named_extents(data: st.DataObject) -> None:
    pairs = [_met(data, n) for n in data.draw(st.lists(EXTENTS, min_size=1, max_size=3))]
    wide, narrow = values([a for a, _ in pairs]), values([b for _, b in pairs], 1)
    model = one_operator(
        "Mul",
        [("a", wide), ("b", narrow)],
        free={"a": names("p", len(pairs)), "b": names("q", len(pairs))},
    )
    agree(model, {"a": wide, "b": narrow})


@given(st.data())
@DRAWN
def test_products_of_named_batches(data: st.DataObject) -> None:
    pairs = [_met(data, n) for n in data.draw(st.lists(EXTENTS, min_size=1, max_size=2))]
    a, b = values([*(a for a, _ in pairs), 3, 4]), values([*(b for _, b in pairs), 4, 2], 1)
    free: Shapes = {"a": [*names("p", len(pairs)), 3, 4], "b": [*names("q", len(pairs)), "k", 2]}
    agree(one_operator("MatMul", [("a", a), ("b", b)], free=free), {"a": a, "b": b})


@given(st.data())
@DRAWN
def test_einsum_repeats_single_elements(data: st.DataObject) -> None:
    extents = {axis: data.draw(EXTENTS) for axis in "bijk"}
    equation = data.draw(st.sampled_from(["bij,bjk->bik", "bij,bkj->bk", "ij,jk", "bi,bi->i"]))
    terms = equation.split("->")[0].split(",")
    shapes = [[data.draw(st.sampled_from([extents[a], 1])) for a in term] for term in terms]
    a, b = values(shapes[0]), values(shapes[1], 1)
    free = {name: names(name, len(term)) for name, term in zip("ab", terms)}
    model = one_operator("Einsum", [("a", a), ("b", b)], free=free, equation=equation)
    sizes: dict[str, list[int]] = {}
    for axis, n in zip("".join(terms), (*a.shape, *b.shape), strict=True):
        sizes.setdefault(axis, []).append(n)
    full = {axis: 0 if 0 in found else max(found) for axis, found in sizes.items()}
    whole = [np.broadcast_to(x, [full[c] for c in term]) for x, term in zip((a, b), terms)]
    assert same(run(model, {"a": a, "b": b})[0], np.einsum(equation, *whole), 2e-5)


@pytest.mark.parametrize("n", [0, 1, 2, 7])
@pytest.mark.parametrize(
    ("start", "end"), [(-1, 2**63 - 1), (0, 1), (-1, 9), (1, 2), (-2, -1), (0, -1)]
)
def test_a_tensor_by_its_own_slice(n: int, start: int, end: int) -> None:
    bounds = [numpy_helper.from_array(np.array([v]), k) for k, v in (("s", start), ("e", end))]
    axis = numpy_helper.from_array(np.array([1]), "a")
    nodes = [
        helper.make_node("Slice", ["x", "s", "e", "a"], ["z"]),
        helper.make_node("Sub", ["x", "z"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["b", "n", 3])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "own_slice", [x], [y], [*bounds, axis])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    feeds = {"x": values([2, n, 3])}
    part = len(range(n)[start:end])
    if part not in (1, n) and n != 1:
        with pytest.raises(AssertionError, match=r"must (be equal|broadcast)"):
            run(model, feeds)
    else:
        want = feeds["x"] - feeds["x"][:, start:end]
        assert same(run(model, feeds)[0], want)


def test_extents_that_do_not_broadcast_break_a_guard() -> None:
    a, b = values([2]), values([3])
    model = one_operator("Add", [("a", a), ("b", b)], free={"a": ["p"], "b": ["q"]})
    with pytest.raises(AssertionError, match="must broadcast"):
        run(model, {"a": a, "b": b})


def test_numbers_that_do_not_broadcast_are_an_error() -> None:
    with pytest.raises(ModelError, match=r"it +Add\(18\)"):
        run(one_operator("Add", [("a", values([2])), ("b", values([3]))]), {})


@given(st.data())
@DRAWN
def test_convolution(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 2))
    groups = data.draw(st.sampled_from([1, 1, 2, 3]))
    inner, outs = data.draw(st.sampled_from([(1, 1), (2, 1), (3, 2)]))
    taps = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    attributes = windows(data, rank, dilated=True)
    dilations = attributes.get("dilations", [1] * rank)
    least = [(t - 1) * d + 1 for t, d in zip(taps, dilations)]
    spatial = [n + data.draw(st.integers(0, 6)) for n in least]
    x = values([2, groups * inner, *spatial])
    w, bias = values([groups * outs, inner, *taps], 1), values([groups * outs], 2)
    model = one_operator(
        "Conv",
        [("x", x), ("w", w), ("b", bias)],
        free={"x": ["n", groups * inner, *names("s", rank)]},
        group=groups,
        kernel_shape=taps,
        **attributes,
    )
    agree(model, {"x": x, "w": w, "b": bias})


def windows(data: st.DataObject, rank: int, dilated: bool) -> dict[str, Any]:
    drawn: dict[str, Any] = {"strides": [data.draw(st.integers(1, 3)) for _ in range(rank)]}
    mode = data.draw(st.sampled_from(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    drawn["auto_pad"] = mode
    if mode == "NOTSET":
        drawn["pads"] = [data.draw(st.integers(0, 1)) for _ in range(2 * rank)]
        if dilated:
            drawn["dilations"] = [data.draw(st.integers(1, 2)) for _ in range(rank)]
    return drawn


@given(st.data())
@DRAWN
def test_transposed_convolution(data: st.DataObject) -> None:
    groups = data.draw(st.sampled_from([1, 1, 2]))
    taps = [data.draw(st.integers(1, 3)) for _ in range(2)]
    tiles = data.draw(st.booleans())
    strides = taps if tiles else [data.draw(st.integers(1, 3)) for _ in range(2)]
    pads = [data.draw(st.integers(0, 1)) for _ in range(4)]
    x, w = values([1, 2 * groups, 4, 3]), values([2 * groups, 3, *taps], 1)
    model = one_operator(
        "ConvTranspose",
        [("x", x), ("w", w)],
        free={"x": ["n", 2 * groups, "h", "w"]},
        group=groups,
        strides=strides,
        pads=pads,
        dilations=[1, 1 if tiles else data.draw(st.integers(1, 2))],
        output_padding=[0 if tiles else min(1, s - 1) for s in strides],
    )
    agree(model, {"x": x, "w": w})


@given(st.data())
@DRAWN
def test_pooling(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["MaxPool", "AveragePool"]))
    taps = [data.draw(st.integers(2, 3)) for _ in range(2)]
    attributes = windows(data, 2, dilated=kind == "MaxPool")
    dilations = attributes.get("dilations", [1, 1])
    least = [(t - 1) * d + 1 for t, d in zip(taps, dilations)]
    spatial = [n + data.draw(st.integers(0, 6)) for n in least]
    if attributes["auto_pad"] == "NOTSET":
        attributes["ceil_mode"] = data.draw(st.integers(0, 1))
    if kind == "AveragePool":
        attributes["count_include_pad"] = data.draw(st.integers(0, 1))
    x = values([2, 3, *spatial])
    free: Shapes | None = {"x": ["n", 3, "h", "w"]} if data.draw(st.booleans()) else None
    outputs = 2 if kind == "MaxPool" and data.draw(st.booleans()) else 1
    model = one_operator(
        kind, [("x", x)], outputs, opset=19, free=free, kernel_shape=taps, **attributes
    )
    agree(model, {"x": x})


MODES = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"]
ROUNDINGS = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]


@given(st.data())
@DRAWN
def test_resize(data: st.DataObject) -> None:
    h, w = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    x = values([1, 2, h, w])
    mode = data.draw(st.sampled_from(MODES))
    kind = data.draw(st.sampled_from(["nearest", "linear"]))
    inputs: list[tuple[str, np.ndarray | None]] = [("x", x), ("roi", None)]
    if data.draw(st.booleans()):
        scales = [1, 1, data.draw(st.sampled_from([0.5, 1.5, 2, 3])), 2]
        inputs.append(("scales", np.array(scales, np.float32)))
    else:
        sizes = [1, 2, data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))]
        inputs += [("scales", None), ("sizes", np.array(sizes, np.int64))]
    free: Shapes | None = {"x": [1, 2, "h", "w"]} if data.draw(st.booleans()) else None
    model = one_operator(
        "Resize",
        inputs,
        free=free,
        constants=["scales", "sizes"],
        opset=19,
        mode=kind,
        coordinate_transformation_mode=mode,
        nearest_mode=data.draw(st.sampled_from(ROUNDINGS)),
    )
    agree(model, {"x": x})


def test_resize_half_way_between_two_elements() -> None:
    x = values([1, 2, 3, 1])
    choices: tuple[Shapes | None, ...] = (None, {"x": [1, 2, "h", "w"]})
    for free in choices:
        model = one_operator(
            "Resize",
            [("x", x), ("roi", None), ("scales", np.array([1, 1, 1.5, 2], np.float32))],
            free=free,
            constants=["scales"],
            opset=19,
            mode="nearest",
            coordinate_transformation_mode="half_pixel_symmetric",
            nearest_mode="floor",
        )
        agree(model, {"x": x})


@given(st.data())
@DRAWN
def test_slice(data: st.DataObject) -> None:
    n = data.draw(st.sampled_from([0, 1, 4, 7]))
    bound = st.sampled_from([-(2**62), -9, -4, -1, 0, 1, 3, 7, 9, 2**62])
    start, end = data.draw(bound), data.draw(bound)
    step = data.draw(st.sampled_from([1, 2, 3, -1, -2, -5, 2**62, -(2**63) + 1]))
    x = values([3, n])
    parts = [("x", x)] + [
        (name, np.array([v], np.int64))
        for name, v in (("s", start), ("e", end), ("a", -1), ("t", step))
    ]
    free = {"x": ["n", "m"]} if data.draw(st.booleans()) else None
    model = one_operator("Slice", parts, free=free, constants=["s", "e", "a", "t"])
    agree(model, {"x": x}, 0)


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 1.0), (1.0, 0.5)])
def test_gemm_of_integers_by_a_fraction(alpha: float, beta: float) -> None:
    parts: list[tuple[str, np.ndarray | None]] = [(n, np.full((2, 2), 3, np.int32)) for n in "abc"]
    model = one_operator("Gemm", parts, alpha=alpha, beta=beta)
    with pytest.raises(UnsupportedError, match="integers times"):
        fission(read_model(model))


@given(st.data())
@DRAWN
def test_matmul(data: st.DataObject) -> None:
    m, k, n = (data.draw(EXTENTS) for _ in range(3))
    batch = data.draw(st.lists(st.sampled_from([1, 2, 3]), max_size=2))
    left = batch[data.draw(st.integers(0, len(batch))) :]
    right = [data.draw(st.sampled_from([1, d])) for d in batch]
    a = values([k] if data.draw(st.booleans()) else [*left, m, k])
    b = values([k] if data.draw(st.booleans()) else [*right, k, n], 1)
    (got,) = run(one_operator("MatMul", [("a", a), ("b", b)]), {"a": a, "b": b})
    assert same(got, np.matmul(a, b))


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize("named", [False, True])
def test_pads_that_mirror(mode: str, named: bool) -> None:
    x = values([2, 5])
    pads = np.array([0, 3, 1, 2], np.int64)
    model = one_operator(
        "Pad",
        [("x", x), ("p", pads)],
        opset=19,
        free={"x": ["n", "m"]} if named else None,
        constants=["p"],
        mode=mode,
    )
    agree(model, {"x": x})


def test_equal_names_are_one_symbol_and_unnamed_extents_are_not() -> None:
    x = values([2, 2])
    model = one_operator("Relu", [("x", x)], free={"x": ["n", "n"]})
    graph = fission(read_model(model))
    assert graph.inputs[0].shape[0] is graph.inputs[0].shape[1]
    model.graph.input[0].type.tensor_type.shape.dim[1].ClearField("dim_param")
    graph = fission(read_model(model))
    assert list(map(str, graph.inputs[0].shape)) == ["n", "`x:1`"]


def test_expressions_that_nothing_needs_are_names() -> None:
    x = values([7, 3])
    graph = fission(read_model(one_operator("Relu", [("x", x)], free={"x": ["4*h", "a b"]})))
    symbols = symbols_of(graph, {"x": x})
    assert symbols == {"4*h": 7, "a b": 3}
    np.testing.assert_array_equal(evaluate(graph, {"x": x}, symbols)["y0"], np.maximum(x, 0))


@pytest.mark.parametrize("declared", ["h*w", "2*h + w", "(h + 1)//2"])
def test_expressions_that_no_extent_can_be_solved_for_are_names(declared: str) -> None:
    x = values([7, 3])
    graph = fission(read_model(one_operator("Relu", [("x", x)], free={"x": [declared, "w"]})))
    assert symbols_of(graph, {"x": x}) == {declared: 7, "w": 3}


@pytest.mark.parametrize(
    "declared", ["(" * 5000 + "h" + ")" * 5000, "-" * 5000 + "h*2", "h//0", "2*(h", "trunc(h + 1)"]
)
def test_what_is_no_expression_is_a_name(declared: str) -> None:
    x = values([7])
    model = one_operator("Relu", [("x", x)], free={"x": [declared]})
    assert symbols_of(fission(read_model(model)), {"x": x}) == {declared: 7}


@pytest.mark.parametrize("h", [0, 1, 2, 5])
def test_expressions_that_an_operator_needs_stay(h: int) -> None:
    """Halved and doubled, 2*h is what it was, and no guard has to say so."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[2], strides=[2]),
        helper.make_node("Resize", ["p", "", "s"], ["r"], mode="nearest"),
        helper.make_node("Concat", ["x", "r"], ["y"], axis=1),
    ]
    scales = numpy_helper.from_array(np.array([1, 1, 2], np.float32), "s")
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3, "2*h"])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    body = helper.make_graph(nodes, "halved", [x], [y], [scales])
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    graph = fission(read_model(model))
    assert str(graph.inputs[0].shape[2]) == "2*h"
    assert not graph.guards
    if h:
        feeds = {"x": values([1, 3, 2 * h])}
        (got,), (want,) = run_graph(graph, feeds), reference(model, feeds)
        assert same(got, want)


@pytest.mark.parametrize("of", ["float16", "bfloat16"])
def test_half_types_round_once_per_operator(of: str) -> None:
    x = values([5, 7])
    code = {"float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16}[of]
    info = onnx.helper.make_tensor_value_info("x", code, ["n", 7])
    node = onnx.helper.make_node("Softmax", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [info], [onnx.ValueInfoProto(name="y")])
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10
    )
    names_ = [n.name for n in fission(read_model(model)).nodes()]
    assert names_.count("cast") == 2
    if of == "float16":
        (got,) = run(model, {"x": x.astype(np.float16)})
        wide = x.astype(np.float16).astype(np.float64)
        powers = np.exp(wide - wide.max(-1, keepdims=True))
        want = powers / powers.sum(-1, keepdims=True)
        np.testing.assert_allclose(got, want.astype(np.float16), rtol=1e-3)


@pytest.mark.parametrize(
    ("kind", "types", "result", "opset"),
    [
        ("Pow", ("float32", "float16"), "float32", 18),
        ("Pow", ("float16", "float32"), "float16", 18),
        ("Pow", ("int32", "float16"), "int32", 18),
        ("RMSNormalization", ("float32", "float16"), "float16", 23),
        ("RMSNormalization", ("float16", "float32"), "float32", 23),
        ("DequantizeLinear", ("uint8", "float16"), "float16", 19),
        ("Equal", ("float16", "float16"), "bool", 18),
    ],
)
def test_the_type_of_a_result_where_types_are_mixed(
    kind: str, types: Sequence[str], result: str, opset: int
) -> None:
    """onnx's inference says the same, but of RMSNormalization, whose schema it contradicts."""
    arrays = [values([5], k).astype(of) for k, of in enumerate(types)]
    inputs = [("a", arrays[0]), ("b", arrays[1])]
    if kind == "DequantizeLinear":
        inputs[1] = ("b", arrays[1][:1].reshape(()))
    model = one_operator(kind, inputs, opset=opset)
    whole = onnx.shape_inference.infer_shapes(model).graph.output[0].type.tensor_type.elem_type
    if kind != "RMSNormalization":
        assert onnx.helper.tensor_dtype_to_np_dtype(whole).name == result
    (output,) = (node for _, node in fission(read_model(model)).outputs)
    assert output.dtype.name == result


@pytest.mark.parametrize("n", [7, 2049])
def test_an_extent_in_a_half_type_is_rounded(n: int) -> None:
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n"])
    nodes = [
        onnx.helper.make_node("Shape", ["x"], ["s"]),
        onnx.helper.make_node("Cast", ["s"], ["h"], to=onnx.TensorProto.FLOAT16),
        onnx.helper.make_node("Add", ["h", "h"], ["t"]),
        onnx.helper.make_node("Cast", ["t"], ["y"], to=onnx.TensorProto.INT64),
    ]
    graph = onnx.helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")])
    opset = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=10)
    (got,) = run(model, {"x": values([n])})
    assert got.tolist() == [2 * int(np.float16(n))]


def test_all_unsupported_operators_are_named_at_once() -> None:
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])
    nodes = [
        onnx.helper.make_node("NonZero", ["x"], ["i"], name="first"),
        onnx.helper.make_node("Cast", ["i"], ["y"], name="after", to=1),
        onnx.helper.make_node("Det", ["x"], ["d"], name="second"),
        onnx.helper.make_node("Det", ["x"], ["unused"], name="dead"),
    ]
    outs = [onnx.ValueInfoProto(name=n) for n in ("y", "d")]
    graph = onnx.helper.make_graph(nodes, "g", [x], outs)
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10
    )
    operators = read_model(model)
    assert [p.node for p in unsupported(operators)] == ["first", "second"]
    with pytest.raises(UnsupportedError, match="2 operators") as caught:
        fission(operators)
    assert "NonZero(18)" in str(caught.value)


def test_shape_arithmetic_stays_symbolic() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[n, 4, h] x) => (float y) {
        s = Shape(x)
        zero = Constant<value_ints=[0]>()
        two = Constant<value_ints=[2]>()
        rest = Constant<value_ints=[-1]>()
        n = Gather<axis=0>(s, zero)
        h = Gather<axis=0>(s, two)
        half = Div(h, two)
        i32 = Cast<to=6>(half)
        back = Cast<to=7>(i32)
        start = Constant<value_ints=[0]>()
        cut = Slice(x, start, back, two)
        target = Concat<axis=0>(n, rest)
        y = Reshape(cut, target)
    }"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].ClearField("type")
    graph = fission(read_model(model))
    assert str(graph.outputs[0][1].type) == "float32[n, 4*(h//2)]"
    assert not graph.guards


@pytest.mark.parametrize("scale", [0.1, 0.3, 0.7, 1.3333334, 1.7, 3.3])
@pytest.mark.parametrize(
    ("mode", "coordinates"),
    [("nearest", "asymmetric"), ("linear", "half_pixel"), ("cubic", "half_pixel")],
)
def test_free_extents_resize_by_any_factor(scale: float, mode: str, coordinates: str) -> None:
    for n in (1, 2, 3, 5, 10, 13, 20, 37):
        x = values([1, 2, n, 4])
        model = one_operator(
            "Resize",
            [("x", x), ("roi", None), ("scales", np.array([1, 1, scale, 1], np.float32))],
            free={"x": [1, 2, "n", 4]},
            constants=["scales"],
            mode=mode,
            coordinate_transformation_mode=coordinates,
            nearest_mode="floor",
        )
        (want,), (got,) = reference(model, {"x": x}), run(model, {"x": x})
        assert got.shape == want.shape
        if want.shape != x.shape:  # onnxruntime then copies, whatever the scale
            assert same(got, want)


@pytest.mark.parametrize(("scale", "extent"), [(0.5, "h//2"), (2.0, "2*h"), (0.75, "(3*h)//4")])
def test_shape_arithmetic_by_way_of_floats(scale: float, extent: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 18]>
    g (float[1, 2, h, 4] x) => (float y) {{
        s = Shape(x)
        two = Constant<value_ints=[2]>()
        h = Gather<axis=0>(s, two)
        real = Cast<to=1>(h)
        scale = Constant<value_float={scale}>()
        scaled = Mul(real, scale)
        floor = Floor(scaled)
        rows = Cast<to=7>(floor)
        head = Constant<value_ints=[1, 2]>()
        last = Constant<value_ints=[8]>()
        sizes = Concat<axis=0>(head, rows, last)
        y = Resize<mode="nearest">(x, , , sizes)
    }}"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].ClearField("type")
    graph = fission(read_model(model))
    assert str(graph.outputs[0][1].shape[2]) == extent
    agree(model, {"x": values([1, 2, 5, 4])})


@pytest.mark.parametrize("channels", [6, "c"])
def test_groups_of_channels_that_are_free(channels: int | str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 6, 5)).astype(np.float32)
    scale, bias = rng.standard_normal((2, 6)).astype(np.float32)
    given = [("x", x), ("scale", scale), ("bias", bias)]
    free = {"x": ("n", channels, "l")}
    model = one_operator("GroupNormalization", given, 1, 21, free, num_groups=3)
    y, *_ = run(model, {"x": x, "scale": scale, "bias": bias})
    rows = x.astype(np.float64).reshape(2, 3, -1)
    want = (rows - rows.mean(2, keepdims=True)) / np.sqrt(rows.var(2, keepdims=True) + 1e-5)
    want = want.reshape(x.shape) * scale[:, None] + bias[:, None]
    np.testing.assert_allclose(y, want, 1e-5, 1e-6)
    seven = np.zeros((2, 7, 5), np.float32)
    if channels == "c":
        with pytest.raises(AssertionError, match="equally many elements"):
            run(model, {"x": seven, "scale": scale, "bias": bias})


def test_quantizing_zeros_has_a_scale() -> None:
    for x in (np.zeros(5, np.float32), np.array([0, 3, -1], np.float32)):
        model = one_operator("DynamicQuantizeLinear", [("x", x)], 3)
        for got, want in zip(run(model, {"x": x}), reference(model, {"x": x}), strict=True):
            assert same(got, want)
