"""Tensorize: a hand-made or generated loop program in the place of a loop nest.

In: a loop program, a loop, and a function whose parameters are bound to parts of the program's
buffers. Out: the program with that function's body in the place of the loop. Invariant: both
compute the same on drawn inputs, run by the interpreter; a difference is a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fissile.ir.dtype import BFLOAT16, DType
from fissile.ir.interpret import footprint, interpret, run_expr
from fissile.ir.loop import (
    Alloc,
    Buffer,
    Expr,
    For,
    Function,
    Let,
    Load,
    Stmt,
    Store,
    Var,
    expressions,
    map_expr,
    map_stmt,
    plus,
    statements,
    var,
    walk,
)
from fissile.ir.replace import replace as put
from fissile.ir.scalar import to_bfloat16
from fissile.schedule.place import Place, exchange, find, fresh, names_of, refuse, serial

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class View:
    """A part of a buffer: parameter index `j` along its axis d counts along `axes[d]` from `start`."""

    buffer: Buffer
    start: tuple[Expr, ...]
    axes: tuple[int, ...]

    def place(self, index: Sequence[Expr]) -> tuple[Expr, ...]:
        """Where in the buffer a parameter's index is."""
        at = list(self.start)
        for axis, i in zip(self.axes, index):
            at[axis] = plus(at[axis], i)
        return tuple(at)


@dataclass(frozen=True)
class Tensorize:
    """for i: s  ->  the body of `function` with its parameters bound by name

    `bind` gives a `View` for each buffer and an expression for each scalar. Legal where both agree
    on `draws` inputs: exactly for integers, to rounding for floats.
    """

    loop: str
    function: Function
    bind: tuple[tuple[str, View | Expr], ...]
    draws: int = 3

    def __str__(self) -> str:
        return f"Tensorize(loop={self.loop!r}, function={self.function.name})"

    def apply(self, f: Function) -> Function:
        """Put the function's body in the place of the loop."""
        place = find(self, f, self.loop)
        serial(self, [place.loop])
        body = self._bound(names_of(f))
        self._compare(place, body)
        return exchange(f, place.loop, body)

    def _bound(self, taken: set[str]) -> Stmt:
        """The function's body over the views, with its own names made fresh."""
        given = dict(self.bind)
        values: dict[Var, Expr] = {}
        views: dict[Buffer, View] = {}
        for p in self.function.params:
            bound = given.get(p.name)
            if isinstance(p, Var) and bound is not None and not isinstance(bound, View):
                values[p] = bound
            elif isinstance(p, Buffer) and isinstance(bound, View):
                if len(bound.axes) != len(p.shape) or bound.buffer.dtype is not p.dtype:
                    raise refuse(self, f"{p.name} and {bound.buffer.name} differ in type or rank")
                views[p] = bound
            else:
                raise refuse(self, f"parameter {p.name} is not bound")
        return put(_viewed(_renamed(self.function.body, taken), views), values)

    def _compare(self, place: Place, body: Stmt) -> None:
        old = _closed(place.loop, body, "old")
        new = Function("new", old.params, body)
        agreed = 0
        generator = np.random.default_rng(20240)
        for _ in range(_TRIES):
            args = _draw(old, place, generator)
            if args is None:
                continue
            before = {name: _copy(x) for name, x in args.items()}
            if not _runs(old, args):
                continue
            if not _runs(new, before):
                raise refuse(self, f"{self.function.name} reaches outside a buffer")
            for b in old.params:
                if isinstance(b, Buffer) and not _same(args[b.name], before[b.name], b.dtype):
                    raise refuse(self, f"{self.function.name} computes another {b.name}")
            agreed += 1
            if agreed == self.draws:
                return
        raise refuse(self, f"loop {self.loop} ran on {agreed} drawn inputs of {self.draws}")


_TRIES = 60
_EXTENTS = (1, 2, 3, 5, 8, 12, 16)


