"""Symbolic dimensions: integer expressions with one canonical form (design 3.2).

In: symbols (non-negative integers with a lower bound) combined by + - * // % min max. Out: a
`Dim`, or a plain `int` whenever the value is constant. A Dim is a polynomial with integer
coefficients over atoms (`Symbol`, `FloorDiv`, `Mod`, `Min`, `Max`).
Invariant: Dims are interned, so `is`, `==` and `hash` agree; `equal` and `less_equal` prove, refute
or answer None (unknown), and never lie. A divisor is assumed not to be zero, and `//` and `%`
round like Python's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import NoReturn, TypeAlias

__all__ = [
    "Atom", "Dim", "DimLike", "FloorDiv", "Max", "Min", "Mod", "Symbol", "ceildiv", "divides",
    "equal", "evaluate", "exact_div", "less_equal", "lower_bound", "max_", "min_", "parse",
    "product", "solve", "substitute", "symbol", "symbols", "terms", "upper_bound",
]  # fmt: skip

_NAME = re.compile(r"[^\W\d][\w.]*")
_TOKEN = re.compile(r"\s*(?:(\d+)|`([^`]*)`|([^\W\d][\w.]*)|(//|[-+*%(),]))")
_REFINEMENTS = 3  # nested case splits tried when bounding; each multiplies the work by the atoms
_WIDTH = 4  # atoms tried per split


@dataclass(frozen=True, slots=True)
class _Node:
    """What the atoms share: a text `key` that identifies and orders them, cached for hashing."""

    key: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", _atom_text(self, _key_name))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Symbol(_Node):
    """A named integer, known only to be at least `lower`."""

    name: str
    lower: int = 0

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, slots=True)
class FloorDiv(_Node):
    """`num // den`; `den` is an int >= 2 or a Dim."""

    num: DimLike
    den: DimLike

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, slots=True)
class Mod(_Node):
    """`num % den`; `den` is an int >= 2 or a Dim."""

    num: DimLike
    den: DimLike

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, slots=True)
class Min(_Node):
    """The smallest of two or more arguments."""

    args: tuple[DimLike, ...]

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, slots=True)
class Max(_Node):
    """The largest of two or more arguments."""

    args: tuple[DimLike, ...]

    def __hash__(self) -> int:
        return hash(self.key)


Atom: TypeAlias = Symbol | FloorDiv | Mod | Min | Max
_Monomial: TypeAlias = tuple[Atom, ...]
_Terms: TypeAlias = tuple[tuple[int, _Monomial], ...]


class Dim:
    """A non-constant integer expression; build with `symbol`, `parse` and operators only."""

    __slots__ = ("_terms",)
    __array_ufunc__ = None  # numpy integers then leave arithmetic to the reflected operators
    _terms: _Terms

    def __add__(self, other: DimLike) -> DimLike:
        return _sum((self, other))

    def __sub__(self, other: DimLike) -> DimLike:
        return _sum((self, -other))

    def __rsub__(self, other: DimLike) -> DimLike:
        return _sum((other, -self))

    def __neg__(self) -> DimLike:
        # Negation keeps the order of terms and the absence of zeros.
        return _intern(tuple((-scale, atoms) for scale, atoms in self._terms))

    def __mul__(self, other: DimLike) -> DimLike:
        poly: dict[_Monomial, int] = {}
        for scale, atoms in self._terms:
            for scale_, atoms_ in terms(other):
                both = _sorted_atoms(atoms + atoms_) if atoms and atoms_ else atoms or atoms_
                poly[both] = poly.get(both, 0) + scale * scale_
        return _build(poly)

    __radd__, __rmul__ = __add__, __mul__

    def __floordiv__(self, other: DimLike) -> DimLike:
        return _floordiv(self, other)

    def __rfloordiv__(self, other: DimLike) -> DimLike:
        return _floordiv(other, self)

    def __mod__(self, other: DimLike) -> DimLike:
        return _mod(self, other)

    def __rmod__(self, other: DimLike) -> DimLike:
        return _mod(other, self)

    def __bool__(self) -> NoReturn:
        raise TypeError(f"the truth of the symbolic dimension {self} is unknown; use equal()")

    def __str__(self) -> str:
        return _text(self, _plain_name)

    def __repr__(self) -> str:
        return f"Dim({self})"

    def __copy__(self) -> Dim:
        return self

    def __deepcopy__(self, memo: object) -> Dim:
        return self


DimLike: TypeAlias = int | Dim

# Strong references: a Dim is small, and a weak table would cost more than the arithmetic.
_TABLE: dict[_Terms, Dim] = {}


def symbol(name: str, lower: int = 0) -> Dim:
    """The dimension called `name` (any text without a backtick), at least `lower` >= 0.

    >>> h = symbol("h", lower=1)
    >>> str((4 * h + 3) // 2 - 1), 2 * h // 2 is h
    ('2*h', True)
    """
    if not name or "`" in name:
        raise ValueError(f"not a name of a dimension: {name!r}")
    return _atom(Symbol(name, lower))


def terms(a: DimLike) -> _Terms:
    """The sum `a` as (coefficient, atoms multiplied); the constant comes last, with no atoms."""
    if isinstance(a, Dim):
        return a._terms
    return ((int(a), ()),) if a else ()


# ---- construction ------------------------------------------------------------------------------


def _intern(key: _Terms) -> Dim:
    found = _TABLE.get(key)
    if found is None:
        fresh = Dim.__new__(Dim)
        fresh._terms = key
        found = _TABLE.setdefault(key, fresh)
    return found


def _atom(atom: Atom) -> Dim:
    return _intern(((1, (atom,)),))


def _sorted_atoms(atoms: _Monomial) -> _Monomial:
    return tuple(sorted(atoms, key=lambda atom: atom.key))


@cache
def _rank(atoms: _Monomial) -> tuple[int, list[str]]:
    # Graded lexicographic: a monomial order, so that polynomial division terminates.
    return -len(atoms), [atom.key for atom in atoms]


def _build(poly: dict[_Monomial, int]) -> DimLike:
    """The canonical expression of a sum; `poly` maps monomials to coefficients, zeros allowed."""
    kept = {atoms: scale for atoms, scale in poly.items() if scale}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    if len(kept) > 1:
        for atoms, scale in kept.items():
            if len(atoms) == 1 and isinstance(atoms[0], Mod):
                whole = _recombined(kept, atoms[0], scale)
                if whole is not None:
                    return whole
    return _intern(tuple((kept[atoms], atoms) for atoms in sorted(kept, key=_rank)))


def _recombined(poly: dict[_Monomial, int], mod: Mod, scale: int) -> DimLike | None:
    """k*(n % c) + k*c*(n//c) -> k*n, if the sum holds both."""
    quotient = terms(_floordiv(mod.num, mod.den))
    if len(quotient) != 1 or not isinstance(mod.den, int):
        return None
    unit, atoms = quotient[0]
    if len(atoms) != 1 or poly.get(atoms) != scale * mod.den or unit != 1:
        return None
    rest = {k: v for k, v in poly.items() if k != atoms and k != (mod,)}
    return _build(rest) + scale * mod.num


def _sum(parts: Iterable[DimLike]) -> DimLike:
    poly: dict[_Monomial, int] = {}
    for part in parts:
        for scale, atoms in terms(part):
            poly[atoms] = poly.get(atoms, 0) + scale
    return _build(poly)


def product(dims: Iterable[DimLike]) -> DimLike:
    """The product; 1 for no dimension."""
    total: DimLike = 1
    for dim in dims:
        total = total * dim
    return total


def _content(a: DimLike, start: int = 0) -> int:
    """The greatest common divisor of `start` and the coefficients of all but the constant."""
    return math.gcd(start, *(scale for scale, atoms in terms(a) if atoms))


def _constant(a: DimLike) -> int:
    last = terms(a)[-1:]
    return last[0][0] if last and not last[0][1] else 0


def _scaled_down(a: DimLike, c: int) -> DimLike:
    """Each coefficient divided by `c` and the constant rounded down: `a // c` if c | content."""
    return _build({atoms: scale // c for scale, atoms in terms(a)})


def _split(a: Dim, c: int, sign: int) -> tuple[DimLike, DimLike]:
    """(q, r) with a = c*q + r; r's constant is in [0, c), its other coefficients in (-c, c).

    With sign 0 they keep the sign they had, with sign 1 they are in [0, c) too.
    """
    outer: dict[_Monomial, int] = {}
    for scale, atoms in a._terms:
        outer[atoms] = scale // c if scale > 0 or sign or not atoms else -(-scale // c)
    inner = {atoms: scale - c * outer[atoms] for scale, atoms in a._terms}
    return _build(outer), _build(inner)


def _floordiv(a: DimLike, b: DimLike) -> DimLike:
    if not isinstance(b, Dim):
        if b == 0:
            raise ZeroDivisionError(f"{a} // 0")
        if not isinstance(a, Dim):
            return a // b
        return _floordiv_const(a, int(b)) if b > 0 else _floordiv_const(_sum((-a,)), -int(b))
    quotient = exact_div(a, b)
    if quotient is not None:
        return quotient
    shared = math.gcd(*(scale for scale, _ in terms(a) + terms(b)))
    if b._terms[0][0] < 0:
        shared = -shared
    num, den = _scaled_down(a, shared), _scaled_down(b, shared)
    low, high = lower_bound(num), upper_bound(num - den)
    if low is not None and low >= 0 and high is not None and high < 0:
        return 0
    return _atom(FloorDiv(num, den))


@cache
def _floordiv_const(a: DimLike, c: int) -> DimLike:
    """`a // c` for c >= 1: multiples of c go out, the rest is a constant or one FloorDiv."""
    if not isinstance(a, Dim):
        return a // c
    if c == 1:
        return a
    outer, rest = _split(a, c, 0)
    if not isinstance(rest, Dim):
        return outer  # the constant is in [0, c)
    if rest._terms[0][0] < 0:
        return outer - _floordiv_const(c - 1 - rest, c)
    low, high = lower_bound(rest), upper_bound(rest)
    if low is not None and high is not None and low // c == high // c:
        return outer + low // c
    shared = _content(rest, c)
    if shared > 1:
        return outer + _floordiv_const(_scaled_down(rest, shared), c // shared)
    return outer + _nested(rest, c, _floordiv_const)


def _nested(a: Dim, c: int, divide: Callable[[DimLike, int], DimLike]) -> DimLike:
    """(n//d + r) // c -> (n + d*r) // (d*c), else the atom `a // c` as it is."""
    inner = [
        (scale, atoms[0])
        for scale, atoms in a._terms
        if len(atoms) == 1 == abs(scale) and isinstance(atoms[0], FloorDiv)
    ]
    if len(inner) == 1:
        scale, atom = inner[0]
        if isinstance(atom, FloorDiv) and isinstance(atom.den, int):
            # A subtracted floor is a ceiling: -(n//d) = (d - 1 - n)//d.
            num = atom.num if scale > 0 else atom.den - 1 - atom.num
            return divide(num + atom.den * (a - scale * _atom(atom)), atom.den * c)
    return _atom(FloorDiv(a, c))


def _mod(a: DimLike, b: DimLike) -> DimLike:
    if not isinstance(b, Dim):
        if b == 0:
            raise ZeroDivisionError(f"{a} % 0")
        if not isinstance(a, Dim):
            return a % b
        return _mod_const(a, int(b)) if b > 0 else -_mod_const(-a, -int(b))
    if exact_div(a, b) is not None:
        return 0
    low, high = lower_bound(a), upper_bound(a - b)
    if low is not None and low >= 0 and high is not None and high < 0:
        return a
    return _atom(Mod(a, b))


@cache
def _mod_const(a: DimLike, c: int) -> DimLike:
    """`a % c` for c >= 1, with the coefficients reduced into [0, c)."""
    if not isinstance(a, Dim) or c == 1:
        return 0 if c == 1 else a % c
    low, high = lower_bound(a), upper_bound(a)
    if low is not None and high is not None and low // c == high // c:
        return a - low // c * c
    rest = _split(a, c, 1)[1]
    for scale, atoms in terms(rest):
        inner = atoms[0] if len(atoms) == 1 else None
        # (n % d) differs from n by a multiple of d, which vanishes if c | scale*d.
        if isinstance(inner, Mod) and isinstance(inner.den, int) and scale * inner.den % c == 0:
            return _mod_const(rest + scale * (inner.num - _atom(inner)), c)
    if rest is not a:
        return _mod_const(rest, c)
    shared = _content(rest, c)
    if shared == 1:
        return _atom(Mod(rest, c))
    inside = _mod_const(_scaled_down(rest, shared), c // shared)
    return shared * inside + _constant(rest) % shared


def ceildiv(a: DimLike, b: DimLike) -> DimLike:
    """`a / b` rounded up; `b` is assumed to be positive if it is a Dim."""
    if isinstance(b, Dim):
        return _floordiv(a + b - 1, b)
    return -_floordiv(-a, b)


def min_(*args: DimLike) -> DimLike:
    """The smallest argument, without those that are provably never needed."""
    return _extremum(Min, args, lambda a, b: less_equal(a, b) is True)


def max_(*args: DimLike) -> DimLike:
    """The largest argument, without those that are provably never needed."""
    return _extremum(Max, args, lambda a, b: less_equal(b, a) is True)


def _extremum(
    kind: type[Min] | type[Max],
    args: Iterable[DimLike],
    beats: Callable[[DimLike, DimLike], bool],
) -> DimLike:
    flat: dict[DimLike, None] = {}
    for arg in args:
        nested = _single(arg)
        flat.update(dict.fromkeys(nested.args if isinstance(nested, kind) else (arg,)))
    if not flat:
        raise ValueError(f"{kind.__name__.lower()}_ of no dimension")
    kept: list[DimLike] = []
    for arg in sorted(flat, key=_arg_order):
        if not any(beats(other, arg) for other in kept):
            kept = [other for other in kept if not beats(arg, other)] + [arg]
    return kept[0] if len(kept) == 1 else _atom(kind(tuple(kept)))


def _arg_order(a: DimLike) -> tuple[bool, str]:
    return not isinstance(a, Dim), _text(a, _key_name)


def _single(a: DimLike) -> Atom | None:
    """The atom that `a` consists of, if it is one."""
    parts = terms(a)
    if len(parts) == 1 and parts[0][0] == len(parts[0][1]) == 1:
        return parts[0][1][0]
    return None


# ---- bounds ------------------------------------------------------------------------------------


def lower_bound(a: DimLike) -> int | None:
    """A number that `a` is never below, or None if none was found."""
    if not isinstance(a, Dim):
        return int(a)
    found = _lower(a, _REFINEMENTS)
    return int(found) if math.isfinite(found) else None


def upper_bound(a: DimLike) -> int | None:
    """A number that `a` is never above, or None if none was found."""
    found = lower_bound(-a)
    return None if found is None else -found


def _times(a: float, b: float) -> float:
    return a * b if a and b else 0


@cache
def _range(atom: Atom) -> tuple[float, float]:
    """The interval of an atom; an int where finite."""
    if isinstance(atom, Symbol):
        return atom.lower, math.inf
    if isinstance(atom, Min | Max):
        lows, highs = zip(*(_interval(arg) for arg in atom.args), strict=True)
        pick = min if isinstance(atom, Min) else max
        return pick(lows), pick(highs)
    (low, high), (den, den_high) = _interval(atom.num), _interval(atom.den)
    if isinstance(atom, Mod):
        if den < 1:
            return -math.inf, math.inf
        return 0, min(den_high - 1, high if low >= 0 else math.inf)
    if den < 1 or (low < 0 and den != den_high):
        return -math.inf, math.inf
    low_ = low // den_high if math.isfinite(den_high) and math.isfinite(low) else min(low, 0)
    return low_, high // den if math.isfinite(high) else high


def _interval(a: DimLike) -> tuple[float, float]:
    if not isinstance(a, Dim):
        return a, a
    return _lower(a, _REFINEMENTS), -_lower_of(-a, _REFINEMENTS)


def _lower_of(a: DimLike, depth: int) -> float:
    return _lower(a, depth) if isinstance(a, Dim) else a


@cache
def _lower(a: Dim, depth: int) -> float:
    """The best lower bound from intervals and from `depth` nested refinements of one atom."""
    best = _naive_lower(a)
    if depth == 0 or len(a._terms) == 1:
        return best
    tried = 0
    for scale, atoms in a._terms:
        if len(atoms) == 1 and not isinstance(atoms[0], Symbol | Mod) and tried < _WIDTH:
            tried += 1
            best = max(best, _refined_lower(a, scale, atoms[0], depth - 1))
    return best


def _naive_lower(a: Dim) -> float:
    """Interval arithmetic, term by term, with atoms counted from their lower bounds.

    h*w - h for h, w >= 1 is h'*w' + w' - 1 + 1 with h', w' >= 0: the shift makes it positive.
    """
    if all(len(atoms) <= 1 for _, atoms in a._terms):
        return sum(_term_lower(s, [_range(x) for x in atoms]) for s, atoms in a._terms)
    shifted: dict[_Monomial, int] = {}
    for scale, atoms in a._terms:
        partial: dict[_Monomial, int] = {(): scale}
        for atom in atoms:
            low = _range(atom)[0]
            grown: dict[_Monomial, int] = {}
            for done, value in partial.items():
                both = _sorted_atoms((*done, atom))
                grown[both] = grown.get(both, 0) + value
                if low and math.isfinite(low):
                    grown[done] = grown.get(done, 0) + value * int(low)
            partial = grown
        for done, value in partial.items():
            shifted[done] = shifted.get(done, 0) + value
    return sum(_term_lower(s, [_shifted(x) for x in atoms]) for atoms, s in shifted.items())


def _shifted(atom: Atom) -> tuple[float, float]:
    low, high = _range(atom)
    return (0, high - low) if math.isfinite(low) else (low, high)


def _term_lower(scale: int, ranges: list[tuple[float, float]]) -> float:
    low: float = scale
    high: float = scale
    for a, b in ranges:
        corners = _times(low, a), _times(low, b), _times(high, a), _times(high, b)
        low, high = min(corners), max(corners)
    return low


def _refined_lower(a: Dim, scale: int, atom: Atom, depth: int) -> float:
    """Bound `a` with its part `scale*atom` replaced by what defines the atom."""
    rest = a - scale * _atom(atom)
    if isinstance(atom, Min | Max):
        cases = [_lower_of(rest + scale * arg, depth) for arg in atom.args]
        return min(cases) if (scale > 0) == isinstance(atom, Min) else max(cases)
    if not isinstance(atom, FloorDiv) or isinstance(atom.den, Dim):
        return -math.inf
    # The atom lies in ((n - c + 1)/c, n/c), whatever n is.
    slack = scale * (atom.den - 1) if scale > 0 else 0
    found = _lower_of(atom.den * rest + scale * atom.num - slack, depth)
    return -(-found // atom.den) if math.isfinite(found) else found


# ---- questions ---------------------------------------------------------------------------------


def equal(a: DimLike, b: DimLike) -> bool | None:
    """True if always equal, False if never, None if unknown.

    >>> equal(parse("(h + 1)//2"), parse("h - h//2")), equal(parse("h"), parse("w"))
    (True, None)
    """
    gap = a - b
    verdict = _is_zero(gap)
    return _is_zero(_normal(gap)) if verdict is None else verdict


def _is_zero(a: DimLike) -> bool | None:
    if not isinstance(a, Dim):
        return a == 0
    low, high = lower_bound(a), upper_bound(a)
    is_off = (low is not None and low > 0) or (high is not None and high < 0)
    return False if is_off or _constant(a) % _content(a) else None


def less_equal(a: DimLike, b: DimLike) -> bool | None:
    """True if always a <= b, False if always a > b, None if unknown."""
    gap = b - a
    verdict = _is_natural(gap)
    return _is_natural(_normal(gap)) if verdict is None else verdict


def _is_natural(a: DimLike) -> bool | None:
    low = lower_bound(a)
    if low is not None and low >= 0:
        return True
    high = upper_bound(a)
    return False if high is not None and high < 0 else None


@cache
def _normal(a: DimLike) -> DimLike:
    """A second form, unfit for reading, that more equal expressions share: no Mod, no Max."""
    if not isinstance(a, Dim):
        return a
    return _sum(
        product((scale, *(_normal_atom(atom) for atom in atoms))) for scale, atoms in a._terms
    )


def _normal_atom(atom: Atom) -> DimLike:
    if isinstance(atom, Symbol):
        return _atom(atom)
    if isinstance(atom, Min | Max):
        sign = 1 if isinstance(atom, Min) else -1
        args = [sign * _normal(arg) for arg in atom.args]
        shift = min(_constant(arg) for arg in args)
        return sign * (min_(*(arg - shift for arg in args)) + shift)
    num, den = _normal(atom.num), _normal(atom.den)
    if isinstance(den, Dim):
        return num // den if isinstance(atom, FloorDiv) else num - den * (num // den)
    quotient = _normal_floordiv(num, den)
    return quotient if isinstance(atom, FloorDiv) else num - den * quotient


def _normal_floordiv(a: DimLike, c: int) -> DimLike:
    """`a // c` written as floor or as ceiling, whichever has the smaller coefficients."""
    if not isinstance(a, Dim):
        return a // c
    outer, rest = _split(a, c, 1)
    if not isinstance(rest, Dim):
        return outer
    shared = _content(rest, c)
    if shared > 1:
        return outer + _normal_floordiv(_scaled_down(rest, shared), c // shared)
    outer_, rest_ = _split(c - 1 - rest, c, 1)  # type: ignore[arg-type]
    if isinstance(rest_, Dim) and _scales(rest_) < _scales(rest):
        return outer - outer_ - _nested(rest_, c, _normal_floordiv)
    return outer + _nested(rest, c, _normal_floordiv)


def _scales(a: Dim) -> list[int]:
    return [scale for scale, atoms in a._terms if atoms] + [_constant(a)]


def divides(c: DimLike, a: DimLike) -> bool | None:
    """True if `a` is always a multiple of `c`, False if never, None if unknown."""
    if isinstance(c, Dim):
        return True if exact_div(a, c) is not None else None
    return equal(a if c == 0 else a % c, 0)


def exact_div(a: DimLike, b: DimLike) -> DimLike | None:
    """The polynomial q with q*b = a, or None if there is none (or b is 0)."""
    divisor = terms(b)
    if not divisor:
        return None
    lead, lead_atoms = divisor[0]
    quotient: list[DimLike] = []
    while parts := terms(a):
        scale, atoms = parts[0]
        left = list(atoms)
        for atom in lead_atoms:
            if atom not in left:
                return None
            left.remove(atom)
        if scale % lead:
            return None
        step = _build({tuple(left): scale // lead})
        quotient.append(step)
        smaller = a - step * b
        if isinstance(smaller, Dim) and _rank(smaller._terms[0][1]) <= _rank(atoms):
            return None  # a Mod was recombined, which is no step of a long division
        a = smaller
    return _sum(quotient)


def solve(a: DimLike) -> tuple[Symbol, int, int] | None:
    """(symbol, scale, offset) if `a` is scale*symbol + offset: symbol = (extent - offset)/scale."""
    parts = [(scale, atoms) for scale, atoms in terms(a) if atoms]
    if len(parts) != 1 or len(parts[0][1]) != 1 or not isinstance(parts[0][1][0], Symbol):
        return None
    return parts[0][1][0], parts[0][0], _constant(a)


# ---- symbols and values ------------------------------------------------------------------------


def _parts(atom: Atom) -> tuple[DimLike, ...]:
    if isinstance(atom, Symbol):
        return ()
    return atom.args if isinstance(atom, Min | Max) else (atom.num, atom.den)


@cache
def symbols(a: DimLike) -> tuple[Symbol, ...]:
    """The symbols in `a`, each once, by name."""
    found: set[Symbol] = set()
    for atom in {atom for _, atoms in terms(a) for atom in atoms}:
        found.update([atom] if isinstance(atom, Symbol) else ())
        found.update(inner for part in _parts(atom) for inner in symbols(part))
    return tuple(sorted(found, key=lambda s: (s.name, s.lower)))


def substitute(a: DimLike, values: Mapping[str, DimLike]) -> DimLike:
    """`a` with symbols replaced by name; those that are not in `values` stay."""

    def replaced(atom: Atom) -> DimLike:
        if isinstance(atom, Symbol):
            return values[atom.name] if atom.name in values else _atom(atom)
        parts = [substitute(part, values) for part in _parts(atom)]
        return _OPERATIONS[type(atom)](*parts)

    if not any(s.name in values for s in symbols(a)):
        return a
    return _sum(product((scale, *map(replaced, atoms))) for scale, atoms in terms(a))


_OPERATIONS: dict[type, Callable[..., DimLike]] = {
    FloorDiv: _floordiv,
    Mod: _mod,
    Min: min_,
    Max: max_,
}


def evaluate(a: DimLike, values: Mapping[str, int]) -> int:
    """The value of `a`; KeyError names a missing symbol, ZeroDivisionError a zero divisor."""
    total = 0
    for scale, atoms in terms(a):
        for atom in atoms:
            scale *= _evaluate_atom(atom, values)
        total += scale
    return total


def _evaluate_atom(atom: Atom, values: Mapping[str, int]) -> int:
    if isinstance(atom, Symbol):
        return int(values[atom.name])
    parts = [evaluate(part, values) for part in _parts(atom)]
    if isinstance(atom, Min | Max):
        return min(parts) if isinstance(atom, Min) else max(parts)
    return parts[0] // parts[1] if isinstance(atom, FloorDiv) else parts[0] % parts[1]


# ---- text --------------------------------------------------------------------------------------


def _plain_name(s: Symbol) -> str:
    is_plain = _NAME.fullmatch(s.name) and s.name not in ("min", "max")
    return s.name if is_plain else f"`{s.name}`"


def _key_name(s: Symbol) -> str:
    return f"{_plain_name(s)}>={s.lower}" if s.lower else _plain_name(s)


def _atom_text(atom: Atom, name: Callable[[Symbol], str]) -> str:
    if isinstance(atom, Symbol):
        return name(atom)
    # Keys of compound atoms start with a character above letters: symbols come first in a sum.
    mark = "~" if name is _key_name else ""
    if isinstance(atom, Min | Max):
        kind = "min" if isinstance(atom, Min) else "max"
        return f"{mark}{kind}({', '.join(_text(arg, name) for arg in atom.args)})"
    sign = "//" if isinstance(atom, FloorDiv) else " % "
    return mark + sign.join(_operand_text(part, name) for part in (atom.num, atom.den))


def _operand_text(a: DimLike, name: Callable[[Symbol], str]) -> str:
    text = _text(a, name)
    is_bare = isinstance(_single(a), Symbol | Min | Max) or (not isinstance(a, Dim) and a >= 0)
    return text if is_bare else f"({text})"


def _text(a: DimLike, name: Callable[[Symbol], str]) -> str:
    if not isinstance(a, Dim):
        return str(a)
    text = ""
    for scale, atoms in a._terms:
        is_first = not text
        factors = [str(abs(scale))] if abs(scale) != 1 or not atoms else []
        is_alone = not factors and len(atoms) == 1 and not (is_first and scale < 0)
        for atom in atoms:
            factor = _atom_text(atom, name)
            needs_parentheses = isinstance(atom, FloorDiv | Mod) and not is_alone
            factors.append(f"({factor})" if needs_parentheses else factor)
        sign = ("-" if scale < 0 else "") if is_first else (" - " if scale < 0 else " + ")
        text += sign + "*".join(factors)
    return text


def parse(text: str, lowers: Mapping[str, int] | None = None) -> DimLike:
    """The expression written in `text`, as `str` writes it; `lowers` gives symbols' lower bounds.

    Raises ValueError with the position if the text is not an expression.
    """
    tokens: list[tuple[str, str, int]] = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"not an expression at character {at} of {text!r}")
        number, quoted, plain, sign = match.groups()
        if sign or (plain in ("min", "max")):
            tokens.append(("sign", sign or plain, at))
        else:
            tokens.append(("number", number, at) if number else ("name", quoted or plain, at))
        at = match.end()
    tokens.append(("end", "", len(text)))
    parser = _Parser(text, tokens, lowers or {})
    found = parser.total()
    parser.expect("")
    return found


class _Parser:
    """Recursive descent over tokens (kind, text, position), the last of kind "end"."""

    def __init__(
        self, text: str, tokens: list[tuple[str, str, int]], lowers: Mapping[str, int]
    ) -> None:
        self.text = text
        self.rest = tokens[::-1]
        self.lowers = lowers

    def take(self, *signs: str) -> str | None:
        kind, text, _ = self.rest[-1]
        if kind in ("sign", "end") and text in signs:
            if kind == "sign":
                self.rest.pop()
            return text
        return None

    def expect(self, sign: str) -> None:
        if self.take(sign) is None:
            raise ValueError(f"not an expression at character {self.rest[-1][2]} of {self.text!r}")

    def total(self) -> DimLike:
        value = self.factors()
        while sign := self.take("+", "-"):
            other = self.factors()
            value = value + other if sign == "+" else value - other
        return value

    def factors(self) -> DimLike:
        value = self.unary()
        while sign := self.take("*", "//", "%"):
            other = self.unary()
            value = value * other if sign == "*" else _OPERATIONS[_DIVISIONS[sign]](value, other)
        return value

    def unary(self) -> DimLike:
        if self.take("-"):
            return -self.unary()
        if self.take("("):
            value = self.total()
            self.expect(")")
            return value
        if kind := self.take("min", "max"):
            return self.call(min_ if kind == "min" else max_)
        kind, text, _ = self.rest[-1]
        if kind == "number":
            self.rest.pop()
            return int(text)
        if kind != "name":
            self.expect("a number, a name or a parenthesis")
        self.rest.pop()
        return symbol(text, self.lowers.get(text, 0))

    def call(self, function: Callable[..., DimLike]) -> DimLike:
        self.expect("(")
        args = [self.total()]
        while self.take(","):
            args.append(self.total())
        self.expect(")")
        return function(*args)


_DIVISIONS: dict[str, type] = {"//": FloorDiv, "%": Mod}
