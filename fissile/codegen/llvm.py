"""A module of kernels as LLVM text (DESIGN 3.5): loop-IR functions in, one string out.

In: functions whose names are [a-z0-9_]+. Out: for each `void @name(ptr args, i64 begin, i64 end,
ptr scratch)`, which reads its words and calls a body whose buffers are known not to overlap.
Invariant: names are numbered; nothing of the user's model is in the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fissile.codegen.emitter import Emitter, Helpers, Place, Value
from fissile.codegen.expression import evaluate
from fissile.codegen.routines import routine_text
from fissile.codegen.statement import allocated, emit, emit_loop
from fissile.ir.dtype import INT64
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
    Op,
    Space,
    Stmt,
    Store,
    Var,
    const,
    plus,
    quotient,
    statements,
    substitute,
    times,
)
from fissile.target import Target


@dataclass(frozen=True)
class FunctionText:
    """The lines of one function, and the helpers that its module must contain."""

    lines: tuple[str, ...]
    helpers: Helpers


def emit_module(functions: Sequence[Function], target: Target) -> str:
    """The LLVM text of `functions` for `target`."""
    return module_text([emit_function(f, target) for f in functions], target)


def emit_function(f: Function, target: Target) -> FunctionText:
    """The text of `f`, for `module_text` of the same target."""
    text = _emitted(replace(f, name=_NAMELESS), target)
    lines = (line.replace(_NAMELESS, f.name) if _NAMELESS in line else line for line in text.lines)
    return FunctionText(tuple(lines), text.helpers)


_NAMELESS = "$function$"


@lru_cache(maxsize=300)  # whoever chooses among plans emits the same functions again and again
def _emitted(f: Function, target: Target) -> FunctionText:
    helpers = Helpers()
    return FunctionText(tuple(_emit_function(f, target, helpers)), helpers)


def module_text(functions: Sequence[FunctionText], target: Target) -> str:
    """One module of functions that are emitted already."""
    helpers = Helpers()
    lines = [f'target triple = "{target.llvm_triple}"']
    for f in functions:
        lines.extend(f.lines)
        helpers.declarations.update(f.helpers.declarations)
        helpers.routines.update(f.helpers.routines)
    lines.extend(routine_text(helpers, target))
    lines.extend(helpers.declarations.values())
    lines.append(_attributes(target))
    return "\n".join(lines) + "\n"


def _attributes(target: Target) -> str:
    width = f'"prefer-vector-width"="{target.vector_bits}"'
    legal = f'"min-legal-vector-width"="{target.vector_bits}"'
    cpu = f'"target-cpu"="{target.llvm_cpu}" "target-features"="{target.llvm_features}"'
    return f'attributes #0 = {{ nounwind "no-builtins" {cpu} {width} {legal} }}'


def _emit_function(f: Function, target: Target, helpers: Helpers) -> list[str]:
    stored = {s.buffer for s in statements(f.body) if isinstance(s, Store)}
    e = Emitter(target, helpers)
    header, kinds, call = [], [], []
    words: list[str] = []
    for i, p in enumerate(f.params):
        kind = "ptr" if isinstance(p, Buffer) else "i64"
        words.append(f"%w{i} = getelementptr i64, ptr %args, i64 {i}")
        words.append(f"%a{i} = load {kind}, ptr %w{i}, align 8")
        note = ""
        if isinstance(p, Buffer):
            note = " noalias" + ("" if p in stored else " readonly")
        else:
            e.values[p] = Value(f"%p{i}", INT64)
        header.append(f"{kind}{note} %p{i}")
        kinds.append(f"{kind} %a{i}")
        call.append(kind)
    for i, p in enumerate(f.params):
        if isinstance(p, Buffer):
            steps = tuple(evaluate(e, x) for x in p.strides)
            e.places[p] = Place(f"%p{i}", steps, Space.PARAM, p not in stored)
    _emit_tasks(e, f.body)
    tail = ["i64 %begin", "i64 %end", "ptr %scratch"]
    private = ", ".join([*header, *tail[:2], "ptr noalias %scratch"])
    return [
        f"define void @{f.name}(ptr readonly %args, i64 %begin, i64 %end, ptr %scratch) #0 {{",
        *words,
        f"call void @{f.name}.body({', '.join([*kinds, *tail])})",
        "ret void",
        "}",
        f"define internal void @{f.name}.body({private}) noinline #0 {{",
        "entry:",
        *e.code.lines(),
        "ret void",
        "}",
    ]


def _emit_tasks(e: Emitter, s: Stmt) -> None:
    """The body, its PARALLEL loop running from begin to end."""
    if parallel_loop(s) is None:
        emit(e, s)
    elif isinstance(s, For):
        emit_loop(e, s.var, s.body, Value("%begin", INT64), Value("%end", INT64))
    elif isinstance(s, Let):
        with e.bound(s.var, evaluate(e, s.value)):
            _emit_tasks(e, s.body)
    elif isinstance(s, Alloc):
        with allocated(e, s.buffer):
            _emit_tasks(e, s.body)


def parallel_loop(s: Stmt) -> For | None:
    """The grid of a kernel: its outermost PARALLEL loop, reached through `Let` and `Alloc` alone."""
    while isinstance(s, (Let, Alloc)):
        s = s.body
    return s if isinstance(s, For) and s.kind is Kind.PARALLEL else None


def task_count(f: Function) -> Expr:
    """How many tasks `f` has, over its parameters."""
    grid = parallel_loop(f.body)
    if grid is None:
        return const(1)
    s: Stmt = f.body
    lets: dict[Var, Expr] = {}
    while isinstance(s, (Let, Alloc)):
        if isinstance(s, Let):
            lets[s.var] = substitute(s.value, lets)
        s = s.body
    return substitute(grid.extent, lets)


def scratch_bytes(f: Function) -> Expr:
    """Bytes of private memory `f` needs, over its parameters."""
    return _scratch(f.body, {})


def _scratch(s: Stmt, lets: dict[Var, Expr]) -> Expr:
    if isinstance(s, Alloc):
        inner = _scratch(s.body, lets)
        if s.buffer.space is Space.REGISTER:
            return inner
        return plus(substitute(_rounded(s.buffer), lets), inner)
    if isinstance(s, Let):
        return _scratch(s.body, {**lets, s.var: substitute(s.value, lets)})
    if isinstance(s, For):
        return _scratch(s.body, lets)
    parts: list[Expr] = []
    if isinstance(s, Block):
        parts = [_scratch(inner, lets) for inner in s.body]
    elif isinstance(s, If):
        parts = [_scratch(inner, lets) for inner in (s.then, s.orelse) if inner is not None]
    total: Expr = const(0)
    for part in parts:
        total = _larger(total, part)
    return total


def _larger(a: Expr, b: Expr) -> Expr:
    zero = const(0)
    if a is b or b is zero:
        return a
    return b if a is zero else Op("max", (a, b), INT64)


def _rounded(b: Buffer) -> Expr:
    size: Expr = const(b.dtype.bytes)
    for extent in b.shape:
        size = times(size, extent)
    return times(quotient(plus(size, 63), 64), 64)
