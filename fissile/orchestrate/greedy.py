"""One greedy plan: every kernel grows from its root along its readers as far as it can be one kernel.

In: a canonical primitive graph. Out: a `Plan`. Linear primitives take the elementwise primitives and the reshapes and
transposes behind them; reductions over the last axes take what surrounds them row by row; elementwise primitives over
one shape go together. Invariant: kernels are convex, so the steps are acyclic.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Mapping

from fissile.ir.graph import Graph, Node, users, waits_for
from fissile.orchestrate.formats import is_tiled, own_outputs, pack_operands
from fissile.orchestrate.grow_linear import Waiting, grow_linear
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
        self.calls: dict[str, list[Node]] = {}
        for node in self.nodes:
            if node.name == "foreign":
                self.calls.setdefault(node.attr("key"), []).append(node)

    # -------------------------------------------------------- dependence

    def depends(self, node: Node, root: Node, members: Collection[Node]) -> bool:
        """Whether `node` waits for one of the members, the first of which is the root.

        What a kernel's member waits for, those after it wait for, too. Nothing before the root needs a look.
        """
        first, late = self.position[root], self.graph.late
        looked: dict[int, int] = {}  # per kernel, how many of its members have been looked at
        seen, stack = {node}, [node]
        while stack:
            current = stack.pop()
            if current in members:
                return True
            if self.position[current] <= first:
                continue
            needed = [*waits_for(current, late), *self._mates(current, looked)]
            stack.extend(n for n in needed if n not in seen)
            seen.update(needed)
        return False

    def _mates(self, node: Node, looked: dict[int, int]) -> list[Node]:
        """The members before `node` in its kernel that have not been looked at."""
        group = self.owner.get(node)
        if group is None:
            return []
        mates, begin = self.groups[group][1], looked.get(group, 0)
        end = bisect_left(mates, self.position[node], key=lambda n: self.position[n])
        looked[group] = max(begin, end)
        return mates[begin:end]

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
        self.groups.append((anchor, sorted(members, key=lambda n: self.position[n])))

    def _grow(self, root: Node) -> tuple[Anchor, list[Node]]:
        if is_tiled(root):
            return Anchor.LINEAR, self._stored(grow_linear(self, root))
        if root.name == "pack":
            return Anchor.PACK, [root]
        if root.name == "concat":
            return Anchor.PIECE, [root]
        if root.name == "foreign":
            return Anchor.FOREIGN, self.calls[root.attr("key")]
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


_ALONE = ("concat", "pack", "foreign")  # these are kernels of their own
LONGEST = 500  # primitives of one kernel: the time of LLVM grows faster than its functions


class _RowGrowth:
    """A kernel over the shape of `full`, with or without reductions over its last axes."""

    def __init__(self, growth: _Growth, root: Node, full: Node) -> None:
        self.growth, self.root = growth, root
        self.places = Places(growth.inline, root, full)
        self.places.add(root)

    def grow(self) -> list[Node]:
        """Members in order, the root first."""
        members = [self.root]
        inside = {self.root}
        position = self.growth.position
        waiting = Waiting(position, self.growth.following(self.root))
        while waiting and len(members) < LONGEST:
            node = waiting.first()
            known = node in self.places.placed
            if known or not self.growth.free(node) or not self._joins(node, inside):
                continue
            insort(members, node, key=lambda n: position[n])
            inside.add(node)
            waiting.add(self.growth.following(node))
        return members

    def _joins(self, node: Node, inside: Collection[Node]) -> bool:
        """Whether `node` can be computed where its inputs are; then it is placed."""
        if node.name in _ALONE:
            return False
        outside = [leaf for leaf in self.growth.awaited(node) if leaf not in self.places.placed]
        if any(self.growth.depends(leaf, self.root, inside) for leaf in outside):
            return False
        return self.places.add(node)


def steps_of(kernels: list[Kernel], late: Mapping[str, Node]) -> tuple[Step, ...]:
    """Kernels in dependence order; a kernel joins the step before it when it reads nothing that step writes.

    late: as in `Graph`; a kernel waits for all that tells an extent it depends on. A call is a step of its own and
    comes when nothing native is left to do without it.
    """
    writers_left = Counter(out for kernel in kernels for out in kernel.outputs)
    waits = [
        {i for i in (*kernel.inputs, *givers(kernel, late)) if i in writers_left} for kernel in kernels
    ]
    left = [len(needed) for needed in waits]
    readers: dict[Node, list[int]] = {}
    for number, needed in enumerate(waits):
        for node in needed:
            readers.setdefault(node, []).append(number)
    natives, calls = list[int](), list[int]()  # heaps of those that are ready

    def begin(number: int) -> None:
        heapq.heappush(calls if kernels[number].is_call else natives, number)

    for number, count in enumerate(left):
        if count == 0:
            begin(number)
    steps: list[Step] = []
    while natives or calls:
        chosen = [heapq.heappop(calls)] if not natives else []
        while natives:
            chosen.append(heapq.heappop(natives))
        steps.append(Step(tuple(kernels[k] for k in chosen)))
        for out in (o for k in chosen for o in kernels[k].outputs):
            writers_left[out] -= 1
            for reader in readers[out] if out in readers and writers_left[out] == 0 else ():
                left[reader] -= 1
                if left[reader] == 0:
                    begin(reader)
    if any(left):
        raise ValueError("kernels of the plan wait for each other")
    return tuple(steps)
