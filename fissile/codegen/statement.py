"""Statements of the loop IR as basic blocks; VECTORIZED and UNROLLED are expanded here.

In: a statement and the emitter's state. Out: lines in the emitter's code.
Invariant: a loop is rotated and counts with a phi; a vectorized loop is whole vectors and then one
masked (or, where masks do not work, scalar) remainder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from fissile.codegen.emitter import (
    Emitter,
    LaneFacts,
    Mask,
    Place,
    Value,
    add,
    integer,
    iota,
    scalar_text,
    subtract,
    vector_text,
)
from fissile.codegen.expression import any_lane, evaluate, narrowed, value_of
from fissile.codegen.memory import lane_index, narrow, store, store_rows
from fissile.codegen.operators import binary, negated
from fissile.codegen.runs import block_stores, pieces_of, reading_runs
from fissile.errors import CompileError
from fissile.ir.dtype import BOOL, INT32, INT64
from fissile.ir.loop import (
    Alloc,
    Block,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Kind,
    Let,
    Load,
    Op,
    Space,
    Stmt,
    Store,
    Var,
    expressions,
    row_major,
    statements,
    static_size,
    times,
    unrounded,
    walk,
)

EXPANDED_VECTORS = 8  # constant loops of at most so many vectors are written out


def emit(e: Emitter, s: Stmt) -> None:
    """Write `s`."""
    if isinstance(s, Block):
        for inner in s.body:
            emit(e, inner)
    elif isinstance(s, Store):
        e.memo = {}
        index = [evaluate(e, i) for i in s.index]
        store(e, s.buffer, index, value_of(e, unrounded(s)))
    elif isinstance(s, For):
        _emit_for(e, s)
    elif isinstance(s, If):
        _emit_if(e, s)
    elif isinstance(s, Let):
        e.memo = {}
        with e.bound(s.var, value_of(e, s.value)):
            emit(e, s.body)
    else:
        with allocated(e, s.buffer):
            emit(e, s.body)


# ---------------------------------------------------------------- loops


def _emit_for(e: Emitter, s: For) -> None:
    e.memo = {}
    extent = evaluate(e, s.extent)
    if extent.lanes > 1:
        raise CompileError(
            "F421", "a loop inside a vectorized one has an extent of its own per lane"
        )
    if s.kind is Kind.VECTORIZED and e.lanes == 1 and lane_facts(e, s).is_vectorizable:
        _emit_vectorized(e, s, extent)
    elif s.kind is Kind.UNROLLED and extent.number is not None:
        _emit_unrolled(e, s, extent.number)
    elif extent.number == 1:
        with e.bound(s.var, integer(0)):
            emit(e, s.body)
    elif extent.number is None or extent.number > 0:
        emit_loop(e, s.var, s.body, integer(0), extent)


def emit_loop(e: Emitter, var: Var, body: Stmt, start: Value, stop: Value, step: int = 1) -> None:
    """for var in range(start, stop, step): body; with step > 1 the range divides evenly."""
    code, (ready, top, done) = e.code, [e.code.label() for _ in range(3)]
    first, last = scalar_text(e, start), scalar_text(e, stop)
    if stop.number is None or start.number is None:
        code.branch_if(_less(e, first, last), ready, done)
    else:
        code.branch(ready)
    with e.level(is_loop=False):  # what does not change stands in this block, behind the test
        code.start(ready)
        with e.level(is_loop=True):
            code.branch(top)
            code.start(top)
            _emit_body(e, var, body, (first, last), (ready, top, done), step)
    code.start(done)


def _emit_body(
    e: Emitter,
    var: Var,
    body: Stmt,
    bounds: tuple[str, str],
    labels: tuple[str, str, str] | list[str],
    step: int,
) -> None:
    """The loop's own block: phi, body, and the branch back."""
    code, (first, last), (ready, top, done) = e.code, bounds, labels
    lanes = e.lanes if step > 1 else 1
    i = code.name()
    phi = len(code.current)
    code.line("")
    with e.bound(var, Value(i, INT64, lanes, 0, integer(1) if lanes > 1 else None)):
        emit(e, body)
    after = code.effect(f"add nuw nsw i64 {i}, {step}")
    again = code.effect(f"icmp slt i64 {after}, {last}")
    code.current[phi] = f"{i} = phi i64 [ {first}, %{ready} ], [ {after}, %{code.block} ]"
    code.branch_if(again, top, done)


