"""Scales and shifts moved into the linear primitive that reads them, or to the other side of it.

In: a matrix product or convolution whose operand is scaled or shifted per channel, or whose right operand is scaled
per column. Out: weights that hold the scale, a bias that holds the shift (batch and layer normalization before a
linear layer), or the scale where fewer elements are. Invariant: equal up to one more rounding of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from fissile.ir.dim import less_equal
from fissile.ir.dtype import FLOAT32, FLOAT64
from fissile.ir.graph import Node, make
from fissile.ir.primitive import (
    BROADCAST,
    CONSTANT,
    CONV,
    MATMUL,
    PRIMITIVES,
    constant,
)
from fissile.rewrite.maps import mapped, per_channel
from fissile.rewrite.rule import Outcome, Refused, rule
from fissile.rewrite.shape import broadcast, is_same, is_unit

ADD = PRIMITIVES["add"]
Rebuild = Callable[[Node], Node]


def under_maps(node: Node, unit: bool = False) -> tuple[Node, Rebuild]:
    """What `node` moves or mixes along places, and how to do the same to another tensor of its shape.

    unit: only through maps that keep what is the same everywhere.
    """
    steps: list[Rebuild] = []
    found = mapped(node)
    while not isinstance(found, Refused) and (found.unit or not unit):
        steps.append(found.build)
        node = found.source
        found = mapped(node)

    def rebuild(x: Node) -> Node:
        for step in reversed(steps):
            x = step(x)
        return x

    return node, rebuild


def _channels(node: Node, count: int) -> np.ndarray | None:
    """The values of a constant per channel, one for each; None if it is none, or not finite."""
    values = per_channel(node)
    if values is None or node.dtype not in (FLOAT32, FLOAT64) or not np.all(np.isfinite(values)):
        return None
    return np.broadcast_to(values, (count,)) if values.size in (1, count) else None


def _scaled_rows(weights: np.ndarray, scale: np.ndarray, groups: int) -> np.ndarray:
    """weights [taps.., channels / groups, outs] with every input channel scaled."""
    *taps, ins, outs = weights.shape
    apart = weights.reshape(*taps, ins, groups, outs // groups).astype(np.float64)
    scaled: np.ndarray = apart * scale.reshape(groups, ins).T[..., None]
    return scaled.reshape(weights.shape).astype(weights.dtype)


@rule("linear(M(x * s), w) -> linear(M x, s w), s and w constant", "matmul", "conv",
      regime="substitute", opens=False)  # fmt: skip
def absorb_scale(node: Node) -> Outcome:
    """The scale of a normalization before a linear layer goes into its weights, through zero borders too."""
    if node.inputs[1].primitive is not CONSTANT:
        return Refused("the weights are not constant")
    if node.inputs[0].type.rank > 2 and node.name == "matmul":
        return Refused("the product has a batch")
    scaled, rebuild = under_maps(node.inputs[0])
    if scaled.name not in ("mul", "div"):
        return Refused("the operand is not scaled")
    x, factor = scaled.inputs
    if not is_same(scaled.shape[-1], node.inputs[0].shape[-1]):
        return Refused("the scale is not along the channels")
    weights = node.inputs[1].attr("value").array
    groups = node.attr("groups") if node.primitive is CONV else 1
    scale = _channels(factor, weights.shape[-2] * groups)
    if scale is None:
        return Refused("the scale is no finite constant per channel")
    with np.errstate(all="ignore"):
        rows = _scaled_rows(weights, scale if scaled.name == "mul" else 1 / scale, groups)
    if not np.all(np.isfinite(rows)):
        return Refused("scaled weights leave the range of their type")
    return make(node.primitive, rebuild(x), constant(rows), **dict(node.attrs))


@rule("linear(M(x + b), w) -> linear(M x, w) + b w, b and w constant, M with weights that add up to 1",
      "matmul", "conv", regime="substitute", opens=False)  # fmt: skip
def absorb_shift(node: Node) -> Outcome:
    """The shift of a normalization before a linear layer becomes part of its bias."""
    if node.inputs[1].primitive is not CONSTANT:
        return Refused("the weights are not constant")
    if node.inputs[0].type.rank > 2 and node.name == "matmul":
        return Refused("the product has a batch")
    shifted, rebuild = under_maps(node.inputs[0], unit=True)
    if shifted.name != "add" or not is_same(shifted.shape[-1], node.inputs[0].shape[-1]):
        return Refused("the operand is not shifted along the channels")
    x, bias = shifted.inputs
    weights = node.inputs[1].attr("value").array
    groups = node.attr("groups") if node.primitive is CONV else 1
    shift = _channels(bias, weights.shape[-2] * groups)
    if shift is None:
        return Refused("the shift is no finite constant per channel")
    taps = prod(weights.shape[:-2])
    summed = _scaled_rows(weights.astype(np.float64), shift, groups)
    vector = summed.reshape(taps * weights.shape[-2], weights.shape[-1]).sum(0)
    if not np.all(np.isfinite(vector)):
        return Refused("the bias leaves the range of its type")
    result = make(node.primitive, rebuild(x), node.inputs[1], **dict(node.attrs))
    return make(ADD, result, broadcast(constant(vector.astype(weights.dtype)), node.shape))


# ---------------------------------------------------------------- scales of the right operand


def _per_column(factor: Node) -> bool:
    """Whether a factor is the same along the rows."""
    if factor.primitive is not BROADCAST:
        return False
    small = factor.inputs[0]
    return small.type.rank < 2 or is_unit(small.shape[-2])


def _with_rows(factor: Node, like: Node) -> Node:
    return make(BROADCAST, factor.inputs[0], shape=(*factor.shape[:-2], *like.shape[-2:]))


@rule("x (w * s) -> (x w) * s, x (w / s) -> (x w) / s, s per column", "matmul",
      regime="substitute")  # fmt: skip
def scale_after_columns(node: Node) -> Outcome:
    """The scale goes over the result where that has fewer rows."""
    x, scaled = node.inputs
    if scaled.name not in ("mul", "div"):
        return Refused("the right operand is not scaled")
    w, factor = scaled.inputs
    if not _per_column(factor):
        return Refused("the scale varies along the rows")
    if less_equal(w.shape[-2], x.shape[-2]) is True:
        return Refused("the result has no fewer rows")
    return make(scaled.primitive, make(MATMUL, x, w), _with_rows(factor, node))


@rule("(x w) * s -> x (w * s), (x w) / s -> x (w / s), s per column", "mul", "div",
      regime="substitute")  # fmt: skip
def scale_before_columns(node: Node) -> Outcome:
    """The other order, where the right operand has fewer rows than the result."""
    inner, factor = node.inputs
    if inner.name != "matmul":
        return Refused("the first operand is no product")
    if not _per_column(factor):
        return Refused("the scale varies along the rows")
    x, w = inner.inputs
    if less_equal(x.shape[-2], w.shape[-2]) is True:
        return Refused("the right operand has no fewer rows")
    return make(MATMUL, x, make(node.primitive, w, _with_rows(factor, w)))
