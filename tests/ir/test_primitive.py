"""Every primitive's compute definition gives, element by element, what its numpy meaning gives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fissile.ir import loop as L
from fissile.ir.dim import DimLike, symbol
from fissile.ir.dim import evaluate as number
from fissile.ir.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT8, INT32, INT64, UINT8, DType
from fissile.ir.graph import Node, bind, data, make
from fissile.ir.interpret import run_expr
from fissile.ir.primitive import (
    PRIMITIVES,
    cast,
    constant,
    identity,
    reshape_groups,
    scalar,
)
from fissile.ir.scalar import SCALAR_OPS, from_bfloat16, to_bfloat16

H = symbol("h")
SYMBOLS = {"h": 3, "w": 1}
WILD = 77  # what a read outside of its tensor gives here: no definition may let it through


def P(primitive: str, /, *inputs: Node, **attrs: Any) -> Node:
    return make(PRIMITIVES[primitive], *inputs, **attrs)


def source(shape: tuple[DimLike, ...], of: DType = FLOAT32, name: str = "x") -> Node:
    return P("input", name=name, dtype=of.name, shape=shape)


def array(node: Node, seed: int = 0) -> np.ndarray:
    shape = bind(node.shape, SYMBOLS)
    drawn = np.random.default_rng(seed).integers(-9, 10, shape)
    return np.asarray(drawn, node.dtype.numpy)


def meaning(node: Node, inputs: list[np.ndarray]) -> np.ndarray:
    attrs = {k: bind(v, SYMBOLS) for k, v in node.attrs}
    return np.asarray(node.primitive.reference(*inputs, **attrs))


def extent(dim: DimLike) -> L.Expr:
    return L.const(number(dim, SYMBOLS))


def defined(node: Node, inputs: list[np.ndarray]) -> np.ndarray:
    """The node's value computed one output index at a time by its definition."""
    shape = bind(node.shape, SYMBOLS)
    reduced = node.primitive.reduced(node) if node.primitive.reduced else ()
    ranges = [range(number(d, SYMBOLS)) for d in reduced]
    combine = node.primitive.combine
    result = np.zeros(shape, node.dtype.compute.numpy)
    for at in np.ndindex(*shape):
        terms = [element(node, inputs, at, inner) for inner in itertools.product(*ranges)]
        if not combine:
            result[at] = terms[0]
            continue
        total = np.array(identity(combine, node.dtype), node.dtype.numpy)
        for term in terms:
            total = SCALAR_OPS[combine].meaning(total, np.array(term, node.dtype.numpy))
        result[at] = total
    return result


def element(node: Node, inputs: list[np.ndarray], at: Any, inner: Any) -> Any:
    def read(k: int, index: tuple[L.Expr, ...]) -> L.Expr:
        place = tuple(int(run_expr(i, {})) for i in index)
        of = node.inputs[k].dtype
        inside = all(0 <= p < n for p, n in zip(place, inputs[k].shape, strict=True))
        value = inputs[k][place] if inside else np.array(WILD, inputs[k].dtype)
        wide = from_bfloat16(np.asarray(value)) if of is BFLOAT16 else value
        return L.const(wide.item(), of.compute)

    assert node.primitive.define is not None
    outer = tuple(L.const(int(i)) for i in at)
    return run_expr(
        node.primitive.define(node, outer, tuple(map(L.const, inner)), read, extent), {}
    )


X = source((2, H, 4))
INSTANCES: dict[str, Callable[[], Node]] = {
    "iota": lambda: P("iota", dtype="int32", shape=(2, H), axis=1),
    "extents": lambda: P("extents", values=(H, 7, 2 * H), shape=(3,)),
    "extents of rank 0": lambda: P("extents", values=(H + 1,), shape=()),
    "cast": lambda: P("cast", X, source="float32", to="uint8"),
    "reduce_sum": lambda: P("reduce_sum", X, axes=(0, 2)),
    "reduce_prod": lambda: P("reduce_prod", X, axes=(1,)),
    "reduce_max": lambda: P("reduce_max", X, axes=(2,)),
    "reduce_min": lambda: P("reduce_min", X, axes=(0, 1, 2)),
    "broadcast": lambda: P("broadcast", source((H, 1)), shape=(2, H, 4)),
    "broadcast unknown": lambda: P("broadcast", source((symbol("w"), 2)), shape=(H, 2)),
    "window": lambda: P(
        "window", source((2, 7, 5)), axes=(1, 2), sizes=(3, 2), strides=(2, 1), dilations=(1, 3)
    ),
    "reshape": lambda: P("reshape", X, shape=(2, 2 * H, 2)),
    "reshape units": lambda: P("reshape", source((1, 6, 1)), shape=(2, 1, 3)),
    "transpose": lambda: P("transpose", X, perm=(2, 0, 1)),
    "slice": lambda: P("slice", X, starts=(1, 0, 3), steps=(1, 1, -2), shape=(1, H, 2)),
    "concat": lambda: P("concat", X, source((2, 1, 4), name="y"), X, axis=1),
    "pad": lambda: P("pad", X, low=(0, 1, 2), high=(1, 0, H), value=data(np.array(5, np.float32))),
    "dilate": lambda: P("dilate", X, factors=(3, 1, 2)),
    "gather": lambda: P("gather", X, source((2, 3), INT64, "i"), axis=2),
    "matmul": lambda: P("matmul", X, source((2, 4, 3), name="y")),
    "conv": lambda: P(
        "conv",
        source((2, 5, 4, 4)),
        source((2, 3, 2, 6), name="y"),
        strides=(2, 1),
        dilations=(1, 1),
        groups=2,
    ),
    "depthwise conv": lambda: P(
        "conv",
        source((1, 5, 3)),
        source((2, 1, 3), name="y"),
        strides=(1,),
        dilations=(2,),
        groups=3,
    ),
}


