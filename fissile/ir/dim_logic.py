"""Truncation, signs, truth and broadcasting as extents: what shape arithmetic needs beside `//`.

In: extents. Out: extents; a truth is 1 or 0. Invariant: each is exact for all values of the symbols,
negative intermediate results included, and a plain number wherever a bound settles it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache

from fissile.ir.dim import (
    Dim,
    DimLike,
    Max,
    Min,
    Symbol,
    equal,
    less_equal,
    lower_bound,
    max_,
    min_,
    substitute,
    symbol,
    symbols,
    terms,
    upper_bound,
)
from fissile.ir.dim_terms import single

_MOST = 1 << 28  # of a size, stride or dilation


def is_natural(a: DimLike) -> bool:
    """Whether a >= 0 is proved."""
    low = lower_bound(a)
    return low is not None and low >= 0


def quotient(a: DimLike, b: DimLike) -> DimLike:
    """a / b rounded towards zero. ZeroDivisionError for the number 0, which no other divisor is assumed to be.

    >>> from fissile.ir.dim import symbol
    >>> s = symbol("s")
    >>> str(quotient(s + 1, 2)), str(quotient(s - 1, 2)), quotient(-7, 2)
    ('(s + 1)//2', 'max(s - 1, 0)//2', -3)
    """
    if not is_natural(b):
        if is_natural(-b):
            return -quotient(a, -b)
        return sign(b) * _by_natural(a, magnitude(b))
    return _by_natural(a, b)


def _by_natural(a: DimLike, b: DimLike) -> DimLike:
    if is_natural(a):
        return a // b
    return max_(a, 0) // b - max_(-a, 0) // b


def remainder(a: DimLike, b: DimLike) -> DimLike:
    """What `quotient` leaves: it has the sign of a."""
    return a % b if is_natural(a) and is_natural(b) else a - b * quotient(a, b)


def magnitude(a: DimLike) -> DimLike:
    """|a|."""
    return max_(a, -a)


def sign(a: DimLike) -> DimLike:
    """-1, 0 or 1."""
    return max_(min_(a, 1), -1)


def at_most(a: DimLike, b: DimLike) -> DimLike:
    """Whether a <= b.

    >>> from fissile.ir.dim import symbol
    >>> h = symbol("h")
    >>> at_most(0, h), at_most(h + 1, h), str(at_most(h, 4))
    (1, 0, 'min(max(-h + 5, 0), 1)')
    """
    verdict = less_equal(a, b)
    return min_(max_(b - a + 1, 0), 1) if verdict is None else int(verdict)


def same(a: DimLike, b: DimLike) -> DimLike:
    """Whether a == b."""
    verdict = equal(a, b)
    return 1 - min_(magnitude(a - b), 1) if verdict is None else int(verdict)


def choice(truth: DimLike, a: DimLike, b: DimLike) -> DimLike:
    """a where `truth` is 1, b where it is 0."""
    if not isinstance(truth, Dim):
        return a if truth else b
    return a if equal(a, b) is True else b + truth * (a - b)


# ---- broadcasting --------------------------------------------------------------------------------

_BOUNDS = (1, 2, 3, 5, 9, 17, 33)  # below them the values of a single symbol are tried one by one
_MOST_SYMBOLS = 3
Claim = Callable[[DimLike, DimLike], bool]


def joined(a: DimLike, b: DimLike) -> DimLike:
    """What two extents, of which one may be 1, broadcast to: 0 where one is 0, else the larger.

    >>> from fissile.ir.dim import symbol
    >>> n, m = symbol("n"), symbol("m")
    >>> joined(n, min_(n, 1)) is n, joined(n, min_(n, 9)) is n
    (True, True)
    >>> str(joined(n, m)), joined(joined(n, m), n) is joined(m, n)
    ('max(m, n)*min(m, n, 1)', True)
    """
    if repeats(a, b):
        return b
    if repeats(b, a):
        return a
    args = dict.fromkeys((*_joined_args(a), *_joined_args(b)))
    whole = max_(*args)
    at_least = min_(whole, 1)  # what is proved to be that large is 0 only with the maximum
    return whole * min_(1, *(x for x in args if less_equal(at_least, x) is not True))


def _joined_args(a: DimLike) -> tuple[DimLike, ...]:
    """The extents that `a` was joined of, else itself."""
    parts = terms(a)
    atoms = parts[0][1] if len(parts) == 1 and parts[0][0] == 1 else ()
    largest = [x.args for x in atoms if isinstance(x, Max)]
    least = [x.args for x in atoms if isinstance(x, Min)]
    if len(largest) != 1 or len(largest) + len(least) != len(atoms) or len(least) > 1:
        return (a,)
    args = largest[0]
    floor = 1 - len(least)  # without a minimum none of them is 0
    is_joined = all((lower_bound(x) or 0) >= floor and is_natural(x) for x in args)
    is_joined &= all(1 in rest and {*rest} <= {1, *args} for rest in least)
    return args if is_joined else (a,)


def repeats(have: DimLike, want: DimLike) -> bool:
    """Whether `have` is proved to be 1 or `want`, whatever the symbols are."""
    return _holds(_is_one_or, have, want)


def is_one_only_within(have: DimLike, want: DimLike) -> bool:
    """Whether `have` is proved to be 1 only where `want` is at most 1, so that it is never repeated."""
    return _holds(_is_never_repeated, have, want)


def is_one_only_with(have: DimLike, want: DimLike) -> bool:
    """Whether `have` is proved to be 1 only where `want` is 1, too: nothing of it is repeated, or left out."""
    return _holds(_is_one_too, have, want)


def repeating(have: DimLike, want: DimLike) -> DimLike:
    """By what an index is multiplied that reads `have` elements as `want` of them: 0, 1, or either at run time."""
    high = upper_bound(have)
    if high is not None and high <= 1:
        return 0
    return 1 if is_one_only_within(have, want) else min_(have - 1, 1)


def _is_one_or(have: DimLike, want: DimLike) -> bool:
    return equal(have, 1) is True or equal(have, want) is True


def _is_one_too(have: DimLike, want: DimLike) -> bool:
    return (
        equal(have, 1) is False
        or equal(have, want) is True
        or equal(want, 1) is True
        or _no_case_is_repeated(have, want)
    )


def _is_never_repeated(have: DimLike, want: DimLike) -> bool:
    return less_equal(want, 1) is True or _is_one_too(have, want)


def _no_case_is_repeated(have: DimLike, want: DimLike) -> bool:
    atom = single(have)
    return isinstance(atom, Min | Max) and all(
        equal(arg, want) is True or equal(arg, 1) is False for arg in atom.args
    )


@cache
def _holds(claim: Claim, have: DimLike, want: DimLike) -> bool:
    """Whether a claim is proved: at once, or for small values of the symbols and for all others."""
    if claim(have, want):
        return True
    found = tuple({s: None for d in (have, want) for s in symbols(d)})
    if not 0 < len(found) <= _MOST_SYMBOLS:
        return False
    bounds = _BOUNDS if len(found) == 1 else _BOUNDS[:1]
    return any(_holds_by_cases(claim, have, want, found, bound) for bound in bounds)


def _holds_by_cases(
    claim: Claim, have: DimLike, want: DimLike, found: Sequence[Symbol], bound: int
) -> bool:
    if not found:
        return claim(have, want)
    first, *rest = found
    try:
        for value in (symbol(first.name, max(bound, first.lower)), *range(first.lower, bound)):
            one, other = (substitute(d, {first.name: value}) for d in (have, want))
            if not _holds_by_cases(claim, one, other, rest, bound):
                return False
    except ZeroDivisionError:
        return False
    return True


def check_positive(what: str, *lists: Iterable[DimLike]) -> None:
    """ValueError where sizes, strides or dilations of `what` are known and below 1, or beyond all images."""
    known = [d for each in lists for d in each if isinstance(d, int)]
    if min(known, default=1) < 1 or max(known, default=1) > _MOST:
        raise ValueError(f"{what} of sizes, strides and dilations {known}")
