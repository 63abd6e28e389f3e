"""The least a kernel does: bytes of what it reads and writes, and operations of its primitives."""

import numpy as np

from fissile.ir.dim import symbol
from fissile.ir.graph import Graph, Node, make
from fissile.ir.primitive import INPUT, PRIMITIVES, constant
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.roofline import MANY, work


def p(name: str, *inputs: Node, **attrs: object) -> Node:
    return make(PRIMITIVES[name], *inputs, **attrs)


def leaf(*shape: object, dtype: str = "float32") -> Node:
    return make(INPUT, name=f"x{len(shape)}{dtype}", dtype=dtype, shape=shape)


def total(*outputs: Node) -> tuple[object, object, object]:
    leaves = [n for n in Graph((), tuple(enumerate(outputs))).nodes() if n.name == "input"]  # type: ignore[arg-type]
    graph = Graph(tuple(leaves), tuple((f"y{k}", n) for k, n in enumerate(outputs)))
    rows = [work(kernel) for kernel in greedy_plan(graph).kernels()]
    return (
        sum(r.constants for r in rows),
        sum(r.bytes for r in rows),
        sum(r.operations for r in rows),
    )


def test_a_product_by_a_constant() -> None:
    n = symbol("n")
    x, w = leaf(n, 48), constant(np.ones((48, 32), np.float32))
    assert total(p("matmul", x, w)) == (48 * 32 * 4, n * (48 + 32) * 4, n * 48 * 32 * 2)


def test_functions_count_as_their_polynomials() -> None:
    x = leaf(3, 5)
    assert total(p("exp", x)) == (0, 2 * 60, 15 * MANY)
    wide = leaf(3, 5, dtype="float64")
    assert total(p("neg", wide)) == (0, 2 * 120, 15 * 2)
    whole = leaf(3, 5, dtype="int64")
    assert total(p("neg", whole)) == (0, 2 * 120, 0)


def test_a_gathered_table_is_not_read_as_a_whole() -> None:
    table, indices = leaf(1000, 16), leaf(7, dtype="int64")
    assert total(p("gather", table, indices, axis=0)) == (0, 7 * 8 + 2 * 7 * 16 * 4, 0)
    many = leaf(5000, dtype="int64")
    assert total(p("gather", table, many, axis=0))[1] == 5000 * 8 + 1000 * 64 + 5000 * 64
