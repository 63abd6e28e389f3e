"""Index arithmetic over shared expressions."""

from __future__ import annotations

from fissile.ir.affine import Space
from fissile.ir.dtype import FLOAT32, INT64
from fissile.ir.loop import Expr, const, op, plus, times, var


def test_shared_parts_are_visited_once() -> None:
    space = Space()
    i = space.loop("i", 7)
    value: Expr = var("x", FLOAT32)
    index: Expr = op("xor", i, i)
    for _ in range(60):  # 2 ** 60 paths lead to the leaves
        value = op("add", value, value)
        index = op("xor", index, index)
    assert space.canonical(value) is value
    assert space.canonical(index).dtype is INT64


def test_what_a_new_loop_proves_is_seen() -> None:
    space = Space()
    i, j = var("i"), var("j")
    divided = op("floordiv", plus(times(i, 5), j), plus(4, 1))
    assert space.canonical(divided) is not i
    space.loop("j", 3)
    assert space.canonical(divided) is i


def test_a_quotient_is_below_the_quotient_of_its_bound() -> None:
    space = Space()
    m = space.loop("m", 6 * 13)
    row = op("floordiv", m, const(13))
    assert space.canonical(op("mod", row, const(6))) is space.canonical(row)
    assert space.canonical(op("mod", row, const(5))) is not space.canonical(row)
    place = plus(times(op("mod", row, const(6)), 13), op("mod", m, const(13)))
    assert space.canonical(place) is m
