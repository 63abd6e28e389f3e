"""Small vocabulary for splitting operators: numpy-like functions from nodes to nodes.

In: nodes. Out: nodes of primitives, with every broadcast explicit. Invariant: trivial steps (a
reshape to the same shape, a reduction over no axes) give back their input.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce as fold
from typing import Any

import numpy as np
import onnx

from fissile.fission.table import Refusal
from fissile.ir.dim import Dim, DimLike, equal, exact_div
from fissile.ir.dim_logic import is_one_only_with, joined
from fissile.ir.dtype import BOOL, FLOAT32, INT64, UINT8, DType, dtype
from fissile.ir.graph import Data, Node, data, make
from fissile.ir.primitive import (
    BROADCAST,
    CONCAT,
    GATHER,
    IOTA,
    MATMUL,
    PAD,
    PRIMITIVES,
    RESHAPE,
    SLICE,
    TRANSPOSE,
    WINDOW,
    cast,
    constant,
    identity,
    scalar,
)

Shape = tuple[DimLike, ...]


# ---- extents -------------------------------------------------------------------------------------


def same(a: DimLike, b: DimLike) -> bool:
    """Whether two extents are provably equal."""
    return a is b or equal(a, b) is True


def number(a: DimLike) -> int:
    """An extent that must be a number. Refusal when it is symbolic."""
    if isinstance(a, Dim):
        raise Refusal(f"the extent {a} must be a number here")
    return int(a)


def one(a: DimLike) -> bool:
    """Whether an extent is provably 1."""
    return not isinstance(a, Dim) and a == 1


def _agree(have: DimLike, want: DimLike) -> bool:
    """Whether an extent is its broadcast extent wherever there is anything to repeat; a guard demands it where needed.

    So it is when it cannot be 1, and when it is 1 only where the broadcast extent is, too (a map down- and upsampled
    meeting itself, a table cut to the length of a sequence).
    """
    if same(have, want):
        return True
    if not isinstance(have, Dim) and not isinstance(want, Dim):
        return False
    return is_one_only_with(have, want)


def _joined(a: DimLike, b: DimLike) -> DimLike:
    """The extent of a broadcast of two; ValueError when there is none."""
    if one(a) or one(b):
        return b if one(a) else a
    if same(a, b):
        return a
    if equal(a, 1) is not False and equal(b, 1) is not False:
        return joined(a, b)
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        raise ValueError(f"extents {a} and {b} do not broadcast")
    if equal(a, 1) is equal(b, 1):  # neither is 1: they are equal, and a number says more
        return b if isinstance(a, Dim) and not isinstance(b, Dim) else a
    return a if equal(a, 1) is False else b


def joined_shape(*shapes: Shape) -> Shape:
    """The shape all broadcast to (numpy rules), where each extent is 1 or as large as the others."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(fold(_joined, column) for column in zip(*padded, strict=True))


def normal_axis(axis: int, rank: int) -> int:
    """An axis counted from the front. ValueError when there is none such."""
    if not -max(rank, 1) <= axis < max(rank, 1):
        raise ValueError(f"axis {axis} of a tensor of rank {rank}")
    return axis % rank if rank else 0


