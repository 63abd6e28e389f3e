"""Reductions whose output's last axis is vectorized: pools, sums over leading axes, depthwise convolutions.

for task: for row: for block of columns: accumulators over the lanes of the block, all reduction axes inside, then the
epilogue on the accumulators. Float sums over several axes add up the last axis first, row by row (a named variant of
the canonical order, DESIGN 3.8).
"""

from __future__ import annotations

from fissile.ir import loop as L
from fissile.ir.dim import DimLike, max_, product
from fissile.ir.dtype import DType
from fissile.ir.graph import Node
from fissile.ir.primitive import identity, unflatten
from fissile.orchestrate.follow import Index, definition, pull
from fissile.orchestrate.plan import Kernel
from fissile.schedule.kernel import TASK_ELEMENTS, Builder, Lowered, grid

_UNROLL = 8  # taps of the last reduction axis that are unrolled
FEW_ROWS = 16  # below this many rows the columns are spread over tasks, too


def lower_reduction(kernel: Kernel, lanes: int) -> Lowered:
    """The loop program of a REDUCE kernel; `lanes` columns are accumulated together."""
    build = Builder(kernel)
    root = kernel.nodes[0]
    *outer, last = root.shape if root.shape else (1,)
    rows = product(outer)
    row, column = build.space.loop("row", rows), build.space.loop("column", last)
    at = tuple(
        build.space.canonical(e)
        for e in (*unflatten(row, tuple(outer), build.space.extent), column)
    )
    at = at if root.shape else ()
    block = _Block(build, root, at, lanes)
    extents = list(_reduced(root))
    work = product(extents) * max_(1, last)
    few = not isinstance(rows, int) or rows < FEW_ROWS
    per_column: DimLike = lanes if few else max_(1, last)
    per_row = max_(1, TASK_ELEMENTS // max_(1, work)) if not few else 1
    tasks, task, part = grid(build, rows, per_row, last, per_column)
    i, b = L.var("i"), L.var("block")
    start = L.plus(part["first_column"], L.times(b, lanes))
    here = {row: L.plus(part["first_row"], i)}
    full = L.op("le", L.times(L.plus(b, 1), lanes), part["columns"])
    body = L.If(full, block.body(here, start, None), block.body(here, start, part["columns"]))
    blocks = L.For(b, L.ceildiv(part["columns"], lanes), body)
    nest = L.For(task, build.role("tasks", tasks), L.For(i, part["rows"], blocks), L.Kind.PARALLEL)
    return build.lowered(nest, tasks)


def _reduced(root: Node) -> tuple[DimLike, ...]:
    if root.primitive.reduced is None:
        raise ValueError(f"{root} reduces nothing")
    return root.primitive.reduced(root)


class _Block:
    """One block of `lanes` columns of one row."""

    def __init__(self, build: Builder, root: Node, at: Index, lanes: int) -> None:
        self.build, self.root, self.at, self.lanes = build, root, at, lanes
        self.lane = L.var("lane")
        self.column = next((v for v in build.space.ranges if v.name == "column"), self.lane)
        self.taps = [build.space.loop(f"tap{k}", d) for k, d in enumerate(_reduced(root))]
        self.dtype: DType = root.dtype.compute
        self.sums = L.buffer("sums", self.dtype, (lanes,), L.Space.REGISTER)
        self.part = L.buffer("part", self.dtype, (lanes,), L.Space.REGISTER)
        two_level = root.primitive.combine == "add" and self.dtype.is_float and len(self.taps) > 1
        self.inner = self.part if two_level else self.sums
        self.term = self._term()
        self.results = self._results()

    def _value(self, node: Node, where: Index) -> L.Expr:
        build = self.build

        def leaf(n: Node, index: Index) -> L.Expr | None:
            return build.load(n, index) if build.reads.get(n) else None

        return pull(build.space, node, where, leaf)

    def _term(self) -> L.Expr:
        """The accumulator after one more term."""
        sums = L.Load(self.inner, (self.lane,))
        value = definition(self.build.space, self.root, self.at, tuple(self.taps), self._value)
        value = self.build.space.canonical(value)
        combine = self.root.primitive.combine
        is_own = self.root.primitive.kind == "linear"  # another primitive's product is rounded, here or in memory
        if is_own and self.dtype.is_float and isinstance(value, L.Op) and value.op == "mul":
            return L.op("fma", *value.args, sums)
        return L.op(combine, sums, value)

    def _results(self) -> list[tuple[Node, L.Expr, L.Expr]]:
        members: dict[Node, L.Expr] = {self.root: L.Load(self.sums, (self.lane,))}
        for node in self.build.kernel.nodes[1:]:
            members[node] = self.build.pull(node, self.at, members)
        outputs = self.build.kernel.outputs
        return [(n, self.build.address(n, self.at), members[n]) for n in outputs]

    def body(self, here: dict[L.Var, L.Expr], start: L.Expr, columns: L.Expr | None) -> L.Stmt:
        """The block from column `start` on; `columns` of the task limit it when it is not full."""
        lane, build = self.lane, self.build
        place = {**here, self.column: L.plus(start, lane)}
        limit: L.Expr | None = None
        if columns is not None:
            last = build.space.extent(build.space.ranges[self.column])
            limit = L.op("lt", L.plus(start, lane), last)

        def lanes_loop(s: L.Stmt) -> L.Stmt:
            return L.For(
                lane, L.const(self.lanes), s if limit is None else L.If(limit, s), L.Kind.VECTORIZED
            )

        zero = L.const(identity(self.root.primitive.combine, self.dtype), self.dtype)

        def clear(b: L.Buffer) -> L.Stmt:
            return L.For(lane, L.const(self.lanes), L.Store(b, (lane,), zero), L.Kind.VECTORIZED)

        update = lanes_loop(L.Store(self.inner, (lane,), L.substitute(self.term, place)))
        for tap in reversed(self.taps):
            extent = build.space.ranges[tap]
            small = isinstance(extent, int) and extent <= _UNROLL and tap is self.taps[-1]
            kind = L.Kind.UNROLLED if small else L.Kind.SERIAL
            count = L.const(extent) if isinstance(extent, int) and small else build.space.extent(extent)
            update = L.For(tap, count, update, kind)
            if tap is self.taps[-1] and self.inner is self.part:
                update = self._added(clear(self.part), update)
        stores = [
            L.Store(build.tensor(n), (L.substitute(a, place),), L.substitute(v, place))
            for n, a, v in self.results
        ]
        return L.Alloc(self.sums, L.block(clear(self.sums), update, lanes_loop(L.block(*stores))))

    def _added(self, clear: L.Stmt, inner: L.Stmt) -> L.Stmt:
        """The sum over the last axis on its own, then added: rounding grows with the extents, not their product."""
        at = (self.lane,)
        total = L.op("add", L.Load(self.sums, at), L.Load(self.part, at))
        add = L.For(
            self.lane, L.const(self.lanes), L.Store(self.sums, at, total), L.Kind.VECTORIZED
        )
        return L.Alloc(self.part, L.block(clear, inner, add))



