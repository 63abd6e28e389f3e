"""Attention: a product, what goes over its rows, and the product with the result, block of rows by block (DESIGN 3.4).

for task (matrix, block of rows): the first product's rows with its epilogue into private memory; the reductions and
what follows them over each row, in place; the second product, whose left operand these rows are. Every element has the
terms and the order of the three kernels, so the bits are theirs, too. But where a softmax goes over rows that are long,
or of any length, this is done for one piece of them after the other (the online softmax, a named variant).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from fissile.ir import loop as L
from fissile.ir.dim import DimLike, ceildiv, equal, lower_bound, max_
from fissile.ir.graph import Node
from fissile.ir.primitive import PANEL, packed_extents
from fissile.microkernel.generate import ROW_PITCH_GAP
from fissile.orchestrate.attention import (
    BLOCK_ROWS,
    Attention,
    Softmax,
    attention_of,
    in_pieces,
)
from fissile.orchestrate.chain import whole
from fissile.orchestrate.follow import Index
from fissile.orchestrate.plan import Kernel
from fissile.schedule.chain import Place, Product, lets
from fissile.schedule.kernel import Builder, Lowered
from fissile.schedule.rows import Rows
from fissile.target import Target

PIECE = 512  # scores of a row that are there at once, where it comes in pieces: whole tiles of any width


def lower_attention(kernel: Kernel, target: Target, lanes: int) -> Lowered:
    """The loop program of a CHAIN kernel that goes over rows; reductions keep `lanes` partial accumulators."""
    stages = attention_of(kernel)
    softmax = in_pieces(stages)
    if softmax is None:
        return _Whole(kernel, stages, target, lanes).lower()
    return _InPieces(kernel, stages, target, lanes, softmax).lower()


class _Mix(Product):
    """The second product: its left operand is the block of rows.

    wide: columns of the sums that are kept where the rows come in pieces. total: what these are divided by at the end.
    """

    rows_at: L.Buffer
    between: L.Expr
    wide: int = 0
    total: L.Expr | None = None

    @property
    def packed(self) -> L.Buffer:
        """The block of rows."""
        return self.rows_at

    @property
    def row_pitch(self) -> L.Expr:
        """Elements from one row to the next."""
        return self.between

    def _most_columns(self) -> int:
        return self.wide

    def right(self, k: L.Expr, column: L.Expr) -> L.Expr:
        """The right operand's element of row k and a column."""
        node = self.root.inputs[1]
        _, panels, depth, _ = packed_extents(node)
        panel = L.times(self.right_matrix(), self.role("panels", panels))
        panel = L.plus(panel, L.quotient(column, PANEL))
        row = L.plus(L.times(panel, self.role("panel_elements", depth * PANEL)), L.times(k, PANEL))
        return L.Load(self.build.tensor(node), (L.plus(row, L.remainder(column, PANEL)),))

    def epilogue(self, value: L.Expr) -> tuple[Node, L.Expr, L.Expr]:
        """As for a kernel of its own, of the divided value."""
        if self.total is None:
            return super().epilogue(value)
        divided = L.op("div", value, self.total)
        if (lower_bound(self.size.depth) or 0) < 1:  # a sum of nothing is 0, whatever it is divided by
            nothing = L.op("eq", self.role("depth", self.size.depth), L.const(0))
            divided = L.op("select", nothing, value, divided)
        return super().epilogue(divided)


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


