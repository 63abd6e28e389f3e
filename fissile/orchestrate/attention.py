"""Kernels of a product, what goes over its rows (a softmax), and the product with the result (DESIGN 3.4).

In: three kernels that follow one another. Out: the one that computes them together, a block of rows of scores in
private memory, or the refusal. Invariant: where rows are known to fit they are whole, and the result has the bits of
the three kernels; a softmax over rows that are long, or of any length, goes in pieces (the online form), and other
reductions over rows of any length get a block that grows with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from fissile.ir.affine import Space
from fissile.ir.dim import DimLike, equal, product
from fissile.ir.graph import Node
from fissile.ir.primitive import PANELS, packed_extents
from fissile.orchestrate.chain import made_again, private, source_of
from fissile.orchestrate.follow import Index
from fissile.orchestrate.formats import is_tiled
from fissile.orchestrate.grow_linear import linear_index
from fissile.orchestrate.identify import Refusal, Region, identify, memory_reads, on_tile
from fissile.orchestrate.places import Places, reduces_last
from fissile.orchestrate.plan import Anchor, Kernel, Plan

BLOCK_ROWS = 48  # rows of scores in a block: enough that the panels of both products are read from the near cache
COLUMNS_AT_ONCE = 256  # of the second product, whose sums are kept from piece to piece
SCORES_BYTES = 512 * 1024  # of a block of whole rows, where their length is known


@dataclass(frozen=True)
class Attention:
    """The stages: the product that gives scores, what goes over their rows, and the product with the result."""

    scores: Kernel
    rows: Kernel
    mix: Kernel


@dataclass(frozen=True)
class Softmax:
    """Rows between two products that can be summed piece by piece: exp(x - top), and its total.

    divided: whether each row is divided by its total before the second product, not behind it. fill: the one value that
    a row of NaN becomes before that product, None where it stays.
    """

    top: Node
    exponent: Node
    total: Node
    divided: bool
    fill: Node | None


def is_attention(kernel: Kernel) -> bool:
    """Whether a CHAIN kernel goes over rows between its products."""
    return kernel.anchor is Anchor.CHAIN and any(reduces_last(n) for n in kernel.nodes)


def attention_of(kernel: Kernel) -> Attention:
    """The stages of an attention kernel, each as a kernel of its own."""
    nodes = kernel.nodes
    first = next(k for k, n in enumerate(nodes) if reduces_last(n))
    second = next(k for k, n in enumerate(nodes) if k > 0 and is_tiled(n))
    linear, over, mix = nodes[:first], nodes[first:second], nodes[second:]
    result = source_of(mix[0])
    beside = tuple(n for n in _reached(mix, over, kernel.inputs) if n is not result)
    return Attention(
        Kernel(Anchor.LINEAR, linear, kernel.inputs, linear[-1:]),
        Kernel(Anchor.ROWS, over, kernel.inputs, (*beside, result)),
        Kernel(Anchor.LINEAR, mix, kernel.inputs, mix[-1:]),
    )


def in_pieces(stages: Attention) -> Softmax | None:
    """The softmax of an attention whose rows are never there as a whole, since they are long, or of any length.

    None where they fit, or are something else than a softmax, or the second product has too many columns.
    """
    given, columns = stages.scores.outputs[-1], stages.mix.nodes[0].shape[-1]
    if _fits(given) or not isinstance(columns, int) or columns > COLUMNS_AT_ONCE:
        return None
    found = _softmax(given, stages.rows.nodes, stages.rows.outputs[-1])
    return found if found and {*stages.rows.outputs[:-1]} <= {found.total} else None


def _fits(scores: Node) -> bool:
    """Whether a block of rows is known to fit local memory."""
    length = scores.shape[-1]
    return isinstance(length, int) and length * BLOCK_ROWS * scores.dtype.bytes <= SCORES_BYTES


def _softmax(given: Node, over: Sequence[Node], result: Node) -> Softmax | None:
    """exp(given - top), that divided by its total, or that with rows of NaN filled, if `over` is nothing else."""
    share, fill = _unfilled(result)
    exponent = share.inputs[0] if share.name == "div" else share
    divided = exponent is not share
    shifted = exponent.inputs[0] if exponent.name == "exp" else exponent
    if shifted.name != "sub" or shifted.inputs[0] is not given:
        return None
    tops = [n for n in over if n.name == "reduce_max" and n.inputs[0] is given]
    totals = [n for n in over if n.name == "reduce_sum" and n.inputs[0] is exponent]
    if len(tops) != 1 or len(totals) != 1 or not _repeats(shifted.inputs[1], tops[0]):
        return None
    if divided and not _repeats(share.inputs[1], totals[0]):
        return None
    marks = result.inputs[:1] if result is not share else ()
    if {*over} != {tops[0], shifted, exponent, totals[0], share, *marks, result}:
        return None
    return Softmax(tops[0], exponent, totals[0], divided, fill)


def _unfilled(node: Node) -> tuple[Node, Node | None]:
    """(x, value) of select(x != x, value, x) with one value; of others the node itself."""
    if node.name == "select":
        mark, fill, x = node.inputs
        single = fill.inputs[0] if fill.name == "broadcast" else fill
        if mark.name == "ne" and mark.inputs == (x, x) and single.type.rank == 0 and x.name == "div":
            return x, single
    return node, None


def _repeats(node: Node, value: Node) -> bool:
    """Whether a broadcast repeats the value of each row along it."""
    if node.name != "broadcast":
        return False
    small = node.inputs[0]
    rank = small.type.rank
    while small.name == "reshape":
        small = small.inputs[0]
    rows = value.shape[value.type.rank + 1 - rank :]
    lead = value.shape[: value.type.rank + 1 - rank]
    same = small is value and rank > 0 and all(equal(d, 1) is True for d in lead)
    return same and node.inputs[0].shape == (*rows, 1) and node.shape[:-1] == value.shape


def _reached(
    nodes: Sequence[Node], inside: Collection[Node], memory: Collection[Node]
) -> list[Node]:
    """Those of `inside` that `nodes` read through what is not in memory."""
    found: dict[Node, None] = {}
    seen: set[Node] = {*nodes, *memory} - set(inside)
    stack = [i for n in nodes for i in n.inputs]
    while stack:
        node = stack.pop()
        if node in inside:
            found[node] = None
        elif node not in seen:
            seen.add(node)
            stack.extend(node.inputs)
    return list(found)


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
        if scores.anchor is Anchor.LINEAR and rows.anchor is Anchor.ROWS:
            mixes = [near[n][1] if n in near else rows for n in rows.outputs]
            root = mixes[0].nodes[0]
            if (
                all(m is mixes[0] for m in mixes)
                and is_tiled(root)
                and source_of(root) in rows.outputs
            ):
                yield attend(scores, rows, mixes[0], followed)


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
    nodes = (*linear.nodes, *over, *mix.nodes)
    kernel = Kernel(Anchor.CHAIN, nodes, tuple(inputs), mix.outputs)
    stages = attention_of(kernel)
    given = stages.scores.outputs[-1]
    if not _fits(given) and isinstance(given.shape[-1], int) and in_pieces(stages) is None:
        return Refusal("what lies between two linear primitives does not fit local memory")
    return kernel


def _mismatch(
    linear: Kernel, over: tuple[Node, ...], mix: Kernel, followed: Collection[Node]
) -> str:
    """A reason why stages are no attention; "" if they are."""
    first, second = linear.nodes[0], mix.nodes[0]
    given, result = linear.outputs[-1], source_of(second)
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
    if equal(given.shape[-1], 1) is True:
        return "rows of one element have nothing to reduce"
    return _reads_elsewhere(linear, over, mix, followed)


def _reads_elsewhere(
    linear: Kernel, over: tuple[Node, ...], mix: Kernel, followed: Collection[Node]
) -> str:
    """A reason if a stage reads another value of the one before it than its last, or not where it stands."""
    given = linear.outputs[-1]
    inner = {*linear.nodes, *over}
    if {n for n in memory_reads(over, followed) if n in inner} != {given}:
        return "rows between two products need more than the first product"
    places = Places({*over, *followed}, over[0], given)
    places.placed[given] = places.at
    if not all(places.add(n) for n in over):
        return "a score is read where it does not stand"
    result, right = source_of(mix.nodes[0]), mix.nodes[0].inputs[1:]
    known = {
        *linear.inputs,
        *mix.inputs,
        result,
        *(n for n in over if n.primitive.reduced is not None),
    }
    if _reached(over[over.index(result) + 1 :], (given,), known - {given}):
        return "scores are read after the rows have taken their place"
    if inner.intersection(right) or _reached(right, inner, mix.inputs):
        return "both operands of a product come from the one before it"
    beside = inner.intersection(memory_reads(mix.nodes[1:], followed))
    return _misplaced(beside, mix, followed)


def _misplaced(beside: Collection[Node], mix: Kernel, followed: Collection[Node]) -> str:
    """A reason if what the last product reads beside the rows is no value of its element's row."""
    root = mix.nodes[0]
    space = Space()
    placed: dict[Node, Index] = {root: linear_index(space, root)}
    for node in beside:
        if node.shape != root.shape[:-1]:
            return "the last product reads more of a row than one value"
        placed[node] = placed[root][:-1]
    inline = {*mix.nodes, *followed}.difference(placed)
    for node in mix.nodes[1:]:
        where = on_tile(space, inline - {node}, placed, node)
        if isinstance(where, Refusal):
            return where.reason
        placed[node] = where
    return ""
