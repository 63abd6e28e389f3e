"""The primitive graph: hash-consed nodes, each one primitive applied to inputs, with an inferred type (DESIGN 3.2).

A node has one output and is `(primitive, inputs, attributes)`; equal nodes are one object, so common subexpressions are
free and equality is identity. Types are inferred when a node is made. A `Graph` names what goes in and what comes out;
`evaluate` is its meaning in numpy and the oracle of everything later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from fissile.ir.dim import Dim, DimLike, equal, symbol
from fissile.ir.dim import evaluate as evaluate_dim
from fissile.ir.dim import substitute as substitute_dim
from fissile.ir.dim import symbols as symbols_of
from fissile.ir.dtype import DType, from_numpy
from fissile.ir.intern import Interned

PLAIN = "plain"


@dataclass(frozen=True)
class TensorType:
    """What a tensor is: element type, extents (numbers or symbolic), and the format it is held in (DESIGN 3.4)."""

    dtype: DType
    shape: tuple[DimLike, ...]
    format: str = PLAIN

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, eq=False)
class Data:
    """A constant's value, compared by `digest`: of type, shape and bytes, or of what it is made of and how.

    shape: its extents. made: makes the array, once, when it is first asked for.
    """

    digest: str
    shape: tuple[int, ...]
    made: Callable[[], np.ndarray]

    @cached_property
    def array(self) -> np.ndarray:
        """The elements, read-only and C-contiguous."""
        return _still(self.made())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Data) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __str__(self) -> str:
        return f"<{self.digest[:8]}>"

    def __repr__(self) -> str:
        return f"Data({self.digest})"  # the same in every process


def data(array: np.ndarray) -> Data:
    """Wrap an array for use as an attribute; the array is made read-only and C-contiguous."""
    array = _still(array)
    digest = hashlib.blake2b(f"{array.dtype.str}{array.shape}".encode(), digest_size=16)
    digest.update(array.reshape(-1).view(np.uint8).data)  # the bytes, not a copy
    return Data(digest.hexdigest(), array.shape, lambda: array)


def data_later(
    source: Data, how: str, shape: tuple[int, ...], make_of: Callable[[np.ndarray], np.ndarray]
) -> Data:
    """What `make_of` makes of another constant, computed when it is first asked for.

    how: names the function; equal names and equal sources mean equal results, of `shape` and of the source's type.
    """
    digest = hashlib.blake2b(f"{how} {source.digest} {shape}".encode(), digest_size=16)
    return Data(digest.hexdigest(), shape, lambda: make_of(source.array))


def _still(array: np.ndarray) -> np.ndarray:
    array = np.ascontiguousarray(array).reshape(array.shape)
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


class Constraints:
    """Collects what a type rule needs: equalities that are refuted raise, unknown ones are kept for guards."""

    def __init__(self) -> None:
        self.unknown: list[tuple[DimLike, DimLike]] = []

    def equal(self, a: DimLike, b: DimLike, what: str) -> None:
        """Demand a == b. ValueError when that is provably wrong."""
        verdict = equal(a, b)
        if verdict is False:
            raise ValueError(f"{what}: {a} is not {b}")
        if verdict is None:
            self.unknown.append((a, b))


Attrs = Mapping[str, Any]
Infer = Callable[[tuple[TensorType, ...], Attrs, Constraints], TensorType]


@dataclass(frozen=True, eq=False)
class Primitive:
    """One row of the primitive table.

    kind: "leaf", "elementwise", "reduce", "broadcast", "layout", "linear" or "opaque" (Korch section 3).
    infer: type rule. reference: numpy meaning on concrete attributes.
    define: compute definition (`fissile.ir.primitive.Define`), None where nothing fuses across.
    reduced: extents of the reduction axes of the definition, in order; combine: their scalar operator.
    """

    name: str
    kind: str
    infer: Infer
    reference: Callable[..., np.ndarray]
    define: Callable[..., Any] | None = None
    reduced: Callable[[Node], tuple[DimLike, ...]] | None = None
    combine: str = ""

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Node(metaclass=Interned):
    """A primitive applied. `attrs` is a sorted tuple of (name, hashable value); make nodes with `make`."""

    primitive: Primitive
    inputs: tuple[Node, ...]
    attrs: tuple[tuple[str, Hashable], ...]
    type: TensorType

    def attr(self, name: str) -> Any:
        """The attribute called `name`; KeyError when there is none."""
        for key, value in self.attrs:
            if key == name:
                return value
        raise KeyError(name)

    @property
    def name(self) -> str:
        """The primitive's name."""
        return self.primitive.name

    @property
    def shape(self) -> tuple[DimLike, ...]:
        """The extents of the output."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """The element type of the output."""
        return self.type.dtype

    def __repr__(self) -> str:
        attrs = ", ".join(f"{k}={v}" for k, v in self.attrs)
        return f"{self.name}({attrs}): {self.type}"


def make(primitive: Primitive, *inputs: Node, **attrs: Hashable) -> Node:
    """The node `primitive(inputs, attrs)`, its type inferred. ValueError when the type rule refuses."""
    inferred = primitive.infer(tuple(i.type for i in inputs), attrs, Constraints())
    return Node(primitive, inputs, tuple(sorted(attrs.items())), inferred)


@dataclass(frozen=True)
class Guard:
    """left == right must hold for the shapes of a call; `message` says in the user's words what is compared."""

    left: DimLike
    right: DimLike
    message: str