class _Blocks:
    """Both products of an attention kernel over blocks of rows, with `width` scores of each row in private memory."""

    def __init__(
        self, kernel: Kernel, stages: Attention, target: Target, lanes: int, width: DimLike
    ) -> None:
        self.build, self.stages, self.lanes = Builder(kernel), stages, lanes
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
        self.pitch = self.extent("pitch", width + ROW_PITCH_GAP)
        rows = self.block_rows + self.mix.shape.rows
        size = self.extent("block_elements", rows * (width + ROW_PITCH_GAP))
        self.block = L.buffer("scores", self.scores.dtype, (size,), L.Space.SCRATCH)
        self.scores.place = self._into_block
        self.mix.rows_at, self.mix.between = self.block, self.pitch
        self.beside = {
            n: L.buffer(f"beside{k}", n.dtype, (self.block_rows,), L.Space.SCRATCH)
            for k, n in enumerate(stages.rows.outputs[:-1])
        }
        self.mix.beside = {n: L.Load(b, (self.mixed_row,)) for n, b in self.beside.items()}

    def extent(self, name: str, dim: DimLike) -> L.Expr:
        """A number as it is, else a parameter."""
        return L.const(dim) if isinstance(dim, int) else self.build.role(name, dim)

    @property
    def mixed_row(self) -> L.Expr:
        """The row of the block that the second product is at."""
        return L.minus(self.mix.m, self.mix.row)

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
        body: L.Stmt = L.Alloc(self.block, self.steps())
        for buffer in self.beside.values():
            body = L.Alloc(buffer, body)
        tasks = matrices * blocks
        nest = L.For(task, role("tasks", tasks), lets(named, body), L.Kind.PARALLEL)
        return self.build.lowered(nest, tasks)

    def steps(self) -> L.Stmt:
        """What is done for a block of rows."""
        raise NotImplementedError


class _Whole(_Blocks):
    """Rows of scores are there as a whole: anything may go over them."""

    def __init__(self, kernel: Kernel, stages: Attention, target: Target, lanes: int) -> None:
        super().__init__(kernel, stages, target, lanes, stages.scores.nodes[0].shape[-1])
        given, over = stages.scores.outputs[-1], stages.rows
        self.over = _Over(over, lanes, self.build, given, self.block, self.pitch, self.beside)

    def steps(self) -> L.Stmt:
        """Scores, what goes over their rows, and the second product."""
        product = L.Alloc(self.scores.packed, L.block(self.scores.pack(), self.scores.multiply()))
        return L.block(product, self._rows(), self.mix.clear_idle(), self.mix.multiply())

    def _rows(self) -> L.Stmt:
        """The reductions and what follows them, over each row of the block."""
        i, count = L.var("in_block"), L.var("block_rows")
        height = self.build.role("height", self.height)
        row = L.plus(L.plus(L.times(L.var("at_matrix"), height), L.var("first_row")), i)
        here = {self.over.row: row}
        body = L.map_stmt(self.over.one_row(), lambda e: L.substitute(e, here))
        return L.For(i, count, body)


