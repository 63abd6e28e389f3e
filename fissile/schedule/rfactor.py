"""Rfactor: a reduction as several partial ones, which may then be lanes.

In: a loop program with a loop that updates one element. Out: the same with `lanes` partial
accumulators. Invariant: the same result for integers, min and max; float sums and products are
reassociated, which makes this a named variant and never a silent change. Ansor's add_rfactor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fissile.ir.dtype import BOOL, DType
from fissile.ir.loop import (
    Alloc,
    Const,
    Expr,
    For,
    Function,
    If,
    Load,
    Op,
    Space,
    Stmt,
    Store,
    block,
    both,
    buffer,
    ceildiv,
    const,
    op,
    plus,
    quotient,
    remainder,
    times,
    var,
    walk,
)
from fissile.ir.polynomial import Facts
from fissile.ir.replace import replace_expr
from fissile.ir.simplify import simplify
from fissile.schedule.place import exchange, find, fresh, loads_memory, names_of, refuse, serial


@dataclass(frozen=True)
class Rfactor:
    """for k in n: a = a + v(k)  ->  p[l] = 0; for k_0: for k_1 in lanes: p[k_1] += v; a = a + p[l]

    Also for mul, min, max, fma, and, or, xor. The last lane group is guarded where lanes provably
    divide n is false. `k_1` is then free of dependences, so Vectorize takes it.
    """

    loop: str
    lanes: int

    def apply(self, f: Function) -> Function:
        """Split the reduction loop into a loop over groups and one over lanes."""
        place = find(self, f, self.loop)
        loop = place.loop
        serial(self, [loop])
        if self.lanes < 2:
            raise refuse(self, "fewer than two lanes are no partial reductions")
        conditions, store = self._update(loop)
        combine, value = self._operator(store)
        if any(x is loop.var for i in store.index for x in walk(i)):
            raise refuse(self, f"each {self.loop} updates another element of {store.buffer.name}")
        taken, kind = names_of(f), store.buffer.dtype.compute
        part = buffer(
            fresh(taken, f"{store.buffer.name}_part"), kind, (self.lanes,), Space.REGISTER
        )
        start, end = (var(fresh(taken, f"{part.name}_{word}")) for word in ("start", "end"))
        first = For(start, const(self.lanes), Store(part, (start,), _identity(combine, kind)))
        total = op(combine, Load(store.buffer, store.index), Load(part, (end,)))
        last = For(end, const(self.lanes), Store(store.buffer, store.index, total))
        outer, inner = (var(fresh(taken, f"{self.loop}_{n}")) for n in (0, 1))
        position = plus(times(outer, self.lanes), inner)

        def at(e: Expr) -> Expr:
            return replace_expr(e, {loop.var: position}, {})

        mine = Load(part, (inner,))
        update: Stmt = Store(part, (inner,), _updated(combine, mine, [at(v) for v in value]))
        guard, count = self._groups(loop, position, place.facts)
        for condition in conditions:
            guard = both(guard, at(condition))
        lanes = For(inner, const(self.lanes), update if guard is None else If(guard, update))
        return exchange(f, loop, Alloc(part, block(first, For(outer, count, lanes), last)))

    def _groups(self, loop: For, position: Expr, facts: Facts) -> tuple[Expr | None, Expr]:
        if simplify(remainder(loop.extent, self.lanes), facts) is const(0):
            return None, simplify(quotient(loop.extent, self.lanes), facts)
        guard = op("lt", position, loop.extent)
        return guard, simplify(ceildiv(loop.extent, self.lanes), facts)

    def _update(self, loop: For) -> tuple[list[Expr], Store]:
        conditions: list[Expr] = []
        body = loop.body
        while isinstance(body, If) and body.orelse is None and not loads_memory(body.condition):
            conditions.append(body.condition)
            body = body.then
        if not isinstance(body, Store):
            raise refuse(self, f"loop {self.loop} does more than update one element")
        return conditions, body

    def _operator(self, store: Store) -> tuple[str, list[Expr]]:
        """How the element is updated: the operator that joins partial results, and with what."""
        old, value = Load(store.buffer, store.index), store.value
        if isinstance(value, Op) and value.op == "fma" and value.args[2] is old:
            found = "add", list(value.args[:2])
        elif isinstance(value, Op) and value.op in _JOINS and old in value.args:
            found = value.op, [value.args[1] if value.args[0] is old else value.args[0]]
        else:
            raise refuse(self, f"{store.buffer.name} is not updated by an associative operator")
        rest = {x.buffer for e in (*found[1], *store.index) for x in walk(e) if isinstance(x, Load)}
        if store.buffer in rest:
            raise refuse(self, f"the value depends on {store.buffer.name} itself")
        return found


_JOINS = ("add", "mul", "min", "max", "and", "or", "xor")


def _updated(combine: str, old: Expr, value: list[Expr]) -> Expr:
    return op("fma", *value, old) if len(value) == 2 else op(combine, old, value[0])


def _identity(combine: str, kind: DType) -> Const:
    """The element that changes nothing; -0.0 for float sums, since 0.0 + -0.0 is 0.0."""
    if combine in ("min", "max"):
        if kind.is_float:
            return const(float("inf" if combine == "min" else "-inf"), kind)
        limits = np.iinfo(kind.numpy)
        return const(int(limits.max if combine == "min" else limits.min), kind)
    if combine == "and":
        ones = 1 if kind is BOOL else -1 if kind.kind == "i" else int(np.iinfo(kind.numpy).max)
        return const(ones, kind)
    if combine == "mul":
        return const(1, kind)
    return const(-0.0 if kind.is_float else 0, kind)
