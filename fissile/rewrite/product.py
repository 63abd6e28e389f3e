"""Products of products, scales beside products, and sums as products (Korch sections 4 and 6).

In: matrix products next to products, elementwise scales and sums. Out: the same in another order or form. Invariant:
equal but for rounding and the order of summation; values that overflow in one order may be finite in the other, so
only finite constants are moved.
"""

from __future__ import annotations

import numpy as np

from fissile.ir.dim import DimLike, less_equal
from fissile.ir.graph import Node, make
from fissile.ir.primitive import BROADCAST, MATMUL, PRIMITIVES, constant, constant_value
from fissile.rewrite.places import unviewed
from fissile.rewrite.rule import Outcome, Refused, rule
from fissile.rewrite.shape import broadcast, is_constant, is_same, is_unit, small_constant, view

_TWO = 2
ADD, MUL = PRIMITIVES["add"], PRIMITIVES["mul"]


@rule("(a b) c -> a (b c)", "matmul", regime="substitute")
def associate_right(node: Node) -> Outcome:
    """The inner product is made of the smaller matrices, or now (two constants)."""
    left, c = node.inputs
    inner = unviewed(left)
    if inner.name != "matmul":
        return Refused("the left operand is no product")
    if inner is not left and (inner.type.rank, node.type.rank) != (_TWO, _TWO):
        return Refused("the left operand is a reshape of a product")
    if inner.type.rank != c.type.rank:
        return Refused("the products have different batches")
    a, b = inner.inputs
    m, k, n, p = a.shape[-2], a.shape[-1], b.shape[-1], c.shape[-1]
    now = is_constant(b) and is_constant(c)
    if less_equal(m * n * (k + p), (0 if now else k * n * p) + m * k * p) is True:
        return Refused("it takes no fewer operations")
    return view(make(MATMUL, a, make(MATMUL, b, c)), node.shape)


@rule("a (b c) -> (a b) c", "matmul", regime="substitute")
def associate_left(node: Node) -> Outcome:
    """The other order."""
    a, inner = node.inputs
    if inner.name != "matmul":
        return Refused("the right operand is no product")
    b, c = inner.inputs
    m, k, n, p = a.shape[-2], b.shape[-2], b.shape[-1], c.shape[-1]
    if less_equal(k * p * (n + m), m * n * (k + p)) is True:
        return Refused("it takes no fewer operations")
    return make(MATMUL, make(MATMUL, a, b), c)


@rule("(a v + b) w -> a (v w) + b w, v, w and b constant", "matmul", regime="substitute")
def merge_affine(node: Node) -> Outcome:
    """Two linear layers with nothing between them are one."""
    left, w = node.inputs
    inner = unviewed(left)
    if inner.name != "add" or (inner.type.rank, node.type.rank) != (_TWO, _TWO):
        return Refused("the left operand is no matrix plus a bias")
    x, bias = inner.inputs
    vector, weights = small_constant(bias), constant_value(w)
    if x.name != "matmul" or constant_value(x.inputs[1]) is None:
        return Refused("what is shifted is no product with constant weights")
    if weights is None or vector is None:
        return Refused("weights and bias are not constant")
    if vector.ndim > 1 or vector.size == 0 or not np.all(np.isfinite(vector)):
        return Refused("the bias is no finite vector over channels")
    a, v = x.inputs
    m, k, n, p = a.shape[0], a.shape[1], v.shape[1], w.shape[1]
    if less_equal(m * n * (k + p), m * k * p) is True:
        return Refused("it takes no fewer operations")
    row = np.broadcast_to(vector.reshape(-1), weights.shape[:1])
    shift = make(MATMUL, constant(np.ascontiguousarray(row).reshape(1, -1)), w)
    product = make(MATMUL, a, make(MATMUL, v, w))
    return make(ADD, product, broadcast(view(shift, (p,)), node.shape))


def _varies_along_rows_only(factor: Node) -> bool:
    """Whether a factor is the same along the last axis."""
    if factor.primitive is not BROADCAST:
        return False
    small = factor.inputs[0]
    return small.type.rank == 0 or is_unit(small.shape[-1])


