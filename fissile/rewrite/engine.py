"""Applies rules to a whole graph until none fires (DESIGN 3.3).

In: a graph and rules. Out: `Rewritten`, the new graph and how often each rule fired. A pass brings every node to its
normal form, producers first, each once: rules look only downwards, so a node whose inputs are in normal form needs no
second look. Rules with private inputs run in passes of their own, where the readers of every node are known exactly.
Invariant: inputs, names of outputs and origins are kept; an equality of extents that was a guard stays one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fissile.errors import CompileError, warn
from fissile.ir.dim import DimLike
from fissile.ir.graph import Graph, Guard, Node, constraints, make, users
from fissile.rewrite.rule import Refused, Rule

STEPS_PER_NODE = 500  # far above what any terminating set of rules needs
SWEEPS = 100  # with private inputs; each but the last fires a rule
EXAMPLES = 12  # firings of one rule that are kept as text


@dataclass(frozen=True)
class Firing:
    """One application of a rule: where (the ONNX nodes it serves), and the replaced nodes as text.

    saved: predicted seconds that the improvement saves which ends with this firing; 0 where nothing was predicted.
    """

    rule: str
    where: str
    before: str
    after: str
    saved: float = 0.0


@dataclass(frozen=True)
class Rewritten:
    """A rewritten graph, how often each rule fired (rules that did not are absent), and the first firings of each."""

    graph: Graph
    fired: Mapping[str, int]
    log: tuple[Firing, ...] = ()


@dataclass
class _Pass:
    """One sweep over a graph.

    readers: None when rules may not ask, else how many read each node. known: what rules make of nodes whose inputs
    are in normal form, shared by sweeps with the same rules (without readers that depends on the node alone).
    log: where firings are told, the first EXAMPLES of each rule; None where nobody asks.
    given: nodes that the caller exchanges. underway: nodes that wait for what replaces them, with their places on the
    stack, outermost first. kept: nodes that stay what they are, since what replaced them led back to them.
    by: which rule replaced a node. stuck: the rules that were stopped.
    """

    rules: dict[str, list[Rule]]
    readers: dict[Node, int] | None
    steps_left: int
    given: frozenset[Node] = frozenset()
    normal: dict[Node, Node] = field(default_factory=dict)
    forward: dict[Node, Node] = field(default_factory=dict)
    origins: dict[Node, tuple[str, ...]] = field(default_factory=dict)
    fired: Counter[str] = field(default_factory=Counter)
    known: dict[Node, Node] = field(default_factory=dict)
    log: list[Firing] | None = None
    underway: dict[Node, int] = field(default_factory=dict)
    kept: set[Node] = field(default_factory=set)
    by: dict[Node, str] = field(default_factory=dict)
    stuck: set[str] = field(default_factory=set)


def rewrite(graph: Graph, rules: Sequence[Rule]) -> Rewritten:
    """Apply `rules` wherever they fire until none does; rules that undo each other are stopped, with a warning.

    >>> from fissile.ir.primitive import INPUT, TRANSPOSE
    >>> from fissile.rewrite import RULES
    >>> x = make(INPUT, name="x", dtype="float32", shape=(2, 3))
    >>> twice = make(TRANSPOSE, make(TRANSPOSE, x, perm=(1, 0)), perm=(1, 0))
    >>> done = rewrite(Graph((x,), (("y", twice),)), tuple(RULES.values()))
    >>> done.graph.outputs[0][1] is x, done.fired["merge_transposes"]
    (True, 1)
    """
    before = list(constraints(graph))
    free = _by_root(r for r in rules if not r.private)
    private = _by_root(r for r in rules if r.private)
    fired: Counter[str] = Counter()
    log: list[Firing] = []
    graph, counts = _sweep(graph, free, exact=False, log=log)
    fired.update(counts)
    for _ in range(SWEEPS if private else 0):
        graph, counts = _sweep(graph, private, exact=True, log=log)
        fired.update(counts)
        if not counts:
            break
        graph, counts = _sweep(graph, free, exact=False, log=log)
        fired.update(counts)
    else:
        if private:
            _say_stopped(counts)
    guards = graph.guards + _lost_guards(before, graph)
    return Rewritten(replace(graph, guards=guards), dict(fired), _first_of_each(log))


def _first_of_each(log: Iterable[Firing]) -> tuple[Firing, ...]:
    seen: Counter[str] = Counter()
    kept: list[Firing] = []
    for firing in log:
        seen[firing.rule] += 1
        if seen[firing.rule] <= EXAMPLES:
            kept.append(firing)
    return tuple(kept)


def text_of(node: Node, depth: int = 3) -> str:
    """A node as a nested expression, types at its leaves."""
    if depth == 0 or not node.inputs:
        return str(node.type) if node.name != "input" else str(node.attr("name"))
    return f"{node.name}({', '.join(text_of(i, depth - 1) for i in node.inputs)})"


def _lost_guards(before: list[tuple[Node, DimLike, DimLike]], graph: Graph) -> tuple[Guard, ...]:
    """Guards for what was demanded by nodes that are no more, and is demanded by nothing else."""
    known = {frozenset((g.left, g.right)) for g in graph.guards}
    known |= {frozenset((a, b)) for _, a, b in constraints(graph)}
    lost = []
    for node, a, b in before:
        if frozenset((a, b)) not in known:
            known.add(frozenset((a, b)))
            lost.append(Guard(a, b, f"{node.name}: {a} = {b}"))
    return tuple(lost)


def refusals(graph: Graph, rule: Rule) -> list[tuple[Node, str]]:
    """Every node of the graph that `rule` looks at and declines, with the reason."""
    found = []
    readers = readers_of(graph, graph.nodes())
    for node in graph.nodes():
        if node.name in rule.roots:
            outcome = _apply(rule, node, readers)
            if isinstance(outcome, Refused):
                found.append((node, outcome.reason))
    return found


class Renewal:
    """Graphs with some nodes exchanged, brought to normal form again; what was learnt of nodes is kept between calls.

    The cost of a call is that of what lies downstream of the exchanged nodes.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._free = _by_root(r for r in rules if not r.private)
        self._private = _by_root(r for r in rules if r.private)
        self._known: dict[Node, Node] = {}
        self._idle: set[Node] = set()  # nodes that no rule with private inputs changes, whoever reads those

    def exchanged(self, graph: Graph, new: Mapping[Node, Node]) -> Graph:
        """`graph`, whose nodes are in normal form, with each key of `new` replaced by its value, in normal form."""
        before = list(constraints(graph)) if _is_symbolic(graph) else []
        result = self._swept(graph, new)
        for _ in range(SWEEPS):
            if not self._may_fire(result):
                break
            changed, counts = _sweep(result, self._private, exact=True)
            if not counts:
                break
            result = self._swept(changed, {})
        lost = _lost_guards(before, result) if before else ()
        return replace(result, guards=result.guards + lost) if lost else result

    def _may_fire(self, graph: Graph) -> bool:
        """Whether a rule with private inputs changes a node, if nothing else reads those."""
        for node in graph.nodes():
            if node in self._idle or node.name not in self._private:
                continue
            if _outcome(node, _Pass(self._private, None, 0)) is not node:
                return True
            self._idle.add(node)
        return False

    def _swept(self, graph: Graph, new: Mapping[Node, Node]) -> Graph:
        return _sweep(graph, self._free, exact=False, new=new, known=self._known)[0]


