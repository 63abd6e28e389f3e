"""Primitive graphs drawn by hypothesis, with values for their inputs.

Out of `cases`: a graph of a few primitives of every family over extents that are numbers or free dimensions, two
assignments of the free dimensions, and how its inputs are filled. Invariant: no tensor has more than `LIMIT` elements
at any of the assignments, and every value is defined (indices in range, no order-dependent overflow).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fissile.ir.dim import DimLike, equal, less_equal, lower_bound, symbol
from fissile.ir.dim_logic import joined
from fissile.ir.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT32, INT64, UINT8, DType
from fissile.ir.graph import Graph, Node, bind, data, make
from fissile.ir.primitive import PRIMITIVES, cast, constant
from fissile.ir.scalar import to_bfloat16

LIMIT = 20_000
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 13, 14, 15, 16, 17, 29, 31, 32, 33, 49)
LARGE = (97, 130, 257, 300, 530)
FREE = (0, 1, 2, 3, 5, 6, 7, 12, 13, 14, 15, 16, 17, 31, 37, 48, 97)
FLOATS, HALVES = (FLOAT32, FLOAT64), (FLOAT16, BFLOAT16)
NUMBERS = (FLOAT32, FLOAT64, INT32, INT64, UINT8)
ODD = (0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan)
SPECIAL = (*ODD, 1e-41, -1e-45, 3e38, -3e38)
Draw = Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    """A graph, the assignments of its free dimensions to try, the seed of its inputs, and the kind of their values.

    filling: "whole" (small integers: sums and products are exact), "real", "odd" (NaN and infinities among
    integers), or "special" (huge and tiny numbers, too: their sums depend on the order).
    """

    graph: Graph
    assignments: tuple[dict[str, int], ...]
    seed: int
    filling: str
    canonical: bool

    def __repr__(self) -> str:
        numbers = {n: k for k, n in enumerate(self.graph.nodes())}
        lines = [f"Case of {self.filling} values, seed {self.seed}, at {self.assignments}"]
        lines[0] += ", canonicalized" if self.canonical else ""
        for node, k in numbers.items():
            reads = ", ".join(f"%{numbers[i]}" for i in node.inputs)
            attrs = ", ".join(f"{key}={value}" for key, value in node.attrs)
            lines.append(f"  %{k}: {node.type} = {node.name}({reads}; {attrs})")
        lines += [f"  {name} = %{numbers[node]}" for name, node in self.graph.outputs]
        return "\n".join(lines)


@dataclass
class _Pool:
    """The tensors made so far, and chance: `rng` is set anew before each operation, so that others may go."""

    assignments: tuple[dict[str, int], ...]
    rng: np.random.Generator
    filling: str
    nodes: list[Node] = field(default_factory=list)
    inputs: list[Node] = field(default_factory=list)
    free: dict[DimLike, str] = field(default_factory=dict)  # to each a name that broadcasts with it

    def choice(self, values: Sequence[Any]) -> Any:
        return values[self.integer(0, len(values) - 1)]

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def flip(self) -> bool:
        return self.integer(0, 1) == 1

    def order(self, count: int) -> tuple[int, ...]:
        return tuple(int(k) for k in self.rng.permutation(count))

    def some(self, keep: Callable[[Node], bool] = lambda n: True) -> Node:
        """One of the tensors that `keep` holds for, the newest ones first in mind."""
        found = [n for n in self.nodes if keep(n)]
        if not found:
            raise ValueError("no such tensor")
        recent = found[-4:] if self.flip() else found
        node: Node = self.choice(recent)
        return node

    def fits(self, node: Node) -> bool:
        for values in self.assignments:
            shape = bind(node.shape, values)
            if math.prod(shape) > LIMIT or any(d < 0 for d in shape):
                return False
        return True

    def leaf(self, of: DType, shape: tuple[DimLike, ...]) -> Node:
        """A new input, or a constant where all extents are numbers."""
        static = all(isinstance(d, int) for d in shape)
        if static and self.flip():
            numbers = tuple(int(d) for d in shape)  # type: ignore[arg-type]
            return constant(values_of(self.rng, of, numbers, self.filling), of)
        node = make(PRIMITIVES["input"], name=f"x{len(self.inputs)}", dtype=of.name, shape=shape)
        self.inputs.append(node)
        return node


def values_of(
    rng: np.random.Generator, of: DType, shape: tuple[int, ...], filling: str
) -> np.ndarray:
    """An array of storage type `of` in the manner of `filling`."""
    if of is BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if of.is_integer:
        low, high = (0, 9) if of.kind == "u" else (-4, 5)
        return rng.integers(low, high, shape).astype(of.numpy)
    if filling in ("whole", "odd"):
        values = rng.integers(-3, 4, shape).astype(np.float64)
    else:
        values = rng.uniform(-2, 2, shape)
    if filling in ("odd", "special"):
        chosen = rng.choice(np.array(ODD if filling == "odd" else SPECIAL), shape)
        values = np.where(rng.random(shape) < 0.3, chosen, values)
    if of is BFLOAT16:
        return to_bfloat16(values.astype(np.float32))
    with np.errstate(all="ignore"):
        return values.astype(of.numpy)


# ---------------------------------------------------------------- operations

Operation = Callable[[_Pool], Node]
_UNARY = ("neg", "abs", "sqrt", "exp", "tanh", "erf", "sigmoid", "sin", "floor", "rint", "log1p")
_EXACT = ("neg", "abs", "floor", "ceil", "rint", "trunc")
_BINARY = ("add", "sub", "mul", "min", "max")


def _prim(name: str, *inputs: Node, **attrs: Any) -> Node:
    return make(PRIMITIVES[name], *inputs, **attrs)


def _unary(p: _Pool) -> Node:
    x = p.some(lambda n: n.dtype in NUMBERS)
    if x.dtype.is_integer:
        return _prim(p.choice(("neg", "abs", "not")), x)
    if p.filling != "real":
        return _prim(p.choice(_EXACT), x)
    is_coarse = any(n.dtype.is_half for n in p.nodes)  # whole numbers are then met exactly, or just missed
    return _prim(p.choice([n for n in _UNARY if n not in _EXACT[2:] or not is_coarse]), x)


def _like(p: _Pool, x: Node) -> Node:
    """A tensor of x's type: one that is there, or a new one broadcast to it."""
    if p.flip():
        return p.some(lambda n: n.type == x.type)
    shape = tuple(d if p.flip() else 1 for d in x.shape)
    cut = p.integer(0, len(shape))
    leaf = p.leaf(x.dtype, shape[cut:])
    return leaf if leaf.shape == x.shape else _prim("broadcast", leaf, shape=x.shape)


