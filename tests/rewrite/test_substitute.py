"""Substitutions on drawn instances, and the search that chooses among them."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fissile.errors import OptionError
from fissile.ir.dim import symbol
from fissile.ir.dtype import BFLOAT16, FLOAT16, FLOAT32, INT32
from fissile.ir.graph import Graph, Node
from fissile.ir.primitive import cast, constant, scalar
from fissile.rewrite import RULES, Budget, canonicalize, estimator, misses, refusals, substitute
from fissile.rewrite.engine import Renewal
from fissile.rewrite.rule import enabled
from fissile.rewrite.shape import is_same_shape
from fissile.rewrite.substitute import constant_bytes, firings, sites
from fissile.rewrite.window import Surroundings
from tests.rewrite.corpus import (
    P,
    feeds_of,
    graph_of,
    number,
    source,
    values_of,
    zero_border,
)
from tests.rewrite.substitutions import INSTANCES, flat, interpolated, spread, squares, weights

SUBSTITUTED = sorted(n for n, r in RULES.items() if r.regime == "substitute")


def agree(a: Graph, b: Graph, seed: int = 0) -> None:
    feeds = feeds_of(a, seed, special=False)
    want, got = values_of(a, feeds), values_of(b, feeds)
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        scale = np.abs(array[np.isfinite(array)]).max(initial=1)
        np.testing.assert_allclose(got[name], array, rtol=2e-6, atol=4e-6 * scale)


def test_every_substitution_has_an_instance() -> None:
    assert sorted(INSTANCES) == SUBSTITUTED


@pytest.mark.parametrize("name", SUBSTITUTED)
def test_fires_and_keeps_the_value(name: str) -> None:
    @settings(max_examples=8, deadline=None)
    @given(st.data(), st.integers(0, 99))
    def check(drawn: st.DataObject, seed: int) -> None:
        graph = graph_of(*INSTANCES[name](drawn.draw))
        found = list(sites(graph, (RULES[name],), None))
        assert found, refusals(graph, RULES[name])
        for site in found:
            for old, new in zip(site.nodes, site.new, strict=True):
                assert new.dtype is old.dtype
                assert is_same_shape(new.shape, old.shape)
            exchanged = dict(zip(site.nodes, site.new, strict=True))
            agree(graph, Renewal(()).exchanged(graph, exchanged), seed)

    check()


@pytest.mark.parametrize("name", SUBSTITUTED)
def test_in_normal_form_it_keeps_the_value(name: str) -> None:
    @settings(max_examples=4, deadline=None)
    @given(st.data())
    def check(drawn: st.DataObject) -> None:
        graph = canonicalize(graph_of(*INSTANCES[name](drawn.draw))).graph
        renewal = Renewal(enabled("canonicalize"))
        for site in sites(graph, (RULES[name],), None):
            after = renewal.exchanged(graph, dict(zip(site.nodes, site.new, strict=True)))
            assert canonicalize(after).fired == {}
            agree(graph, after)

    check()


# ---------------------------------------------------------------- refusals

X, Y = source([6, 5]), source([6, 5], "y")
IMAGE = source([1, 4, 6, 5])
PRODUCT = P("matmul", flat(IMAGE), weights(5, 7))
ROW = spread(source([5], "r"), (6, 5))
WIDE = P("matmul", X, source([5, 9], "w"))
CONV = {"strides": (1, 1), "dilations": (1, 1)}


def flat_x() -> Node:
    return P("reshape", X, shape=(30,))


def index() -> Node:
    return constant(np.array([3, 1, 29]))


def _resized(x: Node) -> Node:
    return interpolated(x, 1, 9)


def _summed(x: Node, axes: tuple[int, ...]) -> Node:
    return P("reduce_sum", x, axes=axes)


REFUSALS: list[tuple[str, str, Callable[[], tuple[Node, ...]]]] = [
    (
        "product_before_map",
        "batch",
        lambda: (P("matmul", source([2, 3, 4]), source([2, 4, 3], "b")),),
    ),
    ("product_before_map", "no map", lambda: (P("matmul", P("exp", X), weights(5, 4)),)),
    (
        "product_before_map",
        "cuts or merges",
        lambda: (P("matmul", P("reshape", X, shape=(3, 10)), weights(10, 4)),),
    ),
    (
        "product_before_map",
        "does not treat them alike",
        lambda: (
            P("matmul", P("slice", X, starts=(0, 1), steps=(1, 1), shape=(6, 4)), weights(4, 2)),
        ),
    ),
    (
        "product_before_map",
        "no more places",
        lambda: (P("matmul", flat(interpolated(IMAGE, 1, 2)), weights(5, 7)),),
    ),
    ("map_before_product", "no plain product", lambda: (_resized(IMAGE),)),
    (
        "map_before_product",
        "no fewer places",
        lambda: (
            _resized(P("reshape", P("matmul", flat(IMAGE), weights(5, 4)), shape=(1, 4, 6, 4))),
        ),
    ),
    ("map_before_product", "no axis before", lambda: (P("gather", flat_x(), index(), axis=0),)),
    ("bias_after_map", "no sum with a bias", lambda: (_resized(IMAGE),)),
    (
        "bias_after_map",
        "keep a constant",
        lambda: (P("reduce_sum", P("add", IMAGE, spread(weights(5), IMAGE.shape)), axes=(1,)),),
    ),
    ("split_product", "no concat", lambda: (PRODUCT,)),
    ("split_product", "constant weights", lambda: (WIDE,)),
    ("bias_last", "sum with a constant", lambda: (P("add", X, Y),)),
    ("associate_right", "no product", lambda: (PRODUCT,)),
    (
        "associate_right",
        "no fewer operations",
        lambda: (
            P("matmul", P("matmul", source([3, 9]), source([9, 2], "b")), source([2, 9], "c")),
        ),
    ),
    (
        "associate_right",
        "reshape of a product",
        lambda: (
            P(
                "matmul",
                P("reshape", P("matmul", source([2, 3, 4]), source([2, 4, 5], "b")), shape=(6, 5)),
                weights(5, 2),
            ),
        ),
    ),
    ("associate_left", "no product", lambda: (WIDE,)),
    (
        "associate_left",
        "no fewer operations",
        lambda: (
            P("matmul", source([9, 2], "a"), P("matmul", source([2, 3], "b"), source([3, 1], "c"))),
        ),
    ),
    ("merge_affine", "plus a bias", lambda: (WIDE,)),
    ("merge_affine", "constant weights", lambda: (P("matmul", P("add", X, ROW), weights(5, 2)),)),
    (
        "merge_affine",
        "finite vector",
        lambda: (
            P(
                "matmul",
                P("add", PRODUCT, spread(scalar(np.inf, FLOAT32), PRODUCT.shape)),
                weights(7, 2),
            ),
        ),
    ),
    (
        "merge_affine",
        "no fewer operations",
        lambda: (
            P(
                "matmul",
                P("add", P("matmul", source([3, 9]), weights(9, 2)), spread(weights(2), (3, 2))),
                weights(2, 9),
            ),
        ),
    ),
    ("scale_after_product", "not scaled", lambda: (WIDE,)),
    (
        "scale_after_product",
        "along the columns",
        lambda: (P("matmul", P("mul", X, ROW), weights(5, 2)),),
    ),
    (
        "scale_after_product",
        "no smaller",
        lambda: (P("matmul", P("mul", X, spread(scalar(2, FLOAT32), X.shape)), weights(5, 7)),),
    ),
    ("scale_before_product", "no product", lambda: (P("mul", X, ROW),)),
    (
        "scale_before_product",
        "along the columns",
        lambda: (P("mul", WIDE, spread(source([9], "r"), WIDE.shape)),),
    ),
    (
        "scale_before_product",
        "no smaller",
        lambda: (P("mul", P("matmul", X, weights(5, 2)), spread(source([6, 1], "s"), (6, 2))),),
    ),
    ("factor_out_of_sum", "not scaled", lambda: (_summed(X, (1,)),)),
    ("factor_out_of_sum", "no broadcast", lambda: (_summed(P("mul", X, Y), (1,)),)),
    ("factor_out_of_sum", "varies", lambda: (_summed(P("mul", X, ROW), (1,)),)),
    ("shift_out_of_sum", "no sum with a broadcast", lambda: (_summed(P("add", X, Y), (1,)),)),
    ("shift_out_of_sum", "varies", lambda: (_summed(P("add", X, ROW), (1,)),)),
    ("merge_products", "not constant", lambda: (WIDE,)),
    ("merge_products", "no other node", lambda: (P("matmul", X, weights(5, 2)),)),
    ("sum_beside_product", "last axis alone", lambda: (_summed(X, (0,)), WIDE)),
    ("sum_beside_padded", "last axis alone", lambda: (_summed(X, (0,)), WIDE)),
    (
        "merge_windows",
        "dilations",
        lambda: (
            P("conv", IMAGE, weights(2, 2, 5, 3), strides=(1, 1), dilations=(2, 1), groups=1),
        ),
    ),
    ("merge_windows", "channels of an image", lambda: (P("matmul", X, weights(5, 2)),)),
    ("merge_windows", "not constant", lambda: (WIDE,)),
    ("merge_windows", "groups", lambda: (P("conv", IMAGE, weights(2, 2, 1, 5), groups=5, **CONV),)),
    ("merge_rows", "batch", lambda: (P("matmul", source([2, 3, 4]), source([2, 4, 3], "b")),)),
    (
        "merge_convolutions",
        "groups",
        lambda: (P("conv", IMAGE, weights(2, 2, 1, 5), groups=5, **CONV),),
    ),
    (
        "merge_convolutions",
        "not constant",
        lambda: (P("conv", IMAGE, source([2, 2, 5, 3], "w"), groups=1, **CONV),),
    ),
    ("join_slices", "no operand is a slice", lambda: (P("exp", constant(np.ones(3, np.float32))),)),
    ("join_slices", "neither a slice", lambda: (P("exp", X),)),
    ("convolve_phases", "repeats nothing", lambda: (_conv(IMAGE, 3),)),
    ("convolve_phases", "strides", lambda: (_conv(IMAGE, 3, strides=(2, 1)),)),
    ("convolve_phases", "constant weights", lambda: (_conv(IMAGE, 3, known=False),)),
    ("convolve_phases", "no smaller windows", lambda: (_conv(_repeated(3), 3),)),
    ("convolve_phases", "moved together", lambda: (_conv(_shuffled(), 3),)),
    ("absorb_scale", "not scaled", lambda: (PRODUCT,)),
    ("absorb_scale", "not constant", lambda: (P("matmul", X, source([5, 2], "w")),)),
    (
        "absorb_scale",
        "no finite constant",
        lambda: (P("matmul", P("mul", X, ROW), weights(5, 2)),),
    ),
    ("absorb_scale", "range", lambda: (P("matmul", P("mul", X, _times(3e38)), _huge()),)),
    ("absorb_scale", "batch", lambda: (P("matmul", _scaled_batch(), weights(2, 5, 3)),)),
    ("absorb_shift", "not shifted", lambda: (PRODUCT,)),
    (
        "absorb_shift",
        "not shifted",
        lambda: (_conv(zero_border(P("add", IMAGE, _times(2, IMAGE)), (0,) * 4, (0, 1, 0, 0)), 3),),
    ),
    ("absorb_shift", "no finite constant", lambda: (P("matmul", P("add", X, ROW), weights(5, 2)),)),
    ("scale_after_columns", "not scaled", lambda: (WIDE,)),
    (
        "scale_after_columns",
        "along the rows",
        lambda: (
            P("matmul", X, P("mul", source([5, 2], "w"), spread(source([5, 1], "s"), (5, 2)))),
        ),
    ),
    (
        "scale_after_columns",
        "no fewer rows",
        lambda: (P("matmul", X, P("mul", source([5, 2], "w"), spread(source([2], "s"), (5, 2)))),),
    ),
    ("scale_before_columns", "no product", lambda: (P("mul", X, ROW),)),
    (
        "scale_before_columns",
        "no fewer rows",
        lambda: (
            P(
                "mul",
                P("matmul", source([3, 5]), source([5, 2], "w")),
                spread(source([2], "s"), (3, 2)),
            ),
        ),
    ),
    ("small_operands_first", "same name", lambda: (P("add", X, _times(2)),)),
    ("small_operands_first", "not one broadcast", lambda: (P("add", P("add", X, Y), ROW),)),
    ("slice_before_reduce", "no reduction", lambda: (_first_row(X),)),
    ("slice_before_concat", "no concat", lambda: (_first_row(X),)),
    (
        "slice_before_concat",
        "not known",
        lambda: (_first_row(P("concat", source([symbol("d3"), 5]), Y, axis=0)),),
    ),
    ("slice_before_product", "no product", lambda: (_first_row(X),)),
    ("reduce_before_move", "no border", lambda: (_summed(X, (0,)),)),
    (
        "reduce_before_move",
        "no border",
        lambda: (_summed(zero_border(X, (1, 0), (0, 0), 2), (1,)),),
    ),
    (
        "reduce_before_move",
        "no border",
        lambda: (_summed(P("gather", source([symbol("d6"), 5]), index(), axis=0), (1,)),),
    ),
    ("reduce_pieces", "no concat", lambda: (_summed(P("concat", X, Y, axis=0), (1,)),)),
    ("weighted_sum_to_product", "not weighted", lambda: (_summed(X, (0,)),)),
    ("weighted_sum_to_product", "alone", lambda: (_summed(P("mul", X, ROW), (0, 1)),)),
    ("weighted_sum_to_product", "other axis", lambda: (_summed(P("mul", X, ROW), (0,)),)),
    ("negation_last", "negated", lambda: (WIDE,)),
    ("sum_before_product", "no product", lambda: (_summed(X, (0,)),)),
    ("sum_before_product", "alone", lambda: (_summed(WIDE, (0, 1)),)),
    ("extreme_first", "no increasing", lambda: (P("reduce_max", P("abs", X), axes=(1,)),)),
    (
        "extreme_first",
        "no increasing",
        lambda: (P("reduce_max", P("add", X, _times(np.inf)), axes=(1,)),),
    ),
    (
        "extreme_first",
        "not known",
        lambda: (P("reduce_max", P("exp", source([3, symbol("d5")])), axes=(1,)),),
    ),
    ("one_pass_variance", "no square", lambda: (_summed(X, (1,)),)),
    ("one_pass_variance", "no difference", lambda: (_summed(P("mul", X, X), (1,)),)),
    ("one_pass_variance", "not the mean", lambda: (_summed(_square_of(ROW), (1,)),)),
    ("one_pass_variance", "may lie so far out", lambda: (_far(),)),
    ("add_weights", "no sum of two", lambda: (P("add", X, Y),)),
    ("add_weights", "differ", lambda: (_two(X, Y),)),
    ("add_operands", "differ", lambda: (_two(X, Y),)),
    ("add_operands", "no sum of two", lambda: (P("add", X, Y),)),
    ("join_channels", "not both constant", lambda: (P("add", WIDE, P("matmul", Y, _w59())),)),
    ("join_channels", "no sum of two", lambda: (P("add", X, Y),)),
    ("split_convolution", "no concat", lambda: (_conv(IMAGE, 3),)),
    ("split_convolution", "not constant", lambda: (_conv(IMAGE, 3, known=False),)),
    ("function_before_pad", "not one operand", lambda: (P("exp", X),)),
    (
        "function_before_pad",
        "same everywhere",
        lambda: (P("mul", zero_border(X, (1, 0), (0, 0)), spread(source([5], "r"), (7, 5))),),
    ),
    ("function_before_gather", "not one operand", lambda: (P("exp", X),)),
    (
        "function_before_gather",
        "varies",
        lambda: (P("mul", P("gather", X, index(), axis=1), spread(source([3], "r"), (6, 3))),),
    ),
    ("function_before_concat", "not one operand", lambda: (P("exp", X),)),
    (
        "function_before_concat",
        "neither constant",
        lambda: (P("mul", P("concat", X, Y, axis=0), source([12, 5], "z")),),
    ),
    ("function_after_concat", "one elementwise", lambda: (P("concat", X, P("exp", Y), axis=0),)),
    (
        "function_after_concat",
        "not one operand varies",
        lambda: (P("concat", P("add", X, Y), P("add", Y, X), axis=0),),
    ),
    ("function_after_slice", "no elementwise", lambda: (_first_row(X),)),
    ("function_after_gather", "no elementwise", lambda: (P("gather", X, index(), axis=0),)),
    (
        "function_after_gather",
        "no fewer",
        lambda: (P("gather", P("exp", X), constant(np.array([5, 4, 3, 2, 1, 0])), axis=0),),
    ),
    ("winograd_2", "3x3 taps", lambda: (_conv(IMAGE, 2),)),
    ("winograd_2", "groups, strides", lambda: (_conv(IMAGE, 3, strides=(2, 1)),)),
    ("winograd_2", "channels", lambda: (_conv(IMAGE, 3),)),
    ("winograd_4", "3x3 taps", lambda: (_conv(IMAGE, 3, known=False),)),
    ("winograd_4", "rounding", lambda: (_conv(source([1, 8, 8, 16]), 3, scale=np.inf),)),
]


def _times(value: float, like: Node = X) -> Node:
    return spread(scalar(value, FLOAT32), like.shape)


def _huge() -> Node:
    return constant(np.full((5, 2), 1e10, np.float32))


def _scaled_batch() -> Node:
    x = source([2, 3, 5])
    return P("mul", x, _times(2, x))


def _square_of(center: Node) -> Node:
    d = P("sub", X, center)
    return P("mul", d, d)


def _far() -> Node:
    x = source([2, 4000])
    return _summed(squares(x, (1,)), (1,))


def _two(x: Node, y: Node) -> Node:
    return P("add", P("matmul", x, weights(5, 2)), P("matmul", y, weights(5, 2, seed=1)))


def _w59() -> Node:
    return source([5, 9], "v")


def _first_row(x: Node) -> Node:
    return P("slice", x, starts=(0, 0), steps=(1, 1), shape=(1, 5))


def _conv(
    x: Node, taps: int, strides: tuple[int, int] = (1, 1), known: bool = True, scale: float = 1
) -> Node:
    channels = number(x.shape[-1])
    w = source([taps, taps, channels, 16], "w")
    if known:
        w = constant(np.full((taps, taps, channels, 16), scale, np.float32))
    return P("conv", x, w, strides=strides, dilations=(1, 1), groups=1)


def _repeated(factor: int) -> Node:
    index = constant(np.arange(3 * factor) // factor)
    x = P("gather", source([1, 3, 3, 5]), index, axis=1)
    return P("gather", x, index, axis=2)


def _shuffled() -> Node:
    rows = P("reshape", source([1, 4, 6, 5]), shape=(1, 24, 5))
    moved = P("gather", rows, constant(np.random.default_rng(0).permutation(24)), axis=1)
    return P("reshape", moved, shape=(1, 4, 6, 5))


@pytest.mark.parametrize(("name", "reason", "build"), REFUSALS)
def test_refuses_with_a_reason(
    name: str, reason: str, build: Callable[[], tuple[Node, ...]]
) -> None:
    graph = graph_of(*build())
    assert not list(sites(graph, (RULES[name],), None))
    assert any(reason in why for _, why in refusals(graph, RULES[name]))


def test_every_substitution_has_a_refusal() -> None:
    assert sorted({name for name, _, _ in REFUSALS}) == SUBSTITUTED


def test_what_is_rounded_to_a_half_type_is_not_substituted() -> None:
    product = P("matmul", P("matmul", X, source([5, 9], "w")), source([9, 2], "v"))
    rules = tuple(RULES[n] for n in SUBSTITUTED)
    assert list(sites(graph_of(product), rules, None))
    for of in (FLOAT16, BFLOAT16):
        assert not list(sites(graph_of(cast(product, of)), rules, None))
        wide = cast(source([9, 2], "h", of=of), FLOAT32)  # halves that come in round nothing
        inner = P("matmul", P("matmul", X, source([5, 9], "w")), wide)
        assert list(sites(graph_of(inner), rules, None))


# ---------------------------------------------------------------- near misses


def test_a_substitution_that_applies_says_what_the_estimate_thinks() -> None:
    graph = graph_of(P("matmul", flat(interpolated(IMAGE, 1, 9)), weights(5, 3)), WIDE)

    def rows(g: Graph) -> float:
        return float(sum(number(n.shape[0]) for n in g.nodes() if n.name == "matmul"))

    applied, declined = misses(graph, RULES["product_before_map"], rows)
    assert applied.reason.startswith("it applies, and the estimate falls (at best -")
    assert (applied.count, declined.count) == (1, 1)
    applied, _ = misses(graph, RULES["product_before_map"], lambda g: -rows(g))
    assert applied.reason.startswith("it applies, and the estimate does not fall (at best +")


def test_a_rule_that_joins_says_who_lacks_a_partner() -> None:
    alone = P("matmul", Y, weights(5, 2))
    pair = [P("matmul", X, weights(5, n, seed=n)) for n in (2, 3)]
    after = P("matmul", P("exp", P("matmul", X, weights(5, 5))), weights(5, 5, seed=3))
    found = misses(graph_of(alone, *pair, after), RULES["merge_products"])
    assert found[0].reason.startswith("it applies, and the estimate")
    assert {m.reason for m in found[1:]} == {"no other node shares its operand"}
    whole = [cast(x, INT32) for x in (X, source([5, 9], "w"))]
    (only,) = misses(graph_of(P("matmul", *whole)), RULES["merge_products"])
    assert "only float32 and float64" in only.reason
    (only,) = misses(graph_of(cast(P("matmul", X, source([5, 9], "w")), FLOAT16)), RULES["merge_products"])
    assert "rounds to a half type" in only.reason


@pytest.mark.parametrize("name", SUBSTITUTED)
def test_every_place_is_told(name: str) -> None:
    @settings(max_examples=2, deadline=None)
    @given(st.data())
    def check(drawn: st.DataObject) -> None:
        graph = graph_of(*INSTANCES[name](drawn.draw))
        told = misses(graph, RULES[name])
        assert told[0].reason.startswith("it applies, and the estimate")
        assert all(m.count > 0 and m.node for m in told)

    check()


# ---------------------------------------------------------------- the search


def decode_head() -> Graph:
    """Four feature maps: linear, resized to the largest, joined, linear, relu, linear (SegFormer)."""
    size, width = 32, 64
    parts = []
    for k, (side, channels) in enumerate(((32, 6), (16, 10), (8, 14), (4, 18))):
        x = source([1, side, side, channels], f"x{k}")
        y = P("matmul", flat(x), weights(channels, width, seed=k))
        y = P("add", y, spread(weights(width, seed=9 + k), y.shape))
        y = P("reshape", y, shape=(1, side, side, width))
        for axis in (1, 2) if side < size else ():
            y = interpolated(y, axis, size)
        parts.append(y)
    joined = flat(P("concat", *parts[::-1], axis=3))
    y = P("matmul", joined, weights(4 * width, width))
    y = P("add", y, spread(weights(width), y.shape))
    y = P("max", y, spread(scalar(0, FLOAT32), y.shape))
    return canonicalize(graph_of(P("matmul", y, weights(width, 5)))).graph


def test_linear_layers_move_before_the_resizes_of_a_decode_head() -> None:
    graph = decode_head()
    best, *others = substitute(graph, estimator())
    agree(graph, best.graph)
    products = [n for n in best.graph.nodes() if n.name == "matmul"]
    assert len(products) == 5  # one per feature map, and the last
    assert {n.inputs[0].shape[1] for n in products} == {6, 10, 14, 18, 64}  # never the joined ones
    assert not any(n.name == "concat" for n in best.graph.nodes())
    assert best.cost < min(estimator()(graph), *(o.cost for o in others))
    used = firings(best.log)
    assert used["split_product"] == 1
    assert used["merge_affine"] + used.get("associate_right", 0) >= 4


def test_the_search_is_deterministic_and_obeys_its_budget() -> None:
    graph = decode_head()
    first, second = (substitute(graph, estimator())[0] for _ in range(2))
    assert first.graph == second.graph
    assert first.log == second.log
    (nothing,) = substitute(graph, estimator(), Budget(graphs=0))
    assert nothing.graph is graph


def test_rules_can_be_left_out() -> None:
    graph = decode_head()
    best, *_ = substitute(graph, estimator(), disabled=["split_product"])
    assert "split_product" not in firings(best.log)
    with pytest.raises(OptionError, match="no rule is called nothing"):
        substitute(graph, estimator(), disabled=["nothing"])


def test_projections_of_attention_are_merged_with_their_biases() -> None:
    x = source([8, 12])
    found = []
    for seed in range(3):
        y = P("matmul", x, weights(12, 6, seed=seed))
        found.append(P("add", y, spread(weights(6, seed=7 + seed), y.shape)))
    q, k, v = found
    scores = P("matmul", q, P("transpose", k, perm=(1, 0)))
    graph = canonicalize(graph_of(P("matmul", P("exp", scores), v))).graph
    best, *_ = substitute(graph, estimator())
    agree(graph, best.graph)
    product = next(n for n in best.graph.nodes() if n.name == "matmul")
    assert product.shape == (8, 18)
    assert sum(n.name == "add" for n in best.graph.nodes()) == 1


def test_a_window_is_convex_and_goes_back() -> None:
    x = P("exp", X)
    y = P("neg", x)
    z = P("add", x, P("matmul", P("abs", y), source([5, 5], "w")))
    graph = graph_of(z)
    window = Surroundings(graph).window((x,))
    assert window.replaced(window.graph) == {}
    outside = {n for n in graph.nodes() if n not in window.inside}
    assert not any(
        set(n.inputs) & outside for n in window.inside if n.name not in ("exp", "matmul")
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_windows_of_drawn_graphs_are_convex_and_see_constants(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes = [X, spread(weights(5), X.shape)]
    for _ in range(int(rng.integers(1, 40))):
        a, b = (nodes[int(rng.integers(max(0, len(nodes) - 6), len(nodes)))] for _ in range(2))
        nodes.append(P("exp", a) if rng.random() < 0.2 else P("add", a, b))
    graph = graph_of(nodes[-1], nodes[int(rng.integers(2, len(nodes)))])
    live = [n for n in graph.nodes() if n.name in ("exp", "add")]
    seeds = [live[int(rng.integers(len(live)))] for _ in range(int(rng.integers(1, 3)))]
    window = Surroundings(graph).window(tuple(dict.fromkeys(seeds)))
    after: set[Node] = set()  # outside, but behind something inside
    for node in graph.nodes():
        if node in window.inside:
            assert after.isdisjoint(node.inputs)
        elif any(i in after or i in window.inside for i in node.inputs):
            after.add(node)
    assert "broadcast" not in {n.name for n in window.outer.values()}
    rebuilt = window.rebuilt(window.graph)
    assert all(rebuilt[inner] is node for node, inner in window.inside.items())


def test_what_helps_at_one_block_is_done_at_all_its_twins_at_once() -> None:
    y = source((1, 26, 26, 64))
    rng = np.random.default_rng(0)
    attrs = {"strides": (1, 1), "dilations": (1, 1), "groups": 1}
    zero = scalar(0, FLOAT32)
    for _ in range(6):
        taps = constant(rng.standard_normal((3, 3, 64, 64)).astype(np.float32))
        y = P("conv", zero_border(y, (0, 1, 1, 0), (0, 1, 1, 0)), taps, **attrs)
        y = P("max", y, spread(zero, y.shape))
    graph = canonicalize(graph_of(y)).graph
    best, *_ = substitute(graph, estimator(), Budget(heavier=9.0))
    assert sum(firings(best.log).values()) == 6
    assert len(best.windows) < 6
    tight = constant_bytes(graph) * 2 // 6  # what Winograd adds is 3 times a filter
    some, *_ = substitute(graph, estimator(), Budget(heavier=1.0, room=2 * tight))
    assert 0 < len(some.log) < 6
    assert best.cost < some.cost < estimator()(graph)


def test_documented_estimate() -> None:
    assert doctest.testmod(import_module("fissile.rewrite.estimate")).failed == 0


def test_constants_may_grow_by_so_much() -> None:
    x = source((1, 58, 58, 64))
    taps = constant(np.random.default_rng(0).standard_normal((3, 3, 64, 64)).astype(np.float32))
    attrs = {"strides": (1, 1), "dilations": (1, 1), "groups": 1}
    graph = canonicalize(graph_of(P("conv", x, taps, **attrs))).graph
    before = constant_bytes(graph)
    for room in (0, 1 << 20):
        best, *_ = substitute(graph, estimator(), Budget(growth=20.0, heavier=1.0, room=room))
        assert constant_bytes(best.graph) <= before + room
        assert bool(best.log) == bool(room)
