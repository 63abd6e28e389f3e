"""Whole networks as fission writes them: NCHW with channels-last convolutions inside. Afterwards no layout is left."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fissile.fission import fission
from fissile.frontend import read_model
from fissile.ir.dim import DimLike, symbol, symbols
from fissile.ir.dtype import FLOAT32
from fissile.ir.graph import Graph, Node, evaluate
from fissile.ir.primitive import constant, scalar
from fissile.rewrite import canonicalize
from tests.rewrite.corpus import P, feeds_of, graph_of, numbers, source, values_of, zero_border

N, H, W = symbol("d2", 1), symbol("d9", 1), symbol("d7", 1)
IMAGE = source([N, 3, H, W], "image")


def census(graph: Graph) -> Counter[str]:
    return Counter(n.name for n in graph.nodes())


def spread(x: Node, shape: tuple[DimLike, ...]) -> Node:
    return P("broadcast", x, shape=shape)


def conv(x: Node, outs: int, size: int = 3, stride: int = 1, groups: int = 1) -> Node:
    ins = x.shape[1]
    assert isinstance(ins, int)
    w = constant(numbers(outs, (outs, ins // groups, size, size)))
    w = P("transpose", w, perm=(2, 3, 1, 0))
    if size > 1:
        x = zero_border(x, (0, 0, size // 2, size // 2), (0, 0, size // 2, size // 2))
    x = P("transpose", x, perm=(0, 2, 3, 1))
    y = P("conv", x, w, strides=(stride, stride), dilations=(1, 1), groups=groups)
    y = P("transpose", y, perm=(0, 3, 1, 2))
    bias = P("reshape", constant(numbers(outs + 1, (outs,))), shape=(1, outs, 1, 1))
    return P("add", y, spread(bias, y.shape))


def normalized(x: Node) -> Node:
    """Batch normalisation in inference: (x - mean) / deviation * scale + shift."""
    outs = x.shape[1]
    assert isinstance(outs, int)
    for k, name in enumerate(("sub", "div", "mul", "add")):
        c = P("reshape", constant(numbers(k, (outs,))), shape=(outs, 1, 1))
        x = P(name, x, spread(c, x.shape))
    return x


def relu(x: Node) -> Node:
    return P("max", x, spread(scalar(0, FLOAT32), x.shape))


def pooled(x: Node) -> Node:
    """3x3 maximum, stride 2."""
    low = zero_border(x, (0, 0, 1, 1), (0, 0, 1, 1), -np.inf)
    attrs = {"axes": (2, 3), "sizes": (3, 3), "strides": (2, 2), "dilations": (1, 1)}
    return P("reduce_max", P("window", low, **attrs), axes=(4, 5))


def mean(x: Node) -> Node:
    n, c, h, w = x.shape
    total = P("reshape", P("reduce_sum", x, axes=(2, 3)), shape=(n, c, 1, 1))
    return P("mul", total, spread(scalar(0.125, FLOAT32), total.shape))


def excited(x: Node) -> Node:
    """Squeeze and excite: scale every channel by a gate made of the channel means."""
    gate = P("sigmoid", conv(relu(conv(mean(x), 4, 1)), 8, 1))
    return P("mul", x, spread(gate, x.shape))


def softmax(x: Node, axis: int) -> Node:
    kept = tuple(1 if a == axis else d for a, d in enumerate(x.shape))
    top = P("reshape", P("reduce_max", x, axes=(axis,)), shape=kept)
    e = P("exp", P("sub", x, spread(top, x.shape)))
    total = P("reshape", P("reduce_sum", e, axes=(axis,)), shape=kept)
    return P("div", e, spread(total, x.shape))


def upsampled(x: Node) -> Node:
    """Nearest neighbour, twice as large."""
    n, c, h, w = x.shape
    apart = P("reshape", x, shape=(n, c, h, 1, w, 1))
    return P("reshape", spread(apart, (n, c, h, 2, w, 2)), shape=(n, c, 2 * h, 2 * w))


def linear(x: Node, outs: int) -> Node:
    ins = x.shape[-1]
    assert isinstance(ins, int)
    w = constant(numbers(outs, (ins, outs)))
    y = P("matmul", x, spread(w, (*x.shape[:-2], ins, outs)))
    return P("add", y, spread(constant(numbers(outs + 1, (outs,))), y.shape))


def agree(before: Graph, after: Graph) -> None:
    feeds = feeds_of(before, 0, special=False)
    want, got = values_of(before, feeds), values_of(after, feeds)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5 * np.abs(array).max())


def test_residual_network_runs_channels_last() -> None:
    x = pooled(relu(normalized(conv(IMAGE, 8, 3, 2))))
    y = relu(normalized(conv(x, 6, 1)))
    y = relu(normalized(conv(y, 6, 3, 2)))
    y = P("add", normalized(conv(y, 8, 1)), normalized(conv(x, 8, 1, 2)))
    flat = P("reshape", mean(excited(relu(y))), shape=(N, 8))
    graph = graph_of(linear(flat, 5))
    done = canonicalize(graph)
    agree(graph, done.graph)
    left = census(done.graph)
    assert left["transpose"] == 1  # of the input
    assert left["conv"] == 2
    assert left["matmul"] == 6
    assert left["sub"] == left["div"] == 0
    assert done.fired["scale_linear"] == 10  # two per batch normalisation
    assert left["add"] == 9  # a bias each, and the residual


def test_softmax_concat_and_resize_run_channels_last() -> None:
    x = relu(conv(IMAGE, 4, 3, 2))
    y = relu(conv(x, 6, 3, 2, groups=2))
    shape = (*x.shape[:2], 8, 8)
    even = P("slice", x, starts=(0,) * 4, steps=(1,) * 4, shape=(N, 4, 4, 4))
    small = P("slice", y, starts=(0,) * 4, steps=(1,) * 4, shape=(N, 6, 2, 2))
    z = conv(softmax(P("concat", even, upsampled(small), axis=1), 1), 5)
    assert shape[1] == 4
    graph = graph_of(z)
    done = canonicalize(graph).graph
    agree(graph, done)
    kinds = census(done)
    assert kinds["transpose"] == 2  # of the input and of the output
    assert done.outputs[0][1].name == "transpose"


def test_tokens_from_an_image_need_no_transpose() -> None:
    x = conv(IMAGE, 6)
    tokens = P("transpose", P("reshape", x, shape=(N, 6, H * W)), perm=(0, 2, 1))
    y = relu(linear(relu(linear(tokens, 10)), 6))
    image = P("reshape", P("transpose", y, perm=(0, 2, 1)), shape=(N, 6, H, W))
    graph = graph_of(conv(image, 4, 3))
    done = canonicalize(graph).graph
    agree(graph, done)
    assert census(done)["transpose"] == 2
    assert all(n.type.rank == 2 for n in done.nodes() if n.name in ("matmul", "max"))


def test_attention_keeps_its_batched_products() -> None:
    x = source([N, W, 6], "x")

    def heads(y: Node) -> Node:
        return P("transpose", P("reshape", y, shape=(N, W, 2, 3)), perm=(0, 2, 1, 3))

    q, k, v = (heads(linear(x, 6)) for _ in range(3))
    scores = P("matmul", q, P("transpose", k, perm=(0, 1, 3, 2)))
    y = P("matmul", softmax(scores, 3), v)
    y = P("reshape", P("transpose", y, perm=(0, 2, 1, 3)), shape=(N, W, 6))
    graph = graph_of(P("add", linear(y, 6), x))
    done = canonicalize(graph).graph
    agree(graph, done)
    ranks = Counter(n.type.rank for n in done.nodes() if n.name == "matmul")
    assert ranks == {2: 2, 4: 2}  # equal projections are one node here


def _models() -> list[Path]:
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    folders = spec.submodule_search_locations if spec else None
    return sorted(Path(folders[0]).glob("models/*cls*.onnx")) if folders else []


@pytest.mark.skipif(not _models(), reason="the models of the demo are not installed")
def test_a_trained_network_keeps_its_value() -> None:
    graph = fission(read_model(_models()[0]))
    done = canonicalize(graph)
    assert census(done.graph)["transpose"] == 1
    assert canonicalize(done.graph).fired == {}
    (image,) = graph.inputs
    pairs = zip(image.shape, (1, 3, 48, 32), strict=True)
    named = {s.name: n for d, n in pairs for s in symbols(d)}
    values = np.random.default_rng(0).standard_normal((1, 3, 48, 32)).astype(np.float32)
    feeds = {image.attr("name"): values}
    (want,) = evaluate(graph, feeds, named).values()
    (got,) = evaluate(done.graph, feeds, named).values()
    np.testing.assert_allclose(got, want, atol=1e-5)
