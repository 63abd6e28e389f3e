"""What a graph costs in runtimes that do not follow layouts: the guide of `optimize`.

In: a primitive graph. Out: seconds. As `rewrite.estimate`, and besides every slice, concatenation, border and every
elementwise operator on two tensors is a pass over memory of its own. Invariant: deterministic, no measuring.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from fissile.ir.dim import evaluate, symbols
from fissile.ir.graph import Graph, Node
from fissile.rewrite.estimate import Cost, Rates, estimator

# What gains in any runtime. Left out: what pays only where sums and scales join a product's kernel, and what
# costs accuracy.
PORTABLE = frozenset(
    {
        "merge_products", "merge_convolutions", "merge_rows", "convolve_phases",
        "product_before_map", "map_before_product", "bias_after_map", "split_product", "bias_last",
        "associate_right", "associate_left", "merge_affine", "join_slices",
    }
)  # fmt: skip
_MOVED = frozenset({"slice", "concat", "gather", "pad"})
_TYPICAL = 64
_RATES = Rates(dispatch=1e-5)  # of a whole operator


def portable(extents: Mapping[str, int] | None = None, rates: Rates = _RATES) -> Cost:
    """The cost function. extents: numbers of symbols, 64 (or what they are at least) for the others."""
    sizes = dict(extents or {})
    base = estimator(rates, sizes)
    passes: dict[Node, float] = {}

    def cost(graph: Graph) -> float:
        total = base(graph)
        for node in graph.nodes():
            if node not in passes:
                passes[node] = _tensors(node) * _bytes(node, sizes) / rates.near
                passes[node] += rates.dispatch if passes[node] else 0.0
            total += passes[node]
        return total

    return cost


def _tensors(node: Node) -> int:
    """How many tensors of the node's size go through memory for it alone."""
    if node.name in _MOVED:
        return 2
    if node.primitive.kind != "elementwise":
        return 0
    full = sum(i.name not in ("broadcast", "constant") for i in node.inputs)
    return full + 1 if full > 1 else 0


def _bytes(node: Node, sizes: Mapping[str, int]) -> int:
    free = {s for d in node.shape if not isinstance(d, int) for s in symbols(d)}
    found = {s.name: sizes.get(s.name, max(s.lower or 0, _TYPICAL)) for s in free}
    return prod(max(evaluate(d, found), 0) for d in node.shape) * node.dtype.bytes
