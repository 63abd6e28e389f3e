"""Linear operators: MatMul, Gemm, Conv, ConvTranspose, Einsum, and their quantized forms.

In: ONNX layouts. Out: `matmul` and channels-last, unpadded `conv`, with the layouts, padding and
bias around them as primitives. Invariant: one linear primitive per contraction of two tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fissile.fission.build import (
    Shape,
    add,
    channels_first,
    channels_last,
    const,
    expand,
    joined_shape,
    matmul,
    mul,
    number,
    pad,
    reduce,
    reshape,
    slice_axis,
    squeeze,
    sub,
    transpose,
    unsqueeze,
)
from fissile.fission.elementwise import along, quantized
from fissile.fission.pooling import around, geometry
from fissile.fission.table import Call, Refusal, fission
from fissile.ir.dim import Dim, DimLike, exact_div, product
from fissile.ir.dtype import FLOAT32, FLOAT64, INT32
from fissile.ir.graph import Node, make
from fissile.ir.primitive import CONV, DILATE, cast, constant_value

# ---- products ------------------------------------------------------------------------------------


def product_of(a: Node, b: Node) -> Node:
    """numpy's matmul, vectors included."""
    if a.type.rank == 0 or b.type.rank == 0:
        raise ValueError(f"matmul of {a.type} and {b.type}")
    left = unsqueeze(a, [0]) if a.type.rank == 1 else a
    right = unsqueeze(b, [1]) if b.type.rank == 1 else b
    result = matmul(left, right)
    if b.type.rank == 1:
        result = squeeze(result, [-1])
    if a.type.rank == 1:
        result = squeeze(result, [-2 if b.type.rank > 1 else -1])
    return result


@fission("MatMul")
def matmul_operator(call: Call, a: Node, b: Node) -> Node:
    """a . b with numpy's rules."""
    return product_of(a, b)


@fission("Gemm")
def gemm(call: Call, a: Node, b: Node, c: Node | None = None) -> Node:
    """alpha * a' . b' + beta * c."""
    left = transpose(a, (1, 0)) if call.attr("transA", 0) else a
    right = transpose(b, (1, 0)) if call.attr("transB", 0) else b
    result = matmul(left, right)
    alpha, beta = call.attr("alpha", 1.0), call.attr("beta", 1.0)
    if not result.dtype.is_float and not (alpha.is_integer() and beta.is_integer()):
        raise Refusal("integers times a factor that is none have no native definition")
    if alpha != 1:
        result = mul(result, const(alpha, result))
    if c is None or beta == 0:
        return result
    return add(result, c if beta == 1 else mul(c, const(beta, c)))


# ---- convolution ---------------------------------------------------------------------------------


def convolve(call: Call, x: Node, w: Node, fill: int = 0) -> Node:
    """x [N, C, spatial..] by w [O, C / groups, taps..]: the sum alone, channels last."""
    taps = call.attr("kernel_shape") or _numbers(w.shape[2:])
    g = geometry(call, x.shape[2:], taps)
    for extent, low, high, span in zip(x.shape[2:], g.low, g.high, g.spans, strict=True):
        call.demand_at_least(extent + low + high, span, "the padded extent")
    rows = pad(channels_last(x), around(g.low), around(g.high), fill)
    kernel = transpose(w, (*range(2, w.type.rank), 1, 0))
    groups = call.attr("group", 1)
    return make(CONV, rows, kernel, strides=g.strides, dilations=g.dilations, groups=groups)


def _numbers(shape: Shape) -> tuple[int, ...]:
    if any(isinstance(d, Dim) for d in shape):
        raise Refusal("a convolution whose kernel size is not a number has no native definition")
    return tuple(number(d) for d in shape)


@fission("Conv")
def conv(call: Call, x: Node, w: Node, bias: Node | None = None) -> Node:
    """Transpose to channels last, pad, conv, add the bias, transpose back."""
    y = convolve(call, x, w)
    return channels_first(y if bias is None else add(y, bias))


