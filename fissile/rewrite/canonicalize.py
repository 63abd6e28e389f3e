"""Canonicalization: the stage that makes a primitive graph small, plain and channels-last (DESIGN 3.3).

In: a primitive graph from fission. Out: one of equal meaning, with layouts propagated, constants folded and linear
primitives in their plainest form. `FAMILIES` is the order in which rules are tried on a node.
Invariant: terminating; idempotent; never more work for the kernels than before.
"""

from __future__ import annotations

from collections.abc import Iterable

from fissile.ir.graph import Graph
from fissile.rewrite import algebra, compose, fold, linear, sink
from fissile.rewrite.engine import Rewritten, rewrite
from fissile.rewrite.rule import RULES, enabled

__all__ = ["FAMILIES", "RULES", "canonicalize"]

FAMILIES = tuple(module.__name__ for module in (compose, fold, algebra, sink, linear))


def canonicalize(graph: Graph, disabled: Iterable[str] = frozenset()) -> Rewritten:
    """Apply every canonical rule but those called `disabled` until none fires.

    Raises OptionError F603 for a name that no rule has.
    """
    rules = enabled("canonicalize", disabled)
    return rewrite(graph, sorted(rules, key=lambda r: FAMILIES.index(r.family)))
