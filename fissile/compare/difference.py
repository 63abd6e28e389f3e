"""How far two arrays that should be equal are apart.

In: what was expected and what was found, and perhaps how far rounding alone moves what is expected.
Out: a `Difference`: the largest absolute one, and that over the largest finite magnitude expected.
Invariant: a NaN or an infinity at a place where the other has none is a difference without measure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Difference:
    """max_abs: largest difference of finite elements; max_rel: that over the largest finite magnitude.

    reason: why they cannot be compared number by number ("" when they can).
    """

    max_abs: float
    max_rel: float
    reason: str = ""

    def within(self, tolerance: float) -> bool:
        """Whether they agree, up to `tolerance` times the largest finite magnitude."""
        return not self.reason and self.max_rel <= tolerance


def difference(expected: Array, found: Array, noise: Array | None = None) -> Difference:
    """`found` against `expected`; integers and bools are compared as numbers.

    noise: per element, what is no difference yet; infinite where the element is worth nothing.
    """
    if expected.shape != found.shape:
        return _unlike(f"shape {list(found.shape)} instead of {list(expected.shape)}")
    if expected.dtype != found.dtype:
        return _unlike(f"{found.dtype} instead of {expected.dtype}")
    want, have = np.asarray(expected, np.float64), np.asarray(found, np.float64)
    finite = np.isfinite(want)
    scale = float(np.abs(want[finite]).max(initial=0.0))
    if noise is not None:
        want, have, finite = _without(want, have, noise)
    special = ~finite | ~np.isfinite(have)
    if not np.array_equal(want[special], have[special], equal_nan=True):
        place = np.argwhere(special & ~((want == have) | (np.isnan(want) & np.isnan(have))))[0]
        at = tuple(place.tolist())
        return _unlike(f"{have[at]} instead of {want[at]} at {list(at)}")
    gap = float(np.abs(want[finite] - have[finite]).max(initial=0.0))
    if gap == 0.0:
        return Difference(0.0, 0.0)
    return Difference(gap, gap / scale if scale > 0 else math.inf)


def worst(expected: dict[str, Array], found: dict[str, Array]) -> Difference:
    """The largest difference over all outputs."""
    rows = [difference(expected[name], found[name]) for name in expected if name in found]
    unlike = [row for row in rows if row.reason]
    if unlike:
        return unlike[0]
    return max(rows, key=lambda row: row.max_rel, default=Difference(0.0, 0.0))


def _without(want: Array, have: Array, noise: Array) -> tuple[Array, Array, Array]:
    """Both arrays with the noise taken off their distance, and where the first is finite then."""
    with np.errstate(invalid="ignore"):  # infinities of one sign
        near = np.abs(want - have) <= noise
        nearer = have + np.clip(want - have, -noise, noise)
    kept = np.where(np.isfinite(want) & np.isfinite(have), nearer, have)
    kept = np.where(near | np.isinf(noise), want, kept)
    return want, kept, np.isfinite(want)


def _unlike(reason: str) -> Difference:
    return Difference(math.inf, math.inf, reason)
