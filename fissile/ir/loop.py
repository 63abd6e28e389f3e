"""The loop IR: how a kernel computes, as loops over buffers. Four expression and six statement classes.

Extents and tile sizes are expressions, so they may be numbers, parameters (`Var`) or a sketch's holes. Expressions are
hash-consed: shared subexpressions are one object and are emitted once. Meaning: `fissile.ir.interpret`. A `Function` is
a kernel: its outermost PARALLEL loop is the grid of tasks (DESIGN 3.8), its parameters are the words of a launch.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fissile.ir.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT64, DType
from fissile.ir.intern import Interned
from fissile.ir.scalar import SCALAR_OPS, ScalarOp, bitcast_dtype


class Kind(enum.Enum):
    """How a loop runs. VECTORIZED and UNROLLED are annotations that only emission expands."""

    SERIAL = "serial"
    PARALLEL = "parallel"  # iterations are tasks: independent of each other
    VECTORIZED = "vectorized"  # iterations are lanes: independent of each other
    UNROLLED = "unrolled"


class Space(enum.Enum):
    """Where a buffer lives."""

    PARAM = "param"  # given by the caller
    REGISTER = "register"  # constant shape; emission keeps its elements in registers
    SCRATCH = "scratch"  # this thread's private memory


# ---------------------------------------------------------------- expressions


@dataclass(frozen=True, eq=False)
class Const(metaclass=Interned):
    """A literal. `payload`: an int for integers and bools, `float.hex()` text for floats (keeps -0.0 and NaN)."""

    payload: int | str
    dtype: DType

    @property
    def value(self) -> int | float:
        """The literal as a Python number."""
        return float.fromhex(self.payload) if isinstance(self.payload, str) else self.payload


@dataclass(frozen=True, eq=False)
class Var(metaclass=Interned):
    """A scalar by name: a loop's index, a parameter, or what a `Let` binds."""

    name: str
    dtype: DType


@dataclass(frozen=True, eq=False)
class Load(metaclass=Interned):
    """The element of `buffer` at `index`, converted from storage to its compute type."""

    buffer: Buffer
    index: tuple[Expr, ...]

    @property
    def dtype(self) -> DType:
        """The compute type of the buffer's elements."""
        return self.buffer.dtype.compute


@dataclass(frozen=True, eq=False)
class Op(metaclass=Interned):
    """A scalar operator applied; `cast` and `bitcast` carry their target as `dtype`."""

    op: str
    args: tuple[Expr, ...]
    dtype: DType

    @property
    def row(self) -> ScalarOp:
        """The operator's row in the table (not for `cast` and `bitcast`)."""
        return SCALAR_OPS[self.op]


Expr = Const | Var | Load | Op


@dataclass(frozen=True, eq=False)
class Buffer(metaclass=Interned):
    """Memory with a shape. `strides` are in elements; the address of an element is `sum(index * stride)`."""

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    space: Space


# ---------------------------------------------------------------- statements


@dataclass(frozen=True)
class For:
    """for var in range(extent): body"""

    var: Var
    extent: Expr
    body: Stmt
    kind: Kind = Kind.SERIAL


@dataclass(frozen=True)
class Store:
    """buffer[index] = value, converted to the storage type (floats round to nearest even)."""

    buffer: Buffer
    index: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True)
class If:
    """if condition: then, else: orelse"""

    condition: Expr
    then: Stmt
    orelse: Stmt | None = None


@dataclass(frozen=True)
class Block:
    """Statements one after another."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Alloc:
    """A REGISTER or SCRATCH buffer that exists, with undefined contents, while `body` runs."""

    buffer: Buffer
    body: Stmt


@dataclass(frozen=True)
class Let:
    """body, with the scalar `var` standing for `value`."""

    var: Var
    value: Expr
    body: Stmt


Stmt = For | Store | If | Block | Alloc | Let


@dataclass(frozen=True)
class Function:
    """A kernel. `params`: buffers and int64 scalars in the order of the launch words (DESIGN 3.5)."""

    name: str
    params: tuple[Buffer | Var, ...]
    body: Stmt


# ---------------------------------------------------------------- construction


def wrapped(value: int) -> int:
    """A number as an int64 holds it."""
    return (value + 2**63) % 2**64 - 2**63


def const(value: int | float | bool, dtype: DType = INT64) -> Const:
    """A literal of `dtype` (compute type); one of int64 wraps around."""
    if dtype.is_float:
        return Const(float(value).hex(), dtype)
    return Const(wrapped(int(value)) if dtype is INT64 else int(value), dtype)


def var(name: str, dtype: DType = INT64) -> Var:
    """A scalar variable."""
    return Var(name, dtype)


def index(value: Expr | int) -> Expr:
    """An int64 expression from a number or an expression."""
    return const(value) if isinstance(value, int) else value


def op(name: str, *args: Expr) -> Expr:
    """Apply scalar operator `name`; the result's type comes from its row. TypeError on a wrong number or kind."""
    row = SCALAR_OPS[name]
    if len(args) != row.arity:
        raise TypeError(f"{name} takes {row.arity} arguments, not {len(args)}")
    types = tuple(a.dtype for a in args)
    checked = types[1:] if name == "select" else types
    if any(t is not checked[0] for t in checked) or checked[0].kind not in row.kinds:
        raise TypeError(f"{name} does not take {', '.join(map(repr, types))}")
    if name == "select" and types[0] is not BOOL:
        raise TypeError("select needs a bool condition")
    return Op(name, args, row.result(types))


