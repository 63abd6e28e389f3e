"""One greedy plan: every kernel grows from its root along its readers as far as it can be one kernel.

In: a canonical primitive graph. Out: a `Plan`. Linear primitives take the elementwise primitives and the reshapes and
transposes behind them; reductions over the last axes take what surrounds them row by row; elementwise primitives over
one shape go together. Invariant: kernels are convex, so the steps are acyclic.
"""

from __future__ import annotations

from collections.abc import Mapping

from fissile.ir.graph import Graph, Node, users, waits_for
from fissile.orchestrate.formats import is_tiled, own_outputs, pack_operands
from fissile.orchestrate.grow_linear import grow_linear
from fissile.orchestrate.inline import inlined
from fissile.orchestrate.places import Places, reduces_last
from fissile.orchestrate.plan import Anchor, Kernel, Plan, Step, givers, is_stored_leaf


def greedy_plan(graph: Graph) -> Plan:
    """A valid plan of `graph`, found without measuring anything."""
    graph = own_outputs(pack_operands(graph))
    return _Growth(graph).plan()


class _Growth:
    """The state of one greedy pass: what is inlined, who reads whom, and which kernel has which node."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = graph.nodes()
        self.position = {node: k for k, node in enumerate(self.nodes)}
        self.inline = set(inlined(graph))
        self.readers = users(self.nodes)
        self.outputs = {node for _, node in graph.outputs}
        self.owner: dict[Node, int] = {}
        self.groups: list[tuple[Anchor, list[Node]]] = []
        self.before: list[int] = []  # bit k of before[i]: node k must be complete before node i is
        self._spread()

    # -------------------------------------------------------- dependence

    def _spread(self) -> None:
        """Ancestors of every node, where a kernel's members wait for all that any of them waits for."""
        self.before = [0] * len(self.nodes)
        together: dict[int, int] = {}
        for k, node in enumerate(self.nodes):
            mask = 1 << k
            for source in waits_for(node, self.graph.late):
                mask |= self.before[self.position[source]]
            group = self.owner.get(node)
            if group is not None:
                mask |= together.get(group, 0)
                together[group] = mask
            self.before[k] = mask

    def depends(self, node: Node, members: int) -> bool:
        """Whether `node` waits for one of the members (a mask of positions)."""
        return bool(self.before[self.position[node]] & members)

    def mask(self, members: list[Node]) -> int:
        """The members as a mask of positions."""
        return sum(1 << self.position[m] for m in members)

    def leaves(self, node: Node) -> list[Node]:
        """The stored or computed tensors that `node` reads, through inlined primitives."""
        found: dict[Node, None] = {}
        stack = list(reversed(node.inputs))
        while stack:
            source = stack.pop()
            if source in self.inline:
                stack.extend(reversed(source.inputs))
            else:
                found[source] = None
        return list(found)

    def awaited(self, node: Node) -> list[Node]:
        """The tensors that must be there before `node` is computed: what it reads, and what gives its extents."""
        late = self.graph.late
        if not late:
            return self.leaves(node)
        found: dict[Node, None] = {}
        stack = [*reversed(waits_for(node, late))]
        while stack:
            source = stack.pop()
            if source in self.inline:
                stack.extend(reversed(waits_for(source, late)))
            else:
                found[source] = None
        return list(found)

    def following(self, node: Node) -> list[Node]:
        """The readers of `node` that are not inlined, through those that are, in order."""
        found: dict[Node, None] = {}
        stack = list(self.readers[node])
        while stack:
            user = stack.pop()
            if user in self.inline:
                stack.extend(self.readers[user])
            else:
                found[user] = None
        return sorted(found, key=lambda n: self.position[n])

    def free(self, node: Node) -> bool:
        """Whether `node` still needs a kernel."""
        return node not in self.owner and node not in self.inline and not is_stored_leaf(node)

    # -------------------------------------------------------- growing

    def plan(self) -> Plan:
        """Grow kernels from the first free node on, then order them into steps."""
        for node in self.nodes:
            if self.free(node):
                self._take(*self._grow(node))
        return Plan(self.graph, steps_of(self._kernels(), self.graph.late))

    def _take(self, anchor: Anchor, members: list[Node]) -> None:
        for member in members:
            self.owner[member] = len(self.groups)
        self.groups.append((anchor, members))
        if len(members) > 1:
            self._spread()

    def _grow(self, root: Node) -> tuple[Anchor, list[Node]]:
        if is_tiled(root):
            return Anchor.LINEAR, self._stored(grow_linear(self, root))
        if root.name == "pack":
            return Anchor.PACK, [root]
        if root.name == "concat":
            return Anchor.PIECE, [root]
        if root.name == "foreign":
            key = root.attr("key")
            same = [n for n in self.nodes if n.name == "foreign" and n.attr("key") == key]
            return Anchor.FOREIGN, same
        if root.primitive.define is None:
            return Anchor.SCAN, [root]
        if root.primitive.reduced is not None and not reduces_last(root):
            return Anchor.REDUCE, _RowGrowth(self, root, root).grow()
        full = root.inputs[0] if root.primitive.reduced is not None else root
        members = _RowGrowth(self, root, full).grow()
        has_rows = any(m.primitive.reduced is not None for m in members)
        return (Anchor.ROWS if has_rows else Anchor.ELEMENTWISE), members

    def _stored(self, members: list[Node]) -> list[Node]:
        """The members up to the tensor that is stored: readers follow trailing reshapes, a transpose is stored."""
        last = members[-1]
        if last not in self.inline:
            return members
        if last.name == "reshape" and last not in self.outputs:
            return self._stored(members[:-1])
        self.inline.discard(last)
        return members

    def _kernels(self) -> list[Kernel]:
        result: list[Kernel] = []
        for anchor, members in self.groups:
            inside = set(members)
            reads = dict.fromkeys(
                leaf for m in members for leaf in self.leaves(m) if leaf not in inside
            )
            if anchor is Anchor.PIECE:
                for k, source in enumerate(members[0].inputs):
                    own = self.leaves(source) if source in self.inline else [source]
                    result.append(Kernel(anchor, (members[0],), tuple(own), (members[0],), k))
                continue
            if anchor is Anchor.FOREIGN:
                own_inputs = tuple(dict.fromkeys(members[0].inputs))
                result.append(Kernel(anchor, tuple(members), own_inputs, tuple(members)))
                continue
            if anchor is Anchor.LINEAR:
                writes: tuple[Node, ...] = (members[-1],)
            else:
                writes = tuple(m for m in members if self._is_open(m, inside))
            result.append(Kernel(anchor, tuple(members), tuple(reads), writes))
        return result

    def _is_open(self, member: Node, inside: set[Node]) -> bool:
        if member in self.outputs:
            return True
        direct = [u for u in self.readers[member] if u not in inside]
        return any(u not in self.inline or self._escapes(u, inside) for u in direct)

    def _escapes(self, node: Node, inside: set[Node]) -> bool:
        """Whether an inlined reader leads to a kernel outside."""
        if node in self.outputs:
            return True
        return any(u not in inside for u in self.following(node))


