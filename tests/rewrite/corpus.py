"""Drawn instances of every rule: a function from hypothesis' `draw` to an expression on which the rule must fire.

Extents are distinct and may be symbolic: the symbol `dN` always has the value N, so a shape tells its own numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from fissile.ir.dim import DimLike, symbol, symbols
from fissile.ir.dim import evaluate as evaluate_dim
from fissile.ir.dtype import BFLOAT16, BOOL, FLOAT32, FLOAT64, INT8, INT32, INT64, DType, dtype
from fissile.ir.graph import Graph, Node, data, evaluate, make, toposort
from fissile.ir.primitive import PRIMITIVES, cast, constant, scalar
from fissile.rewrite.shape import moves_only_units

Draw = Any  # what hypothesis hands in; generic in the strategy
EXTENTS = (1, 2, 3, 4, 5, 7)
ONE = symbol("d1")  # 1, but not provably
SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, 3e38)


def P(primitive: str, /, *inputs: Node, **attrs: Any) -> Node:
    """A node of the primitive called so."""
    return make(PRIMITIVES[primitive], *inputs, **attrs)


def number(extent: DimLike) -> int:
    """The value of an extent, by the convention on symbols."""
    return evaluate_dim(extent, {s.name: int(s.name[1:]) for s in symbols(extent)})


def extents(draw: Draw, rank: int, *, units: bool = True, symbolic: bool = True) -> list[DimLike]:
    choice = EXTENTS if units else EXTENTS[1:]
    numbers = draw(st.lists(st.sampled_from(choice), min_size=rank, max_size=rank, unique=True))
    is_symbol = [symbolic and n > 1 and draw(st.booleans()) for n in numbers]
    return [symbol(f"d{n}", 1) if s else n for n, s in zip(numbers, is_symbol, strict=True)]


def source(shape: Sequence[DimLike], name: str = "x", of: DType = FLOAT32) -> Node:
    return P("input", name=name, dtype=of.name, shape=tuple(shape))


def tensor(draw: Draw, low: int = 1, high: int = 4, **options: Any) -> Node:
    return source(extents(draw, draw(st.integers(low, high)), **options))


def numbers(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 2, shape).astype(np.float32)


def perm_of(draw: Draw, x: Node) -> tuple[int, ...]:
    perm = tuple(draw(st.permutations(range(x.type.rank))))
    assume(not moves_only_units(x.shape, perm))
    return perm


def transposed(draw: Draw, low: int = 2, high: int = 4) -> Node:
    x = tensor(draw, low, high)
    return P("transpose", x, perm=perm_of(draw, x))


def zero_border(x: Node, low: tuple[int, ...], high: tuple[int, ...], value: float = 0) -> Node:
    return P("pad", x, low=low, high=high, value=data(np.array(value, x.dtype.numpy)))


def one_of(draw: Draw, *choices: Any) -> Any:
    """One of the values."""
    return draw(st.sampled_from(choices))


def one(draw: Draw, *nodes: Node) -> Node:
    """One of the nodes."""
    chosen: Node = draw(st.sampled_from(nodes))
    return chosen


def per_axis(draw: Draw, x: Node, low: int, high: int) -> tuple[int, ...]:
    return tuple(draw(st.integers(low, high)) for _ in x.shape)


def some_slice(draw: Draw, x: Node) -> Node:
    starts, steps, shape = [], [], []
    for extent in x.shape:
        n = number(extent)
        start = draw(st.integers(0, n - 1))
        step = draw(st.sampled_from((1, 2, -1, -2)))
        room = (n - 1 - start) // step if step > 0 else start // -step
        starts.append(start)
        steps.append(step)
        shape.append(draw(st.integers(0, room + 1)))
    return P("slice", x, starts=tuple(starts), steps=tuple(steps), shape=tuple(shape))


def broadcast_from(draw: Draw, shape: tuple[DimLike, ...], name: str) -> Node:
    """A broadcast to `shape` of an input that has some of its axes."""
    first = draw(st.integers(0, len(shape)))
    small = [d if draw(st.booleans()) else 1 for d in shape[first:]]
    return P("broadcast", source(small, name), shape=shape)


# ---------------------------------------------------------------- compose

INSTANCES: dict[str, Callable[[Draw], Node]] = {}


def instance(build: Callable[[Draw], Node]) -> Callable[[Draw], Node]:
    INSTANCES[build.__name__] = build
    return build


@instance
def merge_transposes(draw: Draw) -> Node:
    inner = transposed(draw)
    return P("transpose", inner, perm=tuple(draw(st.permutations(range(inner.type.rank)))))


@instance
def transpose_to_reshape(draw: Draw) -> Node:
    shape = extents(draw, 2, units=False)
    return P("transpose", source([1, shape[0], 1, shape[1]]), perm=(1, 2, 0, 3))


@instance
def merge_reshapes(draw: Draw) -> Node:
    a, b, c = extents(draw, 3)
    x = source([a, b, c])
    return P("reshape", P("reshape", x, shape=(a * b, c)), shape=(b, 1, c, a))


@instance
def drop_slice(draw: Draw) -> Node:
    x = tensor(draw)
    n = x.type.rank
    return P("slice", x, starts=(0,) * n, steps=(1,) * n, shape=x.shape)


@instance
def merge_slices(draw: Draw) -> Node:
    inner = some_slice(draw, tensor(draw))
    assume(all(number(d) > 0 for d in inner.shape))
    return some_slice(draw, inner)


def _three_pieces(draw: Draw) -> tuple[list[Node], int]:
    shape = extents(draw, draw(st.integers(1, 3)))
    axis = draw(st.integers(0, len(shape) - 1))
    pieces = []
    for name, n in zip("abc", (2, shape[axis], 4), strict=True):
        pieces.append(source([*shape[:axis], n, *shape[axis + 1 :]], name))
    return pieces, axis


@instance
def slice_of_concat(draw: Draw) -> Node:
    pieces, axis = _three_pieces(draw)
    whole = P("concat", *pieces, axis=axis)
    starts: list[DimLike] = [0] * whole.type.rank
    shape = list(whole.shape)
    starts[axis], shape[axis] = pieces[0].shape[axis], pieces[1].shape[axis]
    if draw(st.booleans()):
        starts[axis], shape[axis] = pieces[0].shape[axis] + pieces[1].shape[axis] + 1, 2
    steps = (1,) * whole.type.rank
    return P("slice", whole, starts=tuple(starts), steps=steps, shape=tuple(shape))


@instance
def slice_of_broadcast(draw: Draw) -> Node:
    shape = tuple(extents(draw, draw(st.integers(1, 4))))
    return some_slice(draw, broadcast_from(draw, shape, "x"))


@instance
def slice_of_gather(draw: Draw) -> Node:
    x = source(extents(draw, 3))
    axis = draw(st.integers(0, 2))
    indices = one(draw, constant(np.array([0, -1, 0])), source([2, 3], "i", INT64))
    return some_slice(draw, P("gather", x, indices, axis=axis))


@instance
def slice_of_pad(draw: Draw) -> Node:
    x = source([4, 3, *extents(draw, 1)])
    whole = zero_border(x, (2, 1, 0), (1, 0, 0), draw(st.sampled_from((0, 3))))
    ways = (((1, 0, 0), (1, 1, 1), (4, 4)), ((3, 1, 0), (2, 1, 1), (2, 3)),
            ((4, 3, 0), (-2, -1, 1), (2, 3)), ((2, 2, 0), (1, 1, 1), (5, 1)))  # fmt: skip
    starts, steps, shape = draw(st.sampled_from(ways))
    return P("slice", whole, starts=starts, steps=steps, shape=(*shape, x.shape[2]))


@instance
def slice_of_view(draw: Draw) -> Node:
    a, b = 7, draw(st.sampled_from((5, symbol("d5", 1))))
    x = source([1, a, b]) if draw(st.booleans()) else source([a, 1, b])
    shape = draw(st.sampled_from(((a, b), (a, b, 1), (1, a, 1, b))))
    where = [(2, -1, 3) if d == a else (4, -2, 2) if d != 1 else (0, 1, 1) for d in shape]
    starts, steps, extent = zip(*where, strict=True)
    return P("slice", P("reshape", x, shape=shape), starts=starts, steps=steps, shape=extent)


@instance
def drop_pad(draw: Draw) -> Node:
    x = tensor(draw)
    return zero_border(x, (0,) * x.type.rank, (0,) * x.type.rank)


@instance
def merge_pads(draw: Draw) -> Node:
    x = tensor(draw, 1, 3)
    inner = zero_border(x, per_axis(draw, x, 0, 2), per_axis(draw, x, 0, 2), 3)
    return zero_border(inner, per_axis(draw, x, 0, 2), per_axis(draw, x, 0, 2), 3)


@instance
def drop_dilate(draw: Draw) -> Node:
    n = tensor(draw, 2, 2).shape
    return P("dilate", source([1, *n]), factors=(3, 1, 1))


@instance
def drop_broadcast(draw: Draw) -> Node:
    x = tensor(draw)
    lead = draw(st.integers(0, 2))
    return P("broadcast", x, shape=(1,) * lead + x.shape)


@instance
def merge_broadcasts(draw: Draw) -> Node:
    shape = tuple(extents(draw, 3))
    inner = broadcast_from(draw, (1, *shape[1:]), "x")
    return P("broadcast", inner, shape=(2, *shape))


@instance
def strip_broadcast(draw: Draw) -> Node:
    a, b = extents(draw, 2)
    return P("broadcast", source([1, 1, b]), shape=(3, a, b))


@instance
def drop_concat(draw: Draw) -> Node:
    a, b = extents(draw, 2)
    full = [source([a, b])] + ([source([a, 2], "y")] if draw(st.booleans()) else [])
    pieces = draw(st.permutations([*full, source([a, 0], "e"), source([a, 0], "f")]))
    return P("concat", *pieces, axis=1)


@instance
def merge_concats(draw: Draw) -> Node:
    pieces, axis = _three_pieces(draw)
    inner = P("concat", *pieces[:2], axis=axis)
    return P("concat", *draw(st.permutations([inner, pieces[2]])), axis=axis)


@instance
def concat_of_slices(draw: Draw) -> Node:
    a, b = extents(draw, 2)
    x, step = source([a, b, 9]), draw(st.sampled_from((1, 2)))
    cuts = []
    for start, n in ((0, 2), (2 * step, 2)):
        attrs = {"starts": (0, 0, start), "steps": (1, 1, step), "shape": (a, b, n)}
        cuts.append(P("slice", x, **attrs))
    other = [source([a, b, 3], "y")] if draw(st.booleans()) else []
    return P("concat", *other, *cuts, axis=2)


@instance
def merge_casts(draw: Draw) -> Node:
    chains = (
        ("float16", "float32", "float64"),
        ("float32", "float64", "int32"),
        ("float32", "float64", "float32"),
        ("int8", "int32", "uint8"),
        ("uint8", "float32", "bool"),
        ("int16", "float32", "float64"),
        ("bool", "int64", "float32"),
        ("int32", "float64", "float32"),
    )
    first, middle, last = draw(st.sampled_from(chains))
    x = source(extents(draw, 2), of=dtype(first))
    return P("cast", cast(x, dtype(middle)), source=middle, to=last)


@instance
def drop_reduce(draw: Draw) -> Node:
    name = draw(st.sampled_from(("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")))
    a, b = extents(draw, 2)
    return P(name, source([1, a, 1, b]), axes=draw(st.sampled_from(((0,), (2,), (0, 2), ()))))


@instance
def reduce_of_broadcast(draw: Draw) -> Node:
    a, b = extents(draw, 2)
    x = P("broadcast", source([a, 1, b]), shape=(3, a, 6, b))
    name = draw(st.sampled_from(("reduce_sum", "reduce_max", "reduce_min")))
    return P(name, x, axes=draw(st.sampled_from(((0,), (2,), (1, 2), (0, 1), (1,), (0, 3)))))


# ---------------------------------------------------------------- fold


@instance
def fold_constants(draw: Draw) -> Node:
    shape = tuple(extents(draw, 3, symbolic=False))
    w = constant(numbers(0, tuple(map(number, shape))))
    ways = (
        P("transpose", w, perm=(2, 0, 1)),
        P("mul", w, P("broadcast", scalar(3, FLOAT32), shape=shape)),
        P("reduce_sum", w, axes=(1,)),
        P("iota", dtype="int64", shape=shape, axis=1),
        P("extents", values=(3, 5), shape=(2,)),
        P("exp", w),
        cast(w, BFLOAT16),
    )
    return one(draw, *ways)


@instance
def constant_last(draw: Draw) -> Node:
    shape = tuple(extents(draw, 2, symbolic=False))
    c = constant(numbers(0, tuple(map(number, shape))))
    return P(draw(st.sampled_from(("add", "mul", "max", "eq"))), c, source(shape))


@instance
def hoist_broadcast(draw: Draw) -> Node:
    shape = (*extents(draw, 3, units=False), 6)
    small = [shape[0], 1, shape[2], 1], [draw(st.sampled_from((1, shape[2]))), 1]
    a, b = (P("broadcast", source(s, n), shape=shape) for s, n in zip(small, "ab", strict=True))
    return one(draw, P("mul", a, b), P("exp", b), P("select", P("lt", a, b), b, a))


# ---------------------------------------------------------------- algebra


def _beside(x: Node, value: float) -> Node:
    return P("broadcast", scalar(value, x.dtype), shape=x.shape)


@instance
def drop_neutral(draw: Draw) -> Node:
    cases = (
        ("mul", 1, FLOAT32), ("div", 1, FLOAT32), ("pow", 1, FLOAT32), ("sub", 0, FLOAT32),
        ("mul", 1, INT32), ("or", 0, BOOL), ("and", True, BOOL), ("and", -1, INT32),
        ("shift_left", 0, INT32),
    )  # fmt: skip
    name, value, of = draw(st.sampled_from(cases))
    x = source(extents(draw, 2), of=of)
    return P(name, x, _beside(x, value))


@instance
def drop_add_zero(draw: Draw) -> Node:
    x = tensor(draw)
    i = source(x.shape, "i", INT32)
    e = P("exp", x)
    cases = (P("add", x, _beside(x, -0.0)), P("add", e, _beside(e, 0)), P("add", i, _beside(i, 0)))
    return one(draw, *cases)


@instance
def div_to_mul(draw: Draw) -> Node:
    x = tensor(draw)
    return P("div", x, _beside(x, draw(st.sampled_from((0.5, -8.0, 2.0**100)))))


@instance
def power_to_mul(draw: Draw) -> Node:
    x = source(extents(draw, 2), of=draw(st.sampled_from((FLOAT32, INT32))))
    return P(
        "pow", x, _beside(x, draw(st.sampled_from((2, 3, -1) if x.dtype.is_float else (2, 3))))
    )


@instance
def tanh_of_softplus(draw: Draw) -> Node:
    x = source(extents(draw, 2), of=draw(st.sampled_from((FLOAT32, FLOAT64))))
    e = P("exp", x)
    tail = P("log1p", P("exp", P("neg", P("abs", x))))
    safe = P("add", P("max", x, _beside(x, 0)), tail)
    plain = P("log", P("add", e, _beside(e, 1)))
    return P("tanh", one(draw, safe, P("log1p", e), plain))


@instance
def sub_to_add(draw: Draw) -> Node:
    x = source(extents(draw, 2), of=draw(st.sampled_from((FLOAT32, INT8))))
    return P("sub", x, _beside(x, draw(st.sampled_from((3, 100, -128)))))


@instance
def drop_double(draw: Draw) -> Node:
    name, of = draw(st.sampled_from((("neg", FLOAT32), ("not", BOOL), ("not", INT8))))
    x = source(extents(draw, 2), of=of)
    return P(name, P(name, x))


@instance
def drop_repeated(draw: Draw) -> Node:
    x = tensor(draw)
    return P(draw(st.sampled_from(("min", "max"))), x, x)


@instance
def fold_select(draw: Draw) -> Node:
    a = tensor(draw)
    b = source(a.shape, "b")
    known = P("broadcast", scalar(draw(st.booleans()), BOOL), shape=a.shape)
    return one(draw, P("select", known, a, b), P("select", P("lt", a, b), a, a))


@instance
def select_not(draw: Draw) -> Node:
    a = tensor(draw)
    b = source(a.shape, "b")
    return P("select", P("not", P("lt", a, b)), a, b)


@instance
def compare_iota(draw: Draw) -> Node:
    shape = tuple(extents(draw, 2))
    i = P("iota", dtype="int64", shape=shape, axis=draw(st.integers(0, 1)))
    name, bound = one_of(draw, ("ge", 0), ("gt", -1), ("lt", 0), ("le", -2))
    return P(name, i, _beside(i, bound))


# ---------------------------------------------------------------- sink


def _beside_transpose(draw: Draw, t: Node, name: str) -> Node:
    """An operand of t's shape that can be transposed back for nothing."""
    way = draw(st.integers(0, 4))
    if way == 0:
        inner = source(t.inputs[0].shape, name)
        return P("transpose", inner, perm=t.attr("perm"))
    if way == 1:
        return P("broadcast", scalar(2, FLOAT32), shape=t.shape)
    if way == 3:
        last = tuple(d if isinstance(d, int) else 1 for d in t.shape[1:])
        return P("broadcast", constant(numbers(8, last)), shape=t.shape)
    if way == 2:
        axis = draw(st.integers(0, t.type.rank - 1))
        lone = [d if a == axis else 1 for a, d in enumerate(t.shape)]
        return P("broadcast", source(lone, name), shape=t.shape)
    return cast(P("iota", dtype="int64", shape=t.shape, axis=t.type.rank - 1), FLOAT32)


