"""The stitched program: which words every launch gets, and the code that computes those that depend on the shape.

In: a plan, its kernels lowered, and where constants lie. Out: the launches, patches and template of `plan.json`
(see runtime/plan.py) and the loop function `bind`, which turns the values of the free dimensions into slots. So the
runtime needs no symbolic algebra, and a call at a known shape computes nothing (DESIGN 3.8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fissile.ir import loop as L
from fissile.ir.dim import (
    Dim,
    DimLike,
    FloorDiv,
    Max,
    Min,
    Mod,
    Symbol,
    max_,
    min_,
    solve,
    symbols,
    terms,
)
from fissile.ir.dtype import INT64
from fissile.ir.graph import Graph, Node

ARENA, WEIGHTS, FIRST_INPUT = 0, 1, 2
BIND = "bind_slots"
_UNBOUNDED = 1 << 62


@dataclass(frozen=True)
class Launch:
    """A kernel to be launched: its function's name, the parameters, the task count, its step and ONNX nodes."""

    kernel: str
    arguments: tuple[Node | DimLike, ...]
    tasks: DimLike
    step: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Memory:
    """Where tensors are: byte offsets of constants, places of intermediates and the sizes of the places."""

    weights: Mapping[Node, int]
    place: Mapping[Node, int]
    sizes: Sequence[tuple[DimLike, ...]]
    scratch: Sequence[DimLike]


@dataclass
class _Slots:
    """Slots as they are handed out: numbers known now, and those `bind` computes."""

    template: list[int] = field(default_factory=list)
    computed: list[tuple[int, DimLike]] = field(default_factory=list)
    known: dict[DimLike, int] = field(default_factory=dict)

    def add(self, value: DimLike) -> int:
        """A new slot that holds `value`."""
        slot = len(self.template)
        self.template.append(0 if isinstance(value, Dim) else value)
        if isinstance(value, Dim):
            self.computed.append((slot, value))
        return slot

    def shared(self, value: DimLike) -> int:
        """A slot that holds `value`, shared by all who only read it."""
        if value not in self.known:
            self.known[value] = self.add(value)
        return self.known[value]


def stitch(graph: Graph, launches: Sequence[Launch], memory: Memory) -> tuple[dict[str, Any], L.Function]:
    """(what `plan.json` says but for its entries, the function that computes the slots)."""
    slots = _Slots()
    zero = slots.shared(0)
    offsets = [slots.add(0) for _ in memory.sizes]
    arena, scratch = slots.add(0), slots.add(0)
    where = _addresses(graph, memory, offsets, zero, slots)
    patches: list[list[int]] = []
    rows: list[dict[str, Any]] = []
    for launch in launches:
        first = len(slots.template)
        for argument in launch.arguments:
            if isinstance(argument, Node):
                base, offset = where[argument]
                patches.append([slots.add(0), base, offset])
            else:
                slots.add(argument)
        tasks = slots.add(launch.tasks)
        row = {"kernel": launch.kernel, "first": first, "tasks": tasks, "step": launch.step}
        rows.append({**row, "nodes": list(launch.nodes)})
    inputs = [_tensor(n.attr("name"), n, slots) for n in graph.inputs]
    outputs = [_tensor(name, n, slots) for name, n in graph.outputs]
    free = _free_symbols(graph)
    guards = [
        {
            "left": slots.shared(g.left),
            "right": slots.shared(g.right),
            "relation": "eq",
            "message": g.message,
        }
        for g in graph.guards
    ]
    function = _bind(free, slots, memory, offsets, arena, scratch)
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
        "arena": arena,
        "scratch": scratch,
    }
    return plan, function


def _addresses(
    graph: Graph, memory: Memory, offsets: Sequence[int], zero: int, slots: _Slots
) -> dict[Node, tuple[int, int]]:
    """For every stored tensor: (base, slot of the byte offset)."""
    where = {n: (WEIGHTS, slots.shared(offset)) for n, offset in memory.weights.items()}
    where.update({n: (FIRST_INPUT + k, zero) for k, n in enumerate(graph.inputs)})
    first = FIRST_INPUT + len(graph.inputs)
    where.update({n: (first + k, zero) for k, (_, n) in enumerate(graph.outputs)})
    where.update({n: (ARENA, offsets[p]) for n, p in memory.place.items()})
    return where


def _tensor(name: str, node: Node, slots: _Slots) -> dict[str, Any]:
    return {
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
    free: Mapping[str, Mapping[str, Any]],
    slots: _Slots,
    memory: Memory,
    offsets: Sequence[int],
    arena: int,
    scratch: int,
) -> L.Function:
    """The function of (symbols, slots) that fills in what depends on the shape."""
    given = L.buffer("symbols", INT64, (_UNBOUNDED,), strides=(1,))
    words = L.buffer("slots", INT64, (_UNBOUNDED,), strides=(1,))
    names = {name: L.Load(given, (L.const(k),)) for k, name in enumerate(free)}

    def store(slot: int, value: L.Expr) -> L.Stmt:
        return L.Store(words, (L.const(slot),), value)

    body: list[L.Stmt] = [store(slot, dim_expr(d, names)) for slot, d in slots.computed]
    position: L.Expr = L.const(0)
    for slot, sizes in zip(offsets, memory.sizes):
        body.append(store(slot, position))
        reached = L.Load(words, (L.const(slot),))
        position = L.plus(reached, _largest([dim_expr(d, names) for d in sizes]))
    body.append(store(arena, position))
    body.append(store(scratch, _largest([dim_expr(d, names) for d in memory.scratch])))
    return L.Function(BIND, (given, words), L.block(*body))


def _largest(values: Sequence[L.Expr]) -> L.Expr:
    result: L.Expr = L.const(0)
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


def _atom_expr(atom: Symbol | FloorDiv | Mod | Min | Max, names: Mapping[str, L.Expr]) -> L.Expr:
    if isinstance(atom, Symbol):
        return names[atom.name]
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


def bind_entry() -> str:
    """LLVM text of `fissile_bind(symbols, slots)`, which calls the bind function with its two words."""
    return f"""
define hidden void @fissile_bind(ptr %symbols, ptr %slots) {{
  %words = alloca [2 x ptr]
  store ptr %symbols, ptr %words
  %second = getelementptr ptr, ptr %words, i64 1
  store ptr %slots, ptr %second
  call void @{BIND}(ptr %words, i64 0, i64 1, ptr null)
  ret void
}}
"""
