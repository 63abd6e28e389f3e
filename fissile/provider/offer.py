"""What another package may run, as candidates of the program (DESIGN 3.4; Korch section 5.2).

In: the candidates of a graph. Out: the same with more of them: for OpenBLAS products of two matrices, for the others
the heavy kernels of the greedy plan, and windows of it up to the whole; each with the kernels of ours that it would
replace, and on demand the graph and the ONNX model that it means. Invariant: what goes in and out is stored plainly, in
types that numpy has; nothing is exported before somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fissile.fission.export import export
from fissile.ir.dim import Dim, solve
from fissile.ir.graph import PLAIN, Graph, Node, make, mentioned, rounds
from fissile.ir.primitive import INPUT
from fissile.optimizer import fits
from fissile.orchestrate.candidates import Candidate, Candidates
from fissile.orchestrate.plan import Anchor, Kernel, is_stored_leaf

MOST_UNITS = 50  # of a window, as many primitives as the windows that are solved have
CROSSING = 2  # tensors that a cut between windows may cross
HEAVY = (Anchor.LINEAR, Anchor.CHAIN)  # kernels that are offered by themselves
OPENBLAS = "openblas"
_TYPES = ("float32", "float64", "int32", "int64", "bool", "int8", "uint8")


class Refused(ValueError):
    """Why a package cannot run a kernel."""


@dataclass(frozen=True)
class Offered:
    """candidates: with the offers behind the others. parts: of every offer, the kernels of ours for the same."""

    candidates: Candidates
    parts: Mapping[Kernel, tuple[Kernel, ...]]


def offered(found: Candidates, providers: Sequence[str]) -> Offered:
    """The candidates with all that the providers may run; that is nothing of a graph that `rounds`."""
    if rounds(found.units.graph):
        return Offered(found, {})
    search = _Offers(found)
    more: dict[Candidate, tuple[Kernel, ...]] = {}
    for provider in providers:
        rows = search.products() if provider == OPENBLAS else search.windows(provider)
        for candidate, parts in rows:
            more.setdefault(candidate, parts)
    by_kernel = {candidate.kernel: parts for candidate, parts in more.items()}
    return Offered(replace(found, all=(*found.all, *more)), by_kernel)


class _Offers:
    """The candidates of a graph, and where its greedy plan may be cut."""

    def __init__(self, found: Candidates) -> None:
        self.found, self.units = found, found.units
        self.position = {n: k for k, n in enumerate(self.units.graph.nodes())}
        self.order = [found.all[k] for k in dict.fromkeys(found.greedy)]

    def products(self) -> Iterator[tuple[Candidate, tuple[Kernel, ...]]]:
        """Every product of stored rows and a constant matrix, for OpenBLAS."""
        for number, unit in enumerate(self.units.all):
            product = unit.value
            operands = _operands(product, self.units.followed)
            if operands is None or _unfit((operands[0], product), self.units.graph):
                continue
            kernel = Kernel(Anchor.PACKAGE, unit.nodes, operands, (product,), 0, OPENBLAS)
            parts = next((c.kernel for c in self.order if number in c.executes), None)
            reads = self.units.reads[number]
            row = Candidate(kernel, reads, (number,), frozenset((number,)))
            yield row, () if parts is None else (parts,)

    def windows(self, provider: str) -> Iterator[tuple[Candidate, tuple[Kernel, ...]]]:
        """Heavy kernels by themselves, and runs of kernels between cuts, each once."""
        spans = [(k, k + 1) for k, c in enumerate(self.order) if c.kernel.anchor in HEAVY]
        for first, last in dict.fromkeys((*spans, *self._spans())):
            part = self.order[first:last]
            candidate = self._window(provider, part)
            if candidate is not None:
                yield candidate, tuple(c.kernel for c in part)

    def _spans(self) -> Iterator[tuple[int, int]]:
        """Runs of kernels, first and behind the last: of 1, 2, 4... pieces between cuts, overlapping; and of all."""
        cuts = self._cuts()
        length = 1
        while length < len(cuts):
            for at in range(0, len(cuts) - length, max(1, length // 2)):
                first, last = cuts[at], cuts[at + length]
                size = len(frozenset[int]().union(*(c.executes for c in self.order[first:last])))
                if last - first > 1 and size <= MOST_UNITS:
                    yield first, last
            length *= 2
        if len(self.order) > 1:
            yield 0, len(self.order)

    def _cuts(self) -> list[int]:
        """The places in the order that at most CROSSING values cross, begin and end among them."""
        made: dict[int, int] = {}
        last: dict[int, int] = {}
        for at, candidate in enumerate(self.order):
            for unit in candidate.writes:
                made.setdefault(unit, at)
            last.update(dict.fromkeys(candidate.reads, at))
        count = [0] * (len(self.order) + 1)
        for unit, at in made.items():
            for between in range(at + 1, last.get(unit, at) + 1):
                count[between] += 1
        ends = (0, len(self.order))
        return [k for k, crossing in enumerate(count) if k in ends or crossing <= CROSSING]

    def _window(self, provider: str, part: Sequence[Candidate]) -> Candidate | None:
        """The kernels as one; None where it cannot be said as a model of plain tensors."""
        units, graph = self.units, self.units.graph
        inside = frozenset[int]().union(*(c.executes for c in part))
        reads = tuple(sorted({r for u in inside for r in units.reads[u]} - inside))
        needed = set(units.needed)
        writes = tuple(
            u for u in sorted(inside)
            if u in needed or any(r not in inside for r in units.readers[u])
        )  # fmt: skip
        values = dict.fromkeys(units.all[u].value for u in sorted(inside))
        if any(n.name == "foreign" or not inside.issuperset(units.of[n]) for n in values):
            return None
        given = dict.fromkeys(units.all[u].value for u in reads)
        outputs = tuple(dict.fromkeys(units.all[u].value for u in writes))
        inputs = _with_extents(_inputs(outputs, given), outputs, graph)
        if not outputs or _unfit((*(n for n in inputs if _is_argument(n)), *outputs), graph):
            return None
        inner = {n for u in inside for n in units.all[u].nodes}
        nodes = tuple(sorted(inner, key=self.position.__getitem__))
        kernel = Kernel(Anchor.PACKAGE, nodes, inputs, outputs, 0, provider)
        return Candidate(kernel, reads, writes, inside)


def _operands(product: Node, followed: Collection[Node]) -> tuple[Node, Node] | None:
    """The stored rows and the weight of a product of two matrices in float32; None for anything else."""
    if product.name != "matmul" or product.type.rank != 2:
        return None
    left, right = product.inputs
    while left.name == "reshape" and left in followed:
        left = left.inputs[0]
    weight = right.inputs[0] if right.name == "pack" else right
    plain = left not in followed and weight.name == "constant"
    same = all(n.dtype.name == "float32" for n in (left, weight, product))
    return (left, weight) if plain and same else None


def _inputs(outputs: Sequence[Node], given: Collection[Node]) -> tuple[Node, ...]:
    """What is in memory of all that the outputs are computed from: `given`, inputs of the graph, constants."""
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = [*outputs]
    while stack:
        node = stack.pop()
        if node in given or is_stored_leaf(node):
            found[node] = None
        elif node not in seen:
            seen.add(node)
            stack.extend(node.inputs)
    return tuple(found)


def _with_extents(
    inputs: tuple[Node, ...], outputs: Sequence[Node], graph: Graph
) -> tuple[Node, ...]:
    """With inputs of the graph that tell those extents inside which the others do not."""
    told = {s for n in inputs if _is_argument(n) for s in _told(n)}
    seen: set[Node] = {*inputs}
    stack, missing = [*outputs], dict[str, None]()
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            missing.update((s, None) for s in mentioned(node) if s not in told)
            stack.extend(node.inputs)
    tellers = (n for s in missing for n in graph.inputs if s in _told(n))
    return tuple(dict.fromkeys((*inputs, *tellers)))


def _told(node: Node) -> set[str]:
    """The free extents that the shape of a tensor tells."""
    found = (solve(d) for d in node.shape if isinstance(d, Dim))
    return {row[0].name for row in found if row is not None}


def _unfit(nodes: Sequence[Node], graph: Graph) -> bool:
    """Whether one of the tensors is held in panels, of a type that not all packages have, or of late extents."""
    return any(
        n.type.format != PLAIN
        or n.name == "pack"
        or n.dtype.name not in _TYPES
        or (graph.late and any(name in graph.late for name in mentioned(n)))
        for n in nodes
    )


def _is_argument(node: Node) -> bool:
    return not is_stored_leaf(node) or node.name == "input"


def arguments(kernel: Kernel) -> tuple[Node, ...]:
    """What a package is called with, in order: OpenBLAS gets the weight beside the rows, others have constants."""
    if kernel.provider == OPENBLAS:
        return kernel.inputs
    return tuple(n for n in kernel.inputs if _is_argument(n))


def graph_of(kernel: Kernel) -> Graph:
    """What the kernel means: inputs i0, i1... in the order of its arguments -> o0, o1..."""
    reads = arguments(kernel)
    inputs = [
        make(INPUT, name=f"i{k}", dtype=n.dtype.name, shape=n.shape) for k, n in enumerate(reads)
    ]
    made = dict(zip(reads, inputs, strict=True))
    if kernel.provider == OPENBLAS:
        right = kernel.outputs[0].inputs[1]
        made[right] = made[kernel.inputs[1]]
    outputs = tuple((f"o{k}", rebuilt(n, made)) for k, n in enumerate(kernel.outputs))
    return Graph(tuple(inputs), outputs)


def model_of(kernel: Kernel) -> bytes:
    """The serialized ONNX model of a kernel. Refused where an extent or a primitive cannot be said in one."""
    try:
        model = export(graph_of(kernel))
    except KeyError as error:
        raise Refused(f"no input tells {error.args[0]}") from error
    except ValueError as error:
        raise Refused(str(error)) from error
    if not fits(model):
        raise Refused("its model is over 2 GB")
    return bytes(model.SerializeToString(deterministic=True))


def rebuilt(root: Node, made: dict[Node, Node]) -> Node:
    """`root` above what `made` says nodes have become; it learns all that is on the way."""
    stack = [root]
    while stack:
        node = stack[-1]
        missing = [i for i in node.inputs if i not in made]
        if node in made or not missing:
            stack.pop()
            if node not in made:
                inputs = tuple(made[i] for i in node.inputs)
                same = inputs == node.inputs
                made[node] = node if same else make(node.primitive, *inputs, **dict(node.attrs))
        else:
            stack.extend(missing)
    return made[root]
