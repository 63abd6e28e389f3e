"""Every lowering against the numpy meaning, in the interpreter of loop programs, at awkward extents.

The machine code of the same programs is tested by tests/e2e. Each named test keeps a fault that was found there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from fissile.ir.dim import DimLike, symbol
from fissile.ir.dtype import FLOAT32, UINT8, DType
from fissile.ir.graph import Graph, Node, bind, data, evaluate, make
from fissile.ir.primitive import PRIMITIVES, constant
from fissile.orchestrate.plan import Anchor
from fissile.target import named
from tests.e2e.agree import interpreted
from tests.e2e.draw import values_of
from tests.e2e.machine import lowered

V3 = named("x86-64-v3")


def prim(name: str, *inputs: Node, **attrs: Any) -> Node:
    return make(PRIMITIVES[name], *inputs, **attrs)


def given(title: str, *shape: DimLike, of: DType = FLOAT32) -> Node:
    return make(PRIMITIVES["input"], name=title, dtype=of.name, shape=shape)


def graph_of(*outputs: Node) -> Graph:
    named_outputs = tuple((f"y{k}", n) for k, n in enumerate(outputs))
    found = Graph((), named_outputs)
    return Graph(tuple(n for n in found.nodes() if n.name == "input"), named_outputs)


def check(
    graph: Graph, filling: str = "whole", tolerance: float = 0, **symbols: int
) -> list[Anchor]:
    """The loop programs mean what the graph means; answers what its kernels are built around."""
    rng = np.random.default_rng(7)
    feeds: Mapping[str, np.ndarray] = {
        n.attr("name"): values_of(rng, n.dtype, bind(n.shape, symbols), filling)
        for n in graph.inputs
    }
    want = evaluate(graph, feeds, symbols)
    work = lowered(graph, V3)
    got = interpreted(work, feeds, symbols)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, tolerance, tolerance, equal_nan=True)
    return [k.anchor for k in work.known("plan").kernels()]


def kept(x: Node, reduced: Node) -> Node:
    """A reduction over the last axis spread over it again."""
    return prim("broadcast", prim("reshape", reduced, shape=(*x.shape[:-1], 1)), shape=x.shape)


def softmax(x: Node) -> Node:
    axes = (x.type.rank - 1,)
    e = prim("exp", prim("sub", x, kept(x, prim("reduce_max", x, axes=axes))))
    return prim("div", e, kept(e, prim("reduce_sum", e, axes=axes)))


N = symbol("n")


# ---------------------------------------------------------------- every lowering


@pytest.mark.parametrize("n", [0, 1, 5, 17])
@pytest.mark.parametrize("columns", [1, 3, 33])
def test_elementwise_over_several_outputs(n: int, columns: int) -> None:
    x, bias = given("x", N, columns), given("b", columns)
    total = prim("add", x, prim("broadcast", bias, shape=x.shape))
    found = check(graph_of(total, prim("mul", total, x)), n=n)
    assert set(found) == {Anchor.ELEMENTWISE}


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("columns", [1, 31, 32, 70])
def test_rows(n: int, columns: int) -> None:
    x = given("x", N, columns)
    assert Anchor.ROWS in check(graph_of(softmax(x)), "real", 1e-5, n=n)


@pytest.mark.parametrize("n", [1, 7, 40])
def test_rows_of_free_length(n: int) -> None:
    x = given("x", 3, N)
    check(graph_of(softmax(x), prim("reduce_sum", x, axes=(1,))), "real", 1e-5, n=n)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (0, 2), (0, 1, 2), ()])
@pytest.mark.parametrize("n", [0, 1, 4])
def test_reductions(axes: tuple[int, ...], n: int) -> None:
    x = given("x", 3, N, 5)
    check(graph_of(prim("reduce_sum", x, axes=axes), prim("reduce_max", x, axes=axes)), n=n)


@pytest.mark.parametrize("channels", [1, 5, 33])
def test_depthwise_convolution(channels: int) -> None:
    x = given("x", 1, N, 6, channels)
    w = constant(values_of(np.random.default_rng(1), FLOAT32, (3, 2, 1, channels), "whole"))
    out = prim("conv", x, w, groups=channels, strides=(2, 1), dilations=(1, 2))
    check(graph_of(prim("abs", out)), n=7)


@pytest.mark.parametrize("groups", [1, 2])
def test_padded_convolution(groups: int) -> None:
    x = given("x", 2, N, 5, 4)
    zero = data(np.array(0, np.float32))
    padded = prim("pad", x, low=(0, 1, 2, 0), high=(0, 1, 0, 0), value=zero)
    w = constant(values_of(np.random.default_rng(1), FLOAT32, (3, 3, 4 // groups, 6), "whole"))
    out = prim("conv", padded, w, groups=groups, strides=(1, 2), dilations=(1, 1))
    assert Anchor.LINEAR in check(graph_of(prim("neg", out)), n=4)


@pytest.mark.parametrize("axis", [0, 1])
def test_concat_in_pieces(axis: int) -> None:
    x, y = given("x", 2, 3), given("y", 2, 3)
    check(graph_of(prim("concat", x, prim("neg", y), x, axis=axis)))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", ["arg_max", "arg_min"])
def test_scans(name: str, last: bool) -> None:
    check(graph_of(prim(name, given("x", N, 9), axis=1, last=last)), n=5)


# ---------------------------------------------------------------- faults that were found


def test_the_last_nan_wins_when_the_last_index_is_asked_for() -> None:
    x = given("x", 9, 40)
    for last in (False, True):
        check(graph_of(prim("arg_min", x, axis=1, last=last)), "special")


def test_a_sum_of_nothing_is_stored() -> None:
    check(graph_of(prim("matmul", given("x", 3, N), given("y", N, 2))), n=0)
    check(graph_of(prim("matmul", given("x", 3, 0), given("y", 0, 2))))


def test_no_rows_of_a_product() -> None:
    check(graph_of(prim("matmul", given("x", N, 4), given("y", 4, 2))), n=0)


def test_indices_into_empty_tensors_divide_by_nothing() -> None:
    x = given("x", 5, N, 2)
    none = prim("slice", x, starts=(0, 0, 1), steps=(3, 2, -1), shape=(2, (N + 1) // 2, 0))
    check(graph_of(none), n=3)


def test_groups_of_one_output_read_through_no_column() -> None:
    x, w = given("x", 2, 5, 6), given("w", 1, 2, 3)
    check(graph_of(prim("conv", x, w, groups=3, strides=(1,), dilations=(1,))))


def test_a_small_type_reduced_over_strides() -> None:
    x = given("x", 3, 5, 2, of=UINT8)
    check(graph_of(prim("reduce_min", x, axes=(0, 2)), prim("reduce_min", x, axes=(0, 1, 2))))


@pytest.mark.parametrize(("m", "n"), [(1, 5), (5, 5), (1, 0), (1, 1)])
def test_an_extent_that_is_one_or_the_whole(m: int, n: int) -> None:
    """Which of the two is known only at run time."""
    x, y = given("x", symbol("m"), 3), given("y", symbol("n"), 3)
    wide = prim("broadcast", x, shape=y.shape)
    check(graph_of(prim("add", wide, y), prim("reduce_sum", wide, axes=(0,))), m=m, n=n)
    product = prim("matmul", wide, given("z", 3, 4))
    check(graph_of(product), m=m, n=n)


def test_constants_inputs_and_repeated_tensors_as_outputs() -> None:
    x = given("x", 2, 3)
    table = constant(np.arange(6, dtype=np.float32).reshape(2, 3))
    one = constant(np.array(2, np.float32))
    total = prim("add", x, table)
    check(graph_of(x, table, one, total, total, prim("transpose", total, perm=(1, 0))))


@pytest.mark.parametrize("n", [0, 1, 3])
def test_depth_of_several_blocks(n: int) -> None:
    """Partial sums are kept between blocks of the depth, at ragged rows and columns."""
    x, y = given("x", N, 530), given("y", 530, 3)
    check(graph_of(prim("abs", prim("matmul", x, y))), n=n)


@pytest.mark.parametrize("high", [0, 2])
def test_windows_of_a_reshaped_tensor_of_one_channel(high: int) -> None:
    """The unit axis has no index in the address, so a run may not step along it."""
    x = prim("reshape", given("x", 1, 5, 3), shape=(1, 15, 1))
    zero = data(np.array(0, np.float32))
    padded = prim("pad", x, low=(0, 0, 0), high=(0, high, 0), value=zero)
    w = given("w", 3, 1, 2)
    for source in (x, padded):
        check(graph_of(prim("conv", source, w, groups=1, strides=(2,), dilations=(1,))))


@pytest.mark.parametrize(("n", "columns"), [(0, 1), (1, 3), (13, 4)])
def test_few_columns_are_summed_lane_by_lane(n: int, columns: int) -> None:
    """A constant operand of few columns runs along its depth, which is no whole number of vectors."""
    weights = values_of(np.random.default_rng(2), FLOAT32, (3, 3, 29, columns), "whole")
    zero = data(np.array(0, np.float32))
    x = prim("pad", given("x", 1, N, 4, 29), low=(0, 1, 1, 0), high=(0, 1, 1, 0), value=zero)
    out = prim("conv", x, constant(weights), groups=1, strides=(1, 1), dilations=(1, 1))
    check(graph_of(prim("abs", out)), n=n)
    y = prim("matmul", given("y", N, 261), constant(weights.reshape(261, columns)))
    check(graph_of(y), n=n)


@pytest.mark.parametrize("shape", [(3, 261, 2), (2, 3, 300, 4), (13, 32, 3), (2, 256, 1)])
@pytest.mark.parametrize("n", [0, 1, 5])
def test_few_columns_of_each_matrix_of_a_batch(shape: tuple[int, ...], n: int) -> None:
    """Every matrix of a batch of constants is multiplied with its own rows."""
    weights = values_of(np.random.default_rng(3), FLOAT32, shape, "whole")
    x = given("x", *shape[:-2], N, shape[-2])
    check(graph_of(prim("abs", prim("matmul", x, constant(weights)))), n=n)
