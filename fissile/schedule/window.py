"""Copying one window of a convolution into a row of the left operand: the implicit GEMM's gather (DESIGN 3.5).

A row is the window's elements tap by tap, channels last. Where the last tap axis and the channels are contiguous in
memory and the padding does not reach into the window, they are copied in one run; else tap by tap, padding as zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fissile.ir import loop as L
from fissile.ir.affine import Space
from fissile.ir.dim import DimLike, divides, equal, product
from fissile.ir.primitive import unflatten
from fissile.orchestrate.follow import Index

_COMPARISONS = frozenset({"lt", "le", "gt", "ge"})


@dataclass(frozen=True)
class _Row:
    """A row being copied: elements [start, start + deep) of the window go to `target` from `offset` on."""

    space: Space
    target: L.Buffer
    offset: L.Expr
    start: L.Expr
    deep: L.Expr

    def run(self, first: L.Expr, count: L.Expr, value: Callable[[L.Expr], L.Expr]) -> L.Stmt:
        """target[window element first + c] = value(c) for c < count."""
        lane = L.var("c")
        at = L.plus(self.offset, L.plus(L.minus(first, self.start), lane))
        return _branched(value(lane), lambda v: L.Store(self.target, (at,), v), lane, count)


def copy_window(
    space: Space,
    extents: Sequence[DimLike],
    value_at: Callable[[Index], L.Expr],
    target: L.Buffer,
    offset: L.Expr,
    start: L.Expr,
    deep: L.Expr,
) -> L.Stmt:
    """Elements [start, start + deep) of the window of extents (taps.., channels) to target[offset..].

    value_at(taps.., channel): an element of the window.
    """  # fmt: skip
    *outer, last, channels = extents if len(extents) > 1 else (1, *extents)
    loops = [space.loop(f"tap{a}", d) for a, d in enumerate((*outer, last))]
    channel = space.loop("channel", channels)
    taps = loops if len(extents) > 1 else []
    value = space.canonical(value_at((*taps, channel)))
    row = _Row(space, target, offset, start, deep)
    width = space.extent(product((last, channels)))
    tap, low, high, shifted = L.var("tap"), L.var("low"), L.var("high"), L.var("t")
    begin = L.times(tap, width)
    where = dict(zip(loops[:-1], unflatten(tap, tuple(outer), space.extent)))
    value = L.substitute(value, where)
    run = _run(row, value, loops[-1], channel, begin, low, high)
    run = L.Let(high, L.minimum(width, L.minus(L.plus(start, deep), begin)), run)
    run = L.Let(low, L.op("max", L.const(0), L.minus(start, begin)), run)
    first, end = L.quotient(start, width), L.ceildiv(L.plus(start, deep), width)
    run = L.Let(tap, L.plus(first, shifted), run)
    return L.For(shifted, L.minus(end, first), run)


def period(space: Space, value: L.Expr, k: L.Var) -> DimLike | None:
    """The number by which the reads of `value` divide k: they run on between its multiples. None if there is none.

    Of several numbers it is the smallest, if it divides the others.
    """
    found: dict[DimLike, None] = {}
    for e in L.walk(value):
        if isinstance(e, L.Op) and e.op in ("floordiv", "mod") and e.args[0] is k:
            by = space.affine(e.args[1])
            if by.terms:
                return None
            found[by.constant] = None
    return next((n for n in found if all(divides(n, m) is True for m in found)), None)


def _run(
    row: _Row, value: L.Expr, tap: L.Var, channel: L.Var, begin: L.Expr, low: L.Var, high: L.Var
) -> L.Stmt:
    """Elements [low, high) of the last tap axis and the channels, which start at `begin` of the window."""
    slow = _tap_by_tap(row, value, tap, channel, begin, low, high)
    condition, inside = guarded(value, L.const(0, value.dtype))
    if not _contiguous(row.space, inside, tap, channel):
        return slow

    single = equal(row.space.ranges[channel], 1) is True  # its index may be gone from the address
    along, still = (tap, channel) if single else (channel, tap)

    def element(c: L.Expr) -> L.Expr:
        return L.substitute(inside, {still: L.const(0), along: L.plus(low, c)})

    fast = row.run(L.plus(begin, low), L.minus(high, low), element)
    if condition is None:
        return fast
    if not is_interval(row.space, condition, tap) or channel in L.walk(condition):
        return slow
    last = L.minus(row.space.extent(row.space.ranges[tap]), 1)
    ends = (L.substitute(condition, {tap: e}) for e in (L.const(0), last))
    return L.If(L.op("and", *ends), fast, slow)


def _tap_by_tap(
    row: _Row, value: L.Expr, tap: L.Var, channel: L.Var, begin: L.Expr, low: L.Var, high: L.Var
) -> L.Stmt:
    channels = row.space.extent(row.space.ranges[channel])
    u, t, left, right = L.var("u"), L.var("u0"), L.var("left"), L.var("right")
    start = L.times(u, channels)

    def element(c: L.Expr) -> L.Expr:
        return L.substitute(value, {tap: u, channel: L.plus(L.minus(left, start), c)})

    run = row.run(L.plus(begin, left), L.minus(right, left), element)
    run = L.Let(right, L.minimum(high, L.plus(start, channels)), run)
    run = L.Let(left, L.op("max", low, start), run)
    first = L.quotient(low, channels)
    run = L.Let(u, L.plus(first, t), run)
    return L.For(t, L.minus(L.ceildiv(high, channels), first), run)


def guarded(value: L.Expr, neutral: L.Expr) -> tuple[L.Expr | None, L.Expr]:
    """(condition, element) of a read that is `neutral` where the condition fails, (None, value) of any other."""
    if isinstance(value, L.Op) and value.op == "select" and value.args[2] is neutral:
        return value.args[0], value.args[1]
    return None, value


def conjuncts(condition: L.Expr | None) -> list[L.Expr]:
    """The terms of a conjunction."""
    if condition is None:
        return []
    if isinstance(condition, L.Op) and condition.op == "and":
        return [c for a in condition.args for c in conjuncts(a)]
    return [condition]


def _contiguous(space: Space, element: L.Expr, tap: L.Var, channel: L.Var) -> bool:
    """Whether a step of `tap` is all channels further in memory and a step of `channel` one element."""
    if not isinstance(element, L.Load):
        return False
    address = space.affine(element.index[0])
    if any({tap, channel} & set(L.walk(a)) for a, _ in address.terms if not isinstance(a, L.Var)):
        return False
    unit, step = address.coefficient(channel), address.coefficient(tap)
    channels, taps = space.ranges[channel], space.ranges[tap]
    return (equal(unit, 1) is True or equal(channels, 1) is True) and (
        equal(step, channels) is True or equal(taps, 1) is True
    )


def is_interval(space: Space, condition: L.Expr, tap: L.Var) -> bool:
    """Whether the taps that satisfy a condition are an interval: a conjunction of affine comparisons."""
    if not isinstance(condition, L.Op):
        return False
    if condition.op == "and":
        return all(is_interval(space, a, tap) for a in condition.args)
    if condition.op not in _COMPARISONS:
        return False
    sides = [space.affine(a) for a in condition.args]
    atoms = [a for side in sides for a, _ in side.terms if not isinstance(a, L.Var)]
    return not any(tap in L.walk(a) for a in atoms)


def _branched(
    value: L.Expr, store: Callable[[L.Expr], L.Stmt], lane: L.Var, count: L.Expr
) -> L.Stmt:
    """A run of stores; a selection that does not depend on the lane becomes a branch around the run."""
    if isinstance(value, L.Op) and value.op == "select" and lane not in L.walk(value.args[0]):
        condition, inside, outside = value.args
        return L.If(
            condition,
            _branched(inside, store, lane, count),
            _branched(outside, store, lane, count),
        )
    return L.For(lane, count, store(value), L.Kind.VECTORIZED)
