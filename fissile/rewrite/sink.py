"""Layout propagation: transposes sink towards the outputs, where those of neighbouring operators meet and cancel.

In: a primitive whose operand is a transpose. Out: the primitive on the transpose's operand, then a transpose. The other
operands must take the inverse permutation for nothing (`taken`). So a network of channels-last convolutions, each
between two transposes, runs channels-last throughout. Splits (reshapes that only cut axes) sink likewise, so that what
follows a matrix product is computed on the matrix. Invariant: exact but for the order of summation; one direction only,
hence it ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from fissile.ir.dim import DimLike
from fissile.ir.graph import Node, make
from fissile.ir.primitive import (
    BROADCAST,
    CONCAT,
    CONSTANT,
    DILATE,
    GATHER,
    IOTA,
    PAD,
    RESHAPE,
    SLICE,
    TRANSPOSE,
    WINDOW,
)
from fissile.rewrite.rule import ELEMENTWISE, Outcome, Refused, rule
from fissile.rewrite.shape import (
    Groups,
    Perm,
    Shape,
    expanded,
    inverse,
    is_same,
    is_unit,
    moves_only_units,
    permuted,
    proved_groups,
    transpose,
    view,
)

_NO_TRANSPOSE = Refused("the operand is no transpose")
_REDUCTIONS = ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")


def taken(node: Node, perm: Perm) -> Node | None:
    """transpose(node, perm) where that costs nothing: constants, views, broadcasts of those, transposes undone."""
    if node.primitive is BROADCAST:
        small = taken(expanded(node.inputs[0], node.type.rank), perm)
        return small and make(BROADCAST, small, shape=permuted(node.shape, perm))
    if node.primitive is IOTA:
        axis, shape = perm.index(node.attr("axis")), permuted(node.shape, perm)
        return make(IOTA, dtype=node.dtype.name, shape=shape, axis=axis)
    if moves_only_units(node.shape, perm):
        return view(node, permuted(node.shape, perm))
    bare = node.inputs[0] if node.primitive is RESHAPE else node
    if bare.primitive is CONSTANT:
        return make(TRANSPOSE, node, perm=perm)
    if node.primitive is TRANSPOSE:
        inner = node.inputs[0]
        both = tuple(node.attr("perm")[q] for q in perm)
        free = moves_only_units(inner.shape, both)
        return view(inner, permuted(inner.shape, both)) if free else None
    return None


def _common(inputs: Sequence[Node]) -> tuple[Perm, tuple[Node, ...]] | Refused:
    """A permutation p and nodes x with inputs = transpose(x, p), if such x cost nothing."""
    perms = dict.fromkeys(i.attr("perm") for i in inputs if i.primitive is TRANSPOSE)
    reason = _NO_TRANSPOSE
    for perm in perms:
        back = inverse(perm)
        sources = [taken(i, back) for i in inputs]
        if all(s is not None for s in sources):
            return perm, tuple(s for s in sources if s is not None)
        reason = Refused(f"operand {sources.index(None)} would need a transpose of its own")
    return reason


@rule("transpose(broadcast(x), p) -> broadcast(transpose(x, p)), the latter free", "transpose")
def transpose_of_broadcast(node: Node) -> Outcome:
    """What is small is transposed, if that is only a view."""
    if node.inputs[0].primitive not in (BROADCAST, IOTA):
        return Refused("the operand is no broadcast")
    return taken(node.inputs[0], node.attr("perm")) or Refused("the small tensor would be copied")


def _reshaped_broadcast(node: Node, shape: Shape, groups: Groups) -> Node | None:
    """reshape(broadcast, shape) as a broadcast, where axes that belong together are all repeated or all kept."""
    x = node.inputs[0]
    have = (1,) * (node.type.rank - x.type.rank) + x.shape
    small: list[DimLike] = []
    for source, target in groups:
        if all(is_unit(have[a]) for a in source):
            small.extend(1 for _ in target)
        elif all(is_same(have[a], node.shape[a]) for a in source):
            small.extend(shape[a] for a in target)
        else:
            return None
    return make(BROADCAST, view(x, tuple(small)), shape=shape)


@rule("reshape(broadcast(x, s), t) -> broadcast(reshape(x), t)", "reshape")
def reshape_of_broadcast(node: Node) -> Outcome:
    """What is small is reshaped, if no axis that is merged is repeated beside one that is not."""
    inner = node.inputs[0]
    if inner.primitive is not BROADCAST:
        return Refused("the operand is no broadcast")
    groups = proved_groups(inner.shape, node.shape)
    if groups is None:
        return Refused("which axes are merged or cut together is not provable")
    found = _reshaped_broadcast(inner, node.shape, groups)
    return found or Refused("axes that are merged or cut together are repeated in part")


@rule("f(transpose(x, p), ..) -> transpose(f(x, ..), p)", *ELEMENTWISE)
def sink_transpose_elementwise(node: Node) -> Outcome:
    """Elementwise primitives do not care about the order of axes."""
    found = _common(node.inputs)
    if isinstance(found, Refused):
        return found
    perm, sources = found
    return transpose(make(node.primitive, *sources, **dict(node.attrs)), perm)


@rule("concat(transpose(x, p), .., a) -> transpose(concat(x, .., p[a]), p)", "concat")
def sink_transpose_concat(node: Node) -> Outcome:
    """The pieces are joined along the axis that becomes `a`."""
    found = _common(node.inputs)
    if isinstance(found, Refused):
        return found
    perm, sources = found
    return transpose(make(CONCAT, *sources, axis=perm[node.attr("axis")]), perm)


@rule("reduce(transpose(x, p), axes) -> transpose(reduce(x, p[axes]), q)", *_REDUCTIONS)
def sink_transpose_reduce(node: Node) -> Outcome:
    """The same elements are combined."""
    inner = node.inputs[0]
    if inner.primitive is not TRANSPOSE:
        return _NO_TRANSPOSE
    perm, axes = inner.attr("perm"), node.attr("axes")
    reduced = make(node.primitive, inner.inputs[0], axes=tuple(sorted(perm[a] for a in axes)))
    return transpose(reduced, _ranks([p for a, p in enumerate(perm) if a not in axes]))


@rule("arg(transpose(x, p), a) -> transpose(arg(x, p[a]), q)", "arg_max", "arg_min")
def sink_transpose_arg(node: Node) -> Outcome:
    """The same elements are compared, in the same order."""
    inner = node.inputs[0]
    if inner.primitive is not TRANSPOSE:
        return _NO_TRANSPOSE
    perm, axis = inner.attr("perm"), node.attr("axis")
    found = make(node.primitive, inner.inputs[0], axis=perm[axis], last=node.attr("last"))
    return transpose(found, _ranks([p for a, p in enumerate(perm) if a != axis]))


def _ranks(values: Sequence[int]) -> Perm:
    """Each value's place among them."""
    order = sorted(values)
    return tuple(order.index(v) for v in values)


