"""How primitives are said with ONNX's own composite operators: the place to add a pattern.

In: a primitive whose operands are written. Out: its value, held by a new tensor; None where the pattern does not fit.
`FORMS` lists the patterns of each primitive in the order they are tried; what none fits is said as `fission.export`
does. Invariant: value and type are those of the primitive, whatever layout the operands are held in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fissile.fission.export import EXPORTS
from fissile.ir.dim import DimLike
from fissile.ir.graph import Node
from fissile.ir.primitive import constant_value
from fissile.optimizer.composites import layer_normalization, softmax
from fissile.optimizer.held import Form, Held, Scribe, channels_first, moved, plain, turned
from fissile.optimizer.resized import interpolated, repeated
from fissile.rewrite.rule import ELEMENTWISE
from fissile.rewrite.shape import (
    Shape,
    is_same,
    is_same_shape,
    is_unit,
    moves_only_units,
    small_constant,
)

# ---------------------------------------------------------------- views


def _constant(scribe: Scribe, node: Node) -> Held:
    value = constant_value(node)
    assert value is not None
    return plain(scribe.writer.constant(np.asarray(value), node.dtype), node.shape)


def _reshape(scribe: Scribe, node: Node) -> Held:
    return scribe.held[node.inputs[0]]


def _transpose(scribe: Scribe, node: Node) -> Held | None:
    x, perm = node.inputs[0], node.attr("perm")
    return turned(scribe.held[x], x.shape, perm) or turned(
        plain(scribe.plain(x), x.shape), x.shape, perm
    )


# ---------------------------------------------------------------- elementwise


def _elementwise(scribe: Scribe, node: Node) -> Held | None:
    """In the layout of the first operand that is no broadcast; the others follow."""
    leaders = [i for i in node.inputs if i.name not in ("broadcast", "constant")]
    if not leaders or node.name == "cast":
        return None
    lead = max(leaders, key=lambda i: not scribe.held[i].is_plain)
    held = scribe.held[lead]
    names = [_beside(scribe, i, held) for i in node.inputs]
    made = EXPORTS[node.name](scribe.writer, node, names)
    return Held(made, held.shape, held.perm)


def _beside(scribe: Scribe, node: Node, held: Held) -> str:
    """The operand in the layout of `held`, or something that ONNX broadcasts to it."""
    if node.name != "broadcast":
        return scribe.laid(node, held.shape, held.perm)
    small = node.inputs[0]
    if all(map(is_unit, small.shape)):
        return scribe.laid(small, (), ())
    rank = len(held.shape)
    last = all(map(is_unit, small.shape[:-1])) and is_same(small.shape[-1], held.shape[-1])
    if is_same_shape(held.shape, node.shape) or last:
        lead = rank - (1 if last else small.type.rank)
        own = small.shape[-1:] if last else small.shape
        return scribe.laid(small, (1,) * lead + own, held.perm)
    return scribe.laid(node, held.shape, held.perm)


def _biased(scribe: Scribe, node: Node) -> Held | None:
    """linear(x, w) + b per channel as one operator; the same where another tensor is added in between."""
    inner, shift = _own(scribe, node.inputs[0]), node.inputs[1]
    bias = small_constant(shift)
    if inner is None or bias is None or not node.shape or any(d != 1 for d in bias.shape[:-1]):
        return None
    channels = node.shape[-1]
    if not isinstance(channels, int) or bias.size not in (1, channels):
        return None
    vector = np.ascontiguousarray(np.broadcast_to(bias.reshape(-1), (channels,)))
    if inner.name != "add":
        return _shifted(scribe, inner, node, vector)
    for k, operand in enumerate(inner.inputs):
        linear, other = _own(scribe, operand), inner.inputs[1 - k]
        held = None if linear is None else _shifted(scribe, linear, node, vector)
        if held is not None and other.name != "broadcast":
            beside = scribe.laid(other, held.shape, held.perm)
            return Held(scribe.emit("Add", held.name, beside), held.shape, held.perm)
    return None


def _own(scribe: Scribe, node: Node) -> Node | None:
    """What lies below the reshapes of an operand, where nothing else reads any of it."""
    while node.name == "reshape" and scribe.readers[node] == 1:
        node = node.inputs[0]
    return node if scribe.readers[node] == 1 else None


def _shifted(scribe: Scribe, linear: Node, node: Node, bias: np.ndarray) -> Held | None:
    """A linear primitive with a bias per channel."""
    if linear.name not in ("conv", "matmul") or not is_same(linear.shape[-1], node.shape[-1]):
        return None
    form = _conv if linear.name == "conv" else _matmul
    return form(scribe, linear, scribe.writer.constant(bias, node.dtype))


# ---------------------------------------------------------------- linear


def _conv(scribe: Scribe, node: Node, bias: str | None = None) -> Held | None:
    """Channels-first, zero borders as its pads."""
    x, w = node.inputs
    weights = constant_value(w)
    if weights is None:
        return None
    rank = node.type.rank
    perm = channels_first(rank)
    more: dict[str, object] = {}
    if x.name == "pad" and _is_spatial_border(x):
        more["pads"] = [*x.attr("low")[1:-1], *x.attr("high")[1:-1]]
        x = x.inputs[0]
    taps = np.ascontiguousarray(weights.transpose(rank - 1, rank - 2, *range(rank - 2)))
    reads = [scribe.laid(x, x.shape, perm), scribe.writer.constant(taps, w.dtype)]
    name = scribe.emit(
        "Conv", *reads, *([bias] if bias else []), group=node.attr("groups"),
        strides=node.attr("strides"), dilations=node.attr("dilations"), **more,
    )  # fmt: skip
    return Held(name, node.shape, perm)


def _is_spatial_border(node: Node) -> bool:
    """Whether a pad puts zeros around the places of an image, as many as it can be told."""
    low, high = node.attr("low"), node.attr("high")
    if np.any(node.attr("value").array != 0):
        return False
    if not all(isinstance(d, int) and d >= 0 for d in (*low, *high)):
        return False
    return not any((low[0], low[-1], high[0], high[-1]))


def _matmul(scribe: Scribe, node: Node, bias: str | None = None) -> Held | None:
    """Constant weights: a convolution of one tap where x is channels-first, else a product over the last axis."""
    x, w = node.inputs
    weights = constant_value(w)
    if weights is None or w.type.rank != 2 or x.type.rank < 2:
        return None
    held = _units_first(scribe.held[x])
    rank = len(held.shape)
    shape: Shape = (*held.shape[:-1], node.shape[-1]) if rank else ()
    fits = rank >= 2 and is_same(held.shape[-1], x.shape[-1])
    if fits and rank > 2 and _is_channels_first(held):
        taps = np.ascontiguousarray(weights.T.reshape(*weights.T.shape, *(1,) * (rank - 2)))
        scribe.held[x] = held
        image = scribe.laid(x, held.shape, channels_first(rank))
        reads = [image, scribe.writer.constant(taps, w.dtype), *([bias] if bias else [])]
        return Held(scribe.emit("Conv", *reads), shape, channels_first(rank))
    if not fits or not held.is_plain:
        held, shape = plain(scribe.plain(x), x.shape), node.shape
    name = scribe.emit("MatMul", held.name, scribe.plain(w))
    return plain(scribe.emit("Add", name, bias) if bias else name, shape)


def _units_first(held: Held) -> Held:
    """The same with all axes of extent 1, but the last, in front: an image of a batch of one is a row of pixels."""
    last = len(held.shape) - 1
    order = sorted(range(last + 1), key=lambda a: not is_unit(held.shape[a]) or a == last)
    return Held(
        held.name, tuple(held.shape[a] for a in order), tuple(order.index(p) for p in held.perm)
    )


def _is_channels_first(held: Held) -> bool:
    """Whether a tensor is channels-first, but for where its axes of extent 1 are."""
    order = tuple(held.perm.index(p) for p in channels_first(len(held.perm)))
    return not held.is_plain and moves_only_units(held.tensor, order)


# ---------------------------------------------------------------- layout


def _view(scribe: Scribe, x: Node, axes: Sequence[int]) -> Held:
    """x held in a shape in which `axes` are axes: its own, or any where only the last axis matters."""
    held = scribe.held[x]
    last = x.type.rank - 1
    if is_same_shape(held.shape, x.shape):
        return held
    if held.shape and all(a == last for a in axes) and is_same(held.shape[-1], x.shape[-1]):
        return held
    return plain(scribe.plain(x), x.shape)


def _spread(values: Shape, held: Held, neutral: int) -> Shape:
    """Values by axis of the primitive as values by axis of what is held, where only the last one says something."""
    if len(values) == len(held.shape):
        return values
    return (*(neutral,) * (len(held.shape) - 1), values[-1])


def _slice(scribe: Scribe, node: Node) -> Held | None:
    x, starts, steps = node.inputs[0], node.attr("starts"), node.attr("steps")
    axes = [a for a in range(x.type.rank) if not is_same(x.shape[a], node.shape[a])]
    if not axes or not all(isinstance(steps[a], int) and steps[a] > 0 for a in axes):
        return None
    held = _view(scribe, x, axes)
    if len(held.shape) != x.type.rank or not is_same_shape(held.shape, x.shape):
        axes_held, shape = [len(held.shape) - 1], (*held.shape[:-1], node.shape[-1])
    else:
        axes_held, shape = axes, node.shape
    ends = [starts[a] + steps[a] * node.shape[a] for a in axes]
    places = [held.perm.index(a) for a in axes_held]
    rows = [[starts[a] for a in axes], ends, places, [steps[a] for a in axes]]
    return Held(scribe.emit("Slice", held.name, *map(scribe.writer.vector, rows)), shape, held.perm)


def _concat(scribe: Scribe, node: Node) -> Held | None:
    """In the layout that most of the parts are held in."""
    axis, last = node.attr("axis"), node.type.rank - 1
    views = [_view(scribe, x, (axis,)) for x in node.inputs if x.name != "constant"]
    if not views:
        return None
    keys = [(v.shape[:-1], v.perm) if axis == last else (v.perm,) for v in views]
    held = views[max(range(len(keys)), key=lambda k: keys.count(keys[k]))]
    if is_same_shape(held.shape[:-1], node.shape[:-1]) or axis != last:
        if len(held.shape) != node.type.rank:
            return None
        shapes = [x.shape for x in node.inputs]
        at, shape = axis, node.shape
    else:
        shapes = [(*held.shape[:-1], x.shape[-1]) for x in node.inputs]
        at, shape = len(held.shape) - 1, (*held.shape[:-1], node.shape[-1])
    names = [scribe.laid(x, s, held.perm) for x, s in zip(node.inputs, shapes, strict=True)]
    return Held(scribe.emit("Concat", *names, axis=held.perm.index(at)), shape, held.perm)


def _pad(scribe: Scribe, node: Node) -> Held | None:
    x = node.inputs[0]
    held = _view(scribe, x, range(x.type.rank))
    value = scribe.writer.constant(np.asarray(node.attr("value").array), node.dtype)
    pads = (*moved(node.attr("low"), held), *moved(node.attr("high"), held))
    name = scribe.emit("Pad", held.name, scribe.writer.vector(pads), value)
    return Held(name, node.shape, held.perm)


def _gather(scribe: Scribe, node: Node) -> Held | None:
    """Indices that are a known vector: any layout does; repeated ends are a border."""
    x, indices = node.inputs
    axis, known = node.attr("axis"), constant_value(indices)
    extent = x.shape[axis]
    if known is None or known.ndim != 1 or not isinstance(extent, int):
        return None
    held = _view(scribe, x, range(x.type.rank))
    begin = int(np.argmax(known > 0)) - 1 if extent > 1 and np.any(known > 0) else 0
    border = np.clip(np.arange(len(known)) - begin, 0, extent - 1)
    if 0 <= begin <= len(known) - extent and np.array_equal(known, border):
        pads = [0] * (2 * x.type.rank)
        at = held.perm.index(axis)
        pads[at], pads[at + x.type.rank] = begin, len(known) - extent - begin
        name = scribe.emit("Pad", held.name, scribe.writer.integers(pads), mode="edge")
        return Held(name, node.shape, held.perm)
    places = scribe.writer.integers([int(k) for k in np.clip(known, -extent, extent - 1)])
    name = scribe.emit("Gather", held.name, places, axis=held.perm.index(axis))
    return Held(name, node.shape, held.perm)


def _reduce(scribe: Scribe, node: Node) -> Held | None:
    """Axes as an attribute where the model's opset wants that."""
    axes = node.attr("axes")
    if scribe.opset >= 18 or node.name == "reduce_sum" or not axes:
        return None
    operator = {"max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd"}[node.name[7:]]
    name = scribe.emit(operator, scribe.plain(node.inputs[0]), axes=axes, keepdims=0)
    return plain(name, node.shape)


