"""Replacement of variables and buffers in loop programs, inside the shapes of buffers too.

In: a statement or expression, values for variables, buffers for buffers. Out: the same with them
put in place. Invariant: an allocated buffer whose shape mentions a replaced variable is replaced
everywhere by one buffer.
"""

from __future__ import annotations

from collections.abc import Mapping

from fissile.ir.loop import (
    Alloc,
    Block,
    Buffer,
    Expr,
    For,
    If,
    Let,
    Load,
    Op,
    Stmt,
    Store,
    Var,
    block,
    substitute,
    walk,
)

Values = Mapping[Var, Expr]
Buffers = Mapping[Buffer, Buffer]


def replace_expr(e: Expr, values: Values, buffers: Buffers) -> Expr:
    """`e` with variables and buffers replaced."""
    made: dict[Expr, Expr] = {}
    for node in walk(e):
        if isinstance(node, Var):
            made[node] = values.get(node, node)
        elif isinstance(node, Load):
            at = tuple(made[i] for i in node.index)
            made[node] = Load(buffers.get(node.buffer, node.buffer), at)
        elif isinstance(node, Op):
            made[node] = Op(node.op, tuple(made[a] for a in node.args), node.dtype)
        else:
            made[node] = node
    return made[e]


def replace_buffer(b: Buffer, values: Values) -> Buffer:
    """`b` with variables in its shape and strides replaced."""
    shape = tuple(substitute(e, dict(values)) for e in b.shape)
    strides = tuple(substitute(s, dict(values)) for s in b.strides)
    return Buffer(b.name, b.dtype, shape, strides, b.space)


def replace(s: Stmt, values: Values, buffers: Buffers | None = None) -> Stmt:
    """`s` with variables and buffers replaced; what `s` binds itself must not be among them."""
    known: Buffers = {} if buffers is None else buffers

    def expr(e: Expr) -> Expr:
        return replace_expr(e, values, known)

    if isinstance(s, For):
        return For(s.var, expr(s.extent), replace(s.body, values, known), s.kind)
    if isinstance(s, Store):
        at = tuple(expr(i) for i in s.index)
        return Store(known.get(s.buffer, s.buffer), at, expr(s.value))
    if isinstance(s, If):
        orelse = None if s.orelse is None else replace(s.orelse, values, known)
        return If(expr(s.condition), replace(s.then, values, known), orelse)
    if isinstance(s, Block):
        return block(*(replace(inner, values, known) for inner in s.body))
    if isinstance(s, Let):
        return Let(s.var, expr(s.value), replace(s.body, values, known))
    new = known.get(s.buffer) or replace_buffer(s.buffer, values)
    if new is not s.buffer:
        known = dict(known) | {s.buffer: new}
    return Alloc(new, replace(s.body, values, known))
