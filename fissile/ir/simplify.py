"""Simplification of loop programs: canonical index arithmetic and what follows from loop bounds.

In: an expression and the ranges of its variables, or a whole `Function`. Out: an equal one, usually
shorter. Invariant: the same value wherever no int64 intermediate overflows; float arithmetic is
folded only where every operand is a constant and the operator is correctly rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping

from fissile.ir.dtype import BOOL, INT64
from fissile.ir.interpret import run_expr
from fissile.ir.loop import (
    Alloc,
    Block,
    Buffer,
    Const,
    Expr,
    For,
    Function,
    If,
    Kind,
    Let,
    Load,
    Op,
    Stmt,
    Store,
    Var,
    block,
    const,
    op,
    walk,
)
from fissile.ir.polynomial import (
    Facts,
    Terms,
    added,
    atom,
    constant,
    divided,
    expression,
    multiplied,
    number,
    split_on,
    terms_of,
)
from fissile.ir.replace import replace

_EXACT = frozenset(  # correctly rounded everywhere, so folding changes no bit
    ["add", "sub", "mul", "div", "floordiv", "mod", "rem", "neg", "abs", "min", "max", "sqrt"]
    + ["floor", "ceil", "rint", "trunc", "copysign", "as_float16", "as_bfloat16", "eq", "ne", "lt", "le", "gt", "ge"]
    + ["and", "or", "xor", "not", "shift_left", "shift_right"]
)


def simplify(e: Expr, ranges: Mapping[Var, Expr] | Facts | None = None) -> Expr:
    """An expression equal to `e` where 0 <= v < ranges[v] for each v (outermost loop first)."""
    return _Simplifier(facts_of(ranges)).expr(e)


def facts_of(ranges: Mapping[Var, Expr] | Facts | None) -> Facts:
    """The facts that hold inside loops of these extents, outermost first."""
    if isinstance(ranges, Facts):
        return ranges
    facts = Facts()
    for v, extent in (ranges or {}).items():
        facts = facts.inside(v, extent)
    return facts


def proves(condition: Expr, facts: Facts) -> bool | None:
    """Whether `condition` always holds (True), never holds (False), or is unknown (None)."""
    found = simplify(condition, facts)
    return bool(found.value) if isinstance(found, Const) else None


def affine(e: Expr, variables: Collection[Var]) -> tuple[Expr, dict[Var, Expr]] | None:
    """(rest, coefficients) with e = rest + sum(coefficient * v); None when not linear in them.

    Rest and coefficients mention none of `variables`; they may hold parameters.
    """
    rest, found = terms_of(e), {}
    for v in variables:
        parts = split_on(rest, v)
        if parts is None:
            return None
        factor, rest = parts
        if factor:
            found[v] = expression(factor)
    used = [expression(rest), *found.values()]
    if any(x in variables for part in used for x in walk(part) if isinstance(x, Var)):
        return None
    return used[0], found


def simplify_function(f: Function) -> Function:
    """`f` without provably true conditions, unit loops, empty statements and constant selects."""
    facts = parameter_facts(f.params)
    return Function(f.name, f.params, simplify_stmt(f.body, facts))


def parameter_facts(params: Iterable[Buffer | Var]) -> Facts:
    """What parameters promise: no extent of a buffer is negative."""
    facts = Facts()
    for p in params:
        for extent in p.shape if isinstance(p, Buffer) else ():
            facts = facts.at_least(terms_of(extent), 0)
    return facts


# ---------------------------------------------------------------- expressions


class _Simplifier:
    """The rules under fixed facts, with what they made so far."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.depth = {v: i for i, v in enumerate(facts.ranges)}
        self.made: dict[Expr, Expr] = {}

    def expr(self, e: Expr) -> Expr:
        for node in walk(e):  # operands first, so that no recursion gets deep
            if node not in self.made:
                self.made[node] = self._node(node)
        return self.made[e]

    def _node(self, e: Expr) -> Expr:
        if isinstance(e, Load):
            return Load(e.buffer, tuple(self.made[i] for i in e.index))
        if not isinstance(e, Op):
            return e
        args = tuple(self.made[a] for a in e.args)
        new = Op(e.op, args, e.dtype)
        if args and args[0].dtype is INT64 and e.op in _INDEX_RULES:
            return _INDEX_RULES[e.op](self, new)
        if e.op in _OTHER_RULES:
            found = _OTHER_RULES[e.op](new)
            if found is not None:
                return found
        return _folded(new)

    def rebuilt(self, p: Terms) -> Expr:
        """The canonical expression of `p`, pairs of quotient and remainder joined."""
        return expression(_joined(p), self.depth)