def _interleaved(scribe: Scribe, node: Node) -> Held | None:
    """Pixels of phases in rows and columns: reshape(concat(reshape(concat(..)), ..)) as DepthToSpace."""
    rows = node.inputs[0]
    if rows.name != "concat" or node.type.rank != 4 or rows.attr("axis") != 2 or rows.type.rank != 3:
        return None
    lines = [line.inputs[0] if line.name == "reshape" else line for line in rows.inputs]
    if any(line.name != "concat" or line.type.rank != 4 or line.attr("axis") != 3 for line in lines):
        return None
    pieces = [piece for line in lines for piece in line.inputs]
    n, high, wide, channels = pieces[0].shape
    factor = len(lines)
    if factor < 2 or any(len(line.inputs) != factor for line in lines):
        return None
    if not all(is_same_shape(p.shape, pieces[0].shape) for p in pieces):
        return None
    image: tuple[DimLike, ...] = (n, factor * high, factor * wide, channels)
    if not is_same_shape(node.shape, image) or scribe.opset < 11:
        return None
    perm = channels_first(4)
    names = [scribe.laid(p, p.shape, perm) for p in pieces]
    deep = scribe.emit("Concat", *names, axis=1)
    name = scribe.emit("DepthToSpace", deep, blocksize=factor, mode="DCR")
    return Held(name, node.shape, perm)


FORMS: Mapping[str, tuple[Form, ...]] = {
    **dict.fromkeys(ELEMENTWISE, (_elementwise,)),
    "add": (interpolated, _biased, _elementwise),
    "div": (softmax, layer_normalization, _elementwise),
    "constant": (_constant,),
    "broadcast": (repeated,),
    "reshape": (_interleaved, _reshape),
    "transpose": (_transpose,),
    "conv": (_conv,),
    "matmul": (_matmul,),
    "slice": (_slice,),
    "concat": (_concat,),
    "pad": (_pad,),
    "gather": (_gather,),
    "reduce_max": (_reduce,),
    "reduce_min": (_reduce,),
    "reduce_prod": (_reduce,),
}
