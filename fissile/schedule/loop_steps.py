"""Steps that change how loops run, not what they compute: split, fuse, reorder and annotations.

In: a loop program. Out: one of the same meaning, or a `ScheduleError` with the law that would break.
Invariant: float results are bit for bit the same, since no step here reorders two updates of one
element. Split, Fuse, Reorder, Vectorize, Parallel, Unroll of Halide and Ansor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fissile.ir.loop import (
    Const,
    Expr,
    For,
    Function,
    If,
    Kind,
    Let,
    Stmt,
    Var,
    both,
    ceildiv,
    const,
    index,
    op,
    plus,
    quotient,
    remainder,
    statements,
    times,
    var,
    walk,
)
from fissile.ir.polynomial import terms_of
from fissile.ir.replace import replace as put
from fissile.ir.simplify import simplify
from fissile.schedule.dependence import carried, conflict
from fissile.schedule.place import (
    Place,
    band,
    exchange,
    find,
    fresh,
    loads_memory,
    names_of,
    refuse,
    serial,
)


@dataclass(frozen=True)
class Split:
    """for i in n: s  ->  for i_0 in ceil(n/factor): for i_1 in factor: if i_0*factor+i_1 < n: s

    The condition is left out where factor provably divides n. A symbolic factor is positive by the
    caller's promise. The names are the next free pair, so that splitting i_1 gives i_1_0, i_1_1.
    """

    loop: str
    factor: int | Expr

    def apply(self, f: Function) -> Function:
        """Split the loop; its kind (serial or parallel) stays with the outer part."""
        place = find(self, f, self.loop)
        loop, factor = place.loop, index(self.factor)
        if loop.kind not in (Kind.SERIAL, Kind.PARALLEL):
            raise refuse(self, f"loop {self.loop} is {loop.kind.value} already")
        if isinstance(factor, Const) and factor.value < 1:
            raise refuse(self, f"the factor {factor.value} is not positive")
        taken, n = names_of(f), 0
        while {f"{self.loop}_{n}", f"{self.loop}_{n + 1}"} & taken:
            n += 1
        outer, inner = var(f"{self.loop}_{n}"), var(f"{self.loop}_{n + 1}")
        position = plus(times(outer, factor), inner)
        facts = place.facts.at_least(terms_of(factor), 1)
        body = put(loop.body, {loop.var: position})
        if simplify(remainder(loop.extent, factor), facts) is const(0):
            count = simplify(quotient(loop.extent, factor), facts)
        else:
            count = simplify(ceildiv(loop.extent, factor), facts)
            body = If(op("lt", position, loop.extent), body)
        return exchange(f, loop, For(outer, count, For(inner, factor, body), loop.kind))


@dataclass(frozen=True)
class Fuse:
    """for i in n: for j in m: s  ->  for i_j in n*m: s with i = i_j // m and j = i_j % m"""

    outer: str
    inner: str

    def apply(self, f: Function) -> Function:
        """Fuse two perfectly nested loops of one kind."""
        place = find(self, f, self.outer)
        outer = place.loop
        loops, _ = band(outer)
        if len(loops) < 2 or loops[1].var.name != self.inner:
            raise refuse(self, f"{self.inner} is not directly inside {self.outer}")
        inner = loops[1]
        if outer.kind is not inner.kind:
            raise refuse(self, f"the loops are {outer.kind.value} and {inner.kind.value}")
        if outer.var in walk(inner.extent) or loads_memory(inner.extent):
            raise refuse(self, f"the extent of {self.inner} is not the same for all {self.outer}")
        fused = var(fresh(names_of(f), f"{self.outer}_{self.inner}"))
        parts: dict[Var, Expr] = {
            outer.var: quotient(fused, inner.extent),
            inner.var: remainder(fused, inner.extent),
        }
        whole = put(_guarded(_between(outer, inner), inner.body), parts)
        return exchange(f, outer, For(fused, times(outer.extent, inner.extent), whole, outer.kind))


