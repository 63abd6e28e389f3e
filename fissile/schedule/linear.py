"""Linear kernels: matrix products and convolutions on register tiles, with the epilogue on the tile.

for task (matrix, block of rows, block of columns): for block of k: copy the block's rows of the left operand into
private memory (windows are gathered there, padding read as zero) unless they can be read in place; for panel, for tile:
accumulate; keep partial sums between blocks of k; after the last one run the epilogue and store (DESIGN 3.5).
"""

from __future__ import annotations

from dataclasses import dataclass

from fissile.ir import loop as L
from fissile.ir.affine import LITERAL
from fissile.ir.dim import DimLike, ceildiv, divides, equal, exact_div, max_, product
from fissile.ir.dtype import INT64
from fissile.ir.graph import Node
from fissile.ir.primitive import PANEL, flatten, packed_extents, right_batch, unflatten
from fissile.microkernel.generate import (
    ROW_PITCH_GAP,
    Read,
    TileShape,
    accumulate,
    drain,
    fill,
    tile_shape,
)
from fissile.orchestrate.follow import Index, definition, push
from fissile.orchestrate.formats import shares_right, tile_address
from fissile.orchestrate.plan import Kernel
from fissile.schedule.in_place import InPlace, in_place
from fissile.schedule.kernel import Builder, Lowered
from fissile.schedule.panels import zero_padding
from fissile.schedule.window import copy_window, period
from fissile.target import Target

DEPTH = 512  # most of k in a block: a panel of it is 32 KiB of float32
BLOCK_ROWS = 96  # rows of a block: with DEPTH it is 192 KiB of float32, which a private cache holds
EPILOGUE_ON_REGISTERS = 4  # scalar operators of an epilogue that is repeated for every register of the tile
BLOCK_COLUMNS = 256  # columns of a block: copying its rows then costs a few percent of the products


@dataclass(frozen=True)
class Extents:
    """The matrix view of a linear primitive: matrices, rows, columns and depth of the product."""

    matrices: DimLike
    rows: DimLike
    columns: DimLike
    depth: DimLike


def view(root: Node) -> Extents:
    """The matrix product behind a matmul or convolution."""
    matrices, _, depth, _ = packed_extents(root.inputs[1])
    shape = root.shape
    if root.name == "matmul":
        matrices = product(shape[:-2]) if shares_right(root) else matrices
        return Extents(matrices, shape[-2], shape[-1], depth)
    groups = root.attr("groups")
    columns = shape[-1] if groups == 1 else shape[-1] // groups
    return Extents(groups, product(shape[:-1]), columns, depth)


def lower_linear(kernel: Kernel, target: Target) -> Lowered:
    """The loop program of a LINEAR kernel."""
    linear = Linear(kernel, target)
    linear.read_in_place()
    return linear.lower()


