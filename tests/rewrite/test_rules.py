"""Every rule on drawn instances: it fires, keeps type and value, and says why when it does not apply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fissile.ir.dim import symbol
from fissile.ir.dtype import FLOAT32, FLOAT64, INT8, INT32, INT64, UINT8
from fissile.ir.graph import Graph, Node
from fissile.ir.primitive import cast, constant, scalar
from fissile.rewrite import RULES, canonicalize, refusals
from fissile.rewrite.engine import rewrite
from fissile.rewrite.shape import is_same_shape
from tests.rewrite.corpus import (
    INSTANCES,
    P,
    feeds_of,
    graph_of,
    numbers,
    source,
    values_of,
    zero_border,
)

SUMMED = (
    "reduce_of_broadcast",
    "sink_transpose_reduce",
    "sink_split_reduce",
    "power_to_mul",
    "tanh_of_softplus",
)
QUICK = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)


def is_exact(name: str) -> bool:
    return name not in SUMMED and not RULES[name].family.endswith("linear")


def agree(a: Graph, b: Graph, *, exact: bool, special: bool, seed: int = 0) -> None:
    feeds = feeds_of(a, seed, special)
    want, got = values_of(a, feeds), values_of(b, feeds)
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        if exact:
            np.testing.assert_array_equal(got[name], array)
        else:
            np.testing.assert_allclose(got[name], array, rtol=2e-6, atol=2e-6)


CANONICAL = sorted(n for n, r in RULES.items() if r.regime == "canonicalize")


def test_every_rule_has_an_instance() -> None:
    assert sorted(INSTANCES) == CANONICAL


@pytest.mark.parametrize("name", CANONICAL)
def test_fires_and_keeps_the_value(name: str) -> None:
    @QUICK
    @given(st.data(), st.integers(0, 99))
    def check(drawn: st.DataObject, seed: int) -> None:
        graph = graph_of(INSTANCES[name](drawn.draw))
        done = rewrite(graph, [RULES[name]])
        assert done.fired.get(name, 0) >= 1
        before, after = graph.outputs[0][1], done.graph.outputs[0][1]
        assert after.dtype is before.dtype
        assert is_same_shape(after.shape, before.shape)
        is_special = RULES[name].family.endswith(("algebra", "compose"))
        agree(graph, done.graph, exact=is_exact(name), special=is_special, seed=seed)

    check()


@pytest.mark.parametrize("name", CANONICAL)
def test_all_rules_together_end_and_keep_the_value(name: str) -> None:
    @settings(max_examples=5, deadline=None)
    @given(st.data())
    def check(drawn: st.DataObject) -> None:
        graph = graph_of(INSTANCES[name](drawn.draw))
        done = canonicalize(graph)
        assert canonicalize(done.graph).fired == {}
        agree(graph, done.graph, exact=False, special=False)

    check()


# ---------------------------------------------------------------- refusals

A, B = symbol("d4", 1), symbol("d5", 1)
X = source([2, 3, A])
Y = source([2, 3, A], "y")
T = P("transpose", X, perm=(2, 0, 1))
W = constant(numbers(0, (3, 4)))
LINEAR = P("matmul", source([5, 3]), W)


def _cut(x: Node, starts: tuple[Any, ...], shape: tuple[Any, ...], steps: Any = None) -> Node:
    return P("slice", x, starts=starts, steps=steps or (1,) * len(starts), shape=shape)


def _const(value: float, like: Node) -> Node:
    return P("broadcast", scalar(value, like.dtype), shape=like.shape)


def _vector(values: Any, like: Node) -> Node:
    return P("broadcast", constant(np.array(values, np.float32)), shape=like.shape)


def _shapes_known_late() -> Node:
    return P("iota", dtype="int64", shape=(A, 2), axis=0)


def _matmul(a: Node, b_shape: list[Any]) -> Node:
    return P("matmul", a, source(b_shape, "b"))


_PAIR = [source([2, A], "p"), source([2, B], "q")]
_JOIN = P("concat", *_PAIR, axis=1)
_SPLIT = P("reshape", source([A * B, 6]), shape=(A, B, 6))
_CONV = {"strides": (1,), "dilations": (1,)}

REFUSALS: list[tuple[str, str, Callable[[], Node]]] = [
    ("merge_transposes", "no transpose", lambda: T),
    ("transpose_to_reshape", "not provably 1", lambda: T),
    ("merge_reshapes", "no reshape", lambda: P("reshape", X, shape=(6, A))),
    ("drop_slice", "leaves something out", lambda: _cut(X, (0, 1, 0), (2, 2, A))),
    ("drop_slice", "step by 1", lambda: _cut(X, (0, 0, 0), (2, 3, A), (1, 1, -1))),
    ("merge_slices", "no slice", lambda: _cut(X, (0, 1, 0), (2, 2, A))),
    ("slice_of_concat", "no concat", lambda: _cut(X, (0, 1, 0), (2, 2, A))),
    ("slice_of_concat", "step", lambda: _cut(_JOIN, (0, A - 1), (2, A), (1, -1))),
    ("slice_of_concat", "no single piece", lambda: _cut(_JOIN, (0, 1), (2, A))),
    ("slice_of_broadcast", "no broadcast", lambda: _cut(X, (0, 1, 0), (2, 2, A))),
    (
        "slice_of_broadcast",
        "only a call knows",
        lambda: _cut(P("broadcast", source([A]), shape=(B,)), (0,), (1,)),
    ),
    ("slice_of_gather", "no gather", lambda: _cut(X, (0, 1, 0), (2, 2, A))),
    ("slice_of_pad", "no pad", lambda: _cut(X, (0, 1, 0), (2, 2, A))),
    (
        "slice_of_pad",
        "nothing but border",
        lambda: _cut(zero_border(X, (0, 2, 0), (0, 0, 0)), (0, 0, 0), (2, 1, A)),
    ),
    (
        "slice_of_pad",
        "not known",
        lambda: _cut(zero_border(X, (0, 0, 0), (0, 0, 2)), (0, 0, 3), (2, 3, 2)),
    ),
    ("slice_of_view", "no reshape", lambda: _cut(X, (0, 1, 0), (2, 2, A))),
    (
        "slice_of_view",
        "more than adding",
        lambda: _cut(P("reshape", X, shape=(6, A)), (0, 0), (1, A)),
    ),
    (
        "slice_of_view",
        "nothing is taken",
        lambda: _cut(P("reshape", X, shape=(1, 2, 3, A)), (0, 0, 0, 0), (0, 2, 3, A)),
    ),
    ("reduce_of_broadcast", "no broadcast", lambda: P("reduce_sum", X, axes=(2,))),
    (
        "reduce_of_broadcast",
        "only a call knows",
        lambda: P("reduce_sum", P("broadcast", source([A]), shape=(2, B)), axes=(1,)),
    ),
    (
        "reduce_of_broadcast",
        "not known",
        lambda: P("reduce_max", P("broadcast", source([1]), shape=(2, B)), axes=(1,)),
    ),
    (
        "reduce_of_broadcast",
        "one by one",
        lambda: P("reduce_sum", P("broadcast", source([1], of=INT32), shape=(2, 3)), axes=(1,)),
    ),
    (
        "reduce_of_broadcast",
        "narrow types",  # 300 is no int8
        lambda: P("reduce_sum", P("broadcast", source([1], of=INT8), shape=(2, 300)), axes=(1,)),
    ),
    ("drop_pad", "adds elements", lambda: zero_border(X, (0, 1, 0), (0, 0, 0))),
    ("merge_pads", "no pad", lambda: zero_border(X, (0, 1, 0), (0, 0, 0))),
    (
        "merge_pads",
        "different values",
        lambda: zero_border(zero_border(X, (0, 1, 0), (0, 0, 0), 1), (0, 1, 0), (0, 0, 0)),
    ),
    ("drop_dilate", "adds zeros", lambda: P("dilate", X, factors=(1, 2, 1))),
    ("drop_broadcast", "repeated", lambda: P("broadcast", X, shape=(4, 2, 3, A))),
    ("merge_broadcasts", "no broadcast", lambda: P("broadcast", X, shape=(4, 2, 3, A))),
    ("strip_broadcast", "no leading unit", lambda: P("broadcast", X, shape=(4, 2, 3, A))),
    ("drop_concat", "none of them provably empty", lambda: _JOIN),
    ("merge_concats", "along the same axis", lambda: P("concat", _JOIN, _JOIN, axis=0)),
    ("concat_of_slices", "neighbouring", lambda: P("concat", *_cuts_apart(), axis=1)),
    ("merge_casts", "no cast", lambda: cast(X, INT32)),
    ("merge_casts", "may change", lambda: cast(cast(X, INT32), FLOAT32)),
    (
        "merge_casts",
        "wrapped integer",
        lambda: cast(cast(source([3], of=INT32), FLOAT64), UINT8),
    ),
    ("drop_reduce", "not provably 1", lambda: P("reduce_sum", X, axes=(2,))),
    ("fold_constants", "operand 0 is not constant", lambda: P("exp", X)),
    ("fold_constants", "only in a call", _shapes_known_late),
    (
        "fold_constants",
        "bytes made of",
        lambda: P("iota", dtype="int64", shape=(1 << 20,), axis=0),
    ),
    ("constant_last", "not constant", lambda: P("add", X, Y)),
    ("hoist_broadcast", "varies", lambda: P("add", X, _const(1, X))),
    ("drop_neutral", "neutral", lambda: P("mul", X, _const(2, X))),
    ("drop_neutral", "neutral", lambda: P("sub", X, _const(-0.0, X))),
    ("drop_add_zero", "not zero", lambda: P("add", X, _const(1, X))),
    ("drop_add_zero", "may be -0", lambda: P("add", X, _const(0, X))),
    ("div_to_mul", "no constant float", lambda: P("div", X, Y)),
    ("div_to_mul", "power of two", lambda: P("div", X, _const(3, X))),
    ("div_to_mul", "normal reciprocal", lambda: P("div", X, _const(2.0**127, X))),
    ("power_to_mul", "exponent", lambda: P("pow", X, _const(0.5, X))),
    ("tanh_of_softplus", "no softplus", lambda: P("tanh", P("log", P("exp", X)))),
    ("sub_to_add", "no constant", lambda: P("sub", X, Y)),
    ("drop_double", "no neg", lambda: P("neg", P("abs", X))),
    ("drop_repeated", "differ", lambda: P("max", X, Y)),
    ("fold_select", "not known", lambda: P("select", P("lt", X, Y), X, Y)),
    ("select_not", "no negation", lambda: P("select", P("lt", X, Y), X, Y)),
    ("compare_iota", "no iota", lambda: P("lt", X, _const(0, X))),
    ("compare_iota", "either side", lambda: P("gt", _iota(), _const(0, _iota()))),
    ("transpose_of_broadcast", "no broadcast", lambda: T),
    (
        "transpose_of_broadcast",
        "copied",
        lambda: P("transpose", P("broadcast", X, shape=(9, 2, 3, A)), perm=(0, 2, 1, 3)),
    ),
    ("reshape_of_broadcast", "no broadcast", lambda: P("reshape", X, shape=(6, A))),
    (
        "reshape_of_broadcast",
        "in part",
        lambda: P("reshape", P("broadcast", source([B]), shape=(A, B)), shape=(A * B,)),
    ),
    ("sink_transpose_elementwise", "no transpose", lambda: P("exp", X)),
    (
        "sink_transpose_elementwise",
        "operand 1 would need",
        lambda: P("add", T, source([A, 2, 3], "z")),
    ),
    ("sink_transpose_concat", "no transpose", lambda: _JOIN),
    ("sink_transpose_reduce", "no transpose", lambda: P("reduce_sum", X, axes=(0,))),
    ("sink_transpose_arg", "no transpose", lambda: P("arg_max", X, axis=0, last=False)),
    ("sink_transpose_pad", "no transpose", lambda: zero_border(X, (0, 1, 0), (0, 0, 0))),
    ("sink_transpose_slice", "no transpose", lambda: _cut(X, (0, 1, 0), (2, 2, A))),
    ("sink_transpose_dilate", "no transpose", lambda: P("dilate", X, factors=(1, 2, 1))),
    (
        "sink_transpose_window",
        "no transpose",
        lambda: P("window", X, axes=(1,), sizes=(2,), strides=(1,), dilations=(1,)),
    ),
    (
        "sink_transpose_gather",
        "no transpose",
        lambda: P("gather", X, source([2], "i", INT64), axis=0),
    ),
    ("sink_transpose_reshape", "no transpose", lambda: P("reshape", X, shape=(6, A))),
    ("sink_transpose_reshape", "apart", lambda: P("reshape", _heads(), shape=(2, A, 15))),
    ("sink_transpose_reshape", "only axes", lambda: P("reshape", T, shape=(6 * A,))),
    ("sink_transpose_reshape", "provable", lambda: P("reshape", T, shape=(B, 2 * B))),
    ("sink_transpose_repeat", "no broadcast", lambda: P("reshape", T, shape=(A, 6))),
    ("merge_transposes_of_parts", "no operand", lambda: LINEAR),
    ("merge_transposes_of_parts", "not one of a transpose", lambda: _product(X, (2, 3 * A))),
    ("merge_transposes_of_parts", "only merge", lambda: _product(_turned(), (A, 2, 3))),
    ("merge_transposes_of_parts", "neighbours", lambda: _product(_shuffled(), (15, A))),
    ("sink_split_elementwise", "no operand", lambda: P("exp", P("reshape", X, shape=(6, A)))),
    (
        "sink_split_elementwise",
        "operand 1 cannot",
        lambda: P("add", _SPLIT, P("broadcast", source([B, 6], "z"), shape=(A, B, 6))),
    ),
    ("sink_split_reduce", "no reshape", lambda: P("reduce_sum", X, axes=(0,))),
    ("sink_split_reduce", "in part", lambda: P("reduce_sum", _SPLIT, axes=(1,))),
    (
        "conv_to_matmul",
        "groups",
        lambda: P("conv", source([2, A, 6]), source([1, 3, 4], "w"), groups=2, **_CONV),
    ),
    (
        "conv_to_matmul",
        "more than one tap",
        lambda: P("conv", source([2, A, 6]), source([3, 6, 4], "w"), groups=1, **_CONV),
    ),
    ("flatten_matmul", "no batch", lambda: LINEAR),
    ("flatten_matmul", "differ", lambda: _matmul(X, [2, A, 7])),
    ("flatten_matmul", "in place", lambda: P("matmul", _apart(), _shared(_apart()))),
    ("scale_linear", "no constant weights", lambda: P("mul", X, _const(2, X))),
    ("scale_linear", "no finite constant", lambda: P("mul", LINEAR, _const(np.inf, LINEAR))),
    ("scale_linear", "range", lambda: P("div", LINEAR, _vector([1, 0, 2, 3], LINEAR))),
    ("distribute_scale", "no linear", lambda: P("mul", X, _const(2, X))),
    (
        "distribute_scale",
        "not both constant",
        lambda: P("mul", P("add", LINEAR, source([5, 4], "z")), _const(2, LINEAR)),
    ),
    ("merge_biases", "no linear", lambda: P("add", P("add", X, Y), _const(1, X))),
    (
        "merge_biases",
        "not both constant",
        lambda: P("add", P("add", LINEAR, source([5, 4], "z")), _const(2, LINEAR)),
    ),
]


def _cuts_apart() -> list[Node]:
    return [_cut(X, (0, 0, 0), (2, 1, A)), _cut(X, (0, 2, 0), (2, 1, A))]


def _product(x: Node, shape: tuple[Any, ...]) -> Node:
    merged = P("reshape", x, shape=shape)
    n = len(shape)
    turned = P("transpose", merged, perm=(*range(n - 2), n - 1, n - 2))
    return P("matmul", turned, source((*turned.shape[:-2], turned.shape[-1], 2), "b"))


def _shuffled() -> Node:
    return P("transpose", source([3, 5, A]), perm=(1, 0, 2))


def _turned() -> Node:
    return P("transpose", source([6, A]), perm=(1, 0))


def _iota() -> Node:
    return P("iota", dtype="int64", shape=(A, 2), axis=0)


def _heads() -> Node:
    return P("transpose", source([2, 3, A, 5]), perm=(0, 2, 1, 3))


def _apart() -> Node:
    return P("transpose", source([3, 2, A]), perm=(2, 0, 1))


def _shared(a: Node) -> Node:
    return P("broadcast", source([2, 7], "b"), shape=(*a.shape[:-2], 2, 7))


@pytest.mark.parametrize(("name", "reason", "build"), REFUSALS)
def test_refuses_with_a_reason(name: str, reason: str, build: Callable[[], Node]) -> None:
    graph = graph_of(build())
    assert rewrite(graph, [RULES[name]]).fired == {}
    assert any(reason in why for _, why in refusals(graph, RULES[name]))


def test_every_rule_has_a_refusal() -> None:
    assert {name for name, _, _ in REFUSALS} == set(CANONICAL)


def test_weights_are_not_scaled_under_another_reader() -> None:
    scaled = P("mul", LINEAR, _const(2, LINEAR))
    graph = graph_of(scaled, LINEAR)
    assert canonicalize(graph).fired == {}
    (found,) = refusals(graph, RULES["scale_linear"])
    assert "other readers" in found[1]
