"""Softmax and layer normalization, recognised in their primitives.

In: the division that ends either, over the last axis. Out: one operator, in whatever shape its operand has. Invariant:
every primitive of the pattern is there, of the same operand; a scale or shift that follows stays what it is.
"""

from __future__ import annotations

import numpy as np

from fissile.fission.writer import Writer
from fissile.ir.graph import Node
from fissile.ir.primitive import constant_value
from fissile.optimizer.held import Held, Scribe, bare, plain
from fissile.rewrite.shape import is_same, is_same_shape, is_unit, small_constant

_SOFTMAX, _LAYER = 13, 17  # the opsets from which on they mean this


def softmax(scribe: Scribe, node: Node) -> Held | None:
    """e / sum(e), e = exp(x - max(x)), along the last axis."""
    top, total = node.inputs[0], _per_row(node.inputs[1], node)
    if scribe.opset < _SOFTMAX or total is None or not _reduces(total, "reduce_sum", top):
        return None
    power = bare(top)
    if power.name != "exp" or (shifted := bare(power.inputs[0])).name != "sub":
        return None
    x, largest = shifted.inputs[0], _per_row(shifted.inputs[1], shifted)
    if largest is None or not _reduces(largest, "reduce_max", x):
        return None
    return _along_last(scribe, "Softmax", x, node, [], {"axis": -1})


def layer_normalization(scribe: Scribe, node: Node) -> Held | None:
    """d / sqrt(mean(d * d) + epsilon), d = x - mean(x), along the last axis."""
    top, root = node.inputs[0], _per_row(node.inputs[1], node)
    shifted = bare(top)
    if scribe.opset < _LAYER or root is None or root.name != "sqrt" or shifted.name != "sub":
        return None
    extent = node.shape[-1]  # there is one, since something is broadcast along it
    x, center = shifted.inputs[0], _per_row(shifted.inputs[1], shifted)
    sum_ = bare(root.inputs[0])
    if center is None or sum_.name != "add" or not isinstance(extent, int) or extent == 0:
        return None
    variance, epsilon = _mean_of(sum_.inputs[0], extent), small_constant(sum_.inputs[1])
    mean = _mean_of(center, extent)
    if variance is None or mean is None or epsilon is None or epsilon.size == 0:
        return None
    square = bare(variance.inputs[0])
    is_square = square.name == "mul" and all(bare(i) is shifted for i in square.inputs)
    if not is_square or not _is_last(variance) or not _reduces(mean, "reduce_sum", x):
        return None
    if np.any(epsilon != epsilon.reshape(-1)[0]):
        return None
    ones = _ones(scribe.writer, extent, node)
    how = {"axis": -1, "epsilon": float(epsilon.reshape(-1)[0])}
    return _along_last(scribe, "LayerNormalization", x, node, [ones], how)


def _ones(writer: Writer, extent: int, node: Node) -> str:
    return writer.constant(np.ones(extent, node.dtype.numpy), node.dtype)


def _along_last(
    scribe: Scribe, operator: str, x: Node, node: Node, more: list[str], how: dict[str, float]
) -> Held:
    """The operator on x in a shape of which the last axis is one."""
    held = scribe.held[x]
    fits = held.is_plain and bool(held.shape) and is_same(held.shape[-1], node.shape[-1])
    if not fits:
        held = plain(scribe.plain(x), x.shape)
    return plain(scribe.emit(operator, held.name, *more, **how), held.shape)


def _per_row(node: Node, whole: Node) -> Node | None:
    """What is broadcast along the last axis of `whole`, one number a row."""
    node = bare(node)
    if node.name != "broadcast":
        return None
    small = node.inputs[0]
    padded = (1,) * (node.type.rank - small.type.rank) + small.shape
    if not padded or not is_unit(padded[-1]) or not is_same_shape(padded[:-1], node.shape[:-1]):
        return None
    if not is_same(node.shape[-1], whole.shape[-1]):
        return None
    return bare(small)


def _is_last(node: Node) -> bool:
    return bool(node.attr("axes") == (node.inputs[0].type.rank - 1,))


def _reduces(node: Node, kind: str, x: Node) -> bool:
    """Whether `node` is that reduction of x along its last axis."""
    if node.name != kind or not _is_last(node):
        return False
    same_last = is_same(node.inputs[0].shape[-1], x.shape[-1])
    return same_last and bare(node.inputs[0]) is bare(x)


def _mean_of(node: Node, extent: int) -> Node | None:
    """The sum of which `node` is a mean over that many."""
    node = bare(node)
    if node.name not in ("mul", "div"):
        return None
    sum_, share = bare(node.inputs[0]), small_constant(node.inputs[1])
    if sum_.name != "reduce_sum" or share is None or share.size == 0:
        return None
    value = share.reshape(-1)
    expected = 1 / extent if node.name == "mul" else extent
    is_mean = bool(np.all(np.abs(value - expected) <= 1e-6 * expected))
    return sum_ if is_mean and constant_value(sum_) is None else None
