"""Drawn instances of every substitution: from hypothesis' `draw` to the outputs of a graph on which it fires."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fissile.ir.dim import DimLike, symbol
from fissile.ir.dtype import FLOAT32
from fissile.ir.graph import Node
from fissile.ir.primitive import constant, scalar
from tests.rewrite.corpus import P, number, numbers, source, zero_border

Draw = Any
Instance = Callable[[Draw], tuple[Node, ...]]
INSTANCES: dict[str, Instance] = {}


def instance(build: Instance) -> Instance:
    INSTANCES[build.__name__] = build
    return build


def weights(*shape: int, seed: int = 0) -> Node:
    return constant(numbers(seed, shape) - 1)


def image(draw: Draw, channels: int, name: str = "x") -> Node:
    """[n, h, w, channels], some extents symbolic."""
    n, h, w = draw(st.sampled_from(((1, 4, 5), (2, 3, 7), (3, 5, 2))))
    extents = [symbol(f"d{d}", 1) if draw(st.booleans()) else d for d in (n, h, w)]
    return source([*extents, channels], name)


def flat(x: Node) -> Node:
    count: DimLike = 1
    for d in x.shape[:-1]:
        count = count * d
    return P("reshape", x, shape=(count, x.shape[-1]))


def spread(x: Node, shape: tuple[DimLike, ...]) -> Node:
    return P("broadcast", x, shape=shape)


def interpolated(x: Node, axis: int, outs: int, total: float = 1) -> Node:
    """Two taps per place along an axis, with weights that add up to `total`."""
    rng = np.random.default_rng(outs)
    n = number(x.shape[axis])
    left = rng.uniform(0, 1, (outs, *[1] * (x.type.rank - axis - 1))).astype(np.float32)
    terms = []
    for share in (left, (total - left).astype(np.float32)):
        part = P("gather", x, constant(rng.integers(0, n, outs)), axis=axis)
        terms.append(P("mul", part, spread(constant(share), part.shape)))
    return P("add", *terms)


def enlarged(draw: Draw, x: Node) -> Node:
    """A map along places that makes more of them."""
    n, h, w, c = x.shape
    turn = P("transpose", x, perm=(2, 0, 1, 3))
    ways = (
        interpolated(x, 1, 2 * number(h) + 1),
        interpolated(x, 2, 2 * number(w)),
        P("gather", x, constant(np.arange(9) % number(h)), axis=1),
        zero_border(x, (0, 1, 2, 0), (0, 0, 3, 0)),
        spread(P("reshape", x, shape=(n, h, w, 1, c)), (n, h, w, 3, c)),
        interpolated(turn, 0, 2 * number(w)),
    )
    chosen: Node = draw(st.sampled_from(ways))
    return chosen


def shrunk(draw: Draw, x: Node) -> Node:
    n, h, w, c = x.shape
    attrs = {"starts": (0, 1, 0, 0), "steps": (1, 1, 1, 1), "shape": (n, 2, w, c)}
    window = {"axes": (1, 2), "sizes": (2, 1), "strides": (2, 1), "dilations": (1, 1)}
    pooled = P("reduce_sum", P("window", x, **window), axes=(4, 5))
    ways = (P("slice", x, **attrs), P("reduce_sum", x, axes=(1,)), interpolated(x, 2, 1), pooled)
    chosen: Node = draw(st.sampled_from(ways))
    return chosen


@instance
def product_before_map(draw: Draw) -> tuple[Node, ...]:
    return (P("matmul", flat(enlarged(draw, image(draw, 6))), weights(6, 4)),)


@instance
def map_before_product(draw: Draw) -> tuple[Node, ...]:
    x = image(draw, 4)
    product = P("matmul", flat(x), weights(4, 6))
    return (shrunk(draw, P("reshape", product, shape=(*x.shape[:-1], 6))),)


@instance
def bias_after_map(draw: Draw) -> tuple[Node, ...]:
    x = image(draw, 4)
    shifted = P("add", x, spread(weights(4), x.shape))
    return (interpolated(shifted, draw(st.sampled_from((1, 2))), 5),)


@instance
def split_product(draw: Draw) -> tuple[Node, ...]:
    x = image(draw, 3)
    others = [source([*x.shape[:-1], c], f"y{c}") for c in (2, 5)]
    joined = P("concat", x, *others, axis=3)
    return (P("matmul", flat(joined), weights(10, 4)),)


@instance
def bias_last(draw: Draw) -> tuple[Node, ...]:
    x, y = source([3, 5]), source([3, 5], "y")
    shifted = P("add", x, spread(weights(5), x.shape))
    return (P("add", *draw(st.permutations([shifted, y]))),)


@instance
def associate_right(draw: Draw) -> tuple[Node, ...]:
    rows: DimLike = draw(st.sampled_from((9, symbol("d9", 1))))
    if draw(st.booleans()):
        x = P("matmul", source([2, rows, 2]), source([2, 2, 7], "b"))
        return (P("matmul", x, source([2, 7, 3], "c")),)
    return (P("matmul", P("matmul", source([rows, 5]), weights(5, 7)), weights(7, 4)),)


@instance
def associate_left(draw: Draw) -> tuple[Node, ...]:
    inner = P("matmul", source([7, 2], "b"), source([2, 9], "c"))
    return (P("matmul", source([3, 7], "a"), inner),)


@instance
def merge_affine(draw: Draw) -> tuple[Node, ...]:
    rows: DimLike = draw(st.sampled_from((9, symbol("d9", 1))))
    x = P("matmul", source([rows, 3]), weights(3, 7))
    bias = draw(st.sampled_from((weights(7), scalar(0.5, FLOAT32))))
    return (P("matmul", P("add", x, spread(bias, x.shape)), weights(7, 4, seed=1)),)


def _per_row(x: Node) -> Node:
    return spread(source([*x.shape[:-1], 1], "s"), x.shape)


@instance
def scale_after_product(draw: Draw) -> tuple[Node, ...]:
    x = source([2, 5, 7])
    scaled = P(draw(st.sampled_from(("mul", "div"))), x, _per_row(x))
    return (P("matmul", scaled, source([2, 7, 3], "w")),)


@instance
def scale_before_product(draw: Draw) -> tuple[Node, ...]:
    x = P("matmul", source([2, 5, 3]), source([2, 3, 7], "w"))
    return (P(draw(st.sampled_from(("mul", "div"))), x, _per_row(x)),)


@instance
def factor_out_of_sum(draw: Draw) -> tuple[Node, ...]:
    x = source([2, 5, 7])
    scale = spread(source([5, 1], "s"), x.shape)
    name = draw(st.sampled_from(("mul", "div")))
    axes = draw(st.sampled_from(((2,), (0, 2), (0,))))
    pair = draw(st.permutations([x, scale])) if name == "mul" else (x, scale)
    return (P("reduce_sum", P(name, *pair), axes=axes),)


@instance
def shift_out_of_sum(draw: Draw) -> tuple[Node, ...]:
    x = source([2, 5, 7])
    shift = spread(source([5, 1], "s"), x.shape)
    axes = draw(st.sampled_from(((2,), (0, 2), (0,))))
    return (P("reduce_sum", P("add", x, shift), axes=axes),)


@instance
def merge_products(draw: Draw) -> tuple[Node, ...]:
    x = source([draw(st.sampled_from((5, symbol("d5", 1)))), 3])
    return tuple(P("matmul", x, weights(3, n, seed=n)) for n in (2, 7, 4))


@instance
def sum_beside_product(draw: Draw) -> tuple[Node, ...]:
    x = source([2, draw(st.sampled_from((5, symbol("d5", 1)))), 3])
    sums = P("reduce_sum", x, axes=(2,))
    return (P("matmul", x, source([2, 3, 4], "b")), sums, P("matmul", x, source([2, 3, 1], "c")))


@instance
def sum_beside_padded(draw: Draw) -> tuple[Node, ...]:
    x = source([2, draw(st.sampled_from((5, 1, symbol("d5", 1)))), draw(st.sampled_from((3, 1)))])
    product = P("matmul", x, source([2, *x.shape[2:], draw(st.sampled_from((4, 1)))], "b"))
    return tuple(draw(st.permutations([product, P("reduce_sum", x, axes=(2,))])))


@instance
def merge_rows(draw: Draw) -> tuple[Node, ...]:
    w = source([3, 4], "w")
    rows = draw(st.sampled_from((5, symbol("d5", 1))))
    return tuple(P("matmul", source([n, 3], f"x{k}"), w) for k, n in enumerate((2, rows, 1)))


@instance
def merge_convolutions(draw: Draw) -> tuple[Node, ...]:
    x = image(draw, 3)
    strides = draw(st.sampled_from(((1, 1), (2, 1))))
    attrs = {"strides": strides, "dilations": (1, 1), "groups": 1}
    return tuple(P("conv", x, weights(2, 2, 3, n, seed=n), **attrs) for n in (4, 1, 5))


@instance
def merge_windows(draw: Draw) -> tuple[Node, ...]:
    x = source([2, draw(st.sampled_from((5, 1, symbol("d5", 1)))), 7, 3])
    stride = draw(st.sampled_from((1, 2)))
    attrs = {"strides": (1, stride), "dilations": (1, 1), "groups": 1}
    found = []
    for k, taps in enumerate(((3, 5), (1, 3), (1, 1))[: draw(st.integers(2, 3))]):
        low, high = (0, *(n // 2 for n in taps), 0), (0, *(n // 2 for n in taps), 0)
        bordered = zero_border(x, low, high) if any(low) else x
        found.append(P("conv", bordered, weights(*taps, 3, k + 1, seed=k), **attrs))
    if draw(st.booleans()):
        shape = (*x.shape[:-2], -(-7 // stride), 3)
        few = P("slice", x, starts=(0,) * 4, steps=(1, 1, stride, 1), shape=shape)
        found.append(P("matmul", flat(x if stride == 1 else few), weights(3, 2, seed=9)))
    return tuple(draw(st.permutations(found)))


@instance
def join_slices(draw: Draw) -> tuple[Node, ...]:
    x = source([3, 9])
    name = draw(st.sampled_from(("add", "mul", "exp", "max")))
    found = []
    for start, n in ((1, 4), (5, 3)):
        attrs = {"starts": (0, start), "steps": (1, 1), "shape": (3, n)}
        piece = P("slice", x, **attrs)
        constants = draw(st.sampled_from((weights(n), scalar(2, FLOAT32), weights(1))))
        others = () if name == "exp" else (spread(constants, piece.shape),)
        found.append(P(name, piece, *others))
    return tuple(found)


@instance
def convolve_phases(draw: Draw) -> tuple[Node, ...]:
    x = source([2, 3, 5, 4])
    if draw(st.booleans()):
        x = P("reshape", source([30, 4]), shape=(2, 3, 5, 4))
    for axis, n in ((1, 3), (2, 5)):
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        wide = spread(P("reshape", x, shape=(*before, n, 1, *after)), (*before, n, 2, *after))
        x = P("reshape", wide, shape=(*before, 2 * n, *after))
    border = draw(st.sampled_from(("zero", "reflect", "edge", "none")))
    if border == "zero":
        x = zero_border(x, (0, 1, 1, 0), (0, 1, draw(st.integers(1, 2)), 0))
    elif border != "none":
        for axis, n in ((1, 6), (2, 10)):
            x = P("gather", x, constant(np.pad(np.arange(n), 1, mode=border)), axis=axis)
    attrs = {"strides": (1, 1), "dilations": (1, 1), "groups": 1}
    return (P("conv", x, weights(3, draw(st.sampled_from((3, 5))), 4, 5), **attrs),)


def per_channel(x: Node, seed: int = 3) -> Node:
    return spread(weights(number(x.shape[-1]), seed=seed), x.shape)


def _linear(draw: Draw, x: Node, groups: int = 1) -> Node:
    """A convolution or a product of an image, behind a map along places or none."""
    channels = number(x.shape[-1])
    if groups == 1 and draw(st.booleans()):
        return P("matmul", flat(x), weights(channels, 4))
    attrs = {"strides": (1, draw(st.sampled_from((1, 2)))), "dilations": (1, 1), "groups": groups}
    return P("conv", x, weights(2, 2, channels // groups, 6), **attrs)


@instance
def absorb_scale(draw: Draw) -> tuple[Node, ...]:
    x = image(draw, 6)
    x = P(draw(st.sampled_from(("mul", "div"))), x, per_channel(x))
    if draw(st.booleans()):
        x = zero_border(x, (0, 1, 0, 0), (0, 1, 2, 0))
    elif draw(st.booleans()):
        x = interpolated(x, 1, 5)
    return (_linear(draw, x, draw(st.sampled_from((1, 2, 3)))),)


@instance
def absorb_shift(draw: Draw) -> tuple[Node, ...]:
    x = image(draw, 6)
    x = P("add", x, per_channel(x))
    if draw(st.booleans()):
        x = interpolated(x, 1, 5)
    return (_linear(draw, x, draw(st.sampled_from((1, 2, 3)))),)


@instance
def scale_after_columns(draw: Draw) -> tuple[Node, ...]:
    w = source([2, 7, 5], "w")
    factor = spread(source(draw(st.sampled_from(([2, 1, 5], [5], [1]))), "s"), w.shape)
    scaled = P(draw(st.sampled_from(("mul", "div"))), w, factor)
    return (P("matmul", source([2, draw(st.sampled_from((1, 3))), 7]), scaled),)


@instance
def scale_before_columns(draw: Draw) -> tuple[Node, ...]:
    x = P("matmul", source([2, 9, 3]), source([2, 3, 5], "w"))
    factor = spread(source(draw(st.sampled_from(([2, 1, 5], [5], [1]))), "s"), x.shape)
    return (P(draw(st.sampled_from(("mul", "div"))), x, factor),)


@instance
def small_operands_first(draw: Draw) -> tuple[Node, ...]:
    x = image(draw, 3)
    name = draw(st.sampled_from(("add", "max", "min")))
    small = [
        spread(scalar(0.3, FLOAT32), x.shape),
        per_channel(x),
        spread(source([1], "s"), x.shape),
    ]
    first, second, _ = draw(st.permutations(small))
    return (P(name, P(name, x, first), second),)


@instance
def slice_before_reduce(draw: Draw) -> tuple[Node, ...]:
    x = source([3, 5, draw(st.sampled_from((7, symbol("d7", 1))))])
    name = draw(st.sampled_from(("reduce_sum", "reduce_max", "reduce_prod")))
    inner = P(name, x, axes=draw(st.sampled_from(((2,), (1,), (1, 2)))))
    n = inner.type.rank
    return (P("slice", inner, starts=(1,) * n, steps=(1,) * n, shape=(2,) * n),)


@instance
def slice_before_concat(draw: Draw) -> tuple[Node, ...]:
    if draw(st.booleans()):
        whole = P("concat", source([3, 5]), source([2, 5], "y"), source([4, 5], "z"), axis=0)
        cut = {"starts": (1, 4), "steps": (1, -2), "shape": (draw(st.integers(3, 8)), 2)}
        return (P("slice", whole, **cut),)
    d = draw(st.sampled_from((3, symbol("d3", 1))))
    whole = P("concat", source([d, 5]), source([2, 5], "y"), axis=0)
    return (P("slice", whole, starts=(0, 4), steps=(1, -2), shape=(whole.shape[0], 2)),)


@instance
def slice_before_product(draw: Draw) -> tuple[Node, ...]:
    product = P("matmul", source([2, 5, 3]), source([2, 3, 7], "b"))
    starts, shape = draw(st.sampled_from((((0, 4, 1), (2, 2, 3)), ((1, 3, 0), (1, 1, 7)))))
    return (P("slice", product, starts=starts, steps=(1, -2, 1), shape=shape),)


def _reduction(draw: Draw) -> str:
    name: str = draw(st.sampled_from(("reduce_sum", "reduce_max", "reduce_min")))
    return name


@instance
def reduce_before_move(draw: Draw) -> tuple[Node, ...]:
    x = source([3, 5, 7])
    name = _reduction(draw)
    value = 0 if name == "reduce_sum" else draw(st.sampled_from((0, -np.inf, 2)))
    moved = draw(
        st.sampled_from(
            (
                zero_border(x, (0, 1, 0), (0, 2, 0), value),
                P("gather", x, constant(np.array([4, 4, 0])), axis=1),
                P("concat", x, source([3, 2, 7], "y"), axis=1),
            )
        )
    )
    return (P(name, moved, axes=draw(st.sampled_from(((0,), (2,), (0, 2))))),)


@instance
def reduce_pieces(draw: Draw) -> tuple[Node, ...]:
    d = draw(st.sampled_from((5, symbol("d5", 1), 1)))
    whole = P("concat", source([3, d]), source([3, 2], "y"), source([3, 1], "z"), axis=1)
    return (P(_reduction(draw), whole, axes=draw(st.sampled_from(((1,), (0, 1))))),)


@instance
def weighted_sum_to_product(draw: Draw) -> tuple[Node, ...]:
    x = source([2, draw(st.sampled_from((5, symbol("d5", 1), 1))), 7])
    axis = draw(st.integers(1, 2))
    batch = draw(st.sampled_from((1, 2)))
    small = [batch, x.shape[1], 1] if axis == 1 else [batch, 1, 7]
    factor = spread(source(small, "s"), x.shape)
    weighted = P("mul", *draw(st.permutations([x, factor])))
    return (P("reduce_sum", weighted, axes=(axis,)),)


@instance
def negation_last(draw: Draw) -> tuple[Node, ...]:
    x, w = source([5, 3]), source([3, 4], "w")
    negated = P("neg", x)
    ways = (
        P("reduce_sum", negated, axes=(1,)),
        P("matmul", negated, w),
        P("matmul", x, P("neg", w)),
        P("matmul", negated, P("neg", w)),
    )
    return (draw(st.sampled_from(ways)),)


@instance
def sum_before_product(draw: Draw) -> tuple[Node, ...]:
    m = draw(st.sampled_from((5, symbol("d5", 1), 1)))
    product = P("matmul", source([2, m, 3]), source([2, 3, 7], "b"))
    return (P("reduce_sum", product, axes=draw(st.sampled_from(((1,), (2,))))),)


@instance
def extreme_first(draw: Draw) -> tuple[Node, ...]:
    x = source([2, 5, 7])
    axes = draw(st.sampled_from(((1,), (0, 1), (1, 2))))
    uniform = spread(scalar(draw(st.sampled_from((0.25, 0.5))), FLOAT32), x.shape)
    name = draw(st.sampled_from(("max", "min", "mul", "sub", "add", "exp", "tanh", "sigmoid")))
    if name in ("exp", "tanh", "sigmoid"):
        inner = P(name, x)
    elif name in ("add", "max") and 2 not in axes:
        inner = P(name, x, per_channel(x))
    else:
        inner = P(name, x, uniform)
    return (P(draw(st.sampled_from(("reduce_max", "reduce_min"))), inner, axes=axes),)


@instance
def one_pass_variance(draw: Draw) -> tuple[Node, ...]:
    x = source(draw(st.sampled_from(([3, 7, 5], [2, 40, 60], [3, 1, 5]))))
    axes = draw(st.sampled_from(((2,), (1, 2))))
    return (P("reduce_sum", squares(x, axes), axes=axes),)


def squares(x: Node, axes: tuple[int, ...]) -> Node:
    """(x - mean of x along axes)^2."""
    kept = tuple(1 if a in axes else d for a, d in enumerate(x.shape))
    count = np.prod([number(x.shape[a]) for a in axes])
    total = P("reduce_sum", x, axes=axes)
    mean = P("mul", total, spread(scalar(float(1 / count), FLOAT32), total.shape))
    shifted = P("sub", x, spread(P("reshape", mean, shape=kept), x.shape))
    return P("mul", shifted, shifted)


def _terms(draw: Draw, xs: list[Node], ws: list[Node]) -> tuple[Node, ...]:
    if ws[0].type.rank == 2:
        return (P("add", *(P("matmul", flat(x), w) for x, w in zip(xs, ws, strict=True))),)
    attrs = {"strides": (2, 1), "dilations": (1, 1), "groups": 1}
    return (P("add", *(P("conv", x, w, **attrs) for x, w in zip(xs, ws, strict=True))),)


def _taps(draw: Draw) -> tuple[int, ...]:
    taps: tuple[int, ...] = draw(st.sampled_from(((), (2, 1))))
    return taps


@instance
def add_weights(draw: Draw) -> tuple[Node, ...]:
    x, taps = image(draw, 3), _taps(draw)
    return _terms(draw, [x, x], [weights(*taps, 3, 5, seed=k) for k in range(2)])


@instance
def add_operands(draw: Draw) -> tuple[Node, ...]:
    x, taps = image(draw, 3), _taps(draw)
    y, w = source(x.shape, "y"), weights(*taps, 3, 5)
    return _terms(draw, [x, y], [w, w])


@instance
def join_channels(draw: Draw) -> tuple[Node, ...]:
    x, taps = image(draw, 3), _taps(draw)
    y = source([*x.shape[:-1], 4], "y")
    return _terms(draw, [x, y], [weights(*taps, c, 5) for c in (3, 4)])


@instance
def split_convolution(draw: Draw) -> tuple[Node, ...]:
    x = image(draw, 3)
    others = [source([*x.shape[:-1], c], f"y{c}") for c in (2, 5)]
    joined = P("concat", x, *others, axis=3)
    if draw(st.booleans()):
        joined = zero_border(joined, (0, 1, 0, 0), (0, 0, 1, 0))
    attrs = {"strides": (1, 2), "dilations": (1, 1), "groups": 1}
    return (P("conv", joined, weights(2, 2, 10, 4), **attrs),)


def _functions(draw: Draw, x: Node, along: int | None) -> Node:
    """An elementwise primitive of x, and of nothing that varies along an axis (anywhere, for None)."""
    small = [1] * x.type.rank if along is None else [
        1 if a == along else number(d) for a, d in enumerate(x.shape)
    ]  # fmt: skip
    other = spread(weights(*small, seed=5), x.shape)
    name = draw(st.sampled_from(("exp", "add", "max", "sub", "div")))
    return P(name, x) if name == "exp" else P(name, *draw(st.permutations([x, other])))


@instance
def function_before_pad(draw: Draw) -> tuple[Node, ...]:
    x = zero_border(source([3, 5]), (1, 0), (0, 2), draw(st.sampled_from((0, -np.inf, 2))))
    return (_functions(draw, x, None),)


@instance
def function_before_gather(draw: Draw) -> tuple[Node, ...]:
    axis = draw(st.integers(0, 1))
    x = P("gather", source([3, 5]), constant(np.array([2, 1, 0, 1])), axis=axis)
    return (_functions(draw, x, axis),)


@instance
def function_before_concat(draw: Draw) -> tuple[Node, ...]:
    axis = draw(st.integers(0, 1))
    shapes = ([3, 5], [4, 5]) if axis == 0 else ([3, 5], [3, 2])
    pieces = [source(s, f"x{k}") for k, s in enumerate(shapes)]
    return (_functions(draw, P("concat", *pieces, axis=axis), draw(st.integers(0, 1))),)


@instance
def function_after_concat(draw: Draw) -> tuple[Node, ...]:
    axis, along = draw(st.integers(0, 1)), draw(st.integers(0, 1))
    name = draw(st.sampled_from(("exp", "add", "max")))
    pieces = []
    for k, n in enumerate((4, 1, 2)):
        x = source([n, 5] if axis == 0 else [3, n], f"x{k}")
        small = [1 if a == along else number(d) for a, d in enumerate(x.shape)]
        pieces.append(P(name, x, *(spread(weights(*small), x.shape),) * (name != "exp")))
    return (P("concat", *pieces, axis=axis),)


@instance
def function_after_slice(draw: Draw) -> tuple[Node, ...]:
    x, y = source([4, 7]), source([4, 7], "y")
    inner = P("add", x, y) if draw(st.booleans()) else P("exp", x)
    return (P("slice", inner, starts=(1, 6), steps=(1, -2), shape=(2, 3)),)


@instance
def function_after_gather(draw: Draw) -> tuple[Node, ...]:
    axis = draw(st.integers(0, 1))
    inner = _functions(draw, source([4, 7]), draw(st.integers(0, 1)))
    return (P("gather", inner, constant(np.array([3, -1, 0])), axis=axis),)


def _three_by_three(draw: Draw) -> tuple[Node, ...]:
    h, w = draw(st.sampled_from(((7, 9), (6, 4), (3, symbol("d8", 3)))))
    attrs = {"strides": (1, 1), "dilations": (1, 1), "groups": 1}
    return (P("conv", source([2, h, w, 17]), weights(3, 3, 17, 16), **attrs),)


@instance
def winograd_2(draw: Draw) -> tuple[Node, ...]:
    return _three_by_three(draw)


@instance
def winograd_4(draw: Draw) -> tuple[Node, ...]:
    return _three_by_three(draw)
