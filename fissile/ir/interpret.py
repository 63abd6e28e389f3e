"""The meaning of a loop program: a slow, obvious interpreter that everything later must agree with.

In: a `Function` and its arguments by name, contiguous numpy arrays and ints. Out: the arrays,
changed in place. Invariant: no access outside a buffer and no read of an element nobody wrote goes
unnoticed. Expressions become closures once, so that a million scalar operations take seconds.
Inside, int64 values are Python ints, bools Python bools, all else numpy scalars of compute type.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fissile.ir.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT64, DType
from fissile.ir.loop import (
    Alloc,
    Block,
    Buffer,
    Const,
    Expr,
    For,
    Function,
    If,
    Kind,
    Let,
    Load,
    Op,
    Stmt,
    Store,
    Var,
    children,
)
from fissile.ir.scalar import cast_value, from_bfloat16, to_bfloat16

Array = npt.NDArray[Any]
Value = Any
Get = Callable[[], Value]
Run = Callable[[], None]


def interpret(
    function: Function, args: Mapping[str, Array | int], *, backwards: bool = False
) -> None:
    """Run `function` on `args` (parameter name -> contiguous array, or int), changing the arrays.

    An array has the storage type of its buffer (bfloat16: uint16), any shape, and at least the
    elements that are touched. `backwards` runs PARALLEL and VECTORIZED loops from their end, which
    changes nothing in a legal program. IndexError: an access outside a buffer. ValueError: an
    element read before it was written, or an argument that does not fit.
    """
    machine = _Machine(backwards)
    for parameter in function.params:
        if parameter.name not in args:
            raise ValueError(f"{function.name} needs an argument {parameter.name}")
        if isinstance(parameter, Var):
            machine.values[parameter] = _scalar(args[parameter.name], parameter.dtype)
    for parameter in function.params:
        if isinstance(parameter, Buffer):
            data = _flat(parameter, args[parameter.name])
            extents, strides = _layout(machine, parameter)()
            machine.memories[parameter] = _Memory(parameter.name, data, None, extents, strides)
    with np.errstate(all="ignore"):
        _statement(machine, function.body)()


def run_expr(e: Expr, values: Mapping[Var, int | float]) -> int | float | bool:
    """The value of `e`, which loads nothing, with its variables given; a Python number."""
    machine = _Machine(False)
    machine.values.update({v: _scalar(x, v.dtype) for v, x in values.items()})
    with np.errstate(all="ignore"):
        found = _root(machine, e)()
    number: int | float | bool = found.item() if isinstance(found, np.generic) else found
    return number


# ---------------------------------------------------------------- state


@dataclass
class _Memory:
    """A buffer's elements. `defined` marks those written; None where the caller gave them all."""

    name: str
    data: Array
    defined: Array | None
    extents: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass
class _Machine:
    """Everything that changes while a function runs; `clock` counts evaluated expressions."""

    backwards: bool
    values: dict[Var, Value] = field(default_factory=dict)
    memories: dict[Buffer, _Memory] = field(default_factory=dict)
    clock: int = 0


def _flat(b: Buffer, given: Array | int) -> Array:
    if not isinstance(given, np.ndarray):
        raise ValueError(f"{b.name} is a buffer and needs an array, not {given!r}")
    if given.dtype != b.dtype.numpy:
        raise ValueError(f"{b.name} stores {b.dtype} ({b.dtype.numpy}), not {given.dtype}")
    if not given.flags.c_contiguous:
        raise ValueError(f"{b.name} needs a contiguous array")
    return given.reshape(-1)


def _scalar(value: Any, to: DType) -> Value:
    if to is INT64:
        return int(value)
    return bool(value) if to is BOOL else to.numpy.type(value)


def _layout(machine: _Machine, b: Buffer) -> Callable[[], tuple[tuple[int, ...], tuple[int, ...]]]:
    """A closure for the extents and strides (elements) of `b`."""
    extents = [_root(machine, e) for e in b.shape]
    strides = [_root(machine, s) for s in b.strides]
    return lambda: (tuple(e() for e in extents), tuple(s() for s in strides))


