"""Whether iterations of a loop depend on each other.

In: a loop, what holds around it, and a direction for each loop. Out: None where independence is
proved, else the reason why it is not. Invariant: None is a proof, by the signs of differences of
indices over all pairs of iterations; buffers are assumed not to overlap each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fissile.ir.loop import (
    Alloc,
    Block,
    Buffer,
    Expr,
    For,
    If,
    Let,
    Load,
    Stmt,
    Store,
    Var,
    const,
    minus,
    plus,
    substitute,
    times,
    var,
    walk,
)
from fissile.ir.polynomial import Facts, terms_of
from fissile.ir.simplify import simplify
from fissile.ir.text import show


@dataclass(frozen=True)
class Access:
    """One load or store: where, inside which inner loops, and under which conditions."""

    buffer: Buffer
    index: tuple[Expr, ...]
    is_store: bool
    loops: tuple[tuple[Var, Expr], ...]
    conditions: tuple[tuple[Expr, bool], ...]

    def __str__(self) -> str:
        return f"{self.buffer.name}[{', '.join(map(show, self.index))}]"


def accesses(s: Stmt) -> list[Access]:
    """Every access in `s` to a buffer from outside it; what a `Let` binds is put in place."""
    local = set(_allocated(s))
    return [a for a in _accesses(s, (), (), {}) if a.buffer not in local]


def _allocated(s: Stmt) -> Iterator[Buffer]:
    if isinstance(s, Alloc):
        yield s.buffer
    for inner in _inside(s):
        yield from _allocated(inner)


def _inside(s: Stmt) -> tuple[Stmt, ...]:
    if isinstance(s, Block):
        return s.body
    if isinstance(s, If):
        return (s.then,) if s.orelse is None else (s.then, s.orelse)
    return () if isinstance(s, Store) else (s.body,)


_Loops = tuple[tuple[Var, Expr], ...]
_Conditions = tuple[tuple[Expr, bool], ...]


def _accesses(
    s: Stmt, loops: _Loops, given: _Conditions, values: Mapping[Var, Expr]
) -> Iterator[Access]:
    def loads(e: Expr) -> Iterator[Access]:
        for x in walk(substitute(e, dict(values))):
            if isinstance(x, Load):
                yield Access(x.buffer, x.index, False, loops, given)

    if isinstance(s, Store):
        at = tuple(substitute(i, dict(values)) for i in s.index)
        yield Access(s.buffer, at, True, loops, given)
        for e in (*s.index, s.value):
            yield from loads(e)
    elif isinstance(s, For):
        yield from loads(s.extent)
        extent = substitute(s.extent, dict(values))
        yield from _accesses(s.body, (*loops, (s.var, extent)), given, values)
    elif isinstance(s, If):
        yield from loads(s.condition)
        condition = substitute(s.condition, dict(values))
        yield from _accesses(s.then, loops, (*given, (condition, True)), values)
        if s.orelse is not None:
            yield from _accesses(s.orelse, loops, (*given, (condition, False)), values)
    else:
        if isinstance(s, Let):
            yield from loads(s.value)
            values = dict(values) | {s.var: substitute(s.value, dict(values))}
        for inner in _inside(s):
            yield from _accesses(inner, loops, given, values)


# ---------------------------------------------------------------- proofs


def carried(loop: For, facts: Facts) -> str | None:
    """Why two iterations of `loop` may touch one element that one of them writes; None: never."""
    return conflict([(loop.var, loop.extent)], {loop.var: "<"}, loop.body, facts)


def conflict(
    loops: Sequence[tuple[Var, Expr]], order: Mapping[Var, str], body: Stmt, facts: Facts
) -> str | None:
    """Why two runs of `body` may meet in memory, one of them writing; None where they never do.

    `loops` are those around `body`, outermost first. `order` says how a loop's variable differs
    between the two runs: "<" smaller in the first one, ">" larger, "*" any; "=" when absent.
    """
    found = accesses(body)
    stored = {a.buffer for a in found if a.is_store}
    for a in found:
        for b in found:
            if a.buffer is not b.buffer or not (a.is_store or b.is_store):
                continue
            if not _apart(a, b, loops, order, facts, stored):
                return f"{a} in one iteration and {b} in another may be the same element"
    return None


def _apart(
    a: Access,
    b: Access,
    loops: Sequence[tuple[Var, Expr]],
    order: Mapping[Var, str],
    facts: Facts,
    stored: set[Buffer],
) -> bool:
    """Whether access `a` of the first run and `b` of the second are provably different elements."""
    if any(
        isinstance(x, Load) and x.buffer in stored for i in (*a.index, *b.index) for x in walk(i)
    ):
        return False
    first: dict[Var, Expr] = {}
    second: dict[Var, Expr] = {}
    for v, extent in loops:
        facts = _relate(v, extent, order.get(v, "="), first, second, facts)
    facts = _enter(a, "'", first, facts)
    facts = _enter(b, '"', second, facts)
    here = tuple(substitute(i, first) for i in a.index)
    there = tuple(substitute(i, second) for i in b.index)
    if any(_differ(x, y, facts) for x, y in zip(here, there)):
        return True
    return _differ(_flat(a.buffer, here), _flat(b.buffer, there), facts)


def _relate(
    v: Var,
    extent: Expr,
    relation: str,
    first: dict[Var, Expr],
    second: dict[Var, Expr],
    facts: Facts,
) -> Facts:
    """Give `v` a value in both runs; the runs exist, so every extent met is positive."""
    if relation == "=":
        first[v] = second[v] = v
        return facts.inside(v, substitute(extent, first))
    low, high = (first, second) if relation == "<" else (second, first)
    small = var(f"{v.name}@{relation}")
    facts = facts.inside(small, substitute(extent, low))
    if relation == "*":
        other = var(f"{v.name}@other")
        facts = facts.inside(other, substitute(extent, high))
        low[v], high[v] = small, other
        return facts
    gap = var(f"{v.name}@gap")
    facts = facts.inside(gap, minus(minus(substitute(extent, high), 1), small))
    low[v], high[v] = small, plus(plus(small, gap), 1)
    return facts


def _enter(a: Access, mark: str, values: dict[Var, Expr], facts: Facts) -> Facts:
    for v, extent in a.loops:
        own = var(v.name + mark)
        facts = facts.inside(own, substitute(extent, values))
        values[v] = own
    for condition, holds in a.conditions:
        facts = facts.given(substitute(condition, values), holds)
    return facts


def _flat(b: Buffer, index: tuple[Expr, ...]) -> Expr:
    """Position in row-major order; different positions have different indices."""
    total: Expr = const(0)
    for i, extent in zip(index, b.shape):
        total = plus(times(total, extent), i)
    return total


def _differ(a: Expr, b: Expr, facts: Facts) -> bool:
    difference = terms_of(simplify(minus(a, b), facts))
    return facts.less({}, difference) or facts.less(difference, {})


def interferes(moved: Stmt, past: Stmt) -> str | None:
    """Why `moved` may not be exchanged with `past`: a buffer that one writes and the other uses."""
    one, other = accesses(moved), accesses(past)
    for a in one:
        for b in other:
            if a.buffer is b.buffer and (a.is_store or b.is_store):
                return f"{a} and {b} are the same buffer"
    return None