@instance
def transpose_of_broadcast(draw: Draw) -> Node:
    a, b, c = extents(draw, 3, units=False)
    x = P("broadcast", source([b, 1]), shape=(a, b, c))
    i = P("iota", dtype="int64", shape=(a, b, c), axis=1)
    perm = tuple(draw(st.permutations(range(3))))
    return P("transpose", draw(st.sampled_from((x, i))), perm=perm)


@instance
def reshape_of_broadcast(draw: Draw) -> Node:
    a, b, c = extents(draw, 3, units=False)
    cases = (
        P("reshape", P("broadcast", source([c]), shape=(a, b, c)), shape=(a * b, c)),
        P("reshape", P("broadcast", source([]), shape=(a, 6)), shape=(3, a, 2)),
        P("reshape", P("broadcast", source([6, 1]), shape=(a, 6, b)), shape=(a, 3, 2, 1, b)),
        P("reshape", P("broadcast", source([a, 1]), shape=(a, c)), shape=(1, a, 1, c)),
    )
    return one(draw, *cases)


@instance
def sink_transpose_elementwise(draw: Draw) -> Node:
    t = transposed(draw)
    other = _beside_transpose(draw, t, "y")
    assume(other.name != "cast")
    choices = (
        P("exp", t),
        P("sub", other, t),
        P("select", P("lt", t, other), other, t),
        cast(t, INT32),
    )
    return one(draw, *choices)


