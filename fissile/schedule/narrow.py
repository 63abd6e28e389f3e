"""Products with very few columns: the named variant `lane_sums`, which vectorizes along k instead of the columns.

Four columns fill a quarter of a panel; here rows of the left operand and columns of the right one are both contiguous
along k, every lane keeps a sum of its own, and the lanes are added at the end. The order of the terms differs from the
canonical one (DESIGN 3.8); it is chosen by the operand's constant shape, so bits depend on nothing else.
"""

from __future__ import annotations

from fissile.ir import loop as L
from fissile.microkernel.generate import ROW_PITCH_GAP, TileShape
from fissile.orchestrate.plan import Kernel
from fissile.schedule.kernel import Lowered
from fissile.schedule.linear import Extents, Linear
from fissile.target import Target

BLOCK_BYTES = 192 * 1024  # rows of a block: they stay in a private cache


def lower_narrow(kernel: Kernel, target: Target) -> Lowered:
    """The loop program of a LINEAR kernel whose right operand is stored by columns."""
    return _Narrow(kernel, target).lower()


class _Narrow(Linear):
    """A linear kernel whose tiles are rows x all columns, a vector of partial sums for each."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        super().__init__(kernel, target)
        self.lanes = target.lanes(self.dtype.bytes)
        columns, depth = self.size.columns, self.size.depth
        if not (isinstance(columns, int) and isinstance(depth, int)):
            raise ValueError("an operand stored by columns has a known shape")
        self.columns, self.depth = columns, depth
        room = target.vector_registers - columns - 2
        rows = max(1, min(6, room // columns))
        self.shape = TileShape(rows, 1, rows)
        self.pitch = -(-depth // self.lanes) * self.lanes + ROW_PITCH_GAP
        block = max(1, BLOCK_BYTES // (self.pitch * self.dtype.bytes * rows)) * rows
        self.block = Extents(1, block, columns, depth)
        self.block_rows = block

    @property
    def packed(self) -> L.Buffer:
        """The block's rows of the left operand: row after row, `pitch` apart."""
        return L.buffer(
            "left", self.dtype, ((self.block_rows + self.shape.rows) * self.pitch,), L.Space.SCRATCH
        )

    @property
    def partial(self) -> L.Buffer:
        """Nothing is kept between blocks of k: there is one."""
        return L.buffer("partial", self.dtype, (1,), L.Space.SCRATCH)

    def _panels(self) -> L.Stmt:
        """for tile of rows: lane sums along k, their totals, the epilogue of every element"""
        i, count, rows = L.var("i"), self._row_count(), self.shape.rows
        first = L.var("tile_row")
        cells = rows * self.columns
        sums = L.buffer("sums", self.dtype, (cells, self.lanes), L.Space.REGISTER)
        totals = L.buffer("totals", self.dtype, (cells, self.lanes), L.Space.REGISTER)
        body = L.block(
            *self._clear(sums), *self._accumulate(sums, first), *self._fold(sums, totals),
            *self._finish(totals, first, count),
        )  # fmt: skip
        body = L.Let(first, L.times(i, rows), L.Alloc(sums, L.Alloc(totals, body)))
        return L.For(i, L.ceildiv(count, rows), body)

    def _clear(self, sums: L.Buffer) -> list[L.Stmt]:
        lane, zero = L.var("lane"), L.const(0, self.dtype)
        return [
            _vector(lane, self.lanes, L.Store(sums, (L.const(c), lane), zero))
            for c in range(self.shape.rows * self.columns)
        ]

    def _accumulate(self, sums: L.Buffer, first: L.Var) -> list[L.Stmt]:
        """sums[row, column, lane] += left[row, k] * right[matrix, column, k] over k = block * lanes + lane"""
        block = L.var("k_block")
        whole, rest = divmod(self.depth, self.lanes)
        body = L.block(*self._terms(sums, first, L.times(block, self.lanes), None))
        statements: list[L.Stmt] = [L.For(block, self.build.role("k_blocks", whole), body)]
        if rest:
            statements += self._terms(sums, first, L.const(whole * self.lanes), rest)
        return statements

    def _terms(
        self, sums: L.Buffer, first: L.Var, start: L.Expr, limit: int | None
    ) -> list[L.Stmt]:
        lane = L.var("lane")
        right = self.build.tensor(self.root.inputs[1])
        elements = self.build.role("column_elements", self.depth)
        first_column = L.times(self.right_matrix(), self.columns)
        terms: list[L.Stmt] = []
        for row in range(self.shape.rows):
            k = L.plus(start, lane)
            left_at = L.plus(L.times(L.plus(first, row), self.pitch), k)
            for column in range(self.columns):
                cell = (L.const(row * self.columns + column), lane)
                right_at = L.plus(L.times(elements, L.plus(first_column, column)), k)
                product = L.op(
                    "fma", L.Load(self.packed, (left_at,)), L.Load(right, (right_at,)), L.Load(sums, cell)
                )  # fmt: skip
                term: L.Stmt = L.Store(sums, cell, product)
                if limit is not None:
                    term = L.If(L.op("lt", lane, L.const(limit)), term)
                terms.append(_vector(lane, self.lanes, term))
        return terms

    def _fold(self, sums: L.Buffer, totals: L.Buffer) -> list[L.Stmt]:
        """totals[cell, 0] = the sum over the lanes of a cell, halves added to halves."""
        lane = L.var("lane")
        statements: list[L.Stmt] = []
        for c in range(self.shape.rows * self.columns):
            cell = L.const(c)
            copy = L.Store(totals, (cell, lane), L.Load(sums, (cell, lane)))
            statements.append(_vector(lane, self.lanes, copy))
            width = self.lanes // 2
            while width:
                low = L.Load(totals, (cell, lane))
                high = L.Load(totals, (cell, L.plus(lane, width)))
                halve = L.Store(totals, (cell, lane), L.op("add", low, high))
                statements.append(_vector(lane, width, halve))
                width //= 2
        return statements

    def _finish(self, totals: L.Buffer, first: L.Var, count: L.Expr) -> list[L.Stmt]:
        marker = L.var("product", self.dtype)
        output, address, value = self.epilogue(marker)
        statements: list[L.Stmt] = []
        for row in range(self.shape.rows):
            stores: list[L.Stmt] = []
            for column in range(self.columns):
                here = {
                    marker: L.Load(totals, (L.const(row * self.columns + column), L.const(0))),
                    self.m: L.plus(self.names["row"], L.plus(first, row)),
                    self.n: L.const(column),
                    self.matrix: self.names["matrix"],
                }
                place, final = L.substitute(address, here), L.substitute(value, here)
                stores.append(L.Store(self.build.tensor(output), (place,), final))
            inside = L.op("lt", L.plus(first, row), count)
            statements.append(L.If(inside, L.block(*stores)))
        return statements


def _vector(lane: L.Var, lanes: int, body: L.Stmt) -> L.Stmt:
    return L.For(lane, L.const(lanes), body, L.Kind.VECTORIZED)