def _span(extents: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last of a buffer with non-negative strides."""
    if min(extents, default=1) <= 0:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(extents, strides))


# ---------------------------------------------------------------- statements


def _statement(machine: _Machine, s: Stmt) -> Run:
    if isinstance(s, For):
        return _for(machine, s)
    if isinstance(s, Store):
        return _store(machine, s)
    if isinstance(s, If):
        return _if(machine, s)
    if isinstance(s, Block):
        return _sequence([_statement(machine, inner) for inner in s.body])
    if isinstance(s, Alloc):
        return _alloc(machine, s)
    return _let(machine, s)


def _sequence(parts: list[Run]) -> Run:
    def run() -> None:
        for part in parts:
            part()

    return run


def _for(machine: _Machine, s: For) -> Run:
    extent, values, var = _root(machine, s.extent), machine.values, s.var
    body = _bound(machine, var, s.body)
    reverse = machine.backwards and s.kind in (Kind.PARALLEL, Kind.VECTORIZED)

    def run() -> None:
        order: Iterable[int] = range(extent())
        for i in reversed(range(extent())) if reverse else order:
            values[var] = i
            body()

    return run


def _bound(machine: _Machine, var: Var, body: Stmt) -> Run:
    """`body` with `var` in scope; a name is bound once on every path, so scopes need no stack."""
    if var in machine.values:
        raise ValueError(f"{var.name} is bound twice")
    machine.values[var] = None
    run = _statement(machine, body)
    del machine.values[var]
    return run


def _let(machine: _Machine, s: Let) -> Run:
    value, values, var = _root(machine, s.value), machine.values, s.var
    body = _bound(machine, var, s.body)

    def run() -> None:
        values[var] = value()
        body()

    return run


def _if(machine: _Machine, s: If) -> Run:
    condition, then = _root(machine, s.condition), _statement(machine, s.then)
    orelse = None if s.orelse is None else _statement(machine, s.orelse)

    def run() -> None:
        if condition():
            then()
        elif orelse is not None:
            orelse()

    return run


def _alloc(machine: _Machine, s: Alloc) -> Run:
    if s.buffer in machine.memories:
        raise ValueError(f"{s.buffer.name} is allocated twice")
    memory, layout = _Memory(s.buffer.name, np.zeros(0), None, (), ()), _layout(machine, s.buffer)
    machine.memories[s.buffer] = memory
    body = _statement(machine, s.body)
    del machine.memories[s.buffer]

    def run() -> None:
        memory.extents, memory.strides = layout()
        size = _span(memory.extents, memory.strides)
        memory.data, memory.defined = np.zeros(size, s.buffer.dtype.numpy), np.zeros(size, bool)
        body()

    return run


def _store(machine: _Machine, s: Store) -> Run:
    memory = _memory(machine, s.buffer)
    offset, value = _offset(memory, [_root(machine, i) for i in s.index]), _root(machine, s.value)
    encode = _encode(s.buffer.dtype)

    def run() -> None:
        number = value()
        at = offset()
        memory.data[at] = number if encode is None else encode(number)
        if memory.defined is not None:
            memory.defined[at] = True

    return run


def _encode(to: DType) -> Callable[[Value], Value] | None:
    if to is FLOAT16:
        return np.float16
    return to_bfloat16 if to is BFLOAT16 else None


# ---------------------------------------------------------------- memory


def _memory(machine: _Machine, b: Buffer) -> _Memory:
    if b not in machine.memories:
        raise ValueError(f"buffer {b.name} is not in scope")
    return machine.memories[b]


def _offset(memory: _Memory, parts: list[Get]) -> Get:
    """Address in elements of `memory[parts]`, every index checked against its extent."""

    def offset() -> int:
        at = 0
        place = [part() for part in parts]
        for i, extent, stride in zip(place, memory.extents, memory.strides, strict=True):
            if not 0 <= i < extent:
                raise IndexError(f"{memory.name}{place} is outside {list(memory.extents)}")
            at += i * stride
        if not 0 <= at < len(memory.data):
            raise IndexError(
                f"{memory.name}{place} is element {at} of an array of {len(memory.data)}"
            )
        return at

    return offset


def _load(machine: _Machine, e: Load, index: list[Get]) -> Get:
    memory = _memory(machine, e.buffer)
    offset, decode = _offset(memory, index), _decode(e.buffer.dtype)

    def load() -> Value:
        at = offset()
        if memory.defined is not None and not memory.defined[at]:
            raise ValueError(f"{memory.name} element {at} is read before it is written")
        number = memory.data[at]
        return number if decode is None else decode(number)

    return load


def _decode(stored: DType) -> Callable[[Value], Value] | None:
    if stored is BFLOAT16:
        return lambda bits: from_bfloat16(bits)[()]
    return {INT64: int, BOOL: bool, FLOAT16: np.float32}.get(stored)


# ---------------------------------------------------------------- expressions


def _root(machine: _Machine, e: Expr) -> Get:
    """A closure for a whole expression; a shared subexpression is evaluated once per evaluation."""
    uses = Counter({e: 1})
    pending, seen = [e], {e}
    while pending:
        for child in children(pending.pop()):
            uses[child] += 1
            if child not in seen:
                seen.add(child)
                pending.append(child)
    made: dict[Expr, Get] = {}
    get = _expression(machine, e, uses, made)
    if all(n == 1 or isinstance(x, (Const, Var)) for x, n in uses.items()):
        return get

    def root() -> Value:
        machine.clock += 1
        return get()

    return root


def _expression(machine: _Machine, e: Expr, uses: Counter[Expr], made: dict[Expr, Get]) -> Get:
    if e in made:
        return made[e]
    if isinstance(e, Const):
        value = _scalar(e.value, e.dtype)
        made[e] = lambda: value
    elif isinstance(e, Var):
        made[e] = _var(machine, e)
    elif isinstance(e, Load):
        made[e] = _load(machine, e, [_expression(machine, i, uses, made) for i in e.index])
    else:
        made[e] = _apply(e, [_expression(machine, a, uses, made) for a in e.args])
    if uses[e] > 1 and isinstance(e, (Op, Load)):
        made[e] = _remember(machine, made[e])
    return made[e]


def _remember(machine: _Machine, get: Get) -> Get:
    """`get`, run at most once per tick; the clock only counts up, so no stale value is seen."""
    known: list[Value] = [-1, None]

    def remembered() -> Value:
        now = machine.clock
        if known[0] != now:
            known[1] = get()
            known[0] = now
        return known[1]

    return remembered


def _var(machine: _Machine, e: Var) -> Get:
    if e not in machine.values:
        raise ValueError(f"{e.name} is not bound")
    values = machine.values
    return lambda: values[e]


def _apply(e: Op, args: list[Get]) -> Get:
    if e.op == "cast":
        return _cast(args[0], e.args[0].dtype, e.dtype)
    if e.op == "bitcast":
        source, target = e.args[0].dtype.numpy.type, e.dtype
        return lambda: _scalar(source(args[0]()).view(target.numpy), target)
    if e.op == "select":
        condition, a, b = args
        return lambda: a() if condition() else b()
    operand = e.args[0].dtype
    quick = _quick(e.op, operand)
    if quick is None:
        return _by_table(e, args)
    if len(args) == 1:
        (a,) = args
        return lambda: quick(a())
    if len(args) == 2:
        a, b = args
        return lambda: quick(a(), b())
    a, b, c = args
    return lambda: quick(a(), b(), c())


def _by_table(e: Op, args: list[Get]) -> Get:
    """The operator's row applied to numpy scalars."""
    meaning, target = e.row.meaning, e.dtype
    types = [a.dtype.numpy.type for a in e.args]
    return lambda: _scalar(meaning(*[t(a()) for t, a in zip(types, args)]), target)


def _cast(get: Get, source: DType, target: DType) -> Get:
    if source is BOOL and target is INT64:
        return lambda: int(get())
    if source.is_integer and target is INT64 and source.kind == "i":
        return lambda: int(get())
    made = source.numpy.type
    return lambda: _scalar(cast_value(made(get()), target), target)


# ---------------------------------------------------------------- quick forms of common rows


def _wrap(x: int) -> int:
    return x if -(1 << 63) <= x < 1 << 63 else ((x + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


def _fma32(a: Value, b: Value, c: Value) -> Value:
    return np.float32(float(a) * float(b) + float(c))


_COMPARISONS: dict[str, Callable[..., Value]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_BOOL: dict[str, Callable[..., Value]] = {
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": operator.not_,
}
_INT64: dict[str, Callable[..., Value]] = {
    "add": lambda a, b: _wrap(a + b),
    "sub": lambda a, b: _wrap(a - b),
    "mul": lambda a, b: _wrap(a * b),
    "neg": lambda a: _wrap(-a),
    "floordiv": lambda a, b: _wrap(a // b) if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "min": min,
    "max": max,
}
_FLOAT: dict[str, Callable[..., Value]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
}


def _quick(name: str, operand: DType) -> Callable[..., Value] | None:
    """A faster callable that agrees with the row of `name`, for the commonest ones."""
    if name in _COMPARISONS:
        return _COMPARISONS[name]
    if operand is BOOL:
        return _BOOL.get(name)
    if operand is INT64:
        return _INT64.get(name)
    if name == "fma" and operand is FLOAT32:
        return _fma32
    return _FLOAT.get(name)


def footprint(b: Buffer, values: Mapping[Var, int]) -> int:
    """Elements from the first to the last of `b` when its parameters have these `values`."""
    machine = _Machine(False)
    machine.values.update(values)
    return _span(*_layout(machine, b)())
