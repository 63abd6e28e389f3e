"""Truncation, signs, truth and broadcasting as extents: what shape arithmetic needs beside `//`.

In: extents. Out: extents; a truth is 1 or 0. Invariant: each is exact for all values of the symbols,
negative intermediate results included, and a plain number wherever a bound settles it.
"""

from __future__ import annotations

from fissile.ir.dim import (
    Dim,
    DimLike,
    equal,
    less_equal,
    lower_bound,
    max_,
    min_,
)


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