def _renamed(s: Stmt, taken: set[str]) -> Stmt:
    """`s` with every name it binds made fresh."""
    for x in list(statements(s)):
        if isinstance(x, (For, Let)):
            new = var(fresh(taken, x.var.name), x.var.dtype)
            s = _rebind(s, x.var, new)
        elif isinstance(x, Alloc):
            b = x.buffer
            renamed = Buffer(fresh(taken, b.name), b.dtype, b.shape, b.strides, b.space)
            s = put(s, {}, {b: renamed})
    return s


def _rebind(s: Stmt, old: Var, new: Var) -> Stmt:
    def bind(x: Stmt) -> Stmt | None:
        if isinstance(x, For) and x.var is old:
            return For(new, x.extent, put(x.body, {old: new}), x.kind)
        if isinstance(x, Let) and x.var is old:
            return Let(new, x.value, put(x.body, {old: new}))
        return None

    return map_stmt(s, lambda e: e, bind)


def _viewed(s: Stmt, views: Mapping[Buffer, View]) -> Stmt:
    def load(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer in views:
            view = views[e.buffer]
            return Load(view.buffer, view.place(e.index))
        return None

    def store(x: Stmt) -> Stmt | None:
        if isinstance(x, Store) and x.buffer in views:
            view = views[x.buffer]
            return Store(view.buffer, view.place(x.index), x.value)
        return None

    return map_stmt(s, lambda e: map_expr(e, load), store)


# ---------------------------------------------------------------- comparison on drawn inputs


def _closed(old: Stmt, new: Stmt, name: str) -> Function:
    """`old` as a function whose parameters are what `old` and `new` mention and do not bind."""
    bound: set[Var | Buffer] = set()
    used: dict[Var | Buffer, None] = {}
    for s in (old, new):
        for x in statements(s):
            if isinstance(x, (For, Let)):
                bound.add(x.var)
            elif isinstance(x, Alloc):
                bound.add(x.buffer)
            elif isinstance(x, Store):
                used[x.buffer] = None
        for e in expressions(s):
            for node in walk(e):
                if isinstance(node, Load):
                    used[node.buffer] = None
                elif isinstance(node, Var):
                    used[node] = None
    for b in [b for b in used if isinstance(b, Buffer)]:
        for e in (*b.shape, *b.strides):
            used.update((v, None) for v in walk(e) if isinstance(v, Var))
    return Function(name, tuple(u for u in used if u not in bound), old)


def _draw(f: Function, place: Place, generator: np.random.Generator) -> dict[str, Any] | None:
    """Arguments that could occur at `place`: loops around it inside their extents."""
    values: dict[Var, int] = {}
    mentioned = {v for e in place.facts.ranges.values() for v in walk(e) if isinstance(v, Var)}
    scalars = {p for p in f.params if isinstance(p, Var)} | mentioned
    for v in sorted(scalars - set(place.facts.ranges), key=lambda x: x.name):
        values[v] = int(generator.choice(_EXTENTS))
    for v, extent in place.facts.ranges.items():
        size = int(run_expr(extent, values))
        if size <= 0:
            return None
        values[v] = int(generator.integers(size))
    args: dict[str, Any] = {}
    for p in f.params:
        if isinstance(p, Var):
            args[p.name] = values[p]
        else:
            args[p.name] = _values(p.dtype, footprint(p, values), generator)
    return args


def _values(kind: DType, size: int, generator: np.random.Generator) -> Array:
    """Small whole numbers, so that sums and products are exact in any order."""
    numbers = generator.integers(0 if kind.kind in "ub" else -4, 2 if kind.kind == "b" else 5, size)
    if kind is BFLOAT16:
        return to_bfloat16(numbers.astype(np.float32))
    return numbers.astype(kind.numpy)


def _runs(f: Function, args: Mapping[str, Any]) -> bool:
    try:
        interpret(f, args)
    except (IndexError, ValueError):
        return False
    return True


def _copy(x: Any) -> Any:
    return x.copy() if isinstance(x, np.ndarray) else x


def _same(a: Array, b: Array, kind: DType) -> bool:
    if kind.is_float and kind is not BFLOAT16:
        return bool(np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True))
    return bool(np.array_equal(a, b))