@instance
def sink_transpose_concat(draw: Draw) -> Node:
    t = transposed(draw)
    pieces = [t, _beside_transpose(draw, t, "y"), _beside_transpose(draw, t, "z")]
    assume(all(p.name != "cast" for p in pieces))
    axis = draw(st.integers(0, t.type.rank - 1))
    return P("concat", *draw(st.permutations(pieces)), axis=axis)


@instance
def sink_transpose_reduce(draw: Draw) -> Node:
    t = transposed(draw)
    axes = draw(st.sets(st.integers(0, t.type.rank - 1)))
    name = draw(st.sampled_from(("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")))
    return P(name, t, axes=tuple(sorted(axes)))


@instance
def sink_transpose_arg(draw: Draw) -> Node:
    t = transposed(draw)
    axis = draw(st.integers(0, t.type.rank - 1))
    return P(draw(st.sampled_from(("arg_max", "arg_min"))), t, axis=axis, last=draw(st.booleans()))


@instance
def sink_transpose_pad(draw: Draw) -> Node:
    t = transposed(draw)
    return zero_border(t, per_axis(draw, t, 0, 2), per_axis(draw, t, 0, 2), -1)


@instance
def sink_transpose_slice(draw: Draw) -> Node:
    return some_slice(draw, transposed(draw))