class _RowGrowth:
    """A kernel over the shape of `full`, with or without reductions over its last axes."""

    def __init__(self, growth: _Growth, root: Node, full: Node) -> None:
        self.growth, self.root = growth, root
        self.places = Places(growth.inline, root, full)
        self.places.add(root)

    def grow(self) -> list[Node]:
        """Members in order, the root first."""
        members = [self.root]
        waiting = self.growth.following(self.root)
        while waiting:
            node = waiting.pop(0)
            known = node in self.places.placed
            if known or not self.growth.free(node) or not self._joins(node, members):
                continue
            members.append(node)
            members.sort(key=lambda n: self.growth.position[n])
            waiting.extend(u for u in self.growth.following(node) if u not in waiting)
            waiting.sort(key=lambda n: self.growth.position[n])
        return members

    def _joins(self, node: Node, members: list[Node]) -> bool:
        """Whether `node` can be computed where its inputs are; then it is placed."""
        mask = self.growth.mask(members)
        outside = [leaf for leaf in self.growth.awaited(node) if leaf not in self.places.placed]
        if any(self.growth.depends(leaf, mask) for leaf in outside):
            return False
        return self.places.add(node)


def steps_of(kernels: list[Kernel], late: Mapping[str, Node]) -> tuple[Step, ...]:
    """Kernels in dependence order; a kernel joins the step before it when it reads nothing that step writes.

    late: as in `Graph`; a kernel waits for all that tells an extent it depends on. A call is a step of its own and
    comes when nothing native is left to do without it.
    """
    writer_left = {out: 0 for kernel in kernels for out in kernel.outputs}
    for kernel in kernels:
        for out in kernel.outputs:
            writer_left[out] += 1
    waiting = {id(kernel): (*kernel.inputs, *givers(kernel, late)) for kernel in kernels}
    steps: list[Step] = []
    left = list(kernels)
    current: list[Kernel] = []
    while left or current:
        ready = (k for k in left if all(writer_left.get(i, 0) == 0 for i in waiting[id(k)]))
        foreign: list[Kernel] = []
        native: Kernel | None = None
        for kernel in ready:
            if not kernel.is_call:
                native = kernel
                break
            foreign.append(kernel)
        if native is not None:
            left.remove(native)
            current.append(native)
            continue
        if not current:
            if not foreign:
                raise ValueError("kernels of the plan wait for each other")
            left.remove(foreign[0])
            current = foreign[:1]
        steps.append(Step(tuple(current)))
        for kernel in current:
            for out in kernel.outputs:
                writer_left[out] -= 1
        current = []
    return tuple(steps)
