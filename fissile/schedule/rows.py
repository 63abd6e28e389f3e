"""Row kernels: softmax, layer normalization and the like, one row at a time while it is in the cache.

In: a kernel of reductions over the last axes and elementwise primitives around them. A row runs in stages: each
reduction ends one, and what later stages need of a whole row is kept in private memory when computing it again would
cost more. Sums run over `lanes` partial accumulators (a named variant of the canonical order, DESIGN 3.8).
"""

from __future__ import annotations

from collections.abc import Callable

from fissile.ir import loop as L
from fissile.ir.dim import max_, product
from fissile.ir.graph import Node
from fissile.ir.primitive import identity, unflatten
from fissile.orchestrate.follow import Index, pull
from fissile.orchestrate.plan import Kernel
from fissile.schedule.kernel import TASK_ELEMENTS, Builder, Lowered, grid

_COSTLY = frozenset({
    "exp", "log", "log1p", "expm1", "tanh", "erf", "sigmoid", "sin", "cos", "tan", "pow", "div", "sqrt",
    "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh",
})  # fmt: skip


def lower_rows(kernel: Kernel, lanes: int) -> Lowered:
    """The loop program of a ROWS kernel; reductions keep `lanes` partial accumulators."""
    return Rows(kernel, lanes).lower()


