"""arg_max and arg_min: one scan along the axis per output element; the first (or last) winner, NaN wins as in ONNX."""

from __future__ import annotations

from fissile.ir import loop as L
from fissile.ir.dim import product
from fissile.ir.dtype import INT64
from fissile.ir.primitive import unflatten
from fissile.orchestrate.plan import Kernel
from fissile.schedule.kernel import Builder, Lowered, grid


def lower_scan(kernel: Kernel) -> Lowered:
    """The loop program of a SCAN kernel."""
    build, node = Builder(kernel), kernel.nodes[0]
    source, axis, space = node.inputs[0], node.attr("axis"), build.space
    count = product(node.shape)
    place, k = space.loop("place", count), space.loop("k", source.shape[axis])
    outer = [space.canonical(e) for e in unflatten(place, node.shape, space.extent)]
    value = build.pull(source, (*outer[:axis], k, *outer[axis:]))
    dtype = source.dtype.compute
    best = L.buffer("best", dtype, (1,), L.Space.REGISTER)
    where = L.buffer("where", INT64, (1,), L.Space.REGISTER)
    zero = (L.const(0),)
    wins = _wins(node.name == "arg_max", node.attr("last"), value, L.Load(best, zero))
    first = L.op("eq", k, L.const(0))
    take = L.block(L.Store(best, zero, value), L.Store(where, zero, k))
    scan = L.For(k, space.extent(source.shape[axis]), L.If(first, take, L.If(wins, take)))
    done = L.Store(build.tensor(node), (build.address(node, tuple(outer)),), L.Load(where, zero))
    body: L.Stmt = L.Alloc(best, L.Alloc(where, L.block(scan, done)))
    per_task = 16
    tasks, task, part = grid(build, count, per_task, 1, 1)
    i = L.var("i")
    here = {place: L.plus(part["first_row"], i)}
    body = L.map_stmt(body, lambda e: L.substitute(e, here))
    nest = L.For(task, build.role("tasks", tasks), L.For(i, part["rows"], body), L.Kind.PARALLEL)
    return build.lowered(nest, tasks)


def _wins(largest: bool, last: bool, value: L.Expr, best: L.Expr) -> L.Expr:
    """Whether `value`, seen later, replaces `best`."""
    name = {(True, False): "gt", (True, True): "ge", (False, False): "lt", (False, True): "le"}
    better = L.op(name[largest, last], value, best)
    if not value.dtype.is_float:
        return better
    nan, kept = L.op("ne", value, value), L.op("ne", best, best)
    open_ = L.op("not", kept)
    return L.op("or", L.op("and", better, open_), nan if last else L.op("and", nan, open_))