def _binary(p: _Pool) -> Node:
    x = p.some(lambda n: n.dtype in NUMBERS)
    y = _like(p, x)
    names = (*_BINARY, "div") if p.filling == "real" and x.dtype.is_integer else _BINARY
    pair = (x, y) if p.flip() else (y, x)
    return _prim(p.choice(names), *pair)


def _compare(p: _Pool) -> Node:
    x = p.some(lambda n: n.dtype in NUMBERS and (p.filling != "real" or n.dtype.is_integer))
    return _prim(p.choice(("eq", "ne", "lt", "le", "gt", "ge")), x, _like(p, x))


def _where(p: _Pool) -> Node:
    test = p.some(lambda n: n.dtype is BOOL)
    x = p.some(lambda n: n.shape == test.shape)
    return _prim("select", test, x, _like(p, x))


def _logic(p: _Pool) -> Node:
    x = p.some(lambda n: n.dtype is BOOL)
    return _prim(p.choice(("and", "or", "xor")), x, _like(p, x))


def _cast(p: _Pool) -> Node:
    x = p.some()
    to = p.choice((FLOAT32, FLOAT64, FLOAT16, BFLOAT16, INT32, INT64, UINT8, BOOL))
    if x.dtype.is_float and not to.is_float and p.filling != "whole":
        raise ValueError("a float near a whole number may go either way")
    if x.dtype.is_float and to.kind == "u":
        raise ValueError("negative floats have no unsigned value")
    return cast(x, to)


def _rounded(p: _Pool) -> Node:
    """What an operator of a half type ends and the next one begins with; the half type is there for others, too."""
    x = p.some(lambda n: n.dtype in FLOATS)
    half = cast(x, p.choice(HALVES))
    if half not in p.nodes:
        p.nodes.append(half)
    return cast(half, x.dtype)