def _with_last(factor: Node, extent: DimLike) -> Node:
    return make(BROADCAST, factor.inputs[0], shape=(*factor.shape[:-1], extent))


@rule("(x * s) w -> (x w) * s, (x / s) w -> (x w) / s, s per row", "matmul", regime="substitute")
def scale_after_product(node: Node) -> Outcome:
    """The scale (of a softmax, of attention) goes over the smaller matrix, in the epilogue."""
    scaled, w = node.inputs
    if scaled.name not in ("mul", "div"):
        return Refused("the left operand is not scaled")
    x, factor = scaled.inputs
    if not _varies_along_rows_only(factor):
        return Refused("the scale varies along the columns")
    if less_equal(w.shape[-2], w.shape[-1]) is True:
        return Refused("the result is no smaller than the operand")
    return make(scaled.primitive, make(MATMUL, x, w), _with_last(factor, node.shape[-1]))


@rule("(x w) * s -> (x * s) w, (x w) / s -> (x / s) w, s per row", "mul", "div",
      regime="substitute")  # fmt: skip
def scale_before_product(node: Node) -> Outcome:
    """The other order, where the operand is smaller than the result."""
    inner, factor = node.inputs
    if inner.name != "matmul":
        return Refused("the first operand is no product")
    if not _varies_along_rows_only(factor):
        return Refused("the scale varies along the columns")
    x, w = inner.inputs
    if less_equal(w.shape[-1], w.shape[-2]) is True:
        return Refused("the operand is no smaller than the result")
    return make(MATMUL, make(node.primitive, x, _with_last(factor, x.shape[-1])), w)


@rule(
    "sum(x * s) -> sum(x) * s, s the same along what is summed", "reduce_sum", regime="substitute"
)
def factor_out_of_sum(node: Node) -> Outcome:
    """The scale goes over the sums only."""
    scaled, axes = node.inputs[0], node.attr("axes")
    if scaled.name not in ("mul", "div") or not axes:
        return Refused("what is summed is not scaled")
    x, factor = scaled.inputs
    kept = _same_along(factor, axes)
    if isinstance(kept, Refused):
        other = _same_along(x, axes) if scaled.name == "mul" else kept
        if isinstance(other, Refused):
            return kept
        x, kept = factor, other
    return make(scaled.primitive, make(node.primitive, x, axes=axes), broadcast(kept, node.shape))


def _same_along(factor: Node, axes: tuple[int, ...]) -> Outcome:
    """What a broadcast repeats along `axes`, without them."""
    if factor.primitive is not BROADCAST:
        return Refused("the scale is no broadcast")
    small = factor.inputs[0]
    lead = factor.type.rank - small.type.rank
    if any(not is_unit(small.shape[a - lead]) for a in axes if a >= lead):
        return Refused("the scale varies along what is summed")
    return view(small, tuple(d for a, d in enumerate(small.shape) if a + lead not in axes))


@rule("sum(x + b) -> sum(x) + n b, b uniform", "reduce_sum", regime="substitute")
def shift_out_of_sum(node: Node) -> Outcome:
    """The shift is added once."""
    shifted, axes = node.inputs[0], node.attr("axes")
    if shifted.name != "add" or shifted.inputs[1].primitive is not BROADCAST:
        return Refused("what is summed is no sum with a broadcast")
    x, bias = shifted.inputs
    small = bias.inputs[0]
    count = 1
    for a in axes:
        extent = x.shape[a]
        if not isinstance(extent, int):
            return Refused("how many are summed is not known")
        count *= extent
    lead = bias.type.rank - small.type.rank
    if any(a >= lead and not is_unit(small.shape[a - lead]) for a in axes):
        return Refused("the shift varies along what is summed")
    if not x.dtype.is_float or is_same(count, 0):
        return Refused("the elements are no floats, or there are none")
    kept = tuple(d for a, d in enumerate(small.shape) if a + lead not in axes)
    times = constant(np.array(count, x.dtype.compute.numpy).astype(x.dtype.numpy), x.dtype)
    shift = make(MUL, view(small, kept), broadcast(times, kept))
    return make(ADD, make(node.primitive, x, axes=axes), broadcast(shift, node.shape))
