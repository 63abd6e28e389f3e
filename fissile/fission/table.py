"""The table of operators: one `@fission` function per ONNX operator and version (DESIGN 3.2).

A function takes the `Call` and the operator's inputs as nodes (None where absent) and answers the
output node, or a tuple of nodes. It sees float16 and bfloat16 as float32 unless it is declared
`raw`. Invariant: the row of the largest `since` not above the model's opset is the one used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fissile.frontend.operator_graph import Extents, Operator
from fissile.ir.dim import DimLike, equal, less_equal, max_, min_
from fissile.ir.graph import Guard, Node

Result: TypeAlias = Node | tuple[Node | None, ...]
Definition: TypeAlias = Callable[..., Result]


class Refusal(Exception):
    """This use of an operator has no native definition; the text is the reason, for the user."""


@dataclass(frozen=True)
class Call:
    """One operator being split: its attributes, and the demands its shapes make on a call.

    declared: the shape that the model says its first output has, if any; nothing has checked that.
    apart: extents that are taken not to be 1 because nothing says otherwise. least: (extent, the least number of it
    that the operator takes, why).
    """

    operator: Operator
    declared: Extents | None = None
    guards: list[Guard] = field(default_factory=list)
    apart: list[DimLike] = field(default_factory=list)
    least: list[tuple[DimLike, int, str]] = field(default_factory=list)

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute called `name`, or `default`."""
        return self.operator.attr(name, default)

    @property
    def version(self) -> int:
        """The opset version the operator is read by."""
        return self.operator.version

    @property
    def outputs(self) -> int:
        """How many outputs are wanted, up to the last named one."""
        named = [k for k, name in enumerate(self.operator.outputs) if name]
        return named[-1] + 1 if named else 0

    def demand(self, left: DimLike, right: DimLike, what: str) -> None:
        """Let a call fail clearly, in the words `what`, unless left == right. ValueError where that never holds."""
        verdict = equal(left, right)
        if verdict is False:
            raise ValueError(what)
        if verdict is None:
            self.guards.append(Guard(left, right, f"{self.operator.where}: {what}"))

    def demand_natural(self, extent: DimLike, what: str) -> None:
        """Let a call fail clearly unless `extent` >= 0."""
        self.demand(min_(extent, 0), 0, f"{what} {extent} must not be negative")

    def demand_at_most(self, extent: DimLike, most: DimLike, what: str) -> None:
        """Let a call fail clearly unless `extent` <= `most`."""
        if less_equal(extent, most) is not True:
            self.demand(max_(extent - most, 0), 0, f"{what} {extent} must be {most} at most")

    def demand_at_least(self, extent: DimLike, least: int, what: str) -> None:
        """Let a call fail clearly unless `extent` >= `least`; where that is a bound of a free extent, it is known."""
        text = f"{what} {extent} must be at least {least}"
        self.least.append((extent, least, f"{self.operator.where}: {text}"))
        self.demand(max_(least - extent, 0), 0, text)

    def natural(self, extent: DimLike) -> DimLike:
        """max(extent, 0)."""
        return max_(extent, 0)


@dataclass(frozen=True)
class Row:
    """A registered function.

    raw: it takes half types as they are. wide: outputs kept in float32. like: from which input on the first float
    tells the type of float results.
    """

    since: int
    function: Definition
    raw: bool = False
    wide: tuple[int, ...] = ()
    like: int = 0


TABLE: dict[tuple[str, str], list[Row]] = {}


def fission(
    *types: str, since: int = 1, domain: str = "", raw: bool = False, wide: tuple[int, ...] = (),
    like: int = 0,
) -> Callable[[Definition], Definition]:
    """Declare how the operators `types` are split, from opset `since` on."""

    def declare(function: Definition) -> Definition:
        for name in types:
            rows = TABLE.setdefault((domain, name), [])
            if any(row.since == since for row in rows):
                raise ValueError(f"{name} since {since} is declared twice")
            rows.append(Row(since, function, raw, wide, like))
        return function

    return declare


def lookup(operator: Operator) -> Row | None:
    """The row for an operator at its version, or None."""
    rows = TABLE.get((operator.domain, operator.type), [])
    valid = [row for row in rows if row.since <= operator.version]
    return max(valid, key=lambda row: row.since) if valid else None
