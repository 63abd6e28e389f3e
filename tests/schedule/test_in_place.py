"""Left operands that are read where they are: which ones, and that they mean the same at awkward extents."""

from __future__ import annotations

import numpy as np
import pytest

from fissile.ir import loop as L
from fissile.ir.dim import DimLike, symbol
from fissile.ir.dtype import FLOAT16, FLOAT32
from fissile.ir.graph import Graph, Node, data
from fissile.ir.primitive import cast, constant, pack
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.identify import Region, identify
from fissile.orchestrate.plan import Anchor, Kernel
from fissile.schedule.lower import lower
from fissile.target import named
from tests.e2e.draw import values_of
from tests.schedule.joined import agrees
from tests.schedule.test_kernels import given, graph_of, prim

N = symbol("n")
ZERO = np.array(0, np.float32)


def weights(*shape: int) -> Node:
    return constant(values_of(np.random.default_rng(3), FLOAT32, shape, "whole"))


def matrix(m: DimLike, k: int, columns: int) -> Graph:
    return graph_of(prim("matmul", given("x", m, k), weights(k, columns)))


def windows(
    image: tuple[DimLike, DimLike, DimLike, int], taps: tuple[int, int], columns: int,
    stride: int = 1, dilation: int = 1, groups: int = 1, pad: int = 0,
) -> Graph:  # fmt: skip
    x = given("x", *image)
    if pad:
        x = prim("pad", x, low=(0, pad, pad, 0), high=(0, pad, pad, 0), value=data(ZERO))
    right = weights(*taps, image[3] // groups, columns)
    steps = {"strides": (stride, stride), "dilations": (dilation, dilation)}
    return graph_of(prim("conv", x, right, groups=groups, **steps))


def left(graph: Graph) -> str:
    """How the only product reads its rows: where they are, from a list of their starts, or from a copy."""
    (kernel,) = (k for k in greedy_plan(graph).kernels() if k.anchor is Anchor.LINEAR)
    return rows_of(kernel)


def rows_of(kernel: Kernel) -> str:
    """How a kernel reads the rows of its product."""
    function = lower(kernel, named("x86-64-v3")).function
    memory = {s.buffer.name for s in L.statements(function.body) if isinstance(s, L.Alloc)}
    return "copy" if "left" in memory else "starts" if "starts" in memory else "place"


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(
    ("m", "k", "columns"), [(1, 5, 9), (7, 1, 17), (101, 3, 5), (14, 33, 40), (96, 530, 20)]
)
def test_rows_of_a_matrix(m: int, k: int, columns: int, target: str) -> None:
    graph = matrix(m, k, columns)
    assert left(graph) == "place"
    agrees(graph, greedy_plan(graph), target, loops=m * k * columns < 30000)


@pytest.mark.parametrize("n", [0, 1, 13, 110])
def test_rows_of_any_number(n: int) -> None:
    graph = matrix(N, 6, 19)
    assert left(graph) == "place"
    agrees(graph, greedy_plan(graph), "x86-64-v3", n=n)


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(
    ("image", "taps", "columns", "stride", "dilation", "groups"),
    [
        ((1, 9, 11, 3), (3, 3), 17, 1, 1, 1),
        ((2, 8, 7, 5), (1, 1), 9, 2, 1, 1),
        ((2, 8, 7, 5), (2, 3), 33, 2, 1, 1),
        ((1, 7, 12, 1), (5, 4), 6, 1, 1, 1),
        ((1, 9, 9, 4), (1, 3), 16, 1, 1, 1),
        ((1, 9, 9, 4), (3, 1), 16, 1, 2, 1),
        ((1, 20, 21, 12), (3, 3), 16, 1, 1, 1),
    ],
)
def test_windows_that_are_nowhere_padded(
    image: tuple[int, int, int, int], taps: tuple[int, int], columns: int, stride: int,
    dilation: int, groups: int, target: str,
) -> None:  # fmt: skip
    graph = windows(image, taps, columns, stride, dilation, groups)
    assert left(graph) != "copy"
    agrees(graph, greedy_plan(graph), target)


@pytest.mark.parametrize(("n", "h"), [(0, 3), (1, 3), (2, 16)])
def test_windows_of_free_images(n: int, h: int) -> None:
    graph = windows((N, symbol("h"), 8, 5), (3, 3), 18)
    assert left(graph) == "starts"
    agrees(graph, greedy_plan(graph), "x86-64-v4", n=n, h=h)


def test_what_is_padded_converted_or_too_even_is_copied() -> None:
    assert left(windows((1, 8, 8, 3), (3, 3), 16, pad=1)) == "copy"
    assert left(windows((1, 16, 16, 7), (3, 3), 16, dilation=2)) == "copy"  # three strides
    assert left(windows((1, 9, 9, 96), (3, 3), 16)) == "copy"  # runs and blocks of k
    wide = cast(given("x", 20, 8, of=FLOAT16), FLOAT32)
    right = pack(weights(8, 16), batch=0)
    product = prim("matmul", wide, right)
    converted = identify(Region((wide, product), (product,), frozenset()))
    assert isinstance(converted, Kernel)
    assert rows_of(converted) == "copy"
    assert left(matrix(20, 512, 40)) == "copy"
    assert left(matrix(20, 516, 40)) == "place"