def cast(value: Expr, to: DType) -> Expr:
    """`value` as `to`, a compute type; itself when it is that already."""
    return value if value.dtype is to else Op("cast", (value,), to)


_ROUNDED = {FLOAT16: "as_float16", BFLOAT16: "as_bfloat16"}


def stored(value: Expr, to: DType) -> Expr:
    """`value` as a tensor of type `to` holds it, in the compute type: the one place that rounds to a half type."""
    if not to.is_half:
        return cast(value, to)
    return op(_ROUNDED[to], value if value.dtype.is_float else cast(value, FLOAT32))


def unrounded(s: Store) -> Expr:
    """What a `Store` is to store: without a rounding that storing does once more."""
    v = s.value
    same = isinstance(v, Op) and v.op == _ROUNDED.get(s.buffer.dtype) and v.args[0].dtype is v.dtype
    return v.args[0] if same and isinstance(v, Op) else v


def bitcast(value: Expr) -> Expr:
    """The bits of a float32/64 as an int32/64, or the other way round."""
    return Op("bitcast", (value,), bitcast_dtype(value.dtype))


def row_major(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Strides in elements of a contiguous buffer of `shape`."""
    strides: list[Expr] = []
    step: Expr = const(1)
    for extent in reversed(shape):
        strides.append(step)
        step = times(step, extent)
    return tuple(reversed(strides))


def buffer(
    name: str,
    dtype: DType,
    shape: tuple[Expr | int, ...],
    space: Space = Space.PARAM,
    strides: tuple[Expr | int, ...] | None = None,
) -> Buffer:
    """A buffer; contiguous unless `strides` (elements) are given."""
    extents = tuple(index(e) for e in shape)
    steps = row_major(extents) if strides is None else tuple(index(s) for s in strides)
    return Buffer(name, dtype, extents, steps, space)


def block(*statements: Stmt) -> Stmt:
    """The statements in order, nested blocks flattened; a single one stays itself."""
    flat: list[Stmt] = []
    for s in statements:
        flat.extend(s.body if isinstance(s, Block) else (s,))
    return flat[0] if len(flat) == 1 else Block(tuple(flat))


# -------- int64 arithmetic that folds constants as it is built


def _number(e: Expr) -> int | None:
    return e.payload if isinstance(e, Const) and isinstance(e.payload, int) else None


def plus(a: Expr | int, b: Expr | int) -> Expr:
    """a + b on int64, constants folded."""
    a, b = index(a), index(b)
    x, y = _number(a), _number(b)
    if x is not None and y is not None:
        return const(x + y)
    if x == 0:
        return b
    if y == 0:
        return a
    return op("add", a, b)


def minus(a: Expr | int, b: Expr | int) -> Expr:
    """a - b on int64, constants folded."""
    a, b = index(a), index(b)
    x, y = _number(a), _number(b)
    if x is not None and y is not None:
        return const(x - y)
    if y == 0:
        return a
    return const(0) if a is b else op("sub", a, b)


def times(a: Expr | int, b: Expr | int) -> Expr:
    """a * b on int64, constants folded."""
    a, b = index(a), index(b)
    x, y = _number(a), _number(b)
    if x is not None and y is not None:
        return const(x * y)
    if x == 0 or y == 0:
        return const(0)
    if x == 1:
        return b
    if y == 1:
        return a
    return op("mul", a, b)


def quotient(a: Expr | int, b: Expr | int) -> Expr:
    """Floor of a / b on int64, constants folded."""
    a, b = index(a), index(b)
    x, y = _number(a), _number(b)
    if y == 1:
        return a
    if x is not None and y:
        return const(x // y)
    return op("floordiv", a, b)


def remainder(a: Expr | int, b: Expr | int) -> Expr:
    """a mod b (sign of b) on int64, constants folded."""
    a, b = index(a), index(b)
    x, y = _number(a), _number(b)
    if y == 1:
        return const(0)
    if x is not None and y:
        return const(x % y)
    return op("mod", a, b)


def ceildiv(a: Expr | int, b: Expr | int) -> Expr:
    """Ceiling of a / b on int64 for positive b, constants folded."""
    b = index(b)
    return quotient(plus(a, minus(b, 1)), b)


def minimum(a: Expr | int, b: Expr | int) -> Expr:
    """min(a, b) on int64, constants folded."""
    a, b = index(a), index(b)
    x, y = _number(a), _number(b)
    if x is not None and y is not None:
        return const(min(x, y))
    return a if a is b else op("min", a, b)


def both(a: Expr | None, b: Expr | None) -> Expr | None:
    """The conjunction of two optional conditions."""
    if a is None or b is None:
        return b if a is None else a
    return op("and", a, b)


# ---------------------------------------------------------------- traversal


def children(e: Expr) -> tuple[Expr, ...]:
    """The direct subexpressions."""
    if isinstance(e, Op):
        return e.args
    return e.index if isinstance(e, Load) else ()


def walk(e: Expr) -> Iterator[Expr]:
    """Every distinct subexpression once, operands before their users."""
    seen = {e}
    stack = [(e, iter(children(e)))]
    while stack:
        node, rest = stack[-1]
        for c in rest:
            if c not in seen:
                seen.add(c)
                if isinstance(c, (Const, Var)):
                    yield c
                else:
                    stack.append((c, iter(children(c))))
                    break
        else:
            stack.pop()
            yield node


def mapper(change: Callable[[Expr], Expr | None]) -> Callable[[Expr], Expr]:
    """`map_expr` with this `change`, which is asked once for every distinct subexpression of all that it is given."""
    made: dict[Expr, Expr] = {}

    def rebuilt(e: Expr) -> Expr:
        stack = [] if e in made else [e]
        while stack:
            node = stack[-1]
            pending = [c for c in children(node) if c not in made]
            if pending:
                stack.extend(reversed(pending))
                continue
            stack.pop()
            if node not in made:
                new = _with_parts(node, made)
                changed = change(new)
                made[node] = new if changed is None else changed
        return made[e]

    return rebuilt


def _with_parts(e: Expr, made: Mapping[Expr, Expr]) -> Expr:
    if isinstance(e, Op):
        args = tuple([made[a] for a in e.args])
        return e if args == e.args else Op(e.op, args, e.dtype)
    if isinstance(e, Load):
        index = tuple([made[i] for i in e.index])
        return e if index == e.index else Load(e.buffer, index)
    return e


def map_expr(e: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild `e` bottom up; where `change` (given the rebuilt node) answers an expression, that takes its place."""
    return mapper(change)(e)


def substitution(values: Mapping[Var, Expr]) -> Callable[[Expr], Expr]:
    """`substitute` with these values, for many expressions that share parts."""
    return mapper(lambda x: values.get(x) if isinstance(x, Var) else None)


def substitute(e: Expr, values: Mapping[Var, Expr]) -> Expr:
    """`e` with variables replaced."""
    return substitution(values)(e)


def map_stmt(
    s: Stmt, expr: Callable[[Expr], Expr], stmt: Callable[[Stmt], Stmt | None] = lambda s: None
) -> Stmt:
    """Rebuild `s` bottom up, every expression through `expr`; `stmt` may replace a rebuilt statement."""
    new = _with_expressions(s, expr, lambda inner: map_stmt(inner, expr, stmt))
    changed = stmt(new)
    return new if changed is None else changed


def _with_expressions(
    s: Stmt, expr: Callable[[Expr], Expr], inside: Callable[[Stmt], Stmt]
) -> Stmt:
    """`s` with its expressions and inner statements exchanged; `s` itself where that changes nothing."""
    if isinstance(s, Store):
        index, value = tuple([expr(i) for i in s.index]), expr(s.value)
        is_same = value is s.value and index == s.index
        return s if is_same else Store(s.buffer, index, value)
    if isinstance(s, For):
        extent, body = expr(s.extent), inside(s.body)
        is_same = body is s.body and extent is s.extent
        return s if is_same else For(s.var, extent, body, s.kind)
    if isinstance(s, Block):
        parts = [inside(b) for b in s.body]
        is_same = all(p is b and not isinstance(p, Block) for p, b in zip(parts, s.body))
        return s if is_same and len(parts) != 1 else block(*parts)
    if isinstance(s, If):
        orelse = None if s.orelse is None else inside(s.orelse)
        return If(expr(s.condition), inside(s.then), orelse)
    if isinstance(s, Alloc):
        return Alloc(s.buffer, inside(s.body))
    return Let(s.var, expr(s.value), inside(s.body))


def statements(s: Stmt) -> Iterator[Stmt]:
    """`s` and every statement inside it, outer first."""
    stack: list[Stmt] = [s]
    while stack:
        inner = stack.pop()
        yield inner
        if isinstance(inner, (For, Alloc, Let)):
            stack.append(inner.body)
        elif isinstance(inner, Block):
            stack.extend(reversed(inner.body))
        elif isinstance(inner, If):
            if inner.orelse is not None:
                stack.append(inner.orelse)
            stack.append(inner.then)


def expressions(s: Stmt) -> Iterator[Expr]:
    """The expressions that stand directly in the statements of `s` (not their subexpressions)."""
    for inner in statements(s):
        if isinstance(inner, For):
            yield inner.extent
        elif isinstance(inner, Store):
            yield from inner.index
            yield inner.value
        elif isinstance(inner, If):
            yield inner.condition
        elif isinstance(inner, Let):
            yield inner.value


def static_size(b: Buffer) -> int | None:
    """Number of elements when the shape is constant, else None."""
    extents = [_number(e) for e in b.shape]
    return None if None in extents else math.prod(e for e in extents if e is not None)