def _folded(e: Op) -> Expr:
    if e.op not in _EXACT and e.op not in ("cast", "select"):
        return e
    if all(isinstance(a, Const) for a in e.args):
        return const(run_expr(e, {}), e.dtype)
    return e


def _joined(p: Terms) -> Terms:
    """x // c * c + x % c  ->  x, times any factor."""
    for term in p:
        for m in term:
            if isinstance(m, Op) and m.op == "mod":
                q = Op("floordiv", m.args, INT64)
                by_m, by_q = split_on(p, m), split_on(p, q)
                if by_m is None or by_q is None:
                    continue
                scaled = multiplied(by_m[0], terms_of(m.args[1]))
                if scaled and all(by_q[0].get(k) == v for k, v in scaled.items()):
                    less = added(p, multiplied(by_m[0], atom(m)), -1)
                    less = added(less, multiplied(scaled, atom(q)), -1)
                    return _joined(added(less, multiplied(by_m[0], terms_of(m.args[0]))))
    return p


def _sum(s: _Simplifier, e: Op) -> Expr:
    return s.rebuilt(terms_of(e))


def _divide(s: _Simplifier, e: Op) -> Expr:
    """Floor division and remainder by a divisor that is provably positive."""
    a, m = terms_of(e.args[0]), terms_of(e.args[1])
    if not s.facts.less({}, m):
        return _folded(e)
    a, m, scale = _reduced(a, m)
    quotient, rest = divided(a, m) if len(m) == 1 else ({}, a)
    if s.facts.never_negative(rest) and s.facts.less(rest, m):
        whole, part = number(0), rest
    else:
        whole, part = _inner(s, rest, m)
    if e.op == "mod":
        return s.rebuilt(multiplied(number(scale), part))
    return s.rebuilt(added(quotient, whole))


def _inner(s: _Simplifier, a: Terms, m: Terms) -> tuple[Terms, Terms]:
    """(a // m, a % m) as atoms; (x // b) // c is x // (b * c) for positive numbers."""
    top, divisor = s.rebuilt(a), s.rebuilt(m)
    under = constant(m)
    if isinstance(top, Op) and top.op == "floordiv" and under is not None:
        by = constant(terms_of(top.args[1]))
        if by is not None and by > 0:
            whole = atom(Op("floordiv", (top.args[0], const(by * under)), INT64))
            return whole, atom(Op("mod", (top, divisor), INT64))
    return (
        atom(Op("floordiv", (top, divisor), INT64)),
        atom(Op("mod", (top, divisor), INT64)),
    )


def _reduced(a: Terms, m: Terms) -> tuple[Terms, Terms, int]:
    """Both without their common numeric factor, and that factor."""
    g = math.gcd(*a.values(), *m.values())
    if g <= 1:
        return a, m, 1
    return {k: v // g for k, v in a.items()}, {k: v // g for k, v in m.items()}, g


def _extreme(s: _Simplifier, e: Op) -> Expr:
    a, b = e.args
    difference = added(terms_of(a), terms_of(b), -1)
    if s.facts.never_negative(difference):
        return b if e.op == "min" else a
    if s.facts.never_negative(added({}, difference, -1)):
        return a if e.op == "min" else b
    return e


def _compare(s: _Simplifier, e: Op) -> Expr:
    """A comparison decided by the facts: d is right minus left."""
    d = added(terms_of(e.args[1]), terms_of(e.args[0]), -1)
    back = added({}, d, -1)
    facts = s.facts
    if e.op in ("eq", "ne"):
        if not d:
            return const(e.op == "eq", BOOL)
        apart = facts.less({}, d) or facts.less({}, back)
        return const(e.op == "ne", BOOL) if apart else e
    if e.op in ("gt", "ge"):
        d, back = back, d
    strict = e.op in ("lt", "gt")
    if facts.less({}, d) if strict else facts.never_negative(d):
        return const(True, BOOL)
    if facts.never_negative(back) if strict else facts.less({}, back):
        return const(False, BOOL)
    return e


_INDEX_RULES: dict[str, Callable[[_Simplifier, Op], Expr]] = {
    **dict.fromkeys(("add", "sub", "mul", "neg"), _sum),
    **dict.fromkeys(("floordiv", "mod"), _divide),
    **dict.fromkeys(("min", "max"), _extreme),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), _compare),
}


# ---------------------------------------------------------------- conditions and other types