@instance
def sink_transpose_dilate(draw: Draw) -> Node:
    t = transposed(draw, 2, 3)
    return P("dilate", t, factors=per_axis(draw, t, 1, 3))


@instance
def sink_transpose_window(draw: Draw) -> Node:
    t = transposed(draw, 2, 3)
    places = [a for a, d in enumerate(t.shape) if number(d) >= 3]
    axes = draw(st.permutations(places))[: draw(st.integers(1, 2))]
    assume(axes)
    strides = tuple(draw(st.integers(1, 2)) for _ in axes)
    size = tuple(2 for _ in axes)
    dilations = tuple(draw(st.integers(1, 2)) for _ in axes)
    return P("window", t, axes=tuple(axes), sizes=size, strides=strides, dilations=dilations)


@instance
def sink_transpose_gather(draw: Draw) -> Node:
    t = transposed(draw, 2, 3)
    rank = draw(st.integers(0, 2))
    where = source([2, 6][:rank], "i", INT64)
    return P("gather", t, where, axis=draw(st.integers(0, t.type.rank - 1)))


@instance
def sink_transpose_reshape(draw: Draw) -> Node:
    n, h, w, c = extents(draw, 4, units=False)
    x = source([n, h, w, 6])
    t = P("transpose", x, perm=(0, 3, 1, 2))
    unit = P("transpose", source([h, 1, w, c]), perm=(3, 1, 0, 2))
    shuffle = P("transpose", source([n, h, 3, 2]), perm=(0, 3, 2, 1))
    cases = (
        P("reshape", t, shape=(n, 6, h * w)),
        P("reshape", t, shape=(n, 3, 2, h, w)),
        P("reshape", t, shape=(1, n, 6, h, 1, w)),
        P("reshape", unit, shape=(c, h, w)),
        P("reshape", unit, shape=(c, h * w, 1, 1)),
        P("reshape", shuffle, shape=(n, 6, h)),
        P("reshape", P("transpose", source([n, ONE, w, c]), perm=(0, 3, 1, 2)), shape=(n, c, w)),
    )
    return one(draw, *cases)


