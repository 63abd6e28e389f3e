"""Elementwise operators: arithmetic, comparisons, logic, activations, casts.

In: nodes of any shapes that broadcast. Out: trees of elementwise primitives. Invariant: NaN and
infinities come out as ONNX says, and integers wrap in their own type.
"""

from __future__ import annotations

import math
from functools import reduce as fold

import numpy as np

from fissile.fission.build import (
    add,
    apply,
    clamp,
    const,
    constant_of,
    div,
    dtype_of_onnx,
    mul,
    reduce,
    reshape,
    select,
    sub,
)
from fissile.fission.table import Call, Definition, Refusal, fission
from fissile.ir.dtype import BOOL, FLOAT32, UINT8, DType
from fissile.ir.graph import Node
from fissile.ir.primitive import cast, constant_value

_UNARY = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh",
    "Atan": "atan", "Atanh": "atanh", "BitwiseNot": "not", "Ceil": "ceil", "Cos": "cos",
    "Cosh": "cosh", "Erf": "erf", "Exp": "exp", "Floor": "floor", "Log": "log", "Neg": "neg",
    "Not": "not", "Round": "rint", "Sigmoid": "sigmoid", "Sin": "sin", "Sinh": "sinh",
    "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip
_BINARY = {
    "Add": "add", "And": "and", "BitwiseAnd": "and", "BitwiseOr": "or", "BitwiseXor": "xor",
    "Div": "div", "Equal": "eq", "Greater": "gt", "GreaterOrEqual": "ge", "Less": "lt",
    "LessOrEqual": "le", "Mul": "mul", "Or": "or", "Sub": "sub", "Xor": "xor",
}  # fmt: skip
_VARIADIC = {"Max": "max", "Min": "min", "Sum": "add"}


def _declare_unary(name: str) -> Definition:
    return lambda call, x: apply(name, x)


def _declare_binary(name: str) -> Definition:
    return lambda call, a, b: apply(name, a, b)


def _declare_variadic(name: str) -> Definition:
    return lambda call, *xs: fold(lambda a, b: apply(name, a, b), xs)


for _type, _name in _UNARY.items():
    fission(_type)(_declare_unary(_name))
for _type, _name in _BINARY.items():
    fission(_type)(_declare_binary(_name))
for _type, _name in _VARIADIC.items():
    fission(_type)(_declare_variadic(_name))


@fission("Identity", "Dropout", raw=True)
def identity(call: Call, x: Node, *rest: Node | None) -> tuple[Node, ...]:
    """x -> x; in training mode Dropout is refused, since it draws random numbers."""
    if call.operator.type == "Dropout":
        mode = rest[1] if len(rest) > 1 else None
        training = None if mode is None else constant_value(mode)
        if mode is not None and (training is None or training.any()):
            raise Refusal("dropout in training mode draws random numbers")
        return (x, constant_true(x))
    return (x,)


def constant_true(x: Node) -> Node:
    """A tensor of the shape of x that is true everywhere."""
    false = apply("xor", *[apply("ne", x, x) if x.dtype is not BOOL else x] * 2)
    return apply("not", false)


@fission("Mean")
def mean_of(call: Call, *xs: Node) -> Node:
    """sum(xs) / n."""
    return div(fold(add, xs), const(len(xs), xs[0]))


@fission("Pow")
def power(call: Call, x: Node, y: Node) -> Node:
    """x ** y in the type of x; a constant exponent of 2 is x * x, which rounds alike."""
    exponent = constant_value(y)
    if (
        exponent is not None
        and exponent.size == 1
        and exponent.item() == 2
        and y.type.rank <= x.type.rank
    ):
        return mul(x, x)
    if x.dtype.is_integer and y.dtype.is_float:
        return cast(apply("pow", cast(x, y.dtype), y), x.dtype)
    return apply("pow", x, cast(y, x.dtype))


@fission("Mod")
def modulo(call: Call, a: Node, b: Node) -> Node:
    """Remainder: the divisor's sign, or with fmod the dividend's."""
    return apply("rem" if call.attr("fmod", 0) else "mod", a, b)


