"""Packing: the right operand of a product copied into panels, through whatever layout lies before it.

In: a kernel of one `pack`. Out: its loop program, a task per panel. Where the rows of the operand are several axes in
one (the places of a filter's tile), each is a loop of its own, so that no index of a place is computed twice.
"""

from __future__ import annotations

from fissile.ir import loop as L
from fissile.ir.affine import LITERAL
from fissile.ir.dim import divides
from fissile.ir.primitive import PANEL, packed_extents, unflatten
from fissile.microkernel.generate import pack_panels
from fissile.orchestrate.plan import Kernel
from fissile.schedule.kernel import Builder, Lowered
from fissile.schedule.window import period


def lower_pack(kernel: Kernel) -> Lowered:
    """The loop program of a PACK kernel: one task per panel."""
    parts = _Pack(kernel, ()).parts()
    return _Pack(kernel, parts).lowered()


class _Pack:
    """A panel while it is lowered; `parts`: extents of the inner loops that the rows are split into."""

    def __init__(self, kernel: Kernel, parts: tuple[int, ...]) -> None:
        self.build, self.node = Builder(kernel), kernel.nodes[0]
        node, space = self.node, self.build.space
        batch, groups = node.attr("batch"), node.attr("groups")
        self.matrices, self.panels, self.depth, _ = packed_extents(node)
        self.matrix, self.panel = space.loop("m", self.matrices), space.loop("p", self.panels)
        self.lane = space.loop("c", PANEL)
        self.columns = node.shape[-1] if groups == 1 else node.shape[-1] // groups
        self.rows = (self.depth, *parts)
        for part in parts:
            self.rows = (self.rows[0] // part, *self.rows[1:])
        self.k = tuple(space.loop(f"r{i}", extent) for i, extent in enumerate(self.rows))
        row: L.Expr = self.k[0]
        for part, k in zip(parts, self.k[1:], strict=True):
            row = L.plus(L.times(row, part), k)
        outer = unflatten(self.matrix, (*node.shape[:batch], groups), space.extent)
        inner = unflatten(row, node.shape[batch:-1], space.extent)
        column = L.plus(L.times(self.panel, PANEL), self.lane)
        last = L.plus(L.times(outer[-1], space.extent(self.columns)), column)
        at = tuple(space.canonical(e) for e in (*outer[:-1], *inner, last))
        self.value = self.build.pull(node.inputs[0], at)

    def parts(self) -> tuple[int, ...]:
        """The small number by which the reads divide rows, if the rows are whole multiples of it."""
        by = period(self.build.space, self.value, self.k[0])
        if not isinstance(by, int) or not 1 < by <= LITERAL or divides(by, self.depth) is not True:
            return ()
        return (by,)

    def lowered(self) -> Lowered:
        """The function of the value."""
        build, space = self.build, self.build.space
        panels = space.extent(self.panels)
        number = L.plus(L.times(self.matrix, panels), self.panel)
        body = pack_panels(
            build.tensor(self.node),
            L.times(number, space.extent(self.depth * PANEL)),
            tuple(map(space.extent, self.rows)),
            L.minus(space.extent(self.columns), L.times(self.panel, PANEL)),
            lambda k, lane: L.substitute(
                self.value, {**dict(zip(self.k, k, strict=True)), self.lane: lane}
            ),
        )
        task = L.var("task")
        here = {self.matrix: L.quotient(task, panels), self.panel: L.remainder(task, panels)}
        body = L.map_stmt(body, lambda e: L.substitute(e, here))
        tasks = self.matrices * self.panels
        nest = L.For(task, space.extent(tasks), body, L.Kind.PARALLEL)
        return build.lowered(nest, tasks)
