"""The stitched program: which words every launch gets, and the code that computes those that depend on the shape.

In: a plan, its kernels lowered, and where constants lie. Out: the launches, patches and template of `plan.json`
(see runtime/plan.py) and the loop function `bind`, which turns the values of the free dimensions into slots. So the
runtime needs no symbolic algebra, and a call at a known shape computes nothing (DESIGN 3.8).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fissile.ir import loop as L
from fissile.ir.dim import (
    Dim,
    DimLike,
    FloorDiv,
    Min,
    Mod,
    Symbol,
    Truncated,
    max_,
    min_,
    solve,
    symbols,
    terms,
)
from fissile.ir.dim_float import LARGEST, fold
from fissile.ir.dim_terms import Atom
from fissile.ir.dtype import FLOAT64, INT64
from fissile.ir.graph import Graph, Guard, Node, plain_symbol

ARENA, WEIGHTS, FIRST_INPUT = 0, 1, 2
BIND = "bind_slots"
_UNBOUNDED = 1 << 62
_LEAST = 64  # bytes of a place
_Where = tuple[int, int, int]


@dataclass(frozen=True)
class Launch:
    """A kernel to be launched: its function's name, the parameters, the task count, its step and ONNX nodes.

    work: bytes of weights, other bytes and operations at least, for reports.
    """

    kernel: str
    arguments: tuple[Node | DimLike, ...]
    tasks: DimLike
    step: int
    nodes: tuple[str, ...]
    work: tuple[DimLike, ...] = ()


@dataclass(frozen=True)
class Call:
    """An operator that runs in Python: name, operator, number of its model, its step, and the tensors it knows.

    provider: the package that runs it, if not ours.
    """

    name: str
    operator: str
    model: int
    step: int
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    provider: str = ""


@dataclass(frozen=True)
class Memory:
    """Where tensors are: byte offsets of constants, places of intermediates and the sizes of the places.

    levels: of the places, ascending (see `fissile.orchestrate.liveness.Arena`).
    """

    weights: Mapping[Node, int]
    place: Mapping[Node, int]
    sizes: Sequence[tuple[DimLike, ...]]
    scratch: Sequence[DimLike]
    levels: Sequence[int] = ()


@dataclass
class _Slots:
    """Slots as they are handed out: numbers known now, and those `bind` computes.

    late: for every symbol that depends on data, how many calls must have returned. levels: ditto for every slot.
    """

    late: Mapping[str, int]
    template: list[int] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)
    computed: list[tuple[int, DimLike]] = field(default_factory=list)
    known: dict[DimLike, int] = field(default_factory=dict)

    def add(self, value: DimLike, level: int = 0) -> int:
        """A new slot that holds `value`, of its own level or of the given one, if that is higher."""
        slot = len(self.template)
        self.template.append(0 if isinstance(value, Dim) else value)
        self.levels.append(max(_level((value,), self.late), level))
        if isinstance(value, Dim):
            self.computed.append((slot, value))
        return slot

    def shared(self, value: DimLike) -> int:
        """A slot that holds `value`, shared by all who only read it."""
        if value not in self.known:
            self.known[value] = self.add(value)
        return self.known[value]


def stitch(
    graph: Graph, launches: Sequence[Launch], memory: Memory, calls: Sequence[Call] = ()
) -> tuple[dict[str, Any], L.Function]:
    """(what `plan.json` says but for its entries, the function that computes the slots).

    Calls split the launches into segments. What is known before call k has level k at most; `bind` runs again after
    every call with what is known then, and words of a higher level mean nothing yet.
    """
    late = _late_symbols(graph, calls)
    levels = {row["name"]: row["call"] + 1 for row in late}
    slots = _Slots(levels)
    zero = slots.shared(0)
    reached = memory.levels or [0] * len(memory.sizes)
    offsets = [slots.add(0, level) for level in reached]
    sums = [(slots.add(0, level), slots.add(0, level)) for level in range(len(calls) + 1)]
    where = _addresses(graph, memory, offsets, zero, slots)
    patches: list[list[int]] = []
    rows: list[dict[str, Any]] = []
    for launch in launches:
        row = _launch(launch, where, patches, slots)
        _check_known(launch, slots.levels[row["first"] : row["tasks"] + 1], calls)
        rows.append(row)
    inputs = [_tensor(n.attr("name"), n, slots, levels) for n in graph.inputs]
    outputs = [_tensor(name, n, slots, levels) for name, n in graph.outputs]
    free = _free_symbols(graph)
    names = [*free, *levels]
    guards = [_guard(g, slots, levels) for g in graph.guards if _is_known(g, names)]
    foreign = [_call(call, where, slots) for call in calls]
    function = _bind(names, slots, memory, offsets, sums, levels)
    plan = {
        "format": [1, 0],
        "symbols": list(free.values()),
        "inputs": inputs,
        "outputs": outputs,
        "slots": len(slots.template),
        "template": slots.template,
        "patches": patches,
        "launches": rows,
        "guards": guards,
        "arena": sums[0][0],
        "scratch": sums[0][1],
    }
    if calls:
        pairs = [list(pair) for pair in sums]
        plan |= {"levels": slots.levels, "late": late, "calls": foreign, "sums": pairs}
    return plan, function


def _launch(
    launch: Launch,
    where: Mapping[Node, _Where],
    patches: list[list[int]],
    slots: _Slots,
) -> dict[str, Any]:
    """The launch's row: its arguments have slots of their own, one after the other, and the task count the next."""
    first = len(slots.template)
    for argument in launch.arguments:
        if isinstance(argument, Node):
            base, offset, level = where[argument]
            patches.append([slots.add(0, level), base, offset])
        else:
            slots.add(argument)
    return {
        "kernel": launch.kernel,
        "first": first,
        "arguments": len(launch.arguments),
        "tasks": slots.add(launch.tasks),
        "step": launch.step,
        "nodes": list(launch.nodes),
        "work": [slots.shared(d) for d in launch.work],
    }


