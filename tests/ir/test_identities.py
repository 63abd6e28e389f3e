"""Every scalar operator on every type, with each awkward constant on either side: no identity changes a value.

In: all rows of the scalar table. Out: equal values, the sign of zero included, before and after the canonical form of
kernels (`Space`), the simplification of loop programs, and the rewrite rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fissile.ir import loop as L
from fissile.ir.affine import Space
from fissile.ir.dtype import BOOL, DTYPES, INT8, INT32, INT64, UINT8, UINT64, DType
from fissile.ir.graph import Graph, Node, evaluate, make
from fissile.ir.interpret import interpret
from fissile.ir.primitive import BROADCAST, PRIMITIVES, constant, scalar
from fissile.ir.scalar import SCALAR_OPS, ScalarOp
from fissile.ir.simplify import simplify
from fissile.rewrite import canonicalize

COMPUTE = [d for d in DTYPES if d.compute is d]
I = L.var("i")  # noqa: E741


def awkward(of: DType) -> list[Any]:
    """Neutral and absorbing elements, the ends of the range, and what floats have besides."""
    if of is BOOL:
        return [False, True]
    if of.is_float:
        small = [0.0, -0.0, 1.0, -1.0, 2.0, 3.0, -1.5, 0.5, 1e-30]
        return [*small, 1e30, np.inf, -np.inf, np.nan]
    info = np.iinfo(of.numpy)
    whole = [0, 1, 2, 3, 7, 8, of.bits - 1, info.max, info.max - 1]
    return [*whole, -1, -2, -3, -8, info.min, info.min + 1] if of.kind == "i" else whole


def values(of: DType) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.array(awkward(of), of.numpy)


def assert_same(got: np.ndarray, want: np.ndarray, what: str) -> None:
    np.testing.assert_array_equal(got, want, what)
    if want.dtype.kind == "f":
        known = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(want[known]), what)


# ---------------------------------------------------------------- expressions


def _value(e: L.Expr, x: L.Buffer, data: np.ndarray) -> np.ndarray:
    out = L.buffer("z", e.dtype, (len(data),))
    body = L.For(I, L.const(len(data)), L.Store(out, (I,), e))
    found = np.zeros(len(data), e.dtype.numpy)
    interpret(L.Function("f", (x, out), body), {"x": data, "z": found})
    return found


def _applied(row: ScalarOp, of: DType, x: L.Expr) -> Iterator[L.Expr]:
    pool = [x, *(L.const(c, of) for c in awkward(of))]
    if row.name == "select":
        for c in (L.const(False, BOOL), L.const(True, BOOL), L.op("eq", x, pool[1])):
            yield from (L.op("select", c, a, b) for a, b in itertools.product(pool[:3], repeat=2))
        return
    for args in itertools.product(pool[: 4 if row.arity == 3 else None], repeat=row.arity):
        if x in args:
            yield L.op(row.name, *args)


def _canonical(e: L.Expr, count: int) -> L.Expr:
    space = Space()
    space.ranges[I] = count
    return space.finisher(lambda d: L.const(int(str(d))))(space.canonical(e))


@pytest.mark.parametrize("of", COMPUTE, ids=repr)
def test_expressions(of: DType) -> None:
    data = values(of)
    x = L.buffer("x", of, (len(data),))
    for row in SCALAR_OPS.values():
        for e in _applied(row, of, L.Load(x, (I,))) if of.kind in row.kinds else ():
            want = _value(e, x, data)
            for made in (_canonical(e, len(data)), simplify(e, {I: L.const(len(data))})):
                if made is not e:
                    assert_same(_value(made, x, data), want, f"{e} became {made}")


_NESTED = [n for n, row in SCALAR_OPS.items() if row.arity <= 2 and "pow" not in n]


@pytest.mark.parametrize("of", [INT64, INT32, INT8, UINT8, UINT64], ids=repr)
def test_integers_wrap_around(of: DType) -> None:
    """What kernels make of arithmetic with elements: no sum is taken to be larger than its parts."""
    data = values(of)
    x = L.buffer("x", of, (len(data),))
    names = [n for n in _NESTED if of.kind in SCALAR_OPS[n].kinds and "shift" not in n]
    inner = [n for n in names if SCALAR_OPS[n].result((of, of)) is of]

    def applied(name: str, *args: L.Expr) -> L.Expr:
        return L.op(name, *args[: SCALAR_OPS[name].arity])

    leaves: st.SearchStrategy[L.Expr] = st.sampled_from(
        [L.Load(x, (I,)), *(L.const(c, of) for c in awkward(of))]
    )
    drawn: st.SearchStrategy[L.Expr] = st.recursive(
        leaves, lambda e: st.builds(applied, st.sampled_from(inner), e, e), max_leaves=5
    )

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(st.builds(applied, st.sampled_from(names), drawn, drawn))
    def check(e: L.Expr) -> None:
        assert_same(_value(_canonical(e, len(data)), x, data), _value(e, x, data), str(e))

    check()


# ---------------------------------------------------------------- rules


def _outputs(of: DType, x: Node) -> Iterator[tuple[str, Node]]:
    def everywhere(value: Any, kind: DType = of) -> Node:
        return make(BROADCAST, scalar(value, kind), shape=x.shape)

    for name, row in SCALAR_OPS.items():
        primitive = PRIMITIVES.get(name)
        if of.kind not in row.kinds or primitive is None:
            continue
        if row.arity == 1:
            once = make(primitive, x)
            yield name, make(primitive, once) if once.dtype is of else once
        elif row.arity == 2:
            yield f"{name} of the same", make(primitive, x, x)
            for value in awkward(of):
                yield f"{name} and {value}", make(primitive, x, everywhere(value))
                yield f"{name} of {value}", make(primitive, everywhere(value), x)
        else:
            for known in (False, True):
                condition = everywhere(known, BOOL)
                yield f"{name} {known}", make(primitive, condition, x, everywhere(1))


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("of", COMPUTE, ids=repr)
def test_rules(of: DType) -> None:
    data = values(of)
    x = make(PRIMITIVES["input"], name="x", dtype=of.name, shape=(len(data),))
    graph = Graph((x,), tuple(_outputs(of, x)))
    want = evaluate(graph, {"x": data}, {})
    got = evaluate(canonicalize(graph).graph, {"x": data}, {})
    for name, array in want.items():
        if "pow" in name:  # products instead of a power: right in more digits
            np.testing.assert_allclose(got[name], array, 1e-6, 1e-30, err_msg=name)
        elif name.startswith(("min", "max")):  # of 0 and -0 either is right
            np.testing.assert_array_equal(got[name], array, name)
        else:
            assert_same(got[name], array, name)


def test_a_constant_keeps_its_bits() -> None:
    """A sum of two constants of int64 wraps, as the elements it is added to do."""
    most = np.iinfo(np.int64).max
    x = make(PRIMITIVES["input"], name="x", dtype="int64", shape=(2,))
    c = make(BROADCAST, constant(np.array(most)), shape=(2,))
    add = PRIMITIVES["add"]
    graph = Graph((x,), (("y", make(add, make(add, x, c), c)),))
    feeds = {"x": np.array([0, most])}
    want = evaluate(graph, feeds, {})["y"]
    np.testing.assert_array_equal(evaluate(canonicalize(graph).graph, feeds, {})["y"], want)