@pytest.mark.parametrize("name", INSTANCES)
def test_definition(name: str) -> None:
    node = INSTANCES[name]()
    inputs = [array(i, k) for k, i in enumerate(node.inputs)]
    want = meaning(node, inputs)
    assert want.shape == bind(node.shape, SYMBOLS)
    np.testing.assert_allclose(defined(node, inputs), want, rtol=1e-6)


TYPES = {"f": FLOAT32, "i": INT32, "u": UINT8, "b": BOOL}
ELEMENTWISE = [
    (name, kind) for name, row in SCALAR_OPS.items() if name in PRIMITIVES for kind in row.kinds
]


@pytest.mark.parametrize(("name", "kind"), ELEMENTWISE)
def test_elementwise(name: str, kind: str) -> None:
    of = TYPES[kind]
    kinds = [of] * SCALAR_OPS[name].arity
    if name == "select":
        kinds[0] = BOOL
    inputs = [source((3,), t, f"x{k}") for k, t in enumerate(kinds)]
    node = P(name, *inputs)
    arrays = [np.abs(array(i, k)) % 7 for k, i in enumerate(inputs)]
    arrays = [a.astype(t.numpy) for a, t in zip(arrays, kinds, strict=True)]
    got, want = defined(node, arrays), meaning(node, arrays)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


def test_every_definition_has_an_instance() -> None:
    kinds = {name.split()[0] for name in INSTANCES} | {name for name, _ in ELEMENTWISE}
    lacking = [n for n, row in PRIMITIVES.items() if row.define is not None and n not in kinds]
    assert not lacking


@given(st.lists(st.sampled_from([1, 2, 3, 4, 6]), max_size=5), st.randoms())
@settings(max_examples=60, deadline=None)
def test_drawn_reshapes(shape: list[int], random: Any) -> None:
    factors = [f for d in shape for f in ((2, 2) if d == 4 else (2, 3) if d == 6 else (d,))]
    target: list[int] = []
    for factor in factors:
        if target and random.random() < 0.5:
            target[-1] *= factor
        else:
            target.append(factor)
    node = P("reshape", source(tuple(shape)), shape=tuple(target))
    value = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(defined(node, [value]), value.reshape(target))


def test_reshape_groups_are_the_finest() -> None:
    assert reshape_groups((2, H, 4), (2, 4 * H)) == [
        (range(0, 1), range(0, 1)),
        (range(1, 3), range(1, 2)),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: P("add", source((2,)), source((3,), name="y")),
        lambda: P("add", source((2,)), source((2,), INT32, "y")),
        lambda: P("sqrt", source((2,), INT32)),
        lambda: P("reshape", source((2,)), shape=(3,)),
        lambda: P("transpose", X, perm=(0, 0, 1)),
        lambda: P("matmul", source((2, 3)), source((4, 2), name="y")),
        lambda: P("broadcast", source((2,)), shape=(3,)),
        lambda: P("gather", X, source((2,), INT32, "i"), axis=0),
        lambda: P("reduce_sum", X, axes=(1, 0)),
        lambda: P("concat", X, source((3, H, 4), name="y"), axis=1),
    ],
)
def test_type_rules_refuse(wrong: Callable[[], Node]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        wrong()


def test_bfloat16_rounds_to_nearest_even() -> None:
    values = np.array([1, 1.00390625, 1.01171875, -0.0, np.inf, -np.inf, 3.4e38], np.float32)
    back = from_bfloat16(to_bfloat16(values))
    np.testing.assert_array_equal(back, [1, 1, 1.015625, -0.0, np.inf, -np.inf, np.inf])
    assert np.isnan(from_bfloat16(to_bfloat16(np.array(np.nan, np.float32))))


@pytest.mark.parametrize("of", [FLOAT32, FLOAT16, INT8, UINT8, BOOL])
def test_cast_to_the_same_type_is_nothing(of: DType) -> None:
    node = source((2,), of)
    assert cast(node, of) is node


def test_windows_that_do_not_fit_are_empty() -> None:
    node = P("window", source((2,)), axes=(0,), sizes=(3,), strides=(1,), dilations=(1,))
    assert node.shape == (0, 3)
    assert meaning(node, [np.ones(2, np.float32)]).shape == (0, 3)


def test_equal_constants_are_one_node() -> None:
    ones = np.ones((2, 3), np.float32)
    assert constant(ones) is constant(ones.copy())
    assert constant(ones) is not constant(ones.reshape(3, 2))
    assert scalar(1, FLOAT32) is not scalar(1, INT32)
