"""Primitive graph to better primitive graph: `canonicalize`, and the table of rules `RULES`."""

from fissile.rewrite.canonicalize import canonicalize
from fissile.rewrite.engine import Rewritten, refusals
from fissile.rewrite.rule import RULES, Refused, Rule

__all__ = ["RULES", "Refused", "Rewritten", "Rule", "canonicalize", "refusals"]
