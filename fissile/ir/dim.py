"""Symbolic dimensions: integer expressions with one canonical form (design 3.2).

In: symbols (non-negative integers with a lower bound) combined by + - * // % min max, and by float
computations that are truncated. Out: a `Dim`, or a plain `int` whenever the value is constant. A
Dim is a polynomial with integer coefficients over atoms (`Symbol`, `FloorDiv`, `Mod`, `Min`, `Max`, `Truncated`).
Invariant: Dims are interned, so `is`, `==` and `hash` agree; `equal` and `less_equal` prove, refute
or answer None (unknown), and never lie. `//` and `%` round like Python's, and a divisor is assumed
not to be zero; where it is, the value is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache

from fissile.ir.dim_float import evaluate_steps, is_natural
from fissile.ir.dim_terms import (
    CONSTRUCTORS,
    Atom,
    Dim,
    DimLike,
    FloorDiv,
    Max,
    Min,
    Mod,
    Monomial,
    Symbol,
    Truncated,
    build,
    constant,
    content,
    exact_div,
    of_atom,
    parse,
    parts_of,
    product,
    rebuilt,
    scaled_down,
    single,
    sorted_atoms,
    symbol,
    terms,
    text_of,
    total,
)

__all__ = [
    "Atom", "Dim", "DimLike", "FloorDiv", "Max", "Min", "Mod", "Symbol", "Truncated", "ceildiv",
    "constant", "content", "divides", "equal", "evaluate", "exact_div", "less_equal", "lower_bound",
    "max_", "min_", "parse", "product", "solve", "substitute", "symbol", "symbols", "terms",
    "truncated", "upper_bound",
]  # fmt: skip

_REFINEMENTS = 3  # nested case splits tried when bounding; each multiplies the work by the atoms
_WIDTH = 4  # atoms tried per split


# ---- division, min and max -----------------------------------------------------------------------


def _split(a: Dim, c: int, sign: int) -> tuple[DimLike, DimLike]:
    """(q, r) with a = c*q + r; r's constant is in [0, c), its other coefficients in (-c, c).

    With sign 0 they keep the sign they had, with sign 1 they are in [0, c) too.
    """
    outer: dict[Monomial, int] = {}
    for scale, atoms in a._terms:
        outer[atoms] = scale // c if scale > 0 or sign or not atoms else -(-scale // c)
    inner = {atoms: scale - c * outer[atoms] for scale, atoms in a._terms}
    return build(outer), build(inner)


def _floordiv(a: DimLike, b: DimLike) -> DimLike:
    if not isinstance(b, Dim):
        if b == 0:
            raise ZeroDivisionError(f"{a} // 0")
        if not isinstance(a, Dim):
            return a // b
        return _floordiv_const(a, int(b)) if b > 0 else _floordiv_const(total((-a,)), -int(b))
    quotient = exact_div(a, b)
    if quotient is not None:
        return quotient
    shared = math.gcd(*(scale for scale, _ in terms(a) + terms(b)))
    if b._terms[0][0] < 0:
        shared = -shared
    num, den = scaled_down(a, shared), scaled_down(b, shared)
    low, high = lower_bound(num), upper_bound(num - den)
    if low is not None and low >= 0 and high is not None and high < 0:
        return 0
    return of_atom(FloorDiv(num, den))


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
    shared = content(rest, c)
    if shared > 1:
        return outer + _floordiv_const(scaled_down(rest, shared), c // shared)
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
            return divide(num + atom.den * (a - scale * of_atom(atom)), atom.den * c)
    return of_atom(FloorDiv(a, c))


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
    return of_atom(Mod(a, b))


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
            return _mod_const(rest + scale * (inner.num - of_atom(inner)), c)
    if rest is not a:
        return _mod_const(rest, c)
    shared = content(rest, c)
    if shared == 1:
        return of_atom(Mod(rest, c))
    inside = _mod_const(scaled_down(rest, shared), c // shared)
    return shared * inside + constant(rest) % shared


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
        nested = single(arg)
        flat.update(dict.fromkeys(nested.args if isinstance(nested, kind) else (arg,)))
    if not flat:
        raise ValueError(f"{kind.__name__.lower()}_ of no dimension")
    kept: list[DimLike] = []
    for arg in sorted(flat, key=_arg_order):
        if not any(beats(other, arg) for other in kept):
            kept = [other for other in kept if not beats(arg, other)] + [arg]
    return kept[0] if len(kept) == 1 else of_atom(kind(tuple(kept)))


def _arg_order(a: DimLike) -> tuple[bool, str]:
    return not isinstance(a, Dim), text_of(a, is_key=True)


def truncated(steps: str, *args: DimLike) -> DimLike:
    """What the steps (`fissile.ir.dim_float`) give for `args`, rounded towards zero.

    >>> str(truncated("x0 f32 0x1.8p+0 f32 mul", symbol("h"))), truncated("x0 f32 neg", 3)
    ('trunc(`x0 f32 0x1.8p+0 f32 mul`, h)', -3)
    """
    numbers = [a for a in args if not isinstance(a, Dim)]
    if len(numbers) == len(args):
        return evaluate_steps(steps, numbers)
    evaluate_steps(steps, [1] * len(args))  # ValueError for what is no computation
    return of_atom(Truncated(steps, args))


CONSTRUCTORS.update(
    {FloorDiv: _floordiv, Mod: _mod, Min: min_, Max: max_, Truncated: truncated}
)


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


def _half(a: float) -> float:
    return -(-a // 2) if math.isfinite(a) else a


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
        low, high, middle = pick(lows), pick(highs), atom.args[0] + atom.args[1]
        # Of two the larger is at least their mean, the smaller at most: |a| is no less than 0.
        if isinstance(atom, Max):
            return max(low, _half(_lower_of(middle, 1))), high
        return low, min(high, -_half(_lower_of(-middle, 1)))
    if isinstance(atom, Truncated):
        lows, highs = zip(*(_interval(arg) for arg in atom.args), strict=True)
        return 0 if is_natural(atom.steps, lows, highs) else -math.inf, math.inf
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
    shifted: dict[Monomial, int] = {}
    for scale, atoms in a._terms:
        partial: dict[Monomial, int] = {(): scale}
        for atom in atoms:
            low = _range(atom)[0]
            grown: dict[Monomial, int] = {}
            for done, value in partial.items():
                both = sorted_atoms((*done, atom))
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
    rest = a - scale * of_atom(atom)
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
    return False if is_off or constant(a) % content(a) else None


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
    return total(
        product((scale, *(_normal_atom(atom) for atom in atoms))) for scale, atoms in a._terms
    )


def _normal_atom(atom: Atom) -> DimLike:
    if isinstance(atom, Symbol):
        return of_atom(atom)
    if isinstance(atom, Min | Max):
        sign = 1 if isinstance(atom, Min) else -1
        args = [sign * _normal(arg) for arg in atom.args]
        shift = min(constant(arg) for arg in args)
        return sign * (min_(*(arg - shift for arg in args)) + shift)
    if isinstance(atom, Truncated):
        return truncated(atom.steps, *map(_normal, atom.args))
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
    shared = content(rest, c)
    if shared > 1:
        return outer + _normal_floordiv(scaled_down(rest, shared), c // shared)
    outer_, rest_ = _split(c - 1 - rest, c, 1)  # type: ignore[arg-type]
    if isinstance(rest_, Dim) and _scales(rest_) < _scales(rest):
        return outer - outer_ - _nested(rest_, c, _normal_floordiv)
    return outer + _nested(rest, c, _normal_floordiv)


def _scales(a: Dim) -> list[int]:
    return [scale for scale, atoms in a._terms if atoms] + [constant(a)]


def divides(c: DimLike, a: DimLike) -> bool | None:
    """True if `a` is always a multiple of `c`, False if never, None if unknown."""
    if isinstance(c, Dim):
        return True if exact_div(a, c) is not None else None
    return equal(a if c == 0 else a % c, 0)


def solve(a: DimLike) -> tuple[Symbol, int, int] | None:
    """(symbol, scale, offset) if `a` is scale*symbol + offset: symbol = (extent - offset)/scale."""
    parts = [(scale, atoms) for scale, atoms in terms(a) if atoms]
    if len(parts) != 1 or len(parts[0][1]) != 1 or not isinstance(parts[0][1][0], Symbol):
        return None
    return parts[0][1][0], parts[0][0], constant(a)


# ---- symbols and values --------------------------------------------------------------------------


@cache
def symbols(a: DimLike) -> tuple[Symbol, ...]:
    """The symbols in `a`, each once, by name."""
    found: set[Symbol] = set()
    for atom in {atom for _, atoms in terms(a) for atom in atoms}:
        found.update([atom] if isinstance(atom, Symbol) else ())
        found.update(inner for part in parts_of(atom) for inner in symbols(part))
    return tuple(sorted(found, key=lambda s: (s.name, s.lower)))


def substitute(a: DimLike, values: Mapping[str, DimLike]) -> DimLike:
    """`a` with symbols replaced by name; those that are not in `values` stay."""

    def replaced(atom: Atom) -> DimLike:
        if isinstance(atom, Symbol):
            return values[atom.name] if atom.name in values else of_atom(atom)
        return rebuilt(atom, [substitute(part, values) for part in parts_of(atom)])

    if not any(s.name in values for s in symbols(a)):
        return a
    return total(product((scale, *map(replaced, atoms))) for scale, atoms in terms(a))


def evaluate(a: DimLike, values: Mapping[str, int]) -> int:
    """The value of `a`; KeyError names a missing symbol. What is divided by zero is 0."""
    result = 0
    for scale, atoms in terms(a):
        for atom in atoms:
            scale *= _evaluate_atom(atom, values)
        result += scale
    return result


def _evaluate_atom(atom: Atom, values: Mapping[str, int]) -> int:
    if isinstance(atom, Symbol):
        return int(values[atom.name])
    parts = [evaluate(part, values) for part in parts_of(atom)]
    if isinstance(atom, Min | Max):
        return min(parts) if isinstance(atom, Min) else max(parts)
    if isinstance(atom, Truncated):
        return evaluate_steps(atom.steps, parts)
    if parts[1] == 0:
        return 0
    return parts[0] // parts[1] if isinstance(atom, FloorDiv) else parts[0] % parts[1]
