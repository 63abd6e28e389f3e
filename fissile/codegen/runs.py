"""Runs: the neighbours in memory that an unrolled loop inside lanes accesses in every lane.

In: an unrolled loop and the emitter's state outside it. Out: its loads whose lanes read whole runs, and its stores
that write them. Invariant: every element of a run is accessed by each lane that runs, whatever the loop's values are,
so that it may be read or written as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fissile.codegen.emitter import Emitter, Value, integer
from fissile.codegen.expression import evaluate
from fissile.codegen.memory import offset, powers_of_two
from fissile.ir.loop import Block, Buffer, Expr, For, Load, Op, Stmt, Store, children, walk


@contextmanager
def reading_runs(e: Emitter, s: For, count: int) -> Iterator[None]:
    """Emission in which loads of the unrolled loop `s` that are columns of runs are known as such."""
    outer = e.runs
    if e.lanes > 1 and count > 1:
        e.runs = dict(outer)
        for load in _certain_loads(s):
            if e.places[load.buffer].is_frozen and s.var in walk(load):
                first = _run(e, s, count, load.buffer, load.index)
                if first is not None:
                    key = load.buffer, first.text, first.step
                    e.runs[key] = (*e.runs.get(key, ()), (first.plus, count))
    yield
    e.runs = outer


def block_stores(e: Emitter, s: For, count: int) -> dict[Store, Value]:
    """The stores of the unrolled loop `s` that write runs, with the offset of the first column."""
    body = s.body.body if isinstance(s.body, Block) else (s.body,)
    if e.lanes == 1 or count < 2 or not all(isinstance(inner, Store) for inner in body):
        return {}
    loads = [n for x in _values(body) for n in walk(x) if isinstance(n, Load)]
    buffers = [inner.buffer for inner in body if isinstance(inner, Store)]
    if not all(e.places[n.buffer].is_frozen for n in loads) or len(set(buffers)) < len(buffers):
        return {}
    found: dict[Store, Value] = {}
    for inner in body:
        if isinstance(inner, Store) and e.places[inner.buffer].tiles == 1:
            first = _run(e, s, count, inner.buffer, inner.index)
            if first is not None:
                found[inner] = first
    return found


def pieces_of(count: int, lanes: int, stores: dict[Store, Value]) -> list[tuple[int, int]]:
    """First column and number of those that are transposed together: all, where lanes are side by side; else 2**k."""
    is_dense = all(at.step is not None and at.step.number == count for at in stores.values())
    return [(0, count)] if is_dense and count <= lanes else powers_of_two(count, lanes)


def _run(e: Emitter, s: For, count: int, buffer: Buffer, index: tuple[Expr, ...]) -> Value | None:
    """The offset in the first iteration, if the lanes lie apart and each iteration goes to the next neighbour."""
    if any(isinstance(n, Load) for i in index for n in walk(i)):
        return None
    offsets: list[Value] = []
    for k in range(count):
        e.memo = {}
        with e.bound(s.var, integer(k)):
            offsets.append(offset(e, e.places[buffer], [evaluate(e, i) for i in index]))
    e.memo = {}
    first = offsets[0]
    if first.lanes == 1 or first.step is None or first.step.number == 1:
        return None
    if first.step.number is not None and abs(first.step.number) < count:
        return None
    same = ((at.text, at.step, at.plus - k) for k, at in enumerate(offsets))
    return first if all(x == (first.text, first.step, first.plus) for x in same) else None


def _values(body: tuple[Stmt, ...]) -> Iterator[Expr]:
    for inner in body:
        if isinstance(inner, Store):
            yield from (*inner.index, inner.value)


def _certain_loads(s: For) -> list[Load]:
    """Loads that run in every iteration or in none, whatever a `select` chooses."""
    body = s.body.body if isinstance(s.body, Block) else (s.body,)
    certain: dict[Expr, None] = {}
    stack: list[Expr] = list(_values(body))
    while stack:
        x = stack.pop()
        if x in certain:
            continue
        certain[x] = None
        is_choice = isinstance(x, Op) and x.op == "select" and s.var in walk(x.args[0])
        stack.extend(children(x)[:1] if is_choice else children(x))
    return [x for x in certain if isinstance(x, Load)]
