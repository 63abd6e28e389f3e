"""The plan: which kernels compute a primitive graph, in which steps (DESIGN 3.8).

A kernel is a set of primitives computed together; what it reads and writes is in memory, what lies between stays in
registers. Layout and broadcast primitives between kernels are not stored: the reader follows them (`inline`). A step is
a set of independent kernels that share one barrier interval. `evaluate` runs a plan kernel by kernel in numpy.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fissile.ir.dim import Dim, DimLike, symbols
from fissile.ir.graph import Foreign, Graph, Node, bind, call_foreign, mentioned, plain_symbol


class Anchor(enum.Enum):
    """What a kernel is built around, which decides how it is lowered."""

    LINEAR = "linear"  # matmul or convolution on register tiles, with its epilogue
    PACK = "pack"  # an operand into panels
    ROWS = "rows"  # reductions over the last axes and what surrounds them, row by row
    REDUCE = "reduce"  # any other reduction, its prologue inlined
    ELEMENTWISE = "elementwise"  # one loop nest over the output
    SCAN = "scan"  # arg_max and arg_min
    PIECE = "piece"  # one input of a concat, written into its place
    # A depthwise window and the products before and behind it, or a product, reductions over its rows, and the
    # product with that: what lies between is kept near.
    CHAIN = "chain"
    FOREIGN = "foreign"  # an operator that runs in Python, alone in its step
    PACKAGE = "package"  # what another package may run as a whole, alone in its step


@dataclass(frozen=True)
class Kernel:
    """`nodes` are computed here, producers first; `inputs` are read from memory, `outputs` written to it.

    `piece` is the position of the input a PIECE kernel copies, else 0. `provider` names the package that runs it, if
    it is none of ours.
    """

    anchor: Anchor
    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    piece: int = 0
    provider: str = ""

    @property
    def is_call(self) -> bool:
        """Whether it is called from between native segments."""
        return self.anchor in (Anchor.FOREIGN, Anchor.PACKAGE)


@dataclass(frozen=True)
class Step:
    """Kernels independent of each other; all threads meet at its end."""

    kernels: tuple[Kernel, ...]


@dataclass(frozen=True)
class Plan:
    """The steps that compute `graph`. `graph` may differ from the given one in formats and copies of outputs only."""

    graph: Graph
    steps: tuple[Step, ...]

    def kernels(self) -> list[Kernel]:
        """All kernels in the order of the steps."""
        return [kernel for step in self.steps for kernel in step.kernels]

    def foreign(self) -> list[Kernel]:
        """The kernels that run in Python, in order. Native segments lie before, between and behind them."""
        return [kernel for kernel in self.kernels() if kernel.anchor is Anchor.FOREIGN]

    def levels(self) -> dict[str, int]:
        """For every symbol whose number depends on data: how many foreign kernels must have run for it to be known."""
        found: dict[str, int] = {}
        for level, kernel in enumerate(self.foreign(), start=1):
            for name in given_symbols(kernel.outputs):
                if name in self.graph.late:
                    found.setdefault(name, level)
        return found


def given_symbols(nodes: Iterable[Node]) -> Iterator[str]:
    """The symbols whose numbers can be read off the extents of tensors."""
    for node in nodes:
        for extent in node.shape:
            name = plain_symbol(extent) if isinstance(extent, Dim) else None
            if name is not None:
                yield name


def needed_symbols(kernel: Kernel) -> set[str]:
    """The symbols that decide where a kernel reads and writes, and how much: all must be known before it runs.

    They are those of everything it reads, computes (on the way, too) and writes. Where a piece of a concat begins
    depends on the extents of all the other pieces.
    """
    given, members = set(kernel.inputs), set(kernel.nodes)
    found: set[str] = set()
    seen: set[Node] = set()
    stack = [*kernel.inputs, *kernel.nodes]
    if kernel.anchor is Anchor.PIECE:
        (node,) = kernel.nodes
        found.update(mentioned(node))
        found.update(s.name for i in node.inputs for d in i.shape for s in symbols(d))
        stack = [*kernel.inputs, node.inputs[kernel.piece]]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        found.update(mentioned(node))
        if node in members or node not in given:
            stack.extend(node.inputs)
    return found.difference(_decided(kernel))


def _decided(kernel: Kernel) -> set[str]:
    """The symbols that are known only because a call has returned: those it alone gives."""
    if kernel.anchor is not Anchor.FOREIGN:
        return set()
    read = {name for node in kernel.inputs for name in mentioned(node)}
    return {*given_symbols(kernel.outputs)} - read


def givers(kernel: Kernel, late: Mapping[str, Node]) -> set[Node]:
    """The tensors whose extents tell the numbers of symbols that a kernel needs: it runs after them."""
    return {late[name] for name in needed_symbols(kernel) if name in late} if late else set()


def level_of(value: DimLike, levels: Mapping[str, int]) -> int:
    """How many foreign kernels must have run before an extent is known."""
    return max((levels.get(s.name, 0) for s in symbols(value)), default=0)


def is_stored_leaf(node: Node) -> bool:
    """Whether the tensor is in memory before the first step: an input, a constant, or a packed constant."""
    if node.name == "pack":
        return is_constant(node.inputs[0])
    return node.name in ("input", "constant")


def is_constant(node: Node) -> bool:
    """Whether the tensor is a constant or a reshaped one (constants are folded, formats excepted)."""
    return node.name == "constant" or (node.name == "reshape" and is_constant(node.inputs[0]))


def verify(plan: Plan) -> None:
    """AssertionError unless kernels read and know only what is there before their step, and outputs are written."""
    written: set[Node] = set()
    levels, level = plan.levels(), 0
    for step in plan.steps:
        for kernel in step.kernels:
            if kernel.is_call and len(step.kernels) > 1:
                raise AssertionError(f"{kernel.nodes[-1]} shares its step")
            missing = [n for n in kernel.inputs if not is_stored_leaf(n) and n not in written]
            if missing:
                raise AssertionError(f"{kernel.nodes[-1]} reads {missing[0]} before it is written")
            if plan.graph.late:
                _check_known(plan, kernel, levels, level)
        level += sum(kernel.anchor is Anchor.FOREIGN for kernel in step.kernels)
        written.update(n for kernel in step.kernels for n in kernel.outputs)
    for name, node in plan.graph.outputs:
        if node not in written:
            raise AssertionError(f"output {name} is never written")


def _check_known(plan: Plan, kernel: Kernel, levels: Mapping[str, int], level: int) -> None:
    """AssertionError unless the first `level` calls tell every number that the kernel needs."""
    for name in sorted(needed_symbols(kernel).intersection(plan.graph.late)):
        if levels.get(name, len(levels) + 1) > level:
            raise AssertionError(f"{kernel.nodes[-1]} runs before {name} is known")


def evaluate(
    plan: Plan,
    feeds: Mapping[str, np.ndarray],
    numbers: Mapping[str, int],
    foreign: Foreign | None = None,
) -> dict[str, np.ndarray]:
    """The outputs by name, kernel by kernel: each kernel sees only its inputs (Korch's execution states).

    foreign: as in `fissile.ir.graph.evaluate`.
    """
    memory: dict[Node, np.ndarray] = {}
    extents = dict(numbers)
    for kernel in plan.kernels():
        _evaluate_kernel(kernel, memory, feeds, extents, foreign)
    return {name: memory[node] for name, node in plan.graph.outputs}


def _evaluate_kernel(
    kernel: Kernel,
    memory: dict[Node, np.ndarray],
    feeds: Mapping[str, np.ndarray],
    extents: dict[str, int],
    foreign: Foreign | None,
) -> None:
    values: dict[Node, np.ndarray] = {n: memory[n] for n in kernel.inputs if n in memory}
    calls: dict[Hashable, Sequence[np.ndarray]] = {}
    for node in _needed(kernel.nodes, values):
        if node.name == "input":
            values[node] = feeds[node.attr("name")]
        elif node.name == "foreign":
            inputs = [values[i] for i in node.inputs]
            values[node] = call_foreign(node, inputs, extents, calls, foreign)
        else:
            attrs = {k: bind(v, extents) for k, v in node.attrs}
            arrays = (values[i] for i in node.inputs)
            values[node] = np.asarray(node.primitive.reference(*arrays, **attrs))
    for node in kernel.outputs:
        memory[node] = values[node]


def _needed(nodes: Iterable[Node], known: Mapping[Node, np.ndarray]) -> list[Node]:
    """What must be computed for `nodes` when `known` is given, producers first."""
    order: list[Node] = []
    seen: set[Node] = set(known)
    for root in nodes:
        stack = [(root, False)]
        while stack:
            node, done = stack.pop()
            if done:
                order.append(node)
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                stack.extend((i, False) for i in node.inputs)
    return order


def show(plan: Plan) -> str:
    """The plan as text: a line per kernel, a blank line between steps."""
    numbers = {n: k for k, n in enumerate(plan.graph.nodes())}
    lines: list[str] = []
    for k, step in enumerate(plan.steps):
        lines.append(f"step {k}")
        for kernel in step.kernels:
            names = " ".join(n.name for n in kernel.nodes)
            reads = ", ".join(f"%{numbers[n]}: {n.type}" for n in kernel.inputs)
            writes = ", ".join(f"%{numbers[n]}: {n.type}" for n in kernel.outputs)
            built = kernel.provider or kernel.anchor.value
            lines.append(f"  {built}: {writes} = [{names}]({reads})")
    return "\n".join(lines)