def _unpermuted(values: Sequence[DimLike], perm: Perm) -> Shape:
    return permuted(values, inverse(perm))


@rule("pad(transpose(x, p), l, h) -> transpose(pad(x, l', h'), p)", "pad")
def sink_transpose_pad(node: Node) -> Outcome:
    """Borders go with their axes."""
    inner = node.inputs[0]
    if inner.primitive is not TRANSPOSE:
        return _NO_TRANSPOSE
    perm = inner.attr("perm")
    sides = {side: _unpermuted(node.attr(side), perm) for side in ("low", "high")}
    return transpose(make(PAD, inner.inputs[0], value=node.attr("value"), **sides), perm)


@rule("slice(transpose(x, p)) -> transpose(slice(x), p)", "slice")
def sink_transpose_slice(node: Node) -> Outcome:
    """Starts, steps and extents go with their axes."""
    inner = node.inputs[0]
    if inner.primitive is not TRANSPOSE:
        return _NO_TRANSPOSE
    perm = inner.attr("perm")
    columns = {key: _unpermuted(node.attr(key), perm) for key in ("starts", "steps", "shape")}
    return transpose(make(SLICE, inner.inputs[0], **columns), perm)


@rule("dilate(transpose(x, p), f) -> transpose(dilate(x, f'), p)", "dilate")
def sink_transpose_dilate(node: Node) -> Outcome:
    """Factors go with their axes."""
    inner = node.inputs[0]
    if inner.primitive is not TRANSPOSE:
        return _NO_TRANSPOSE
    perm = inner.attr("perm")
    factors = _unpermuted(node.attr("factors"), perm)
    return transpose(make(DILATE, inner.inputs[0], factors=factors), perm)


