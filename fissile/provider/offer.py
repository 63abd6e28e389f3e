"""What another package may run: single kernels, and windows of steps (DESIGN 3.4; Korch section 5.2).

In: a plan. Out: `Offer`s, each the kernels it replaces with an ONNX model of equal meaning. Constants are in the model,
but for OpenBLAS, which gets the weight beside the rows; what follows a product there stays a kernel of ours. Invariant:
what goes in and out is stored plainly, in types that numpy has, of extents that the inputs tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fissile.fission.export import export
from fissile.ir.graph import PLAIN, Graph, Node, make
from fissile.ir.primitive import INPUT
from fissile.optimizer import fits
from fissile.orchestrate.plan import Anchor, Kernel, Plan, is_stored_leaf

MOST_PRIMITIVES = 50  # of a window, as many as the windows that are solved have
HEAVY = (Anchor.LINEAR, Anchor.CHAIN)  # kernels that are offered by themselves


class Refused(ValueError):
    """Why kernels cannot be offered."""


@dataclass(frozen=True)
class Offer:
    """kernels: replaced, in plan order. model: serialized, of `reads` -> `writes`. rest: run behind it, by us.

    first, last: the steps it spans.
    """

    provider: str
    kernels: tuple[Kernel, ...]
    model: bytes
    reads: tuple[Node, ...]
    writes: tuple[Node, ...]
    first: int
    last: int
    rest: Kernel | None = None


def offers(plan: Plan, provider: str) -> Iterator[Offer]:
    """All single kernels and windows that the provider may run."""
    for at, step in enumerate(plan.steps):
        for kernel in step.kernels:
            if kernel.anchor in HEAVY:
                yield from _if_possible(plan, provider, (kernel,), at, at)
    if provider == "openblas":
        return
    for first, last in _windows(plan):
        kernels = tuple(k for step in plan.steps[first : last + 1] for k in step.kernels)
        if len(kernels) > 1:
            yield from _if_possible(plan, provider, kernels, first, last)


def _if_possible(
    plan: Plan, provider: str, kernels: tuple[Kernel, ...], first: int, last: int
) -> Iterator[Offer]:
    try:
        if provider == "openblas":
            yield _product(kernels[0], at=first)
        else:
            yield window(plan, provider, kernels, first, last)
    except Refused:
        return


def _windows(plan: Plan) -> list[tuple[int, int]]:
    """Steps, first and last, of the whole plan, and of pieces of it between steps that one tensor crosses."""
    crossing = _crossing(plan)
    found, first, size = [], 0, 0
    cut = -1
    for at, step in enumerate(plan.steps):
        size += sum(len(k.nodes) for k in step.kernels)
        if size > MOST_PRIMITIVES and cut >= first:
            found.append((first, cut))
            first = cut + 1
            later = plan.steps[first : at + 1]
            size = sum(len(k.nodes) for s in later for k in s.kernels)
        if crossing[at] <= 1:
            cut = at
    if plan.steps:
        found.append((first, len(plan.steps) - 1))
    whole = (0, len(plan.steps) - 1)
    return found if whole in found or not found else [*found, whole]


def _crossing(plan: Plan) -> list[int]:
    """For every step, how many tensors written in it or before are read behind it."""
    written: dict[Node, int] = {}
    last: dict[Node, int] = {}
    for at, step in enumerate(plan.steps):
        for kernel in step.kernels:
            written.update(dict.fromkeys(kernel.outputs, at))
            last.update(dict.fromkeys(kernel.inputs, at))
    return [
        sum(1 for n, made in written.items() if made <= at < last.get(n, -1))
        for at in range(len(plan.steps))
    ]


def window(plan: Plan, provider: str, kernels: tuple[Kernel, ...], first: int, last: int) -> Offer:
    """The kernels as one model. Refused where a kernel, a tensor or an extent cannot be said in it."""
    inside = set(kernels)
    made = dict.fromkeys(n for k in kernels for n in k.outputs)
    _check_kernels(kernels)
    wanted = {n for k in plan.kernels() if k not in inside for n in k.inputs}
    wanted.update(n for _, n in plan.graph.outputs)
    writes = tuple(n for n in made if n in wanted)
    given = (n for k in kernels for n in k.inputs if n not in made)
    reads = tuple(n for n in dict.fromkeys(given) if not is_stored_leaf(n) or n.name == "input")
    _check_tensors((*reads, *writes))
    return Offer(provider, kernels, _model(reads, writes), reads, writes, first, last)


def _product(kernel: Kernel, at: int) -> Offer:
    """The product of a kernel alone. Refused where the rows are not stored, or the weight is no plain constant."""
    products = [n for n in kernel.nodes if n.primitive.kind == "linear"]
    rest = tuple(n for n in kernel.nodes if n not in products)
    if len(products) != 1 or products[0].name != "matmul" or products[0].type.rank != 2:
        raise Refused("it is not one product of two matrices")
    product = products[0]
    left, right = product.inputs
    while left.name == "reshape" and left not in kernel.inputs:
        left = left.inputs[0]
    weight = right.inputs[0] if right.name == "pack" else right
    if left not in kernel.inputs or weight.name != "constant":
        raise Refused("its operands are not as they are stored")
    if any(n.primitive.kind != "elementwise" for n in rest):
        raise Refused("what surrounds it is not element by element")
    if any(n in _above(product, kernel.inputs) for n in rest):
        raise Refused("its rows are computed in the kernel")
    if any(n.dtype.name != "float32" for n in (left, weight, product)):
        raise Refused("it is not in float32")
    _check_tensors((left, product))
    behind = None
    if rest:
        used = _above(rest[-1], (product, *kernel.inputs))
        inputs = (product, *(n for n in kernel.inputs if n in used))
        behind = Kernel(Anchor.ELEMENTWISE, rest, inputs, kernel.outputs)
    model = _model((left, weight), (product,), {right: weight})
    return Offer("openblas", (kernel,), model, (left, weight), (product,), at, at, behind)


def _above(node: Node, stored: Sequence[Node]) -> set[Node]:
    """Everything `node` is computed from, down to what is stored."""
    found: set[Node] = set()
    stack = [*node.inputs]
    while stack:
        current = stack.pop()
        if current not in found:
            found.add(current)
            stack.extend(() if current in stored else current.inputs)
    return found


def _check_kernels(kernels: Sequence[Kernel]) -> None:
    if any(k.anchor is Anchor.FOREIGN for k in kernels):
        raise Refused("an operator in Python is between")
    pieces: dict[Node, int] = {}
    for kernel in kernels:
        if kernel.anchor is Anchor.PIECE:
            pieces[kernel.outputs[0]] = pieces.get(kernel.outputs[0], 0) + 1
    if any(count < len(node.inputs) for node, count in pieces.items()):
        raise Refused("only a piece of a tensor is written")


def _check_tensors(nodes: Sequence[Node]) -> None:
    for node in nodes:
        if node.type.format != PLAIN or node.name == "pack":
            raise Refused(f"{node} is held in panels")
        if node.dtype.name not in _TYPES:
            raise Refused(f"{node.dtype.name} is not a type that all packages have")


_TYPES = ("float32", "float64", "int32", "int64", "bool", "int8", "uint8")


def _model(
    reads: Sequence[Node], writes: Sequence[Node], instead: dict[Node, Node] | None = None
) -> bytes:
    """The serialized model of `reads` -> `writes`. instead: nodes that stand for others."""
    inputs = [
        make(INPUT, name=f"i{k}", dtype=n.dtype.name, shape=n.shape) for k, n in enumerate(reads)
    ]
    made = dict(zip(reads, inputs, strict=True))
    for node, other in (instead or {}).items():
        made[node] = made[other]
    outputs = tuple((f"o{k}", rebuilt(n, made)) for k, n in enumerate(writes))
    graph = Graph(tuple(inputs), outputs)
    try:
        model = export(graph)
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
