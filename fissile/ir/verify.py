"""The rules every loop program keeps, checked between stages.

In: a `Function`. Out: nothing, or one `CompileError` with every broken rule. Invariant: in a
verified program each name is bound once on its path, types and ranks agree, and no access is
provably outside its buffer; `unproved_accesses` lists those that are not provably inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fissile.errors import CompileError, Place
from fissile.ir.dtype import BOOL, INT64
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
    Op,
    Space,
    Stmt,
    Store,
    Var,
    children,
    static_size,
    walk,
)
from fissile.ir.polynomial import Facts, added, number, terms_of
from fissile.ir.scalar import SCALAR_OPS
from fissile.ir.simplify import parameter_facts
from fissile.ir.text import show


def verify(f: Function) -> None:
    """Raise CompileError F421, which names every broken rule of `f`; answer nothing otherwise."""
    found = problems(f)
    if found:
        raise CompileError(
            "F421",
            f"the loop program {f.name} is malformed",
            where=[Place(detail=text) for text in found],
            reason="a stage of the compiler made it; this is a fault of fissile",
        )


def problems(f: Function) -> list[str]:
    """Every broken rule of `f`, one sentence each."""
    return [*_parameters(f), *_statement(f.body, _start(f)), *_grid(f)]


def unproved_accesses(f: Function) -> list[str]:
    """Accesses (as text) that intervals cannot prove to lie inside their buffers."""
    found: list[str] = []
    _collect_unproved(f.body, parameter_facts(f.params), found)
    return list(dict.fromkeys(found))


# ---------------------------------------------------------------- scopes


@dataclass(frozen=True)
class _Scope:
    """What is bound at a place, what is known there, and whether lanes are running."""

    scalars: frozenset[Var]
    buffers: frozenset[Buffer]
    names: frozenset[str]
    facts: Facts
    vectorized: bool = False

    def bind(self, item: Var | Buffer) -> _Scope:
        names = self.names | {item.name}
        if isinstance(item, Var):
            return replace(self, scalars=self.scalars | {item}, names=names)
        return replace(self, buffers=self.buffers | {item}, names=names)


def _start(f: Function) -> _Scope:
    scope = _Scope(frozenset(), frozenset(), frozenset(), parameter_facts(f.params))
    for p in f.params:
        scope = scope.bind(p)
    return scope


def _parameters(f: Function) -> Iterator[str]:
    names = [p.name for p in f.params]
    for name in sorted({n for n in names if names.count(n) > 1}):
        yield f"parameter {name} is there twice"
    scope = _start(f)
    for p in f.params:
        if isinstance(p, Var):
            if p.dtype is not INT64:
                yield f"parameter {p.name} is {p.dtype}, not int64"
            continue
        if p.space is not Space.PARAM:
            yield f"parameter {p.name} is a {p.space.value} buffer"
        yield from _shape(p, scope)


def _shape(b: Buffer, scope: _Scope) -> Iterator[str]:
    if len(b.shape) != len(b.strides):
        yield f"{b.name} has {len(b.shape)} extents and {len(b.strides)} strides"
    for e in (*b.shape, *b.strides):
        yield from _typed(e, scope, f"the shape of {b.name}")


def _grid(f: Function) -> Iterator[str]:
    """PARALLEL is the outermost loop, and there is one."""
    top = f.body
    while isinstance(top, Let):
        top = top.body
    inner = top.body if isinstance(top, For) else top
    for s in _loops(inner):
        if s.kind is Kind.PARALLEL:
            yield f"parallel loop {s.var.name} is not the outermost one"


def _loops(s: Stmt) -> Iterator[For]:
    if isinstance(s, For):
        yield s
    for inner in _parts(s):
        yield from _loops(inner)


def _parts(s: Stmt) -> tuple[Stmt, ...]:
    if isinstance(s, Block):
        return s.body
    if isinstance(s, If):
        return (s.then,) if s.orelse is None else (s.then, s.orelse)
    return () if isinstance(s, Store) else (s.body,)


# ---------------------------------------------------------------- statements


def _statement(s: Stmt, scope: _Scope) -> Iterator[str]:
    if isinstance(s, Block):
        for inner in s.body:
            yield from _statement(inner, scope)
    elif isinstance(s, For):
        yield from _for(s, scope)
    elif isinstance(s, Store):
        yield from _access(s.buffer, s.index, scope)
        yield from _expr(s.value, scope)
        if s.value.dtype is not s.buffer.dtype.compute:
            yield f"{s.buffer.name} takes {s.buffer.dtype.compute}, not {s.value.dtype}"
    elif isinstance(s, If):
        yield from _expr(s.condition, scope)
        if s.condition.dtype is not BOOL:
            yield f"the condition {show(s.condition)} is {s.condition.dtype}, not bool"
        yield from _statement(s.then, replace(scope, facts=scope.facts.given(s.condition)))
        if s.orelse is not None:
            facts = scope.facts.given(s.condition, False)
            yield from _statement(s.orelse, replace(scope, facts=facts))
    elif isinstance(s, Let):
        yield from _expr(s.value, scope)
        if s.value.dtype is not s.var.dtype:
            yield f"{s.var.name} is {s.var.dtype} but stands for {s.value.dtype}"
        yield from _bound(s.var, s.body, scope, scope)
    else:
        yield from _alloc(s, scope)


def _for(s: For, scope: _Scope) -> Iterator[str]:
    yield from _typed(s.extent, scope, f"the extent of {s.var.name}")
    if s.var.dtype is not INT64:
        yield f"loop {s.var.name} counts in {s.var.dtype}, not int64"
    lanes = s.kind is Kind.VECTORIZED
    if lanes and scope.vectorized:
        yield f"vectorized loop {s.var.name} is inside another one"
    facts = scope.facts.inside(s.var, s.extent)
    inner = replace(scope, facts=facts, vectorized=scope.vectorized or lanes)
    yield from _bound(s.var, s.body, scope, inner)


def _bound(item: Var | Buffer, body: Stmt, scope: _Scope, inner: _Scope) -> Iterator[str]:
    if item.name in scope.names:
        yield f"{item.name} is bound twice"
    if not item.name.isidentifier():
        yield f"{item.name!r} is no identifier"
    yield from _statement(body, inner.bind(item))


def _alloc(s: Alloc, scope: _Scope) -> Iterator[str]:
    b = s.buffer
    if b.space is Space.PARAM:
        yield f"{b.name} is allocated, but is a parameter by its space"
    if b.space is Space.REGISTER and static_size(b) is None:
        yield f"register buffer {b.name} has no constant shape"
    yield from _shape(b, scope)
    yield from _bound(b, s.body, scope, scope)


# ---------------------------------------------------------------- expressions


def _typed(e: Expr, scope: _Scope, what: str) -> Iterator[str]:
    if e.dtype is not INT64:
        yield f"{what} is {e.dtype}, not int64"
    yield from _expr(e, scope)


def _expr(e: Expr, scope: _Scope) -> Iterator[str]:
    for node in walk(e):
        if isinstance(node, Var) and node not in scope.scalars:
            yield f"{node.name} is not bound"
        elif isinstance(node, Op):
            yield from _operator(node)
    yield from _loads(e, scope)


def _operator(e: Op) -> Iterator[str]:
    if e.op in ("cast", "bitcast"):
        if len(e.args) != 1:
            yield f"{e.op} takes 1 argument, not {len(e.args)}"
        return
    row = SCALAR_OPS.get(e.op)
    if row is None:
        yield f"{e.op} is no scalar operator"
        return
    types = tuple(a.dtype for a in e.args)
    same = types[1:] if e.op == "select" else types
    if len(types) != row.arity or any(t is not same[0] for t in same):
        yield f"{e.op} does not take {', '.join(map(repr, types))}"
    elif same[0].kind not in row.kinds or row.result(types) is not e.dtype:
        yield f"{e.op} of {', '.join(map(repr, types))} is not {e.dtype}"


def _loads(e: Expr, scope: _Scope) -> Iterator[str]:
    """Accesses inside `e`; the chosen side of a select knows its condition."""
    for load, facts in accesses(e, scope.facts):
        yield from _access(load.buffer, load.index, replace(scope, facts=facts))


def accesses(e: Expr, facts: Facts) -> Iterator[tuple[Load, Facts]]:
    """Every load in `e` with the facts that hold where it is evaluated; shared ones once a side."""
    seen: set[Expr] = set()
    pending = [e]
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, Op) and node.op == "select":
            condition, a, b = node.args
            pending.append(condition)
            yield from accesses(a, facts.given(condition))
            yield from accesses(b, facts.given(condition, False))
            continue
        if isinstance(node, Load):
            yield node, facts
        pending.extend(children(node))


def _access(b: Buffer, index: tuple[Expr, ...], scope: _Scope) -> Iterator[str]:
    place = f"{b.name}[{', '.join(map(show, index))}]"
    if b not in scope.buffers:
        yield f"{place}: no such buffer is in scope"
    if len(index) != len(b.shape):
        yield f"{place}: {len(index)} indices for {len(b.shape)} extents"
        return
    for i, extent in zip(index, b.shape):
        if i.dtype is not INT64:
            yield f"{place}: index {show(i)} is {i.dtype}, not int64"
            continue
        yield from _expr(i, scope)
        at, size = terms_of(i), terms_of(extent)
        if scope.facts.less(at, {}) or scope.facts.never_negative(added(at, size, -1)):
            yield f"{place}: {show(i)} is outside {show(extent)}"


# ---------------------------------------------------------------- accesses that need a look


def _collect_unproved(s: Stmt, facts: Facts, found: list[str]) -> None:
    if isinstance(s, Store):
        _collect_place(s.buffer, s.index, facts, found)
        for e in (*s.index, s.value):
            _collect_loads(e, facts, found)
    elif isinstance(s, For):
        _collect_loads(s.extent, facts, found)
        _collect_unproved(s.body, facts.inside(s.var, s.extent), found)
    elif isinstance(s, If):
        _collect_loads(s.condition, facts, found)
        _collect_unproved(s.then, facts.given(s.condition), found)
        if s.orelse is not None:
            _collect_unproved(s.orelse, facts.given(s.condition, False), found)
    else:
        if isinstance(s, Let):
            _collect_loads(s.value, facts, found)
        for inner in _parts(s):
            _collect_unproved(inner, facts, found)


def _collect_loads(e: Expr, facts: Facts, found: list[str]) -> None:
    for load, known in accesses(e, facts):
        _collect_place(load.buffer, load.index, known, found)


def _collect_place(b: Buffer, index: tuple[Expr, ...], facts: Facts, found: list[str]) -> None:
    for i, extent in zip(index, b.shape):
        at, size = terms_of(i), terms_of(extent)
        last = added(added(size, at, -1), number(-1))
        if not (facts.never_negative(at) and facts.never_negative(last)):
            found.append(f"{b.name}[{', '.join(map(show, index))}]")
            return
