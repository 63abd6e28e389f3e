"""Float detours of shape arithmetic: what `Truncated` extents compute, word by word.

In: steps, words in reverse Polish order: `x0`, `x1`, .. push an argument (an integer), a number such
as `0x1.8p+0` pushes itself, `f32` and `f64` convert the top to that type, and the others are scalar
operators of the same name. Out: the value by any meaning of these words. Invariant: every operator
here is correctly rounded and monotone between its poles, so all machines and interpreters agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from fissile.ir.dtype import FLOAT32, FLOAT64, DType
from fissile.ir.scalar import SCALAR_OPS

T = TypeVar("T")
_WORD = 2.0**63  # no integer is larger

ARITY = {name: SCALAR_OPS[name].arity for name in (
    "add", "sub", "mul", "div", "min", "max", "neg", "abs", "floor", "ceil", "rint", "trunc",
)}  # fmt: skip
TYPES: dict[str, DType] = {"f32": FLOAT32, "f64": FLOAT64}
LARGEST = 1 << 40  # a result is between -LARGEST and LARGEST; NaN counts as 0


def fold(
    steps: str,
    args: Sequence[T],
    number: Callable[[float], T],
    convert: Callable[[T, DType], T],
    apply: Callable[..., T],
) -> T:
    """The value of the steps: numbers, conversions and `apply(operator, *operands)` as given.

    ValueError when the words are no such program.
    """
    stack: list[T] = []
    for word in steps.split():
        if word in TYPES:
            stack.append(convert(_popped(stack, 1, steps)[0], TYPES[word]))
        elif word in ARITY:
            stack.append(apply(word, *_popped(stack, ARITY[word], steps)))
        elif word[0] == "x" and word[1:].isdecimal() and int(word[1:]) < len(args):
            stack.append(args[int(word[1:])])
        else:
            stack.append(number(float.fromhex(word)))
    if len(stack) != 1:
        raise ValueError(f"not a computation: {steps!r}")
    return stack[0]


def _popped(stack: list[T], count: int, steps: str) -> list[T]:
    if len(stack) < count:
        raise ValueError(f"not a computation: {steps!r}")
    taken = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return taken


def computed(steps: str, args: Sequence[int]) -> np.floating[Any]:
    """What the steps give in floats, computed as written."""
    with np.errstate(all="ignore"):
        value: Any = fold(
            steps,
            list[Any](np.int64(min(max(a, -(2**63)), 2**63 - 1)) for a in args),
            np.float64,
            lambda v, to: to.numpy.type(v),
            lambda name, *xs: np.asarray(SCALAR_OPS[name].meaning(*xs))[()],
        )
    return value  # type: ignore[no-any-return]


def evaluate_steps(steps: str, args: Sequence[int]) -> int:
    """The steps computed in floats and rounded towards zero; NaN is 0, and no result beyond LARGEST."""
    value = computed(steps, args)
    if math.isnan(value):
        return 0
    return int(min(max(float(value), -LARGEST), LARGEST))


def is_natural(steps: str, lows: Sequence[float], highs: Sequence[float]) -> bool:
    """Whether the value is never negative for arguments between `lows` and `highs`.

    NaN stays NaN to the end, where it counts as 0, so that it needs no room in an interval.
    """
    ends = [(max(a, -_WORD), min(b, _WORD)) for a, b in zip(lows, highs, strict=True)]
    with np.errstate(all="ignore"):
        low, _ = fold(
            steps,
            [(np.float64(a), np.float64(b)) for a, b in ends],
            lambda v: (np.float64(v), np.float64(v)),
            lambda v, to: (to.numpy.type(v[0]), to.numpy.type(v[1])),
            _interval,
        )
    return bool(low > -1)


def _interval(name: str, *operands: tuple[Any, Any]) -> tuple[Any, Any]:
    """The interval of an operator's results that are numbers; (-inf, inf) across a pole."""
    meaning = SCALAR_OPS[name].meaning
    of, (low, high) = type(operands[0][0]), operands[0]
    if name == "abs":
        return of(max(low, -high, 0)), of(max(-low, high))
    if name == "div" and operands[1][0] <= 0 <= operands[1][1]:
        below, above = operands[1]
        is_positive = low >= 0 and below == 0 and not np.signbit(below) and above > 0
        return (of(low / above) if is_positive else of(-math.inf)), of(math.inf)
    corners: list[tuple[Any, ...]] = [()]
    for pair in operands:
        corners = [(*c, end) for c in corners for end in pair]
    found = [v for c in corners if not np.isnan(v := meaning(*c))]
    if not found:
        return of(-math.inf), of(math.inf)
    least = of(min(found))
    signs = [*found, *(ends[0] for ends in operands if name in ("min", "max"))]
    if least == 0 and any(v == 0 and np.signbit(v) for v in signs):
        least = of(-0.0)  # what is divided by it may be of either sign
    return least, of(max(found))
