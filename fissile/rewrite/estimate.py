"""What a primitive graph costs at least by a simple model: the guide of the substitution search.

In: a graph and a machine's rates. Out: seconds. Primitives are grouped into kernels: elementwise primitives join the
linear primitive that makes their operand, or reductions over the last axes and each other; layouts that can be
followed cost nothing. A kernel takes the longer of its arithmetic and its traffic, and the cost of a dispatch.
Invariant: additive over kernels, deterministic, no measuring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

from fissile.ir.dim import DimLike
from fissile.ir.dim import evaluate as evaluate_dim
from fissile.ir.dim import symbols as symbols_of
from fissile.ir.graph import Graph, Node, users

_FOLLOWED = frozenset({"reshape", "broadcast", "window", "dilate", "slice", "iota", "extents"})
_LEAVES = frozenset({"input", "constant"})
_PART = frozenset({"gather", "slice"})
_LANES = 16  # columns of a product are computed in whole vectors
_DEPTH = 8  # a product over few channels still loads and stores its tile
_TYPICAL = 64  # the number of a symbol nobody tells
_SLOW = {"div": 4, "sqrt": 6, "exp": 10, "erf": 14, "tanh": 12, "sigmoid": 14, "pow": 24, "log": 12}

Cost = Callable[[Graph], float]


@dataclass(frozen=True)
class Rates:
    """A machine: operations per second in products and elsewhere, bytes per second near and far, seconds per kernel.

    near_bytes: tensors up to this size are read from a cache.
    """

    products: float = 1.2e11
    others: float = 2e10
    near: float = 4e10
    far: float = 1.2e10
    near_bytes: int = 1 << 20
    dispatch: float = 2e-6


def estimator(rates: Rates | None = None, extents: Mapping[str, int] | None = None) -> Cost:
    """The cost function of a machine. extents: numbers of symbols, 64 (or what they are at least) for the others."""
    sizes = _Sizes(rates or Rates(), dict(extents or {}))
    return lambda graph: _Grouping(graph, sizes).seconds()


def estimate(graph: Graph, rates: Rates | None = None) -> float:
    """Seconds of one graph.

    >>> from fissile.ir.primitive import INPUT, PRIMITIVES
    >>> from fissile.ir.graph import make
    >>> x = make(INPUT, name="x", dtype="float32", shape=(64, 64))
    >>> square = Graph((x,), (("y", make(PRIMITIVES["matmul"], x, x)),))
    >>> estimate(square) > 0
    True
    """
    return estimator(rates)(graph)


@dataclass
class _Sizes:
    """What single nodes cost, remembered."""

    rates: Rates
    extents: dict[str, int]
    bytes: dict[Node, int] = field(default_factory=dict)
    times: dict[Node, float] = field(default_factory=dict)

    def number(self, extent: DimLike) -> int:
        if isinstance(extent, int):
            return extent
        known = {
            s.name: self.extents.get(s.name, max(s.lower or 0, _TYPICAL))
            for s in symbols_of(extent)
        }
        return max(evaluate_dim(extent, known), 0)

    def count(self, shape: Iterable[DimLike]) -> int:
        return prod(self.number(d) for d in shape)

    def size(self, node: Node) -> int:
        if node not in self.bytes:
            self.bytes[node] = self.count(node.shape) * node.dtype.bytes
        return self.bytes[node]

    def arithmetic(self, node: Node) -> float:
        if node not in self.times:
            self.times[node] = self._counted(node)
        return self.times[node]

    def traffic(self, size: int) -> float:
        rate = self.rates.near if size <= self.rates.near_bytes else self.rates.far
        return size / rate

    def _counted(self, node: Node) -> float:
        kind = node.primitive.kind
        if kind == "linear":
            return self._product(node)
        if kind == "reduce":
            return self.count(node.inputs[0].shape) / self.rates.others
        if kind == "elementwise":
            return self.count(node.shape) * _SLOW.get(node.name, 1) / self.rates.others
        moves = node.name in ("gather", "transpose", "concat", "pad")
        return self.count(node.shape) / self.rates.others if moves else 0.0

    def _product(self, node: Node) -> float:
        reduced = node.primitive.reduced(node) if node.primitive.reduced is not None else ()
        depth = self.count(reduced)
        *lead, columns = map(self.number, node.shape)
        groups = node.attr("groups") if node.name == "conv" else 1
        if groups > 1 and groups == columns:
            return 2 * prod(lead) * columns * depth / self.rates.others
        each = -(-max(columns // groups, 1) // _LANES) * _LANES
        return 2 * prod(lead) * each * groups * (depth + _DEPTH) / self.rates.products


@dataclass
class _Kernel:
    """Primitives computed together. level: one more than the kernels they wait for. kind: what they grow around."""

    level: int
    kind: str
    rows: int
    members: list[Node]


class _Grouping:
    """The kernels of one graph: every primitive that is not followed is in one."""

    def __init__(self, graph: Graph, sizes: _Sizes) -> None:
        self.nodes = graph.nodes()
        self.sizes = sizes
        self.readers = users(self.nodes)
        self.outputs = {n for _, n in graph.outputs}
        self.of: dict[Node, _Kernel] = {}
        self.sources: dict[Node, tuple[Node, ...]] = {}  # what is read, through what is followed
        self.kernels: list[_Kernel] = []
        for node in self.nodes:
            self._place(node)

    def seconds(self) -> float:
        return sum(self._cost(k) for k in self.kernels if k.members)

    def _place(self, node: Node) -> None:
        if node.name in _LEAVES:
            self.sources[node] = (node,)
            return
        reads = tuple(dict.fromkeys(s for i in node.inputs for s in self.sources[i]))
        if node not in self.outputs and self._is_followed(node):
            self.sources[node] = reads
            return
        self.sources[node] = (node,)
        waits = [self.of[s] for s in reads if s in self.of]
        level = max((k.level for k in waits), default=0)
        top = {id(k): k for k in waits if k.level == level}
        kernel = self._joined(node, list(top.values()))
        if kernel is None:
            kernel = _Kernel(level + 1, node.primitive.kind, self._rows(node), [])
            self.kernels.append(kernel)
        kernel.members.append(node)
        self.of[node] = kernel

    def _is_followed(self, node: Node) -> bool:
        if node.name in _FOLLOWED:
            return True
        readers = self.readers[node]
        if node.name == "transpose":
            return all(r.name == "matmul" or r.primitive.kind == "elementwise" for r in readers)
        if node.name == "pad":
            return all(r.name in ("conv", "pad") for r in readers)
        is_layout = node.primitive.kind == "layout"
        return is_layout and all(r.primitive.kind == "elementwise" for r in readers)

    def _rows(self, node: Node) -> int:
        shape = node.inputs[0].shape if node.primitive.kind == "reduce" else node.shape
        return self.sizes.count(shape[:-1])

    def _joined(self, node: Node, top: list[_Kernel]) -> _Kernel | None:
        """The kernel that `node` joins; two that it joins both become one."""
        kind = node.primitive.kind
        if kind not in ("elementwise", "reduce") or not top:
            return None
        if kind == "reduce" and not _is_last(node):
            return None
        rows = self._rows(node)
        for kernel in top:
            if kernel.kind not in ("elementwise", "reduce", "linear") or kernel.rows != rows:
                return None
            if kernel.kind != "linear":
                continue
            is_whole = self.sizes.size(kernel.members[0]) == self.sizes.size(node)
            if kind != "elementwise" or len(top) > 1 or not is_whole:
                return None
        first, *others = top
        for other in others:
            first.members += other.members
            for member in other.members:
                self.of[member] = first
            other.members = []
        return first

    def _cost(self, kernel: _Kernel) -> float:
        inside = set(kernel.members)
        seen: set[Node] = set(inside)
        inputs: dict[Node, int] = {}
        arithmetic = 0.0
        stack = list(kernel.members)
        while stack:
            node = stack.pop()
            arithmetic += self.sizes.arithmetic(node)
            part = self.sizes.size(node) if node.name in _PART else None
            for source in node.inputs:
                if source in seen:
                    continue
                if source in self.of or source.name in _LEAVES:
                    size = self.sizes.size(source)
                    taken = size if part is None else min(size, part)
                    inputs[source] = min(size, inputs.get(source, 0) + taken)
                else:
                    seen.add(source)
                    stack.append(source)
        written = [n for n in kernel.members if self._is_seen(n, kernel)]
        moved = sum(map(self.sizes.traffic, map(self.sizes.size, written)))
        moved += sum(map(self.sizes.traffic, inputs.values()))
        return max(arithmetic, moved) + self.sizes.rates.dispatch

    def _is_seen(self, node: Node, kernel: _Kernel) -> bool:
        """Whether something outside the kernel reads `node`."""
        if node in self.outputs:
            return True
        stack = list(self.readers[node])
        seen: set[Node] = set()
        while stack:
            reader = stack.pop()
            owner = self.of.get(reader)
            if owner is not None and owner is not kernel:
                return True
            if owner is None and reader not in seen:
                seen.add(reader)
                stack.extend(self.readers[reader])
        return False


def _is_last(node: Node) -> bool:
    """Whether a reduction goes over the last axes of its operand."""
    axes, rank = node.attr("axes"), node.inputs[0].type.rank
    return tuple(axes) == tuple(range(rank - len(axes), rank)) and len(axes) > 0
