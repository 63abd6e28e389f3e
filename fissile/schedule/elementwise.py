"""Elementwise kernels and pieces of a concat: one loop nest over the output, axes fused where reads allow it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from operator import add

from fissile.ir import loop as L
from fissile.ir.affine import LITERAL
from fissile.ir.dim import DimLike, equal, max_, min_, product
from fissile.ir.dtype import INT64
from fissile.ir.graph import Node
from fissile.ir.primitive import unflatten
from fissile.orchestrate.follow import Index
from fissile.orchestrate.plan import Anchor, Kernel
from fissile.schedule.kernel import TASK_ELEMENTS, Builder, Lowered, grid

STRIDED_COLUMNS = 256  # columns that a task reads along another axis whole: as many cache lines as stay near
NEAR = 1024  # elements between neighbours, at most, for that; a page apart, they get in each other's way
UNROLLED = 16  # columns of a block that is transposed in registers: those of a cache line
PIECE = 64  # columns of a task then: lines side by side in every row that is written
SHORT = 8  # lanes below which that does not pay
UNROLLED_OPERATIONS = 512  # of a block, at most: more is too much code
FEW_COLUMNS = 16  # of a task elsewhere: as many streams, each read line by line, as prefetching follows

Stores = list[tuple[Node, L.Expr, L.Expr]]  # (tensor, address, value)


def lower_elementwise(kernel: Kernel) -> Lowered:
    """The loop program of an ELEMENTWISE or PIECE kernel."""
    shape = _domain(kernel)
    axes = [a for a, d in enumerate(shape) if equal(d, 1) is not True]
    groups = _fused(kernel, shape, axes)
    extents = [product(shape[a] for a in group) for group in groups]
    across = _read_along(kernel, shape, groups)
    if across is not None:
        return _lower_across(kernel, shape, groups, across)
    build = Builder(kernel)
    few = extents.pop() if _is_few(extents) else 1
    rows, columns = product(extents[:-1]), (extents[-1] if extents else 1)
    row, column = build.space.loop("row", rows), build.space.loop("column", columns)
    variables = [*unflatten(row, tuple(extents[:-1]), build.space.extent), column]
    nest = _Nest(build, rows, columns, row, column)
    if few == 1:
        at = _index(build, shape, groups, variables)
        return nest.lowered(_stores(build, at))
    element = build.space.loop("element", few)
    stores = _stores(build, _index(build, shape, groups, [*variables, element]))
    return nest.lowered(stores, element)


def _is_few(extents: list[DimLike]) -> bool:
    """Whether the last loop is too short for vectors and the one before it is not."""
    if len(extents) < 2 or not isinstance(extents[-1], int) or extents[-1] > LITERAL:
        return False
    before = extents[-2]
    return not isinstance(before, int) or before > LITERAL


def _read_along(
    kernel: Kernel, shape: tuple[DimLike, ...], groups: list[list[int]]
) -> int | None:
    """The group of axes along which lie in memory most of what does not along the last one, if it is long enough."""
    build = Builder(kernel)
    variables = [
        build.space.loop(f"g{k}", product(shape[a] for a in group))
        for k, group in enumerate(groups)
    ]
    stores = _stores(build, _index(build, shape, groups, list(variables)))
    *others, last = variables
    votes = dict.fromkeys(range(len(others)), 0)
    for address in _read_addresses(stores):
        form = build.space.affine(address)
        if not _is_in_order(form.coefficient(last)):
            for k, variable in enumerate(others):
                votes[k] += equal(form.coefficient(variable), 1) is True
    best = max(votes, key=lambda k: votes[k], default=None)
    if best is None or votes[best] == 0:
        return None
    is_heavy = UNROLLED * sum(_operations(value) for _, _, value in stores) > UNROLLED_OPERATIONS
    length = build.space.ranges[variables[best]]
    is_short = isinstance(length, int) and length < SHORT
    return None if is_short or is_heavy else best


def _lower_across(
    kernel: Kernel, shape: tuple[DimLike, ...], groups: list[list[int]], across: int
) -> Lowered:
    """Lanes along the group `across`, where the reads lie, and a block of the last group unrolled inside them."""
    build = Builder(kernel)
    extents = [product(shape[a] for a in group) for group in groups]
    *others, columns = extents
    lanes = others.pop(across)
    row, lane, column = (
        build.space.loop(name, extent)
        for name, extent in (("row", product(others)), ("lane", lanes), ("column", columns))
    )
    variables: list[L.Expr] = list(unflatten(row, tuple(others), build.space.extent))
    variables[across:across] = [lane]
    stores = _stores(build, _index(build, shape, groups, [*variables, column]))
    return _Blocks(build, product(others), lanes, columns, (row, lane, column)).lowered(stores)


def _read_addresses(stores: Stores) -> list[L.Expr]:
    return [e.index[0] for _, _, value in stores for e in L.walk(value) if isinstance(e, L.Load)]


def _operations(value: L.Expr) -> int:
    return sum(isinstance(e, L.Op) and e.dtype is not INT64 for e in L.walk(value))


def _number_up_to(extent: DimLike, most: int) -> int | None:
    """The extent where it is a number and not above `most`."""
    return extent if isinstance(extent, int) and extent <= most else None


def _is_in_order(step: DimLike) -> bool:
    return equal(step, 0) is True or equal(step, 1) is True


def _domain(kernel: Kernel) -> tuple[DimLike, ...]:
    if kernel.anchor is Anchor.PIECE:
        return kernel.nodes[0].inputs[kernel.piece].shape
    return kernel.outputs[-1].shape


def _index(
    build: Builder, shape: tuple[DimLike, ...], groups: list[list[int]], variables: list[L.Expr]
) -> Index:
    """The index of the output element when each group of axes runs under one variable."""
    index: dict[int, L.Expr] = {}
    for group, variable in zip(groups, variables):
        parts = unflatten(variable, tuple(shape[a] for a in group), build.space.extent)
        index.update(zip(group, parts))
    return tuple(build.space.canonical(index.get(a, L.const(0))) for a in range(len(shape)))


def _stores(build: Builder, at: Index) -> Stores:
    kernel = build.kernel
    if kernel.anchor is Anchor.PIECE:
        return [_piece(build, kernel.nodes[0], kernel.piece, at)]
    members: dict[Node, L.Expr] = {}
    for node in kernel.nodes:
        members[node] = build.pull(node, at, members)
    return [(node, build.address(node, at), members[node]) for node in kernel.outputs]


def _piece(build: Builder, node: Node, piece: int, at: Index) -> tuple[Node, L.Expr, L.Expr]:
    axis, start = node.attr("axis"), _starts(node)[piece]
    moved = (*at[:axis], L.plus(at[axis], build.space.extent(start)), *at[axis + 1 :])
    return node, build.address(node, moved), build.pull(node.inputs[piece], at)


@lru_cache(maxsize=8)  # a concat has as many kernels as inputs, one after the other
def _starts(node: Node) -> tuple[DimLike, ...]:
    """Where each input of a concat begins."""
    extents: list[DimLike] = [x.shape[node.attr("axis")] for x in node.inputs]
    return tuple(accumulate(extents, add, initial=0))


def _fused(kernel: Kernel, shape: tuple[DimLike, ...], axes: list[int]) -> list[list[int]]:
    """Axes in groups that run as one loop: as few groups as bring no division into any index."""
    if not axes:
        return [[]]
    whole = [axes]
    if _divisions(kernel, shape, whole) == 0:
        return whole
    apart = [[a] for a in axes]
    allowed = _divisions(kernel, shape, apart)
    groups = apart
    for k in range(len(axes) - 1, 0, -1):
        trial = [*groups[: k - 1], groups[k - 1] + groups[k], *groups[k + 1 :]]
        if _divisions(kernel, shape, trial) <= allowed:
            groups = trial
    return groups


def _divisions(kernel: Kernel, shape: tuple[DimLike, ...], groups: list[list[int]]) -> int:
    build = Builder(kernel)
    variables: list[L.Expr] = [
        build.space.loop(f"g{k}", product(shape[a] for a in group))
        for k, group in enumerate(groups)
    ]
    stores = _stores(build, _index(build, shape, groups, variables))
    seen: set[L.Expr] = set()
    for _, address, value in stores:
        seen.update(L.walk(address))
        seen.update(L.walk(value))
    return sum(isinstance(e, L.Op) and e.op in ("floordiv", "mod") for e in seen)


def _written(build: Builder, stores: Stores, here: dict[L.Var, L.Expr]) -> L.Stmt:
    """The stores where the loop variables have these values."""
    put = L.substitution(here)
    return L.block(*(L.Store(build.tensor(n), (put(address),), put(v)) for n, address, v in stores))


@dataclass(frozen=True)
class _Nest:
    """for task: for row: for column (vectorized): for element of a last axis too short for vectors: store"""

    build: Builder
    rows: DimLike
    columns: DimLike
    row: L.Var
    column: L.Var

    def lowered(self, stores: Stores, element: L.Var | None = None) -> Lowered:
        """The function of these stores."""
        build = self.build
        steps = self._steps(stores)
        in_order = all(_is_in_order(step) for step in steps)
        near = all(isinstance(step, int) and abs(step) <= NEAR for step in steps)
        most = TASK_ELEMENTS if in_order else STRIDED_COLUMNS if near else FEW_COLUMNS
        whole = isinstance(self.columns, int) and self.columns <= most
        few = TASK_ELEMENTS if in_order else FEW_COLUMNS
        per_column = max_(1, self.columns) if whole else few
        per_row = max_(1, TASK_ELEMENTS // max_(1, min_(self.columns, per_column)))
        tasks, task, part = grid(build, self.rows, per_row, self.columns, per_column)
        i, j = L.var("i"), L.var("j")
        here: dict[L.Var, L.Expr] = {
            self.row: L.plus(part["first_row"], i),
            self.column: L.plus(part["first_column"], j),
        }
        body = _written(build, stores, here)
        if element is not None:
            extent = build.space.ranges[element]
            body = L.For(element, build.space.extent(extent), body, L.Kind.UNROLLED)
        inner = L.For(j, part["columns"], body, L.Kind.VECTORIZED)
        rows = L.For(i, part["rows"], inner)
        nest = L.For(task, build.role("tasks", tasks), rows, L.Kind.PARALLEL)
        return build.lowered(nest, tasks)

    def _steps(self, stores: Stores) -> list[DimLike]:
        """How far apart in memory neighbouring columns are, for every access."""
        addresses = [*(address for _, address, _ in stores), *_read_addresses(stores)]
        return [self.build.space.affine(a).coefficient(self.column) for a in addresses]


@dataclass(frozen=True)
class _Blocks:
    """for task: for row and piece of columns: for lane (vectorized): for block: for column of it (unrolled): store

    Few columns, a constant number, are one block. What does not fill a block overlaps the one before it.
    """

    build: Builder
    rows: DimLike
    lanes: DimLike
    columns: DimLike
    variables: tuple[L.Var, L.Var, L.Var]  # row, lane, column

    def lowered(self, stores: Stores) -> Lowered:
        """The function of these stores."""
        build = self.build
        few = _number_up_to(self.columns, UNROLLED)
        piece = PIECE if few is None else few
        pieces: DimLike = 1 if few is not None else (self.columns + PIECE - 1) // PIECE
        rows = self.rows * pieces
        most = TASK_ELEMENTS // max(1, piece)
        per_lane = _number_up_to(self.lanes, 2 * most) or most
        per_row = max_(1, TASK_ELEMENTS // max_(1, min_(self.lanes, per_lane) * piece))
        tasks, task, part = grid(build, rows, per_row, self.lanes, per_lane)
        i, j = L.var("i"), L.var("j")
        at = L.plus(part["first_row"], i)
        lane = L.plus(part["first_column"], j)
        if few is not None:
            inner = self._block(stores, (at, lane, L.const(0)), few)
            nest: L.Stmt = L.For(j, part["columns"], inner, L.Kind.VECTORIZED)
        else:
            nest = self._pieces(stores, at, (j, lane, part["columns"]), pieces)
        whole = L.For(task, build.role("tasks", tasks), L.For(i, part["rows"], nest), L.Kind.PARALLEL)
        return build.lowered(whole, tasks)

    def _pieces(
        self, stores: Stores, at: L.Expr, lanes: tuple[L.Var, L.Expr, L.Expr], pieces: DimLike
    ) -> L.Stmt:
        """All columns of a piece for all lanes: blocks where there is a whole one, else one by one."""
        j, lane, count = lanes
        across = self.build.role("pieces", pieces)
        row, first = L.quotient(at, across), L.times(L.remainder(at, across), PIECE)
        width = L.minimum(PIECE, L.minus(self.build.role("width", self.columns), first))
        b = L.var("block")
        start = L.minimum(L.times(b, UNROLLED), L.minus(width, UNROLLED))
        block = self._block(stores, (row, lane, L.plus(first, start)), UNROLLED)
        blocks = L.For(b, L.ceildiv(width, UNROLLED), block)
        single = L.For(b, width, self._block(stores, (row, lane, L.plus(first, b)), 1))
        return L.If(
            L.op("le", L.const(UNROLLED), width),
            L.For(j, count, blocks, L.Kind.VECTORIZED),
            L.For(j, count, single, L.Kind.VECTORIZED),
        )

    def _block(self, stores: Stores, at: tuple[L.Expr, L.Expr, L.Expr], count: int) -> L.Stmt:
        """`count` columns from `at` (row, lane, column) on."""
        element = L.var("element")
        place = (*at[:2], L.plus(at[2], L.const(0) if count == 1 else element))
        body = _written(self.build, stores, dict(zip(self.variables, place, strict=True)))
        return body if count == 1 else L.For(element, L.const(count), body, L.Kind.UNROLLED)