def _axes(p: _Pool, x: Node) -> tuple[int, ...]:
    axes = [a for a in range(x.type.rank) if p.flip()]
    if p.flip():
        axes = list(range(p.integer(0, x.type.rank), x.type.rank))
    return tuple(axes)


def _reduce(p: _Pool) -> Node:
    x = p.some(lambda n: n.dtype in NUMBERS and n.type.rank > 0)
    name = p.choice(("sum", "max", "min", "sum"))
    if p.filling == "special" and name == "sum":
        name = "max"
    return _prim(f"reduce_{name}", x, axes=_axes(p, x))


def _keep(x: Node, reduced: Node, axes: tuple[int, ...]) -> Node:
    """A reduction's result broadcast back over what was reduced."""
    ones = tuple(1 if a in axes else d for a, d in enumerate(x.shape))
    return _prim("broadcast", _prim("reshape", reduced, shape=ones), shape=x.shape)


def _softmax(p: _Pool) -> Node:
    x = p.some(lambda n: n.dtype in FLOATS and n.type.rank > 0)
    axes = _axes(p, x)
    if p.filling == "special":
        raise ValueError("sums of special values depend on their order")
    shifted = _prim("sub", x, _keep(x, _prim("reduce_max", x, axes=axes), axes))
    if p.filling == "whole":
        return shifted
    e = _prim("exp", shifted)
    return _prim("div", e, _keep(e, _prim("reduce_sum", e, axes=axes), axes))


def _normalize(p: _Pool) -> Node:
    x = p.some(lambda n: n.dtype in FLOATS and n.type.rank > 0)
    axes = _axes(p, x)
    if p.filling == "special":
        raise ValueError("sums of special values depend on their order")
    centered = _prim("sub", x, _keep(x, _prim("reduce_sum", x, axes=axes), axes))
    squares = _prim("reduce_sum", _prim("mul", centered, centered), axes=axes)
    scale = _keep(
        x, _prim("abs", squares) if p.filling == "whole" else _prim("sqrt", squares), axes
    )
    one = constant(np.array(1, x.dtype.numpy))
    scale = _prim("add", scale, _prim("broadcast", one, shape=x.shape))
    return _prim("mul" if p.filling == "whole" else "div", centered, scale)


def _argument(p: _Pool) -> Node:
    def keep(n: Node) -> bool:
        exact = p.filling != "real" or n.dtype.is_integer
        return n.dtype in NUMBERS and n.type.rank > 0 and exact

    x = p.some(keep)
    axis = p.integer(0, x.type.rank - 1)
    if any(bind(x.shape[axis], v) == 0 for v in p.assignments):
        raise ValueError("an empty axis has no winner")
    return _prim(p.choice(("arg_max", "arg_min")), x, axis=axis, last=p.flip())


def _matmul(p: _Pool) -> Node:
    if p.filling == "special":
        raise ValueError("sums of special values depend on their order")
    x = p.some(lambda n: n.dtype in (FLOAT32, FLOAT64, INT32) and n.type.rank >= 2)
    if p.flip():
        x = _prim("transpose", x, perm=p.order(x.type.rank))
    *batch, m, k = x.shape
    n = p.choice([*EXTENTS, *LARGE, m, k])
    if p.flip():
        shape = (*batch, n, k)
        order = [*range(len(batch)), len(batch) + 1, len(batch)]
        y = _prim("transpose", p.leaf(x.dtype, shape), perm=tuple(order))
    elif p.flip():
        y = p.leaf(x.dtype, (*batch, k, n))
    elif p.flip():
        first = p.integer(0, len(batch))
        small = (*(d if p.flip() else 1 for d in batch[first:]), k, n)
        y = _prim("broadcast", p.leaf(x.dtype, small), shape=(*batch, k, n))
    else:
        y = p.some(lambda o: o.dtype is x.dtype and o.shape[:-1] == (*batch, k))
    return _prim("matmul", x, y)


