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
    ways = (P("slice", x, **attrs), P("reduce_sum", x, axes=(1,)), interpolated(x, 2, 1))
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
    return (P("reduce_sum", P(name, x, scale), axes=axes),)


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
