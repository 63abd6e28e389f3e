"""Chains: a depthwise window with the products before and behind it, in one pass over the image (DESIGN 3.4).

for task (image, band of rows): for group of output rows: the product before the window makes the rows of the image that
are not there yet, in a ring of rows in private memory; the window reads them and writes rows of the left operand of the
product behind it, or the output. Every element has the terms and the order of the kernels that the chain is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fissile.ir import loop as L
from fissile.ir.dim import DimLike, ceildiv, equal
from fissile.ir.graph import Node
from fissile.microkernel.generate import ROW_PITCH_GAP, tile_shape
from fissile.orchestrate.chain import (
    LEFT_BYTES,
    Chain,
    Strip,
    chain_of,
    image_of,
    strip_of,
    whole,
)
from fissile.orchestrate.follow import Index
from fissile.orchestrate.plan import Kernel
from fissile.schedule.kernel import Builder, Lowered
from fissile.schedule.linear import BLOCK_ROWS, Extents, Linear
from fissile.schedule.sliding import Sliding
from fissile.target import Target

Place = tuple[L.Buffer, L.Expr]


def lower_chain(kernel: Kernel, target: Target) -> Lowered:
    """The loop program of a CHAIN kernel."""
    chain = chain_of(kernel)
    strip = strip_of(chain)
    if strip is None:
        raise ValueError("a chain's rows fit local memory")
    return _Lowering(kernel, chain, strip, target).lower()


class Product(Linear):
    """A product over some consecutive rows, all its columns and all of k, as a part of a larger kernel.

    rows: of a block at most. unit: what the rows of a block are a multiple of. The block's matrix, first row and number
    of rows are `names["matrix"]`, `row` and `count`.
    """

    def __init__(
        self, kernel: Kernel, target: Target, build: Builder, prefix: str, rows: int, unit: int
    ) -> None:
        super().__init__(kernel, target, build, prefix)
        self.shape = tile_shape(target, self.dtype.bytes, unit if unit >= 4 else rows)
        columns, depth = self.size.columns, self.size.depth
        self.block = Extents(1, rows, columns, depth)
        self.pitch = (depth if isinstance(depth, int) else 0) + ROW_PITCH_GAP
        self.unit = unit
        self.limit_rows(rows)
        self.row, self.count = L.var(f"{prefix}row"), L.var(f"{prefix}count")
        zero = L.const(0)
        self.part = L.var(f"{prefix}part")
        self.names = {
            "matrix": zero, "row": self.row, "column": zero, "start": zero,
            "deep": self.role("depth", depth),
        }  # fmt: skip
        self.place: Callable[[], Place] | None = None

    def limit_rows(self, rows: int) -> None:
        """No block has more rows."""
        self.most = self.block_rows = rows

    @property
    def packed(self) -> L.Buffer:
        """The block's rows of the left operand, and the idle ones of its last tile."""
        size = self.kept_rows * self.pitch
        return L.buffer(f"{self.prefix}left", self.dtype, (size,), L.Space.SCRATCH)

    @property
    def kept_rows(self) -> int:
        """Most rows of a block, and the idle ones of its last tile."""
        return self.block_rows + self.shape.rows

    def _row_count(self) -> L.Expr:
        return self.count

    def padded_rows(self) -> L.Expr:
        """The block's rows and the idle ones of its last tile."""
        shape = self.shape
        full = L.times(L.quotient(self.count, shape.rows), shape.rows)
        rest = L.ceildiv(L.minus(self.count, full), shape.tail_rows)
        return L.plus(full, L.times(rest, shape.tail_rows))

    def epilogue(self, value: L.Expr) -> tuple[Node, L.Expr, L.Expr]:
        """As for a kernel of its own, but for where the result goes."""
        output, address, final = super().epilogue(value)
        return output, address if self.place is None else self.place()[1], final

    def stored(self, output: Node) -> L.Buffer:
        """Where the output is."""
        return super().stored(output) if self.place is None else self.place()[0]

    def pack(self) -> L.Stmt:
        """The block's rows of the left operand into `packed`; idle rows repeat the last."""
        last = L.minus(L.plus(self.row, self.count), 1)
        return L.block(*self._for_rows(self.padded_rows(), last))

    def clear_idle(self) -> L.Stmt:
        """Idle rows of `packed` to zero, when something else writes the others."""
        i, lane = L.var("i"), L.var("c")
        at = L.plus(L.times(L.plus(self.count, i), self.row_pitch), lane)
        store = L.Store(self.packed, (at,), L.const(0, self.dtype))
        row = L.For(lane, self.names["deep"], store, L.Kind.VECTORIZED)
        return L.For(i, L.minus(self.padded_rows(), self.count), row)

    def multiply(self) -> L.Stmt:
        """The products of the block, their epilogue and stores."""
        return self._panels()


