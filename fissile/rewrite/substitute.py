"""The searched regime of substitutions: best-first over graphs, guided by cost (Korch section 4, DESIGN 3.3).

In: a canonical primitive graph and `cost: Graph -> seconds`. Out: the few cheapest graphs found, each with the log of
firings that led to it. From every place where a rule fires, a window around it is searched: the rule, then what becomes
possible nearby, keeping graphs that cost less than `alpha` times the best and are at most `growth` times as large; what
makes the whole graph cheaper is kept, and the search goes on from there. Invariant: value and type of every output
stay; deterministic.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import prod
from typing import TypeAlias

from fissile.ir.dtype import FLOAT32, FLOAT64
from fissile.ir.graph import Graph, Node, rounds
from fissile.rewrite.engine import Firing as Firing
from fissile.rewrite.engine import Renewal, readers_of, text_of
from fissile.rewrite.rule import Outcome, Refused, Rule, enabled
from fissile.rewrite.window import Surroundings, Window

Cost = Callable[[Graph], float]
_PAIR = 2
_NEAR = 8  # a rule looks at nodes up to this many readers away from what the last firing made
_DEPTH = 4  # places that look alike down to this depth are taken for the same
_GAIN = 1e-3  # relative, of a window: what is less is no improvement
_GAIN_ALL = 3e-4  # the same of a whole graph: guesses tell no less apart


@dataclass(frozen=True)
class Substituted:
    """A graph, what it costs, and how it came about.

    exchanges: the nodes that every firing replaced, in a window. windows: of a whole graph, each improvement's window
    and the exchanges in it; `Renewal.exchanged` repeats them.
    """

    graph: Graph
    cost: float
    log: tuple[Firing, ...]
    exchanges: tuple[Mapping[Node, Node], ...] = ()
    windows: tuple[tuple[Window, tuple[Mapping[Node, Node], ...]], ...] = ()


@dataclass(frozen=True)
class Budget:
    """How far the search goes.

    graphs: how many are made in all. patience: graphs expanded from one place without an improvement.
    detour: firings in a row that may be no improvement.
    seconds: a wall clock after which no new place is tried (then results depend on the machine's speed).
    keep: how many graphs are returned.
    heavier, room: constants may take so many times the bytes of the given graph's, or so many bytes more.
    """

    alpha: float = 1.25
    growth: float = 2.0
    graphs: int = 1000
    patience: int = 6
    detour: int = 2
    seconds: float | None = None
    keep: int = 3
    heavier: float = 1.5
    room: int = 32 << 20


@dataclass(frozen=True)
class Site:
    """A rule and the nodes it would replace, with their replacements."""

    rule: Rule
    nodes: tuple[Node, ...]
    new: tuple[Node, ...]


Said: TypeAlias = dict[tuple[Rule, Hashable], "Outcome | tuple[Node, ...]"]


@dataclass
class _Search:
    """What one call knows.

    known: what rules said of nodes. failed: how places look from which nothing better was found; alone: and where the
    first firing was the best already, so that nothing more is tried at their twins.
    """

    cost: Cost
    rules: tuple[Rule, ...]
    budget: Budget
    renewal: Renewal
    most_bytes: float
    made: int = 0
    start: float = field(default_factory=time.monotonic)
    known: Said = field(default_factory=dict)
    failed: set[Hashable] = field(default_factory=set)
    alone: set[Hashable] = field(default_factory=set)

    def is_over(self) -> bool:
        limit = self.budget.seconds
        is_late = limit is not None and time.monotonic() - self.start > limit
        return is_late or self.made >= self.budget.graphs


def substitute(
    graph: Graph,
    cost: Cost,
    budget: Budget | None = None,
    disabled: Iterable[str] = (),
) -> tuple[Substituted, ...]:
    """The cheapest graphs found, best first; the given graph itself when nothing is better.

    graph: in canonical form. disabled: names of rules, of both regimes, to leave out.
    Raises OptionError F603 for a name that no rule has.
    """
    limits = budget or Budget()
    off = frozenset(disabled)
    renewal = Renewal(enabled("canonicalize", off))
    weight = constant_bytes(graph)
    most = max(weight * limits.heavier, weight + limits.room)
    search = _Search(cost, enabled("substitute", off), limits, renewal, most)
    best = Substituted(graph, cost(graph), ())
    kept = [best]
    better: Substituted | None = best
    while better is not None:
        better = _improved(search, best)
        if better is not None:
            best = better
            kept.append(best)
    kept.sort(key=lambda s: s.cost)
    return tuple(kept[: limits.keep])


def _improved(search: _Search, best: Substituted) -> Substituted | None:
    """A cheaper graph by what starts at the first place that leads to one."""
    around = Surroundings(best.graph)
    opening = tuple(r for r in search.rules if r.opens)
    found = sites(best.graph, opening, None, search.known)
    for _, here in groupby(found, key=lambda site: site.nodes):
        tried = ((_tried(search, best, site, around), site) for site in here)
        better = [(s, site) for s, site in tried if s is not None]
        if better:
            first, site = min(better, key=lambda row: row[0].cost)
            return _at_twins(search, best, first, site, around)
    return None


def _at_twins(
    search: _Search, base: Substituted, better: Substituted, site: Site, around: Surroundings
) -> Substituted:
    """`better`, or what is cheaper: its only firing at once at all places that look like `site`."""
    look = _look(site, around.readers)
    twins: list[Site] = []
    if look in search.alone and len(better.log) == len(base.log) + 1:
        taken: set[Node] = set()
        for twin in sites(base.graph, (site.rule,), None, search.known):
            if taken.isdisjoint(twin.nodes) and _look(twin, around.readers) == look:
                taken.update(twin.nodes)
                twins.append(twin)
    while len(twins) > 1:
        new = {old: node for twin in twins for old, node in zip(twin.nodes, twin.new, strict=True)}
        graph = search.renewal.exchanged(base.graph, new)
        is_light = constant_bytes(graph) <= search.most_bytes
        if is_light and (cost := search.cost(graph)) < better.cost:
            *others, last = [_told(base.graph, twin) for twin in twins]
            log = (*base.log, *others, replace(last, saved=base.cost - cost))
            windows = (*base.windows, (around.whole(), (new,)))
            return Substituted(graph, cost, log, windows=windows)
        twins = twins[: len(twins) // 2]
    return better


def _tried(
    search: _Search, best: Substituted, site: Site, around: Surroundings
) -> Substituted | None:
    """The cheaper graph found from one place by one rule, if there is any."""
    look = _look(site, around.readers)
    if look in search.failed or search.is_over():
        return None
    patience = 0 if look in search.alone else search.budget.patience
    better = _from(search, best, site, around.window(site.nodes), patience)
    if better is None:
        search.failed.add(look)
    elif len(better.log) == len(best.log) + 1:
        search.alone.add(look)
    return better


def _from(
    search: _Search, base: Substituted, seed: Site, window: Window, patience: int
) -> Substituted | None:
    """The graph with the best found for `window` starting with the rule of `seed`; None if it is no cheaper."""
    start = Substituted(window.graph, search.cost(window.graph), ())
    places = tuple(window.inside[n] for n in seed.nodes)
    found = [
        s
        for s in sites(window.graph, (seed.rule,), frozenset(places))
        if set(s.nodes) <= set(places)
    ]
    for first in found[:1]:
        better = _best_of(search, start, first, patience, (search.budget.alpha - 1) * base.cost)
        if better is None:
            return None
        graph = search.renewal.exchanged(base.graph, window.replaced(better.graph))
        if constant_bytes(graph) > search.most_bytes:
            return None
        cost = search.cost(graph)
        if cost < base.cost * (1 - _GAIN_ALL):
            *first_ones, last = better.log
            log = (*base.log, *first_ones, replace(last, saved=base.cost - cost))
            windows = (*base.windows, (window, better.exchanges))
            return Substituted(graph, cost, log, windows=windows)
    return None


def constant_bytes(graph: Graph) -> int:
    """Bytes of the constants of a graph, each once."""
    constants = (n for n in graph.nodes() if n.name == "constant")
    return sum(n.dtype.bytes * prod(d for d in n.shape if isinstance(d, int)) for n in constants)


@dataclass(frozen=True)
class _State:
    """A graph on the way. near: where rules are tried next. idle: firings since the last that was an improvement."""

    found: Substituted
    near: frozenset[Node]
    idle: int


def _best_of(
    search: _Search, start: Substituted, seed: Site, patience: int, detour: float
) -> Substituted | None:
    """The best graph reached by firing `seed` and then what becomes possible near it; None if none is cheaper.

    detour: seconds that a graph on the way may cost more than the best.
    """
    limits, best = search.budget, start
    seen, largest = {_identity(start.graph)}, limits.growth * len(start.graph.nodes())
    first = _State(start, frozenset(), 0)
    queue: list[tuple[float, int, _State]] = []
    serial = waited = 0
    pending: list[tuple[_State, Iterable[Site]]] = [(first, (seed,))]
    while pending:
        state, possible = pending.pop()
        for site in possible:
            child = _fired(search, state.found, site, largest, seen)
            if child is None:
                continue
            is_better = child.cost < best.cost * (1 - _GAIN)
            idle = 0 if is_better else state.idle + 1
            if child.cost > best.cost + detour or idle > limits.detour:
                continue
            if is_better:
                best, waited = child, 0
            near = _near(state.found.graph, child.graph) | state.near
            serial += 1
            heapq.heappush(queue, (child.cost, serial, _State(child, near, idle)))
        if queue and waited < patience and not search.is_over():
            waited += 1
            state = heapq.heappop(queue)[2]
            pending.append(
                (state, sites(state.found.graph, search.rules, state.near, search.known))
            )
    return None if best is start else best


def _fired(
    search: _Search, state: Substituted, site: Site, largest: float, seen: set[Hashable]
) -> Substituted | None:
    """The graph after a firing; None when it is too large, or has been seen."""
    search.made += 1
    new = dict(zip(site.nodes, site.new, strict=True))
    graph = search.renewal.exchanged(state.graph, new)
    if _identity(graph) in seen:
        return None
    seen.add(_identity(graph))
    if len(graph.nodes()) > largest:
        return None
    firing = _told(state.graph, site)
    log, exchanges = (*state.log, firing), (*state.exchanges, new)
    return Substituted(graph, search.cost(graph), log, exchanges)


def _told(graph: Graph, site: Site) -> Firing:
    names = dict.fromkeys(n for node in site.nodes for n in graph.origins.get(node, ()))
    before, after = (", ".join(text_of(n) for n in nodes) for nodes in (site.nodes, site.new))
    return Firing(site.rule.name, ", ".join(names), before, after)


def _identity(graph: Graph) -> Hashable:
    return tuple(node for _, node in graph.outputs), tuple(graph.late.values())


def _near(before: Graph, after: Graph) -> frozenset[Node]:
    """What a firing made, and what reads that: the new nodes up to some distance from the ones made of old nodes."""
    old = set(before.nodes())
    distance: dict[Node, int] = {}
    for node in after.nodes():
        if node in old:
            continue
        below = [distance[i] for i in node.inputs if i in distance]
        distance[node] = 1 + min(below) if below else 0
    return frozenset(n for n, d in distance.items() if d <= _NEAR)


# ---------------------------------------------------------------- where rules fire


def sites(
    graph: Graph,
    rules: Sequence[Rule],
    near: frozenset[Node] | None,
    known: Said | None = None,
) -> Iterator[Site]:
    """Every place where a rule fires, producers first; only at nodes in `near`, if given. Floats only.

    None in a graph that `rounds`. known: what rules said of nodes before, shared between calls.
    """
    memory = {} if known is None else known
    if rounds(graph):
        return
    nodes = [n for n in graph.nodes() if n.dtype in (FLOAT32, FLOAT64)]
    readers = readers_of(graph, graph.nodes())
    table: dict[str, list[Rule]] = {}
    for rule in rules:
        for root in rule.roots:
            table.setdefault(root, []).append(rule)
    for node in nodes:
        if near is not None and node not in near:
            continue
        for rule in table.get(node.name, ()):
            if rule.join is not None or any(readers[node.inputs[k]] != 1 for k in rule.private):
                continue
            outcome = memory.get((rule, node))
            if outcome is None:
                outcome = memory[rule, node] = rule.apply(node)
            if isinstance(outcome, Node) and outcome is not node:
                yield Site(rule, (node,), (outcome,))
    for rule in rules:
        if rule.join is not None:
            yield from _joins(rule, nodes, near, memory)


def _joins(
    rule: Rule,
    nodes: Sequence[Node],
    near: frozenset[Node] | None,
    memory: Said,
) -> Iterator[Site]:
    if rule.key is None or rule.join is None:
        return
    groups: dict[Hashable, list[Node]] = {}
    for node in nodes:
        if node.name in rule.roots:
            key = rule.key(node)
            if not isinstance(key, Refused):
                groups.setdefault(key, []).append(node)
    for members in groups.values():
        free = tuple(independent(members))
        if len(free) < _PAIR or (near is not None and not any(n in near for n in free)):
            continue
        found = memory.get((rule, free))
        if found is None:
            found = memory[rule, free] = rule.join(free)
        if isinstance(found, tuple):
            yield Site(rule, free, found)


def independent(members: Sequence[Node]) -> Iterator[Node]:
    """The members that need none of those before them."""
    chosen: set[Node] = set()
    for node in members:
        if not _needs(node, chosen):
            chosen.add(node)
            yield node


def _needs(node: Node, others: set[Node]) -> bool:
    if not others:
        return False
    seen: set[Node] = set()
    stack = list(node.inputs)
    while stack:
        current = stack.pop()
        if current in others:
            return True
        if current not in seen:
            seen.add(current)
            stack.extend(current.inputs)
    return False


def _look(site: Site, readers: Mapping[Node, list[Node]]) -> Hashable:
    """What a place looks like, so that what failed at one block of a network is not tried at its twins."""
    around = tuple(tuple(sorted(r.name for r in readers[n])) for n in site.nodes)
    return site.rule.name, tuple(_shaped(n, _DEPTH) for n in site.nodes), around


def _shaped(node: Node, depth: int) -> Hashable:
    if depth == 0 or node.name == "constant":
        return node.name, node.shape
    attrs = tuple(a for a in node.attrs if a[0] != "value")
    return node.name, node.shape, attrs, tuple(_shaped(i, depth - 1) for i in node.inputs)


def firings(log: Sequence[Firing]) -> Mapping[str, int]:
    """How often each rule fired."""
    counts: dict[str, int] = {}
    for firing in log:
        counts[firing.rule] = counts.get(firing.rule, 0) + 1
    return counts
