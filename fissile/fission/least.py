"""The least numbers of free extents: those below which a kernel of the model would have nothing to cover.

In: extents of inputs that an operator refuses below some number. Out: the symbol and its least number. A call of less
is refused, as ONNX Runtime does, so nothing has to be true of it. Invariant: every smaller number breaks the demand.
What torch.export writes as truncated division, (n - 3) / 2 of a convolved length n, is then floor division.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fissile.ir.dim import Dim, DimLike, evaluate, lower_bound, min_, symbol, symbols
from fissile.ir.graph import Guard

_MOST_TRIED = 1 << 12


@dataclass(frozen=True)
class Least:
    """The least number of a symbol, and the demand that needs it."""

    name: str
    number: int
    reason: str

    def extent(self) -> DimLike:
        """The symbol, known to be that large."""
        return symbol(self.name, self.number)

    def guard(self) -> Guard:
        """What a call must fulfil."""
        text = f"the dimension {self.name} must be at least {self.number}: {self.reason}"
        return Guard(min_(symbol(self.name), self.number), self.number, text)


class Shortage(Exception):
    """A free extent of the inputs is larger than it is known to be."""

    def __init__(self, least: Least) -> None:
        super().__init__(least.name)
        self.least = least


def check_least(demands: Iterable[tuple[DimLike, int, str]], inputs: Mapping[str, int]) -> None:
    """Shortage for the first (extent, least, reason) that says more of a symbol than its least number in `inputs`."""
    for extent, least, reason in demands:
        found = _least(extent, least, inputs)
        if found is not None:
            raise Shortage(Least(*found, reason))


def _least(extent: DimLike, least: int, inputs: Mapping[str, int]) -> tuple[str, int] | None:
    """(name, number) of the only symbol in `extent`, if all smaller numbers make less than `least` of it."""
    free = symbols(extent) if isinstance(extent, Dim) else ()
    if len(free) != 1 or free[0].name not in inputs:
        return None
    low = lower_bound(extent)
    if low is not None and low >= least:
        return None
    name, known = free[0].name, free[0].lower
    for number in range(known, known + _MOST_TRIED):
        if evaluate(extent, {name: number}) >= least:
            return (name, number) if number > known else None
    return None
