"""Normalizations: batch, instance, group, layer, RMS, local response, Lp.

In: a tensor with its scales and shifts. Out: reductions and elementwise primitives. Invariant:
what depends on parameters alone is computed apart from the data, so that it folds into constants.
"""

from __future__ import annotations

from collections.abc import Sequence

from fissile.fission.build import (
    add,
    apply,
    channels_first,
    channels_last,
    const,
    div,
    divided,
    mean,
    mul,
    normal_axis,
    pad,
    reduce,
    reshape,
    sub,
    window,
)
from fissile.fission.table import Call, Refusal, fission
from fissile.ir.dim import equal, exact_div, product
from fissile.ir.graph import Node
from fissile.ir.primitive import RESHAPE, cast


def per_channel(parameter: Node, x: Node) -> Node:
    """[C] shaped to broadcast along axis 1 of x."""
    return reshape(parameter, (*parameter.shape, *(1 for _ in range(x.type.rank - 2))))


def normalized(x: Node, axes: Sequence[int], epsilon: float) -> tuple[Node, Node, Node]:
    """((x - mean) / sqrt(var + epsilon), mean, 1 / sqrt(var + epsilon)) over `axes`, kept as 1."""
    center = mean(x, axes)
    shifted = sub(x, center)
    variance = mean(mul(shifted, shifted), axes)
    deviation = apply("sqrt", add(variance, const(epsilon, x)))
    return div(shifted, deviation), center, div(const(1, x), deviation)


@fission("BatchNormalization")
def batch_normalization(
    call: Call, x: Node, scale: Node, bias: Node, center: Node, variance: Node
) -> tuple[Node, ...]:
    """x * (scale / sqrt(var + epsilon)) + (bias - mean * scale / sqrt(var + epsilon))."""
    epsilon = call.attr("epsilon", 1e-5)
    if call.attr("training_mode", 0):
        return _training(call, x, scale, bias, center, variance)
    if call.outputs > 1:
        raise Refusal("the running statistics of old training operators have no native definition")
    center, variance, scale, bias = (cast(p, x.dtype) for p in (center, variance, scale, bias))
    factor = div(scale, apply("sqrt", add(variance, const(epsilon, x))))
    shift = sub(bias, mul(center, factor))
    if not call.attr("spatial", 1):  # before opset 9: parameters of every place, [C, D1, ..]
        return (add(mul(x, factor), shift),)
    return (add(mul(x, per_channel(factor, x)), per_channel(shift, x)),)


def _training(
    call: Call, x: Node, scale: Node, bias: Node, center: Node, variance: Node
) -> tuple[Node, ...]:
    axes = [a for a in range(x.type.rank) if a != 1]
    momentum = call.attr("momentum", 0.9)
    own = mean(x, axes, keepdims=False)
    shifted = sub(x, per_channel(own, x))
    spread = mean(mul(shifted, shifted), axes, keepdims=False)
    factor = div(scale, apply("sqrt", add(spread, const(call.attr("epsilon", 1e-5), x))))
    y = add(mul(shifted, per_channel(factor, x)), per_channel(bias, x))

    def running(old: Node, new: Node) -> Node:
        return add(mul(old, const(momentum, old)), mul(new, const(1 - momentum, new)))

    return y, running(center, own), running(variance, spread)


@fission("InstanceNormalization")
def instance_normalization(call: Call, x: Node, scale: Node, bias: Node) -> Node:
    """Each map of each sample normalized, then scaled and shifted by channel."""
    apart = _channels_apart(x)
    y, _, _ = normalized(apart, range(2, apart.type.rank), call.attr("epsilon", 1e-5))
    return reshape(add(mul(y, per_channel(scale, y)), per_channel(bias, y)), x.shape)


