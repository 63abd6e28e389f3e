"""Rules around matrix products and convolutions.

In: linear primitives, and constants that scale or shift their results. Out: plain two-dimensional products where the
right operand is shared, and weights that hold the scale already (batch normalisation after a convolution vanishes).
Invariant: the order of summation stays; a folded scale rounds once more, so values agree to a few last places.
"""

from __future__ import annotations

import numpy as np

from fissile.ir.dim import product
from fissile.ir.dtype import FLOAT32, FLOAT64
from fissile.ir.graph import Node, make
from fissile.ir.primitive import (
    BROADCAST,
    CONV,
    MATMUL,
    PRIMITIVES,
    SLICE,
    TRANSPOSE,
    constant,
    constant_value,
)
from fissile.rewrite.rule import Outcome, Refused, rule
from fissile.rewrite.shape import expanded, is_constant, is_unit, small_constant, view


@rule("conv(x, w of 1x1) -> reshape(matmul(reshape(x), reshape(w)))", "conv")
def conv_to_matmul(node: Node) -> Outcome:
    """A pointwise convolution is a product over all places; strides leave places out first."""
    x, w = node.inputs
    strides = node.attr("strides")
    if node.attr("groups") != 1:
        return Refused("it has groups")
    if not all(is_unit(tap) for tap in w.shape[:-2]):
        return Refused("it has more than one tap")
    if any(s != 1 for s in strides):
        zeros = (0,) * x.type.rank
        shape = (*node.shape[:-1], x.shape[-1])
        x = make(SLICE, x, starts=zeros, steps=(1, *strides, 1), shape=shape)
    places = product(node.shape[:-1])
    rows = view(x, (places, x.shape[-1]))
    return view(make(MATMUL, rows, view(w, w.shape[-2:])), node.shape)


@rule("matmul(a[.., m, k], w[k, n]) -> reshape(matmul(reshape(a), w))", "matmul")
def flatten_matmul(node: Node) -> Outcome:
    """A product with a matrix shared by the batch is one product with more rows."""
    a, b = node.inputs
    if a.type.rank == 2:
        return Refused("it has no batch")
    source = expanded(b.inputs[0], b.type.rank) if b.primitive is BROADCAST else b
    if not all(is_unit(d) for d in source.shape[:-2]):
        return Refused("the right operand differs along the batch")
    if source.shape[-2:] != b.shape[-2:]:
        return Refused("the right operand is broadcast along its own axes")
    if a.primitive is TRANSPOSE and not (_keeps_rows(a) or _rows_adjoin(a)):
        return Refused("the left operand is a transpose, which is read in place")
    rows = view(a, (product(a.shape[:-1]), a.shape[-1]))
    return view(make(MATMUL, rows, view(source, source.shape[-2:])), node.shape)


def _keeps_rows(a: Node) -> bool:
    """Whether rows of a transpose are rows of its operand, in another order: each is read as a whole."""
    return bool(a.attr("perm")[-1] == a.type.rank - 1)


def _rows_adjoin(a: Node) -> bool:
    """Whether the batch and row axes of a transpose lie side by side, in order, in its operand."""
    perm = a.attr("perm")[:-1]
    shape = a.inputs[0].shape
    solid = [p for p in perm if not is_unit(shape[p])]
    between = range(solid[0], solid[-1] + 1) if solid else range(0)
    return solid == [axis for axis in between if not is_unit(shape[axis])]


def _per_output(node: Node) -> np.ndarray | None:
    """The values of a constant that varies along the last axis only, as a vector of 1 or all outputs."""
    array = small_constant(node)
    if array is None or any(d != 1 for d in array.shape[:-1]):
        return None
    if node.dtype not in (FLOAT32, FLOAT64) or not np.all(np.isfinite(array)):
        return None
    return array.reshape(-1)


def _weights(node: Node) -> np.ndarray | None:
    """The constant weights of a linear primitive, else None."""
    is_linear = node.primitive in (MATMUL, CONV)
    return constant_value(node.inputs[1]) if is_linear else None


@rule("linear(x, w) * c -> linear(x, w * c), c per output", "mul", "div", private=(0,))
def scale_linear(node: Node) -> Outcome:
    """The weights are scaled once, now (batch normalisation)."""
    source, factor = node.inputs
    weights, scale = _weights(source), _per_output(factor)
    if weights is None:
        return Refused("the first operand has no constant weights")
    if scale is None:
        return Refused("the factor is no finite constant per output")
    combine = np.multiply if node.name == "mul" else np.divide
    with np.errstate(all="ignore"):
        scaled = combine(weights.astype(np.float64), scale).astype(weights.dtype)
    if not np.all(np.isfinite(scaled)):
        return Refused("scaled weights leave the range of their type")
    return make(source.primitive, source.inputs[0], constant(scaled), **dict(source.attrs))


@rule("(linear + b) * c -> linear * c + b * c, b and c constant", "mul", "div", private=(0,))
def distribute_scale(node: Node) -> Outcome:
    """The scale can then go into the weights, and one bias is left."""
    shifted, factor = node.inputs
    if shifted.name != "add" or _weights(shifted.inputs[0]) is None:
        return Refused("the first operand is no linear primitive plus something")
    if not is_constant(shifted.inputs[1]) or _per_output(factor) is None:
        return Refused("bias and factor are not both constant per output")
    source, bias = shifted.inputs
    scaled = make(node.primitive, bias, factor)
    return make(PRIMITIVES["add"], make(node.primitive, source, factor), scaled)


@rule("(linear + b) + c -> linear + (b + c), b and c constant", "add", private=(0,))
def merge_biases(node: Node) -> Outcome:
    """One bias is left."""
    shifted, second = node.inputs
    if shifted.name != "add" or _weights(shifted.inputs[0]) is None:
        return Refused("the first operand is no linear primitive plus something")
    if not is_constant(shifted.inputs[1]) or not is_constant(second):
        return Refused("the biases are not both constant")
    source, first = shifted.inputs
    return make(PRIMITIVES["add"], source, make(PRIMITIVES["add"], first, second))
