"""Attention: a product, what goes over its rows, and the product with the result, block of rows by block (DESIGN 3.4).

for task (matrix, block of rows): the first product's rows with its epilogue into private memory; the reductions and
what follows them over each row, in place; the second product, whose left operand these rows are. Every element has the
terms and the order of the three kernels, so the bits are theirs, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fissile.ir import loop as L
from fissile.ir.dim import ceildiv, equal
from fissile.ir.graph import Node
from fissile.microkernel.generate import ROW_PITCH_GAP
from fissile.orchestrate.attention import BLOCK_ROWS, Attention, attention_of
from fissile.orchestrate.follow import Index
from fissile.orchestrate.plan import Kernel
from fissile.schedule.chain import Place, Product, lets
from fissile.schedule.kernel import Builder, Lowered
from fissile.schedule.rows import Rows
from fissile.target import Target


def lower_attention(kernel: Kernel, target: Target, lanes: int) -> Lowered:
    """The loop program of a CHAIN kernel that goes over rows; reductions keep `lanes` partial accumulators."""
    return _Lowering(kernel, attention_of(kernel), target, lanes).lower()


class _Mix(Product):
    """The second product: its left operand is the block of rows."""

    rows_at: L.Buffer
    between: L.Expr

    @property
    def packed(self) -> L.Buffer:
        """The block of rows."""
        return self.rows_at

    @property
    def row_pitch(self) -> L.Expr:
        """Elements from one row to the next."""
        return self.between


class _Over(Rows):
    """The rows' reductions: the scores are read from the block, and the result goes where they were."""

    def __init__(
        self,
        kernel: Kernel,
        lanes: int,
        build: Builder,
        given: Node,
        block: L.Buffer,
        pitch: L.Expr,
        beside: Mapping[Node, L.Buffer],
    ) -> None:
        self.given, self.block, self.pitch, self.beside = given, block, pitch, beside
        super().__init__(kernel, lanes, build)

    def _here(self) -> L.Expr:
        return L.plus(L.times(L.var("in_block"), self.pitch), self.column)

    def read(self, node: Node, index: Index) -> L.Expr | None:
        """The element of a node that is in memory or in the block (there only at its own place), else None."""
        if node is not self.given:
            return super().read(node, index)
        return L.Load(self.block, (self._here(),))

    def stored(self, output: Node) -> Place:
        """Where the current element of the result goes."""
        return self.block, self._here()

    def stored_row(self, output: Node) -> Place:
        """Where the current row's value goes that the last product's epilogue reads."""
        return self.beside[output], L.var("in_block")


class _Lowering:
    """One attention kernel while it is lowered."""

    def __init__(self, kernel: Kernel, stages: Attention, target: Target, lanes: int) -> None:
        self.build = Builder(kernel)
        root = stages.scores.nodes[0]
        self.height, self.length = root.shape[-2], root.shape[-1]
        known = self.height if isinstance(self.height, int) else 0
        share = -(-known // -(-known // BLOCK_ROWS)) if known else BLOCK_ROWS
        self.scores = Product(stages.scores, target, self.build, "scores_", share, 0)
        tile = self.scores.shape.rows
        self.block_rows = -(-share // tile) * tile
        self.mix = _Mix(stages.mix, target, self.build, "mix_", share, 0)
        for part in (self.scores, self.mix):
            part.unit = math.gcd(self.block_rows, known) if known else 1
            part.limit_rows(self.block_rows)
            part.names["matrix"] = L.var("at_matrix")
        self.pitch = self.build.role("pitch", self.length + ROW_PITCH_GAP)
        rows = self.block_rows + self.mix.shape.rows
        size = self.build.role("block_elements", rows * (self.length + ROW_PITCH_GAP))
        self.block = L.buffer("scores", self.scores.dtype, (size,), L.Space.SCRATCH)
        self.scores.place = self._into_block
        self.mix.rows_at, self.mix.between = self.block, self.pitch
        given = stages.scores.outputs[-1]
        self.beside = {
            n: L.buffer(f"beside{k}", n.dtype, (self.block_rows,), L.Space.SCRATCH)
            for k, n in enumerate(stages.rows.outputs[:-1])
        }
        at = L.minus(self.mix.m, self.mix.row)
        self.mix.beside = {n: L.Load(b, (at,)) for n, b in self.beside.items()}
        self.over = _Over(
            stages.rows, lanes, self.build, given, self.block, self.pitch, self.beside
        )

    def _into_block(self) -> Place:
        row = L.minus(self.scores.m, self.scores.row)
        return self.block, L.plus(L.times(row, self.pitch), self.scores.n)

    def lower(self) -> Lowered:
        """The whole function."""
        role, matrices = self.build.role, self.scores.size.matrices
        blocks = ceildiv(self.height, self.block_rows)
        task, matrix, first, count = map(L.var, ("task", "at_matrix", "first_row", "block_rows"))
        at_block: L.Expr = task
        at_matrix: L.Expr = L.const(0)
        if equal(matrices, 1) is not True:
            at_matrix = L.quotient(task, role("blocks", blocks))
            at_block = L.remainder(task, role("blocks", blocks))
        height = role("height", self.height)
        named = {
            matrix: at_matrix,
            first: L.times(at_block, self.block_rows),
            count: L.minimum(L.const(self.block_rows), L.minus(height, first)),
            self.scores.row: first,
            self.scores.count: count,
            self.mix.row: first,
            self.mix.count: count,
        }
        product = L.Alloc(self.scores.packed, L.block(self.scores.pack(), self.scores.multiply()))
        steps = L.block(product, self._rows(), self.mix.clear_idle(), self.mix.multiply())
        body: L.Stmt = L.Alloc(self.block, steps)
        for buffer in self.beside.values():
            body = L.Alloc(buffer, body)
        body = lets(named, body)
        tasks = matrices * blocks
        nest = L.For(task, role("tasks", tasks), body, L.Kind.PARALLEL)
        return self.build.lowered(nest, tasks)

    def _rows(self) -> L.Stmt:
        """The reductions and what follows them, over each row of the block."""
        i, count = L.var("in_block"), L.var("block_rows")
        height = self.build.role("height", self.height)
        row = L.plus(L.plus(L.times(L.var("at_matrix"), height), L.var("first_row")), i)
        here = {self.over.row: row}
        body = L.map_stmt(self.over.one_row(), lambda e: L.substitute(e, here))
        return L.For(i, count, body)
