"""Rewrite rules: one declaration each, kept in one table (Korch section 4, DESIGN 3.3).

In: a function from a node to its replacement, with the law it applies. Out: a `Rule` in `RULES`, in the order of
declaration. Invariant: a replacement has the type of the node and the same value; a rule that declines says why with
`Refused`. Regime "canonicalize" is terminating and always applied; regime "substitute" is chosen by cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from fissile.errors import OptionError, did_you_mean
from fissile.ir.graph import Node
from fissile.ir.primitive import PRIMITIVES

REGIMES = ("canonicalize", "substitute")
ELEMENTWISE = tuple(p.name for p in PRIMITIVES.values() if p.kind == "elementwise")


@dataclass(frozen=True)
class Refused:
    """Why a rule does not apply to a node."""

    reason: str


Outcome: TypeAlias = Node | Refused
Apply: TypeAlias = Callable[[Node], Outcome]


@dataclass(frozen=True, eq=False)
class Rule:
    """A named rewriting of nodes of the primitives `roots`.

    family: the module it stands in. private: positions of inputs that no other node may read (and that are
    no output), because the rule would otherwise compute them twice.
    """

    name: str
    law: str
    roots: tuple[str, ...]
    apply: Apply
    family: str
    regime: str = "canonicalize"
    private: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return self.name


RULES: dict[str, Rule] = {}


def rule(
    law: str, *roots: str, regime: str = "canonicalize", private: tuple[int, ...] = ()
) -> Callable[[Apply], Rule]:
    """Declare the function below as the rule of its name. ValueError for a name or root that cannot be."""

    def declare(apply: Apply) -> Rule:
        name = getattr(apply, "__name__", "")
        if name in RULES:
            raise ValueError(f"rule {name} is declared twice")
        unknown = [root for root in roots if root not in PRIMITIVES]
        if unknown or not roots or regime not in REGIMES:
            raise ValueError(f"rule {name}: roots {roots}, regime {regime}")
        RULES[name] = Rule(name, law, roots, apply, apply.__module__, regime, private)
        return RULES[name]

    return declare


def enabled(regime: str, disabled: Iterable[str] = ()) -> tuple[Rule, ...]:
    """The rules of a regime, in order, but those called `disabled`. OptionError F603 for a name no rule has."""
    off = frozenset(disabled)
    for name in sorted(off - set(RULES)):
        hint = did_you_mean(name, RULES)
        raise OptionError("F603", f"no rule is called {name}", remedy=hint)
    return tuple(r for r in RULES.values() if r.regime == regime and r.name not in off)