def _is_symbolic(graph: Graph) -> bool:
    return any(not isinstance(d, int) for node in graph.inputs for d in node.shape)


def _by_root(rules: Iterable[Rule]) -> dict[str, list[Rule]]:
    table: dict[str, list[Rule]] = {}
    for rule in rules:
        for root in rule.roots:
            table.setdefault(root, []).append(rule)
    return table


def readers_of(graph: Graph, nodes: Sequence[Node]) -> dict[Node, int]:
    """How many nodes and outputs read each node."""
    readers = {node: len(who) for node, who in users(nodes).items()}
    for _, node in graph.outputs:
        readers[node] += 1
    return readers


def _sweep(
    graph: Graph,
    rules: dict[str, list[Rule]],
    exact: bool,
    new: Mapping[Node, Node] | None = None,
    known: dict[Node, Node] | None = None,
    log: list[Firing] | None = None,
) -> tuple[Graph, Counter[str]]:
    nodes = graph.nodes()
    state = _Pass(
        rules,
        readers_of(graph, nodes) if exact else None,
        STEPS_PER_NODE * (len(nodes) + 100),
        origins=dict(graph.origins),
        given=frozenset(new or ()),
        forward=dict(new or {}),
        known={} if known is None else known,
        log=log,
    )
    if new:
        state.normal.update((n, n) for n in _apart(nodes, new))
    for node, target in (new or {}).items():
        _inherit(state, target, state.origins.get(node, ()))
    live = set(nodes) if graph.late else set()
    givers = [node for node in graph.late.values() if node in live]
    for node in (*givers, *(node for _, node in graph.outputs)):
        _normalize(node, state)
    if state.stuck:
        _say_stopped(state.stuck)
    outputs = tuple((name, state.normal[node]) for name, node in graph.outputs)
    result = graph.changed(outputs, state.normal)
    origins = {n: state.origins[n] for n in result.nodes() if n in state.origins}
    return replace(result, origins=origins), state.fired


def _apart(nodes: Iterable[Node], new: Mapping[Node, Node]) -> Iterator[Node]:
    """The nodes that the exchange does not reach: they are in normal form already."""
    reached: set[Node] = set()
    for node in nodes:
        if node in new or not reached.isdisjoint(node.inputs):
            reached.add(node)
        else:
            yield node


