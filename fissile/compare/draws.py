"""Drawn calls of a model: shapes for its free dimensions, and arrays of two magnitudes.

In: an executable, wishes about dimensions, a seed. Out: `Draw`s. Free dimensions start at 1, then are
mostly odd; those of one call are unlike where there is a choice. Heights and widths are multiples of 32
in every second call. Invariant: the same seed gives the same draws, and no two are of equal shape.
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
ODD = (2, 3, 5, 7, 9, 11, 13, 17)
SIDES = (7, 13, 17, 33, 45, 61, 75, 101)  # heights and widths that are odd
WIDE = (64, 96, 32, 128, 160)
MOST_SIDE = 224  # of a height or width that has to be a multiple of something
MOST_ELEMENTS = 1 << 20  # of one input, or eight times what it has at the first turn


@dataclass(frozen=True, eq=False)
class Draw:
    """One call: `label` says shape and magnitude, `factor` the tolerance's multiple that goes with it."""

    label: str
    feeds: dict[str, Array]
    factor: float = 1.0

    @property
    def shapes(self) -> str:
        """The inputs with their shapes: `x[1,3,64,64], n[]`."""
        rows = (f"{n}[{','.join(map(str, a.shape))}]" for n, a in self.feeds.items())
        return ", ".join(rows)

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
    rows = {symbol.name: _row(symbol, executable.inputs, rng) for symbol in free}
    seen: set[tuple[int, ...]] = set()
    most = MOST_ELEMENTS
    for turn in range(TRIES if free else 1):
        sizes: dict[str, int] = {}
        for symbol in free:
            limits = _range(symbol, executable.inputs, ranges)
            taken = set(sizes.values())
            sizes[symbol.name] = _size(rows[symbol.name], turn, limits, taken, rng)
        shapes = _shapes(executable, sizes)
        if shapes is None or tuple(sizes.values()) in seen:
            continue
        seen.add(tuple(sizes.values()))
        largest = max((int(np.prod(shape)) for shape in shapes), default=0)
        most = max(most, 8 * largest) if turn == 0 else most
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


def _row(
    symbol: Symbol, inputs: Sequence[TensorInfo], rng: np.random.Generator
) -> tuple[int, ...]:
    """What a free dimension may be, turn after turn."""
    if len(inputs[symbol.input].shape) != 4 or symbol.axis < 2:
        return 1, *_shuffled(ODD, rng)
    if symbol.scale == 1:
        return _in_turns((WIDE[0], *_shuffled(WIDE[1:], rng)), _shuffled(SIDES, rng))
    wide = list(dict.fromkeys(max(1, side // symbol.scale) for side in WIDE))
    odd = [n for n in ODD if n * symbol.scale <= MOST_SIDE]
    return _in_turns((wide[0], *_shuffled(wide[1:], rng)), (1, *_shuffled(odd, rng)))


def _shuffled(choices: Sequence[int], rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(map(int, rng.permutation(choices)))


def _in_turns(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    pairs = range(max(len(first), len(second)))
    return tuple(n for k in pairs for n in (first[k % len(first)], second[k % len(second)]))


def _size(
    row: Sequence[int],
    turn: int,
    limits: tuple[int, int | None],
    taken: set[int],
    rng: np.random.Generator,
) -> int:
    """A number for a free dimension at a turn: the next of its row that no other one has in this call."""
    low, high = limits
    if turn == 0:
        return max(row[0], low) if high is None else min(max(row[0], low), high)
    turned = [row[(turn + k) % len(row)] for k in range(len(row))]
    fitting = [n for n in turned if n >= low and (high is None or n <= high)]
    if not fitting:
        return low + int(rng.integers(0, 9 if high is None else high - low + 1))
    return next((n for n in fitting if n not in taken), fitting[0])


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
