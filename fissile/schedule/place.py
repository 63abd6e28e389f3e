"""Places in a loop program: finding a loop by name, what holds there, and putting something else.

In: a `Function` and the name of a loop. Out: the loop with its surroundings, or a program with that
loop exchanged. Invariant: a name that is absent or not unique is refused, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fissile.errors import ScheduleError, did_you_mean
from fissile.ir.loop import (
    Alloc,
    Block,
    Buffer,
    Expr,
    For,
    Function,
    If,
    Kind,
    Let,
    Load,
    Stmt,
    Store,
    block,
    expressions,
    statements,
    walk,
)
from fissile.ir.polynomial import Facts
from fissile.ir.simplify import parameter_facts


@dataclass(frozen=True)
class Place:
    """A loop, the statements around it (outermost first), and what holds just outside it."""

    loop: For
    around: tuple[Stmt, ...]
    facts: Facts


def refuse(step: object, reason: str) -> ScheduleError:
    """The error of a step that would break its law."""
    return ScheduleError("F420", f"{step} is refused", reason=reason)


def find(step: object, f: Function, name: str) -> Place:
    """The place of the one loop called `name`. ScheduleError: there is none, or more than one."""
    found = list(_search(f.body, name, (), parameter_facts(f.params)))
    if not found:
        known = [s.var.name for s in statements(f.body) if isinstance(s, For)]
        hint = did_you_mean(name, known)
        raise refuse(step, f"there is no loop {name}" + (f"; {hint}" if hint else ""))
    if len(found) > 1:
        raise refuse(step, f"there are {len(found)} loops called {name}")
    return found[0]


def _search(s: Stmt, name: str, around: tuple[Stmt, ...], facts: Facts) -> Iterator[Place]:
    inside = (*around, s)
    if isinstance(s, For):
        if s.var.name == name:
            yield Place(s, around, facts)
        yield from _search(s.body, name, inside, facts.inside(s.var, s.extent))
    elif isinstance(s, If):
        yield from _search(s.then, name, inside, facts.given(s.condition))
        if s.orelse is not None:
            yield from _search(s.orelse, name, inside, facts.given(s.condition, False))
    elif isinstance(s, Block):
        for inner in s.body:
            yield from _search(inner, name, inside, facts)
    elif isinstance(s, (Alloc, Let)):
        yield from _search(s.body, name, inside, facts)


def exchange(f: Function, old: Stmt, new: Stmt) -> Function:
    """`f` with the statement object `old`, which occurs once, exchanged for `new`."""
    return Function(f.name, f.params, exchange_in(f.body, old, new))


def exchange_in(s: Stmt, old: Stmt, new: Stmt) -> Stmt:
    """`s` with the statement object `old` inside it exchanged for `new`."""
    if s is old:
        return new
    if isinstance(s, For):
        return For(s.var, s.extent, exchange_in(s.body, old, new), s.kind)
    if isinstance(s, If):
        orelse = None if s.orelse is None else exchange_in(s.orelse, old, new)
        return If(s.condition, exchange_in(s.then, old, new), orelse)
    if isinstance(s, Block):
        return block(*(exchange_in(inner, old, new) for inner in s.body))
    if isinstance(s, Alloc):
        return Alloc(s.buffer, exchange_in(s.body, old, new))
    if isinstance(s, Let):
        return Let(s.var, s.value, exchange_in(s.body, old, new))
    return s


def names_of(f: Function) -> set[str]:
    """Every name bound in `f`."""
    found = {p.name for p in f.params}
    for s in statements(f.body):
        if isinstance(s, (For, Let)):
            found.add(s.var.name)
        elif isinstance(s, Alloc):
            found.add(s.buffer.name)
    return found


def fresh(taken: set[str], stem: str) -> str:
    """`stem`, or `stem_2`, `stem_3`, ... when that is taken; the answer is taken from now on."""
    name, n = stem, 2
    while name in taken:
        name, n = f"{stem}_{n}", n + 1
    taken.add(name)
    return name


def written(s: Stmt) -> set[Buffer]:
    """Buffers stored to in `s`, but for those allocated inside it."""
    local = {x.buffer for x in statements(s) if isinstance(x, Alloc)}
    return {x.buffer for x in statements(s) if isinstance(x, Store)} - local


def read(s: Stmt) -> set[Buffer]:
    """Buffers loaded from in `s`, but for those allocated inside it."""
    local = {x.buffer for x in statements(s) if isinstance(x, Alloc)}
    return {x.buffer for e in expressions(s) for x in walk(e) if isinstance(x, Load)} - local


def loads_memory(e: Expr) -> bool:
    """Whether the value of `e` depends on memory."""
    return any(isinstance(x, Load) for x in walk(e))


def band(s: Stmt) -> tuple[list[For], Stmt]:
    """Perfectly nested loops from `s` inwards, across conditions, and what the last one runs."""
    loops: list[For] = []
    body = s
    while True:
        if isinstance(s, For):
            loops.append(s)
            s = body = s.body
        elif isinstance(s, If) and s.orelse is None and not loads_memory(s.condition):
            s = s.then
        else:
            return loops, body


def serial(step: object, loops: list[For]) -> None:
    """Refuse loops that are annotated already; annotations come last."""
    for loop in loops:
        if loop.kind is not Kind.SERIAL:
            raise refuse(step, f"loop {loop.var.name} is {loop.kind.value} already")
