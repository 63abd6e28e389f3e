"""Control flow that can be straightened: If, and Loop and Scan of a known number of turns.

In: bodies as operator graphs, and `run`, which splits a body given its inputs. Out: the values of
the branch taken; both branches and a choice, when the condition is data; or all turns one after the
other. Invariant: primitives have no effects and cannot trap, so computing both branches is safe.
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
    reshape,
    select,
    slice_axis,
    squeeze,
    unsqueeze,
)
from fissile.fission.sequence import is_sequence, sequence_of
from fissile.fission.table import Call, Refusal
from fissile.fission.values import known, known_ints
from fissile.frontend.operator_graph import OperatorGraph
from fissile.ir.dim import DimLike, Max, Min, constant, equal, terms
from fissile.ir.dim_logic import is_natural
from fissile.ir.dim_terms import single
from fissile.ir.dtype import BOOL
from fissile.ir.graph import Node
from fissile.ir.primitive import constant_value, scalar

MOST_TURNS = 64
Values: TypeAlias = tuple[Node | None, ...]
Run: TypeAlias = Callable[[OperatorGraph, Values], Values]


def if_(run: Run, call: Call, inputs: Values) -> Values:
    """The branch that a constant condition takes, else a choice between the values of both."""
    condition = _present(inputs[0])
    value = constant_value(condition)
    then, other = call.attr("then_branch"), call.attr("else_branch")
    if value is not None:
        return run(then if value.any() else other, ())
    return tuple(
        _choice(reshape(condition, ()), a, b) for a, b in zip(run(then, ()), run(other, ()))
    )


def compared_extents(condition: Node | None) -> tuple[DimLike, DimLike, bool] | None:
    """(a, b, whether equality means true) of a condition that compares numbers made of extents, else None."""
    values = known(condition)
    if values is None or values.size != 1:
        return None
    truth = values.item()
    for apart, equal_is_true in ((truth, False), (1 - truth, True)):
        atom = single(apart)
        others = [arg for arg in atom.args if arg != 1] if isinstance(atom, Min) else []
        if len(others) == 1 and is_natural(others[0]):  # min(d, 1) is 0 where d is
            return *_sides(others[0]), equal_is_true
    return None


def _sides(distance: DimLike) -> tuple[DimLike, DimLike]:
    """(a, b), equal where the distance, |a - b| or a - b, is 0."""
    atom = single(distance)
    both = atom.args if isinstance(atom, Max) else (distance,)
    gap = next((d for d in both if terms(d) and terms(d)[0][0] > 0), distance)
    is_magnitude = len(both) == 2 and equal(both[0], -both[1]) is True
    gap = gap if is_magnitude else distance
    return gap - constant(gap), -constant(gap)


def _choice(condition: Node, a: Node | None, b: Node | None) -> Node | None:
    if a is None or b is None:
        return None
    if is_sequence(a) or is_sequence(b):
        if a.primitive is not b.primitive or len(a.inputs) != len(b.inputs):
            raise Refusal("the condition of an If depends on the data, and its branches differ in length")
        pairs = zip(a.inputs, b.inputs, strict=True)
        return sequence_of([_present(_choice(condition, x, y)) for x, y in pairs])
    if a.dtype is not b.dtype or a.type.rank != b.type.rank:
        raise Refusal("the condition of an If depends on the data, and its branches differ in type")
    if a.shape != b.shape:
        raise Refusal(
            "the condition of an If depends on the data, and its branches differ in shape"
        )
    return select(condition, a, b)


def loop(run: Run, call: Call, inputs: Values) -> Values:
    """The turns of a Loop whose number is known and whose condition stays true."""
    turns = known_ints(inputs[0], "the number of turns of a Loop")[0]
    body: OperatorGraph = call.attr("body")
    _check_turns(turns)
    if inputs[1] is not None and not _is_true(inputs[1]):
        raise Refusal("the condition of a Loop depends on the data")
    carried: Values = inputs[2:]
    scanned: list[list[Node]] = [[] for _ in range(len(body.outputs) - 1 - len(carried))]
    for turn in range(turns):
        index = integers(np.array(turn))
        found = run(body, (index, scalar(True, BOOL), *carried))
        if not _is_true(found[0]):
            raise Refusal("the condition of a Loop depends on the data")
        carried = found[1 : 1 + len(carried)]
        for pieces, piece in zip(scanned, found[1 + len(carried) :], strict=True):
            pieces.append(unsqueeze(_present(piece), [0]))
    if any(not pieces for pieces in scanned):
        raise Refusal("a Loop of no turns has outputs of unknown type")
    return (*carried, *(concat(pieces, 0) for pieces in scanned))


def scan(run: Run, call: Call, inputs: Values) -> Values:
    """The turns of a Scan over an axis of known extent."""
    if call.version < 9:
        raise Refusal("a Scan of opset 8 has no native definition")
    n = call.attr("num_scan_inputs")
    if not 0 < n <= len(inputs):
        raise ValueError(f"num_scan_inputs is {n}, of {len(inputs)} inputs")
    body: OperatorGraph = call.attr("body")
    carried, sources = inputs[: len(inputs) - n], [_present(x) for x in inputs[len(inputs) - n :]]
    count = len(body.outputs) - len(carried)
    axes = _axes(call.attr("scan_input_axes", (0,) * n), sources)
    turns = number(sources[0].shape[axes[0]])
    _check_turns(turns)
    for x, a in zip(sources, axes, strict=True):
        what = f"axis {a} of {x.type} must have the {turns} elements of a Scan"
        call.demand(x.shape[a], turns, what)
    backward = call.attr("scan_input_directions", (0,) * n)
    scanned: list[list[Node]] = [[] for _ in range(count)]
    for turn in range(turns):
        at = [turns - 1 - turn if b else turn for b in backward]
        pieces = [
            squeeze(slice_axis(x, a, k, 1), [a]) for x, a, k in zip(sources, axes, at, strict=True)
        ]
        found = run(body, (*carried, *pieces))
        carried = found[: len(carried)]
        for column, piece in zip(scanned, found[len(carried) :], strict=True):
            column.append(_present(piece))
    return (*carried, *_stacked(call, scanned))


def _stacked(call: Call, scanned: Sequence[list[Node]]) -> Values:
    axes = call.attr("scan_output_axes", (0,) * len(scanned))
    backward = call.attr("scan_output_directions", (0,) * len(scanned))
    results: list[Node] = []
    for pieces, axis, reverse in zip(scanned, axes, backward, strict=True):
        place = normal_axis(axis, pieces[0].type.rank + 1)
        ordered = reversed(pieces) if reverse else pieces
        results.append(concat([unsqueeze(p, [place]) for p in ordered], place))
    return tuple(results)


def _axes(axes: Sequence[int], sources: Sequence[Node]) -> list[int]:
    return [normal_axis(a, x.type.rank) for a, x in zip(axes, sources, strict=True)]


def _check_turns(turns: int) -> None:
    if not 0 < turns <= MOST_TURNS:
        raise Refusal(f"{turns} turns are not unrolled (1 to {MOST_TURNS} are)")


def _is_true(condition: Node | None) -> bool:
    value = None if condition is None else constant_value(condition)
    return value is not None and bool(value.all())


def _present(node: Node | None) -> Node:
    if node is None:
        raise Refusal("it reads a value that has no native definition")
    if is_sequence(node):
        raise Refusal("it reads a sequence where a tensor is wanted")
    return node


CONTROL: dict[str, Callable[[Run, Call, Values], Values]] = {"If": if_, "Loop": loop, "Scan": scan}
