"""Kernels of primitives that nothing fuses across: scatter, cumulative sums, the k largest.

In: a kernel of one such primitive. Out: its loop program. Sequential along what the meaning orders, tasks over the
rest; so the bits do not depend on how many threads run them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fissile.ir import loop as L
from fissile.ir.dim import DimLike, product
from fissile.ir.dtype import BOOL, INT64
from fissile.ir.graph import Node
from fissile.ir.primitive import unflatten
from fissile.orchestrate.plan import Kernel
from fissile.schedule.kernel import Builder, Lowered, grid

_ZERO = (L.const(0),)
_ROWS = 16  # rows of a task: each is a loop of its own
_COLUMNS = 1024  # columns of a task of a scatter, which walks all updates


def lower_opaque(kernel: Kernel) -> Lowered:
    """The loop program of a kernel whose only node is a row of `fissile.ir.opaque`."""
    return LOWERINGS[kernel.nodes[0].name](kernel)


def _lower_scatter(kernel: Kernel) -> Lowered:
    """for task (columns): copy x; for j: out[places[j]] = combine(out[places[j]], updates[j])"""
    build, node = Builder(kernel), kernel.nodes[0]
    x, places, updates = node.inputs
    n, m = node.shape
    space, out = build.space, build.tensor(node)
    i, j = space.loop("i", n), space.loop("j", updates.shape[0])
    column = space.loop("column", m)
    tasks, task, part = grid(build, 1, 1, m, _COLUMNS)
    copy = L.Store(out, (build.address(node, (i, column)),), build.pull(x, (i, column)))
    place = L.var("place")
    there = build.space.canonical(L.plus(L.times(place, space.extent(m)), column))
    value = build.pull(updates, (j, column))
    if node.attr("combine"):
        value = L.op(node.attr("combine"), L.Load(out, (there,)), value)
    inside = L.op("and", L.op("ge", place, L.const(0)), L.op("lt", place, space.extent(n)))
    c = L.var("c")

    def columns(s: L.Stmt) -> L.Stmt:
        here = {column: L.plus(part["first_column"], c)}
        moved = L.map_stmt(s, lambda e: L.substitute(e, here))
        return L.For(c, part["columns"], moved, L.Kind.VECTORIZED)

    step = L.If(inside, columns(L.Store(out, (there,), value)))
    body = L.block(
        L.For(i, space.extent(n), columns(copy)),
        L.For(j, space.extent(updates.shape[0]), L.Let(place, build.pull(places, (j,)), step)),
    )
    return build.lowered(L.For(task, build.role("tasks", tasks), body, L.Kind.PARALLEL), tasks)


def _lower_cumulate(kernel: Kernel) -> Lowered:
    """for row: total = neutral; for k: total = combine(total, x[k]); out[k] = total (before, if exclusive)"""
    build, node = Builder(kernel), kernel.nodes[0]
    axis, space = node.attr("axis"), build.space
    extent = node.shape[axis]
    k = space.loop("k", extent)
    at = L.minus(L.minus(space.extent(extent), 1), k) if node.attr("reverse") else k

    def row(outer: tuple[L.Expr, ...]) -> L.Stmt:
        where = (*outer[:axis], space.canonical(at), *outer[axis:])
        dtype = node.dtype.compute
        total = L.buffer("total", dtype, (1,), L.Space.REGISTER)
        store = L.Store(build.tensor(node), (build.address(node, where),), L.Load(total, _ZERO))
        value = build.pull(node.inputs[0], where)
        add = L.Store(total, _ZERO, L.op(node.attr("combine"), L.Load(total, _ZERO), value))
        neutral = L.const(int(node.attr("combine") == "mul"), dtype)
        steps = (store, add) if node.attr("exclusive") else (add, store)
        loop = L.For(k, space.extent(extent), L.block(*steps))
        return L.Alloc(total, L.block(L.Store(total, _ZERO, neutral), loop))

    return _by_rows(build, tuple(d for a, d in enumerate(node.shape) if a != axis), row)


def _lower_top_k(kernel: Kernel) -> Lowered:
    """for row: for i: if x[i] is among the best so far: put it in its place, the ones behind move on."""
    build, node = Builder(kernel), kernel.nodes[0]
    source, axis, space = node.inputs[0], node.attr("axis"), build.space
    n, k = source.shape[axis], node.shape[axis]
    name = "gt" if node.attr("largest") else "lt"
    i, j, out = space.loop("i", n), space.loop("j", k), build.tensor(node)

    def row(outer: tuple[L.Expr, ...]) -> L.Stmt:
        def value(at: L.Expr) -> L.Expr:
            return build.pull(source, (*outer[:axis], at, *outer[axis:]))

        def slot(at: L.Expr) -> L.Expr:
            return build.address(node, (*outer[:axis], at, *outer[axis:]))

        held = L.buffer("held", source.dtype.compute, (1,), L.Space.REGISTER)
        index = L.buffer("index", INT64, (1,), L.Space.REGISTER)
        moving = L.buffer("moving", BOOL, (1,), L.Space.REGISTER)
        other, old = L.var("other"), L.var("old", source.dtype.compute)
        wins = L.op("or", L.Load(moving, _ZERO), _better(name, L.Load(held, _ZERO), old))
        swap = L.block(
            L.Store(out, (slot(j),), L.Load(index, _ZERO)),
            L.Store(held, _ZERO, old),
            L.Store(index, _ZERO, other),
            L.Store(moving, _ZERO, L.const(1, BOOL)),
        )
        compare = L.Let(other, L.Load(out, (slot(j),)), L.Let(old, value(other), L.If(wins, swap)))
        filled = L.minimum(i, space.extent(k))
        room = L.op("lt", i, space.extent(k))
        insert = L.block(
            L.Store(held, _ZERO, value(i)),
            L.Store(index, _ZERO, i),
            L.Store(moving, _ZERO, L.const(0, BOOL)),
            L.For(j, filled, compare),
            L.If(room, L.Store(out, (slot(i),), L.Load(index, _ZERO))),
        )
        go = L.buffer("go", BOOL, (1,), L.Space.REGISTER)
        last = L.Load(out, (slot(L.minus(space.extent(k), 1)),))
        worst = L.Let(other, last, L.Store(go, _ZERO, _better(name, value(i), value(other))))
        step = L.block(
            L.Store(go, _ZERO, room),
            L.If(L.op("ge", i, space.extent(k)), worst),
            L.If(L.Load(go, _ZERO), insert),
        )
        loop: L.Stmt = L.For(i, space.extent(n), step)
        for buffer in (held, index, moving, go):
            loop = L.Alloc(buffer, loop)
        return L.If(L.op("gt", space.extent(k), L.const(0)), loop)

    return _by_rows(build, tuple(d for a, d in enumerate(node.shape) if a != axis), row)


def _better(name: str, a: L.Expr, b: L.Expr) -> L.Expr:
    """Whether `a`, seen later, comes before `b`; NaN is the largest, as in numpy's order."""
    better = L.op(name, a, b)
    if not a.dtype.is_float:
        return better
    a_nan, b_nan = L.op("ne", a, a), L.op("ne", b, b)
    nan, number = (a_nan, b_nan) if name == "gt" else (b_nan, a_nan)
    return L.op("or", better, L.op("and", nan, L.op("not", number)))


def _by_rows(
    build: Builder, shape: tuple[DimLike, ...], row: Callable[[tuple[L.Expr, ...]], L.Stmt]
) -> Lowered:
    """Tasks of some rows each, over all indices of `shape`."""
    space, count = build.space, product(shape)
    place = space.loop("place", count)
    outer = tuple(space.canonical(e) for e in unflatten(place, shape, space.extent))
    tasks, task, part = grid(build, count, _ROWS, 1, 1)
    r = L.var("r")
    here = {place: L.plus(part["first_row"], r)}
    body = L.map_stmt(row(outer), lambda e: L.substitute(e, here))
    nest = L.For(task, build.role("tasks", tasks), L.For(r, part["rows"], body), L.Kind.PARALLEL)
    return build.lowered(nest, tasks)


LOWERINGS: Mapping[str, Callable[[Kernel], Lowered]] = {
    "scatter": _lower_scatter,
    "cumulate": _lower_cumulate,
    "top_k": _lower_top_k,
}


def is_opaque(node: Node) -> bool:
    """Whether a node's kernel is made here."""
    return node.name in LOWERINGS