def _channels_apart(x: Node) -> Node:
    """x as [N, C, part, D1, ..] where it is [N, C * part, D1, ..] with channels and places merged; else x.

    Exporters write a group normalization as the instance normalization of such a merged tensor. Its channels and
    places lie apart wherever the network runs channels-last, so that every access of the merged axis would divide.
    """
    if x.primitive is not RESHAPE or x.type.rank < 3:
        return x
    whole = x.inputs[0].shape
    groups = x.shape[1]
    if len(whole) < 3 or whole[0] != x.shape[0] or not (type(groups) is type(whole[1]) is int):
        return x
    part = exact_div(whole[1], groups) if groups else None
    if part is None or equal(product((part, *whole[2:])), product(x.shape[2:])) is not True:
        return x
    return reshape(x.inputs[0], (whole[0], groups, part, *whole[2:]))


@fission("GroupNormalization")
def group_normalization(call: Call, x: Node, scale: Node, bias: Node) -> Node:
    """Each group of channels of each sample normalized; scales by group before opset 21, then by channel."""
    groups = call.attr("num_groups")
    inner = divided(x.shape[1], groups)
    split = reshape(x, (x.shape[0], groups, inner, *x.shape[2:]))
    y, _, _ = normalized(split, range(2, split.type.rank), call.attr("epsilon", 1e-5))
    if call.version < 21:
        y = add(mul(y, per_channel(scale, y)), per_channel(bias, y))
        return reshape(y, x.shape)
    return add(mul(reshape(y, x.shape), per_channel(scale, x)), per_channel(bias, x))


@fission("LayerNormalization", wide=(1, 2))
@fission("LayerNormalization", domain="com.microsoft")
def layer_normalization(
    call: Call, x: Node, scale: Node, bias: Node | None = None
) -> tuple[Node, ...]:
    """The axes from `axis` on normalized, then scaled and shifted."""
    first = normal_axis(call.attr("axis", -1), x.type.rank)
    y, center, inverse = normalized(x, range(first, x.type.rank), call.attr("epsilon", 1e-5))
    y = mul(y, scale)
    return y if bias is None else add(y, bias), center, inverse


@fission("RMSNormalization", like=1)
@fission("SimplifiedLayerNormalization", domain="com.microsoft", wide=(1,), like=1)
def rms_normalization(call: Call, x: Node, scale: Node) -> tuple[Node, ...]:
    """x / sqrt(mean(x^2) + epsilon) * scale over the axes from `axis` on, and 1 over that root."""
    first = normal_axis(call.attr("axis", -1), x.type.rank)
    square = mean(mul(x, x), range(first, x.type.rank))
    deviation = apply("sqrt", add(square, const(call.attr("epsilon", 1e-5), x)))
    return mul(div(x, deviation), scale), div(const(1, x), deviation)


@fission("MeanVarianceNormalization")
def mean_variance_normalization(call: Call, x: Node) -> Node:
    """(x - mean) / sqrt(var), with a grain of salt against 0."""
    axes = call.attr("axes", (0, 2, 3))
    center = mean(x, axes)
    spread = sub(mean(mul(x, x), axes), mul(center, center))
    return div(sub(x, center), add(apply("sqrt", spread), const(1e-9, x)))


@fission("LpNormalization")
def lp_normalization(call: Call, x: Node) -> Node:
    """x divided by its p-norm along an axis; 0 where the norm is 0."""
    axis, p = call.attr("axis", -1), call.attr("p", 2)
    if p == 1:
        norm = reduce("sum", apply("abs", x), [axis])
    else:
        norm = apply("sqrt", reduce("sum", mul(x, x), [axis]))
    empty = apply("eq", norm, const(0, x))
    return apply("select", empty, const(0, x), div(x, norm))


@fission("LRN")
def local_response_normalization(call: Call, x: Node) -> Node:
    """x / (bias + alpha / size * sum of squares of near channels) ^ beta."""
    size, last = call.attr("size"), x.type.rank - 1
    squares = channels_last(mul(x, x))
    zeros = (0,) * last
    padded = pad(squares, (*zeros, (size - 1) // 2), (*zeros, size // 2))
    total = channels_first(
        reduce("sum", window(padded, [last], [size], [1], [1]), [last + 1], False)
    )
    scale = const(call.attr("alpha", 1e-4) / size, x)
    base = add(const(call.attr("bias", 1.0), x), mul(scale, total))
    return div(x, apply("pow", base, const(call.attr("beta", 0.75), x)))
