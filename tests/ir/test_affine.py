"""Index arithmetic over shared expressions."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fissile.ir.affine import Space
from fissile.ir.dim import symbol
from fissile.ir.dtype import FLOAT32, INT64
from fissile.ir.interpret import run_expr
from fissile.ir.loop import Expr, Var, const, op, plus, substitute, times, var, walk


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


def whole(e: Expr, values: dict[Var, int]) -> int:
    """The value of an index whose extents are numbers or variables called by them."""
    sizes = {x: int(x.name.split()[1]) for x in walk(e) if isinstance(x, Var) and x not in values}
    return int(run_expr(substitute(e, {**values_of(values), **values_of(sizes)}), {}))


def values_of(values: dict[Var, int]) -> dict[Var, Expr]:
    return {v: const(n) for v, n in values.items()}


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 20), st.integers(1, 200), st.integers(1, 60),
    st.integers(1, 9), st.integers(-3, 70),
)  # fmt: skip
def test_quotients_by_steps_are_the_quotients(
    step: int, below: int, by: int, panels: int, then: int, shift: int
) -> None:
    space = Space()
    panel, lane = space.loop("panel", panels), space.loop("lane", below)
    x = plus(plus(times(panel, step), lane), shift)
    floor = op("floordiv", x, space.extent(by))
    rest = op("mod", x, space.extent(by))
    cases = (floor, rest, op("mod", floor, space.extent(then)), plus(times(floor, by), rest))
    for e in cases:
        made = space.canonical(e)
        for p in {0, panels // 2, panels - 1}:
            for k in range(below):
                at = {panel: p, lane: k}
                assert whole(made, at) == whole(e, at)


def test_a_panel_of_a_row_of_channels_divides_no_lane() -> None:
    space, w = Space(), symbol("w")
    panel, lane = space.loop("panel", 8 * w), space.loop("lane", 16)
    x = plus(times(panel, 16), lane)
    channels = space.extent(128)
    for e in (op("floordiv", x, channels), op("mod", op("floordiv", x, channels), space.extent(w))):
        assert lane not in walk(space.canonical(e))
    channel = space.affine(op("mod", x, channels))
    assert channel.coefficient(lane) == 1
    assert space.canonical(op("floordiv", x, space.extent(128 * w))) is const(0)
