"""The box of elements that a piece of program touches in a buffer, and copies of such a box.

In: accesses with their inner loops. Out: per dimension a first index and an extent that do not
mention the inner loops. Invariant: the box holds every access; where an index is not affine in the
inner loops, the box is the whole dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fissile.ir.loop import (
    Buffer,
    Const,
    Expr,
    For,
    If,
    Load,
    Stmt,
    Store,
    Var,
    both,
    const,
    map_expr,
    map_stmt,
    minimum,
    minus,
    op,
    plus,
    var,
    walk,
)
from fissile.ir.polynomial import Facts, Terms, added, expression, multiplied, split_on, terms_of
from fissile.ir.simplify import simplify
from fissile.schedule.dependence import Access


@dataclass(frozen=True)
class Box:
    """Elements low <= index < low + extent, dimension by dimension."""

    low: tuple[Expr, ...]
    extent: tuple[Expr, ...]

    def is_constant(self) -> bool:
        """Whether every extent is a number."""
        return all(isinstance(e, Const) for e in self.extent)

    def shift(self, index: Sequence[Expr], facts: Facts) -> tuple[Expr, ...]:
        """`index` counted from the box's first element."""
        return tuple(simplify(minus(i, low), facts) for i, low in zip(index, self.low))


def box_of(b: Buffer, accesses: Sequence[Access], facts: Facts) -> Box:
    """The smallest box known to hold these accesses to `b` (at least one), given `facts` outside."""
    low: list[Expr] = []
    extent: list[Expr] = []
    for axis, size in enumerate(b.shape):
        spans = [_span(a, axis, facts) for a in accesses]
        known = [s for s in spans if s is not None]
        if len(known) < len(spans):
            low.append(const(0))
            extent.append(size)
            continue
        first = terms_of(_extreme([s[0] for s in known], facts, lowest=True))
        last = terms_of(_extreme([s[1] for s in known], facts, lowest=False))
        if facts.less(first, {}):  # every access is inside the buffer, so the box may be cut
            first = {}
        if facts.never_negative(added(last, terms_of(size), -1)):
            last = added(terms_of(size), {(): -1})
        count = added(added(last, first, -1), {(): 1})
        low.append(simplify(expression(first), facts))
        extent.append(simplify(expression(count), facts))
    return Box(tuple(low), tuple(extent))


def _span(a: Access, axis: int, facts: Facts) -> tuple[Expr, Expr] | None:
    """Smallest and largest index of `a` along an axis, over its inner loops; None when unknown."""
    inner = facts
    for v, extent in a.loops:
        inner = inner.inside(v, extent)
    at = terms_of(simplify(a.index[axis], inner))
    low = high = at
    for v, extent in reversed(a.loops):
        top = added(terms_of(extent), {(): -1})
        ends = _end(low, v, top, inner, lowest=True), _end(high, v, top, inner, lowest=False)
        if ends[0] is None or ends[1] is None:
            return None
        low, high = ends[0], ends[1]
    found = expression(low), expression(high)
    own = {v for v, _ in a.loops}
    if any(x in own or isinstance(x, Load) for e in found for x in walk(e)):
        return None
    return simplify(found[0], facts), simplify(found[1], facts)


def _end(p: Terms, v: Var, top: Terms, facts: Facts, lowest: bool) -> Terms | None:
    parts = split_on(p, v)
    if parts is None:
        return None
    factor, rest = parts
    if not factor:
        return p
    rising = facts.never_negative(factor)
    if not rising and not facts.never_negative(added({}, factor, -1)):
        return None
    return rest if rising == lowest else added(rest, multiplied(factor, top))


def _extreme(ends: list[Expr], facts: Facts, lowest: bool) -> Expr:
    best = ends[0]
    for e in ends[1:]:
        best = minimum(best, e) if lowest else op("max", best, e)
        best = simplify(best, facts)
    return best


def over(
    box: Box,
    names: Sequence[str],
    shape: Sequence[Expr],
    facts: Facts,
    body: Callable[[tuple[Expr, ...], tuple[Expr, ...]], Stmt],
) -> Stmt:
    """Loops over a box: `body` of the indices in the box and in the whole buffer of this `shape`.

    Indices outside the whole buffer are skipped, where they cannot be excluded by proof.
    """
    own = tuple(var(name) for name in names)
    for v, extent in zip(own, box.extent):
        facts = facts.inside(v, extent)
    whole = tuple(simplify(plus(low, v), facts) for low, v in zip(box.low, own))
    condition: Expr | None = None
    for i, size in zip(whole, shape):
        for test in (op("ge", i, const(0)), op("lt", i, size)):
            test = simplify(test, facts)
            if not (isinstance(test, Const) and test.value):
                condition = both(condition, test)
    inner = body(own, whole)
    result: Stmt = inner if condition is None else If(condition, inner)
    for v, extent in zip(reversed(own), reversed(box.extent)):
        result = For(v, extent, result)
    return result


def redirect(
    s: Stmt, old: Buffer, new: Buffer, index: Callable[[tuple[Expr, ...]], tuple[Expr, ...]]
) -> Stmt:
    """`s` with every access to `old` made to `new`, at `index` of the old place."""

    def load(e: Expr) -> Expr | None:
        return Load(new, index(e.index)) if isinstance(e, Load) and e.buffer is old else None

    def store(x: Stmt) -> Stmt | None:
        return (
            Store(new, index(x.index), x.value)
            if isinstance(x, Store) and x.buffer is old
            else None
        )

    return map_stmt(s, lambda e: map_expr(e, load), store)