@instance
def sink_transpose_repeat(draw: Draw) -> Node:
    h, w, c = extents(draw, 3, units=False)
    t = P("transpose", source([6, h, 1, w, 1, c]), perm=(0, 5, 1, 2, 3, 4))
    wide = P("broadcast", t, shape=(6, c, h, 2, w, 3))
    return P("reshape", wide, shape=(6, c, h * 2, w * 3))


@instance
def merge_transposes_of_parts(draw: Draw) -> Node:
    a, b = extents(draw, 2, units=False)
    t = P("transpose", source([6, a, b, 8]), perm=(0, 2, 1, 3))
    turned = P("transpose", P("reshape", t, shape=(6, b, a * 8)), perm=(0, 2, 1))
    return P("matmul", turned, source([6, b, 9], "w"))


def _split(draw: Draw) -> tuple[Node, tuple[DimLike, ...]]:
    a, b, c = extents(draw, 3, units=False)
    shape = draw(st.sampled_from(((a, b, c), (a, b, 1, c), (1, a, b, c), (a, b, c, 1))))
    return P("reshape", source([a * b, c]), shape=shape), shape


@instance
def sink_split_elementwise(draw: Draw) -> Node:
    x, shape = _split(draw)
    c = max(shape, key=lambda d: d is x.inputs[0].shape[1])
    lone = [c if d is c else 1 for d in shape]
    others = (
        P("broadcast", source(lone, "y"), shape=shape),
        P("broadcast", source([], "y"), shape=shape),
        source(shape, "y"),
        P("exp", source(shape, "y")),
        x,
    )
    other = draw(st.sampled_from(others))
    return one(draw, P("exp", x), P("sub", x, other), P("sub", other, x))


