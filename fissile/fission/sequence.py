"""Sequences and optionals whose structure is known: lists while a model is split, of which nothing is left behind.

In: tensors, and sequences made earlier. Out: tensors, or nodes `sequence` whose inputs are the elements. Invariant:
lengths and positions are numbers; what depends on data is refused with its reason, and no `sequence` reaches another
operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from fissile.fission.build import (
    concat,
    integers,
    normal_axis,
    number,
    slice_axis,
    squeeze,
    unsqueeze,
)
from fissile.fission.table import Call, Refusal
from fissile.fission.values import known, known_ints
from fissile.frontend.operator_graph import OperatorGraph
from fissile.ir.dim import DimLike
from fissile.ir.dtype import BOOL, UINT8
from fissile.ir.graph import Attrs, Constraints, Node, Primitive, TensorType, make
from fissile.ir.primitive import scalar

Values: TypeAlias = tuple[Node | None, ...]
Run: TypeAlias = Callable[[OperatorGraph, Values], Values]


def _no_type(types: tuple[TensorType, ...], attrs: Attrs, need: Constraints) -> TensorType:
    return TensorType(UINT8, ())


def _no_meaning(*elements: np.ndarray) -> np.ndarray:
    raise TypeError("a sequence has no value of its own")


SEQUENCE = Primitive("sequence", "opaque", _no_type, _no_meaning)


def is_sequence(node: Node | None) -> bool:
    """Whether the value is a sequence of tensors."""
    return node is not None and node.primitive is SEQUENCE


def sequence_of(elements: Sequence[Node]) -> Node:
    """A sequence. ValueError where element types differ."""
    if len({e.dtype.name for e in elements}) > 1:
        raise ValueError("the elements of a sequence are of one type")
    return make(SEQUENCE, *elements)


def _elements(node: Node | None) -> tuple[Node, ...]:
    if node is None or not is_sequence(node):
        raise ValueError("it reads a tensor where a sequence is wanted")
    return node.inputs


def _tensor(node: Node | None) -> Node:
    if node is None:
        raise Refusal("it reads a value that has no native definition")
    if is_sequence(node):
        raise ValueError("it reads a sequence where a tensor is wanted")
    return node


def _position(node: Node | None, default: int, length: int) -> int:
    """A position counted from the front. ValueError where there is none such."""
    if node is None:
        return default
    at = known_ints(node, "a position in a sequence")[0]
    if not -length <= at <= length:
        raise ValueError(f"position {at} in a sequence of {length}")
    return at + length if at < 0 else at


# ---- operators -----------------------------------------------------------------------------------


def _empty(run: Run, call: Call, *inputs: Node | None) -> Node:
    return sequence_of(())


def _construct(run: Run, call: Call, *inputs: Node | None) -> Node:
    return sequence_of([_tensor(x) for x in inputs])


def _insert(
    run: Run, call: Call, into: Node | None, x: Node | None, at: Node | None = None
) -> Node:
    elements = list(_elements(into))
    elements.insert(_position(at, len(elements), len(elements)), _tensor(x))
    return sequence_of(elements)


def _erase(run: Run, call: Call, of: Node | None, at: Node | None = None) -> Node:
    elements = list(_elements(of))
    del elements[_position(at, len(elements) - 1, len(elements))]
    return sequence_of(elements)


def _at(run: Run, call: Call, of: Node | None, at: Node | None) -> Node:
    elements = _elements(of)
    return elements[_position(_tensor(at), 0, len(elements))]


def _length(run: Run, call: Call, of: Node | None) -> Node:
    return integers(np.array(len(_elements(of))))


def _split(run: Run, call: Call, x: Node | None, sizes: Node | None = None) -> Node:
    x = _tensor(x)
    axis = normal_axis(call.attr("axis", 0), x.type.rank)
    given = None if sizes is None else known(sizes)
    if sizes is not None and given is None:
        raise Refusal("the sizes of the parts depend on the data")
    parts: list[DimLike]
    if given is None or given.ndim == 0:
        whole, step = number(x.shape[axis]), 1 if given is None else number(given.item())
        if step < 1:
            raise ValueError(f"parts of {step} elements")
        parts = [min(step, whole - k) for k in range(0, whole, step)]
    else:
        parts = list(given)
        call.demand(sum(parts), x.shape[axis], "the parts must add up to the whole axis")
    pieces: list[Node] = []
    start: DimLike = 0
    for size in parts:
        pieces.append(slice_axis(x, axis, start, size))
        start = start + size
    if sizes is None and not call.attr("keepdims", 1):
        pieces = [squeeze(p, [axis]) for p in pieces]
    return sequence_of(pieces)


def _joined(run: Run, call: Call, of: Node | None) -> Node:
    elements = _elements(of)
    if not elements:
        raise ValueError("an empty sequence has nothing to join")
    rank, axis = elements[0].type.rank, call.attr("axis")
    if call.attr("new_axis", 0):
        place = normal_axis(axis, rank + 1)
        return concat([unsqueeze(e, [place]) for e in elements], place)
    return concat(elements, normal_axis(axis, rank))


def _map(run: Run, call: Call, of: Node | None, *more: Node | None) -> Values:
    body: OperatorGraph = call.attr("body")
    columns: list[list[Node]] = [[] for _ in body.outputs]
    for k, element in enumerate(_elements(of)):
        given = [m.inputs[k] if m is not None and is_sequence(m) else m for m in more]
        for column, found in zip(columns, run(body, (element, *given)), strict=True):
            column.append(_tensor(found))
    return tuple(sequence_of(column) for column in columns)


def _optional(run: Run, call: Call, x: Node | None = None) -> Node:
    if x is None:
        raise Refusal("an optional of nothing has no native definition")
    return x


def _has_element(run: Run, call: Call, x: Node | None = None) -> Node:
    return scalar(x is not None, BOOL)


SEQUENCES: dict[str, Callable[..., Node | Values]] = {
    "SequenceEmpty": _empty,
    "SequenceConstruct": _construct,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceAt": _at,
    "SequenceLength": _length,
    "SplitToSequence": _split,
    "ConcatFromSequence": _joined,
    "SequenceMap": _map,
    "Optional": _optional,
    "OptionalGetElement": _optional,
    "OptionalHasElement": _has_element,
}


def sequential(run: Run, call: Call, inputs: Values) -> Values | None:
    """The results of an operator on sequences, None where it is none. Refusal where another one reads a sequence."""
    operator = call.operator
    row = None if operator.domain else SEQUENCES.get(operator.type)
    if row is not None:
        found = row(run, call, *inputs)
        return (found,) if isinstance(found, Node) else found
    if any(map(is_sequence, inputs)):
        if operator.type == "Identity":
            return inputs
        raise Refusal("it reads a sequence, of which nothing is known but tensors")
    return None