class _Window(Sliding):
    """The window of a chain at output row `line` of image `number`: where it reads and writes is the chain's choice."""

    def __init__(
        self, kernel: Kernel, target: Target, build: Builder,
        image: Node | None, source: Callable[[Index], L.Expr], place: Callable[[Index], Place] | None,
    ) -> None:  # fmt: skip
        self.image, self.source, self.placed = image, source, place
        super().__init__(kernel, target, build)

    def _outer(self, extents: tuple[DimLike, ...]) -> Index:
        space = self.build.space
        self.number = space.loop("number", extents[0])
        self.line = space.loop("line", extents[1])
        return (
            L.const(0) if equal(extents[0], 1) is True else self.number,
            L.const(0) if equal(extents[1], 1) is True else self.line,
        )

    def read(self, node: Node, index: Index) -> L.Expr | None:
        """The element of a node that is in memory, or in the ring, None when it is computed."""
        return self.source(index) if node is self.image else super().read(node, index)

    def stored(self, output: Node) -> Place:
        """Where the current element of the output goes."""
        return super().stored(output) if self.placed is None else self.placed(self.at)


@dataclass(frozen=True)
class _Group:
    """The variables of a group of output rows: its image, first row and number of rows, and where the ring begins."""

    number: L.Var = L.var("at_image")
    first: L.Var = L.var("group_row")
    rows: L.Var = L.var("group_rows")
    origin: L.Var = L.var("origin")


