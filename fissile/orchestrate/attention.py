"""Kernels of a product, what goes over its rows (a softmax), and the product with the result (DESIGN 3.4).

In: three kernels that follow one another. Out: the one that computes them together, a block of rows of scores in
private memory, or the refusal. Invariant: rows are whole, so the result has the bits of the three kernels; where their
length is free the block grows with it, but never with its square, so that any length is right.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from fissile.ir.dim import DimLike, equal, product
from fissile.ir.graph import Node
from fissile.ir.primitive import PANELS, packed_extents
from fissile.orchestrate.chain import made_again, private, source_of
from fissile.orchestrate.formats import is_tiled
from fissile.orchestrate.identify import Refusal, Region, identify, memory_reads
from fissile.orchestrate.places import Places, reduces_last
from fissile.orchestrate.plan import Anchor, Kernel, Plan

BLOCK_ROWS = 48  # rows of scores in a block: enough that the panels of both products are read from the near cache
SCORES_BYTES = 512 * 1024  # of a block, where the length of a row is known


@dataclass(frozen=True)
class Attention:
    """The stages: the product that gives scores, what goes over their rows, and the product with the result."""

    scores: Kernel
    rows: Kernel
    mix: Kernel


def is_attention(kernel: Kernel) -> bool:
    """Whether a CHAIN kernel goes over rows between its products."""
    return kernel.anchor is Anchor.CHAIN and any(reduces_last(n) for n in kernel.nodes)


def attention_of(kernel: Kernel) -> Attention:
    """The stages of an attention kernel, each as a kernel of its own."""
    nodes = kernel.nodes
    first = next(k for k, n in enumerate(nodes) if reduces_last(n))
    second = next(k for k, n in enumerate(nodes) if k > 0 and is_tiled(n))
    parts = (nodes[:first], nodes[first:second], nodes[second:])
    anchors = (Anchor.LINEAR, Anchor.ROWS, Anchor.LINEAR)
    return Attention(
        *(Kernel(a, p, kernel.inputs, p[-1:]) for a, p in zip(anchors, parts, strict=True))
    )


def again(kernel: Kernel, number: Callable[[DimLike], int]) -> dict[Node, float]:
    """How often a kernel of several linear primitives computes each of the values it keeps between its stages.

    number: of an extent.
    """
    if not is_attention(kernel):
        return made_again(kernel, number)
    stages = attention_of(kernel)
    return dict.fromkeys((stages.scores.outputs[-1], stages.rows.outputs[-1]), 1.0)


def attentions(plan: Plan, followed: Collection[Node]) -> Iterator[Kernel | Refusal]:
    """The attention kernels that a plan's kernels make, where nothing else reads what lies between."""
    near = private(plan)
    for scores, rows in near.values():
        result = rows.outputs[-1]
        if scores.anchor is Anchor.LINEAR and rows.anchor is Anchor.ROWS and result in near:
            mix = near[result][1]
            if mix.anchor is Anchor.LINEAR and source_of(mix.nodes[0]) is result:
                yield attend(scores, rows, mix, followed)


def attend(
    scores: Kernel, rows: Kernel, mix: Kernel, followed: Collection[Node]
) -> Kernel | Refusal:
    """The kernel that computes a product, its rows' reductions, and the product with what they give."""
    first = next(k for k, n in enumerate(rows.nodes) if n.primitive.reduced is not None)
    before, over = rows.nodes[:first], rows.nodes[first:]
    linear: Kernel | Refusal = scores
    if before:
        nodes = (*(n for n in scores.nodes if n not in followed), *before)
        linear = identify(Region(nodes, nodes[-1:], followed))
    if isinstance(linear, Refusal):
        return linear
    if reason := _mismatch(linear, over, mix, followed):
        return Refusal(reason)
    inner = {*scores.outputs, *rows.outputs}
    kernels = (scores, rows, mix)
    inputs = dict.fromkeys(n for k in kernels for n in k.inputs if n not in inner)
    return Kernel(Anchor.CHAIN, (*linear.nodes, *over, *mix.nodes), tuple(inputs), mix.outputs)


def _mismatch(
    linear: Kernel, over: tuple[Node, ...], mix: Kernel, followed: Collection[Node]
) -> str:
    """A reason why stages are no attention; "" if they are."""
    first, second = linear.nodes[0], mix.nodes[0]
    given, result = linear.outputs[-1], over[-1]
    if any(r.name != "matmul" or r.inputs[1].type.format != PANELS for r in (first, second)):
        return "rows between convolutions or narrow products are not kept"
    if given.shape[-2:] != first.shape[-2:] or any(n.name == "transpose" for n in linear.nodes):
        return "a product's rows are moved before they are reduced"
    left, depth = second.inputs[0], packed_extents(first.inputs[1])[2]
    same = equal(product(given.shape[:-2]), product(first.shape[:-2])) is True
    same = same and equal(product(second.shape[:-2]), product(first.shape[:-2])) is True
    if not same or left.shape[-2:] != given.shape[-2:] or result.shape != given.shape:
        return "two products do not have the same rows"
    if not isinstance(depth, int) or depth > BLOCK_ROWS * 16 or second.type.rank < 2:
        return "rows of the first product are too long for private memory"
    if any(n.dtype is not n.dtype.compute for n in (given, result)):
        return "rows between two linear primitives are kept as they are computed"
    length = given.shape[-1]
    if equal(length, 1) is True:
        return "rows of one element have nothing to reduce"
    if isinstance(length, int) and length * BLOCK_ROWS * given.dtype.bytes > SCORES_BYTES:
        return "what lies between two linear primitives does not fit local memory"
    return _reads_elsewhere(linear, over, mix, followed)


def _reads_elsewhere(
    linear: Kernel, over: tuple[Node, ...], mix: Kernel, followed: Collection[Node]
) -> str:
    """A reason if a stage reads another value of the one before it than its last, or not where it stands."""
    given, result = linear.outputs[-1], over[-1]
    inner = {*linear.nodes, *over}
    if {n for n in memory_reads(over, followed) if n in inner} != {given}:
        return "rows between two products need more than the first product"
    places = Places({*over, *followed}, over[0], given)
    places.placed[given] = places.at
    if not all(places.add(n) for n in over):
        return "a score is read where it does not stand"
    other = {*memory_reads(mix.nodes[1:], followed)} | {
        *memory_reads(second_operands(mix), followed)
    }
    if other & (inner | {result}) or result in second_operands(mix):
        return "the second product needs the rows twice"
    return ""


def second_operands(kernel: Kernel) -> tuple[Node, ...]:
    """What the product of a kernel reads beside its left operand."""
    return kernel.nodes[0].inputs[1:]
