"""A table that a product reads, too, is stored once: rows are gathered from the product's panels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import fissile
from fissile.ir.dim import symbol
from fissile.ir.dtype import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT64, DType
from fissile.ir.graph import Graph, Node
from fissile.ir.primitive import cast, constant
from fissile.ir.scalar import from_bfloat16, to_bfloat16
from fissile.orchestrate import formats
from fissile.orchestrate.plan import Anchor
from tests.e2e import machine
from tests.e2e.agree import assert_agree
from tests.e2e.draw import Case
from tests.schedule.test_kernels import V3, given, graph_of, prim

B, S = symbol("b"), symbol("s")


@pytest.fixture
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "TABLE_BYTES", 0)


def table(rows: int, columns: int, of: DType = FLOAT32) -> np.ndarray:
    """Small whole numbers."""
    drawn = np.random.default_rng(rows * 31 + columns).integers(-3, 4, (rows, columns))
    return to_bfloat16(drawn.astype(np.float32)) if of is BFLOAT16 else drawn.astype(of.numpy)


def tied(held: np.ndarray, of: DType, turned: bool, more: bool = False, off: bool = False) -> Graph:
    """y = f(table[indices]) . table^T, or along columns with the table as it is (not `turned`).

    more: the sum of the table is an output. off: one bit of the product's copy is another.
    """
    other = held.copy()
    if off:
        bits = other.view(f"u{other.itemsize}")
        bits[-1, -1] ^= 1
    wide = from_bfloat16(other) if of is BFLOAT16 else other.astype(of.compute.numpy)
    right = constant(np.ascontiguousarray(wide.T) if turned else wide, of.compute)
    source = constant(held, of)
    indices = given("i", B, S, of=INT64)
    picked = prim("gather", source, indices, axis=0 if turned else 1)
    if not turned:
        picked = prim("transpose", picked, perm=(1, 2, 0))
    left = prim("abs", cast(picked, of.compute))
    flat = prim("reshape", left, shape=(B * S, left.shape[-1]))
    outputs = [prim("matmul", flat, right), picked]
    if more:
        outputs.append(prim("reduce_sum", source, axes=(1,), keepdims=False))
    return graph_of(*outputs)


def kept(graph: Graph) -> list[Node]:
    """The constants that are stored, larger than one element."""
    work = machine.lowered(graph, V3)
    return [node for node, _ in work.known("weights") if node.type.rank == 2]


SHAPES = [(37, 5), (16, 16), (5, 37), (1, 7), (33, 1), (100, 17)]


@pytest.mark.usefixtures("_any_size")
@pytest.mark.parametrize("turned", [True, False], ids=["transposed", "as it is"])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_gathered_from_panels(shape: tuple[int, int], turned: bool) -> None:
    graph = tied(table(*shape), FLOAT32, turned)
    (node,) = kept(graph)
    assert node.name == "pack"
    extents = ({"b": 2, "s": 3}, {"b": 1, "s": 1}, {"b": 0, "s": 3}, {"b": 5, "s": 7})
    assert_agree(Case(graph, extents, 3, "whole", False), [V3])


def rows_of(picked: Node) -> Node:
    """Each row less its sum: a kernel over rows."""
    total = prim("reduce_sum", picked, axes=(2,))
    wide = prim("broadcast", prim("reshape", total, shape=(B, S, 1)), shape=picked.shape)
    return prim("sub", picked, wide)


AROUND: dict[str, Callable[[Node], Node]] = {
    "nothing": lambda x: x,
    "rows": rows_of,
    "twice": lambda x: prim("mul", x, x),
    "turned": lambda x: prim("transpose", prim("exp", prim("transpose", x, perm=(2, 1, 0))), perm=(2, 1, 0)),
    "slice": lambda x: prim("slice", x, starts=(0, 0, 0), steps=(1, 1, 1), shape=x.shape),
}


@pytest.mark.usefixtures("_any_size")
@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("shape", [(37, 5), (20, 33)])
def test_what_is_around_the_gather(shape: tuple[int, int], name: str) -> None:
    held = table(*shape)
    picked = prim("gather", constant(held), given("i", B, S, of=INT64), axis=0)
    flat = prim("reshape", AROUND[name](picked), shape=(B * S, shape[1]))
    graph = graph_of(prim("matmul", flat, constant(np.ascontiguousarray(held.T))))
    assert [node.name for node in kept(graph)] == ["pack"]
    assert_agree(Case(graph, ({"b": 2, "s": 3}, {"b": 1, "s": 19}), 3, "whole", False), [V3])


@pytest.mark.usefixtures("_any_size")
@pytest.mark.parametrize("of", [FLOAT16, BFLOAT16, FLOAT64], ids=str)
def test_other_types(of: DType) -> None:
    graph = tied(table(35, 18, of), of, True)
    assert [node.name for node in kept(graph)] == ["pack"]
    assert_agree(Case(graph, ({"b": 2, "s": 3},), 3, "whole", False), [V3])


@pytest.mark.usefixtures("_any_size")
def test_a_table_with_other_readers_is_stored_as_it_is_too() -> None:
    assert len(kept(tied(table(37, 5), FLOAT32, True, more=True))) == 2


@pytest.mark.usefixtures("_any_size")
def test_every_bit_counts() -> None:
    held = table(37, 5)
    held[3, 3] = np.nan
    assert len(kept(tied(held, FLOAT32, True))) == 1
    assert len(kept(tied(held, FLOAT32, True, off=True))) == 2


def test_small_tables_stay() -> None:
    assert len(kept(tied(table(37, 5), FLOAT32, True))) == 2


def test_the_product_keeps_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    for least in (0, 1 << 60):
        monkeypatch.setattr(formats, "TABLE_BYTES", least)
        work = machine.lowered(tied(table(37, 5), FLOAT32, True), V3)
        kernels = zip(work.known("plan").kernels(), work.loops[0].lowered, strict=True)
        products = [row.function.body for k, (_, row) in kernels if k.anchor is Anchor.LINEAR]
        assert len(products) == 1
        texts.append(str(products))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("apart", [False, True], ids=["one initializer", "two initializers"])
def test_an_artifact_has_tied_embeddings_once(apart: bool) -> None:
    draw = np.random.default_rng(0)
    w = (draw.standard_normal((5003, 96)) / 8).astype(np.float32)
    m = (draw.standard_normal((96, 96)) / 8).astype(np.float32)
    node = helper.make_node
    nodes = [
        node("Gather", ["w", "ids"], ["e"]), node("Tanh", ["e"], ["t"]), node("MatMul", ["t", "m"], ["h"]),
        node("Tanh", ["h"], ["u"]), node("MatMul", ["u", "v"], ["y"]),
    ]  # fmt: skip
    held = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(m, "m")]
    if apart:
        held.append(numpy_helper.from_array(np.ascontiguousarray(w.T), "v"))
    else:
        nodes.insert(0, node("Transpose", ["w"], ["v"], perm=[1, 0]))
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["b", "s"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [ids], [y], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    executable = fissile.compile(model, threads=1, cache=False)
    assert w.nbytes < executable.memory().weights < 1.05 * w.nbytes
    for shape in ((1, 1), (3, 7), (2, 0)):
        drawn = draw.integers(-5003, 5003, shape)
        wanted = np.tanh(np.tanh(w[drawn]) @ m) @ w.T
        assert np.allclose(executable.run({"ids": drawn})["y"], wanted, atol=1e-5)
