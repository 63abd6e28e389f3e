"""All operations of drawn ONNX models, and the inputs they begin with.

What the compiler met in models of others is here on purpose: extents that data decide beside ready tensors, operators
in Python between native ones, batched and broadcast constants, narrow ones, half types between operators, integers of
all widths, shape arithmetic, and dimensions that broadcast against each other only at some shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.e2e.model_layouts import (
    concat,
    expand,
    gather,
    gather_elements,
    one_hot,
    pad,
    reshape,
    reshape_as,
    resize,
    scatter,
    slices,
    split,
    squeeze,
    tile,
    topk,
    transpose,
    trilu,
    unsqueeze,
)  # fmt: skip
from tests.e2e.model_numbers import (
    arg,
    binary,
    bitwise,
    cast,
    clip,
    compare,
    conv,
    cumsum,
    divide,
    einsum,
    gemm,
    layer_norm,
    matmul,
    negate,
    pool,
    products,
    reduce,
    softmax,
    steep,
    unary,
    where,
)  # fmt: skip
from tests.e2e.model_pool import EXTENTS, FLOATS, INTEGERS, Extent, Pool, Value
from tests.e2e.model_shapes import (
    compress,
    foreign,
    nonzero,
    ranged,
    shape_number,
    slice_by_data,
    unique,
)  # fmt: skip

Operation = Callable[[Pool], object]


def ready(p: Pool) -> object:
    """One more input, or constant, of any type."""
    kind = p.choice(("float32", *FLOATS, *INTEGERS, "bool"))
    return _first(p, kind)


def _first(p: Pool, kind: str) -> Value:
    rank = p.integer(1, 4)
    shape: list[Extent] = [p.choice(EXTENTS[:7] if rank > 2 else EXTENTS) for _ in range(rank)]
    for name in p.free:
        if p.flip():
            shape[p.integer(0, rank - 1)] = name
    value = p.input(kind, shape)
    p.values.append(value)
    return value


def first(p: Pool) -> None:
    """What every model begins with."""
    _first(p, p.choice(("float32", "float32", "float32", *FLOATS, *INTEGERS)))
    if p.flip():
        _first(p, "float32")


OPERATIONS: Mapping[str, Operation] = {
    f.__name__: f
    for f in (
        unary, steep, binary, divide, bitwise, negate, compare, where, clip, cast, reduce, arg,
        softmax, layer_norm, cumsum, matmul, products, gemm, einsum, conv, pool, transpose, reshape,
        reshape_as, squeeze, unsqueeze, expand, tile, concat, split, slices, pad, resize, gather,
        gather_elements, scatter, topk, one_hot, trilu, shape_number, ranged, nonzero, unique,
        compress, slice_by_data, foreign, ready,
    )
}  # fmt: skip
OFTEN = ("binary", "binary", "unary", "matmul", "concat", "cast", "reduce", "slices", "nonzero")