def _less(e: Emitter, a: str, b: str) -> str:
    return e.code.effect(f"icmp slt i64 {a}, {b}")


# ---------------------------------------------------------------- unrolled loops


def _emit_unrolled(e: Emitter, s: For, count: int) -> None:
    """The body `count` times; lanes that lie apart go to and from memory in rows of neighbours."""
    blocks = block_stores(e, s, count)
    with reading_runs(e, s, count):
        for first, size in pieces_of(count, e.lanes, blocks) if blocks else [(0, count)]:
            columns: dict[Store, list[str]] = {}
            for i in range(first, first + size):
                with e.bound(s.var, integer(i)):
                    _emit_iteration(e, s.body, blocks, columns)
            for written, texts in columns.items():
                at = blocks[written]
                start = Value(at.text, INT64, at.lanes, at.plus + first, at.step)
                store_rows(e, written.buffer, start, texts)


def _emit_iteration(
    e: Emitter, body: Stmt, blocks: dict[Store, Value], columns: dict[Store, list[str]]
) -> None:
    if not blocks:
        emit(e, body)
        return
    for inner in body.body if isinstance(body, Block) else (body,):
        if isinstance(inner, Store) and inner in blocks:
            e.memo = {}
            dtype = inner.buffer.dtype
            text = narrow(e, value_of(e, unrounded(inner)), dtype, e.lanes)
            columns.setdefault(inner, []).append(text)
        else:
            emit(e, inner)


# ---------------------------------------------------------------- vectorized loops


