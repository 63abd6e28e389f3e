"""What every lowering shares: the parameters of a kernel, its reads and writes, and what comes out.

In: a kernel of the plan. Out: a `Lowered`: a loop function whose parameters are buffers and extents, and what each
launch passes for them. Extents are parameters, so that kernels of equal structure are one function whatever their
sizes (DESIGN 3.5); small numbers stay literal, since unrolling and cheap division want them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from fissile.ir import loop as L
from fissile.ir.affine import LITERAL, Space
from fissile.ir.dim import DimLike
from fissile.ir.graph import Node
from fissile.ir.primitive import flatten
from fissile.orchestrate.follow import Index, pull, single_value
from fissile.orchestrate.formats import panel_address
from fissile.orchestrate.plan import Kernel

UNBOUNDED = 1 << 62  # extent of a parameter buffer: its size is the caller's business
TASK_ELEMENTS = 8192  # elements one task of a memory-bound kernel touches: its dispatch is then below 5 %


@dataclass(frozen=True)
class Lowered:
    """A loop function, what a launch passes for each parameter (tensor or extent), and the number of tasks."""

    function: L.Function
    arguments: tuple[Node | DimLike, ...]
    tasks: DimLike


@dataclass
class Builder:
    """Collects the parameters of one function while its body is built."""

    kernel: Kernel
    space: Space = field(default_factory=Space)
    _buffers: dict[Node, L.Buffer] = field(default_factory=dict)
    _extents: dict[DimLike, L.Var] = field(default_factory=dict)
    _roles: dict[L.Var, DimLike] = field(default_factory=dict)

    def tensor(self, node: Node) -> L.Buffer:
        """The parameter that holds a stored tensor: flat memory."""
        if node not in self._buffers:
            name = f"p{len(self._buffers)}"
            self._buffers[node] = L.buffer(name, node.dtype, (UNBOUNDED,), strides=(1,))
        return self._buffers[node]

    def extent(self, dim: DimLike) -> L.Expr:
        """An extent as a literal or a parameter."""
        if isinstance(dim, int) and abs(dim) <= LITERAL:
            return L.const(dim)
        if dim not in self._extents:
            self._extents[dim] = L.var(f"n{len(self._extents)}")
        return self._extents[dim]

    def role(self, name: str, dim: DimLike) -> L.Expr:
        """An extent of the grid as a parameter of its own: its value does not shape the code. 1 stays a number."""
        if isinstance(dim, int) and dim == 1:
            return L.const(1)
        self._roles[L.var(name)] = dim
        return L.var(name)

    def load(self, node: Node, at: Index) -> L.Expr:
        """The element of a stored tensor at `at`."""
        return L.Load(self.tensor(node), (self.address(node, at),))

    def address(self, node: Node, at: Index) -> L.Expr:
        """Offset in elements of `at` in a plain tensor, or in one that is held in panels."""
        if node.name == "pack":
            return panel_address(self.space, node, at)
        return self.space.canonical(flatten(at, node.shape, self.space.extent))

    def pull(self, node: Node, at: Index, members: dict[Node, L.Expr] | None = None) -> L.Expr:
        """The value of `node` at `at`, from memory, from `members` already computed, or inlined."""
        known = members or {}

        def leaf(n: Node, where: Index) -> L.Expr | None:
            if n in known:
                return known[n]
            return self.load(n, where) if n in self.reads and self.reads[n] else None

        return pull(self.space, node, at, leaf)

    @cached_property
    def reads(self) -> dict[Node, bool]:
        """The tensors this kernel reads from memory; small whole numbers are literals instead."""
        return {n: single_value(n) is None for n in self.kernel.inputs}

    def finish(self, s: L.Stmt) -> L.Stmt:
        """The statement with symbolic extents as parameters."""
        return L.map_stmt(s, self.space.finisher(self.extent))

    def lowered(self, body: L.Stmt, tasks: DimLike) -> Lowered:
        """The function of `body` (extents may still be symbolic) with its arguments."""
        finished = hoist_divisions(self.finish(body))
        params: tuple[L.Buffer | L.Var, ...] = (
            *self._buffers.values(), *self._extents.values(), *self._roles,
        )  # fmt: skip
        arguments = (*self._buffers, *self._extents, *self._roles.values())
        return Lowered(L.Function("kernel", params, finished), arguments, tasks)


# ---------------------------------------------------------------- hoisting


def hoist_divisions(s: L.Stmt) -> L.Stmt:
    """Integer divisions that do not change in a loop go before it: LLVM may not move what could divide by zero."""
    counter = [0]
    divides: dict[L.Expr, bool] = {}

    def change(inner: L.Stmt) -> L.Stmt | None:
        if not isinstance(inner, L.For):
            return None
        if not any(_has_division(e, divides) for e in L.expressions(inner.body)):
            return None
        moving = bound_variables(inner)
        found: dict[L.Expr, L.Var] = {}
        replace = L.mapper(lambda x: _invariant(x, moving, found, counter))
        body = L.map_stmt(inner.body, lambda e: replace(e) if _has_division(e, divides) else e)
        result: L.Stmt = L.For(inner.var, inner.extent, body, inner.kind)
        for value, name in reversed(found.items()):
            result = L.Let(name, value, result)
        return result if found else None

    return L.map_stmt(s, lambda e: e, change)


def _has_division(e: L.Expr, known: dict[L.Expr, bool]) -> bool:
    if (found := known.get(e)) is None:
        found = any(isinstance(x, L.Op) and x.op in ("floordiv", "mod") for x in L.walk(e))
        known[e] = found
    return found


def _invariant(
    x: L.Expr, moving: set[L.Var], found: dict[L.Expr, L.Var], counter: list[int]
) -> L.Expr | None:
    if not (isinstance(x, L.Op) and x.op in ("floordiv", "mod")):
        return None
    if x in found:
        return found[x]
    parts = list(L.walk(x))
    if any(isinstance(p, L.Load) or (isinstance(p, L.Var) and p in moving) for p in parts):
        return None
    found[x] = L.var(f"q{counter[0]}")
    counter[0] += 1
    return found[x]


def bound_variables(loop: L.For) -> set[L.Var]:
    """The loop's variable and all that its body binds."""
    inside = {s.var for s in L.statements(loop.body) if isinstance(s, (L.For, L.Let))}
    return inside | {loop.var}


# ---------------------------------------------------------------- grids


def grid(
    build: Builder, rows: DimLike, per_row: DimLike, columns: DimLike, per_column: DimLike
) -> tuple[DimLike, L.Var, dict[str, L.Expr]]:
    """A grid of tasks over rows x columns, `per_row` and `per_column` of them in a task.

    Answers the number of tasks, the task variable, and first_row, rows, first_column, columns of a task.
    """
    down, across = _ceildiv(rows, per_row), _ceildiv(columns, per_column)
    task, width = L.var("task"), build.role("across", across)
    step = build.role("per_row", per_row)
    first_row = L.times(L.quotient(task, width), step)
    parts = {
        "first_row": first_row,
        "rows": L.minimum(step, L.minus(build.role("rows", rows), first_row)),
        "first_column": L.const(0),
        "columns": build.role("columns", columns),
    }
    if width is not L.const(1):
        pace = build.role("per_column", per_column)
        parts["first_column"] = L.times(L.remainder(task, width), pace)
        parts["columns"] = L.minimum(pace, L.minus(parts["columns"], parts["first_column"]))
    return down * across, task, parts


def _ceildiv(a: DimLike, b: DimLike) -> DimLike:
    return (a + b - 1) // b