class Rows:
    """One kernel while it is lowered: its members' stages and where their values are."""

    def __init__(self, kernel: Kernel, lanes: int, build: Builder | None = None) -> None:
        """build: of the function that this is a part of."""
        self.kernel, self.lanes = kernel, lanes
        self.build = build or Builder(kernel)
        first = next(n for n in kernel.nodes if n.primitive.reduced is not None)
        self.full = first.inputs[0].shape
        self.split = len(self.full) - len(first.attr("axes"))
        self.row_count = product(self.full[: self.split])
        self.column_count = product(self.full[self.split :])
        space = self.build.space
        self.row = space.loop("row", self.row_count)
        self.column = space.loop("column", self.column_count)
        rows = unflatten(self.row, self.full[: self.split], space.extent)
        columns = unflatten(self.column, self.full[self.split :], space.extent)
        self.at_row = tuple(space.canonical(e) for e in rows)
        self.at = (*self.at_row, *(space.canonical(e) for e in columns))
        self.stage = self._stages()
        self.scalars: dict[Node, L.Expr] = {}  # one value per row, once known
        self.kept: dict[Node, L.Expr] = {}  # whole rows in memory, once written
        self.buffers: list[L.Buffer] = []

    # -------------------------------------------------------- stages

    def is_row(self, node: Node) -> bool:
        """Whether a member has one value per row."""
        if node.primitive.reduced is not None:
            return True
        return node.shape != self.full or product(self.full[self.split :]) == 1

    def reads(self, node: Node) -> list[Node]:
        """The members a member reads, through inlined primitives."""
        inside = set(self.kernel.nodes)
        found: dict[Node, None] = {}
        stack = list(node.inputs)
        while stack:
            source = stack.pop()
            if source in inside:
                found[source] = None
            elif source not in self.kernel.inputs:
                stack.extend(source.inputs)
        return list(found)

    def _stages(self) -> dict[Node, int]:
        """The pass over the row in which a member is first known; a reduction is known after its pass."""
        stage: dict[Node, int] = {}
        for node in self.kernel.nodes:
            after = [stage[m] + (m.primitive.reduced is not None) for m in self.reads(node)]
            stage[node] = max(after, default=0)
        return stage

    # -------------------------------------------------------- values

    def value(self, node: Node, at: Index) -> L.Expr:
        """A member's value at the current row (and column), from what is known by now."""
        members = set(self.kernel.nodes)

        def leaf(n: Node, where: Index) -> L.Expr | None:
            if n in self.scalars:
                return self.scalars[n]
            if n in self.kept:
                return self.kept[n]
            return None if n in members else self.read(n, where)

        return pull(self.build.space, node, at, leaf)

    def read(self, node: Node, index: Index) -> L.Expr | None:
        """The element of a node that is in memory, None when it is computed."""
        return self.build.load(node, index) if self.build.reads.get(node) else None

    def stored(self, output: Node) -> tuple[L.Buffer, L.Expr]:
        """Where the current element of an output with whole rows goes."""
        return self.build.tensor(output), self.build.address(output, self.at)

    def stored_row(self, output: Node) -> tuple[L.Buffer, L.Expr]:
        """Where the current row's value of an output goes."""
        return self.build.tensor(output), self.build.address(output, self.place(output))

    def place(self, node: Node) -> Index:
        """The index of a member's element at the current row and column."""
        if not self.is_row(node):
            return self.at
        return self.at_row + (L.const(0),) * (node.type.rank - len(self.at_row))

    def worth_keeping(self, node: Node, stage: int) -> bool:
        """Whether a whole row computed in this stage is needed later and dear to compute again."""
        if self.is_row(node) or self.stage[node] != stage or node in self.kernel.outputs:
            return False
        if all(self.stage[u] <= stage for u in self.kernel.nodes if node in self.reads(u)):
            return False
        return self._costly(node)

    def _costly(self, node: Node) -> bool:
        if node.name in _COSTLY:
            return True
        return any(
            self._costly(m) for m in self.reads(node) if not self.is_row(m) and m not in self.kept
        )

    # -------------------------------------------------------- emission

    def lower(self) -> Lowered:
        """The whole function."""
        per_row = max_(1, TASK_ELEMENTS // max_(1, self.column_count))
        tasks, task, part = grid(self.build, self.row_count, per_row, 1, 1)
        i = L.var("i")
        body = self.one_row()
        here = {self.row: L.plus(part["first_row"], i)}
        body = L.map_stmt(body, lambda e: L.substitute(e, here))
        nest = L.For(task, self.build.role("tasks", tasks), L.For(i, part["rows"], body), L.Kind.PARALLEL)
        return self.build.lowered(nest, tasks)

    def one_row(self) -> L.Stmt:
        """All stages of the current row, with what they keep."""
        statements: list[L.Stmt] = []
        for stage in range(max(self.stage.values()) + 1):
            self._row_scalars(stage, statements)
            statements.extend(self._pass(stage))
        body = L.block(*statements)
        for buffer in reversed(self.buffers):
            body = L.Alloc(buffer, body)
        return body

    def _row_scalars(self, stage: int, statements: list[L.Stmt]) -> None:
        """Members with one value per row that are known before the pass of this stage."""
        for node in self.kernel.nodes:
            if self.stage[node] != stage or not self.is_row(node):
                continue
            if node.primitive.reduced is None:
                value = self.value(node, self.place(node))
                cell = self._cell(f"row{len(self.scalars)}", node)
                statements.append(L.Store(cell, (L.const(0),), value))
                self.scalars[node] = L.Load(cell, (L.const(0),))
                self._store_row_output(node, statements)

    def _store_row_output(self, node: Node, statements: list[L.Stmt]) -> None:
        if node in self.kernel.outputs:
            target, address = self.stored_row(node)
            statements.append(L.Store(target, (address,), self.scalars[node]))

    def _cell(self, name: str, node: Node, count: int = 1) -> L.Buffer:
        buffer = L.buffer(name, node.dtype.compute, (count,), L.Space.REGISTER)
        self.buffers.append(buffer)
        return buffer

    def _pass(self, stage: int) -> list[L.Stmt]:
        """One pass over the row: what it keeps and stores, and its reductions."""
        updates: list[Callable[[L.Expr], L.Stmt]] = []
        stores: list[Callable[[L.Expr], L.Stmt]] = []  # last: they may go where the row is read
        before: list[L.Stmt] = []
        after: list[L.Stmt] = []
        written: dict[Node, L.Expr] = {}
        for node in self.kernel.nodes:
            if self.stage[node] != stage:
                continue
            if node.primitive.reduced is not None:
                self._reduce(node, before, updates, after)
            elif not self.is_row(node):
                self._keep(node, stage, stores, written)
        self.kept.update(written)
        updates += stores
        if not updates:
            return before + after
        lane, block = L.var("lane"), L.var("block")
        lanes = L.const(self.lanes)
        count = self.build.space.extent(self.column_count)

        def lanes_loop(start: L.Expr, limit: bool) -> L.Stmt:
            column = L.plus(start, lane)
            inner = L.block(*(u(lane) for u in updates))
            inner = L.map_stmt(inner, lambda e: L.substitute(e, {self.column: column}))
            if limit:
                inner = L.If(L.op("lt", column, count), inner)
            return L.For(lane, lanes, inner, L.Kind.VECTORIZED)

        whole = L.quotient(count, lanes)
        main = L.For(block, whole, lanes_loop(L.times(block, lanes), False))
        rest = L.If(
            L.op("gt", L.remainder(count, lanes), L.const(0)),
            lanes_loop(L.times(whole, lanes), True),
        )
        return [*before, main, rest, *after]

    def _keep(
        self,
        node: Node,
        stage: int,
        updates: list[Callable[[L.Expr], L.Stmt]],
        written: dict[Node, L.Expr],
    ) -> None:
        """Store a whole-row member that is an output or worth keeping; later passes read it back."""
        is_output = node in self.kernel.outputs
        if not is_output and not self.worth_keeping(node, stage):
            return
        value = self.value(node, self.at)
        if is_output:
            target, index = self.stored(node)
        else:
            extent = self.build.extent(self.column_count)
            target = L.buffer(f"kept{len(self.buffers)}", node.dtype.compute, (extent,), L.Space.SCRATCH)
            self.buffers.append(target)
            index = self.column
        updates.append(lambda lane: L.Store(target, (index,), value))
        if node.dtype is node.dtype.compute:
            written[node] = L.Load(target, (index,))

    def _reduce(
        self,
        node: Node,
        before: list[L.Stmt],
        updates: list[Callable[[L.Expr], L.Stmt]],
        after: list[L.Stmt],
    ) -> None:
        """Partial accumulators before, updates in and their combination after the pass."""
        combine, number = node.primitive.combine, len(self.scalars)
        partial = self._cell(f"partial{number}", node, self.lanes)
        fold = self._cell(f"fold{number}", node, self.lanes)
        lane = L.var("lane")
        start = L.const(identity(combine, node.dtype.compute), node.dtype.compute)
        everywhere = L.const(self.lanes)
        before.append(L.For(lane, everywhere, L.Store(partial, (lane,), start), L.Kind.VECTORIZED))
        value = self.value(node.inputs[0], self.at)
        updates.append(
            lambda at: L.Store(partial, (at,), L.op(combine, L.Load(partial, (at,)), value))
        )
        copied = L.Store(fold, (lane,), L.Load(partial, (lane,)))
        after.append(L.For(lane, everywhere, copied, L.Kind.VECTORIZED))
        width = self.lanes // 2
        while width:
            pair = L.op(combine, L.Load(fold, (lane,)), L.Load(fold, (L.plus(lane, width),)))
            halve = L.Store(fold, (lane,), pair)
            after.append(L.For(lane, L.const(width), halve, L.Kind.VECTORIZED))
            width //= 2
        self.scalars[node] = L.Load(fold, (L.const(0),))
        self._store_row_output(node, after)