def _value(e: Expr) -> int | float | None:
    return e.value if isinstance(e, Const) else None


def _and(e: Op) -> Expr | None:
    return _logic(e, neutral=1) if e.dtype is BOOL else None


def _or(e: Op) -> Expr | None:
    return _logic(e, neutral=0) if e.dtype is BOOL else None


def _logic(e: Op, neutral: int) -> Expr | None:
    for this, other in (e.args, e.args[::-1]):
        if isinstance(this, Const):
            return other if this.value == neutral else this
    return e.args[0] if e.args[0] is e.args[1] else None


_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


def _not(e: Op) -> Expr | None:
    a = e.args[0]
    if not isinstance(a, Op) or a.dtype is not BOOL:
        return None
    if a.op == "not":
        return a.args[0]
    if a.op in _OPPOSITE and not a.args[0].dtype.is_float:  # NaN has no order to turn round
        return Op(_OPPOSITE[a.op], a.args, BOOL)
    return None


def _select(e: Op) -> Expr | None:
    condition, a, b = e.args
    if isinstance(condition, Const):
        return a if condition.value else b
    return a if a is b else None


def _times_one(e: Op) -> Expr | None:
    """x * 1 and x / 1."""
    for this, other in (e.args, e.args[::-1]):
        if _value(other) == 1 and (e.op == "mul" or other is e.args[1]):
            return this
    return None


def _plus_zero(e: Op) -> Expr | None:
    """x + -0.0 and x - 0.0, and any integer zero; x + 0.0 would turn -0.0 into 0.0."""
    for this, other in (e.args, e.args[::-1]) if e.op == "add" else (e.args,):
        zero = _value(other)
        if zero == 0:
            negative = math.copysign(1.0, zero) < 0
            if not e.dtype.is_float or negative == (e.op == "add"):
                return this
    return None


_OTHER_RULES: dict[str, Callable[[Op], Expr | None]] = {
    "and": _and,
    "or": _or,
    "not": _not,
    "select": _select,
    "mul": _times_one,
    "div": _times_one,
    "add": _plus_zero,
    "sub": _plus_zero,
    "cast": lambda e: e.args[0] if e.args[0].dtype is e.dtype else None,
}


# ---------------------------------------------------------------- statements

_EMPTY = Block(())


def simplify_stmt(s: Stmt, facts: Facts) -> Stmt:
    """`s` simplified where `facts` hold."""
    if isinstance(s, Block):
        kept = (simplify_stmt(inner, facts) for inner in s.body)
        return block(*(inner for inner in kept if inner != _EMPTY))
    if isinstance(s, Store):
        rules = _Simplifier(facts)
        return Store(s.buffer, tuple(rules.expr(i) for i in s.index), rules.expr(s.value))
    if isinstance(s, For):
        return _for(s, facts)
    if isinstance(s, If):
        return _if(s, facts)
    if isinstance(s, Let):
        value = simplify(s.value, facts)
        if isinstance(value, (Const, Var)):
            return simplify_stmt(replace(s.body, {s.var: value}), facts)
        body = simplify_stmt(s.body, facts)
        return _EMPTY if body == _EMPTY else Let(s.var, value, body)
    body = simplify_stmt(s.body, facts)
    return _EMPTY if body == _EMPTY else Alloc(s.buffer, body)


def _for(s: For, facts: Facts) -> Stmt:
    extent = simplify(s.extent, facts)
    count = _value(extent)
    if count is not None and count <= 0:
        return _EMPTY
    if count == 1 and s.kind is not Kind.PARALLEL:  # the grid of tasks stays, even with one task
        return simplify_stmt(replace(s.body, {s.var: const(0)}), facts)
    body = simplify_stmt(s.body, facts.inside(s.var, extent))
    return _EMPTY if body == _EMPTY else For(s.var, extent, body, s.kind)


def _if(s: If, facts: Facts) -> Stmt:
    condition = simplify(s.condition, facts)
    if isinstance(condition, Const):
        chosen = s.then if condition.value else s.orelse
        return _EMPTY if chosen is None else simplify_stmt(chosen, facts)
    then = simplify_stmt(s.then, facts.given(condition))
    orelse = None if s.orelse is None else simplify_stmt(s.orelse, facts.given(condition, False))
    if orelse == _EMPTY:
        orelse = None
    if then == _EMPTY:
        if orelse is None:
            return _EMPTY
        return If(simplify(op("not", condition), facts), orelse)
    return If(condition, then, orelse)
