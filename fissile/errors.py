"""The one form of every error: code, places, reason, remedy (PRODUCT: errors).

In: what went wrong, where, why and what to do. Out: an exception whose text is that form and whose
class is also the natural builtin, so `except ValueError` works for somebody who never heard of us.
Problems of one kind are gathered in one exception with many places. Codes by hundreds:
F0 the model and its operators, F1 artifacts and CPUs, F2 feeds and shapes, F3 rewriting and plans,
F4 schedules, code generation and linking, F5 files, cache and store, F6 options, F7 threads.
"""

import contextlib
import difflib
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")
# What a mistake of this package raises; what the machine or the user causes is not among it.
UNFORESEEN = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
_OWN = (os.path.dirname(__file__) + os.sep, contextlib.__file__)


@dataclass(frozen=True)
class Place:
    """Where in the model: node name, operator (`domain.Type(version)`), and anything that helps."""

    node: str = ""
    operator: str = ""
    detail: str = ""


Where = Place | str | Sequence[Place | str]


class FissileError(Exception):
    """`FissileError(code, message, where=..., reason=..., remedy=...)`; `str()` is the whole form.

    code: "F" and three digits. where: one place or many. reason: why, in a sentence.
    remedy: what the user can type or change; several lines are several alternatives.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        where: Where = (),
        reason: str = "",
        remedy: str | Sequence[str] = (),
    ) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.where = _places(where)
        self.reason = reason
        self.remedy = (remedy,) if isinstance(remedy, str) and remedy else tuple(remedy)

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def __reduce__(self) -> tuple[object, ...]:
        state = {"where": self.where, "reason": self.reason, "remedy": self.remedy}
        return type(self), (self.code, self.message), state

    def as_dict(self) -> dict[str, object]:
        """The same as plain data, for `--json`."""
        places = [{"node": p.node, "operator": p.operator, "detail": p.detail} for p in self.where]
        return {
            "code": self.code,
            "message": self.message,
            "where": places,
            "reason": self.reason,
            "remedy": list(self.remedy),
        }


class CompileError(FissileError, RuntimeError):
    """A stage of the compiler cannot go on."""


class ModelError(CompileError, ValueError):
    """The model itself is wrong: broken protobuf, missing initializer, impossible types."""


class UnsupportedError(CompileError, NotImplementedError):
    """The model is right, but uses something that has no definition here."""


class ScheduleError(CompileError, ValueError):
    """A schedule step refuses a program; the reason says which law would be broken."""


class NotYet(FissileError, NotImplementedError):
    """A documented name whose machinery does not exist in this version."""


class InvalidFeed(FissileError, ValueError):
    """A feed has a wrong name, dtype, rank or shape."""


class ArtifactError(FissileError, ValueError):
    """A `.fsl` file is damaged, too new, or made for another CPU."""


class TargetError(FissileError, ValueError):
    """A target is unknown, or this machine cannot run it."""


class OptionError(FissileError, ValueError):
    """An option, rule, environment variable or argument has no such value."""


class FileMissing(FissileError, FileNotFoundError):
    """A file the user named is not there."""


class FileAccess(FissileError, OSError):
    """A file or folder cannot be read or written."""


class StoreError(FissileError, RuntimeError):
    """The tuning store or the compile cache is unusable."""


class OutOfMemory(FissileError, MemoryError):
    """The system, or its limit for this process, has no room for what was asked for."""


class BusyError(FissileError, RuntimeError):
    """The thread gang is taken and `busy="error"` was asked for."""


class FissileWarning(UserWarning):
    """Every warning of this package."""


def warn(text: str) -> None:
    """A FissileWarning that points at the code which called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, FissileWarning, stacklevel=level)


def dispensable(what: str, make: Callable[[], T], otherwise: U) -> T | U:
    """What a result is whole without: a failure of it that nobody foresaw costs a warning, and is `otherwise`."""
    try:
        return make()
    except UNFORESEEN as error:
        warn(f"{what} failed, and the work goes on without: {type(error).__name__}: {error}")
        return otherwise


@contextlib.contextmanager
def one_form(what: str) -> Iterator[None]:
    """Tell whatever goes wrong in the block in the form of all errors. `what`: where, for people ("stage plan").

    OutOfMemory F211, FileAccess F502 where the system refuses something, CompileError F401 for what nobody foresaw.
    """
    try:
        yield
    except FissileError:
        raise
    except MemoryError as error:
        raise OutOfMemory(
            "F211",
            f"not enough memory for {what}",
            reason=str(error) or "an array is too large",
            remedy="smaller extents, or a process that may use more memory",
        ) from error
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        raise FileAccess(
            "F502",
            f"the system refuses what {what} needs",
            reason=f"{name}{error.strerror or error}",
        ) from error
    except UNFORESEEN as error:
        raise CompileError(
            "F401",
            f"the compiler failed in {what}",
            reason=f"{type(error).__name__}: {error}",
            remedy="report it with the model; -v shows where",
        ) from error


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """`'did you mean "x"?'` for the nearest choice, or the empty string.

    >>> did_you_mean("relu6", ["relu", "tanh"])
    'did you mean "relu"?'
    """
    near = difflib.get_close_matches(str(name).lower(), (known := {str(c).lower(): c for c in choices}), 1)
    return f'did you mean "{known[near[0]]}"?' if near else ""


def _places(where: Where) -> tuple[Place, ...]:
    if isinstance(where, Place | str):
        where = (where,)
    return tuple(Place(p) if isinstance(p, str) else p for p in where)


def _lines(error: FissileError) -> Iterable[str]:
    yield f"error {error.code}: {error.message}"
    node_width = max((len(p.node) for p in error.where), default=0)
    operator_width = max((len(p.operator) for p in error.where), default=0)
    for place in error.where:
        columns = (place.node.ljust(node_width), place.operator.ljust(operator_width), place.detail)
        yield ("  " + "   ".join(columns)).rstrip()
    if error.reason:
        yield f"  reason: {error.reason}"
    for index, line in enumerate(error.remedy):
        yield f"  {'do:' if index == 0 else 'or:'} {line}"
