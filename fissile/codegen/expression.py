"""Expressions of the loop IR as instructions; `select` evaluates only the chosen side.

In: an expression and the emitter's state (variables, lanes, mask). Out: its value.
Invariant: inside a masked region at least one lane runs, and only lanes that run touch memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from fissile.codegen.emitter import (
    Emitter,
    Mask,
    Value,
    known_flags,
    lane_flags,
    literal,
    operands,
    vector_text,
)
from fissile.codegen.memory import is_contiguous, load
from fissile.codegen.operators import OPERATORS, binary, choose, convert, negated, reinterpret
from fissile.codegen.text import type_text
from fissile.ir.dtype import BOOL
from fissile.ir.loop import Const, Expr, Load, Op, Var, children, walk

DEEP = 100  # nodes; larger expressions are evaluated from their leaves, not by recursion


def value_of(e: Emitter, x: Expr) -> Value:
    """The value of a whole expression, however deep."""
    if (size := e.sizes.get(x)) is None:
        size = e.sizes[x] = sum(1 for _ in walk(x))
    if size > DEEP:
        for node in _certain(x):
            evaluate(e, node)
    return evaluate(e, x)


def _certain(x: Expr) -> Iterator[Expr]:
    """The subexpressions that are evaluated whatever a `select` chooses, operands first."""
    seen: set[Expr] = set()
    stack = [(x, False)]
    while stack:
        node, done = stack.pop()
        if done:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            is_choice = isinstance(node, Op) and node.op == "select"
            stack.extend((c, False) for c in children(node)[: 1 if is_choice else None])


def evaluate(e: Emitter, x: Expr) -> Value:
    """The value of `x` here, by recursion."""
    if isinstance(x, Var):
        return e.values[x]
    if isinstance(x, Const):
        return literal(x.value, x.dtype)
    if (known := e.memo.get(x)) is None:
        known = _load(e, x) if isinstance(x, Load) else _apply(e, x)
        e.memo[x] = known
    return known


def _load(e: Emitter, x: Load) -> Value:
    return load(e, x.buffer, [evaluate(e, i) for i in x.index])


def _apply(e: Emitter, x: Op) -> Value:
    if x.op == "select":
        return _select(e, *x.args)
    args = [evaluate(e, a) for a in x.args]
    if x.op == "cast":
        return convert(e, args[0], x.dtype)
    if x.op == "bitcast":
        return reinterpret(e, args[0], x.dtype)
    return OPERATORS[x.op](e, args)


def _select(e: Emitter, condition: Expr, yes: Expr, no: Expr) -> Value:
    c = evaluate(e, condition)
    if c.text in ("true", "false"):
        return value_of(e, yes if c.text == "true" else no)
    reads = [side for side in (yes, no) if e.has_load(side) and side not in e.memo]
    if not reads:
        return choose(e, c, value_of(e, yes), value_of(e, no))
    if c.lanes == 1:
        return _either(e, c, yes, no)
    first = _where(e, c, yes)
    second = _where(e, negated(e, c), no)
    return choose(e, c, first, second)


def _either(e: Emitter, c: Value, yes: Expr, no: Expr) -> Value:
    """A uniform condition: two branches that meet in a phi."""
    code, labels = e.code, [e.code.label() for _ in range(3)]
    code.branch_if(c.text, labels[0], labels[1])
    found: list[tuple[Value, str]] = []
    width = lanes_of(e, yes) if e.lanes > 1 else 1
    width = max(width, lanes_of(e, no) if e.lanes > 1 else 1)
    for label, side in zip(labels, (yes, no)):
        code.start(label)
        with e.level(is_loop=False):
            v = value_of(e, side)
            text = vector_text(e, v, width) if width > 1 else operands(e, v)[1][0]
            found.append((Value(text, v.dtype, width), code.block))
            code.branch(labels[2])
    code.start(labels[2])
    return _meet(e, found)


def _meet(e: Emitter, found: list[tuple[Value, str]]) -> Value:
    first = found[0][0]
    edges = ", ".join(f"[ {v.text}, %{block} ]" for v, block in found)
    text = e.code.effect(f"phi {type_text(first.dtype, first.lanes)} {edges}")
    return Value(text, first.dtype, first.lanes)


def lanes_of(e: Emitter, x: Expr) -> int:
    """The lanes `x` may need: all of them when a variable in it differs between lanes."""
    if any(isinstance(n, Var) and e.values[n].lanes > 1 for n in walk(x)):
        return e.lanes
    if any(isinstance(n, Load) and e.places[n.buffer].tiles > 1 for n in walk(x)):
        return e.lanes
    return 1


def _where(e: Emitter, c: Value, side: Expr) -> Value:
    """`side` in the lanes of `c`; anything elsewhere."""
    if not e.has_load(side):
        return value_of(e, side)
    inner = narrowed(e, c)
    with e.masked(inner):
        if all(_is_plain(e, n) for n in walk(side) if isinstance(n, Load)):
            return value_of(e, side)
    code, taken, done = e.code, e.code.label(), e.code.label()
    before = code.block
    code.branch_if(any_lane(e, inner), taken, done)
    code.start(taken)
    with e.masked(inner), e.level(is_loop=False):
        v = value_of(e, side)
        text = vector_text(e, v, e.lanes)
        after = code.block
        code.branch(done)
    code.start(done)
    here = Value(text, v.dtype, e.lanes)
    return _meet(e, [(here, after), (Value("zeroinitializer", v.dtype, e.lanes), before)])


def _is_plain(e: Emitter, x: Load) -> bool:
    """Whether `x` is one masked vector load."""
    if any(e.has_load(i) for i in x.index):
        return False
    return is_contiguous(e, x.buffer, [evaluate(e, i) for i in x.index])


def narrowed(e: Emitter, c: Value) -> Mask:
    """The lanes that run and fulfil `c`."""
    flags = known_flags(c.text, e.lanes)
    outer = [True] * e.lanes if e.mask is None else known_flags(e.mask.text, e.lanes)
    if flags is not None and outer is not None:
        both = [f and o for f, o in zip(flags, outer, strict=True)]
        count = sum(both) if all(both[: sum(both)]) else None
        return Mask(vector_text(e, lane_flags(both), e.lanes), e.lanes, count, False)
    if e.mask is None:
        return Mask(vector_text(e, c, e.lanes), e.lanes, None, False)
    met = binary(e, "and", Value(e.mask.text, BOOL, e.lanes), c)
    return Mask(met.text, e.lanes, None, False)


def any_of(e: Emitter, c: Value) -> str:
    """An i1: whether bool `c` holds in any lane."""
    if c.lanes == 1:
        return c.text
    kind = type_text(BOOL, c.lanes)
    name = f"llvm.vector.reduce.or.v{c.lanes}i1"
    e.helpers.declare(name, "i1", kind)
    return e.code.pure(f"call i1 @{name}({kind} {c.text})", c.text)


def any_lane(e: Emitter, mask: Mask) -> str:
    """An i1: whether any lane of `mask` runs."""
    return any_of(e, Value(mask.text, BOOL, mask.lanes))