def lane_facts(e: Emitter, s: For) -> LaneFacts:
    """The facts about `s`, found once however often an unrolled loop repeats it."""
    if (known := e.lane_facts.get(id(s))) is None:
        known = LaneFacts(
            _is_vectorizable(s),
            e.target.lanes(data_bits(s.body) // 8),
            _touches_registers(s),
            _masks_work(e, s),
        )
        e.lane_facts[id(s)] = known
    return known


def _is_vectorizable(s: For) -> bool:
    """Whether the lanes of `s` can run together: the same control flow, no scratch of their own."""
    varying = {s.var}
    private = {a.buffer for a in statements(s.body) if isinstance(a, Alloc)}
    for inner in statements(s.body):
        if isinstance(inner, Let) and _depends(inner.value, varying):
            varying.add(inner.var)
        elif isinstance(inner, For) and _depends(inner.extent, varying):
            return False
        elif isinstance(inner, Store):
            moves = any(_depends(i, varying) for i in inner.index)
            if not moves and inner.buffer not in private:
                return False
    return all(b.space is Space.REGISTER for b in private)


def _depends(x: Expr, varying: set[Var]) -> bool:
    return any(isinstance(n, Load) or n in varying for n in walk(x))


def data_bits(body: Stmt) -> int:
    """The widest compute element among what `body` loads, stores and computes (not its indices)."""
    widest = 8
    seen: set[Expr] = set()
    for s in statements(body):
        if isinstance(s, Store):
            widest = max(widest, s.buffer.dtype.compute.bits)
    for x in expressions(body):
        if x.dtype is INT64:
            continue
        stack = [x]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if isinstance(node, (Load, Op)) and node.dtype is not INT64:
                widest = max(widest, 8 if node.dtype is BOOL else node.dtype.bits)
            if isinstance(node, Op):
                stack.extend(node.args)
    return widest


def _emit_vectorized(e: Emitter, s: For, extent: Value) -> None:
    facts = lane_facts(e, s)
    full = facts.lanes
    if extent.number is None:
        _vectors_of_unknown(e, s, extent, facts)
        return
    count, at = extent.number, 0
    whole = count // full
    if whole > EXPANDED_VECTORS and not facts.needs_offsets:
        _vector_loop(e, s, integer(whole * full), full)
        at = whole * full
    while at < count:
        rest = count - at
        lanes = full
        while lanes // 2 >= rest:
            lanes //= 2
        if lanes > rest and not facts.has_masks:
            lanes = 1 << (rest.bit_length() - 1)
        _one_vector(e, s, integer(at), lanes, min(rest, lanes))
        at += lanes


def _touches_registers(s: For) -> bool:
    """Whether the lane picks elements of a REGISTER buffer, which then need constant offsets."""
    inside = {a.buffer for a in statements(s.body) if isinstance(a, Alloc)}
    for x in statements(s.body):
        if isinstance(x, Store) and _is_outer_register(x.buffer, inside):
            return True
    loads = (n for x in expressions(s.body) for n in walk(x) if isinstance(n, Load))
    return any(_is_outer_register(n.buffer, inside) for n in loads)


def _is_outer_register(buffer: Buffer, inside: set[Buffer]) -> bool:
    return buffer.space is Space.REGISTER and buffer not in inside


def _masks_work(e: Emitter, s: For) -> bool:
    """Whether masked access to every element width in `s` is one instruction."""
    if "avx512bw" in e.target.features:
        return True
    used = {x.buffer for x in statements(s.body) if isinstance(x, Store)}
    used |= {n.buffer for x in expressions(s.body) for n in walk(x) if isinstance(n, Load)}
    return all(b.dtype.bits >= 32 for b in used if b.space is not Space.REGISTER)


def _one_vector(e: Emitter, s: For, at: Value, lanes: int, count: int) -> None:
    """Iterations at .. at + count - 1 as one vector of `lanes`."""
    mask = None
    if count < lanes:
        flags = ", ".join(f"i1 {'true' if i < count else 'false'}" for i in range(lanes))
        mask = Mask(f"<{flags}>", lanes, count)
    with _lanes(e, lanes, mask), e.bound(s.var, add(e, at, lane_index(lanes))):
        emit(e, s.body)


def _lanes(e: Emitter, lanes: int, mask: Mask | None) -> ExitStack:
    stack = ExitStack()
    outer = e.lanes
    stack.callback(setattr, e, "lanes", outer)
    stack.enter_context(e.masked(mask))
    e.lanes = lanes
    return stack


def _vector_loop(e: Emitter, s: For, stop: Value, lanes: int) -> None:
    with _lanes(e, lanes, None):
        emit_loop(e, s.var, s.body, integer(0), stop, lanes)


def _vectors_of_unknown(e: Emitter, s: For, extent: Value, facts: LaneFacts) -> None:
    lanes = facts.lanes
    whole = binary(e, "and", extent, integer(-lanes))
    rest = subtract(e, extent, whole)
    e.has_scatter, before = False, e.has_scatter
    _vector_loop(e, s, whole, lanes)
    scattered, e.has_scatter = e.has_scatter, before or e.has_scatter
    if lanes == 1:
        return
    if scattered or not facts.has_masks:
        emit_loop(e, s.var, s.body, whole, extent)
        return
    code, taken, done = e.code, e.code.label(), e.code.label()
    with e.level(is_loop=False):
        code.branch_if(_less(e, "0", scalar_text(e, rest)), taken, done)
        code.start(taken)
        small = e.code.pure(f"trunc i64 {scalar_text(e, rest)} to i32", rest.text)
        limit = Value(small, INT32)
        lane = Value(iota(lanes, "i32"), INT32, lanes)
        flags = binary(e, "icmp ult", lane, limit, BOOL)
        mask = Mask(vector_text(e, flags, lanes), lanes)
        with _lanes(e, lanes, mask), e.bound(s.var, add(e, whole, lane_index(lanes))):
            emit(e, s.body)
        code.branch(done)
    code.start(done)


# ---------------------------------------------------------------- branches


def _emit_if(e: Emitter, s: If) -> None:
    e.memo = {}
    c = value_of(e, s.condition)
    if c.text in ("true", "false"):
        chosen = s.then if c.text == "true" else s.orelse
        if chosen is not None:
            emit(e, chosen)
    elif c.lanes == 1:
        _emit_branches(e, c.text, s.then, s.orelse)
    else:
        outer = e.mask
        _emit_masked(e, narrowed(e, c), s.then)
        if s.orelse is not None:
            e.mask = outer
            _emit_masked(e, narrowed(e, negated(e, c)), s.orelse)


def _emit_branches(e: Emitter, condition: str, then: Stmt, orelse: Stmt | None) -> None:
    code, done = e.code, e.code.label()
    yes = code.label()
    no = done if orelse is None else code.label()
    code.branch_if(condition, yes, no)
    for label, side in ((yes, then), (no, orelse)):
        if side is None:
            continue
        code.start(label)
        with e.level(is_loop=False):
            emit(e, side)
            code.branch(done)
    code.start(done)


def _emit_masked(e: Emitter, mask: Mask, body: Stmt) -> None:
    code, taken, done = e.code, e.code.label(), e.code.label()
    code.branch_if(any_lane(e, mask), taken, done)
    code.start(taken)
    with e.masked(mask), e.level(is_loop=False):
        emit(e, body)
        code.branch(done)
    code.start(done)


# ---------------------------------------------------------------- buffers


@contextmanager
def allocated(e: Emitter, b: Buffer) -> Iterator[None]:
    """Emission in which REGISTER or SCRATCH buffer `b` exists."""
    outer = e.scratch
    if b.space is Space.REGISTER:
        e.places[b] = _registers(e, b)
    else:
        e.places[b], e.scratch = _scratch(e, b)
    yield
    e.scratch = outer


def _registers(e: Emitter, b: Buffer) -> Place:
    """Rows padded to whole vectors, and one vector more, so that no access needs a mask."""
    if static_size(b) is None:
        raise CompileError("F422", "a register buffer has no constant shape")
    shape = [x.payload for x in b.shape if isinstance(x, Const) and isinstance(x.payload, int)]
    full = e.target.lanes(b.dtype.compute.bytes)
    last = shape[-1] if shape else 1
    row = -(-last // full) * full if last > full else 1 << max(last - 1, 0).bit_length()
    steps = row_major(tuple(Const(x, INT64) for x in [*shape[:-1], row])) if shape else ()
    tiles = e.lanes
    count = row * tiles
    for extent in shape[:-1]:
        count *= extent
    count += full if tiles == 1 and last > 1 else 0
    pointer = e.code.name()
    e.code.depth[pointer] = 0
    e.code.allocas.append(f"{pointer} = alloca [{count} x {b.dtype.llvm}], align 64")
    strides = tuple(evaluate(e, x) for x in steps)
    return Place(pointer, strides, b.space, False, tiles, last)


def _scratch(e: Emitter, b: Buffer) -> tuple[Place, Value]:
    """The buffer's place and where the next one starts, in bytes."""
    strides = tuple(evaluate(e, x) for x in row_major(b.shape))
    text = scalar_text(e, e.scratch)
    pointer = e.code.pure(f"getelementptr i8, ptr %scratch, i64 {text}", text)
    end = add(e, e.scratch, _bytes(e, b))
    rounded = binary(e, "and", add(e, end, integer(63)), integer(-64))
    if end.number is not None:
        rounded = integer((end.number + 63) // 64 * 64)
    return Place(pointer, strides, b.space), rounded


def _bytes(e: Emitter, b: Buffer) -> Value:
    total = Const(b.dtype.bytes, INT64)
    steps = row_major((*b.shape, total))
    return evaluate(e, times(b.shape[0], steps[0]) if b.shape else total)
