"""Integer polynomials over the atoms of int64 expressions, and proofs that one is never negative.

In: int64 expressions. Out: one canonical sum of products (`Terms`), the expression it stands for,
and answers of `Facts.never_negative`, where True is a proof and False means unknown. An atom is
whatever is no sum, difference or product. Invariant: evaluation is unchanged where no intermediate
overflows, which holds for every index of an array that fits in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fissile.ir.dtype import INT64
from fissile.ir.loop import Const, Expr, Op, Var, const, minus, plus, times, walk
from fissile.ir.text import show

Terms = Mapping[tuple[Expr, ...], int]  # product of atoms, sorted -> coefficient, never 0

_RING = ("add", "sub", "mul", "neg")
_DEEPEST = 14
_WIDEST = 48


def _rank(e: Expr) -> tuple[int, str]:
    return (0, e.name) if isinstance(e, Var) else (1, show(e))


def number(value: int) -> Terms:
    """The constant polynomial."""
    return {(): value} if value else {}


def atom(e: Expr) -> Terms:
    """The polynomial that is one atom."""
    return {(e,): 1}


def added(a: Terms, b: Terms, factor: int = 1) -> Terms:
    """a + factor * b."""
    total = dict(a)
    for key, value in b.items():
        total[key] = total.get(key, 0) + factor * value
    return {key: value for key, value in total.items() if value}


def multiplied(a: Terms, b: Terms) -> Terms:
    """a * b."""
    total: dict[tuple[Expr, ...], int] = {}
    for x, m in a.items():
        for y, n in b.items():
            key = x + y if not x or not y else tuple(sorted(x + y, key=_rank))
            total[key] = total.get(key, 0) + m * n
    return {key: value for key, value in total.items() if value}


def terms_of(e: Expr) -> Terms:
    """The polynomial of an int64 expression."""
    if isinstance(e, Const):
        return number(int(e.value))
    if not isinstance(e, Op) or e.op not in _RING or e.dtype is not INT64:
        return atom(e)
    parts = [terms_of(a) for a in e.args]
    if e.op == "neg":
        return added({}, parts[0], -1)
    if e.op == "mul":
        return multiplied(*parts)
    return added(parts[0], parts[1], -1 if e.op == "sub" else 1)


def constant(p: Terms) -> int | None:
    """The number that `p` is, or None."""
    if not p:
        return 0
    return p[()] if len(p) == 1 and () in p else None


def expression(p: Terms, depth: Mapping[Var, int] | None = None) -> Expr:
    """The canonical sum: terms of outer loops first (`depth`: their level), the constant last."""
    level = depth or {}

    def order(key: tuple[Expr, ...]) -> tuple[int, int, int, list[tuple[int, str]]]:
        inner = [level.get(v, -1) for a in key for v in walk(a) if isinstance(v, Var)]
        return (not key, p[key] < 0, max(inner, default=-1), [_rank(a) for a in key])

    total: Expr = const(0)
    for key in sorted(p, key=order):
        product: Expr = const(abs(p[key]))
        for a in key:
            product = times(a, product) if isinstance(product, Const) else times(product, a)
        total = plus(total, product) if p[key] > 0 else minus(total, product)
    return total


def divided(p: Terms, by: Terms) -> tuple[Terms, Terms]:
    """(q, r) with p = q * by + r, for a `by` of one term; r holds the terms not divisible."""
    ((key, factor),) = by.items()
    quotient: dict[tuple[Expr, ...], int] = {}
    rest: dict[tuple[Expr, ...], int] = {}
    for term, value in p.items():
        left = _without(term, key)
        if left is None or (value % factor and (term or key)):
            rest[term] = value
        else:
            quotient[left] = value // factor
            if value % factor:
                rest[term] = value % factor
    return {k: v for k, v in quotient.items() if v}, rest


def _without(term: tuple[Expr, ...], key: tuple[Expr, ...]) -> tuple[Expr, ...] | None:
    left = list(term)
    for a in key:
        if a not in left:
            return None
        left.remove(a)
    return tuple(left)


def split_on(p: Terms, x: Expr) -> tuple[Terms, Terms] | None:
    """(c, rest) with p = c * x + rest and no x in them; None when x has a higher power."""
    with_x: dict[tuple[Expr, ...], int] = {}
    rest: dict[tuple[Expr, ...], int] = {}
    for term, value in p.items():
        if x in term:
            left = tuple(a for a in term if a is not x)
            if len(left) != len(term) - 1:
                return None
            with_x[left] = value
        else:
            rest[term] = value
    return with_x, rest


# ---------------------------------------------------------------- what is known


@dataclass(frozen=True)
class Facts:
    """What holds at a place: 0 <= v < ranges[v], atom >= lower[atom], polynomial >= 0 (`known`).

    `ranges` goes from the outermost loop inwards; an extent mentions outer variables only.
    """

    ranges: Mapping[Var, Expr] = field(default_factory=dict)
    lower: Mapping[Expr, int] = field(default_factory=dict)
    known: tuple[Terms, ...] = ()
    proved: dict[frozenset[tuple[tuple[Expr, ...], int]], bool] = field(
        default_factory=dict, compare=False, repr=False
    )

    def inside(self, v: Var, extent: Expr) -> Facts:
        """Also inside `for v in range(extent)`, where the extent is at least 1."""
        more = Facts(dict(self.ranges) | {v: extent}, self.lower, self.known)
        return more.at_least(terms_of(extent), 1)

    def at_least(self, p: Terms, least: int) -> Facts:
        """Also p >= least, and what that says about the operands of a quotient or minimum."""
        shifted = dict(p)
        least -= shifted.pop((), 0)
        if not shifted:
            return self
        key, factor = next(iter(shifted.items()))
        if len(shifted) > 1 or factor != 1 or len(key) != 1:
            return Facts(self.ranges, self.lower, (*self.known, added(shifted, number(-least))))
        x = key[0]
        bound = max(least, self.lower.get(x, least))
        more = Facts(self.ranges, dict(self.lower) | {x: bound}, self.known)
        if isinstance(x, Op) and x.op == "min":
            return more.at_least(terms_of(x.args[0]), bound).at_least(terms_of(x.args[1]), bound)
        if isinstance(x, Op) and x.op == "floordiv":
            by = constant(terms_of(x.args[1]))
            if by is not None and by > 0:
                return more.at_least(terms_of(x.args[0]), bound * by)
        return more

    def given(self, condition: Expr, holds: bool = True) -> Facts:
        """Also that `condition` holds (or not); comparisons and their conjunctions are understood."""
        facts = self
        for p in _consequences(condition, holds):
            facts = facts.at_least(p, 0)
        return facts

    def never_negative(self, p: Terms) -> bool:
        """Whether p >= 0 is proved for all values that the facts allow."""
        key = frozenset(p.items())
        if key not in self.proved:
            self.proved[key] = _prove(self, p, 0) or any(
                _prove(self, added(p, k, -1), 0) for k in self.known
            )
        return self.proved[key]

    def less(self, a: Terms, b: Terms) -> bool:
        """Whether a < b is proved."""
        return self.never_negative(added(added(b, a, -1), number(-1)))


def _consequences(condition: Expr, holds: bool) -> Iterable[Terms]:
    """Polynomials that are >= 0 when `condition` is `holds`."""
    if not isinstance(condition, Op):
        return
    name, args = condition.op, condition.args
    if name == ("and" if holds else "or"):
        yield from _consequences(args[0], holds)
        yield from _consequences(args[1], holds)
    elif name == "not":
        yield from _consequences(args[0], not holds)
    elif name in ("lt", "le", "gt", "ge", "eq") and args[0].dtype is INT64:
        a, b = terms_of(args[0]), terms_of(args[1])
        if name in ("gt", "ge"):
            a, b, name = b, a, {"gt": "lt", "ge": "le"}[name]
        if name == "eq":
            if holds:
                yield added(b, a, -1)
                yield added(a, b, -1)
        elif holds:  # a < b, a <= b
            yield added(added(b, a, -1), number(-1 if name == "lt" else 0))
        else:  # b <= a, b < a
            yield added(added(a, b, -1), number(0 if name == "lt" else -1))


# ---------------------------------------------------------------- proof by elimination

# scale * x >= bound (or <=), scale positive: a proof needs one alternative with all its bounds
_Alternatives = list[list[tuple[Terms, Terms]]]
_ONE: Terms = {(): 1}


def _prove(facts: Facts, p: Terms, depth: int) -> bool:
    value = constant(p)
    if value is not None:
        return value >= 0
    if depth > _DEEPEST or len(p) > _WIDEST:
        return False
    x = _next(facts, p)
    if x is None:
        return _positive_in_shifted(facts, p)
    parts = split_on(p, x)
    if parts is None:
        return False
    factor, rest = parts
    if _prove(facts, factor, depth + 1):
        low = True
    elif _prove(facts, added({}, factor, -1), depth + 1):
        low = False
    else:
        return False
    return any(
        all(
            _prove(facts, added(multiplied(factor, b), multiplied(rest, s)), depth + 1)
            for s, b in alternative
        )
        for alternative in _bounds(facts, x, low, depth + 1)
    )


_COMPOSITE = ("floordiv", "mod", "min", "max", "select")


def _next(facts: Facts, p: Terms) -> Expr | None:
    """The atom to eliminate: a composite one, else the variable of the innermost loop."""
    found: Expr | None = None
    inner = -1
    order = {v: i for i, v in enumerate(facts.ranges)}
    for term in p:
        for a in term:
            if isinstance(a, Op) and a.op in _COMPOSITE:
                return a
            if isinstance(a, Var) and order.get(a, -1) > inner:
                found, inner = a, order[a]
    return found


def _bounds(facts: Facts, x: Expr, low: bool, depth: int) -> _Alternatives:
    """Lower (`low`) or upper bounds of the atom `x`."""
    if isinstance(x, Var):
        least = number(max(0, facts.lower.get(x, 0)))
        bound = least if low else added(terms_of(facts.ranges[x]), number(-1))
        return [[(_ONE, bound)]]
    if not isinstance(x, Op):
        return []
    args = [terms_of(a) for a in x.args] if x.op != "select" else []
    known = facts.lower.get(x)
    own: _Alternatives = [[(_ONE, number(known))]] if low and known is not None else []
    if x.op == "select":
        return [*own, [(_ONE, terms_of(a)) for a in x.args[1:]]]
    if x.op in ("min", "max"):
        each = [[(_ONE, a)] for a in args]
        together = [[(_ONE, a) for a in args]]
        return own + (together if (x.op == "min") == low else each)
    a, m = args
    if not _prove(facts, added(m, number(-1)), depth):
        return own
    if x.op == "mod":
        if low:
            return [*own, [(_ONE, number(0))]]
        upper: _Alternatives = [[(_ONE, added(m, number(-1)))]]
        return [*upper, [(_ONE, a)]] if _prove(facts, a, depth) else upper
    if low:
        exact: _Alternatives = [[(m, added(added(a, m, -1), number(1)))]]
        return own + exact + ([[(_ONE, number(0))]] if _prove(facts, a, depth) else [])
    return [[(m, a)]]


def _positive_in_shifted(facts: Facts, p: Terms) -> bool:
    """Whether every coefficient is non-negative once atoms are counted from their lower bounds."""
    shifted: Terms = {}
    for term, value in p.items():
        product: Terms = number(value)
        for a in term:
            if a not in facts.lower:
                return False
            product = multiplied(product, added(atom(a), number(facts.lower[a])))
        shifted = added(shifted, product)
    return all(value >= 0 for value in shifted.values())