@fission("BitShift")
def bit_shift(call: Call, a: Node, b: Node) -> Node:
    """a shifted by b bits: zeros come in, or copies of the sign from the left of a signed number.

    A negative amount shifts everything out, like one beyond the width.
    """
    if b.dtype.kind == "i":
        b = select(apply("lt", b, const(0, b)), const(b.dtype.bits, b), b)
    if call.attr("direction") == "LEFT":
        return apply("shift_left", a, b)
    if a.dtype.kind == "u":
        return apply("shift_right", a, b)
    flipped = apply("not", apply("shift_right", apply("not", a), b))
    return select(apply("lt", a, const(0, a)), flipped, apply("shift_right", a, b))


@fission("Where")
def where(call: Call, condition: Node, a: Node, b: Node) -> Node:
    """condition ? a : b."""
    return select(condition, a, b)


@fission("IsNaN")
def is_nan(call: Call, x: Node) -> Node:
    """x != x."""
    return apply("ne", x, x)


@fission("IsInf")
def is_inf(call: Call, x: Node) -> Node:
    """|x| == inf, or one sign of it only."""
    positive, negative = call.attr("detect_positive", 1), call.attr("detect_negative", 1)
    if positive and negative:
        return apply("eq", apply("abs", x), const(math.inf, x))
    if not positive and not negative:
        return apply("and", apply("ne", x, x), apply("eq", x, x))
    return apply("eq", x, const(math.inf if positive else -math.inf, x))


@fission("Sign")
def sign(call: Call, x: Node) -> Node:
    """-1, 0 or 1; NaN stays NaN."""
    zero = const(0, x)
    up = select(apply("gt", x, zero), const(1, x), x)
    if x.dtype.kind == "u":
        return up
    return select(apply("lt", x, zero), const(-1, x), up)


@fission("Reciprocal")
def reciprocal(call: Call, x: Node) -> Node:
    """1 / x."""
    return div(const(1, x), x)


@fission("Cast", raw=True)
def cast_to(call: Call, x: Node) -> Node:
    """x in another element type."""
    return cast_through(x, dtype_of_onnx(call.attr("to")))


@fission("CastLike", raw=True)
def cast_like(call: Call, x: Node, like: Node) -> Node:
    """x in the element type of another tensor."""
    return cast_through(x, like.dtype)


@fission("BitCast", raw=True)
def bit_cast(call: Call, x: Node) -> Node:
    """The same bits read as another type."""
    to = dtype_of_onnx(call.attr("to"))
    if to is x.dtype:
        return x
    raise Refusal(f"the bits of {x.dtype} read as {to} have no native definition")


def cast_through(x: Node, to: DType) -> Node:
    """x as `to`. Half types go through float32, as they are computed."""
    half = x.dtype.compute is not x.dtype
    return cast(cast(x, FLOAT32) if half and to is not x.dtype else x, to)


@fission("Clip", since=6)
def clip_by_attributes(call: Call, x: Node) -> Node:
    """min(max(x, min), max) with numbers as attributes."""
    low, high = call.attr("min"), call.attr("max")
    if low is not None:
        x = apply("max", x, const(low, x))
    return x if high is None else apply("min", x, const(high, x))


@fission("Clip", since=11)
def clip(call: Call, x: Node, low: Node | None = None, high: Node | None = None) -> Node:
    """min(max(x, min), max)."""
    if low is not None:
        x = apply("max", x, reshape(low, ()))
    return x if high is None else apply("min", x, reshape(high, ()))


# ---- activations ---------------------------------------------------------------------------------


@fission("Relu")
def relu(call: Call, x: Node) -> Node:
    """max(x, 0)."""
    return apply("max", x, const(0, x))


@fission("LeakyRelu")
def leaky_relu(call: Call, x: Node) -> Node:
    """x < 0 ? alpha * x : x."""
    scaled = mul(x, const(call.attr("alpha", 0.01), x))
    return select(apply("lt", x, const(0, x)), scaled, x)