def _check_known(launch: Launch, levels: Sequence[int], calls: Sequence[Call]) -> None:
    """ValueError unless all that the launch depends on is known by the calls before its step."""
    returned = sum(call.step < launch.step for call in calls)
    if max(levels) > returned:
        name = ", ".join(launch.nodes) or launch.kernel
        raise ValueError(f"{name} would run after {returned} calls, and needs {max(levels)}")


def _addresses(
    graph: Graph, memory: Memory, offsets: Sequence[int], zero: int, slots: _Slots
) -> dict[Node, _Where]:
    """For every stored tensor: (base, slot of the byte offset, level from which on it has an address)."""
    where = {n: (WEIGHTS, slots.shared(offset), 0) for n, offset in memory.weights.items()}
    where.update({n: (FIRST_INPUT + k, zero, 0) for k, n in enumerate(graph.inputs)})
    first = FIRST_INPUT + len(graph.inputs)
    for k, (_, n) in enumerate(graph.outputs):
        where[n] = (first + k, zero, _level(n.shape, slots.late))
    for n, p in memory.place.items():
        where[n] = (ARENA, offsets[p], slots.levels[offsets[p]])
    return where


def _late_symbols(graph: Graph, calls: Sequence[Call]) -> list[dict[str, Any]]:
    """Where the number of every symbol that depends on data is read: call, which of its outputs, axis."""
    found: dict[str, dict[str, Any]] = {}
    for k, call in enumerate(calls):
        for number, node in enumerate(call.outputs):
            for axis, extent in enumerate(node.shape):
                name = plain_symbol(extent) if isinstance(extent, Dim) else None
                if name is not None and name in graph.late and name not in found:
                    found[name] = {"name": name, "call": k, "output": number, "axis": axis}
    return list(found.values())


def _call(
    call: Call, where: Mapping[Node, _Where], slots: _Slots
) -> dict[str, Any]:
    def operand(node: Node) -> dict[str, Any]:
        base, offset, _ = where[node]
        extents = [slots.shared(d) for d in node.shape]
        return {"dtype": node.dtype.name, "base": base, "offset": offset, "slots": extents}

    return {
        "name": call.name,
        "operator": call.operator,
        "model": call.model,
        **({"provider": call.provider} if call.provider else {}),
        "step": call.step,
        "inputs": [operand(n) for n in call.inputs],
        "outputs": [{**operand(n), "output": n.attr("output")} for n in call.outputs],
    }