@instance
def sink_split_reduce(draw: Draw) -> Node:
    x, shape = _split(draw)
    c = x.inputs[0].shape[1]
    last = tuple(k for k, d in enumerate(shape) if d is c)
    rest = tuple(k for k, d in enumerate(shape) if d is not c)
    name = draw(st.sampled_from(("reduce_sum", "reduce_max")))
    return P(name, x, axes=draw(st.sampled_from((last, rest, (*range(len(shape)),)))))


# ---------------------------------------------------------------- linear


@instance
def conv_to_matmul(draw: Draw) -> Node:
    spatial = draw(st.integers(1, 2))
    shape = extents(draw, spatial + 1)
    x = source([*shape, 6])
    w = source([1] * spatial + [6, 4], "w")
    strides = tuple(draw(st.integers(1, 3)) for _ in range(spatial))
    return P("conv", x, w, strides=strides, dilations=(1,) * spatial, groups=1)


@instance
def flatten_matmul(draw: Draw) -> Node:
    batch = extents(draw, draw(st.integers(1, 2)))
    m = draw(st.sampled_from((1, 6)))
    a = source([*batch, m, 8])
    if draw(st.booleans()):  # rows in another order
        a = P("transpose", source([m, *batch, 8]), perm=(*range(1, len(batch) + 1), 0, len(batch) + 1))
    small = draw(st.sampled_from(([8, 9], [1, 8, 9])))
    b = P("broadcast", source(small, "b"), shape=(*batch, 8, 9))
    return P("matmul", a, b)


