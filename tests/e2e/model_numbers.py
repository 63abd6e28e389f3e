"""Operations of drawn ONNX models that compute: elementwise, reductions, products.

Each adds nodes to a pool, or says with `Unfit` that nothing there suits it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.e2e.model_pool import (
    EXACT,
    FLOATS,
    HALVES,
    INTEGERS,
    LONGEST,
    SIGNED,
    UNSIGNED,
    Extent,
    Pool,
    Unfit,
    Value,
    code_of,
)

_SAFE = ("Relu", "Neg", "Abs", "Floor", "Ceil", "Round", "Sign", "Identity")
_SMOOTH = ("Sigmoid", "Tanh", "Erf", "HardSwish", "Softplus", "LeakyRelu", "Sin", "Gelu", "Elu")
_JUMPS = ("Floor", "Ceil", "Round", "Sign")


def an_axis(p: Pool, v: Value) -> int:
    if not v.rank:
        raise Unfit
    return p.integer(0, v.rank - 1)


def signed(p: Pool, axis: int, rank: int) -> int:
    """The axis counted from either end."""
    return axis - rank if p.flip() else axis


# ---------------------------------------------------------------- elementwise


def unary(p: Pool) -> object:
    v = p.some(lambda v: v.is_float or v.kind in SIGNED)
    if not v.is_float:
        return p.apply(p.choice(("Neg", "Abs", "Sign")), [v], v)
    kind = p.choice(_SAFE if p.flip() else _SMOOTH)
    if kind in _JUMPS and not v.exact:
        raise Unfit
    if kind in _SAFE:
        return p.apply(kind, [v], v)
    return p.apply(kind, [v], v, bound=max(v.bound, 1.0), exact=False)


def steep(p: Pool) -> object:
    """Functions that enlarge what is off by little: of exact values only."""
    v = p.some(lambda v: v.is_float and v.exact and v.bound <= 8)
    kind = p.choice(("Exp", "Sqrt", "Reciprocal", "Log", "Cos"))
    return p.apply(kind, [v], v, bound=3000, exact=False)


def _partner(p: Pool, v: Value) -> tuple[Value, tuple[Extent, ...]]:
    """What `v` is combined with, and the shape of both together."""
    kind = p.integer(0, 5)
    if kind == 0:
        other = p.some(lambda o: o.kind == v.kind and o.shape == v.shape)
        return other, v.shape
    if kind == 1:
        return p.constant(p.array(v.kind, ()), v.kind), v.shape
    if kind == 2:  # whether they broadcast is known in a call only
        other = p.some(lambda o: o.kind == v.kind and 0 < o.rank <= 3)
        return other, together(p, v.shape, other.shape)
    shape = [d if p.flip() else 1 for d in v.shape][p.integer(0, v.rank) :]
    if kind == 3 and len(shape) == v.rank < 4:
        shape.insert(0, p.choice((1, 2, 3)))
    other = p.leaf(v.kind, shape)
    return other, together(p, v.shape, other.shape)


def together(p: Pool, a: tuple[Extent, ...], b: tuple[Extent, ...]) -> tuple[Extent, ...]:
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b)
    found: list[Extent] = []
    for x, y in pairs:
        if isinstance(x, int) and isinstance(y, int) and x != y and 1 not in (x, y):
            raise Unfit
        if x == y or y == 1:
            found.append(x)
        elif x == 1:
            found.append(y)
        else:
            found.append(
                p.extent() if isinstance(x, str) == isinstance(y, str) else max(x, y, key=_is_int)
            )
    return tuple(found)


def _is_int(d: Extent) -> bool:
    return isinstance(d, int)


def binary(p: Pool) -> object:
    v = p.some(lambda v: v.is_float or v.kind in INTEGERS)
    kind = p.choice(("Add", "Sub", "Mul", "Max", "Min", "Add", "Mul"))
    other, shape = _partner(p, v)
    low = v.bound * other.bound if kind == "Mul" else v.bound + other.bound
    sides = [v, other] if p.flip() else [other, v]
    return p.apply(kind, sides, v, shape, low)


def divide(p: Pool) -> object:
    v = p.some(lambda v: v.exact and (v.is_float or v.kind in INTEGERS))
    divisors = np.array(p.choice((1, 2, 3, 5, 7)) if p.flip() else [1, 2, 4][: p.integer(1, 3)])
    last = v.shape[-1] if v.rank else 1
    if divisors.ndim and divisors.size not in (1, last):
        raise Unfit
    if v.kind in SIGNED and p.flip():
        divisors = -divisors
    if v.is_float:
        return p.apply("Div", [v, p.constant(divisors, v.kind)], v, exact=False)
    return p.apply(p.choice(("Div", "Mod")), [v, p.constant(divisors, v.kind)], v)


def bitwise(p: Pool) -> object:
    v = p.some(lambda v: v.kind in INTEGERS or v.kind == "bool")
    other, shape = _partner(p, v)
    if v.kind == "bool":
        return p.apply(p.choice(("And", "Or", "Xor")), [v, other], v, shape)
    if v.kind in UNSIGNED and p.flip(3):
        by = p.constant(np.array(p.integer(0, 7)), v.kind)
        return p.apply("BitShift", [v, by], v, direction=p.choice(("LEFT", "RIGHT")), bound=1e9)
    names = ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
    return p.apply(p.choice(names), [v, other], v, shape, max(v.bound, other.bound) * 2)


def negate(p: Pool) -> object:
    v = p.some(lambda v: v.kind in INTEGERS or v.kind == "bool")
    return p.apply("Not" if v.kind == "bool" else "BitwiseNot", [v], v, bound=v.bound + 1)


def compare(p: Pool) -> object:
    v = p.some(lambda v: v.exact and v.kind in (*FLOATS, "int32", "int64"))
    other, shape = _partner(p, v)
    if not other.exact:
        raise Unfit
    kind = p.choice(("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"))
    (name,) = p.node(kind, [v, other])
    return p.made(name, "bool", shape, 1, True)


def where(p: Pool) -> object:
    test = p.some(lambda v: v.kind == "bool")
    v = p.some(lambda v: v.kind != "bool" and v.shape == test.shape)
    other, shape = _partner(p, v)
    sides = [v, other] if p.flip() else [other, v]
    return p.apply("Where", [test, *sides], v, shape, max(v.bound, other.bound))


def clip(p: Pool) -> object:
    v = p.some(lambda v: v.is_float or v.kind in ("int32", "int64", "int8", "uint8"))
    low, high = (0, p.integer(1, 3)) if v.kind in UNSIGNED else (-p.integer(0, 2), p.integer(0, 6))
    ends = [p.constant(np.array(n), v.kind) if p.flip(1) else None for n in (low, high)]
    return p.apply("Clip", [v, *ends], v, bound=max(high, -low))


def cast(p: Pool) -> object:
    v = p.some()
    to = p.choice((*FLOATS, *HALVES, "int32", "int64", "uint8", "int8", "bool"))
    if v.is_float and to not in FLOATS and not (v.exact and v.bound < 100 and not p.odd):
        raise Unfit
    if v.is_float and to in UNSIGNED:
        raise Unfit
    (name,) = p.node("Cast", [v], to=code_of(to))
    bound = 1 if to == "bool" else v.bound
    same = to in FLOATS or v.bound <= 100
    return p.made(name, to, v.shape, bound if same else 255, v.exact)


# ---------------------------------------------------------------- reductions


def _count(v: Value, axes: list[int]) -> float:
    return float(
        np.prod([d if isinstance(d, int) else LONGEST for d in (v.shape[a] for a in axes)])
    )


def reduce(p: Pool) -> object:
    v = p.some(lambda v: v.rank > 0 and (v.is_float or v.kind in ("int32", "int64")))
    axes = sorted({an_axis(p, v) for _ in range(p.integer(1, v.rank))})
    names = ("Sum", "Max", "Min", "Mean", "SumSquare", "L1", "L2")
    kind = p.choice(names if v.is_float else names[:3])
    keep = p.flip()
    shape = [1 if a in axes else d for a, d in enumerate(v.shape) if keep or a not in axes]
    bound = v.bound
    if kind not in ("Max", "Min", "Mean"):
        bound = max(v.bound, v.bound**2 if kind in ("SumSquare", "L2") else 0) * _count(v, axes)
    given = p.ints(*[signed(p, a, v.rank) for a in axes])
    whole = not v.is_float or bound <= EXACT[v.kind]
    exact = kind not in ("Mean", "L2") and (kind in ("Max", "Min") or whole)
    reduced = p.apply(f"Reduce{kind}", [v, given], v, shape, bound, exact=exact, keepdims=int(keep))
    if keep and p.flip():  # and what was reduced, beside it
        low = v.bound + bound
        return p.apply(p.choice(("Sub", "Add", "Max")), [v, reduced], v, bound=low)
    return reduced


def arg(p: Pool) -> object:
    v = p.some(lambda v: v.exact and v.rank > 0 and v.kind in ("float32", "float64", "int32"))
    axis, keep = an_axis(p, v), p.flip()
    shape = [1 if a == axis else d for a, d in enumerate(v.shape) if keep or a != axis]
    attrs = {"axis": axis, "keepdims": int(keep), "select_last_index": int(p.flip())}
    (name,) = p.node(p.choice(("ArgMax", "ArgMin")), [v], **attrs)
    return p.made(name, "int64", shape, LONGEST, True)


def softmax(p: Pool) -> object:
    v = p.floats(1)
    kind = p.choice(("Softmax", "LogSoftmax"))
    return p.apply(kind, [v], v, bound=max(1, 2 * v.bound), exact=False, axis=an_axis(p, v))


def layer_norm(p: Pool) -> object:
    v = p.some(lambda v: v.kind in ("float32", "float16") and v.rank > 1 and v.exact)
    last = v.shape[-1]
    if not isinstance(last, int):
        raise Unfit
    scale = p.constant(p.array(v.kind, (last,)), v.kind)
    return p.apply("LayerNormalization", [v, scale], v, bound=20, exact=False, axis=-1, epsilon=0.5)


def cumsum(p: Pool) -> object:
    v = p.some(lambda v: v.rank > 0 and v.exact and v.kind in ("float32", "int32", "int64"))
    axis = p.constant(np.array(an_axis(p, v)))
    attrs: dict[str, Any] = {"exclusive": int(p.flip()), "reverse": int(p.flip())}
    return p.apply("CumSum", [v, axis], v, bound=v.bound * LONGEST, **attrs)


# ---------------------------------------------------------------- products


def matmul(p: Pool) -> object:
    v = p.some(lambda v: v.kind in ("float32", "float32", "float64", "float16") and v.rank >= 1)
    depth = v.shape[-1]
    columns = p.choice((1, 2, 3, 4, 5, 8, 16, 17, 33))
    batch: list[Extent] = list(v.shape[:-2])
    if p.flip() or v.rank < 2:
        shape: list[Extent] = [depth, columns]
    else:  # a matrix for each of the batch, or one of some of its axes
        shape = [*(d if p.flip() else 1 for d in batch), depth, columns]
    if p.flip(6) and v.rank <= 2:
        shape = [p.choice((2, 3)), depth, columns]
        batch = [shape[0]]
    if p.flip():
        turned = p.leaf(v.kind, [*shape[:-2], shape[-1], shape[-2]])
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        right = p.apply("Transpose", [turned], turned, shape, perm=order)
    else:
        right = p.leaf(v.kind, shape)
    left = _turned(p, v) if p.flip(4) else v
    out = [*batch, *left.shape[-2:-1], columns]
    bound = left.bound * right.bound * _count(v, [v.rank - 1])
    exact = bound <= EXACT[v.kind]
    return p.apply("MatMul", [left, right], v, out, bound, exact=exact)


def _turned(p: Pool, v: Value) -> Value:
    """`v` with its leading axes in another order, from another tensor."""
    if v.rank < 3:
        return v
    order = [1, 0, *range(2, v.rank)]
    other = p.apply("Transpose", [v], v, [v.shape[a] for a in order], perm=order)
    return p.apply("Transpose", [other], v, v.shape, perm=order)


def products(p: Pool) -> object:
    """A value times a transposed one: scores, or outer products."""
    v = p.some(lambda v: v.kind in ("float32", "float64") and v.rank >= 2)
    order = [*range(v.rank - 2), v.rank - 1, v.rank - 2]
    turned = p.apply("Transpose", [v], v, [v.shape[a] for a in order], perm=order)
    bound = v.bound**2 * _count(v, [v.rank - 1])
    shape = [*v.shape[:-1], v.shape[-2]]
    return p.apply("MatMul", [v, turned], v, shape, bound, exact=bound <= EXACT[v.kind])


def gemm(p: Pool) -> object:
    v = p.some(lambda v: v.kind == "float32" and v.rank == 2)
    columns = p.choice((1, 3, 16, 19))
    flipped, turned = p.flip(3), p.flip()
    rows, depth = (v.shape[1], v.shape[0]) if flipped else v.shape
    right = p.leaf(v.kind, [columns, depth] if turned else [depth, columns])
    bias = p.leaf(v.kind, p.choice(([columns], [1], [], [1, columns])))
    bound = v.bound * right.bound * _count(v, [0, 1]) + bias.bound
    attrs = {"transA": int(flipped), "transB": int(turned)}
    return p.apply(
        "Gemm", [v, right, bias], v, [rows, columns], bound, exact=bound <= EXACT[v.kind], **attrs
    )


def einsum(p: Pool) -> object:
    v = p.some(lambda v: v.kind == "float32" and v.rank == 3)
    b, i, j = v.shape
    columns = p.choice((1, 2, 3, 7, 16))
    equation, shape, out = p.choice((
        ("bij,jk->bik", [j, columns], [b, i, columns]),
        ("bij,bjk->bik", [b, j, columns], [b, i, columns]),
        ("bij,ijk->bik", [i, j, columns], [b, i, columns]),
        ("bij,kj->ikb", [columns, j], [i, columns, b]),
        ("bij,bkj->bik", [b, columns, j], [b, i, columns]),
    ))  # fmt: skip
    right = p.leaf(v.kind, shape)
    bound = v.bound * right.bound * _count(v, [0, 1, 2])
    sides = [v, right]
    return p.apply("Einsum", sides, v, out, bound, exact=bound <= EXACT[v.kind], equation=equation)


def conv(p: Pool) -> object:
    v = p.some(lambda v: v.kind in ("float32", "float32", "float16") and v.rank in (3, 4))
    channels = v.shape[1]
    if not isinstance(channels, int):
        raise Unfit
    groups = p.choice([g for g in (1, 2, 3, channels) if channels % g == 0])
    sizes = [p.choice((1, 2, 3)) for _ in v.shape[2:]]
    outs = groups * p.choice((1, 2, 5, 8))
    weights = p.constant(p.array(v.kind, (outs, channels // groups, *sizes)), v.kind)
    pads = [p.integer(0, s) for s in sizes] * 2
    attrs = {"strides": [p.choice((1, 1, 2)) for _ in sizes], "pads": pads, "group": groups}
    shape = [v.shape[0], outs, *(p.extent() for _ in sizes)]
    bound = v.bound * weights.bound * channels * 9
    return p.apply("Conv", [v, weights], v, shape, bound, exact=bound <= EXACT[v.kind], **attrs)


def pool(p: Pool) -> object:
    v = p.some(lambda v: v.kind == "float32" and v.rank in (3, 4))
    sizes = [p.choice((1, 2, 3)) for _ in v.shape[2:]]
    attrs: dict[str, Any] = {"kernel_shape": sizes, "strides": [p.choice((1, 2)) for _ in sizes]}
    if p.flip():
        attrs["pads"] = [p.integer(0, s - 1) for s in sizes] * 2
    shape = [*v.shape[:2], *(p.extent() for _ in sizes)]
    kind = p.choice(("MaxPool", "AveragePool"))
    if kind == "MaxPool" and p.odd:
        raise Unfit
    return p.apply(kind, [v], v, shape, exact=kind == "MaxPool", **attrs)
