"""Kernels of a plan that another package may run: what can be offered to whom, and plans with offers accepted.

In: a plan. Out: `Offer`s, and the plan in which some of them take the place of kernels. Invariant: a plan with offers
computes what the plan without them does; only who computes it differs.
"""

from fissile.provider.offer import Offer, Refused, offers, window
from fissile.provider.swap import PROVIDER, accept, called, provider_of

__all__ = ["PROVIDER", "Offer", "Refused", "accept", "called", "offers", "provider_of", "window"]