@dataclass(frozen=True)
class Reorder:
    """for i: for j: s  ->  for j: for i: s, for any order of perfectly nested loops

    Legal where no two iterations that change their order may touch one element that one of them
    writes. Conditions between the loops move inwards.
    """

    loops: tuple[str, ...]

    def apply(self, f: Function) -> Function:
        """Put the named loops, which are nested without gaps, into this order."""
        if len(set(self.loops)) != len(self.loops) or not self.loops:
            raise refuse(self, "every loop must be named once")
        place = self._outermost(f)
        nest, _ = band(place.loop)
        count = len(self.loops)
        old = nest[:count]
        by_name = {loop.var.name: loop for loop in old}
        if set(by_name) != set(self.loops):
            missing = sorted(set(self.loops) - set(by_name))
            raise refuse(self, f"{', '.join(missing)} not perfectly nested with the other loops")
        serial(self, old)
        new = [by_name[name] for name in self.loops]
        self._check_extents(old, new)
        condition = None
        for outer, inner in zip(old, old[1:]):
            condition = both(condition, _between(outer, inner))
        body = _guarded(condition, old[-1].body)
        self._check_order(place, old, new, body)
        for loop in reversed(new):
            body = replace(loop, body=body)
        return exchange(f, place.loop, body)

    def _outermost(self, f: Function) -> Place:
        places = [find(self, f, name) for name in self.loops]
        return min(places, key=lambda p: len(p.around))

    def _check_extents(self, old: list[For], new: list[For]) -> None:
        for at, loop in enumerate(new):
            later = {x.var for x in new[at:]}
            if any(x in later for x in walk(loop.extent)) or loads_memory(loop.extent):
                raise refuse(self, f"the extent of {loop.var.name} depends on a loop inside it")

    def _check_order(self, place: Place, old: list[For], new: list[For], body: Stmt) -> None:
        """Refuse where two runs in old order (`a` is the first loop that differs) are exchanged.

        They are when `b`, the first loop that differs in the new order, differs the other way.
        """
        rank = {loop.var: at for at, loop in enumerate(new)}
        around = [(loop.var, loop.extent) for loop in old]
        for at, a in enumerate(old):
            for b in old[at + 1 :]:
                if rank[b.var] > rank[a.var]:
                    continue
                equal = old[:at] + new[: rank[b.var]]
                order = {x.var: "=" if x in equal else "*" for x in old}
                order |= {a.var: "<", b.var: ">"}
                reason = conflict(around, order, body, place.facts)
                if reason is not None:
                    raise refuse(self, f"{a.var.name} and {b.var.name} cannot change: {reason}")


@dataclass(frozen=True)
class Vectorize:
    """for i in n: s  ->  vectorized for i in n: s, the iterations being lanes of one instruction

    Legal where the extent is constant and no two iterations touch one element that one of them
    writes. A reduction is refused: Rfactor makes its lanes first.
    """

    loop: str

    def apply(self, f: Function) -> Function:
        """Annotate the loop."""
        place = find(self, f, self.loop)
        serial(self, [place.loop])
        _constant(self, place.loop)
        for s in (*place.around, *statements(place.loop.body)):
            if isinstance(s, For) and s.kind is Kind.VECTORIZED:
                raise refuse(self, f"loop {s.var.name} is vectorized already")
        for s in statements(place.loop.body):
            if isinstance(s, For) and place.loop.var in walk(s.extent):
                raise refuse(self, f"the extent of {s.var.name} differs from lane to lane")
        reason = carried(place.loop, place.facts)
        if reason is not None:
            raise refuse(self, f"{reason}; a reduction needs Rfactor first")
        return exchange(f, place.loop, replace(place.loop, kind=Kind.VECTORIZED))


@dataclass(frozen=True)
class Parallel:
    """for i in n: s  ->  parallel for i in n: s, the iterations being tasks

    Legal for the outermost loop of the whole function, once, where no two iterations touch one
    element that one of them writes.
    """

    loop: str

    def apply(self, f: Function) -> Function:
        """Annotate the loop."""
        place = find(self, f, self.loop)
        serial(self, [place.loop])
        if any(not isinstance(s, Let) for s in place.around):
            raise refuse(self, f"loop {self.loop} is not the whole function")
        reason = carried(place.loop, place.facts)
        if reason is not None:
            raise refuse(self, reason)
        return exchange(f, place.loop, replace(place.loop, kind=Kind.PARALLEL))


@dataclass(frozen=True)
class Unroll:
    """for i in n: s  ->  unrolled for i in n: s, for a constant n"""

    loop: str

    def apply(self, f: Function) -> Function:
        """Annotate the loop."""
        place = find(self, f, self.loop)
        serial(self, [place.loop])
        _constant(self, place.loop)
        return exchange(f, place.loop, replace(place.loop, kind=Kind.UNROLLED))


def _constant(step: object, loop: For) -> None:
    if not isinstance(simplify(loop.extent), Const):
        raise refuse(step, f"the extent of {loop.var.name} is not constant; Split makes one")


def _between(outer: For, inner: For) -> Expr | None:
    """The conjunction of the conditions between two loops of a band."""
    found: Expr | None = None
    s = outer.body
    while isinstance(s, If):
        found, s = both(found, s.condition), s.then
    return found if s is inner else None


def _guarded(condition: Expr | None, body: Stmt) -> Stmt:
    return body if condition is None else If(condition, body)