@fission("ConvTranspose")
def conv_transpose(call: Call, x: Node, w: Node, bias: Node | None = None) -> Node:
    """A matmul when windows tile the output; else spread x by the strides and convolve with the flipped kernel."""
    spatial = x.shape[2:]
    rank = len(spatial)
    taps = _numbers(w.shape[2:])
    strides = tuple(call.attr("strides", (1,) * rank))
    dilations = tuple(call.attr("dilations", (1,) * rank))
    spans = [(k - 1) * d + 1 for k, d in zip(taps, dilations, strict=True)]
    low, high, tail = _transposed_pads(call, spatial, strides, spans)
    tiles = taps == strides and set(dilations) <= {1} and call.attr("group", 1) == 1
    if tiles and not any(tail):
        whole = _tiled(channels_last(x), w, taps)
        y = _cropped(whole, low, high)
    else:
        _check_finite(w)
        y = _spread(call, x, w, strides, dilations, [s - 1 for s in spans], low, high, tail)
    return channels_first(y if bias is None else add(y, bias))


def _check_finite(w: Node) -> None:
    """Refusal of a weight that would make NaN out of the zeros between and around the elements of the input."""
    array = constant_value(w)
    if array is not None and w.dtype in (FLOAT32, FLOAT64) and not np.isfinite(array).all():
        raise Refusal("ConvTranspose by infinite or NaN weights has no native definition")


def _transposed_pads(
    call: Call, spatial: Shape, strides: Sequence[int], spans: Sequence[int]
) -> tuple[Shape, Shape, tuple[int, ...]]:
    """What is cut off at each end of the full output, and output_padding."""
    rank = len(spatial)
    tail = tuple(call.attr("output_padding", (0,) * rank))
    mode, wanted = call.attr("auto_pad", "NOTSET"), call.attr("output_shape")
    if wanted is None and mode in ("NOTSET", "VALID"):
        pads = (
            tuple(call.attr("pads", (0,) * (2 * rank))) if mode == "NOTSET" else (0,) * (2 * rank)
        )
        return pads[:rank], pads[rank:], tail
    low: list[DimLike] = []
    high: list[DimLike] = []
    for k, d in enumerate(spatial):
        target = d * strides[k] if wanted is None else wanted[-rank + k]
        total = (d - 1) * strides[k] + spans[k] + tail[k] - target
        if not isinstance(total, Dim) and total < 0:
            tail = (*tail[:k], tail[k] - total, *tail[k + 1 :])
            total = 0
        small = total // 2
        low.append(total - small if mode == "SAME_LOWER" else small)
        high.append(small if mode == "SAME_LOWER" else total - small)
    return tuple(low), tuple(high), tail


def _tiled(rows: Node, w: Node, taps: Sequence[int]) -> Node:
    """Each element becomes its own tile: [N, s.., C] . [C, taps.. * O], tiles interleaved into space."""
    outs, rank = w.shape[1], len(taps)
    kernel = reshape(transpose(w, (0, *range(2, 2 + rank), 1)), (w.shape[0], product(taps) * outs))
    n, *spatial, c = rows.shape
    flat = reshape(rows, (product((n, *spatial)), c))
    tiles = reshape(matmul(flat, kernel), (n, *spatial, *taps, outs))
    perm = [0, *(a for k in range(rank) for a in (1 + k, 1 + rank + k)), 1 + 2 * rank]
    merged = tuple(d * t for d, t in zip(spatial, taps, strict=True))
    return reshape(transpose(tiles, perm), (n, *merged, outs))


def _cropped(y: Node, low: Shape, high: Shape) -> Node:
    for k, (p, q) in enumerate(zip(low, high, strict=True)):
        y = slice_axis(y, 1 + k, p, y.shape[1 + k] - p - q)
    return y