def _is_known(guard: Guard, names: Sequence[str]) -> bool:
    """Whether a call ever knows both sides; if not, what the guard was for is not computed."""
    return all(s.name in names for d in (guard.left, guard.right) for s in symbols(d))


def _guard(guard: Guard, slots: _Slots, levels: Mapping[str, int]) -> dict[str, Any]:
    return {
        "left": slots.shared(guard.left),
        "right": slots.shared(guard.right),
        "relation": "eq",
        "message": guard.message,
        "level": _level((guard.left, guard.right), levels),
    }


def _level(extents: Iterable[DimLike], levels: Mapping[str, int]) -> int:
    return max((levels.get(s.name, 0) for d in extents for s in symbols(d)), default=0)


def _tensor(
    name: str, node: Node, slots: _Slots, levels: Mapping[str, int]
) -> dict[str, Any]:
    return {
        "level": _level(node.shape, levels),
        "name": name,
        "dtype": node.dtype.name,
        "shape": [_shown(d) for d in node.shape],
        "slots": [slots.shared(d) for d in node.shape],
    }


def _shown(d: DimLike) -> int | str | None:
    """How an extent is shown: unnamed ones as None."""
    if isinstance(d, int):
        return d
    free = symbols(d)
    if len(free) == 1 and solve(d) is not None and ":" in free[0].name:
        return None
    return free[0].name if solve(d) == (free[0], 1, 0) else str(d)


def _free_symbols(graph: Graph) -> dict[str, dict[str, Any]]:
    """Where the value of every free dimension is read; ValueError when no input gives it."""
    found: dict[str, dict[str, Any]] = {}
    for k, node in enumerate(graph.inputs):
        for axis, extent in enumerate(node.shape):
            solved = solve(extent) if isinstance(extent, Dim) else None
            if solved is not None and solved[0].name not in found:
                found[solved[0].name] = {
                    "name": solved[0].name,
                    "input": k,
                    "axis": axis,
                    "scale": solved[1],
                    "offset": solved[2],
                }
    wanted = {s.name for n in graph.inputs for d in n.shape for s in symbols(d)}
    if missing := sorted(wanted - set(found)):
        raise ValueError(f"no input gives the dimension {missing[0]}")
    return found


# ---------------------------------------------------------------- bind


def _bind(
    free: Sequence[str],
    slots: _Slots,
    memory: Memory,
    offsets: Sequence[int],
    sums: Sequence[tuple[int, int]],
    levels: Mapping[str, int],
) -> L.Function:
    """The function of (symbols, slots) that fills in what depends on the shape.

    sums: per level, the slots of the arena's bytes up to the places of that level, and of the scratch bytes.
    """
    given = L.buffer("symbols", INT64, (_UNBOUNDED,), strides=(1,))
    words = L.buffer("slots", INT64, (_UNBOUNDED,), strides=(1,))
    names: dict[str, L.Expr] = {name: L.Load(given, (L.const(k),)) for k, name in enumerate(free)}

    def store(slot: int, value: L.Expr) -> L.Stmt:
        return L.Store(words, (L.const(slot),), value)

    body: list[L.Stmt] = [store(slot, dim_expr(d, names)) for slot, d in slots.computed]
    position: L.Expr = L.const(0)
    place = 0
    for level, (arena, scratch) in enumerate(sums):
        while place < len(offsets) and (memory.levels or [0] * len(offsets))[place] <= level:
            body.append(store(offsets[place], position))
            reached = L.Load(words, (L.const(offsets[place]),))
            extents = memory.sizes[place]
            # Never empty: so a place whose level is not reached begins where the arena ends, and no other does.
            position = L.plus(reached, _largest([dim_expr(d, names) for d in extents], _LEAST))
            place += 1
        body.append(store(arena, position))
        known = [d for d in memory.scratch if _level((d,), levels) <= level]
        body.append(store(scratch, _largest([dim_expr(d, names) for d in known])))
    return L.Function(BIND, (given, words), L.block(*body))


def _largest(values: Sequence[L.Expr], least: int = 0) -> L.Expr:
    result: L.Expr = L.const(least)
    for value in dict.fromkeys(values):
        result = _extremum("max", result, value)
    return result