@dataclass(frozen=True)
class Graph:
    """Inputs and named outputs; `origins`: the ONNX nodes a primitive serves (for reports only).

    late: for every symbol whose number depends on data, the node that has it as an extent. Whoever mentions the symbol
    waits for that node, and keeps it alive.
    """

    inputs: tuple[Node, ...]
    outputs: tuple[tuple[str, Node], ...]
    origins: Mapping[Node, tuple[str, ...]] = field(default_factory=dict)
    guards: tuple[Guard, ...] = ()
    late: Mapping[str, Node] = field(default_factory=dict)

    def nodes(self) -> list[Node]:
        """All live nodes, producers first, in a deterministic order."""
        return [*self._order]

    @cached_property
    def _order(self) -> list[Node]:
        return toposort((node for _, node in self.outputs), self.late)

    def changed(
        self, outputs: tuple[tuple[str, Node], ...], made: Mapping[Node, Node] | None = None
    ) -> Graph:
        """The graph with other outputs; `made` answers what stands for a node now."""
        late = {name: (made or {}).get(node, node) for name, node in self.late.items()}
        return replace(self, outputs=outputs, late=late)


def waits_for(node: Node, late: Mapping[str, Node]) -> tuple[Node, ...]:
    """What must be computed before `node`: its inputs, and what gives the numbers of symbols it mentions."""
    if not late:
        return node.inputs
    givers = (late.get(name) for name in mentioned(node))
    found = (g for g in givers if g is not None and g is not node)
    return tuple(dict.fromkeys((*node.inputs, *found)))


def mentioned(node: Node) -> tuple[str, ...]:
    """The names of the symbols in the node's extents and attributes."""
    found: dict[str, None] = {}
    stack: list[Any] = [node.shape, *(value for _, value in node.attrs)]
    while stack:
        value = stack.pop()
        if isinstance(value, Dim):
            found.update(dict.fromkeys(s.name for s in symbols_of(value)))
        elif isinstance(value, tuple):
            stack.extend(value)
    return tuple(found)


def toposort(roots: Iterable[Node], late: Mapping[str, Node] | None = None) -> list[Node]:
    """Every node the roots need, each after what it waits for; the order depends on the graph alone."""
    givers = late or {}
    order: list[Node] = []
    seen: set[Node] = set()
    for root in roots:
        stack = [(root, False)]
        while stack:
            node, done = stack.pop()
            if done:
                order.append(node)
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                needed = waits_for(node, givers) if givers else node.inputs
                stack.extend([(i, False) for i in reversed(needed) if i not in seen])
    return order


