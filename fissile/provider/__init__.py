"""Kernels that another package may run: candidates for the program, and plans in which they have become calls.

In: the candidates of a graph; later a plan chosen among them. Out: more candidates; the plan with calls. Invariant: a
plan with calls computes what the plan without them does; only who computes it differs.
"""

from fissile.provider.offer import Offered, Refused, arguments, graph_of, model_of, offered
from fissile.provider.swap import PROVIDER, accept, called, provider_of

__all__ = [
    "PROVIDER", "Offered", "Refused", "accept", "arguments", "called", "graph_of", "model_of",
    "offered", "provider_of",
]  # fmt: skip