@fission("PRelu")
def prelu(call: Call, x: Node, slope: Node) -> Node:
    """x < 0 ? slope * x : x, the slope broadcast from the right."""
    return select(apply("lt", x, const(0, x)), mul(x, slope), x)


@fission("ThresholdedRelu")
def thresholded_relu(call: Call, x: Node) -> Node:
    """x > alpha ? x : 0."""
    return select(apply("gt", x, const(call.attr("alpha", 1.0), x)), x, const(0, x))


@fission("Elu")
def elu(call: Call, x: Node) -> Node:
    """x < 0 ? alpha * (exp(x) - 1) : x."""
    curve = mul(apply("expm1", x), const(call.attr("alpha", 1.0), x))
    return select(apply("lt", x, const(0, x)), curve, x)


@fission("Celu")
def celu(call: Call, x: Node) -> Node:
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""
    alpha = const(call.attr("alpha", 1.0), x)
    curve = mul(apply("expm1", div(x, alpha)), alpha)
    return add(apply("max", x, const(0, x)), apply("min", curve, const(0, x)))


@fission("Selu")
def selu(call: Call, x: Node) -> Node:
    """gamma * (x > 0 ? x : alpha * (exp(x) - 1))."""
    alpha, gamma = (
        call.attr("alpha", 1.67326319217681884765625),
        call.attr("gamma", 1.0507010221481323),
    )
    curve = mul(apply("expm1", x), const(alpha, x))
    return mul(select(apply("gt", x, const(0, x)), x, curve), const(gamma, x))


@fission("HardSigmoid")
def hard_sigmoid(call: Call, x: Node) -> Node:
    """max(0, min(1, alpha * x + beta))."""
    line = mul(x, const(call.attr("alpha", 0.2), x))
    return clamp(add(line, const(call.attr("beta", 0.5), x)), 0, 1)


@fission("HardSwish")
def hard_swish(call: Call, x: Node) -> Node:
    """x * max(0, min(1, x / 6 + 0.5))."""
    line = add(mul(x, const(1 / 6, x)), const(0.5, x))
    return mul(x, clamp(line, 0, 1))


@fission("Swish")
def swish(call: Call, x: Node) -> Node:
    """x * sigmoid(alpha * x)."""
    return mul(x, apply("sigmoid", mul(x, const(call.attr("alpha", 1.0), x))))


def softplus_of(x: Node) -> Node:
    """log(exp(x) + 1), without overflow."""
    tail = apply("log1p", apply("exp", apply("neg", apply("abs", x))))
    return add(apply("max", x, const(0, x)), tail)


@fission("Softplus")
def softplus(call: Call, x: Node) -> Node:
    """log(exp(x) + 1) = max(x, 0) + log(1 + exp(-|x|))."""
    return softplus_of(x)


@fission("Softsign")
def softsign(call: Call, x: Node) -> Node:
    """x / (1 + |x|)."""
    return div(x, add(const(1, x), apply("abs", x)))


@fission("Mish")
def mish(call: Call, x: Node) -> Node:
    """x * tanh(softplus(x))."""
    return mul(x, apply("tanh", softplus_of(x)))


@fission("Gelu")
@fission("Gelu", domain="com.microsoft")
def gelu(call: Call, x: Node) -> Node:
    """x * Phi(x) by erf, or by its tanh approximation."""
    half = const(0.5, x)
    if call.attr("approximate", "none") == "tanh":
        cube = mul(const(0.044715, x), mul(x, mul(x, x)))
        inner = apply("tanh", mul(const(math.sqrt(2 / math.pi), x), add(x, cube)))
    else:
        inner = apply("erf", mul(x, const(math.sqrt(0.5), x)))
    return mul(mul(half, x), add(const(1, x), inner))


