"""What a kernel that writes an operand in panels does beside its own columns: the last panel is filled with zeros.

In: a tensor in panels and the tasks of the kernel that writes it. Out: a statement of each task. Invariant: the tasks
together write every element behind the last column once, and no other; none run only where the tensor is empty.
"""

from __future__ import annotations

from fissile.ir import loop as L
from fissile.ir.dim import DimLike, ceildiv, max_
from fissile.ir.graph import Node
from fissile.ir.primitive import PANEL, packed_extents
from fissile.schedule.kernel import Builder


def zero_padding(build: Builder, node: Node, task: L.Expr, tasks: DimLike) -> L.Stmt:
    """This task's share of the rows of last panels: what lies behind the last column becomes zero."""
    matrices, panels, depth, _ = packed_extents(node)
    columns = node.shape[-1] // node.attr("groups")
    padding = panels * PANEL - columns
    if isinstance(padding, int) and padding == 0:
        return L.block()
    share = ceildiv(matrices * depth, max_(1, tasks))
    i, lane = L.var("padded"), L.var("lane")
    row = L.plus(L.times(task, build.role("padded_rows", share)), i)
    deep = build.extent(depth)
    matrix, k = L.quotient(row, deep), L.remainder(row, deep)
    panel = L.plus(L.times(matrix, build.extent(panels)), L.minus(build.extent(panels), 1))
    start = L.times(L.plus(L.times(panel, deep), k), PANEL)
    start = L.plus(start, L.minus(PANEL, build.extent(padding)))
    store = L.Store(build.tensor(node), (L.plus(start, lane),), L.const(0, node.dtype.compute))
    zeros = L.For(lane, build.extent(padding), store, L.Kind.VECTORIZED)
    inside = L.op("lt", row, build.extent(matrices * depth))
    return L.For(i, build.role("padded_rows", share), L.If(inside, zeros))