@rule("window(transpose(x, p), axes) -> transpose(window(x, p[axes]), p + new axes)", "window")
def sink_transpose_window(node: Node) -> Outcome:
    """Window axes stay last, in their order."""
    inner = node.inputs[0]
    if inner.primitive is not TRANSPOSE:
        return _NO_TRANSPOSE
    perm = inner.attr("perm")
    attrs = dict(node.attrs)
    attrs["axes"] = tuple(perm[a] for a in node.attr("axes"))
    whole = (*perm, *range(len(perm), node.type.rank))
    return transpose(make(WINDOW, inner.inputs[0], **attrs), whole)


@rule("gather(transpose(x, p), i, a) -> transpose(gather(x, i, p[a]), q)", "gather")
def sink_transpose_gather(node: Node) -> Outcome:
    """The axes of the indices stand where the gathered axis stood."""
    inner, indices = node.inputs
    if inner.primitive is not TRANSPOSE:
        return _NO_TRANSPOSE
    perm, axis, extra = inner.attr("perm"), node.attr("axis"), indices.type.rank
    at = perm[axis]
    whole: list[int] = []
    for p in perm:
        if p == at:
            whole.extend(range(at, at + extra))
        else:
            whole.append(p if p < at else p + extra - 1)
    return transpose(make(GATHER, inner.inputs[0], indices, axis=at), tuple(whole))


# ---------------------------------------------------------------- through reshapes


@rule("reshape(transpose(x, p), s) -> transpose(reshape(x, s'), q)", "reshape")
def sink_transpose_reshape(node: Node) -> Outcome:
    """Axes that are merged or cut together move as one, if they are neighbours in x.

    Neighbours in another order are first transposed among themselves (channel shuffle).
    """
    inner = node.inputs[0]
    if inner.primitive is not TRANSPOSE:
        return _NO_TRANSPOSE
    perm, x = inner.attr("perm"), inner.inputs[0]
    groups = proved_groups(inner.shape, node.shape) or _dropped(inner.shape, node.shape)
    if groups is None:
        return Refused("which axes are merged or cut together is not provable")
    order = _order_in_source(groups, perm, x.shape)
    if isinstance(order, Refused):
        return order
    first = tuple(perm[i] for g in order for i in groups[g][0])
    places = [a for g in order for a in groups[g][1]]
    source = taken(x, first) or make(TRANSPOSE, x, perm=first)
    shaped = view(source, permuted(node.shape, tuple(places)))
    return transpose(shaped, inverse(tuple(places)))


def _dropped(source: Shape, target: Shape) -> Groups | None:
    """The groups of a reshape that leaves axes out: those are 1 in every call, by its own type rule, if unproved."""
    groups: Groups = []
    done = 0
    for axis, extent in enumerate(source):
        is_kept = done < len(target) and is_same(extent, target[done])
        groups.append((range(axis, axis + 1), range(done, done + is_kept)))
        done += is_kept
    return groups if done == len(target) else None


def _order_in_source(groups: Groups, perm: Perm, shape: Shape) -> list[int] | Refused:
    """The groups in the order in which their axes lie in the transpose's operand."""
    group_of = {perm[i]: g for g, (source, _) in enumerate(groups) for i in source}
    order: list[int] = []
    for axis in range(len(shape)):
        if is_unit(shape[axis]) or (order and order[-1] == group_of[axis]):
            continue
        if group_of[axis] in order:
            return Refused("axes that are merged lie apart before the transpose")
        order.append(group_of[axis])
    if order == sorted(order):
        return Refused("only axes that are merged or cut together change places")
    for g in range(len(groups)):  # groups of unit axes alone go where they went
        if g not in order:
            order.insert(order.index(g - 1) + 1 if g else 0, g)
    return order


@rule("reshape(broadcast(transpose(x, p))) -> transpose(reshape(broadcast(x)), q)", "reshape")
def sink_transpose_repeat(node: Node) -> Outcome:
    """Elements repeated along axes that are then merged (nearest resize): the transpose sinks through both."""
    wide = node.inputs[0]
    if wide.primitive is not BROADCAST or wide.inputs[0].primitive is not TRANSPOSE:
        return Refused("the operand is no broadcast of a transpose")
    whole = expanded(wide.inputs[0], wide.type.rank)
    perm = whole.attr("perm")
    source = make(BROADCAST, whole.inputs[0], shape=_unpermuted(wide.shape, perm))
    return sink_transpose_reshape.apply(make(RESHAPE, transpose(source, perm), shape=node.shape))