def _spread(
    call: Call,
    x: Node,
    w: Node,
    strides: Sequence[int],
    dilations: Sequence[int],
    margins: Sequence[int],
    low: Shape,
    high: Shape,
    tail: Sequence[int],
) -> Node:
    groups, rank = call.attr("group", 1), len(strides)
    rows = channels_last(x)
    if set(strides) != {1}:
        rows = make(DILATE, rows, factors=(1, *strides, 1))
    before: list[DimLike] = [m - p for m, p in zip(margins, low, strict=True)]
    after: list[DimLike] = [m - q + t for m, q, t in zip(margins, high, tail, strict=True)]
    rows = pad_or_crop(rows, before, after)
    inner = exact_div(w.shape[0], groups)
    if inner is None:
        raise ValueError(f"{w.shape[0]} channels in {groups} groups")
    outs, taps = w.shape[1], w.shape[2:]
    split = reshape(w, (groups, inner, outs, *taps))
    kernel = transpose(split, (*range(3, 3 + rank), 1, 0, 2))
    kernel = reshape(kernel, (*taps, inner, groups * outs))
    for k in range(rank):
        kernel = slice_axis(kernel, k, taps[k] - 1, taps[k], -1)
    ones = (1,) * rank
    return make(CONV, rows, kernel, strides=ones, dilations=tuple(dilations), groups=groups)


def pad_or_crop(rows: Node, before: Sequence[DimLike], after: Sequence[DimLike]) -> Node:
    """Zeros added at the ends of the spatial axes, or, for negative amounts, elements cut off."""
    if any(isinstance(p, Dim) for p in (*before, *after)):
        raise Refusal(
            "ConvTranspose with SAME padding of extents not known has no native definition"
        )
    for k, (p, q) in enumerate(zip(before, after, strict=True)):
        cut_low, cut_high = max(-number(p), 0), max(-number(q), 0)
        rows = slice_axis(rows, 1 + k, cut_low, rows.shape[1 + k] - cut_low - cut_high)
    low = tuple(max(number(p), 0) for p in before)
    high = tuple(max(number(q), 0) for q in after)
    return pad(rows, around(low), around(high))


# ---- quantized products --------------------------------------------------------------------------


def _centered(x: Node, zero: Node | None, axis: int) -> Node:
    wide = cast(x, INT32)
    return wide if zero is None else sub(wide, cast(along(zero, x, axis), INT32))


@fission("MatMulInteger")
def matmul_integer(
    call: Call, a: Node, b: Node, a_zero: Node | None = None, b_zero: Node | None = None
) -> Node:
    """(a - a_zero) . (b - b_zero) in int32."""
    return product_of(_centered(a, a_zero, -2), _centered(b, b_zero, -1))


@fission("ConvInteger")
def conv_integer(
    call: Call, x: Node, w: Node, x_zero: Node | None = None, w_zero: Node | None = None
) -> Node:
    """Conv of (x - x_zero) by (w - w_zero) in int32."""
    return channels_first(convolve(call, _centered(x, x_zero, 1), _centered(w, w_zero, 0)))


@fission("QLinearMatMul")
def qlinear_matmul(
    call: Call,
    a: Node,
    a_scale: Node,
    a_zero: Node,
    b: Node,
    b_scale: Node,
    b_zero: Node,
    y_scale: Node,
    y_zero: Node,
) -> Node:
    """The exact int32 product, rescaled and quantized again."""
    total = cast(product_of(_centered(a, a_zero, -2), _centered(b, b_zero, -1)), FLOAT32)
    scale = mul(along(a_scale, total, -2), along(b_scale, total, -1))
    return quantized(
        mul(total, scale), along(y_scale, total, -2), along(y_zero, total, -2), y_zero.dtype
    )