def normal_axes(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front, in order."""
    return tuple(sorted({normal_axis(int(a), rank) for a in axes}))


# ---- leaves --------------------------------------------------------------------------------------


def dtype_of_onnx(code: int) -> DType:
    """The row of a TensorProto type. Refusal when tensors of it are not known."""
    try:
        return dtype(onnx.helper.tensor_dtype_to_np_dtype(code).name)
    except KeyError:
        name = onnx.TensorProto.DataType.Name(code).lower()
        raise Refusal(f"tensors of {name} have no native definition") from None


def constant_of(array: np.ndarray) -> Node:
    """A constant node of a numpy array, ml_dtypes' bfloat16 included. Refusal for other types."""
    name = array.dtype.name
    try:
        row = dtype(name)
    except KeyError:
        raise Refusal(f"tensors of {name} have no native definition") from None
    return constant(array.view(np.uint16) if name == "bfloat16" else array, row)


def const(value: float | int | bool, like: Node) -> Node:
    """A scalar of the element type of `like`."""
    return scalar(value, like.dtype)


def integers(values: Sequence[int] | np.ndarray) -> Node:
    """A constant of int64."""
    return constant(np.asarray(values, np.int64))


def iota(n: DimLike, of: DType = INT64) -> Node:
    """0, 1, .., n - 1."""
    return make(IOTA, dtype=of.name, shape=(n,), axis=0)


def filled(value: float | int | bool, of: DType, shape: Shape) -> Node:
    """A tensor that holds `value` everywhere."""
    return expand(scalar(value, of), shape)


# ---- elementwise ---------------------------------------------------------------------------------


def expand(x: Node, shape: Shape) -> Node:
    """x broadcast to `shape`; extents that agree by a guard stay as they are."""
    tail = shape[len(shape) - x.type.rank :]
    wanted = tuple(h if _agree(h, w) else w for h, w in zip(x.shape, tail, strict=True))
    return broadcast(x, shape[: len(shape) - x.type.rank] + wanted)


def broadcast(x: Node, shape: Shape) -> Node:
    """x broadcast to exactly `shape`."""
    return x if x.shape == shape else make(BROADCAST, x, shape=shape)


def apply(name: str, *nodes: Node) -> Node:
    """The elementwise primitive `name` on its inputs, broadcast against each other."""
    shape = joined_shape(*(n.shape for n in nodes))
    return make(PRIMITIVES[name], *(expand(n, shape) for n in nodes))


def add(a: Node, b: Node) -> Node:
    """a + b."""
    return apply("add", a, b)


def sub(a: Node, b: Node) -> Node:
    """a - b."""
    return apply("sub", a, b)


def mul(a: Node, b: Node) -> Node:
    """a * b."""
    return apply("mul", a, b)


def div(a: Node, b: Node) -> Node:
    """a / b, truncating for integers."""
    return apply("div", a, b)


def select(condition: Node, a: Node, b: Node) -> Node:
    """a where the condition holds, else b."""
    return apply("select", condition, a, b)


def clamp(x: Node, low: float | int, high: float | int) -> Node:
    """min(max(x, low), high)."""
    return apply("min", apply("max", x, const(low, x)), const(high, x))


# ---- reductions ----------------------------------------------------------------------------------


def reduce(kind: str, x: Node, axes: Iterable[int], keepdims: bool = True) -> Node:
    """reduce_`kind` ("sum", "prod", "max", "min") over `axes`."""
    chosen = normal_axes(axes, x.type.rank)
    if not chosen:
        return x
    if x.dtype is BOOL:  # the neutral values of uint8, 0 and 255, become false and true
        return cast(reduce(kind, cast(x, UINT8), chosen, keepdims), BOOL)
    result = make(PRIMITIVES[f"reduce_{kind}"], x, axes=chosen)
    if keepdims:
        kept = tuple(1 if a in chosen else d for a, d in enumerate(x.shape))
        result = reshape(result, kept)
    return result


def count(x: Node, axes: Iterable[int], of: DType = FLOAT32) -> Node:
    """How many elements a reduction over `axes` takes in, as a scalar."""
    total: DimLike = 1
    for axis in normal_axes(axes, x.type.rank):
        total = total * x.shape[axis]
    return extent_scalar(total, of)


def extent_scalar(extent: DimLike, of: DType) -> Node:
    """An extent as a scalar of any type."""
    if not isinstance(extent, Dim):
        return scalar(extent, of)
    return cast(make(PRIMITIVES["extents"], values=(extent,), shape=()), of)


def mean(x: Node, axes: Iterable[int], keepdims: bool = True) -> Node:
    """The arithmetic mean over `axes`."""
    chosen = tuple(axes)
    return div(reduce("sum", x, chosen, keepdims), count(x, chosen, x.dtype))


# ---- layout --------------------------------------------------------------------------------------


def reshape(x: Node, shape: Shape) -> Node:
    """x with the same elements in row-major order."""
    return x if x.shape == shape else make(RESHAPE, x, shape=shape)


def divided(extent: DimLike, by: int) -> DimLike:
    """extent / by; the guard of a reshape to it demands that nothing is left over. ValueError where something is."""
    quotient = exact_div(extent, by)
    if quotient is None and not isinstance(extent, Dim):
        raise ValueError(f"extent {extent} is no multiple of {by}")
    return extent // by if quotient is None else quotient


def unsqueeze(x: Node, axes: Iterable[int]) -> Node:
    """x with axes of extent 1 inserted at these places of the result."""
    chosen = tuple(axes)
    places = normal_axes(chosen, x.type.rank + len(chosen))
    shape = list(x.shape)
    for axis in places:
        shape.insert(axis, 1)
    return reshape(x, tuple(shape))


def squeeze(x: Node, axes: Iterable[int]) -> Node:
    """x without these axes, whose extents must be 1."""
    gone = normal_axes(axes, x.type.rank)
    for axis in gone:
        if not isinstance(x.shape[axis], Dim) and x.shape[axis] != 1:
            raise ValueError(f"squeeze of axis {axis} of {x.type}")
    return reshape(x, tuple(d for a, d in enumerate(x.shape) if a not in gone))


def transpose(x: Node, perm: Sequence[int]) -> Node:
    """x with axis perm[k] as its k-th."""
    chosen = tuple(int(p) for p in perm)
    return x if chosen == tuple(range(x.type.rank)) else make(TRANSPOSE, x, perm=chosen)


def move_axis(x: Node, source: int, target: int) -> Node:
    """x with one axis at another place."""
    perm = [a for a in range(x.type.rank) if a != normal_axis(source, x.type.rank)]
    perm.insert(normal_axis(target, x.type.rank), normal_axis(source, x.type.rank))
    return transpose(x, perm)


def channels_last(x: Node) -> Node:
    """[N, C, spatial..] to [N, spatial.., C]."""
    return transpose(x, (0, *range(2, x.type.rank), 1))


def channels_first(x: Node) -> Node:
    """[N, spatial.., C] to [N, C, spatial..]."""
    return transpose(x, (0, x.type.rank - 1, *range(1, x.type.rank - 1)))


def slice_axis(x: Node, axis: int, start: DimLike, n: DimLike, step: DimLike = 1) -> Node:
    """n elements along one axis, from `start` on in steps of `step`."""
    rank = x.type.rank
    starts: list[DimLike] = [0] * rank
    steps: list[DimLike] = [1] * rank
    shape = list(x.shape)
    if same(shape[axis], n) and start == 0 and step == 1:
        return x
    starts[axis], steps[axis], shape[axis] = start, step, n
    return make(SLICE, x, starts=tuple(starts), steps=tuple(steps), shape=tuple(shape))


def pad(x: Node, low: Shape, high: Shape, value: float | int | bool | np.ndarray = 0) -> Node:
    """x with `low` and `high` elements added at the ends of each axis (none negative)."""
    if all(not isinstance(p, Dim) and p == 0 for p in low + high):
        return x
    return make(PAD, x, low=low, high=high, value=_literal(value, x.dtype))


def _literal(value: float | int | bool | np.ndarray, of: DType) -> Data:
    return data(np.array(value, of.numpy))


def concat(nodes: Sequence[Node], axis: int) -> Node:
    """The nodes one after the other along an axis."""
    return nodes[0] if len(nodes) == 1 else make(CONCAT, *nodes, axis=axis)


def gather(x: Node, indices: Node, axis: int) -> Node:
    """x[.., indices, ..]; negative indices count from the end."""
    return make(GATHER, x, cast(indices, INT64), axis=axis)


def window(
    x: Node,
    axes: Sequence[int],
    sizes: Sequence[DimLike],
    strides: Sequence[DimLike],
    dilations: Sequence[DimLike],
) -> Node:
    """Sliding windows over `axes`; the places within a window are new last axes."""
    columns = {"axes": axes, "sizes": sizes, "strides": strides, "dilations": dilations}
    return make(WINDOW, x, **{name: tuple(column) for name, column in columns.items()})


def lowest(of: DType) -> Any:
    """The neutral value of a maximum."""
    return identity("max", of)


# ---- linear --------------------------------------------------------------------------------------


def matmul(a: Node, b: Node) -> Node:
    """numpy's matmul of two tensors of rank two or more."""
    batch = joined_shape(a.shape[:-2], b.shape[:-2])
    left = broadcast(a, _batched(a, batch))
    right = broadcast(b, _batched(b, batch))
    return make(MATMUL, left, right)


def _batched(x: Node, batch: Shape) -> Shape:
    own = x.shape[:-2]
    tail = batch[len(batch) - len(own) :]
    kept = tuple(h if _agree(h, w) else w for h, w in zip(own, tail, strict=True))
    return batch[: len(batch) - len(own)] + kept + x.shape[-2:]