def _normalize(root: Node, state: _Pass) -> None:
    """Fill `state.normal` for `root` and all it needs."""
    stack = [root]
    while stack:
        node = stack[-1]
        if node in state.normal:
            stack.pop()
            continue
        state.steps_left -= 1
        if state.steps_left < 0:
            _give_up(state)
        target = state.forward.get(node)
        if target is None:
            pending = [i for i in node.inputs if i not in state.normal]
            if pending:
                stack.extend(reversed(pending))
                continue
            target = _step(node, state)
        if target is not node and target not in state.normal:
            if node in state.underway:
                _keep_one(node, stack, state)
                continue
            state.forward[node] = target
            state.underway[node] = len(stack) - 1
            stack.append(target)
            continue
        state.normal[node] = state.normal.get(target, target)
        state.underway.pop(node, None)
        _inherit(state, state.normal[node], state.origins.get(node, ()))
        stack.pop()


def _keep_one(node: Node, stack: list[Node], state: _Pass) -> None:
    """What replaced `node` led back to it: one node on the way there stays what it is.

    That is one that the caller exchanged, if there is any: the exchange is undone, since the rules undo it. Else it is
    the node itself, and the rules on the way are told as stopped.
    """
    way = [*state.underway]
    way = way[way.index(node) :]
    chosen = next((n for n in way if n in state.given), node)
    if chosen not in state.given:
        state.stuck.update(name for n in way if (name := state.by.get(n)))
    del stack[state.underway[chosen] + 1 :]
    for other in way[way.index(chosen) :]:
        del state.underway[other]
    del state.forward[chosen]
    state.kept.add(chosen)


def _give_up(state: _Pass) -> None:
    """Rules that make ever new nodes: none is applied any more."""
    if state.rules:
        state.stuck.update(name for name, _ in state.fired.most_common(3))
        state.rules, state.known = {}, {}


def _step(node: Node, state: _Pass) -> Node:
    """The node over its inputs' normal forms, or what a rule makes of that; itself when nothing is left to do."""
    new = node
    inputs = tuple(state.normal[i] for i in node.inputs)
    if inputs != node.inputs:
        new = make(node.primitive, *inputs, **dict(node.attrs))
        _succeed(state, node, new)
        if new in state.normal:
            return new
    if new in state.kept:
        return new if new is node else _settled(new, state)
    outcome = state.known.get(new) or _outcome(new, state)
    if state.readers is None:
        state.known[new] = outcome
    if outcome is not new:
        state.by[node] = state.by.get(new, "")
        _succeed(state, new, outcome)
        return outcome
    return new if new is node else _settled(new, state)


def _outcome(new: Node, state: _Pass) -> Node:
    """What the first rule that fires makes of a node; the node itself when none does."""
    for rule in state.rules.get(new.name, ()):
        outcome = _apply(rule, new, state.readers)
        if isinstance(outcome, Node) and outcome is not new:
            state.fired[rule.name] += 1
            state.by[new] = rule.name
            if outcome.dtype is not new.dtype or outcome.type.rank != new.type.rank:
                raise CompileError("F302", f"rule {rule.name} changed {new} to {outcome}")
            if state.log is not None and state.fired[rule.name] <= EXAMPLES:
                where = ", ".join(state.origins.get(new, ()))
                state.log.append(Firing(rule.name, where, text_of(new), text_of(outcome)))
            return outcome
    return new


def _settled(new: Node, state: _Pass) -> Node:
    state.normal[new] = new
    return new


def _apply(rule: Rule, node: Node, readers: Mapping[Node, int] | None) -> Node | Refused:
    if rule.private and readers is not None:
        for k in rule.private:
            if readers.get(node.inputs[k], 0) != 1:
                return Refused(f"input {k}, {node.inputs[k].name}, has other readers")
    return rule.apply(node)


def _succeed(state: _Pass, old: Node, new: Node) -> None:
    """`new` stands for `old`: it has its names and its readers."""
    _inherit(state, new, state.origins.get(old, ()))
    if state.readers is not None:
        state.readers[new] = state.readers.get(new, 0) + state.readers.get(old, 0)


def _inherit(state: _Pass, node: Node, names: tuple[str, ...]) -> None:
    """Give `node`, and what has no names below it, the names of the node it replaces."""
    if not names:
        return
    known = state.origins.get(node, ())
    if any(n not in known for n in names):
        state.origins[node] = tuple(dict.fromkeys(known + names))
    stack = [i for i in node.inputs if i not in state.origins]
    while stack:
        current = stack.pop()
        if current not in state.origins and current not in state.normal:
            state.origins[current] = names
            stack.extend(current.inputs)


def _say_stopped(rules: Iterable[str]) -> None:
    names = sorted(rules)
    switch = " ".join(f"--disable {name}" for name in names)
    warn(
        f"the rewrite rules {', '.join(names)} do not come to an end on this model; they were stopped, and the "
        f"graph is used as far as they got ({switch} leaves them out)"
    )