@fission("QLinearConv")
def qlinear_conv(
    call: Call,
    x: Node,
    x_scale: Node,
    x_zero: Node,
    w: Node,
    w_scale: Node,
    w_zero: Node,
    y_scale: Node,
    y_zero: Node,
    bias: Node | None = None,
) -> Node:
    """The exact int32 convolution, rescaled and quantized again."""
    total = convolve(call, _centered(x, x_zero, 1), _centered(w, w_zero, 0))
    if bias is not None:
        total = add(total, bias)
    wide = cast(total, FLOAT32)
    scale = mul(along(x_scale, wide, -1), along(w_scale, wide, -1))
    return channels_first(quantized(mul(wide, scale), y_scale, y_zero, y_zero.dtype))


# ---- Einsum --------------------------------------------------------------------------------------


@fission("Einsum")
def einsum(call: Call, *operands: Node) -> Node:
    """Pairs contracted from left to right, each as one batched matmul."""
    terms, target = _equation(call.attr("equation"), [x.type.rank for x in operands])
    x, axes = _reduced(operands[0], terms[0], _later(terms, 0) | set(target))
    for k in range(1, len(operands)):
        y, other = _reduced(operands[k], terms[k], _later(terms, k) | set(target) | set(axes))
        x, axes = _contracted(x, axes, y, other, _later(terms, k) | set(target))
    x, axes = _reduced(x, axes, set(target))
    return transpose(x, [axes.index(a) for a in target])


def _later(terms: Sequence[Sequence[str]], k: int) -> set[str]:
    return {a for term in terms[k + 1 :] for a in term}


def _equation(text: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """The letters of each operand and of the result; the axes of `...` get names of two signs."""
    left, arrow, right = text.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(ranks):
        raise ValueError(f"equation {text!r} for {len(ranks)} operands")
    terms: list[list[str]] = []
    widest = 0
    for part, rank in zip(parts, ranks, strict=True):
        dots = rank - len(part.replace("...", ""))
        widest = max(widest, dots if "..." in part else 0)
        terms.append(_letters(part, dots))
    if arrow:
        return terms, _letters(right, widest)
    flat = [a for term in terms for a in term]
    named = sorted(a for a in set(flat) if len(a) == 1 and flat.count(a) == 1)
    return terms, _letters("...", widest) + named


def _letters(part: str, dots: int) -> list[str]:
    before, found, after = part.partition("...")
    hidden = [f".{k}" for k in range(dots - 1, -1, -1)] if found else []
    return [*before, *hidden, *after]


def _reduced(x: Node, axes: Sequence[str], wanted: set[str]) -> tuple[Node, list[str]]:
    if len(set(axes)) != len(axes):
        raise Refusal("Einsum that takes a diagonal has no native definition")
    gone = [k for k, a in enumerate(axes) if a not in wanted]
    return reduce("sum", x, gone, keepdims=False), [a for a in axes if a in wanted]


def _contracted(
    x: Node, axes: Sequence[str], y: Node, other: Sequence[str], wanted: set[str]
) -> tuple[Node, list[str]]:
    shared = [a for a in axes if a in other]
    batch = [a for a in shared if a in wanted]
    inner = [a for a in shared if a not in wanted]
    rows = [a for a in axes if a not in shared]
    columns = [a for a in other if a not in shared]
    left = transpose(x, [list(axes).index(a) for a in (*batch, *rows, *inner)])
    right = transpose(y, [list(other).index(a) for a in (*batch, *inner, *columns)])
    b, m = len(batch), len(batch) + len(rows)
    k = len(batch) + len(inner)
    summed = joined_shape(left.shape[m:], right.shape[b:k])  # an extent of 1 is repeated here, too
    left = expand(left, (*left.shape[:m], *summed))
    right = expand(right, (*right.shape[:b], *summed, *right.shape[k:]))
    a = reshape(left, (*left.shape[:b], product(left.shape[b:m]), product(left.shape[m:])))
    c = reshape(right, (*right.shape[:b], product(right.shape[b:k]), product(right.shape[k:])))
    result = matmul(a, c)
    shape = (*result.shape[:-2], *left.shape[b:m], *right.shape[k:])
    return reshape(result, shape), [*batch, *rows, *columns]