def _conv(p: _Pool) -> Node:
    if p.filling == "special":
        raise ValueError("sums of special values depend on their order")
    x = p.some(lambda n: n.dtype in FLOATS and n.type.rank in (3, 4))
    spatial, channels = x.type.rank - 2, x.shape[-1]
    if not isinstance(channels, int):
        raise ValueError("channels are numbers")
    groups = p.choice([g for g in (1, 2, 3, 4, channels) if g and channels % g == 0])
    sizes = tuple(p.choice((1, 2, 3)) for _ in range(spatial))
    strides = tuple(p.choice((1, 1, 2, 3)) for _ in range(spatial))
    dilations = tuple(p.choice((1, 1, 2)) for _ in range(spatial))
    x = _padded(p, x, sizes, dilations)
    outs = groups * p.choice((1, 2, 5, 7, 8, 16, 17))
    shape = (*sizes, channels // groups, outs)
    w = p.leaf(x.dtype, shape)
    return _prim("conv", x, w, groups=groups, strides=strides, dilations=dilations)


def _block(p: _Pool) -> Node:
    """A product or convolution with what often stands behind it."""
    x = _matmul(p) if p.flip() else _conv(p)
    for _ in range(p.integer(1, 4)):
        kind = p.choice(("bias", "scale", "clamp", "add", "heads", "turn"))
        if kind == "bias":
            x = _prim("add", x, _prim("broadcast", p.leaf(x.dtype, x.shape[-1:]), shape=x.shape))
        elif kind in ("scale", "clamp"):
            one = constant(np.array(p.integer(0, 2), x.dtype.numpy))
            name = "mul" if kind == "scale" else "max"
            x = _prim(name, x, _prim("broadcast", one, shape=x.shape))
        elif kind == "add":
            x = _prim("add", p.leaf(x.dtype, x.shape), x)
        elif kind == "heads" and isinstance(x.shape[-1], int):
            width = p.choice([f for f in (1, 2, 4, 8, 16) if x.shape[-1] % f == 0])
            x = _prim("reshape", x, shape=(*x.shape[:-1], x.shape[-1] // width, width))
        elif kind == "turn" and x.type.rank > 2:
            x = _prim("transpose", x, perm=(*p.order(x.type.rank - 1), x.type.rank - 1))
    return x


def _padded(p: _Pool, x: Node, sizes: Sequence[int], dilations: Sequence[int]) -> Node:
    """x padded so that at least one window fits."""
    if p.flip() and all(
        less_equal((s - 1) * d + 1, e) is True for s, d, e in zip(sizes, dilations, x.shape[1:])
    ):
        return x
    spans = [(s - 1) * d for s, d in zip(sizes, dilations, strict=True)]
    low = (0, *(p.integer(0, s) for s in spans), 0)
    high = (0, *(s - at for s, at in zip(spans, low[1:])), 0)
    zero = data(np.array(0, x.dtype.numpy))
    return _prim("pad", x, low=low, high=high, value=zero)


def _pool(p: _Pool) -> Node:
    x = p.some(lambda n: n.dtype in NUMBERS and n.type.rank >= 2)
    axes = tuple(sorted({p.integer(0, x.type.rank - 1) for _ in range(2)}))
    sizes = tuple(p.choice((1, 2, 3)) for _ in axes)
    if any(less_equal(s, x.shape[a]) is not True for a, s in zip(axes, sizes)):
        raise ValueError("the window must fit")
    strides = tuple(p.choice((1, 2)) for _ in axes)
    ones = tuple(1 for _ in axes)
    window = _prim("window", x, axes=axes, sizes=sizes, strides=strides, dilations=ones)
    name = "max" if p.filling == "special" else p.choice(("sum", "max"))
    rank = x.type.rank
    return _prim(f"reduce_{name}", window, axes=tuple(range(rank, rank + len(axes))))


def _pad(p: _Pool) -> Node:
    x = p.some(lambda n: n.type.rank > 0)
    low = tuple(p.choice((0, 0, 1, 2)) for _ in x.shape)
    high = tuple(p.choice((0, 0, 1, 3)) for _ in x.shape)
    return _prim("pad", x, low=low, high=high, value=data(np.array(1).astype(x.dtype.numpy)))


def _slice(p: _Pool) -> Node:
    x = p.some(lambda n: n.type.rank > 0)
    starts, steps, shape = [], [], []
    for d in x.shape:
        least = lower_bound(d) or 0
        start = p.integer(0, min(least, 2))
        step = p.choice((1, 1, 2, 3))
        count: DimLike = (d - start + step - 1) // step
        backwards = p.integer(0, 4) == 0
        starts.append(start + (count - 1) * step if backwards else start)
        steps.append(-step if backwards else step)
        shape.append(count)
    return _prim("slice", x, starts=tuple(starts), steps=tuple(steps), shape=tuple(shape))


def _concat(p: _Pool) -> Node:
    x = p.some(lambda n: n.type.rank > 0)
    axis = p.integer(0, x.type.rank - 1)

    def rest(n: Node) -> tuple[object, ...]:
        return (n.dtype, n.type.rank, *(d for a, d in enumerate(n.shape) if a != axis))

    parts = [p.some(lambda n: rest(n) == rest(x)) for _ in range(p.integer(1, 2))]
    return _prim("concat", x, *parts, axis=axis)


def _transpose(p: _Pool) -> Node:
    x = p.some(lambda n: n.type.rank > 1)
    return _prim("transpose", x, perm=tuple(p.order(x.type.rank)))


def _reshape(p: _Pool) -> Node:
    x = p.some()
    shape = list(x.shape)
    for _ in range(p.integer(1, 2)):
        at = p.integer(0, len(shape))
        kind = p.choice(("one", "merge", "split", "drop"))
        if kind == "one" and len(shape) < 5:
            shape.insert(at, 1)
        elif kind == "merge" and at + 1 < len(shape):
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        elif kind == "split" and at < len(shape) and isinstance(shape[at], int) and shape[at]:
            factor = p.choice([f for f in (2, 3, 4, 5, 7) if shape[at] % f == 0] or [1])
            shape[at : at + 1] = [shape[at] // factor, factor]
        elif kind == "drop" and at < len(shape) and equal(shape[at], 1) is True:
            del shape[at]
    return _prim("reshape", x, shape=tuple(shape))


def _broadcast(p: _Pool) -> Node:
    x = p.some(lambda n: n.type.rank < 4)
    new = tuple(p.choice(EXTENTS[:6]) for _ in range(p.integer(0, 1)))
    wide = tuple(p.choice(EXTENTS) if equal(d, 1) is True else d for d in x.shape)
    return _prim("broadcast", x, shape=(*new, *wide))


def _meet(p: _Pool) -> Node:
    """A tensor and a new one with other free extents, each 1 or as large, broadcast to each other."""
    x = p.some(lambda n: n.dtype in NUMBERS and any(d in p.free for d in n.shape))
    other = tuple(
        symbol(p.free[d]) if d in p.free and p.integer(0, 3) else d if p.flip() else 1
        for d in x.shape
    )
    if not any(equal(a, b) is None for a, b in zip(x.shape, other)):
        raise ValueError("nothing is left open")
    y = p.leaf(x.dtype, other)
    shape = tuple(b if equal(a, 1) is True else a if equal(b, 1) is True else joined(a, b)
                  for a, b in zip(x.shape, other))  # fmt: skip
    pair = [n if n.shape == shape else _prim("broadcast", n, shape=shape) for n in (x, y)]
    return _prim(p.choice(_BINARY), *(pair if p.flip() else pair[::-1]))


def _gather(p: _Pool) -> Node:
    x = p.some(lambda n: n.type.rank > 0)
    axis = p.integer(0, x.type.rank - 1)
    if any(bind(x.shape[axis], v) == 0 for v in p.assignments):
        raise ValueError("nothing to gather")
    shape = tuple(p.choice(EXTENTS[:8]) for _ in range(p.integer(0, 2)))
    known = [n for n in p.nodes if n.dtype is INT64 and n.type.rank <= 2]
    indices = p.choice(known) if known and p.flip() else p.leaf(INT64, shape)
    return _prim("gather", x, indices, axis=axis)


def _dilate(p: _Pool) -> Node:
    x = p.some(lambda n: n.type.rank > 0 and n.dtype in NUMBERS)
    if any(lower_bound(d) == 0 for d in x.shape):
        raise ValueError("zeros between no elements")
    return _prim("dilate", x, factors=tuple(p.choice((1, 1, 2, 3)) for _ in x.shape))


def _extents(p: _Pool) -> Node:
    x = p.some(lambda n: n.type.rank > 0)
    return _prim("extents", values=x.shape, shape=(x.type.rank,))


def _iota(p: _Pool) -> Node:
    x = p.some(lambda n: n.type.rank > 0)
    of = p.choice((FLOAT32, INT64))
    return _prim("iota", dtype=of.name, shape=x.shape, axis=p.integer(0, x.type.rank - 1))


OPERATIONS: Mapping[str, Operation] = {
    "unary": _unary, "binary": _binary, "compare": _compare, "where": _where, "logic": _logic,
    "cast": _cast, "reduce": _reduce, "softmax": _softmax, "normalize": _normalize,
    "argument": _argument, "matmul": _matmul, "conv": _conv, "pool": _pool, "pad": _pad,
    "slice": _slice, "concat": _concat, "transpose": _transpose, "reshape": _reshape,
    "broadcast": _broadcast, "gather": _gather, "dilate": _dilate, "extents": _extents,
    "iota": _iota, "block": _block, "rounded": _rounded, "meet": _meet,
}  # fmt: skip
_OFTEN = (
    "meet",
    "binary",
    "binary",
    "unary",
    "matmul",
    "conv",
    "reduce",
    "transpose",
    "reshape",
    "softmax",
    "rounded",
)


# ---------------------------------------------------------------- graphs


@st.composite
def cases(draw: Draw) -> Case:
    """A graph with all that is needed to run it: its operations are drawn, their details follow from seeds."""
    names = ("a", "b")[: draw(st.integers(0, 2))]
    filling = draw(st.sampled_from(("whole", "real", "odd", "special")))
    seed = draw(st.integers(0, 2**16))
    pool = _Pool((), np.random.default_rng(seed), filling)
    pool.assignments = tuple(_assignment(pool, names) for _ in range(2 if names else 1))
    pool.free = {symbol(n): f"{n}_too" for n in names}
    _first(pool, names)
    steps = st.tuples(st.sampled_from([*OPERATIONS, *_OFTEN]), st.integers(0, 2**16))
    for name, own in draw(st.lists(steps, min_size=1, max_size=10)):
        pool.rng = np.random.default_rng((seed, own))
        _apply(pool, name)
    return Case(_graph(pool), pool.assignments, seed, filling, draw(st.booleans()))


def _assignment(pool: _Pool, names: Sequence[str]) -> dict[str, int]:
    """Numbers for the free dimensions, and for those that meet them: as large, or one of both is 1."""
    values = {n: pool.choice((*FREE, 1, 1)) for n in names}
    others = {
        f"{n}_too": pool.choice(FREE) if v == 1 else 1 if pool.flip() else v
        for n, v in values.items()
    }
    return values | others


def _apply(pool: _Pool, name: str) -> None:
    """Add what the operation makes; another one where it does not fit what is there."""
    for trial in (name, *(pool.choice([*OPERATIONS, *_OFTEN]) for _ in range(6))):
        before = len(pool.inputs)
        try:
            node = OPERATIONS[trial](pool)
        except ValueError:
            node = None
        if node is not None and pool.fits(node) and node not in pool.nodes:
            pool.nodes.append(node)
            return
        del pool.inputs[before:]


def _first(pool: _Pool, names: Sequence[str]) -> None:
    """One or two inputs that carry the free dimensions."""
    free = [symbol(n) for n in names]
    rank = pool.integer(max(1, len(free)), 4)
    sizes = EXTENTS[:12] if rank > 2 else (*EXTENTS, *LARGE)
    shape: list[DimLike] = [pool.choice(sizes) for _ in range(rank)]
    places = pool.order(rank)
    for name, place in zip(free, places):
        shape[place] = name
    of = pool.choice((FLOAT32, FLOAT32, FLOAT32, *NUMBERS, FLOAT16, BFLOAT16, BOOL))
    first = make(PRIMITIVES["input"], name="x0", dtype=of.name, shape=tuple(shape))
    pool.inputs.append(first)
    pool.nodes.append(first)
    if of in HALVES:
        pool.nodes.append(cast(first, FLOAT32))


def _graph(pool: _Pool) -> Graph:
    """Those made last are outputs, and some of the others."""
    read = {i for n in pool.nodes for i in n.inputs}
    outputs = [n for n in pool.nodes if n not in read or pool.integer(0, 5) == 0]
    named = tuple((f"y{k}", n) for k, n in enumerate(outputs))
    if pool.integer(0, 9) == 0:
        named = (*named, ("again", outputs[-1]))
    return Graph(tuple(pool.inputs), named)


def feeds_of(case: Case, values: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The inputs at an assignment of the free dimensions."""
    rng = np.random.default_rng(case.seed)
    return {
        n.attr("name"): values_of(rng, n.dtype, bind(n.shape, values), case.filling)
        for n in case.graph.inputs
    }