def _linear(draw: Draw) -> Node:
    if draw(st.booleans()):
        return P("matmul", source([3, 5]), constant(numbers(1, (5, 4))))
    groups = draw(st.sampled_from((1, 2)))
    w = constant(numbers(2, (2, 3, 6 // groups, 4)))
    x = source([symbol("d2", 1), 5, 7, 6])
    return P("conv", x, w, strides=(1, 2), dilations=(2, 1), groups=groups)


def _per_output(draw: Draw, y: Node, seed: int) -> Node:
    shape = draw(st.sampled_from(((), (1,), (4,), (1, 4))))
    return P("broadcast", constant(numbers(seed, shape)), shape=y.shape)


@instance
def scale_linear(draw: Draw) -> Node:
    y = _linear(draw)
    return P(draw(st.sampled_from(("mul", "div"))), y, _per_output(draw, y, 3))


@instance
def distribute_scale(draw: Draw) -> Node:
    y = _linear(draw)
    shifted = P("add", y, _per_output(draw, y, 4))
    return P(draw(st.sampled_from(("mul", "div"))), shifted, _per_output(draw, y, 5))


@instance
def merge_biases(draw: Draw) -> Node:
    y = _linear(draw)
    return P("add", P("add", y, _per_output(draw, y, 6)), _per_output(draw, y, 7))


# ---------------------------------------------------------------- running


def graph_of(*roots: Node) -> Graph:
    """A graph with these outputs, named y0, y1, ...; its inputs are those it reads."""
    inputs = [n for n in toposort(roots) if n.name == "input"]
    return Graph(tuple(inputs), tuple((f"y{k}", r) for k, r in enumerate(roots)))


def feeds_of(graph: Graph, seed: int, special: bool) -> dict[str, np.ndarray]:
    """Arrays for a graph's inputs; `special` sprinkles zeros of both signs, infinities, NaN and denormals."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for node in graph.inputs:
        shape = tuple(map(number, node.shape))
        array: np.ndarray = rng.uniform(-3, 3, shape)
        if special and node.dtype.is_float:
            array = np.where(rng.random(shape) < 0.3, rng.choice(SPECIAL, shape), array)
        if not node.dtype.is_float:
            array = rng.integers(0, 2, shape)
        with np.errstate(over="ignore"):
            feeds[node.attr("name")] = array.astype(node.dtype.numpy)
    return feeds


def values_of(graph: Graph, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs, every symbol dN being N."""
    return evaluate(graph, feeds, {f"d{n}": n for n in range(20)})
