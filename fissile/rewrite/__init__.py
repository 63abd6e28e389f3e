"""Primitive graph to better primitive graph: `canonicalize`, `substitute`, and the table of rules `RULES`."""

from fissile.rewrite import (
    affine,
    branch,
    distribute,
    merge,
    moment,
    move,
    phase,
    places,
    product,
    winograd,
)
from fissile.rewrite.canonicalize import canonicalize
from fissile.rewrite.engine import Rewritten, refusals
from fissile.rewrite.estimate import estimate, estimator
from fissile.rewrite.miss import Miss, misses
from fissile.rewrite.rule import REGIMES, RULES, Refused, Rule
from fissile.rewrite.substitute import Budget, Substituted, firings, substitute

SUBSTITUTIONS = tuple(
    module.__name__
    for module in (
        merge, branch, places, product, phase, winograd, affine, distribute, moment, move
    )
)  # fmt: skip

__all__ = [
    "REGIMES",
    "RULES",
    "SUBSTITUTIONS",
    "Budget",
    "Miss",
    "Refused",
    "Rewritten",
    "Rule",
    "Substituted",
    "canonicalize",
    "estimate",
    "estimator",
    "firings",
    "misses",
    "refusals",
    "substitute",
]
