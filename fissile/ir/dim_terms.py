"""Polynomials over symbols and compound atoms: the data behind symbolic dimensions (design 3.2).

In: sums and products of symbols, and the text of an expression. Out: interned `Dim` objects, or a
plain `int` whenever the value is constant. The meaning of `//`, `%`, min and max needs bounds,
which need sums: `fissile.ir.dim`, the module to import from, fills the table `CONSTRUCTORS`.
Invariant: the terms of a Dim are sorted and non-zero, and one such tuple is one object.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from typing import NoReturn, TypeAlias

_NAME = re.compile(r"[^\W\d][\w.]*")
_TOKEN = re.compile(r"\s*(?:(\d+)|`([^`]*)`|([^\W\d][\w.]*)|(//|[-+*%(),]))")
_LONG = 100  # characters of an atom's key before the rest is hashed


@dataclass(frozen=True, slots=True)
class _Node:
    """What the atoms share: a text `key` that identifies and orders them, cached for hashing."""

    key: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", _key(self))  # type: ignore[arg-type]


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


@dataclass(frozen=True, slots=True)
class Truncated(_Node):
    """What a computation in floats gives, rounded towards zero: `steps` over `args`.

    steps: words in reverse Polish order, as `fissile.ir.dim_float` reads them.
    """

    steps: str
    args: tuple[DimLike, ...]

    def __hash__(self) -> int:
        return hash(self.key)


Atom: TypeAlias = Symbol | FloorDiv | Mod | Min | Max | Truncated
Monomial: TypeAlias = tuple[Atom, ...]
Terms: TypeAlias = tuple[tuple[int, Monomial], ...]


class Dim:
    """A non-constant integer expression; build with `symbol`, `parse` and operators only."""

    __slots__ = ("_terms",)
    __array_ufunc__ = None  # numpy integers then leave arithmetic to the reflected operators
    _terms: Terms

    def __add__(self, other: DimLike) -> DimLike:
        return total((self, other))

    def __sub__(self, other: DimLike) -> DimLike:
        return total((self, -other))

    def __rsub__(self, other: DimLike) -> DimLike:
        return total((other, -self))

    def __neg__(self) -> DimLike:
        # Negation keeps the order of terms and the absence of zeros.
        return intern(tuple((-scale, atoms) for scale, atoms in self._terms))

    def __mul__(self, other: DimLike) -> DimLike:
        poly: dict[Monomial, int] = {}
        for scale, atoms in self._terms:
            for scale_, atoms_ in terms(other):
                both = sorted_atoms(atoms + atoms_) if atoms and atoms_ else atoms or atoms_
                poly[both] = poly.get(both, 0) + scale * scale_
        return build(poly)

    __radd__, __rmul__ = __add__, __mul__

    def __floordiv__(self, other: DimLike) -> DimLike:
        return CONSTRUCTORS[FloorDiv](self, other)

    def __rfloordiv__(self, other: DimLike) -> DimLike:
        return CONSTRUCTORS[FloorDiv](other, self)

    def __mod__(self, other: DimLike) -> DimLike:
        return CONSTRUCTORS[Mod](self, other)

    def __rmod__(self, other: DimLike) -> DimLike:
        return CONSTRUCTORS[Mod](other, self)

    def __bool__(self) -> NoReturn:
        raise TypeError(f"the truth of the symbolic dimension {self} is unknown; use equal()")

    def __str__(self) -> str:
        return text_of(self)

    def __repr__(self) -> str:
        return f"Dim({self})"

    def __copy__(self) -> Dim:
        return self

    def __deepcopy__(self, memo: object) -> Dim:
        return self


DimLike: TypeAlias = int | Dim

# Strong references: a Dim is small, and a weak table would cost more than the arithmetic.
_TABLE: dict[Terms, Dim] = {}
_NAMES: dict[type, str] = {Min: "min", Max: "max", Truncated: "trunc"}
_FUNCTIONS = {name: kind for kind, name in _NAMES.items()}


def symbol(name: str, lower: int = 0) -> Dim:
    """The dimension called `name` (any text without a backtick), at least `lower` >= 0.

    >>> from fissile.ir.dim import symbol
    >>> h = symbol("h", lower=1)
    >>> str((4 * h + 3) // 2 - 1), 2 * h // 2 is h
    ('2*h', True)
    """
    if not name or "`" in name:
        raise ValueError(f"not a name of a dimension: {name!r}")
    return of_atom(Symbol(name, lower))


def terms(a: DimLike) -> Terms:
    """The sum `a` as (coefficient, atoms multiplied); the constant comes last, with no atoms."""
    if isinstance(a, Dim):
        return a._terms
    return ((int(a), ()),) if a else ()


# How each compound atom is built from its simplified parts.
CONSTRUCTORS: dict[type, Callable[..., DimLike]] = {}


# ---- construction --------------------------------------------------------------------------------


def intern(key: Terms) -> Dim:
    """The one Dim of sorted, non-zero, not constant terms."""
    found = _TABLE.get(key)
    if found is None:
        fresh = Dim.__new__(Dim)
        fresh._terms = key
        found = _TABLE.setdefault(key, fresh)
    return found


def of_atom(atom: Atom) -> Dim:
    """The atom as a Dim."""
    return intern(((1, (atom,)),))


def sorted_atoms(atoms: Monomial) -> Monomial:
    """The order of the factors of a product."""
    return tuple(sorted(atoms, key=lambda atom: atom.key))


@cache
def rank(atoms: Monomial) -> tuple[int, list[str]]:
    """Sort key of terms: graded lexicographic, a monomial order, so that division terminates."""
    return -len(atoms), [atom.key for atom in atoms]


def build(poly: dict[Monomial, int]) -> DimLike:
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
    return intern(tuple((kept[atoms], atoms) for atoms in sorted(kept, key=rank)))


def _recombined(poly: dict[Monomial, int], mod: Mod, scale: int) -> DimLike | None:
    """k*(n % c) + k*c*(n//c) -> k*n, if the sum holds both."""
    quotient = terms(CONSTRUCTORS[FloorDiv](mod.num, mod.den))
    if len(quotient) != 1 or not isinstance(mod.den, int):
        return None
    unit, atoms = quotient[0]
    if len(atoms) != 1 or poly.get(atoms) != scale * mod.den or unit != 1:
        return None
    rest = {k: v for k, v in poly.items() if k != atoms and k != (mod,)}
    return build(rest) + scale * mod.num


def total(parts: Iterable[DimLike]) -> DimLike:
    """The sum; 0 for no part."""
    poly: dict[Monomial, int] = {}
    for part in parts:
        for scale, atoms in terms(part):
            poly[atoms] = poly.get(atoms, 0) + scale
    return build(poly)


def product(dims: Iterable[DimLike]) -> DimLike:
    """The product; 1 for no dimension."""
    result: DimLike = 1
    for dim in dims:
        result = result * dim
    return result


def content(a: DimLike, start: int = 0) -> int:
    """The greatest common divisor of `start` and the coefficients of all but the constant."""
    return math.gcd(start, *(scale for scale, atoms in terms(a) if atoms))


def constant(a: DimLike) -> int:
    """The constant term."""
    last = terms(a)[-1:]
    return last[0][0] if last and not last[0][1] else 0


def scaled_down(a: DimLike, c: int) -> DimLike:
    """Each coefficient divided by `c` and the constant rounded down: `a // c` if c | content."""
    return build({atoms: scale // c for scale, atoms in terms(a)})


def single(a: DimLike) -> Atom | None:
    """The atom that `a` consists of, if it is one."""
    parts = terms(a)
    if len(parts) == 1 and parts[0][0] == len(parts[0][1]) == 1:
        return parts[0][1][0]
    return None


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
        step = build({tuple(left): scale // lead})
        quotient.append(step)
        smaller = a - step * b
        if isinstance(smaller, Dim) and rank(smaller._terms[0][1]) <= rank(atoms):
            return None  # a Mod was recombined, which is no step of a long division
        a = smaller
    return total(quotient)


def parts_of(atom: Atom) -> tuple[DimLike, ...]:
    """The expressions directly inside an atom, as its constructor takes them."""
    if isinstance(atom, Symbol):
        return ()
    return atom.args if isinstance(atom, Min | Max | Truncated) else (atom.num, atom.den)


def rebuilt(atom: Atom, parts: Iterable[DimLike]) -> DimLike:
    """The atom, which is no symbol, of other parts."""
    own = (atom.steps,) if isinstance(atom, Truncated) else ()
    return CONSTRUCTORS[type(atom)](*own, *parts)


# ---- text --------------------------------------------------------------------------------------


def _plain_name(s: Symbol) -> str:
    is_plain = _NAME.fullmatch(s.name) and s.name not in _FUNCTIONS
    return s.name if is_plain else f"`{s.name}`"


def _atom_text(atom: Atom, is_key: bool) -> str:
    if isinstance(atom, Symbol):
        bound = f">={atom.lower}" if is_key and atom.lower else ""
        return _plain_name(atom) + bound
    if isinstance(atom, Min | Max | Truncated):
        own = [f"`{atom.steps}`"] if isinstance(atom, Truncated) else []
        texts = own + [text_of(arg, is_key) for arg in atom.args]
        return f"{_NAMES[type(atom)]}({', '.join(texts)})"
    sign = "//" if isinstance(atom, FloorDiv) else " % "
    return sign.join(_operand_text(part, is_key) for part in (atom.num, atom.den))


def _key(atom: Atom) -> str:
    """The text of an atom with the lower bounds of its symbols, shortened where it is long."""
    text = _atom_text(atom, is_key=True)
    if isinstance(atom, Symbol):
        return text
    if len(text) > _LONG:
        # Shared parts make the text of an expression exponentially longer than the expression.
        text = f"{text[:_LONG]}#{blake2b(text.encode(), digest_size=16).hexdigest()}"
    return f"~{text}"  # above letters: symbols come first in a sum


def _operand_text(a: DimLike, is_key: bool) -> str:
    text = text_of(a, is_key)
    is_bare = isinstance(single(a), Symbol | Min | Max | Truncated) or (not isinstance(a, Dim) and a >= 0)
    return text if is_bare else f"({text})"


def text_of(a: DimLike, is_key: bool = False) -> str:
    """The expression as `parse` reads it, or with `is_key` a short text that tells all apart."""
    if not isinstance(a, Dim):
        return str(a)
    text = ""
    for scale, atoms in a._terms:
        is_first = not text
        factors = [str(abs(scale))] if abs(scale) != 1 or not atoms else []
        is_alone = not factors and len(atoms) == 1 and not (is_first and scale < 0)
        for atom in atoms:
            factor = atom.key if is_key else _atom_text(atom, is_key=False)
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
        if sign or plain in _FUNCTIONS:
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
            value = value * other if sign == "*" else CONSTRUCTORS[_DIVISIONS[sign]](value, other)
        return value

    def unary(self) -> DimLike:
        if self.take("-"):
            return -self.unary()
        if self.take("("):
            value = self.total()
            self.expect(")")
            return value
        if kind := self.take(*_FUNCTIONS):
            return self.call(_FUNCTIONS[kind])
        kind, text, _ = self.rest[-1]
        if kind == "number":
            self.rest.pop()
            return int(text)
        if kind != "name":
            self.expect("a number, a name or a parenthesis")
        self.rest.pop()
        return symbol(text, self.lowers.get(text, 0))

    def call(self, kind: type) -> DimLike:
        self.expect("(")
        args: list[DimLike | str] = [self.steps() if kind is Truncated else self.total()]
        while self.take(","):
            args.append(self.total())
        self.expect(")")
        return CONSTRUCTORS[kind](*args)

    def steps(self) -> str:
        kind, text, _ = self.rest[-1]
        if kind != "name":
            self.expect("the steps of a computation in backticks")
        self.rest.pop()
        return text


_DIVISIONS: dict[str, type] = {"//": FloorDiv, "%": Mod}
