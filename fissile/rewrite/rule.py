"""Rewrite rules: one declaration each, kept in one table (Korch section 4, DESIGN 3.3).

In: a function from a node to its replacement, with the law it applies. Out: a `Rule` in `RULES`, in the order of
declaration. Invariant: a replacement has the type of the node and the same value; a rule that declines says why with
`Refused`. Regime "canonicalize" is terminating and always applied; regime "substitute" is chosen by cost.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
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
Key: TypeAlias = Callable[[Node], "Hashable | Refused"]
Join: TypeAlias = Callable[[tuple[Node, ...]], "tuple[Node, ...] | Refused"]


@dataclass(frozen=True, eq=False)
class Rule:
    """A named rewriting of nodes of the primitives `roots`.

    family: the module it stands in. private: positions of inputs that no other node may read (and that are
    no output), because the rule would otherwise compute them twice. join: for rules that replace several nodes at
    once, the replacements of nodes on which `key` agrees; `apply` then only says why a node alone is left. opens:
    whether the search starts at it; what only makes room for other rules is tried beside their firings.
    """

    name: str
    law: str
    roots: tuple[str, ...]
    apply: Apply
    family: str
    regime: str = "canonicalize"
    private: tuple[int, ...] = ()
    key: Key | None = None
    join: Join | None = None
    opens: bool = True

    def __repr__(self) -> str:
        return self.name


RULES: dict[str, Rule] = {}


def rule(
    law: str,
    *roots: str,
    regime: str = "canonicalize",
    private: tuple[int, ...] = (),
    opens: bool = True,
) -> Callable[[Apply], Rule]:
    """Declare the function below as the rule of its name. ValueError for a name or root that cannot be."""

    def declare(apply: Apply) -> Rule:
        name = getattr(apply, "__name__", "")
        family = apply.__module__
        return _listed(Rule(name, law, roots, apply, family, regime, private, opens=opens))

    return declare


def joining(law: str, *roots: str, key: Key, opens: bool = True) -> Callable[[Join], Rule]:
    """Declare the function below as the rule of its name that replaces all nodes on which `key` agrees at once.

    It is given two nodes or more, none of which needs another, and answers as many. Regime "substitute".
    """

    def alone(node: Node) -> Outcome:
        """Why the node is not joined with another."""
        found = key(node)
        return found if isinstance(found, Refused) else Refused("no other node shares its operand")

    def declare(join: Join) -> Rule:
        name = getattr(join, "__name__", "")
        family = join.__module__
        return _listed(Rule(name, law, roots, alone, family, "substitute", (), key, join, opens))

    return declare


def _listed(rule: Rule) -> Rule:
    if rule.name in RULES:
        raise ValueError(f"rule {rule.name} is declared twice")
    unknown = [root for root in rule.roots if root not in PRIMITIVES]
    if unknown or not rule.roots or rule.regime not in REGIMES:
        raise ValueError(f"rule {rule.name}: roots {rule.roots}, regime {rule.regime}")
    RULES[rule.name] = rule
    return rule


def enabled(regime: str, disabled: Iterable[str] = ()) -> tuple[Rule, ...]:
    """The rules of a regime, in order, but those called `disabled`. OptionError F603 for a name no rule has."""
    off = frozenset(disabled)
    for name in sorted(off - set(RULES)):
        hint = did_you_mean(name, RULES)
        raise OptionError("F603", f"no rule is called {name}", remedy=hint)
    return tuple(r for r in RULES.values() if r.regime == regime and r.name not in off)
