"""Operators of onnxruntime's own domain that its optimizer writes: several of ONNX's in one.

In: nodes, as for ONNX's operators. Out: what the parts give one after the other. Invariant: nothing here is computed
otherwise than by ONNX's own operators.
"""

from __future__ import annotations

from fissile.fission.build import add, apply, clamp, const, mul, select
from fissile.fission.elementwise import dequantize_linear, gelu, quantize_linear
from fissile.fission.linear import conv
from fissile.fission.normalization import layer_normalization, rms_normalization
from fissile.fission.table import Call, Refusal, Result, fission
from fissile.ir.graph import Node

CONTRIB = "com.microsoft"


@fission("FusedConv", domain=CONTRIB)
def fused_conv(
    call: Call, x: Node, w: Node, bias: Node | None = None, more: Node | None = None
) -> Node:
    """Conv, the sum with `more`, then an activation."""
    y = _one(conv(call, x, w, bias))
    return _activated(call, y if more is None else add(y, more))


def _activated(call: Call, x: Node) -> Node:
    kind, given = call.attr("activation", ""), call.attr("activation_params", ())
    if kind in ("Tanh", "Sigmoid"):
        return apply(kind.lower(), x)
    if kind == "Relu":
        return apply("max", x, const(0, x))
    if kind == "LeakyRelu":
        return select(apply("lt", x, const(0, x)), mul(x, const(given[0], x)), x)
    if kind == "Clip":
        return clamp(x, given[0], given[1])
    if kind == "HardSigmoid":
        return clamp(add(mul(x, const(given[0], x)), const(given[1], x)), 0, 1)
    if kind:
        raise Refusal(f"the activation {kind} has no native definition")
    return x


@fission("BiasGelu", domain=CONTRIB)
def bias_gelu(call: Call, x: Node, bias: Node) -> Node:
    """Gelu of a sum."""
    return _one(gelu(call, add(x, bias)))


@fission("SkipLayerNormalization", domain=CONTRIB)
def skip_layer_normalization(
    call: Call,
    x: Node,
    skip: Node,
    scale: Node,
    shift: Node | None = None,
    bias: Node | None = None,
) -> tuple[Node | None, ...]:
    """The sum of x, skip and bias normalized over the last axis; the sum itself is the fourth output."""
    total = _sum(x, skip, bias)
    found = layer_normalization(call, total, scale, shift)
    assert isinstance(found, tuple)
    return *found, total


@fission("SkipSimplifiedLayerNormalization", domain=CONTRIB)
def skip_rms_normalization(
    call: Call, x: Node, skip: Node, scale: Node, bias: Node | None = None
) -> tuple[Node | None, ...]:
    """As above, without a mean, of which the second output would be."""
    total = _sum(x, skip, bias)
    found = rms_normalization(call, total, scale)
    assert isinstance(found, tuple)
    return found[0], None, found[1], total


def _one(result: Result) -> Node:
    assert isinstance(result, Node)
    return result


def _sum(x: Node, skip: Node, bias: Node | None) -> Node:
    total = add(x, skip)
    return total if bias is None else add(total, bias)


fission("QuantizeLinear", domain=CONTRIB)(quantize_linear)
fission("DequantizeLinear", domain=CONTRIB)(dequantize_linear)