@fission("Shrink")
def shrink(call: Call, x: Node) -> Node:
    """x < -lambd ? x + bias : x > lambd ? x - bias : 0."""
    lambd, bias = call.attr("lambd", 0.5), call.attr("bias", 0.0)
    kind = x.dtype
    wide = x if kind.is_float else cast(x, FLOAT32)
    low = apply("lt", wide, const(-lambd, wide))
    high = apply("gt", wide, const(lambd, wide))
    shift = const(bias, wide)
    inner = select(high, sub(wide, shift), const(0, wide))
    return cast(select(low, add(wide, shift), inner), kind)


# ---- quantisation --------------------------------------------------------------------------------


def along(parameter: Node, x: Node, axis: int) -> Node:
    """A scale or zero point of one element, or one per slice of `axis`, shaped to broadcast with x."""
    if parameter.type.rank == 0:
        return parameter
    if parameter.type.rank == 1:
        if parameter.shape == (1,):
            return reshape(parameter, ())
        place = axis % max(x.type.rank, 1)
        n = parameter.shape[0]
        return reshape(parameter, tuple(n if a == place else 1 for a in range(x.type.rank)))
    raise Refusal("blocked quantisation has no native definition")


def quantized(x: Node, scale: Node, zero: Node | None, to: DType) -> Node:
    """saturate(round_half_even(x / scale) + zero) as an integer type."""
    level = apply("rint", div(x, scale))
    if zero is not None:
        level = add(level, cast(zero, level.dtype))
    bits = to.bits - (to.kind == "i")
    low, high = (-(2**bits) if to.kind == "i" else 0), 2**bits - 1
    return cast(clamp(level, low, high), to)


def dequantized(x: Node, scale: Node, zero: Node | None) -> Node:
    """(x - zero) * scale in float32."""
    level = cast(x, FLOAT32)
    if zero is not None:
        level = sub(level, cast(zero, FLOAT32))
    return mul(level, scale)


@fission("QuantizeLinear")
def quantize_linear(call: Call, x: Node, scale: Node, zero: Node | None = None) -> Node:
    """saturate(round(x / scale) + zero)."""
    code = call.attr("output_dtype", 0)
    to = zero.dtype if zero is not None else dtype_of_onnx(code) if code else UINT8
    if not to.is_integer:
        raise Refusal(f"quantisation to {to} has no native definition")
    axis = call.attr("axis", 1)
    point = None if zero is None else along(zero, x, axis)
    return quantized(cast(x, FLOAT32), along(scale, x, axis), point, to)


@fission("DequantizeLinear")
def dequantize_linear(call: Call, x: Node, scale: Node, zero: Node | None = None) -> Node:
    """(x - zero) * scale."""
    axis = call.attr("axis", 1)
    point = None if zero is None else along(zero, x, axis)
    return dequantized(x, along(scale, x, axis), point)


@fission("DynamicQuantizeLinear")
def dynamic_quantize_linear(call: Call, x: Node) -> tuple[Node, ...]:
    """uint8 levels with a scale and zero point taken from the range of x, zero included."""
    axes = range(x.type.rank)
    low = apply("min", reduce("min", x, axes, keepdims=False), const(0, x))
    high = apply("max", reduce("max", x, axes, keepdims=False), const(0, x))
    levels = div(sub(high, low), const(255, x))
    scale = select(apply("eq", high, low), const(1, x), levels)  # all zeros
    point = apply("rint", clamp(div(sub(const(0, x), low), scale), 0, 255))
    zero = cast(point, UINT8)
    return quantized(x, scale, zero, UINT8), scale, zero


@fission("Constant", raw=True)
def constant_node(call: Call) -> Node:
    """The attribute's value."""
    attributes = call.operator.attributes
    if len(attributes) != 1:
        raise ValueError(f"a constant with {len(attributes)} values")
    name, value = next(iter(attributes.items()))
    if name.startswith("value_string"):
        raise Refusal("tensors of string have no native definition")
    if name.startswith("value_float"):
        return constant_of(np.asarray(value, np.float32))
    return constant_of(np.asarray(value, np.int64 if name.startswith("value_int") else None))
