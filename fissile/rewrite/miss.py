"""Why a rule did not fire in a graph: its reasons, the nearest miss first.

In: a graph and a rule. Out: a `Miss` per reason. A canonical rule only declines; a substitution may also apply and be
left out because the estimate does not fall, and one that joins nodes may find too few of them. Invariant: every node of
the rule's primitives is counted once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from fissile.ir.dtype import FLOAT32, FLOAT64
from fissile.ir.graph import Graph, Node, rounds
from fissile.rewrite.engine import Renewal, readers_of, refusals
from fissile.rewrite.estimate import Cost, estimator
from fissile.rewrite.rule import Refused, Rule, enabled
from fissile.rewrite.substitute import Site, independent, sites
from fissile.rewrite.window import Surroundings

_PRICED = 12  # places of one rule whose cost is estimated
_LEAST = 1e-8  # seconds
_STAYS = "it applies, and the estimate does not fall"
_FALLS = "it applies, and the estimate falls"


@dataclass(frozen=True)
class Miss:
    """A reason, how often, and the first node (the nearest): the ONNX nodes it serves, and its text."""

    reason: str
    count: int
    where: str
    node: str


def misses(graph: Graph, rule: Rule, cost: Cost | None = None) -> list[Miss]:
    """Why `rule` is not applied (again): where it applies but does not pay first, then the rarest reasons.

    What nearly matches is rarer than what has nothing to do with the rule. cost: what the search minimizes.
    """
    if rule.regime == "canonicalize":
        told = _Told()
        for node, reason in refusals(graph, rule):
            told.add(reason, (node,))
    else:
        told = _substitution(graph, rule)
    rows = [_miss(graph, reason, nodes) for reason, nodes in told.reasons.items()]
    rows.sort(key=lambda m: m.count)
    return _priced(graph, told.sites, cost or estimator()) + rows


@dataclass
class _Told:
    """What a rule said of nodes: reasons, and where it applies."""

    reasons: dict[str, list[Node]] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)

    def add(self, reason: str, nodes: Sequence[Node]) -> None:
        self.reasons.setdefault(reason, []).extend(nodes)


def _substitution(graph: Graph, rule: Rule) -> _Told:
    told = _Told()
    groups: dict[Hashable, list[Node]] = {}
    readers = readers_of(graph, graph.nodes())
    is_rounded = rounds(graph)
    for node in graph.nodes():
        if node.name not in rule.roots:
            continue
        if is_rounded:
            told.add("the graph rounds to a half type, whose bits no substitution may change", (node,))
            continue
        if node.dtype not in (FLOAT32, FLOAT64):
            told.add(
                f"its elements are {node.dtype}: only float32 and float64 are substituted", (node,)
            )
            continue
        shared = [k for k in rule.private if readers[node.inputs[k]] != 1]
        if shared:
            told.add(f"operand {shared[0]} has other readers", (node,))
        elif rule.key is not None:
            key = rule.key(node)
            if isinstance(key, Refused):
                told.add(key.reason, (node,))
            else:
                groups.setdefault(key, []).append(node)
        else:
            outcome = rule.apply(node)
            if isinstance(outcome, Refused):
                told.add(outcome.reason, (node,))
            elif outcome is not node:
                told.sites.append(Site(rule, (node,), (outcome,)))
    for members in groups.values():
        _join(rule, members, told)
    return told


def _join(rule: Rule, members: list[Node], told: _Told) -> None:
    """What a rule that joins nodes says of those on which its key agrees."""
    free = tuple(independent(members))
    late = [n for n in members if n not in free]
    if late:
        told.add("it needs another node that shares its operand", late)
    if rule.join is None or len(free) == 1:
        outcome = rule.apply(free[0])
        told.add(outcome.reason if isinstance(outcome, Refused) else "it stands alone", free)
        return
    found = rule.join(free)
    if isinstance(found, Refused):
        told.add(found.reason, free)
    else:
        told.sites.append(Site(rule, free, found))


def _priced(graph: Graph, places: Sequence[Site], cost: Cost) -> list[Miss]:
    """Where the rule applies, and by how much the estimate of the surroundings changes, the best first."""
    around, renewal = Surroundings(graph), Renewal(enabled("canonicalize"))
    rows = [(_change(site, around, renewal, cost), site) for site in places[:_PRICED]]
    rows.sort(key=lambda row: row[0])
    falls = [row for row in rows if row[0] < -_LEAST]
    others = rows[len(falls) :]
    found = []
    for title, chosen in ((_FALLS, falls), (_STAYS, others)):
        if chosen:
            reason = f"{title} (at best {chosen[0][0] * 1e6:+.2f} us)"
            found.append(_miss(graph, reason, [site.nodes[0] for _, site in chosen]))
    rest = [site.nodes[0] for site in places[_PRICED:]]
    return (
        [*found, _miss(graph, "it applies, and the estimate was not asked", rest)]
        if rest
        else found
    )


def _change(site: Site, around: Surroundings, renewal: Renewal, cost: Cost) -> float:
    """Seconds that the firing adds to the window around it, by the estimate."""
    window = around.window(site.nodes)
    inside = tuple(window.inside[n] for n in site.nodes)
    for found in sites(window.graph, (site.rule,), frozenset(inside)):
        if found.nodes == inside:
            places = dict(zip(found.nodes, found.new, strict=True))
            return cost(renewal.exchanged(window.graph, places)) - cost(window.graph)
    return 0.0


def _miss(graph: Graph, reason: str, nodes: Sequence[Node]) -> Miss:
    where = ", ".join(graph.origins.get(nodes[0], ()))
    return Miss(reason, len(nodes), where, str(nodes[0]))