def users(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    """For each node, who reads it (once per reading node), in order."""
    result: dict[Node, list[Node]] = {}
    for node in nodes:
        result.setdefault(node, [])
        for source in dict.fromkeys(node.inputs):
            result.setdefault(source, []).append(node)
    return result


def show(graph: Graph) -> str:
    """The graph as text: a line for every node, output and guard."""
    numbers = {n: k for k, n in enumerate(graph.nodes())}
    lines = []
    for node, k in numbers.items():
        attrs = ", ".join(f"{key}={_attr_text(value)}" for key, value in node.attrs)
        reads = ", ".join(f"%{numbers[i]}" for i in node.inputs)
        lines.append(f"%{k}: {node.type} = {node.name}({', '.join(x for x in (reads, attrs) if x)})")
    lines += [f"output {name} = %{numbers[n]}" for name, n in graph.outputs]
    lines += [f"guard {g.left} == {g.right}  {g.message}" for g in graph.guards]
    return "\n".join(lines)


def _attr_text(value: Any) -> str:
    """`str`, but for tuples of extents, whose members Python would show by `repr`."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_attr_text, value))}{',' * (len(value) == 1)})"
    return str(value)


def map_graph(graph: Graph, change: Callable[[Node], Node | None]) -> Graph:
    """Rebuild the graph producers first; `change`, given a rebuilt node, may answer its replacement."""
    made: dict[Node, Node] = {}
    origins: dict[Node, tuple[str, ...]] = {}
    for node in graph.nodes():
        inputs = tuple(made[i] for i in node.inputs)
        new = node
        if inputs != node.inputs:
            new = make(node.primitive, *inputs, **dict(node.attrs))
        replacement = change(new)
        made[node] = new if replacement is None else replacement
        _inherit(origins, made[node], graph.origins.get(node, ()))
    outputs = tuple((name, made[node]) for name, node in graph.outputs)
    inputs = tuple(made.get(i, i) for i in graph.inputs)
    return replace(graph.changed(outputs, made), inputs=inputs, origins=origins)


def _inherit(origins: dict[Node, tuple[str, ...]], node: Node, names: tuple[str, ...]) -> None:
    """Give `node`, and what was newly made below it, the names of the node it replaces."""
    stack = [node]
    while stack:
        current = stack.pop()
        known = origins.get(current)
        if known is None or current is node:
            merged = dict.fromkeys((known or ()) + names)
            origins[current] = tuple(merged)
        if known is None:
            stack.extend(i for i in current.inputs if i not in origins)


def constraints(graph: Graph) -> Iterator[tuple[Node, DimLike, DimLike]]:
    """Equalities of extents that no proof settles: they become guards at entry."""
    seen: set[tuple[DimLike, DimLike]] = set()
    for node in graph.nodes():
        found = Constraints()
        node.primitive.infer(tuple(i.type for i in node.inputs), dict(node.attrs), found)
        for a, b in found.unknown:
            if (a, b) not in seen:
                seen.add((a, b))
                yield node, a, b


def bind(value: Any, symbols: Mapping[str, int]) -> Any:
    """`value` with every symbolic extent in it replaced by its number."""
    if isinstance(value, Dim):
        return evaluate_dim(value, symbols)
    if isinstance(value, tuple):
        return tuple(bind(v, symbols) for v in value)
    return value


def bind_partial(value: Any, symbols: Mapping[str, DimLike]) -> Any:
    """`value` with some symbols replaced by other extents."""
    if isinstance(value, Dim):
        return substitute_dim(value, symbols)
    if isinstance(value, tuple):
        return tuple(bind_partial(v, symbols) for v in value)
    return value


Foreign = Callable[[bytes, list[np.ndarray]], Sequence[np.ndarray]]


def rounds(graph: Graph) -> bool:
    """Whether values are rounded to a half type: another order of sums would show in the few digits that are left.

    Such a graph is neither substituted nor given to other packages, so that every plan of it gives the same bits.
    """
    return any(n.name == "cast" and n.dtype.is_half for n in graph.nodes())


def evaluate(
    graph: Graph,
    feeds: Mapping[str, np.ndarray],
    symbols: Mapping[str, int],
    foreign: Foreign | None = None,
) -> dict[str, np.ndarray]:
    """The graph's outputs by name, computed node by node in numpy: the meaning of a primitive graph.

    feeds: arrays by input name, of exactly the declared types. symbols: the numbers of the free dimensions.
    foreign: runs a serialized one-operator model on its inputs, for the nodes that are foreign.
    """
    values: dict[Node, np.ndarray] = {}
    extents = dict(symbols)
    calls: dict[Hashable, Sequence[np.ndarray]] = {}
    for node in graph.nodes():
        if node.name == "input":
            values[node] = np.asarray(feeds[node.attr("name")])
        elif node.name == "foreign":
            arrays = [values[i] for i in node.inputs]
            values[node] = call_foreign(node, arrays, extents, calls, foreign)
        else:
            attrs = {k: bind(v, extents) for k, v in node.attrs}
            result = node.primitive.reference(*(values[i] for i in node.inputs), **attrs)
            values[node] = np.asarray(result)
        want = bind(node.shape, extents)
        if values[node].shape != want or from_numpy(values[node].dtype).bits != node.dtype.bits:
            got = f"{values[node].dtype}{values[node].shape}"
            raise AssertionError(f"{node} evaluated to {got}, not {node.dtype}{want}")
    return {name: values[node] for name, node in graph.outputs}


def call_foreign(
    node: Node,
    arrays: list[np.ndarray],
    extents: dict[str, int],
    calls: dict[Hashable, Sequence[np.ndarray]],
    foreign: Foreign | None,
) -> np.ndarray:
    """The value of a foreign node; `extents` learns its fresh symbols, `calls` keeps what an operator gave at once."""
    if foreign is None:
        raise ValueError(f"{node.attr('key')} is foreign, and nothing is given to run it")
    key = (node.attr("key"), node.inputs)
    if key not in calls:
        calls[key] = foreign(node.attr("model").array.tobytes(), arrays)
    value = np.asarray(calls[key][node.attr("output")])
    for extent, n in zip(node.shape, value.shape):
        if isinstance(extent, Dim) and (name := plain_symbol(extent)) is not None:
            extents.setdefault(name, n)
    return value


def plain_symbol(extent: Dim) -> str | None:
    """The name of the symbol that the extent is, None when it is an expression."""
    found = symbols_of(extent)
    return found[0].name if len(found) == 1 and extent is symbol(found[0].name, found[0].lower) else None
