"""Loop programs as text, and back: what `fissile show` prints and golden tests compare.

In: a `Function`, statement or expression. Out: deterministic text in Python's own grammar, so that
Python's parser reads it. Invariant: `parse(show(f)) == f` when every name is an identifier.
A `Let` or `Alloc` reaches to the end of its block; where it does not, `with` shows its body.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fissile.ir.dtype import BOOL, DTYPES, FLOAT32, INT64, DType, dtype
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
    Space,
    Stmt,
    Store,
    Var,
    bitcast,
    block,
    buffer,
    cast,
    const,
    op,
    row_major,
    var,
)

_LOOP_WORDS = {"range": Kind.SERIAL} | {k.value: k for k in Kind if k is not Kind.SERIAL}
_WORD_OF = {kind: word for word, kind in _LOOP_WORDS.items()}
_TYPE_NAMES = frozenset(d.name for d in DTYPES)

# operator -> (sign, precedence); Python's grammar puts comparisons below the bit operators
_INFIX = {
    "eq": ("==", 1),
    "ne": ("!=", 1),
    "lt": ("<", 1),
    "le": ("<=", 1),
    "gt": (">", 1),
    "ge": (">=", 1),
    "or": ("|", 2),
    "xor": ("^", 3),
    "and": ("&", 4),
    "shift_left": ("<<", 5),
    "shift_right": (">>", 5),
    "add": ("+", 6),
    "sub": ("-", 6),
    "mul": ("*", 7),
    "div": ("/", 7),
    "floordiv": ("//", 7),
    "mod": ("%", 7),
}
_ATOM = 9


def show(item: Function | Stmt | Expr) -> str:
    """The text of a function, a statement or an expression, without a final newline.

    >>> show(op("add", var("i"), op("mul", var("j"), const(4))))
    'i + j * 4'
    """
    if isinstance(item, Function):
        head = f"def {item.name}({', '.join(_parameter(p) for p in item.params)}):"
        return "\n".join((head, *_lines(item.body, "    ")))
    if isinstance(item, (Const, Var, Load, Op)):
        return _expr(item, 0)
    return "\n".join(_lines(item, ""))


# ---------------------------------------------------------------- printing


def _parameter(p: Buffer | Var) -> str:
    return f"{p.name}: {_type(p) if isinstance(p, Buffer) else p.dtype.name}"


def _type(b: Buffer) -> str:
    shape = ", ".join(_expr(e, 0) for e in b.shape) or "()"
    text = f"{b.dtype.name}[{shape}]"
    if b.strides != row_major(b.shape):
        text = f"strided({', '.join((text, *(_expr(s, 0) for s in b.strides)))})"
    return text if b.space is Space.PARAM else f"{b.space.value}({text})"


_Line = str | tuple[Stmt, str, bool]  # a line, or a statement with its indent and whether it ends its block


def _lines(s: Stmt, indent: str) -> Iterator[str]:
    """The lines of a statement; a stack of its own, since programs nest deeper than Python calls."""
    stack: list[_Line] = [(s, indent, True)]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        else:
            stack.extend(reversed(_split(*item)))


def _split(s: Stmt, indent: str, last: bool) -> list[_Line]:
    """The first line of a statement, and what comes behind it."""
    deeper = indent + "    "
    if isinstance(s, Block):
        final = len(s.body) - 1
        inner = [(part, indent, last and i == final) for i, part in enumerate(s.body)]
        return [*inner] if s.body else [f"{indent}pass"]
    if isinstance(s, For):
        head = f"{indent}for {s.var.name} in {_WORD_OF[s.kind]}({_expr(s.extent, 0)}):"
        return [head, (s.body, deeper, True)]
    if isinstance(s, Store):
        return [f"{indent}{_place(s.buffer, s.index)} = {_expr(s.value, 0)}"]
    if isinstance(s, If):
        lines: list[_Line] = [f"{indent}if {_expr(s.condition, 0)}:", (s.then, deeper, True)]
        return lines if s.orelse is None else [*lines, f"{indent}else:", (s.orelse, deeper, True)]
    return _scope(s, indent, last)


def _scope(s: Alloc | Let, indent: str, last: bool) -> list[_Line]:
    if isinstance(s, Alloc):
        name, kind, value = s.buffer.name, _type(s.buffer), None
    else:
        name, kind, value = s.var.name, s.var.dtype.name, _expr(s.value, 0)
    if last:
        head = f"{indent}{name}: {kind}" + ("" if value is None else f" = {value}")
        return [head, (s.body, indent, True)]
    head = f"{indent}with {kind if value is None else f'{kind}({value})'} as {name}:"
    return [head, (s.body, indent + "    ", True)]


def _place(b: Buffer, index: tuple[Expr, ...]) -> str:
    return f"{b.name}[{', '.join(_expr(i, 0) for i in index) or '()'}]"


def _const(e: Const) -> tuple[str, int]:
    text = repr(bool(e.value)) if e.dtype is BOOL else repr(e.value)
    finite = text not in ("nan", "inf", "-inf")
    if e.dtype in (BOOL, INT64) or (e.dtype is FLOAT32 and finite):
        return text, 8 if text.startswith("-") else _ATOM
    return f"const({text if finite else repr(text)}, {e.dtype.name})", _ATOM


_Part = str | tuple[Expr, int]  # text, or an expression and the least strength with which it must bind


def _expr(e: Expr, least: int) -> str:
    """Text of `e`, in parentheses when it binds less tightly than `least`."""
    texts: list[str] = []
    stack: list[_Part] = [(e, least)]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            texts.append(item)
            continue
        parts, strength = _parts(item[0])
        stack.extend(reversed(("(", *parts, ")") if strength < item[1] else parts))
    return "".join(texts)


def _parts(e: Expr) -> tuple[tuple[_Part, ...], int]:
    """What the text of an expression is made of, and how tightly it binds."""
    if isinstance(e, Var):
        return (e.name,), _ATOM
    if isinstance(e, Load):
        index = _separated(e.index) or ("()",)
        return (e.buffer.name, "[", *index, "]"), _ATOM
    if isinstance(e, Const):
        text, strength = _const(e)
        return (text,), strength
    if e.op in _INFIX:
        sign, strength = _INFIX[e.op]
        left = strength + 1 if strength == 1 else strength  # a < b < c would be a chain
        return ((e.args[0], left), f" {sign} ", (e.args[1], strength + 1)), strength
    if e.op == "select":
        condition, a, b = e.args
        return ((a, 1), " if ", (condition, 1), " else ", (b, 0)), 0
    if e.op == "not":
        return ("~", (e.args[0], 8)), 8
    name = e.dtype.name if e.op == "cast" else e.op
    return (f"{name}(", *_separated(e.args), ")"), _ATOM


def _separated(items: tuple[Expr, ...]) -> tuple[_Part, ...]:
    parts: list[_Part] = []
    for item in items:
        parts.extend((", ", (item, 0)) if parts else ((item, 0),))
    return tuple(parts)


# ---------------------------------------------------------------- parsing

_SIGNS: dict[type[ast.AST], str] = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.BitAnd: "and",
    ast.LShift: "shift_left",
    ast.RShift: "shift_right",
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
}


@dataclass(frozen=True)
class _Names:
    """What is in scope: scalars and buffers by name."""

    scalars: dict[str, Var]
    buffers: dict[str, Buffer]

    def plus(self, item: Var | Buffer) -> _Names:
        """With one more name."""
        if isinstance(item, Var):
            return _Names(self.scalars | {item.name: item}, self.buffers)
        return _Names(self.scalars, self.buffers | {item.name: item})


def parse(text: str) -> Function:
    """The function whose `show` is `text`. ValueError when it is no such text."""
    try:
        tree = ast.parse(text).body[0]
    except (SyntaxError, IndexError) as error:
        raise ValueError(f"not the text of a function: {error}") from error
    if not isinstance(tree, ast.FunctionDef):
        raise ValueError("not the text of a function: no def")
    names = _Names({}, {})
    for a in tree.args.args:
        if isinstance(a.annotation, ast.Name):
            names = names.plus(var(a.arg, dtype(a.annotation.id)))
    params: list[Buffer | Var] = []
    for a in tree.args.args:
        known = names.scalars.get(a.arg)
        params.append(known if known is not None else _read_buffer(a.arg, a.annotation, names))
        names = names.plus(params[-1])
    return Function(tree.name, tuple(params), _read_body(tree.body, names))


def _wrong(node: ast.AST | None) -> ValueError:
    place = f"line {node.lineno}: " if isinstance(node, (ast.expr, ast.stmt)) else ""
    return ValueError(f"{place}this means nothing in a loop program")


def _called(node: ast.AST | None) -> tuple[str, list[ast.expr]]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id, node.args
    return "", []


def _read_buffer(name: str, node: ast.expr | None, names: _Names) -> Buffer:
    space, strides = Space.PARAM, None
    word, inner = _called(node)
    if word in ("register", "scratch"):
        space, node = Space(word), inner[0]
        word, inner = _called(node)
    if word == "strided":
        node, strides = inner[0], tuple(_read(e, names) for e in inner[1:])
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
        raise _wrong(node)
    shape = _read_index(node.slice, names)
    return buffer(name, dtype(node.value.id), shape, space, strides)


def _read_index(node: ast.expr, names: _Names) -> tuple[Expr, ...]:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return tuple(_read(e, names) for e in parts)


def _read_body(body: list[ast.stmt], names: _Names) -> Stmt:
    done: list[Stmt] = []
    for i, node in enumerate(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            rest = body[i + 1 :]
            done.append(_read_scope(node.target.id, node.annotation, node.value, rest, names))
            break
        if not isinstance(node, ast.Pass):
            done.append(_read_statement(node, names))
    return block(*done)


def _read_scope(
    name: str, kind: ast.expr, value: ast.expr | None, body: list[ast.stmt], names: _Names
) -> Stmt:
    if value is None:
        new = _read_buffer(name, kind, names)
        return Alloc(new, _read_body(body, names.plus(new)))
    if not isinstance(kind, ast.Name):
        raise _wrong(kind)
    bound = var(name, dtype(kind.id))
    return Let(bound, _read(value, names), _read_body(body, names.plus(bound)))


def _read_statement(node: ast.stmt, names: _Names) -> Stmt:
    if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
        word, args = _called(node.iter)
        index = var(node.target.id)
        body = _read_body(node.body, names.plus(index))
        return For(index, _read(args[0], names), body, _LOOP_WORDS[word])
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        place = _read(node.targets[0], names)
        if isinstance(place, Load):
            return Store(place.buffer, place.index, _read(node.value, names))
    if isinstance(node, ast.If):
        orelse = _read_body(node.orelse, names) if node.orelse else None
        return If(_read(node.test, names), _read_body(node.body, names), orelse)
    if isinstance(node, ast.With) and isinstance(node.items[0].optional_vars, ast.Name):
        name, kind = node.items[0].optional_vars.id, node.items[0].context_expr
        word, args = _called(kind)
        if word in _TYPE_NAMES and isinstance(kind, ast.Call):
            return _read_scope(name, kind.func, args[0], node.body, names)
        return _read_scope(name, kind, None, node.body, names)
    raise _wrong(node)


def _read(node: ast.expr, names: _Names) -> Expr:
    if isinstance(node, ast.Name) and node.id in names.scalars:
        return names.scalars[node.id]
    if isinstance(node, ast.Constant) or _is_negative(node):
        return _read_const(node)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        if node.value.id in names.buffers:
            return Load(names.buffers[node.value.id], _read_index(node.slice, names))
    elif isinstance(node, ast.BinOp):
        return op(_SIGNS[type(node.op)], _read(node.left, names), _read(node.right, names))
    elif isinstance(node, ast.Compare):
        sign, right = _SIGNS[type(node.ops[0])], node.comparators[0]
        return op(sign, _read(node.left, names), _read(right, names))
    elif isinstance(node, ast.IfExp):
        sides = (_read(node.body, names), _read(node.orelse, names))
        return op("select", _read(node.test, names), *sides)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return op("not", _read(node.operand, names))
    elif isinstance(node, ast.Call):
        return _read_call(node, names)
    raise _wrong(node)


def _is_negative(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


def _read_const(node: ast.expr, to: DType | None = None) -> Const:
    value = ast.literal_eval(node)
    if to is not None:
        return const(float(value) if to.is_float else int(value), to)
    kind = BOOL if isinstance(value, bool) else INT64 if isinstance(value, int) else FLOAT32
    return const(value, kind)


def _read_call(node: ast.Call, names: _Names) -> Expr:
    word, args = _called(node)
    if word == "const" and isinstance(args[1], ast.Name):
        return _read_const(args[0], dtype(args[1].id))
    values = [_read(a, names) for a in args]
    if word in _TYPE_NAMES:
        return cast(values[0], dtype(word))
    return bitcast(values[0]) if word == "bitcast" else op(word, *values)