class Linear:
    """One linear kernel while it is lowered."""

    def __init__(
        self, kernel: Kernel, target: Target, build: Builder | None = None, prefix: str = ""
    ) -> None:
        """build, prefix: of the function that this is a part of, and of the names that are this part's own."""
        self.kernel, self.root, self.prefix = kernel, kernel.nodes[0], prefix
        self.build = build or Builder(kernel)
        self.size = view(self.root)
        self.dtype = self.root.dtype.compute
        rows = self.size.rows if isinstance(self.size.rows, int) else None
        self.shape: TileShape = tile_shape(target, self.dtype.bytes, rows)
        self.block = self._blocks()
        self.unit, self.most = self.size.rows, self.size.rows  # a block's rows: multiples of, at most
        space = self.build.space
        self.matrix = space.loop(f"{prefix}matrix", self.size.matrices)
        self.m = space.loop(f"{prefix}m", self.size.rows)
        self.n = space.loop(f"{prefix}n", self.size.columns)
        self.n_panel = space.loop(f"{prefix}n_panel", ceildiv(self.size.columns, PANEL))
        self.n_lane = space.loop(f"{prefix}n_lane", PANEL)
        self.in_panels = kernel.outputs[-1].name == "pack"
        self.pitch = DEPTH + ROW_PITCH_GAP
        self.here: InPlace | None = None  # where the left operand is read without a copy of its rows
        self.beside: dict[Node, L.Expr] = {}  # values of a row that the epilogue reads from private memory
        self.masks_freely = target.vector_bits >= 512  # mask registers: a masked store costs what a plain one does

    def _blocks(self) -> Extents:
        """Rows, columns and depth of a block: equal shares, whole tiles, enough blocks for the threads to share."""
        size, tile = self.size, self.shape
        wide = tile.panels * PANEL
        columns = _share(size.columns, BLOCK_COLUMNS, wide)
        rows = _share(size.rows, BLOCK_ROWS, tile.rows)
        if isinstance(size.rows, int) and size.rows <= BLOCK_ROWS:
            columns = _share(size.columns, 4 * PANEL, wide)
        is_one = isinstance(size.depth, int) and 0 < size.depth <= DEPTH
        return Extents(1, rows, columns, size.depth if is_one else _share(size.depth, DEPTH, 8))

    def role(self, name: str, dim: DimLike) -> L.Expr:
        """An extent of this product as a parameter of its own."""
        return self.build.role(self.prefix + name, dim)

    # -------------------------------------------------------- indices

    def output_at(self) -> Index:
        """The output index of element (m, n) of the matrix."""
        space, root = self.build.space, self.root
        if root.name == "matmul":
            outer = unflatten(self.matrix, root.shape[:-2], space.extent)
            at = (*outer, self.m, self.n)
        else:
            outer = unflatten(self.m, root.shape[:-1], space.extent)
            column = L.plus(L.times(self.matrix, space.extent(self.size.columns)), self.n)
            at = (*outer, column)
        return tuple(space.canonical(e) for e in at)

    def right_matrix(self) -> L.Expr:
        """Which matrix of the right operand meets this one: fewer where some are shared by the batch."""
        root, space, matrix = self.root, self.build.space, self.names["matrix"]
        if root.name != "matmul" or not shares_right(root):
            return matrix
        batch = right_batch(root, unflatten(self.matrix, root.shape[:-2], space.extent))
        flat = flatten(batch, root.inputs[1].shape[:-2], space.extent)
        return L.substitute(space.canonical(flat), {self.matrix: matrix})

    def left_value(self, taps: Index) -> L.Expr:
        """The left operand's element for row m of this matrix at the reduction indices `taps`."""
        build, root = self.build, self.root
        found: list[L.Expr] = []

        def value(node: Node, where: Index) -> L.Expr:
            if node is root.inputs[1]:
                return L.const(1, self.dtype)
            found.append(build.pull(node, where))
            return found[-1]

        zero = {self.n: L.const(0)}  # every column reads the same row
        at = tuple(build.space.canonical(L.substitute(e, zero)) for e in self.output_at())
        definition(build.space, root, at, taps, value)
        return found[0]

    def epilogue(self, value: L.Expr) -> tuple[Node, L.Expr, L.Expr]:
        """(output, address, value) of an element whose product is `value`."""
        space, build = self.build.space, self.build
        members: dict[Node, tuple[L.Expr, Index]] = {self.root: (value, self.output_at())}
        for node in self.kernel.nodes[1:]:
            if node.name == "pack":
                members[node] = members[node.inputs[0]]
            elif node.name in ("reshape", "transpose"):
                given, at = members[node.inputs[0]]
                moved = push(space, node, at)
                if moved is None:
                    raise ValueError(f"{node} cannot end on a tile")
                members[node] = given, moved
            else:
                at = next(members[i][1] for i in node.inputs if i in members)
                known = self.beside | {n: v for n, (v, _) in members.items()}
                members[node] = build.pull(node, at, known), at
        output = self.kernel.outputs[-1]
        final, at = members[output]
        if not self.in_panels:
            return output, build.address(output, at), final
        address = tile_address(space, output, at, self.n, self.n_panel, self.n_lane)
        if address is None:
            raise ValueError(f"{output} cannot be written in panels")
        return output, address, final

    def stored(self, output: Node) -> L.Buffer:
        """Where the output is."""
        return self.build.tensor(output)

    # -------------------------------------------------------- the nest

    def lower(self) -> Lowered:
        """The whole function."""
        role, size, block = self.role, self.size, self.block
        down, across = -(-size.rows // block.rows), -(-size.columns // block.columns)
        tasks = size.matrices * down * across
        task, part, rest = L.var("task"), L.var("depth_block"), L.var("task")
        inside: L.Expr = rest
        if equal(size.matrices, 1) is not True:
            inside = L.remainder(task, role("tiles", down * across))
        width = role("across", across)
        keys = ("matrix", "row", "column", "start", "deep")
        names = [L.var(n) for n in ("at_matrix", "first_row", "first_column", "start", "deep")]
        self.part = part
        self.names: dict[str, L.Expr] = dict(zip(keys, names))
        matrix: L.Expr = L.const(0)
        if equal(size.matrices, 1) is not True:
            matrix = L.quotient(task, role("tiles", down * across))
        values = (
            matrix,
            L.times(L.quotient(inside, width), role("block_rows", block.rows)),
            L.times(L.remainder(inside, width), role("block_columns", block.columns)),
            L.times(part, role("block_depth", block.depth)),
            L.minimum(
                role("block_depth", block.depth), L.minus(role("depth", size.depth), names[3])
            ),
        )
        body: L.Stmt = L.block(*self._pack_left(), self._panels())
        for name, value in reversed(list(zip(names[3:], values[3:]))):
            body = L.Let(name, value, body)
        blocks = max_(1, -(-size.depth // block.depth))  # a sum of nothing is stored, too
        body = L.For(part, role("blocks", blocks), body)
        for name, value in reversed(list(zip(names[:3], values[:3]))):
            body = L.Let(name, value, body)
        body = L.Alloc(self.partial, self.with_left(body))
        if self.in_panels:
            body = L.block(body, zero_padding(self.build, self.kernel.outputs[-1], task, tasks))
        nest = L.For(task, role("tasks", tasks), body, L.Kind.PARALLEL)
        return self.build.lowered(nest, tasks)

    @property
    def packed(self) -> L.Buffer:
        """The block's rows of the left operand: row after row, `pitch` apart."""
        return L.buffer("left", self.dtype, (self.kept_rows * self.pitch,), L.Space.SCRATCH)

    @property
    def kept_rows(self) -> int:
        """Most rows of a block, and the idle ones of its last tile."""
        return BLOCK_ROWS + self.shape.rows

    @property
    def row_pitch(self) -> L.Expr:
        """Elements from one row of `packed` to the next."""
        return L.const(self.pitch)

    @property
    def partial(self) -> L.Buffer:
        """Sums of the block between blocks of k (unused when k is one block)."""
        rows, columns = self.kept_rows, self._most_columns()
        size = rows * columns if equal(self.size.depth, self.block.depth) is not True else 1
        return L.buffer("partial", self.dtype, (size,), L.Space.SCRATCH)

    def _most_columns(self) -> int:
        return BLOCK_COLUMNS + self.shape.panels * PANEL

    # -------------------------------------------------------- the left operand

    def read_in_place(self) -> None:
        """Read the left operand where it is, if that is better than a copy of the block's rows."""
        space, root, size = self.build.space, self.root, self.size
        extents = root.inputs[1].shape[:-1] if root.name == "conv" else (size.depth,)
        taps = tuple(
            L.const(0) if equal(d, 1) is True else space.loop(f"{self.prefix}tap{a}", d)
            for a, d in enumerate(extents)
        )
        value = self.left_value(taps)
        found = in_place(space, value, self.m, taps)
        if found and (equal(found.runs, 1) is True or equal(size.depth, self.block.depth) is True):
            self.here = found

    @property
    def starts(self) -> L.Buffer:
        """Where the rows of the block begin that are read in place."""
        return L.buffer("starts", INT64, (self.kept_rows,), L.Space.SCRATCH)

    def with_left(self, body: L.Stmt) -> L.Stmt:
        """`body` with the memory that it needs for the block's rows of the left operand."""
        if self.here is None:
            return L.Alloc(self.packed, body)
        return L.Alloc(self.starts, body) if self.here.pitch is None else body

    def _pack_left(self) -> list[L.Stmt]:
        """rows[i, k] = left(first_row + i, start + k) for the rows of the block."""
        shape, count = self.shape, self._row_count()
        whole = L.times(L.quotient(count, shape.rows), shape.rows)
        rest = L.times(L.ceildiv(L.minus(count, whole), shape.tail_rows), shape.tail_rows)
        last = L.minus(self.role("rows", self.size.rows), 1)
        return self._for_rows(L.plus(whole, rest), last)

    def _for_rows(self, count: L.Expr, last: L.Expr) -> list[L.Stmt]:
        """A copy of `count` rows of the block, or where they are; idle ones behind row `last` of all repeat it."""
        i, here = L.var("i"), self.here
        if here is not None and here.pitch is not None:
            return []
        row = L.minimum(L.plus(self.names["row"], i), last)
        place = {self.m: row, self.matrix: self.names["matrix"]}
        if here is None:
            body = self._copy_row(L.times(i, self.pitch))
        else:
            body = L.Store(self.starts, (i,), here.start)
        return [L.For(i, count, L.map_stmt(body, lambda e: L.substitute(e, place)))]

    def row_start(self, i: L.Expr) -> L.Expr:
        """Where row `i` of the block begins, which is read in place."""
        here = self.here
        assert here is not None
        if here.pitch is None:
            start: L.Expr = L.Load(self.starts, (i,))
        else:
            start = L.substitute(here.start, {self.matrix: self.names["matrix"]})
            start = L.plus(L.times(L.plus(self.names["row"], i), here.pitch), start)
        return L.plus(start, self.names["start"]) if equal(here.runs, 1) is True else start

    def _row_count(self) -> L.Expr:
        """Rows of this block."""
        left = L.minus(self.role("rows", self.size.rows), self.names["row"])
        return L.minimum(self.role("block_rows", self.block.rows), left)

    def _copy_row(self, offset: L.Expr) -> L.Stmt:
        """One row of the block: the copy of a matrix row, or of a convolution's window (see `schedule.window`)."""
        space, root = self.build.space, self.root
        start, deep = self.names["start"], self.names["deep"]
        if root.name == "conv":
            extents = (*root.inputs[1].shape[:-1],)
            return copy_window(space, extents, self.left_value, self.packed, offset, start, deep)
        lane, k = L.var("c"), space.loop(f"{self.prefix}k", self.size.depth)
        value = self.left_value((k,))
        by = self._run_length(value, k)
        if by is not None:  # no lane divides: the row is runs of so many elements
            extents, each = (exact_div(self.size.depth, by) or 0, by), space.extent(by)

            def element(at: Index) -> L.Expr:
                return self.left_value((L.plus(L.times(at[0], each), at[1]),))

            return copy_window(space, extents, element, self.packed, offset, start, deep)
        value = L.substitute(value, {k: L.plus(start, lane)})
        store = L.Store(self.packed, (L.plus(offset, lane),), value)
        return L.For(lane, deep, store, L.Kind.VECTORIZED)

    def _run_length(self, value: L.Expr, k: L.Var) -> DimLike | None:
        """The number above LITERAL by which an element divides its column k, if it divides the row."""
        by = period(self.build.space, value, k)
        if by is None or (isinstance(by, int) and by <= LITERAL):
            return None
        return by if divides(by, self.size.depth) is True else None

    # -------------------------------------------------------- panels and tiles

    def _panels(self) -> L.Stmt:
        """for tiles of several panels, for single panels, for what is left: for tiles of rows: one tile"""
        role = self.role
        left = L.minus(role("columns", self.size.columns), self.names["column"])
        columns = L.minimum(role("block_columns", self.block.columns), left)
        statements: list[L.Stmt] = []
        done: L.Expr = L.const(0)
        for width in _widths(self.size.columns, self.shape.panels):
            j = L.var(f"j{len(statements)}")
            column = L.plus(done, L.times(j, width))
            ragged = width < PANEL or (width == PANEL and not _ends_narrow(self.size.columns))
            rest = L.minus(columns, done)
            count = L.ceildiv(rest, width) if ragged else L.quotient(rest, width)
            body = self._rows(width, column, columns if ragged else None)
            statements.append(L.For(j, count, body))
            done = L.plus(done, L.times(L.quotient(rest, width), width))
        return L.block(*statements)

    def _rows(self, width: int, column: L.Expr, columns: L.Expr | None) -> L.Stmt:
        """Full tiles down the block, then tiles of `tail_rows` over what is left."""
        shape, count = self.shape, self._row_count()
        i, tail = L.var("i"), L.var("tail")
        whole = L.quotient(count, shape.rows)
        full = _Tile(self, shape.rows, width, L.times(i, shape.rows), column, columns, None)
        main = L.For(i, whole, full.body())
        if _multiple(self.unit, shape.rows):
            return main
        done = L.times(whole, shape.rows)
        first = L.plus(done, L.times(tail, shape.tail_rows))
        rest = L.ceildiv(L.minus(count, done), shape.tail_rows)
        ragged = _Tile(self, shape.tail_rows, width, first, column, columns, count)
        ends = L.For(tail, rest, ragged.body())
        return L.block(main, ends) if _at_least(self.most, shape.rows) else ends


def _widths(columns: DimLike, panels: int) -> list[int]:
    """Widths of the tiles that cover the columns, wide ones first; the last may reach over the end."""
    wide = panels * PANEL
    if not isinstance(columns, int):
        return [wide, PANEL] if panels > 1 else [PANEL]
    widths = [wide] if columns >= wide else []
    rest = columns % wide
    if rest >= PANEL and panels > 1:
        widths.append(PANEL)
    if narrow := _narrow(columns % PANEL):
        widths = [w for w in widths if w != narrow] + [narrow]
    return widths


def _narrow(rest: int) -> int:
    """Width of a tile for the last columns of a panel: a quarter, half or all of it; 0 for none."""
    return next((w for w in (PANEL // 4, PANEL // 2, PANEL) if 0 < rest <= w), 0)


def _ends_narrow(columns: DimLike) -> bool:
    """Whether single panels are all full: what is left behind them has a tile of its own, or there is none."""
    return isinstance(columns, int) and _narrow(columns % PANEL) != PANEL


def _at_least(extent: DimLike, count: int) -> bool:
    """Whether the extent may reach `count`."""
    return not isinstance(extent, int) or extent >= count


def _multiple(extent: DimLike, unit: int) -> bool:
    """Whether the extent is known to be a multiple of `unit`."""
    return isinstance(extent, int) and extent % unit == 0


def _share(extent: DimLike, most: int, unit: int) -> DimLike:
    """The extent cut into equal shares of at most about `most`, rounded up to whole units."""
    parts = -(-extent // most)
    if isinstance(extent, int):
        share = -(-extent // max(1, parts if isinstance(parts, int) else 1))
        return max(unit, -(-share // unit) * unit)
    even = ceildiv(extent, max_(1, parts))
    return max_(unit, ceildiv(even, unit) * unit)  # not 0: it divides the extent


class _Tile:
    """One register tile of a linear kernel at (first row, column) of its block."""

    def __init__(
        self, linear: Linear, rows: int, width: int, first: L.Expr, column: L.Expr,
        columns: L.Expr | None, limit: L.Expr | None,
    ) -> None:  # fmt: skip
        self.linear, self.rows, self.width = linear, rows, width
        self.first, self.column, self.columns, self.limit = first, column, columns, limit
        self.sums = L.buffer("sums", linear.dtype, (rows, self.width), L.Space.REGISTER)
        self.row0, self.column0 = L.var("tile_row"), L.var("tile_column")

    def body(self) -> L.Stmt:
        """Start from zero or from what is kept, accumulate, then keep or finish."""
        linear = self.linear
        size = linear.size
        one_block = equal(size.depth, linear.block.depth) is True
        zero = fill(self.sums, self.rows, self.width, lambda i, c: L.const(0, linear.dtype))
        steps: list[L.Stmt] = [zero, self._accumulate(), self._finish()]
        if not one_block:
            first = L.op("eq", linear.part, L.const(0))
            last = L.op(
                "ge",
                L.plus(linear.names["start"], linear.names["deep"]),
                linear.role("depth", size.depth),
            )
            resume = fill(
                self.sums, self.rows, self.width, lambda i, c: L.Load(linear.partial, self._kept(i, c))
            )
            keep = drain(
                self.rows,
                self.width,
                lambda i, c: L.Store(linear.partial, self._kept(i, c), self._sum(i, c)),
            )
            steps = [L.If(first, zero, resume), steps[1], L.If(last, steps[2], keep)]
        body: L.Stmt = L.Alloc(self.sums, L.block(*steps))
        return L.Let(self.row0, self.first, L.Let(self.column0, self.column, body))

    def _sum(self, i: int, c: L.Expr) -> L.Expr:
        return L.Load(self.sums, (L.const(i), c))

    def _kept(self, i: int, c: L.Expr) -> Index:
        pitch = self.linear._most_columns()
        row = L.times(L.plus(self.row0, i), pitch)
        return (L.plus(row, L.plus(self.column0, c)),)

    def _accumulate(self) -> L.Stmt:
        linear = self.linear
        role = linear.role
        right = linear.build.tensor(linear.root.inputs[1])
        _, panels, depth, _ = packed_extents(linear.root.inputs[1])
        stride = role("panel_elements", depth * PANEL)
        panel = L.quotient(L.plus(linear.names["column"], self.column0), PANEL)
        panel = L.plus(L.times(linear.right_matrix(), role("panels", panels)), panel)
        base, k0, lane = L.var("panel_start"), L.var("packed_row"), L.var("lane")
        start = L.plus(L.times(panel, stride), L.times(linear.names["start"], PANEL))

        def left(i: int, k: L.Expr) -> L.Expr:
            return L.Load(linear.packed, (L.plus(L.plus(k0, L.times(linear.row_pitch, i)), k),))

        def read(p: int, k: L.Expr) -> L.Expr:
            offset = L.plus(base, L.times(stride, p))
            return L.Load(right, (L.plus(L.plus(offset, L.times(k, PANEL)), lane),))

        if linear.here is not None:
            return L.Let(base, start, self._in_place(linear.here, base, read))
        loop = accumulate(self.rows, self.width, left, read, self.sums, linear.names["deep"])
        loop = L.Let(k0, L.times(self.row0, linear.row_pitch), loop)
        return L.Let(base, start, loop)

    def _in_place(self, here: InPlace, base: L.Var, read: Read) -> L.Stmt:
        """The sums over rows that are read where they are, run by run; `base`: where `read` begins."""
        linear, run = self.linear, L.var("run")
        starts = [L.var(f"start{i}") for i in range(self.rows)]
        single = equal(here.runs, 1) is True

        def left(i: int, k: L.Expr) -> L.Expr:
            begin = starts[i] if single else L.plus(starts[i], L.times(run, here.step))
            return L.Load(here.buffer, (L.plus(begin, k),))

        depth = linear.names["deep"] if single else linear.role("run_elements", here.run)
        loop = accumulate(self.rows, self.width, left, read, self.sums, depth)
        if not single:
            ahead = L.plus(base, L.times(run, L.times(depth, PANEL)))
            loop = L.map_stmt(loop, lambda e: L.substitute(e, {base: ahead}))
            loop = L.For(run, linear.role("runs", here.runs), loop)
        for i, name in enumerate(starts):
            row: L.Expr = L.plus(self.row0, i)
            if self.limit is not None and here.pitch is not None:
                row = L.minimum(row, L.minus(self.limit, 1))
            loop = L.Let(name, linear.row_start(row), loop)
        return loop

    def _finish(self) -> L.Stmt:
        """The epilogue and the stores: on the registers when it is short, else row by row over a copy of the tile."""
        linear = self.linear
        marker = L.var("product", linear.dtype)
        output, address, value = linear.epilogue(marker)
        write = _Write(self, marker, linear.stored(output), address, value)
        if sum(isinstance(e, L.Op) for e in L.walk(value)) > EPILOGUE_ON_REGISTERS:
            return self._finish_rolled(write)
        if self.columns is None or _multiple(linear.size.columns, self.width):
            return self._finish_rows(write, None)
        masked = self._finish_rows(write, self.columns)
        if linear.masks_freely:
            return masked
        enough = L.op("le", L.plus(self.column0, self.width), self.columns)
        return L.If(enough, self._finish_rows(write, None), masked)

    def _finish_rows(self, write: _Write, columns: L.Expr | None) -> L.Stmt:
        lane = L.var("lane")
        rows: list[L.Stmt] = []
        for i in range(self.rows):
            row = write.row(L.const(i), self._sum(i, lane), columns)
            if self.limit is not None:
                row = L.If(L.op("lt", L.plus(self.row0, i), self.limit), row)
            rows.append(row)
        return L.block(*rows)

    def _finish_rolled(self, write: _Write) -> L.Stmt:
        """tile = sums; for row: store(epilogue(tile[row])): the epilogue's code stands once."""
        linear, lane, i = self.linear, L.var("lane"), L.var("row")
        tile = L.buffer("tile", linear.dtype, (self.rows, self.width), L.Space.SCRATCH)
        spill = drain(
            self.rows,
            self.width,
            lambda r, c: L.Store(tile, (L.const(r), c), self._sum(r, c)),
        )
        count: L.Expr = L.const(self.rows)
        if self.limit is not None:
            count = L.minimum(count, L.minus(self.limit, self.row0))
        whole = self.columns is None or _multiple(linear.size.columns, self.width)
        row = write.row(i, L.Load(tile, (i, lane)), None if whole else self.columns)
        return L.Alloc(tile, L.block(spill, L.For(i, count, row)))


@dataclass(frozen=True)
class _Write:
    """How an element of a tile ends: `value` of the product `marker` goes to `address` of `target`."""

    tile: _Tile
    marker: L.Var
    target: L.Buffer
    address: L.Expr
    value: L.Expr

    def row(self, i: L.Expr, product: L.Expr, columns: L.Expr | None) -> L.Stmt:
        """Row `i` of the tile; `columns` of the block limit it when the tile may reach over them."""
        tile, width = self.tile, self.tile.width
        if not tile.linear.in_panels or width <= PANEL:
            return self._part(i, product, columns, 0, width)
        parts = [self._part(i, product, columns, c, PANEL) for c in range(0, width, PANEL)]
        return L.block(*parts)

    def _part(
        self, i: L.Expr, product: L.Expr, columns: L.Expr | None, start: int, width: int
    ) -> L.Stmt:
        """Columns `start` to `start + width - 1` of the row; those of a panel lie in one panel."""
        tile, lane = self.tile, L.var("lane")
        names, column = tile.linear.names, L.plus(L.var("lane"), start)
        first = L.plus(L.plus(names["column"], tile.column0), start)
        here = {
            self.marker: L.substitute(product, {lane: column}),
            tile.linear.m: L.plus(names["row"], L.plus(tile.row0, i)),
            tile.linear.n: L.plus(names["column"], L.plus(tile.column0, column)),
            tile.linear.n_panel: L.quotient(first, PANEL),
            tile.linear.n_lane: lane,
            tile.linear.matrix: names["matrix"],
        }
        address, value = L.substitute(self.address, here), L.substitute(self.value, here)
        store: L.Stmt = L.Store(self.target, (address,), value)
        if columns is not None:
            store = L.If(L.op("lt", L.plus(tile.column0, column), columns), store)
        return L.For(lane, L.const(width), store, L.Kind.VECTORIZED)
