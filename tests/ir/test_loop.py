"""Loop IR construction: equal expressions are one object, constants fold, types are checked."""

from __future__ import annotations

import copy

import pytest

from fissile.ir.dtype import BOOL, DTYPES, FLOAT32, INT32, dtype
from fissile.ir.loop import (
    Block,
    Load,
    Space,
    Store,
    block,
    buffer,
    ceildiv,
    const,
    minimum,
    minus,
    op,
    plus,
    quotient,
    remainder,
    static_size,
    substitute,
    times,
    var,
    walk,
)


def test_equal_expressions_are_one_object() -> None:
    i, j = var("i"), var("j")
    assert plus(times(i, 3), j) is plus(times(i, 3), j)
    assert plus(i, j) is not plus(j, i)
    assert const(-0.0, FLOAT32) is not const(0.0, FLOAT32)
    assert const(float("nan"), FLOAT32) is const(float("nan"), FLOAT32)


@pytest.mark.parametrize("name", [d.name for d in DTYPES])
def test_types_are_rows(name: str) -> None:
    assert copy.deepcopy(dtype(name)) is dtype(name)


def test_index_arithmetic_folds() -> None:
    i = var("i")
    assert plus(i, 0) is i
    assert minus(i, i) is const(0)
    assert times(i, 0) is const(0)
    assert times(1, i) is i
    assert quotient(i, 1) is i
    assert remainder(i, 1) is const(0)
    assert ceildiv(13, 4) is const(4)
    assert minimum(3, 5) is const(3)


def test_wrong_types_are_refused() -> None:
    with pytest.raises(TypeError, match="takes 2 arguments"):
        op("add", var("i"))
    with pytest.raises(TypeError, match="does not take"):
        op("add", var("i"), var("j", INT32))
    with pytest.raises(TypeError, match="bool condition"):
        op("select", var("i"), var("i"), var("i"))
    with pytest.raises(TypeError, match="does not take"):
        op("exp", var("i"))


def test_blocks_are_flat() -> None:
    b = buffer("b", FLOAT32, (3,))
    s = Store(b, (const(0),), const(1.0, FLOAT32))
    assert block(s) is s
    assert block(block(s, s), s) == Block((s, s, s))


def test_walk_gives_operands_first_and_once() -> None:
    i = var("i")
    square = times(i, i)
    order = list(walk(plus(square, square)))
    assert order.index(i) < order.index(square)
    assert len(order) == 3
    assert substitute(square, {i: var("j")}) is times(var("j"), var("j"))


def test_sizes() -> None:
    assert static_size(buffer("b", BOOL, (3, 5))) == 15
    assert static_size(buffer("b", BOOL, ())) == 1
    assert static_size(buffer("b", BOOL, (3, var("n")), Space.SCRATCH)) is None
    b = buffer("b", FLOAT32, (2, 3, 5))
    assert b.strides == (const(15), const(5), const(1))
    assert Load(b, (const(0),) * 3).dtype is FLOAT32
