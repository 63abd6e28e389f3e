"""How long tuning may take: "10m", "600s", "200trials", or seconds as a number (PRODUCT 5.1).

In: what the user wrote. Out: a `Budget`. Invariant: what cannot be read is an OptionError with the forms that can.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from fissile.errors import OptionError


@dataclass(frozen=True)
class Budget:
    """seconds of wall time, and kernels measured, at most."""

    seconds: float = math.inf
    trials: float = math.inf

    def __str__(self) -> str:
        if math.isfinite(self.trials):
            return f"{self.trials:.0f} trials"
        return clock(self.seconds)


def parse_budget(given: str | float) -> Budget:
    """The budget that is meant; OptionError F611.

    >>> parse_budget("90s") == parse_budget("1.5m") == parse_budget(90)
    True
    >>> parse_budget("10m30s").seconds
    630.0
    """
    if isinstance(given, int | float):
        if given > 0 and math.isfinite(given):
            return Budget(float(given))
        raise _unreadable(str(given))
    if not isinstance(given, str):
        raise _unreadable(repr(given))
    text = given.strip().lower().replace(" ", "")
    trials = re.fullmatch(r"(\d+)trials?", text)
    if trials is not None and int(trials[1]) > 0:
        return Budget(trials=float(trials[1]))
    number = r"(\d+(?:\.\d+)?)"
    parts = re.fullmatch(rf"(?:{number}h)?(?:{number}m)?(?:{number}s)?", text)
    hours, minutes, seconds = (0.0, 0.0, 0.0) if parts is None else map(_amount, parts.groups())
    total = hours * 3600 + minutes * 60 + seconds
    if not total > 0:
        raise _unreadable(given)
    return Budget(total)


def _amount(text: str | None) -> float:
    return float(text or 0)


def clock(seconds: float) -> str:
    """Minutes and seconds, as 08:21.

    >>> clock(501)
    '08:21'
    """
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes:02d}:{rest:02d}"


def _unreadable(text: str) -> OptionError:
    return OptionError("F611", f"budget {text!r}", remedy="10m, 600s, 1h30m or 200trials")
