"""Elementwise kernels and pieces of a concat: one loop nest over the output, axes fused where reads allow it."""

from __future__ import annotations

from dataclasses import dataclass

from fissile.ir import loop as L
from fissile.ir.affine import LITERAL
from fissile.ir.dim import DimLike, equal, max_, min_, product
from fissile.ir.graph import Node
from fissile.ir.primitive import unflatten
from fissile.orchestrate.follow import Index
from fissile.orchestrate.plan import Anchor, Kernel
from fissile.schedule.kernel import TASK_ELEMENTS, Builder, Lowered, grid

STRIDED_COLUMNS = 256  # columns that a task reads along another axis whole: as many cache lines as stay near
NEAR = 1024  # elements between neighbours, at most, for that; a page apart, they get in each other's way
FEW_COLUMNS = 16  # of a task elsewhere: as many streams, each read line by line, as prefetching follows

Stores = list[tuple[Node, L.Expr, L.Expr]]  # (tensor, address, value)


def lower_elementwise(kernel: Kernel) -> Lowered:
    """The loop program of an ELEMENTWISE or PIECE kernel."""
    shape = _domain(kernel)
    axes = [a for a, d in enumerate(shape) if equal(d, 1) is not True]
    groups = _fused(kernel, shape, axes)
    build = Builder(kernel)
    extents = [product(shape[a] for a in group) for group in groups]
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
    axis = node.attr("axis")
    start: DimLike = 0
    for source in node.inputs[:piece]:
        start = start + source.shape[axis]
    moved = (*at[:axis], L.plus(at[axis], build.space.extent(start)), *at[axis + 1 :])
    return node, build.address(node, moved), build.pull(node.inputs[piece], at)


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
        in_order = all(equal(step, 0) is True or equal(step, 1) is True for step in steps)
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
        body = L.block(
            *(
                L.Store(
                    build.tensor(node), (L.substitute(address, here),), L.substitute(value, here)
                )
                for node, address, value in stores
            )
        )
        if element is not None:
            extent = build.space.ranges[element]
            body = L.For(element, build.space.extent(extent), body, L.Kind.UNROLLED)
        inner = L.For(j, part["columns"], body, L.Kind.VECTORIZED)
        rows = L.For(i, part["rows"], inner)
        nest = L.For(task, build.role("tasks", tasks), rows, L.Kind.PARALLEL)
        return build.lowered(nest, tasks)

    def _steps(self, stores: Stores) -> list[DimLike]:
        """How far apart in memory neighbouring columns are, for every access."""
        addresses = [address for _, address, _ in stores]
        for _, _, value in stores:
            addresses += [e.index[0] for e in L.walk(value) if isinstance(e, L.Load)]
        return [self.build.space.affine(a).coefficient(self.column) for a in addresses]
