"""What a kernel costs before anybody has measured it: a lower bound, and a guess (DESIGN 3.4).

In: a kernel, facts of the machine, and the numbers of free extents. `bound` is admissible: operations that the
kernel's own definitions cannot do without at the highest peak, compulsory bytes at the speed of the fastest level
they could all be in, and the dispatch. `estimate` adds what is likely: values computed again, strides, copies of
operands. Invariant: bound <= estimate.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from fissile.ir.dim import DimLike, evaluate, symbols
from fissile.ir.graph import Node
from fissile.ir.primitive import COLUMNS, PANEL
from fissile.orchestrate.attention import again
from fissile.orchestrate.formats import is_tiled
from fissile.orchestrate.liveness import REPRESENTATIVE, stored_bytes
from fissile.orchestrate.plan import Anchor, Kernel
from fissile.orchestrate.roofline import FEW, MANY

_FEW = frozenset({"div", "mod", "rem", "sqrt", "floordiv"})
_MANY = frozenset({
    "exp", "log", "log1p", "expm1", "tanh", "erf", "sigmoid", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "pow",
})  # fmt: skip
_BLOCK = 256  # columns of a block of a product: its rows are copied once for each
_VECTOR_WORK = (
    0.4  # share of the peak that elementwise code reaches: one operation where a product makes two
)
_PRODUCT = 0.8  # share of the peak that products reach
_STRIDED = 3.0  # how much longer a read along another axis than the last takes
_WRITE = 4.0  # and how much longer a write: the line is read first, and goes back later
_PICK = (
    60.0  # operations in whose time one element is read that does not lie beside the one before it
)
_COPY = 15.0  # and in which one is copied through layouts into the rows of a product
CALL = 2e-5  # seconds that a segment more costs, beside what another package takes for itself
_NARROW = 1.7  # time of a product of few columns, summed lane by lane, beside that of a wide one


@dataclass(frozen=True)
class Machine:
    """flops: highest peak, operations per second. levels: (bytes that fit, bytes per second), nearest first; what fits
    in none has the speed of the last. dispatch: seconds to start a kernel and to meet at its end.
    """

    flops: float
    levels: tuple[tuple[float, float], ...]
    dispatch: float


Numbers = Mapping[str, int]


@dataclass(frozen=True)
class Load:
    """Operations, bytes moved, and in how many bytes they lie."""

    operations: float
    bytes: float
    footprint: float


def bound(kernel: Kernel, machine: Machine, numbers: Numbers | None = None) -> float:
    """Seconds that the kernel takes at least. numbers: of free extents, a representative one where absent."""
    if kernel.anchor is Anchor.FOREIGN:
        return machine.dispatch
    load = _least(kernel, numbers or {})
    moving = load.bytes / _speed(machine, load.footprint)
    called = CALL if kernel.anchor is Anchor.PACKAGE else 0.0
    return machine.dispatch + called + max(load.operations / machine.flops, moving)


def estimate(kernel: Kernel, machine: Machine, numbers: Numbers | None = None) -> float:
    """Seconds that the kernel will take, as far as its definitions say."""
    return prices(kernel, machine, numbers)[1]


def prices(
    kernel: Kernel, machine: Machine, numbers: Numbers | None = None
) -> tuple[float, float]:
    """`bound` and `estimate`."""
    least = bound(kernel, machine, numbers)
    if kernel.is_call:
        return least, least
    load = _likely(kernel, numbers or {})
    moving = load.bytes / _speed(machine, load.footprint)
    work = load.operations / machine.flops
    return least, max(least, machine.dispatch + max(work, moving) + 0.3 * min(work, moving))


def family(kernel: Kernel) -> Hashable:
    """Kernels that share the efficiency of the primitive they are built around, None for those without one.

    How far a product or a reduction stays below its peak depends on its extents far more than on what surrounds it.
    """
    root = next((n for n in kernel.nodes if n.primitive.reduced is not None), None)
    if root is None:
        return None
    types = tuple((i.type.dtype.name, i.type.shape, i.type.format) for i in root.inputs)
    return kernel.anchor, root.primitive, root.attrs, types


def _speed(machine: Machine, footprint: float) -> float:
    for size, speed in machine.levels:
        if footprint <= size:
            return speed
    return machine.levels[-1][1]


def _number(extent: DimLike, numbers: Numbers) -> int:
    if isinstance(extent, int):
        return extent
    known = {s.name: numbers.get(s.name, REPRESENTATIVE) for s in symbols(extent)}
    return evaluate(extent, known)


def _count(shape: tuple[DimLike, ...], numbers: Numbers) -> int:
    return math.prod(_number(d, numbers) for d in shape)


def _operations(node: Node, numbers: Numbers) -> float:
    """Operations of one element of a node, in float32."""
    wide = max(node.dtype.compute.bytes // 4, 1)
    if node.primitive.kind == "elementwise":
        if not node.dtype.is_float:
            return 0.0
        return wide * float(FEW if node.name in _FEW else MANY if node.name in _MANY else 1)
    if node.primitive.reduced is None or not node.dtype.is_float:
        return 0.0
    terms = _count(node.primitive.reduced(node), numbers)
    return float(wide * terms * (2 if node.primitive.kind == "linear" else 1))


# ---------------------------------------------------------------- what is read of what


def _consumers_first(kernel: Kernel) -> list[Node]:
    """All that is computed between inputs and outputs, each before what it reads."""
    order: list[Node] = []
    seen: set[Node] = set(kernel.inputs)
    stack = [(n, False) for n in _roots(kernel)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((s, False) for s in node.inputs)
    return order[::-1]


def _roots(kernel: Kernel) -> tuple[Node, ...]:
    if kernel.anchor is Anchor.PIECE:
        return (kernel.nodes[0].inputs[kernel.piece],)
    return kernel.outputs


def _elements_read(
    kernel: Kernel, inside: list[Node], numbers: Numbers, *, likely: bool
) -> dict[Node, float]:
    """How many elements of every node are needed: at least, or as far as one can tell (`likely`)."""
    need = {n: float(_count(n.shape, numbers)) for n in _roots(kernel)}
    for node in inside:
        have = need.get(node, 0.0)
        whole = _count(node.shape, numbers)
        for k, source in enumerate(node.inputs):
            size = _count(source.shape, numbers)
            read = _share(node, k, have, whole, size, likely)
            need[source] = max(need.get(source, 0.0), min(float(size), read))
    return need


def _share(node: Node, k: int, have: float, whole: int, size: int, likely: bool) -> float:
    """Elements of input k that `have` of the `whole` elements of a node need."""
    if node.primitive.kind == "elementwise" or node.name in ("reshape", "transpose", "slice"):
        return have
    if node.primitive.kind in ("reduce", "broadcast") and node.name != "window":
        return have * size / max(whole, 1)
    if likely:
        return have if node.name == "gather" and k == 0 else size
    if node.name == "window":
        return have * size / max(whole, 1) if have < whole else min(size, whole / _taps(node))
    return size if have >= whole and node.name != "gather" else 0.0


def _taps(node: Node) -> int:
    return math.prod(max(1, s) if isinstance(s, int) else 1 for s in node.attr("sizes"))


def _least(kernel: Kernel, numbers: Numbers) -> Load:
    inside = _consumers_first(kernel)
    need = _elements_read(kernel, inside, numbers, likely=False)
    operations = sum(need.get(n, 0.0) * _operations(n, numbers) for n in inside)
    moved = _written(kernel, numbers) + sum(
        _stored(kernel, n, need.get(n, 0.0), numbers) for n in kernel.inputs
    )
    return Load(operations, moved, moved)


def _stored(kernel: Kernel, node: Node, elements: float, numbers: Numbers) -> float:
    """Bytes of the elements of a stored tensor; one whose panels a product reads is read whole."""
    whole = _number(stored_bytes(node), numbers)
    is_operand = node.name == "pack" and any(node in n.inputs for n in kernel.nodes)
    return whole if is_operand and elements else min(whole, elements * node.dtype.bytes)


def _written(kernel: Kernel, numbers: Numbers) -> float:
    if kernel.anchor is Anchor.PIECE:
        return float(_number(stored_bytes(_roots(kernel)[0]), numbers))
    return float(sum(_number(stored_bytes(n), numbers) for n in kernel.outputs))


# ---------------------------------------------------------------- the guess


def _likely(kernel: Kernel, numbers: Numbers) -> Load:
    inside = _consumers_first(kernel)
    need = _elements_read(kernel, inside, numbers, likely=True)
    times = _times(kernel, inside, numbers)
    operations = moved = 0.0
    strided = _strided(inside)
    for node in inside:
        each = _operations(node, numbers)
        if is_tiled(node):
            work = _product_work(kernel, node, each, need[node], numbers, strided)
            operations += work * times.get(node, 1.0)
        else:
            each += _PICK if _jumps(node) else 0.0
            operations += need.get(node, 0.0) * each * times.get(node, 1.0) / _VECTOR_WORK
    for node in kernel.inputs:
        share = _stored(kernel, node, need.get(node, 0.0), numbers)
        moved += share * (_STRIDED if node in strided else 1.0)
    moved += _WRITE * _written(kernel, numbers)
    return Load(operations, moved, moved)


def _product_work(
    kernel: Kernel, node: Node, each: float, elements: float, numbers: Numbers, strided: set[Node]
) -> float:
    """Operations of a product: columns fill panels, rows are copied once per block of columns."""
    columns = _number(node.shape[-1], numbers) // (
        node.attr("groups") if node.name == "conv" else 1
    )
    filled = -(-columns // PANEL) * PANEL / max(columns, 1)
    if node.inputs[1].type.format == COLUMNS:
        filled = _NARROW
    left = node.inputs[0]
    near = kernel.anchor is Anchor.CHAIN and left in kernel.nodes
    copy = 1.0 if near or left in kernel.inputs or left.name == "reshape" else _COPY
    if strided.intersection(_behind(left, kernel)):
        copy = 2 * _PICK
    blocks = 1 if kernel.anchor is Anchor.CHAIN else -(-columns // _BLOCK)
    copied = elements / max(columns, 1) * each / 2 * blocks
    return elements * each * min(filled, 4.0) / _PRODUCT + copy * copied


def _behind(node: Node, kernel: Kernel) -> set[Node]:
    """A node and what it is computed from in the kernel, inputs included."""
    found: set[Node] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if current not in found:
            found.add(current)
            stack.extend(() if current in kernel.inputs else current.inputs)
    return found


def _times(kernel: Kernel, inside: list[Node], numbers: Numbers) -> dict[Node, float]:
    """How often an element that is computed on the way is computed again, through layouts, windows and copies."""
    ways: dict[Node, float] = dict.fromkeys(_roots(kernel), 1.0)
    chained = kernel.anchor is Anchor.CHAIN
    kept = again(kernel, lambda extent: _number(extent, numbers)) if chained else {}
    for node in inside:
        mine = ways.get(node, 1.0)
        for k, source in enumerate(node.inputs):
            more = mine * (_repeats(node, numbers) if k == 0 else 1.0)
            ways[source] = kept.get(source, max(ways.get(source, 0.0), more))
    return ways


def _repeats(node: Node, numbers: Numbers) -> float:
    """How often an element of the first input is read for the elements of a node, if nothing is kept."""
    if is_tiled(node):
        blocks = -(-_number(node.shape[-1], numbers) // _BLOCK)
        depth = _count(node.primitive.reduced(node) if node.primitive.reduced else (), numbers)
        elements = _count(node.shape[:-1], numbers) * depth
        return max(1.0, blocks * elements / max(1, _count(node.inputs[0].shape, numbers)))
    if node.name in ("window", "broadcast"):
        size = _count(node.inputs[0].shape, numbers)
        return (
            max(1.0, _count(node.shape, numbers) / max(1, size)) if node.name == "window" else 1.0
        )
    if node.name == "conv":
        return float(max(1, _count(node.inputs[1].shape[:-1], numbers)))
    return 1.0


def _jumps(node: Node) -> bool:
    """Whether elements beside each other are read from far apart: along another axis, in steps, or by indices."""
    rank = node.type.rank
    if node.name == "transpose":
        return bool(node.attr("perm")[-1:] != (rank - 1,)) and rank > 1
    if node.name == "slice":
        return bool(node.attr("steps")[-1:] not in ((1,), ()))
    return node.name == "gather" and bool(node.attr("axis") == node.inputs[0].type.rank - 1)


def _strided(inside: list[Node]) -> set[Node]:
    """What is read behind a node that jumps, but for a product's operand packed once."""
    found: set[Node] = set()
    for node in inside:
        if _jumps(node) or (node in found and not is_tiled(node)):
            found.update(node.inputs[:1] if node.primitive.reduced is not None else node.inputs)
    return found