@rule("linear(transpose(reshape(transpose(x)))) -> linear(reshape(transpose(x)))", "matmul", "conv")
def merge_transposes_of_parts(node: Node) -> Outcome:
    """A transpose that can sink no further, of merged axes: their parts are moved there at once."""
    merged = [_moved_parts(i) for i in node.inputs]
    operands = [
        i if isinstance(m, Refused) else m for i, m in zip(node.inputs, merged, strict=True)
    ]
    if operands == list(node.inputs):
        return next(m for m in merged if isinstance(m, Refused))
    return make(node.primitive, *operands, **dict(node.attrs))


def _moved_parts(node: Node) -> Outcome:
    """transpose(reshape(transpose(x))), the reshape merging axes, as a reshape of one transpose."""
    shaped = node.inputs[0] if node.primitive is TRANSPOSE else node
    if node is shaped or shaped.primitive is not RESHAPE:
        return Refused("no operand is a transpose of a reshape")
    inner = shaped.inputs[0]
    if inner.primitive is not TRANSPOSE:
        return Refused("the reshape is not one of a transpose")
    groups = proved_groups(inner.shape, shaped.shape)
    if groups is None or any(len(merged) != 1 for _, merged in groups):
        return Refused("the reshape does not only merge axes")
    parts = tuple(inner.attr("perm")[a] for p in node.attr("perm") for a in groups[p][0])
    result = view(transpose(inner.inputs[0], parts), node.shape)
    if result.inputs[0].primitive is TRANSPOSE and isinstance(
        sink_transpose_reshape.apply(result), Node
    ):
        return Refused("the parts are neighbours, so the outer transpose is one that sank")
    return result


# ---------------------------------------------------------------- splits


def split_groups(node: Node) -> Groups | None:
    """The groups of a reshape that only cuts axes (unit axes may appear), else None."""
    if node.primitive is not RESHAPE:
        return None
    x = node.inputs[0]
    if x.type.rank >= node.type.rank or x.type.rank == 0:
        return None
    groups = proved_groups(x.shape, node.shape)
    if groups is None or any(len(source) > 1 for source, _ in groups):
        return None
    return groups


_VIEWED = ("input", "linear", "elementwise", "reduce", "opaque")


def _merged(node: Node, shape: Shape, groups: Groups) -> Node | None:
    """reshape(node, shape), the groups' second axes merged into the first, where that costs nothing."""
    if node.primitive is RESHAPE or node.primitive is CONSTANT:
        return view(node, shape)
    if node.primitive is BROADCAST:
        return _reshaped_broadcast(node, shape, [(cut, have) for have, cut in groups])
    kind = "input" if node.name == "input" else node.primitive.kind
    return view(node, shape) if kind in _VIEWED or node.primitive is GATHER else None


@rule("f(reshape(x, s), ..) -> reshape(f(x, ..), s), the reshape cutting axes", *ELEMENTWISE)
def sink_split_elementwise(node: Node) -> Outcome:
    """What follows a matrix product is computed on the matrix: fewer axes, and its epilogue."""
    reason = Refused("no operand is a reshape that only cuts axes")
    for source in node.inputs:
        groups = split_groups(source)
        if groups is None:
            continue
        shape = source.inputs[0].shape
        merged = [_merged(i, shape, groups) for i in node.inputs]
        if all(m is not None for m in merged):
            operands = [m for m in merged if m is not None]
            return view(make(node.primitive, *operands, **dict(node.attrs)), node.shape)
        reason = Refused(f"operand {merged.index(None)} cannot be seen with the axes merged")
    return reason


@rule("reduce(reshape(x, s), axes) -> reshape(reduce(x, axes')), cut axes kept whole", *_REDUCTIONS)
def sink_split_reduce(node: Node) -> Outcome:
    """An axis that was cut is reduced as a whole or not at all."""
    source = node.inputs[0]
    groups = split_groups(source)
    if groups is None:
        return Refused("the operand is no reshape that only cuts axes")
    axes: list[int] = []
    for have, cut in groups:
        hit = [a in node.attr("axes") for a in cut if not is_unit(source.shape[a])]
        if any(hit) and not all(hit):
            return Refused("an axis that was cut is reduced in part")
        if any(hit):
            axes.extend(have)
    if not axes:
        return Refused("only unit axes are reduced")
    return view(make(node.primitive, source.inputs[0], axes=tuple(axes)), node.shape)
