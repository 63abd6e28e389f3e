"""Sliding windows over channels-last images: depthwise convolutions and pools, channels vectorized.

for task: for row of the image: for block of channels: for tile of places along the row: accumulators over places and
lanes, all taps inside, then the epilogue. Where padding cannot reach a tile of places its reads need no test. Terms are
added in the order of the taps (canonical order, DESIGN 3.8); padding is read as zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

from fissile.ir import loop as L
from fissile.ir.dim import DimLike, equal, max_, product
from fissile.ir.graph import Node
from fissile.ir.primitive import identity, unflatten
from fissile.orchestrate.follow import Index, definition, pull
from fissile.orchestrate.plan import Kernel
from fissile.schedule.kernel import TASK_ELEMENTS, Builder, Lowered, grid
from fissile.schedule.window import conjuncts, guarded, is_interval
from fissile.target import Target

_UNROLL = 8  # taps of the last axis that are unrolled
_FEW_ROWS = 8  # below this many rows the channels are spread over tasks, too


def is_sliding(root: Node) -> bool:
    """Whether a reduction is a window sliding over the axis before the last, the last axis being in both sides."""
    if root.type.rank < 3 or root.primitive.reduced is None:
        return False
    if root.name == "conv":
        return True
    window = root.inputs[0]
    if window.name != "window" or window.inputs[0].type.rank != root.type.rank:
        return False
    return root.type.rank - 1 not in window.attr("axes")


def lower_sliding(kernel: Kernel, target: Target) -> Lowered:
    """The loop program of a REDUCE kernel whose root `is_sliding`."""
    return Sliding(kernel, target).lower()


@dataclass(frozen=True)
class _Tile:
    """Places along the row and lanes of channels that are accumulated together."""

    places: int
    lanes: int


def _tile(target: Target, channels: DimLike, element_bytes: int) -> _Tile:
    """As many vectors of channels as divide them, and places so that accumulators fill half the registers."""
    vector = target.lanes(element_bytes)
    vectors = 2
    if isinstance(channels, int):
        whole = max(1, -(-channels // vector))
        vectors = next(v for v in (4, 3, 2, 1) if whole % v == 0 or whole >= 8 and v == 2)
    places = max(1, min(4, target.vector_registers // (2 * vectors)))
    return _Tile(places, vectors * vector)


class Sliding:
    """One kernel while it is lowered."""

    def __init__(self, kernel: Kernel, target: Target, build: Builder | None = None) -> None:
        """build: of the function that this is a part of."""
        self.kernel, self.root = kernel, kernel.nodes[0]
        self.build = build or Builder(kernel)
        self.dtype = self.root.dtype.compute
        *outer, self.width, self.channels = self.root.shape
        self.tile = _tile(target, self.channels, self.dtype.bytes)
        space = self.build.space
        self.rows = product(outer)
        self.row = space.loop("row", self.rows)
        self.place, self.column = space.loop("place", self.width), space.loop("column", self.channels)
        index = (*self._outer(tuple(outer)), self.place, self.column)
        self.at: Index = tuple(space.canonical(e) for e in index)
        extents = self.root.primitive.reduced(self.root) if self.root.primitive.reduced else ()
        self.taps = [
            L.const(0) if equal(d, 1) is True else space.loop(f"tap{k}", d)
            for k, d in enumerate(extents)
        ]
        self.loops = [t for t in self.taps if isinstance(t, L.Var)]
        self.product = L.var("product", self.dtype)
        self.conditions, self.term, self.padded = self._term()
        self.results = self._results()

    def _outer(self, extents: tuple[DimLike, ...]) -> Index:
        """The index of a row of the image."""
        return tuple(unflatten(self.row, extents, self.build.space.extent))

    def read(self, node: Node, index: Index) -> L.Expr | None:
        """The element of a node that is in memory, None when it is computed."""
        return self.build.load(node, index) if self.build.reads.get(node) else None

    def _term(self) -> tuple[list[L.Expr], L.Expr, L.Expr | None]:
        """(conditions of being inside the image, the accumulator `product` after a term there, and after one outside).

        The last is None where a term in the padding changes nothing; zero times a weight may be NaN.
        """
        build = self.build

        def value(node: Node, where: Index) -> L.Expr:
            return pull(build.space, node, where, self.read)

        combine = self.root.primitive.combine
        neutral = L.const(identity(combine, self.dtype), self.dtype)
        term = build.space.canonical(
            definition(build.space, self.root, self.at, tuple(self.taps), value)
        )
        is_own = self.root.primitive.kind == "linear"  # another primitive's product is rounded, here or in memory
        if is_own and isinstance(term, L.Op) and term.op == "mul":
            conditions, x = self._guarded(term.args[0], neutral)
            weight = term.args[1]
            if not self.dtype.is_float:
                product = L.op("mul", x, weight)
                return conditions, L.op("add", self.product, product), None
            outside = L.op("fma", L.const(0, self.dtype), weight, self.product)
            return conditions, L.op("fma", x, weight, self.product), outside
        conditions, x = self._guarded(term, neutral)
        return conditions, L.op(combine, self.product, x), None

    def _guarded(self, value: L.Expr, neutral: L.Expr) -> tuple[list[L.Expr], L.Expr]:
        """(what must hold for all channels alike, the element of a read): padded channels are told lane by lane."""
        condition, x = guarded(value, neutral)
        parts = conjuncts(condition)
        own = [c for c in parts if self.column in L.walk(c)]
        if own:
            x = L.op("select", reduce(lambda a, b: L.op("and", a, b), own), x, neutral)
        return [c for c in parts if c not in own], x

    def _results(self) -> list[tuple[L.Buffer, L.Expr, L.Expr]]:
        """(buffer, address, value) of what a place ends with."""
        members: dict[Node, L.Expr] = {self.root: self.product}
        for node in self.kernel.nodes[1:]:
            members[node] = self.build.pull(node, self.at, members)
        return [(*self.stored(n), members[n]) for n in self.kernel.outputs]

    def stored(self, output: Node) -> tuple[L.Buffer, L.Expr]:
        """Where the current element of an output goes."""
        return self.build.tensor(output), self.build.address(output, self.at)

    # -------------------------------------------------------- the nest

    def lower(self) -> Lowered:
        """The whole function."""
        few = not isinstance(self.rows, int) or self.rows < _FEW_ROWS
        per_column: DimLike = self.tile.lanes if few else max_(1, self.channels)
        taps = product(self.build.space.ranges[t] for t in self.loops)
        work = taps * self.width * self.channels
        per_row = 1 if few else max_(1, TASK_ELEMENTS // max_(1, work))
        tasks, task, part = grid(self.build, self.rows, per_row, self.channels, per_column)
        i, b = L.var("i"), L.var("block")
        start = L.plus(part["first_column"], L.times(b, self.tile.lanes))
        blocks = L.For(b, L.ceildiv(part["columns"], self.tile.lanes), self.block(b, start, part))
        body = L.map_stmt(
            blocks, lambda e: L.substitute(e, {self.row: L.plus(part["first_row"], i)})
        )
        nest = L.For(task, self.build.role("tasks", tasks), L.For(i, part["rows"], body), L.Kind.PARALLEL)
        return self.build.lowered(nest, tasks)

    def block(self, b: L.Var, start: L.Expr, part: dict[str, L.Expr]) -> L.Stmt:
        """All places of a row for one block of channels; a block that is not full masks its lanes."""
        lanes = self.tile.lanes
        if isinstance(self.channels, int) and self.channels % lanes == 0:
            return self._places(start, None)
        columns = self.build.role("channels", self.channels)
        if isinstance(self.channels, int) and self.channels < lanes:
            return self._places(start, columns)
        full = L.op("le", L.times(L.plus(b, 1), lanes), part["columns"])
        return L.If(full, self._places(start, None), self._places(start, columns))

    def _places(self, start: L.Expr, columns: L.Expr | None) -> L.Stmt:
        """Tiles of places; where padding may reach into a tile its places go one by one."""
        t, u, w0 = L.var("t"), L.var("u"), L.var("w0")
        count = self.tile.places
        width = self.build.role("width", self.width)
        inside = L.op("le", L.plus(w0, count), width)
        for condition in self._along_row():
            ends = ((L.const(0), 0), (None, count - 1))
            for tap, shift in ends:
                inside = L.op("and", inside, self._at_end(condition, tap, L.plus(w0, shift)))
        fast = self._accumulate(w0, count, start, columns, tested=False)
        left = L.minimum(L.const(count), L.minus(width, w0))
        slow = L.For(u, left, self._accumulate(L.plus(w0, u), 1, start, columns, tested=True))
        body = L.Let(w0, L.times(t, count), L.If(inside, fast, slow))
        return L.For(t, L.ceildiv(width, count), body)

    def _along_row(self) -> list[L.Expr]:
        """The conditions that depend on the place in the row; all of them intervals, else none is dropped."""
        return [c for c in self.conditions if self._moves(c)]

    def _moves(self, condition: L.Expr) -> bool:
        moving = {self.place, *self.loops[-1:]}
        return any(e in moving for e in L.walk(condition))

    def _at_end(self, condition: L.Expr, tap: L.Expr | None, place: L.Expr) -> L.Expr:
        """A condition at the first or last tap of a place; false when it is no interval of places and taps."""
        space = self.build.space
        here: dict[L.Var, L.Expr] = {self.place: place}
        if self.loops:
            last = self.loops[-1]
            here[last] = L.minus(space.extent(space.ranges[last]), 1) if tap is None else tap
        moving = (self.place, *self.loops[-1:])
        if not all(is_interval(space, condition, v) for v in moving):
            return L.op("eq", L.const(0), L.const(1))
        others = [v for v in self.loops[:-1] if v in L.walk(condition)]
        if others:
            return L.op("eq", L.const(0), L.const(1))
        return L.substitute(condition, here)

    def _accumulate(
        self, place: L.Expr, count: int, start: L.Expr, columns: L.Expr | None, *, tested: bool
    ) -> L.Stmt:
        """One tile: `count` places from `place` on. tested: each read asks whether it is in the padding."""
        lane = L.var("lane")
        sums = L.buffer("sums", self.dtype, (count, self.tile.lanes), L.Space.REGISTER)
        column = L.plus(start, lane)
        limit = None if columns is None else L.op("lt", column, columns)

        def lanes(make: Callable[[int], L.Stmt], t: int, *, masked: bool) -> L.Stmt:
            body = make(t)
            body = L.If(limit, body) if masked and limit is not None else body
            return L.For(lane, L.const(self.tile.lanes), body, L.Kind.VECTORIZED)

        def here(t: int) -> dict[L.Var, L.Expr]:
            now = L.Load(sums, (L.const(t), lane))
            return {self.place: L.plus(place, t), self.column: column, self.product: now}

        def clear(t: int) -> L.Stmt:
            zero = L.const(identity(self.root.primitive.combine, self.dtype), self.dtype)
            return L.Store(sums, (L.const(t), lane), zero)

        def update(t: int) -> L.Stmt:
            return L.Store(sums, (L.const(t), lane), L.substitute(self.term, here(t)))

        def outside(t: int) -> L.Stmt:
            term = self.product if self.padded is None else self.padded
            return L.Store(sums, (L.const(t), lane), L.substitute(term, here(t)))

        def finish(t: int) -> L.Stmt:
            return L.block(
                *(
                    L.Store(b, (L.substitute(a, here(t)),), L.substitute(v, here(t)))
                    for b, a, v in self.results
                )
            )

        body = L.block(*(lanes(update, t, masked=True) for t in range(count)))
        padding = None
        if self.padded is not None and self.conditions:
            padding = L.block(*(lanes(outside, t, masked=True) for t in range(count)))
        if tested:
            body = _under(body, [L.substitute(c, here(0)) for c in self._along_row()], padding)
        body = self._tap_loops(body, padding)
        cleared = [lanes(clear, t, masked=False) for t in range(count)]
        finished = [lanes(finish, t, masked=True) for t in range(count)]
        return L.Alloc(sums, L.block(*cleared, body, *finished))

    def _tap_loops(self, body: L.Stmt, padding: L.Stmt | None) -> L.Stmt:
        """The loops over taps, each condition as far out as it goes; where it fails, `padding` runs instead."""
        waiting = [c for c in self.conditions if not self._moves(c)]
        for tap in reversed(self.loops):
            inner = [c for c in waiting if tap in L.walk(c)] if tap is not self.loops[-1] else []
            waiting = [c for c in waiting if c not in inner]
            body = self._tap_loop(tap, _under(body, inner, padding))
            padding = None if padding is None else self._tap_loop(tap, padding)
        return _under(body, waiting, padding)

    def _tap_loop(self, tap: L.Var, body: L.Stmt) -> L.Stmt:
        extent = self.build.space.ranges[tap]
        if isinstance(extent, int) and extent <= _UNROLL and tap is self.loops[-1]:
            return L.For(tap, L.const(extent), body, L.Kind.UNROLLED)
        return L.For(tap, self.build.space.extent(extent), body)


def _under(body: L.Stmt, conditions: list[L.Expr], otherwise: L.Stmt | None) -> L.Stmt:
    """`body` if all conditions hold, else `otherwise`."""
    if not conditions:
        return body
    whole = conditions[0]
    for condition in conditions[1:]:
        whole = L.op("and", whole, condition)
    return L.If(whole, body, otherwise)
