"""Index arithmetic of compute definitions: affine forms over loop variables with symbolic coefficients.

In: index expressions as the primitive table writes them, over loop variables of known extent and over extents. Out: the
same indices in one canonical form, `constant + sum(coefficient * atom)` with `Dim` coefficients, where divisions by
extents have been resolved wherever the ranges prove it. An atom is a loop variable or an expression that stayed opaque.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fissile.ir import loop as L
from fissile.ir.dim import DimLike, equal, exact_div, less_equal, lower_bound
from fissile.ir.dtype import BOOL, INT64

LITERAL = 8  # extents up to this stay numbers in the code: unrolling and cheap division want them
_OPAQUE_EXTENT = (
    "extent "  # prefix of the variables that stand for an extent while indices are built
)


@dataclass(frozen=True)
class Affine:
    """constant + sum(coefficient * atom); no coefficient is zero, atoms are in first-seen order."""

    constant: DimLike
    terms: tuple[tuple[L.Expr, DimLike], ...]

    def coefficient(self, atom: L.Expr) -> DimLike:
        """The coefficient of `atom`, 0 when it does not occur."""
        return next((c for a, c in self.terms if a is atom), 0)


class Space:
    """The loop variables and their extents, and the names of symbolic extents, while a kernel is being built."""

    def __init__(self) -> None:
        self.ranges: dict[L.Var, DimLike] = {}
        self._dims: dict[L.Var, DimLike] = {}
        self._known: dict[L.Expr, Affine] = {}
        self._rebuilt: dict[L.Expr, L.Expr] = {}  # shared parts are rebuilt once, not once per path
        self._is_data: dict[L.Expr, bool] = {}

    def loop(self, name: str, extent: DimLike) -> L.Var:
        """A new loop variable running over [0, extent)."""
        variable = L.var(name)
        self.ranges[variable] = extent
        self._known.clear()
        self._rebuilt.clear()
        return variable

    def extent(self, dim: DimLike) -> L.Expr:
        """`dim` as an expression: a small number, or a variable that `affine` turns back into the extent."""
        if isinstance(dim, int):
            dim = L.wrapped(dim)
            if abs(dim) <= LITERAL:
                return L.const(dim)
        variable = L.var(_OPAQUE_EXTENT + str(dim))
        self._dims[variable] = dim
        return variable

    # ------------------------------------------------------------ analysis

    def affine(self, e: L.Expr) -> Affine:
        """The canonical form of an int64 expression."""
        found = self._known.get(e)
        if found is None:
            found = self._known[e] = self._affine(e)
        return found

    def _affine(self, e: L.Expr) -> Affine:
        if isinstance(e, L.Const):
            return Affine(int(e.value), ())
        if isinstance(e, L.Var):
            dim = self._dims.get(e)
            return Affine(dim, ()) if dim is not None else Affine(0, ((e, 1),))
        if isinstance(e, L.Op) and e.op in _RULES and not self.is_data(e):
            return _RULES[e.op](self, *(self.affine(a) for a in e.args))
        return Affine(0, ((self._inner(e), 1),))

    def is_data(self, e: L.Expr) -> bool:
        """Whether an int64 is computed from elements of tensors: it may be anything and wrap around.

        Between two bounds that are no data, it is an index like any other (a gather clamps what it reads).
        """
        found = self._is_data.get(e)
        if found is None:
            found = isinstance(e, L.Load) or (
                isinstance(e, L.Op)
                and (e.op in ("cast", "bitcast") or any(self.is_data(a) for a in e.args))
                and not self._is_clamped(e)
            )
            self._is_data[e] = found
        return found

    def _is_clamped(self, e: L.Op) -> bool:
        other = {"min": "max", "max": "min"}.get(e.op)
        inner = next((a for a in e.args if isinstance(a, L.Op) and a.op == other), None)
        if inner is None or all(self.is_data(a) for a in inner.args):
            return False
        return not any(self.is_data(a) for a in e.args if a is not inner)

    def _inner(self, e: L.Expr) -> L.Expr:
        """An opaque expression with the int64 expressions inside it made canonical."""
        if isinstance(e, L.Load):
            return L.Load(e.buffer, tuple(self.canonical(i) for i in e.index))
        if isinstance(e, L.Op):
            return self.simplify_op(e.op, tuple(self.canonical(a) for a in e.args), e)
        return e

    def bounds(self, a: Affine) -> tuple[DimLike | None, DimLike | None]:
        """(least, greatest) value as extents, None where no bound is known."""
        low: DimLike | None = a.constant
        high: DimLike | None = a.constant
        for atom, coefficient in a.terms:
            greatest = self._greatest(atom)
            if greatest is None:
                return None, None
            reach = coefficient * greatest
            if (lower_bound(coefficient) or 0) >= 0 and lower_bound(coefficient) is not None:
                high = None if high is None else high + reach
            elif lower_bound(-coefficient) is not None and (lower_bound(-coefficient) or 0) >= 0:
                low = None if low is None else low + reach
            else:
                return None, None
        return low, high

    def _greatest(self, atom: L.Expr) -> DimLike | None:
        """The greatest value of an atom whose least is known to be 0, else None."""
        if isinstance(atom, L.Var):
            extent = self.ranges.get(atom)
            return None if extent is None else extent - 1
        if not (isinstance(atom, L.Op) and atom.op == "floordiv"):
            return None
        x, by = (self.affine(e) for e in atom.args)
        low, high = self.bounds(x)
        is_counting = not by.terms and less_equal(1, by.constant) is True
        if low is None or high is None or not is_counting or less_equal(0, low) is not True:
            return None
        return high // by.constant

    def proves_in(self, a: Affine, low: DimLike, end: DimLike) -> bool:
        """Whether low <= a < end for every value of the loop variables (of loops that run at all)."""
        least, greatest = self.bounds(a)
        if least is None or greatest is None:
            return False
        return less_equal(low, least) is True and less_equal(greatest + 1, end) is True

    # ------------------------------------------------------------ construction

    def canonical(self, e: L.Expr) -> L.Expr:
        """`e` rebuilt from its canonical form if it is int64, else with its parts made canonical."""
        found = self._rebuilt.get(e)
        if found is None:
            is_index = e.dtype is INT64 and not isinstance(e, L.Load)
            found = self.build(self.affine(e)) if is_index else self._inner(e)
            self._rebuilt[e] = found
        return found

    def build(self, a: Affine, extent: Callable[[DimLike], L.Expr] | None = None) -> L.Expr:
        """The expression of an affine form; `extent` writes extents (default: as `affine` reads them)."""
        write = self.extent if extent is None else extent
        result: L.Expr | None = None
        for atom, coefficient in a.terms:
            term = atom if coefficient == 1 else L.times(atom, write(coefficient))
            result = term if result is None else L.plus(result, term)
        if result is None:
            return write(a.constant)
        return L.plus(result, write(a.constant))

    def simplify_op(self, name: str, args: tuple[L.Expr, ...], e: L.Op) -> L.Expr:
        """An operator over canonical arguments, resolved where the ranges decide a comparison or selection."""
        if name in ("lt", "ge") and args[0].dtype is INT64 and not any(map(self.is_data, args)):
            difference = _sum(self, self.affine(args[0]), self.affine(args[1]), -1)
            low, high = self.bounds(difference)
            if low is not None and less_equal(0, low) is True:
                return L.const(name == "ge", e.dtype)
            if high is not None and less_equal(high, -1) is True:
                return L.const(name == "lt", e.dtype)
        if name == "and" and e.dtype is BOOL:  # of integers it is bitwise: only ~0 leaves the other one
            kept = [a for a in args if not (isinstance(a, L.Const) and a.value)]
            if len(kept) < 2:
                return kept[0] if kept else args[0]
        if name == "select" and isinstance(args[0], L.Const):
            return args[1] if args[0].value else args[2]
        return L.Op(name, args, e.dtype)

    def finisher(self, extent: Callable[[DimLike], L.Expr]) -> Callable[[L.Expr], L.Expr]:
        """Writes every symbolic extent in an expression by `extent` (the parameters of the function)."""

        def replace(x: L.Expr) -> L.Expr | None:
            if isinstance(x, L.Var) and x in self._dims:
                return extent(self._dims[x])
            return None

        return L.mapper(replace)


def _sum(space: Space, a: Affine, b: Affine, sign: int = 1) -> Affine:
    terms: dict[L.Expr, DimLike] = dict(a.terms)
    for atom, coefficient in b.terms:
        terms[atom] = terms.get(atom, 0) + sign * coefficient
    kept = tuple((atom, c) for atom, c in terms.items() if not (isinstance(c, int) and c == 0))
    return _recombine(space, Affine(a.constant + sign * b.constant, kept))


def _recombine(space: Space, a: Affine) -> Affine:
    """(x // n) * n * k + (x % n) * k -> x * k."""
    terms = dict(a.terms)
    for atom, coefficient in a.terms:
        if not (isinstance(atom, L.Op) and atom.op == "mod"):
            continue
        x, n = (space.affine(e) for e in atom.args)
        whole = _floordiv(space, x, n)
        if n.terms or len(whole.terms) != 1 or equal(whole.constant, 0) is not True:
            continue
        part, one = whole.terms[0]
        if equal(one, 1) is True and equal(terms.get(part, 0), coefficient * n.constant) is True:
            rest = tuple((e, c) for e, c in a.terms if e is not atom and e is not part)
            return _sum(space, Affine(a.constant, rest), _scale(x, coefficient))
    return a


def _add(space: Space, a: Affine, b: Affine) -> Affine:
    return _sum(space, a, b)


def _sub(space: Space, a: Affine, b: Affine) -> Affine:
    return _sum(space, a, b, -1)


def _neg(space: Space, a: Affine) -> Affine:
    return _scale(a, -1)


def _scale(a: Affine, by: DimLike) -> Affine:
    if isinstance(by, int) and by == 0:
        return Affine(0, ())
    return Affine(a.constant * by, tuple((atom, c * by) for atom, c in a.terms))


def _mul(space: Space, a: Affine, b: Affine) -> Affine:
    if not b.terms:
        return _scale(a, b.constant)
    if not a.terms:
        return _scale(b, a.constant)
    return Affine(0, ((L.times(space.build(a), space.build(b)), 1),))


def _split(space: Space, a: Affine, by: DimLike) -> tuple[Affine, Affine]:
    """(q, r) with a = by * q + r, as much as possible in q."""
    outer: list[tuple[L.Expr, DimLike]] = []
    inner: list[tuple[L.Expr, DimLike]] = []
    for atom, coefficient in a.terms:
        share = exact_div(coefficient, by)
        (inner if share is None else outer).append((atom, coefficient if share is None else share))
    share = exact_div(a.constant, by)
    if share is None and isinstance(a.constant, int) and isinstance(by, int):
        share = a.constant // by
    whole: DimLike = 0 if share is None else share
    return Affine(whole, tuple(outer)), Affine(a.constant - whole * by, tuple(inner))


def _floordiv(space: Space, a: Affine, b: Affine) -> Affine:
    if b.terms:
        return Affine(0, ((L.quotient(space.build(a), space.build(b)), 1),))
    by = b.constant
    if equal(by, 0) is True:  # an index into an empty tensor: no loop ever computes it
        return Affine(0, ())
    if not a.terms:
        return Affine(a.constant // by, ())
    if equal(by, 1) is True:
        return a
    outer, inner = _split(space, a, by)
    if space.proves_in(inner, 0, by):
        return outer
    coarse = _coarser(space, inner, by)
    if coarse is not None:  # (step * y + part) // (step * n) = y // n for a part below the step
        _, y, _, share = coarse
        return _sum(space, outer, _floordiv(space, y, Affine(share, ())))
    nested = _quotient_of(inner)
    if nested is not None:  # (x // n) // by = x // (n * by)
        x, n = (space.affine(e) for e in nested)
        return _sum(space, outer, _floordiv(space, x, Affine(n.constant * by, ())))
    rest = Affine(0, ((L.quotient(space.build(inner), space.extent(by)), 1),))
    return _sum(space, outer, rest)


def _coarser(
    space: Space, a: Affine, by: DimLike
) -> tuple[DimLike, Affine, Affine, DimLike] | None:
    """(step, y, part, n) with a = step * y + part, 0 <= part < step and step * n = by; None if no step > 1 is seen."""
    for _, coefficient in a.terms:
        step = coefficient
        if isinstance(step, int) and isinstance(by, int):
            step = math.gcd(step, by)
        share = exact_div(by, step)
        if share is None or equal(step, 1) is True or less_equal(1, step) is not True:
            continue
        y, part = _split(space, a, step)
        if space.proves_in(part, 0, step):
            return step, y, part, share
    return None


def _quotient_of(a: Affine) -> tuple[L.Expr, L.Expr] | None:
    """(x, n) when `a` is exactly the quotient x // n of something by an extent."""
    if len(a.terms) == 1 and equal(a.constant, 0) is True:
        atom, coefficient = a.terms[0]
        if isinstance(atom, L.Op) and atom.op == "floordiv" and equal(coefficient, 1) is True:
            return atom.args[0], atom.args[1]
    return None


def _mod(space: Space, a: Affine, b: Affine) -> Affine:
    if b.terms:
        return Affine(0, ((L.remainder(space.build(a), space.build(b)), 1),))
    by = b.constant
    if equal(by, 0) is True or equal(by, 1) is True:
        return Affine(0, ())
    if not a.terms:
        return Affine(a.constant % by, ())
    _, inner = _split(space, a, by)
    if space.proves_in(inner, 0, by):
        return inner
    coarse = _coarser(space, inner, by)
    if coarse is not None:  # (step * y + part) % (step * n) = step * (y % n) + part
        step, y, part, share = coarse
        return _sum(space, _scale(_mod(space, y, Affine(share, ())), step), part)
    return Affine(0, ((L.remainder(space.build(inner), space.extent(by)), 1),))


def _clamp(name: str) -> Callable[[Space, Affine, Affine], Affine]:
    def rule(space: Space, a: Affine, b: Affine) -> Affine:
        low, high = space.bounds(_sum(space, a, b, -1))
        if high is not None and less_equal(high, 0) is True:
            return a if name == "min" else b
        if low is not None and less_equal(0, low) is True:
            return b if name == "min" else a
        return Affine(0, ((L.op(name, space.build(a), space.build(b)), 1),))

    return rule


_RULES: Mapping[str, Callable[..., Affine]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "neg": _neg,
    "floordiv": _floordiv,
    "mod": _mod,
    "min": _clamp("min"),
    "max": _clamp("max"),
}