class _Lowering:
    """One chain while it is lowered."""

    def __init__(self, kernel: Kernel, chain: Chain, strip: Strip, target: Target) -> None:
        self.strip, self.build, self.at = strip, Builder(kernel), _Group()
        self.root, self.image = chain.window.nodes[0], image_of(chain)
        self.height, self.across = self.image.shape[1], whole(self.image.shape[2])
        self.width, self.channels = whole(self.root.shape[2]), whole(self.root.shape[3])
        self.up = self._before(chain.up, target) if chain.up else None
        self.down = self._behind(chain.down, target) if chain.down else None
        self.window = _Window(
            chain.window, target, self.build, self.image if self.up else None,
            self._from_ring, self._into_left if self.down else None,
        )  # fmt: skip

    def _before(self, kernel: Kernel, target: Target) -> Product:
        """The product that makes the image, in blocks of pixels."""
        made = Product(kernel, target, self.build, "up_", BLOCK_ROWS, self.across)
        tile = made.shape.rows
        fitting = LEFT_BYTES // (made.pitch * made.dtype.bytes)
        made.limit_rows(max(1, min(BLOCK_ROWS, fitting) // tile) * tile)
        made.place = self._into_ring
        made.read_in_place()
        return made

    def _behind(self, kernel: Kernel, target: Target) -> Product:
        """The product behind the window: a group of rows is its block."""
        rows = self.strip.group * self.width
        return Product(kernel, target, self.build, "down_", rows, self.width)

    # -------------------------------------------------------- the ring and the left operand

    @property
    def ring(self) -> L.Buffer:
        """Rows of the image: row h is in slot h modulo their number."""
        size = self.strip.slots * self.across * self.channels
        return L.buffer("ring", self.root.dtype.compute, (size,), L.Space.SCRATCH)

    def _slot(self, distance: L.Expr, unit: int) -> L.Expr:
        """What lies `distance` behind the ring's origin (a row that has slot 0), in rows of `unit`, wrapped around."""
        around = self.strip.slots * unit
        wrapped = L.minus(distance, around)
        return L.op("select", L.op("ge", distance, L.const(around)), wrapped, distance)

    def _into_ring(self) -> Place:
        up = self.up
        assert up is not None
        pixel = self._slot(L.minus(up.m, L.var("ring_start")), self.across)
        return self.ring, L.plus(L.times(pixel, self.channels), up.n)

    def _from_ring(self, index: Index) -> L.Expr:
        """The image's element (image, row, column, channel)."""
        _, row, column, channel = index
        pixel = L.plus(L.times(self._slot(L.minus(row, self.at.origin), 1), self.across), column)
        return L.Load(self.ring, (L.plus(L.times(pixel, self.channels), channel),))

    def _into_left(self, index: Index) -> Place:
        """The place of the window's element in the left operand of the product behind it."""
        down = self.down
        assert down is not None
        row = L.plus(L.times(L.var("in_group"), self.width), index[2])
        return down.packed, L.plus(L.times(row, down.pitch), index[3])

    # -------------------------------------------------------- the nest

    def lower(self) -> Lowered:
        """The whole function."""
        role, strip = self.build.role, self.strip
        images, height = self.root.shape[0], self.root.shape[1]
        bands = ceildiv(height, strip.task)
        task, band, first, q = L.var("task"), L.var("band"), L.var("first_row"), L.var("group")
        rows, per_task = role("out_rows", height), role("task_rows", strip.task)
        left = L.var("rows_left")
        at_image: L.Expr = L.const(0)
        at_band: L.Expr = task
        if equal(images, 1) is not True:
            at_image = L.quotient(task, role("bands", bands))
            at_band = L.remainder(task, role("bands", bands))
        start = L.plus(first, L.times(q, strip.group))
        count = L.minimum(L.const(strip.group), L.minus(left, L.times(q, strip.group)))
        body = lets({self.at.first: start, self.at.rows: count}, self._group(q))
        body = L.For(q, L.ceildiv(left, strip.group), body)
        if self.up is not None:
            body = L.Alloc(self.ring, body)
        named = {
            self.at.number: at_image,
            band: at_band,
            first: L.times(band, per_task),
            left: L.minimum(per_task, L.minus(rows, first)),
        }
        nest = L.For(task, role("tasks", images * bands), lets(named, body), L.Kind.PARALLEL)
        return self.build.lowered(nest, images * bands)

    def _group(self, q: L.Var) -> L.Stmt:
        """One group of output rows."""
        window = self._windows()
        if self.down is not None:
            window = self._multiplied(self.down, window)
        return window if self.up is None else self._made(self.up, q, window)

    def _made(self, up: Product, q: L.Var, then: L.Stmt) -> L.Stmt:
        """Rows of the image that the group reads and no group of the task has made yet; then what reads them."""
        role, strip, at = self.build.role, self.strip, self.at
        stride = self.root.attr("strides")[0]
        height, above = role("in_rows", self.height), self.build.extent(strip.above)
        low, high, fresh, before = map(L.var, ("low_row", "high_row", "fresh_row", "made_row"))

        def reads(row: L.Expr, offset: int) -> L.Expr:
            return L.plus(L.minus(L.times(row, stride), above), offset)

        last = L.minus(L.plus(at.first, at.rows), 1)
        chunk, total, begin = L.var("chunk"), L.var("pixels"), L.var("first_pixel")
        done = L.times(chunk, up.block_rows)
        block = {
            up.row: L.plus(begin, done),
            up.count: L.minimum(L.const(up.block_rows), L.minus(total, done)),
        }
        steps = lets(block, L.block(up.pack(), up.multiply()))
        made = up.with_left(L.For(chunk, L.ceildiv(total, up.block_rows), steps))
        base = L.times(at.number, height)
        named = {
            low: L.op("max", L.const(0), reads(at.first, 0)),
            high: L.minimum(height, reads(last, strip.span)),
            before: L.minimum(height, reads(L.minus(at.first, 1), strip.span)),
            fresh: L.op("select", L.op("eq", q, L.const(0)), low, L.op("max", low, before)),
            at.origin: L.times(L.quotient(low, strip.slots), strip.slots),
            L.var("ring_start"): L.times(L.plus(base, at.origin), self.across),
            begin: L.times(L.plus(base, fresh), self.across),
            total: L.times(L.op("max", L.const(0), L.minus(high, fresh)), self.across),
        }
        return lets(named, L.block(made, then))

    def _windows(self) -> L.Stmt:
        """The window at all places of the group's rows."""
        window, g, b = self.window, L.var("in_group"), L.var("block")
        channels = self.build.role("channels", self.channels)
        start = L.times(b, window.tile.lanes)
        blocks = L.ceildiv(channels, window.tile.lanes)
        body: L.Stmt = L.For(b, blocks, window.block(b, start, {"columns": channels}))
        here = {window.number: self.at.number, window.line: L.plus(self.at.first, g)}
        body = L.map_stmt(body, lambda e: L.substitute(e, here))
        return L.For(g, self.at.rows, body)

    def _multiplied(self, down: Product, window: L.Stmt) -> L.Stmt:
        """What the window gives times the right operand of the product behind it."""
        rows = self.build.role("out_rows", self.root.shape[1])
        first = L.plus(L.times(self.at.number, rows), self.at.first)
        named = {
            down.row: L.times(first, self.width),
            down.count: L.times(self.at.rows, self.width),
        }
        body = L.block(window, down.clear_idle(), down.multiply())
        return L.Alloc(down.packed, lets(named, body))


def lets(values: Mapping[L.Var, L.Expr], body: L.Stmt) -> L.Stmt:
    """`body` with names for values, each of which may use those before it."""
    for name, value in reversed(list(values.items())):
        body = L.Let(name, value, body)
    return body
