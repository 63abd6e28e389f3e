"""Kernels of several linear primitives: a depthwise window with the pointwise products around it (DESIGN 3.4).

In: kernels that follow one another. Out: the one that computes them together, rows of the image in private memory
between them, or the refusal. Invariant: what lies between fits local memory whatever the free extents are, and is read
by the next stage alone, element for element; so a chain gives the bits of its kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from fissile.ir.dim import DimLike, ceildiv, max_, min_
from fissile.ir.graph import Node
from fissile.ir.primitive import PANELS
from fissile.orchestrate.formats import is_tiled
from fissile.orchestrate.identify import Refusal, memory_reads
from fissile.orchestrate.plan import Anchor, Kernel, Plan

RING_BYTES = (
    512 * 1024
)  # rows of the image before the window: they and the weights stay in a private cache
LEFT_BYTES = 256 * 1024  # rows of the left operand of the product behind it
_PRODUCT_ROWS = 64  # rows of a product worth its panels' way from the cache
_TASK_ROWS = 14  # rows of a task, so that the rows that two tasks both compute are few ...
_MOST_TASKS = 16  # ... and more of them in images of more than 14 * 16 rows


@dataclass(frozen=True)
class Strip:
    """How a chain walks an image: output rows of a task, of a group within it, and rows of the ring before the window.

    span: rows of the image that one output row reads. above: rows of padding above the image.
    """

    task: DimLike
    group: int
    slots: int
    span: int
    above: DimLike


@dataclass(frozen=True)
class Chain:
    """The stages of a CHAIN kernel: what makes the image (None: it is in memory), the window, the product behind it."""

    up: Kernel | None
    window: Kernel
    down: Kernel | None


def chain_of(kernel: Kernel) -> Chain:
    """The stages of a CHAIN kernel, each as a kernel of its own."""
    groups: list[list[Node]] = []
    for node in kernel.nodes:
        if node.primitive.reduced is not None:
            groups.append([])
        groups[-1].append(node)
    parts = [_stage(kernel, nodes) for nodes in groups]
    at = next(k for k, part in enumerate(parts) if part.anchor is Anchor.REDUCE)
    return Chain(
        parts[at - 1] if at else None, parts[at], parts[at + 1] if at + 1 < len(parts) else None
    )


def _stage(kernel: Kernel, nodes: Sequence[Node]) -> Kernel:
    anchor = Anchor.LINEAR if is_tiled(nodes[0]) else Anchor.REDUCE
    return Kernel(anchor, tuple(nodes), kernel.inputs, (nodes[-1],))


def join(kernels: Sequence[Kernel], followed: Collection[Node]) -> Kernel | Refusal:
    """The kernel that computes a product, a depthwise window and a product, or two of them, in one pass.

    kernels: each reads what the one before it writes. followed: primitives that are never stored.
    """
    reason = _mismatch(kernels, followed)
    if reason:
        return Refusal(reason)
    inner = {n for kernel in kernels[:-1] for n in kernel.outputs}
    nodes = tuple(n for kernel in kernels for n in kernel.nodes)
    inputs = dict.fromkeys(n for kernel in kernels for n in kernel.inputs if n not in inner)
    whole = Kernel(Anchor.CHAIN, nodes, tuple(inputs), kernels[-1].outputs)
    if strip_of(chain_of(whole)) is None:
        return Refusal("what lies between two linear primitives does not fit local memory")
    return whole


def _mismatch(kernels: Sequence[Kernel], followed: Collection[Node]) -> str:
    """A reason why kernels are no chain; "" if they are."""
    windows = [k for k, kernel in enumerate(kernels) if is_window(kernel)]
    if len(windows) != 1 or len(kernels) - len(windows) not in (1, 2):
        return "not a depthwise window between products"
    at = windows[0]
    if at > 1 or len(kernels) - at > 2:
        return "two products on one side of a window"
    if not all(is_plain_product(k) for n, k in enumerate(kernels) if n != at):
        return "a product beside a window is batched, narrow or moves its rows"
    if any(n.dtype is not n.dtype.compute for k in kernels for n in k.outputs):
        return "rows between two linear primitives are kept as they are computed"
    for before, after in zip(kernels, kernels[1:]):
        given, source = before.outputs[-1], source_of(after.nodes[0])
        if source is not given or source.shape[-1:] != _image(after.nodes[0]).shape[-1:]:
            return "a linear primitive reads the one before it through more than padding"
        if given in memory_reads(after.nodes[1:], followed):
            return "an epilogue reads the rows between two linear primitives"
        if given is after.nodes[0].inputs[1] or given in memory_reads(
            after.nodes[0].inputs[1:], followed
        ):
            return "both operands of a linear primitive come from the one before it"
    return ""


def is_window(kernel: Kernel) -> bool:
    """Whether a kernel is a depthwise convolution over a two-dimensional image of known width and channels."""
    root = kernel.nodes[0]
    if kernel.anchor is not Anchor.REDUCE or root.name != "conv" or root.type.rank != 4:
        return False
    known = (*root.shape[2:], *_image(root).shape[2:], *root.inputs[1].shape)
    return len(kernel.outputs) == 1 and all(isinstance(d, int) and d > 0 for d in known)


def is_plain_product(kernel: Kernel) -> bool:
    """Whether a kernel is one matrix product, wide enough for panels, whose rows stay in order."""
    root, last = kernel.nodes[0], kernel.outputs[-1]
    if kernel.anchor is not Anchor.LINEAR or root.inputs[1].type.format != PANELS:
        return False
    single = root.type.rank == 2 if root.name == "matmul" else root.attr("groups") == 1
    straight = all(n.name != "transpose" for n in kernel.nodes)
    known = [root.shape[-1], *root.inputs[1].shape]
    return (
        single
        and straight
        and last.shape[-1] == root.shape[-1]
        and all(isinstance(d, int) and d > 0 for d in known)
    )


def _image(root: Node) -> Node:
    """What a linear primitive reads, padding left out."""
    node = root.inputs[0]
    while node.name == "pad":
        node = node.inputs[0]
    return node


def source_of(root: Node) -> Node:
    """What a linear primitive reads in the end, padding and reshapes left out."""
    node = _image(root)
    while node.name == "reshape":
        node = node.inputs[0]
    return node


def image_of(chain: Chain) -> Node:
    """The tensor (images, rows, columns, channels) that the window reads, unpadded."""
    return _image(chain.window.nodes[0])


def strip_of(chain: Chain) -> Strip | None:
    """How the chain walks its image, None when its rows do not fit local memory."""
    root = chain.window.nodes[0]
    _, rows, width, channels = root.shape
    across = image_of(chain).shape[2]
    stride, dilation = root.attr("strides")[0], root.attr("dilations")[0]
    span = (whole(root.inputs[1].shape[0]) - 1) * dilation + 1
    if not (isinstance(width, int) and isinstance(channels, int) and isinstance(across, int)):
        return None
    row_bytes = channels * root.dtype.compute.bytes
    most = max(1, _PRODUCT_ROWS // width)
    if isinstance(rows, int):
        most = min(most, max(1, rows))
    for group in range(most, 0, -1):
        slots = (group - 1) * stride + span
        ring = slots * across * row_bytes if chain.up else 0
        left = group * width * row_bytes if chain.down else 0
        if ring <= RING_BYTES and left <= LEFT_BYTES:
            return Strip(_task_rows(rows, group, chain), group, slots, span, _above(root))
    return None


def made_again(kernel: Kernel, number: Callable[[DimLike], int]) -> dict[Node, float]:
    """How often the values that a chain keeps between its stages are computed: rows at the ends of tasks twice.

    number: of an extent.
    """
    chain = chain_of(kernel)
    strip = strip_of(chain)
    found = {chain.window.outputs[-1]: 1.0} if chain.down else {}
    if chain.up is None or strip is None:
        return found
    stride = chain.window.nodes[0].attr("strides")[0]
    bands = -(-number(chain.window.nodes[0].shape[1]) // number(strip.task))
    twice = max(0, bands - 1) * max(0, strip.span - stride)
    found[chain.up.outputs[-1]] = 1.0 + twice / max(1, number(image_of(chain).shape[1]))
    return found


def chains(plan: Plan, followed: Collection[Node]) -> Iterator[Kernel | Refusal]:
    """The chains of a plan's kernels, where nothing else reads what lies between.

    A window with the product before it, with the one behind it, and with both.
    """
    near = private(plan)
    for kernel in filter(is_window, plan.kernels()):
        source, result = source_of(kernel.nodes[0]), kernel.outputs[-1]
        up = [near[source][0]] if source in near else []
        down = [near[result][1]] if result in near else []
        if up and down:
            yield join([*up, kernel, *down], followed)
        if up:
            yield join([*up, kernel], followed)
        if down:
            yield join([kernel, *down], followed)


def private(plan: Plan) -> dict[Node, tuple[Kernel, Kernel]]:
    """The kernel that writes and the one that reads each tensor that only one kernel reads."""
    kernels = plan.kernels()
    outputs = {n for _, n in plan.graph.outputs}
    readers: dict[Node, list[Kernel]] = {}
    for kernel in kernels:
        for node in kernel.inputs:
            readers.setdefault(node, []).append(kernel)
    return {
        n: (k, readers[n][0])
        for k in kernels
        for n in k.outputs
        if len(readers.get(n, ())) == 1 and n not in outputs
    }


def _task_rows(rows: DimLike, group: int, chain: Chain) -> DimLike:
    """Output rows of a task: few where nothing is computed twice, whole groups."""
    if chain.up is None:
        return group
    many = max_(ceildiv(rows, _MOST_TASKS), min_(_TASK_ROWS, ceildiv(rows, 2)))
    return max_(1, ceildiv(many, group)) * group


def _above(root: Node) -> DimLike:
    """Rows of padding above the image."""
    total: DimLike = 0
    node = root.inputs[0]
    while node.name == "pad":
        total += node.attr("low")[1]
        node = node.inputs[0]
    return total


def whole(extent: DimLike) -> int:
    """An extent that is known to be a number. ValueError."""
    if not isinstance(extent, int):
        raise ValueError(f"{extent} is no number")
    return extent
