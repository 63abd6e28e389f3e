"""Drawn calls of a model: shapes for its free dimensions, and arrays of two magnitudes.

In: an executable, wishes about dimensions, a seed. Out: `Draw`s. Free dimensions start at 1, then are
odd and unlike, with multiples of 32 between them for images. Invariant: the same seed gives the same draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fissile.compare.feeds import complete_feeds, low_ends
from fissile.errors import InvalidFeed
from fissile.runtime.bind import bind_extents
from fissile.runtime.executable import Executable
from fissile.runtime.plan import Symbol, TensorInfo

Array = np.ndarray[Any, np.dtype[Any]]
Ranges = Mapping[str, Any]
LARGE = 100.0
TRIES = 24
ODD = (2, 3, 4, 5, 7, 9, 11, 13, 17)
WIDE = (32, 64, 96, 128, 160)
MOST_ELEMENTS = 1 << 20  # of one input, or six times what it has at the first turn


@dataclass(frozen=True, eq=False)
class Draw:
    """One call: `label` says shape and magnitude, `factor` the tolerance's multiple that goes with it."""

    label: str
    feeds: dict[str, Array]
    factor: float = 1.0

    def enlarged(self) -> Draw:
        """The same with floats LARGE times as large: exponentials overflow where nobody took care."""
        feeds = {
            name: array * array.dtype.type(LARGE) if array.dtype.kind == "f" else array
            for name, array in self.feeds.items()
        }
        return Draw(f"{self.label}, x{LARGE:g}", feeds, 10 * self.factor)


def draws(executable: Executable, ranges: Ranges, seed: int) -> Iterator[Draw]:
    """Draws at ever other shapes; one when the model has no free dimension."""
    free = executable.program.plan.symbols
    rng = np.random.default_rng(seed)
    seen: set[tuple[int, ...]] = set()
    most = MOST_ELEMENTS
    for turn in range(TRIES if free else 1):
        sizes = {s.name: _size(s, executable.inputs, ranges, turn, rng) for s in free}
        shapes = _shapes(executable, sizes)
        if shapes is None or tuple(sizes.values()) in seen:
            continue
        seen.add(tuple(sizes.values()))
        largest = max((int(np.prod(shape)) for shape in shapes), default=0)
        most = max(most, 6 * largest) if turn == 0 else most
        if largest <= most:
            infos = [
                TensorInfo(info.name, info.dtype, shape)
                for info, shape in zip(executable.inputs, shapes, strict=True)
            ]
            said = ", ".join(f"{name}={n}" for name, n in sizes.items()) or "as declared"
            yield Draw(said, complete_feeds(infos, {}, {}, seed + turn))


def given(executable: Executable, feeds: Mapping[str, Array], extents: Ranges, seed: int) -> Draw:
    """One call with arrays that the user gave; those missing are drawn."""
    complete = complete_feeds(executable.inputs, feeds, low_ends(extents), seed)
    return Draw("the inputs given", complete)


def _size(
    symbol: Symbol,
    inputs: Sequence[TensorInfo],
    ranges: Ranges,
    turn: int,
    rng: np.random.Generator,
) -> int:
    """A number for a free dimension at a turn: 1, then odd ones, then (and alternating) wide ones for images."""
    low, high = _range(symbol, inputs, ranges)
    is_image = len(inputs[symbol.input].shape) == 4 and symbol.axis >= 2
    choices = WIDE if is_image and turn % 2 == 1 else ODD
    drawn = int(rng.choice(choices))
    if turn == 0:
        drawn = max(WIDE[1] if is_image else 1, low)
    if high is None:
        return max(drawn, low)
    return drawn if low <= drawn <= high else int(rng.integers(low, high + 1))


def _range(symbol: Symbol, inputs: Sequence[TensorInfo], ranges: Ranges) -> tuple[int, int | None]:
    wish = ranges.get(symbol.name)
    own = ranges.get(inputs[symbol.input].name)
    if wish is None and isinstance(own, list) and symbol.axis < len(own):
        wish = own[symbol.axis]
    if isinstance(wish, tuple):
        return wish
    return (wish, wish) if isinstance(wish, int) else (1, None)


def _shapes(executable: Executable, sizes: Mapping[str, int]) -> list[tuple[int, ...]] | None:
    """The inputs' shapes; None where they contradict what the model says of its inputs."""
    try:
        return list(bind_extents(executable.program, sizes).inputs)
    except InvalidFeed:
        return None