class _InPieces(_Blocks):
    """Rows of scores are there piece by piece (the online softmax).

    What is summed so far is multiplied by exp(old maximum - new maximum) before a piece is added. Rounding apart it is
    the softmax; a row whose scores are all -inf is NaN, and so is one with +inf or NaN.
    """

    def __init__(
        self, kernel: Kernel, stages: Attention, target: Target, lanes: int, softmax: Softmax
    ) -> None:
        super().__init__(kernel, stages, target, lanes, PIECE)
        self.dtype = self.scores.dtype
        self.piece, self.start, self.deep = map(L.var, ("piece", "piece_start", "piece_length"))
        scores, mix = self.scores, self.mix
        scores.block = replace(scores.block, columns=PIECE)
        scores.names["column"] = self.start
        mix.part, mix.block = self.piece, replace(mix.block, depth=PIECE)
        mix.names |= {"start": self.start, "deep": self.deep}
        self.columns = whole(mix.size.columns)
        self.top, self.most, self.shift, self.scale, total = (
            L.buffer(name, self.dtype, (self.block_rows,), L.Space.SCRATCH)
            for name in ("tops", "largest", "shifts", "scales", "totals")
        )
        self.state = self.top, self.most, self.shift, self.scale
        self.total = self.beside.get(softmax.total, total)
        if softmax.divided:
            mix.total = L.Load(self.total, (self.mixed_row,))
        self.softmax = softmax
        mix.wide = -(-self.columns // PANEL) * PANEL + mix.shape.panels * PANEL

    def _into_block(self) -> Place:
        buffer, at = super()._into_block()
        return buffer, L.minus(at, self.start)

    def steps(self) -> L.Stmt:
        """For every piece: scores, how their exponentials go with what is summed so far, and the second product."""
        scores, mix, i, rest = self.scores, self.mix, L.var("in_block"), L.var("rest")
        count, length = L.var("block_rows"), self.build.role("length", self.length)
        places = {
            self.start: L.times(self.piece, PIECE),
            self.deep: L.minimum(L.const(PIECE), L.minus(length, self.start)),
            rest: L.remainder(self.deep, self.lanes),
        }
        body = L.block(
            scores.multiply(),
            L.For(i, count, self._largest(i, rest)),
            self._scales(),
            L.For(i, count, self._exponentials(i, rest)),
            mix.clear_idle(),
            mix.multiply(),
        )
        pieces = max_(1, ceildiv(self.length, PIECE))  # a sum of nothing is stored, too
        loop = L.For(self.piece, self.build.role("pieces", pieces), lets(places, body))
        result: L.Stmt = L.block(self._nothing(), scores.pack(), loop)
        for buffer in (mix.partial, scores.packed, *self.state):
            result = L.Alloc(buffer, result)
        return result if self.total in self.beside.values() else L.Alloc(self.total, result)

    def _nothing(self) -> L.Stmt:
        """Before the first piece; of idle rows, too."""
        i, lowest = L.var("in_block"), L.const(-math.inf, self.dtype)
        first = {self.top: lowest, self.most: lowest, self.total: L.const(0, self.dtype)}
        rows = L.const(self.block_rows)
        return L.block(
            *(L.For(i, rows, L.Store(b, (i,), v), L.Kind.VECTORIZED) for b, v in first.items())
        )

    def _largest(self, i: L.Expr, rest: L.Expr) -> L.Stmt:
        """The largest score of the piece of a row."""
        most = self._lanes("most")
        store = L.Store(self.most, (i,), L.Load(self._fold(most), (L.const(0),)))
        over = self._over(most, -math.inf, "max", self._score(i), rest)
        return self._with(most, L.block(over, store))

    def _scales(self) -> L.Stmt:
        """Of all rows: the largest score so far, what is subtracted from scores, and what scales the sums before."""
        i, lowest = L.var("in_block"), L.const(-math.inf, self.dtype)
        old, shift = L.Load(self.top, (i,)), L.Load(self.shift, (i,))
        new = L.op("max", old, L.Load(self.most, (i,)))
        finite = L.op("select", L.op("eq", new, lowest), L.const(0, self.dtype), new)
        steps = (
            L.Store(self.shift, (i,), finite),
            L.Store(self.scale, (i,), L.op("exp", L.op("sub", old, shift))),
            L.Store(self.top, (i,), new),
        )
        rows = L.const(self.block_rows)
        return L.block(*(L.For(i, rows, step, L.Kind.VECTORIZED) for step in steps))

    def _exponentials(self, i: L.Expr, rest: L.Expr) -> L.Stmt:
        """Those of the piece in place and their sum; what was summed before is scaled."""
        dtype, total, lane = self.dtype, self._lanes("sum"), L.var("lane")
        shift, scale = L.var("shift", dtype), L.var("scale", dtype)
        known = {shift: L.Load(self.shift, (i,)), scale: L.Load(self.scale, (i,))}
        kept = L.Load(self.mix.partial, (L.plus(L.times(i, self.mix.wide), lane),))
        scaled = L.Store(self.mix.partial, kept.index, L.op("mul", kept, scale))
        again = L.For(lane, L.const(self.columns), scaled, L.Kind.VECTORIZED)
        added, score = L.Load(self._fold(total), (L.const(0),)), self._score(i)
        exponent = L.op("exp", L.op("sub", score, shift))
        steps = L.block(
            self._over(total, 0.0, "add", exponent, rest, store=score),
            L.Store(self.total, (i,), L.op("fma", L.Load(self.total, (i,)), scale, added)),
            L.If(L.op("gt", self.piece, L.const(0)), again),
            *self._filled(i),
        )
        return self._with(total, lets(known, steps))

    def _score(self, i: L.Expr) -> L.Load:
        return L.Load(self.block, (L.plus(L.times(i, self.pitch), L.var("column")),))

    def _lanes(self, name: str) -> L.Buffer:
        return L.buffer(name, self.dtype, (self.lanes,), L.Space.REGISTER)

    def _with(self, partial: L.Buffer, body: L.Stmt) -> L.Stmt:
        return L.Alloc(partial, L.Alloc(self._fold(partial), body))

    def _filled(self, i: L.Expr) -> list[L.Stmt]:
        """Of a row that came out NaN (then all of it is): as if every score had been the value that fills it."""
        if self.softmax.fill is None:
            return []
        mix, row, lane, k = self.mix, L.times(i, self.pitch), L.var("lane"), L.var("k")
        fill, total = self.build.pull(self.softmax.fill, ()), L.Load(self.total, (i,))
        length = self.build.role("length", self.length)
        is_last = L.op("ge", L.plus(self.start, self.deep), length)
        is_bad = L.op("or", L.op("ne", total, total), L.op("eq", total, L.const(0, self.dtype)))
        piece = L.Store(self.block, (L.plus(row, lane),), fill)
        kept = L.Load(mix.partial, (L.plus(L.times(i, mix.wide), lane),))
        clear = L.Store(mix.partial, kept.index, L.const(0, self.dtype))
        term = L.op("fma", fill, mix.right(k, lane), kept)
        add = L.Store(mix.partial, kept.index, term)
        columns = L.const(self.columns)
        steps = L.block(
            L.Store(self.total, (i,), L.const(1, self.dtype)),
            L.For(lane, self.deep, piece, L.Kind.VECTORIZED),
            L.For(lane, columns, clear, L.Kind.VECTORIZED),
            L.For(k, self.start, L.For(lane, columns, add)),
        )
        return [L.If(L.op("and", is_last, is_bad), steps)]

    def _fold(self, partial: L.Buffer) -> L.Buffer:
        return L.buffer(f"{partial.name}_fold", self.dtype, (self.lanes,), L.Space.REGISTER)

    def _over(
        self, partial: L.Buffer, start: float, combine: str, value: L.Expr, rest: L.Expr,
        store: L.Load | None = None,
    ) -> L.Stmt:  # fmt: skip
        """fold[0] = `value` of all columns of the piece, combined; stored where it is read from, if anywhere."""
        lane, block, column = L.var("lane"), L.var("block"), L.var("column")
        everywhere, at = L.const(self.lanes), (lane,)
        here = L.Load(partial, at)
        set_ = L.Store(partial, at, L.const(start, self.dtype))
        step: L.Stmt = L.Store(partial, at, L.op(combine, here, value))
        if store is not None:
            stored = L.Load(store.buffer, store.index)
            add = L.Store(partial, at, L.op(combine, here, stored))
            step = L.block(L.Store(store.buffer, store.index, value), add)

        def lanes(first: L.Expr, *, limited: bool) -> L.Stmt:
            there = L.plus(first, lane)
            body = L.map_stmt(step, lambda e: L.substitute(e, {column: there}))
            body = L.If(L.op("lt", there, self.deep), body) if limited else body
            return L.For(lane, everywhere, body, L.Kind.VECTORIZED)

        main = L.For(block, L.quotient(self.deep, self.lanes),
                     lanes(L.times(block, self.lanes), limited=False))  # fmt: skip
        last = L.If(L.op("gt", rest, L.const(0)), lanes(L.minus(self.deep, rest), limited=True))
        fold, width = self._fold(partial), self.lanes // 2
        halves = [L.For(lane, everywhere, L.Store(fold, at, here), L.Kind.VECTORIZED)]
        while width:
            pair = L.op(combine, L.Load(fold, at), L.Load(fold, (L.plus(lane, width),)))
            halves.append(L.For(lane, L.const(width), L.Store(fold, at, pair), L.Kind.VECTORIZED))
            width //= 2
        first = L.For(lane, everywhere, set_, L.Kind.VECTORIZED)
        return L.block(first, main, last, *halves)
