"""Steps that move where values are computed and kept: inline, compute_at, compute_root, caches.

In: a loop program. Out: one of the same meaning, or a `ScheduleError` with the law that would break.
A stage is an allocated buffer with the one loop nest that fills it. Invariant: every element is
computed by the same expression as before, so results are bit for bit the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fissile.ir.loop import (
    Alloc,
    Block,
    Buffer,
    Expr,
    For,
    Function,
    If,
    Kind,
    Let,
    Load,
    Space,
    Stmt,
    Store,
    Var,
    block,
    const,
    map_expr,
    map_stmt,
    minus,
    row_major,
    statements,
    var,
    walk,
)
from fissile.ir.polynomial import Facts
from fissile.ir.replace import replace as put
from fissile.ir.replace import replace_expr
from fissile.ir.simplify import simplify
from fissile.schedule.dependence import Access, accesses, carried, interferes
from fissile.schedule.place import (
    Place,
    exchange,
    exchange_in,
    find,
    fresh,
    names_of,
    read,
    refuse,
    written,
)
from fissile.schedule.region import Box, box_of, over, redirect


@dataclass(frozen=True)
class Inline:
    """alloc T: (for i: T[i] = e(i)); s(T[j])  ->  s(e(j))"""

    buffer: str

    def apply(self, f: Function) -> Function:
        """Compute each element of the buffer where it is read, and drop the buffer."""
        stage = _stage(self, f, self.buffer)
        b, definition = stage.alloc.buffer, stage.element
        if not isinstance(definition, Store):
            raise refuse(self, f"an element of {b.name} is not one expression")
        if b in {x.buffer for x in walk(definition.value) if isinstance(x, Load)}:
            raise refuse(self, f"{b.name} is computed from itself")
        if b.dtype.compute is not b.dtype:
            raise refuse(self, f"storing {b.name} as {b.dtype} rounds")
        value, axes = definition.value, stage.axes

        def use(e: Expr) -> Expr | None:
            if isinstance(e, Load) and e.buffer is b:
                return replace_expr(value, dict(zip(axes, e.index)), {})
            return None

        rest = (map_stmt(s, lambda e: map_expr(e, use)) for s in stage.after)
        return exchange(f, stage.alloc, block(*stage.before, *rest))


@dataclass(frozen=True)
class ComputeAt:
    """alloc T: (for i: T[i] = e(i)); for j: s(T)  ->  for j: alloc T': T' = e(what j reads); s(T')"""

    buffer: str
    loop: str

    def apply(self, f: Function) -> Function:
        """Move the stage into the loop, for the box of elements that one iteration reads."""
        stage = _stage(self, f, self.buffer)
        place, b = find(self, f, self.loop), stage.alloc.buffer
        if not any(s is place.loop for x in stage.after for s in statements(x)):
            raise refuse(self, f"loop {self.loop} does not come after the stage {b.name}")
        _no_lanes(self, place)
        reads = _accesses_to(b, place.loop.body)
        if not reads:
            raise refuse(self, f"{b.name} is not read in loop {self.loop}")
        if len(reads) < sum(len(_accesses_to(b, s)) for s in stage.after):
            raise refuse(self, f"{b.name} is read outside loop {self.loop} too")
        facts = place.facts.inside(place.loop.var, place.loop.extent)
        box = box_of(b, reads, facts)
        small = _buffer(b.name, b, box, b.space)

        def element(own: tuple[Expr, ...], whole: tuple[Expr, ...]) -> Stmt:
            moved = put(stage.element, dict(zip(stage.axes, whole)))
            return redirect(moved, b, small, lambda _: own)

        names = [v.name for v in stage.axes]
        compute = over(box, names, b.shape, facts, element)
        use = redirect(place.loop.body, b, small, lambda at: box.shift(at, facts))
        loop = place.loop
        new = For(loop.var, loop.extent, Alloc(small, block(compute, use)), loop.kind)
        rest = (exchange_in(s, loop, new) for s in stage.after)
        return exchange(f, stage.alloc, block(*stage.before, *rest))


@dataclass(frozen=True)
class ComputeRoot:
    """for j: alloc T: p(T); u(T)  ->  alloc T: (for j: p(T[j])); for j: u(T[j]), out to the root

    The root is the function, or the body of its parallel loop, since tasks share no scratch. T gets
    a dimension for each loop it depends on.
    """

    buffer: str

    def apply(self, f: Function) -> Function:
        """Compute the whole stage before every serial loop around it."""
        alloc = _alloc(self, f, self.buffer)
        taken = names_of(f)
        while True:
            parent = _parent(f.body, alloc)
            if parent is None or (isinstance(parent, For) and parent.kind is Kind.PARALLEL):
                return f
            outer = self._hoist(parent, alloc, taken)
            f = exchange(f, parent, outer)
            alloc = outer

    def _hoist(self, parent: Stmt, alloc: Alloc, taken: set[str]) -> Alloc:
        make, use = self._parts(alloc)
        b = alloc.buffer
        if isinstance(parent, Block):
            at = next(i for i, s in enumerate(parent.body) if s is alloc)
            before, after = parent.body[:at], parent.body[at + 1 :]
            for s in before:
                self._refuse_if(interferes(make, s))
            return Alloc(b, block(make, *before, use, *after))
        if isinstance(parent, For):
            return self._out_of_loop(parent, b, make, use, taken)
        if isinstance(parent, If):
            if parent.orelse is not None:
                raise refuse(self, f"{b.name} is on one side of a condition")
            condition = parent.condition
            return Alloc(b, block(If(condition, make), If(condition, use)))
        if isinstance(parent, Let):
            early = put(make, {parent.var: parent.value})
            return Alloc(b, block(early, Let(parent.var, parent.value, use)))
        if isinstance(parent, Alloc) and parent.buffer not in read(make):
            return Alloc(b, block(make, Alloc(parent.buffer, use)))
        raise refuse(self, f"{b.name} is computed from what is local here")

    def _out_of_loop(self, loop: For, b: Buffer, make: Stmt, use: Stmt, taken: set[str]) -> Alloc:
        if loop.kind is not Kind.SERIAL:
            raise refuse(self, f"loop {loop.var.name} is {loop.kind.value}")
        if read(make) & (written(use) - {b}):
            raise refuse(self, f"what {b.name} is computed from changes in loop {loop.var.name}")
        if any(loop.var in walk(e) for e in b.shape):
            raise refuse(self, f"the shape of {b.name} depends on loop {loop.var.name}")
        if not _mentions(make, loop.var):
            return Alloc(b, block(make, For(loop.var, loop.extent, use)))
        shape = (loop.extent, *b.shape)
        wide = Buffer(b.name, b.dtype, shape, row_major(shape), Space.SCRATCH)
        twin = var(fresh(taken, f"{loop.var.name}_{b.name}"))
        make = redirect(put(make, {loop.var: twin}), b, wide, lambda at: (twin, *at))
        use = redirect(use, b, wide, lambda at: (loop.var, *at))
        return Alloc(wide, block(For(twin, loop.extent, make), For(loop.var, loop.extent, use)))

    def _parts(self, alloc: Alloc) -> tuple[Stmt, Stmt]:
        children = _children(alloc)
        writers = [i for i, s in enumerate(children) if alloc.buffer in written(s)]
        cut = writers[-1] + 1 if writers else 0
        make, use = block(*children[:cut]), block(*children[cut:])
        if written(make) - {alloc.buffer} or not writers:
            raise refuse(self, f"the statements that fill {alloc.buffer.name} do more than that")
        return make, use

    def _refuse_if(self, reason: str | None) -> None:
        if reason is not None:
            raise refuse(self, reason)


@dataclass(frozen=True)
class CacheRead:
    """for i: s(B)  ->  for i: alloc C: C = B over what i reads; s(C)"""

    buffer: str
    loop: str
    space: Space = Space.SCRATCH

    def apply(self, f: Function) -> Function:
        """Copy the box that one iteration reads of a parameter into a local buffer first."""
        place = find(self, f, self.loop)
        b, found = _touched(self, place, self.buffer)
        if any(a.is_store for a in found):
            raise refuse(self, f"{b.name} is written in loop {self.loop}")
        facts = place.facts.inside(place.loop.var, place.loop.extent)
        box, taken = box_of(b, found, facts), names_of(f)
        name = fresh(taken, f"{b.name}_cache")
        copy = _buffer(name, b, box, self.space)
        names = [fresh(taken, f"{name}_{axis}") for axis in range(len(b.shape))]
        load = over(box, names, b.shape, facts, lambda own, at: Store(copy, own, Load(b, at)))
        use = redirect(place.loop.body, b, copy, lambda at: box.shift(at, facts))
        return exchange(f, place.loop, _around(place.loop, Alloc(copy, block(load, use))))


@dataclass(frozen=True)
class CacheWrite:
    """for i: s(B)  ->  for i: alloc C: C = B over what i touches; s(C); B = C

    The first copy is left out where s starts by filling the whole box.
    """

    buffer: str
    loop: str
    space: Space = Space.REGISTER

    def apply(self, f: Function) -> Function:
        """Keep the box that one iteration writes of a parameter in a local buffer."""
        place = find(self, f, self.loop)
        b, found = _touched(self, place, self.buffer)
        if not any(a.is_store for a in found):
            raise refuse(self, f"{b.name} is not written in loop {self.loop}")
        facts = place.facts.inside(place.loop.var, place.loop.extent)
        box, taken = box_of(b, found, facts), names_of(f)
        name = fresh(taken, f"{b.name}_cache")
        copy = _buffer(name, b, box, self.space)
        if self.space is Space.REGISTER and not box.is_constant():
            raise refuse(self, f"what an iteration writes of {b.name} has no constant shape")
        names = [fresh(taken, f"{name}_{axis}") for axis in range(len(b.shape))]
        back = [fresh(taken, f"{name}_out_{axis}") for axis in range(len(b.shape))]
        store = over(box, back, b.shape, facts, lambda own, at: Store(b, at, Load(copy, own)))
        parts = [redirect(place.loop.body, b, copy, lambda at: box.shift(at, facts)), store]
        if not _fills(place.loop.body, b, box, facts):
            parts.insert(
                0, over(box, names, b.shape, facts, lambda own, at: Store(copy, own, Load(b, at)))
            )
        new = exchange(f, place.loop, _around(place.loop, Alloc(copy, block(*parts))))
        self._check_tasks(new)
        return new

    def _check_tasks(self, f: Function) -> None:
        for s in statements(f.body):
            if isinstance(s, For) and s.kind is Kind.PARALLEL:
                reason = carried(s, find(self, f, s.var.name).facts)
                if reason is not None:
                    raise refuse(self, f"tasks of {s.var.name} would write the same box: {reason}")


# ---------------------------------------------------------------- stages


@dataclass(frozen=True)
class _Stage:
    """An allocated buffer and its filling: `element` computes T[axes]; `after` are its readers."""

    alloc: Alloc
    axes: tuple[Var, ...]
    element: Stmt
    before: tuple[Stmt, ...]
    after: tuple[Stmt, ...]


def _children(alloc: Alloc) -> tuple[Stmt, ...]:
    return alloc.body.body if isinstance(alloc.body, Block) else (alloc.body,)


def _alloc(step: object, f: Function, name: str) -> Alloc:
    found = [s for s in statements(f.body) if isinstance(s, Alloc) and s.buffer.name == name]
    if len(found) != 1:
        raise refuse(step, f"{len(found)} buffers called {name} are allocated")
    return found[0]


def _stage(step: object, f: Function, name: str) -> _Stage:
    """The stage that fills `name`. ScheduleError: it is not filled by one nest over its shape."""
    alloc = _alloc(step, f, name)
    b, children = alloc.buffer, _children(alloc)
    writers = [i for i, s in enumerate(children) if b in written(s)]
    if len(writers) != 1:
        raise refuse(step, f"{name} is written by {len(writers)} statements, not one")
    at = writers[0]
    nest, before, after = children[at], children[:at], children[at + 1 :]
    if written(nest) != {b}:
        raise refuse(step, f"the nest that fills {name} writes other buffers too")
    if any(b in read(s) for s in before):
        raise refuse(step, f"{name} is read before it is filled")
    if any(read(nest) & (written(s) - {b}) for s in after):
        raise refuse(step, f"what {name} is computed from changes before {name} is read")
    loops, element = _spatial(nest, len(b.shape))
    places = {a.index for a in accesses(nest) if a.buffer is b}
    axes = next(iter(places))
    by_var = {loop.var: loop for loop in loops}
    if len(places) != 1 or len(loops) < len(b.shape) or set(axes) != set(by_var):
        raise refuse(step, f"{name} is not filled element by element by its outer loops")
    known = tuple(v for v in axes if isinstance(v, Var))
    for v, size in zip(known, b.shape):
        loop = by_var[v]
        if loop.kind is not Kind.SERIAL:
            raise refuse(step, f"loop {v.name} is {loop.kind.value} already")
        if simplify(minus(loop.extent, size)) is not const(0):
            raise refuse(step, f"loop {v.name} does not cover {name}")
    return _Stage(alloc, known, element, before, after)


def _spatial(nest: Stmt, rank: int) -> tuple[list[For], Stmt]:
    loops: list[For] = []
    while isinstance(nest, For) and len(loops) < rank:
        loops.append(nest)
        nest = nest.body
    return loops, nest


def _parent(s: Stmt, child: Stmt) -> Stmt | None:
    for outer in statements(s):
        if isinstance(outer, Block):
            inside: Sequence[Stmt] = outer.body
        elif isinstance(outer, If):
            inside = (outer.then,) if outer.orelse is None else (outer.then, outer.orelse)
        else:
            inside = () if isinstance(outer, Store) else (outer.body,)
        if any(x is child for x in inside):
            return outer
    return None


def _mentions(s: Stmt, v: Var) -> bool:
    return put(s, {v: minus(v, v)}) != s


# ---------------------------------------------------------------- caches


def _accesses_to(b: Buffer, s: Stmt) -> list[Access]:
    return [a for a in accesses(s) if a.buffer is b]


def _touched(step: object, place: Place, name: str) -> tuple[Buffer, list[Access]]:
    """The parameter called `name` and its accesses in the loop."""
    _no_lanes(step, place)
    found = [a for a in accesses(place.loop.body) if a.buffer.name == name]
    if not found:
        raise refuse(step, f"{name} is not touched in loop {place.loop.var.name}")
    b = found[0].buffer
    if b.space is not Space.PARAM:
        raise refuse(step, f"{name} is local already")
    return b, found


def _no_lanes(step: object, place: Place) -> None:
    for s in (*place.around, place.loop):
        if isinstance(s, For) and s.kind is Kind.VECTORIZED:
            raise refuse(step, f"loop {s.var.name} is vectorized")


def _buffer(name: str, like: Buffer, box: Box, space: Space) -> Buffer:
    """A contiguous buffer that holds `box`; in registers only when its shape is constant."""
    where = space if box.is_constant() else Space.SCRATCH
    return Buffer(name, like.dtype, box.extent, row_major(box.extent), where)


def _around(loop: For, body: Stmt) -> For:
    return For(loop.var, loop.extent, body, loop.kind)


def _fills(s: Stmt, b: Buffer, box: Box, facts: Facts) -> bool:
    """Whether the first statement of `s` writes every element of the box without reading one."""
    first = s.body[0] if isinstance(s, Block) else s
    extents: dict[Var, Expr] = {}
    while isinstance(first, For):
        extents[first.var] = first.extent
        first = first.body
    if not isinstance(first, Store) or first.buffer is not b:
        return False
    if any(isinstance(x, Load) and x.buffer is b for x in walk(first.value)):
        return False
    for v, extent in extents.items():
        facts = facts.inside(v, extent)
    left: dict[Expr, Expr] = {v: simplify(extent, facts) for v, extent in extents.items()}
    for i, extent in zip(box.shift(first.index, facts), box.extent):
        if i is const(0) and extent is const(1):
            continue
        if left.pop(i, None) is not extent:
            return False
    return not left