def dim_expr(d: DimLike, names: Mapping[str, L.Expr]) -> L.Expr:
    """An extent as int64 arithmetic over the values of its symbols."""
    if isinstance(d, int):
        return L.const(d)
    result: L.Expr = L.const(0)
    for scale, atoms in terms(d):
        term: L.Expr = L.const(scale)
        for atom in atoms:
            term = L.times(term, _atom_expr(atom, names))
        result = L.plus(result, term)
    return result


def _atom_expr(atom: Atom, names: Mapping[str, L.Expr]) -> L.Expr:
    if isinstance(atom, Symbol):
        return names[atom.name]
    if isinstance(atom, Truncated):
        return _truncated_expr(atom, names)
    if isinstance(atom, FloorDiv):
        return L.quotient(dim_expr(atom.num, names), dim_expr(atom.den, names))
    if isinstance(atom, Mod):
        return L.remainder(dim_expr(atom.num, names), dim_expr(atom.den, names))
    name = "min" if isinstance(atom, Min) else "max"
    values = [dim_expr(a, names) for a in atom.args]
    result = values[0]
    for value in values[1:]:
        result = _extremum(name, result, value)
    return result


def _truncated_expr(atom: Truncated, names: Mapping[str, L.Expr]) -> L.Expr:
    """The steps in machine floats; NaN is 0, and what is too large for an extent is cut."""
    value = fold(
        atom.steps,
        [dim_expr(a, names) for a in atom.args],
        lambda number: L.const(number, FLOAT64),
        L.cast,
        L.op,
    )
    low, high = L.const(-float(LARGEST), value.dtype), L.const(float(LARGEST), value.dtype)
    cut = L.op("min", L.op("max", value, low), high)
    is_number = L.op("eq", value, value)
    return L.cast(L.op("select", is_number, cut, L.const(0.0, value.dtype)), INT64)


def _extremum(name: str, a: L.Expr, b: L.Expr) -> L.Expr:
    if isinstance(a, L.Const) and isinstance(b, L.Const):
        pick = max if name == "max" else min
        return L.const(pick(int(a.value), int(b.value)))
    return L.op(name, a, b)


def expr_dim(e: L.Expr, values: Mapping[L.Expr, DimLike]) -> DimLike:
    """An int64 expression over the parameters of a function as an extent, the parameters being `values`."""
    if isinstance(e, L.Const):
        return int(e.value)
    if e in values:
        return values[e]
    if not isinstance(e, L.Op) or e.op not in _ON_EXTENTS:
        raise ValueError(f"{e} is not arithmetic on extents")
    return _ON_EXTENTS[e.op](*(expr_dim(a, values) for a in e.args))


_ON_EXTENTS: Mapping[str, Callable[[DimLike, DimLike], DimLike]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": min_,
    "max": max_,
}


def bind_module(text: str) -> str:
    """The module of the bind function, with `fissile_bind(symbols, slots)`, which calls it with its two words.

    Sums and products saturate: a size that is no 64-bit number is more memory than there is, never little.
    """
    for operation, call in _SATURATING.items():
        text, count = re.subn(rf"= {operation} i64 (\S+), (\S+)$", rf"= call i64 {call}", text, flags=re.M)
        text += f"declare i64 @{_INTRINSICS[operation]}\n" if count else ""
    return f"""{text}
define hidden void @fissile_bind(ptr %symbols, ptr %slots) {{
  %words = alloca [2 x ptr]
  store ptr %symbols, ptr %words
  %second = getelementptr ptr, ptr %words, i64 1
  store ptr %slots, ptr %second
  call void @{BIND}(ptr %words, i64 0, i64 1, ptr null)
  ret void
}}
"""


_SATURATING = {
    "add": r"@llvm.sadd.sat.i64(i64 \1, i64 \2)",
    "sub": r"@llvm.ssub.sat.i64(i64 \1, i64 \2)",
    "mul": r"@llvm.smul.fix.sat.i64(i64 \1, i64 \2, i32 0)",
}
_INTRINSICS = {
    "add": "llvm.sadd.sat.i64(i64, i64)",
    "sub": "llvm.ssub.sat.i64(i64, i64)",
    "mul": "llvm.smul.fix.sat.i64(i64, i64, i32)",
}
