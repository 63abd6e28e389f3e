"""Loads and stores: one scalar, one vector where lanes are adjacent, else lane by lane.

In: a buffer and its index values. Out: a value of the compute type, or a store.
Invariant: a lane that does not run touches no memory of PARAM and SCRATCH buffers; REGISTER buffers
are padded to whole vectors and always accessed plainly, so that they become registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fissile.codegen.emitter import (
    Emitter,
    Mask,
    Place,
    Value,
    add,
    integer,
    known_flags,
    literal,
    multiply,
    scalar_text,
    splat,
    vector_text,
)
from fissile.codegen.operators import binary, bits_of_bfloat16, choose, reinterpret
from fissile.codegen.text import memory_text, suffix, type_text
from fissile.codegen.transpose import columns_of, picked, rows_of, shuffled
from fissile.errors import CompileError
from fissile.ir.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT32, INT64, DType
from fissile.ir.loop import Buffer, Space

SPANNED = 4  # elements between lanes, at most, where whole vectors are read and most of them thrown away


def offset(e: Emitter, place: Place, index: list[Value]) -> Value:
    """The element's distance from the buffer's start, in elements."""
    total = integer(0)
    for i, stride in zip(index, place.strides):
        total = add(e, total, multiply(e, i, stride))
    if place.tiles == 1:
        return total
    return add(e, multiply(e, total, integer(place.tiles)), lane_index(place.tiles))


def lane_index(lanes: int) -> Value:
    """0, 1, 2, ... over the lanes."""
    return Value("", INT64, lanes, 0, integer(1)) if lanes > 1 else integer(0)


def is_contiguous(e: Emitter, buffer: Buffer, index: list[Value]) -> bool:
    """Whether the lanes' elements are neighbours in memory."""
    at = offset(e, e.places[buffer], index)
    return at.step is not None and at.step.number == 1


def address(e: Emitter, place: Place, dtype: DType, text: str, plus: int) -> str:
    """The pointer to element text + plus; the constant apart, so that it becomes a displacement."""
    pointer = place.pointer
    if text:
        step = f"getelementptr {dtype.llvm}, ptr {pointer}, i64 {text}"
        pointer = e.code.pure(step, pointer, text)
    if plus:
        step = f"getelementptr {dtype.llvm}, ptr {pointer}, i64 {plus}"
        pointer = e.code.pure(step, pointer)
    return pointer


# ---------------------------------------------------------------- storage and compute


def widen(e: Emitter, stored: str, dtype: DType, lanes: int) -> Value:
    """A stored element (or a vector of them) in its compute type."""
    if dtype is BOOL:
        kind = memory_text(dtype, lanes)
        zero = "zeroinitializer" if lanes > 1 else "0"
        return Value(e.code.pure(f"icmp ne {kind} {stored}, {zero}", stored), BOOL, lanes)
    if dtype is FLOAT16:
        kind = memory_text(dtype, lanes)
        wide = type_text(FLOAT32, lanes)
        return Value(e.code.pure(f"fpext {kind} {stored} to {wide}", stored), FLOAT32, lanes)
    if dtype is BFLOAT16:
        kind, wide = memory_text(dtype, lanes), type_text(INT32, lanes)
        bits = Value(e.code.pure(f"zext {kind} {stored} to {wide}", stored), INT32, lanes)
        return reinterpret(e, binary(e, "shl", bits, literal(16, INT32)), FLOAT32)
    return Value(stored, dtype, lanes)


def narrow(e: Emitter, v: Value, dtype: DType, lanes: int) -> str:
    """The operand text of `v` (compute type) as `lanes` stored elements."""
    text = vector_text(e, v, lanes) if lanes > 1 else scalar_text(e, v)
    kind = memory_text(dtype, lanes)
    if dtype is BOOL:
        return e.code.pure(f"zext {type_text(BOOL, lanes)} {text} to {kind}", text)
    if dtype is FLOAT16:
        return e.code.pure(f"fptrunc {type_text(FLOAT32, lanes)} {text} to {kind}", text)
    if dtype is BFLOAT16:
        half = bits_of_bfloat16(e, Value(text, FLOAT32, lanes))
        wide = type_text(INT32, lanes)
        return e.code.pure(f"trunc {wide} {half.text} to {kind}", half.text)
    return text


# ---------------------------------------------------------------- loads


def load(e: Emitter, buffer: Buffer, index: list[Value]) -> Value:
    """The element at `index`, one for every lane where the index differs between lanes."""
    place, dtype = e.places[buffer], buffer.dtype
    at = offset(e, place, index)
    if at.lanes == 1:
        pointer = address(e, place, dtype, at.text, at.plus)
        text = _read(e, place, f"load {dtype.llvm}, ptr {pointer}, align {dtype.bytes}", pointer)
        return widen(e, text, dtype, 1)
    if at.step is not None and at.step.number == 1:
        return widen(e, _load_vector(e, place, dtype, at), dtype, at.lanes)
    block = _load_strided(e, place, dtype, at) or _load_run(e, buffer, at)
    return widen(e, block or _gather(e, place, dtype, at), dtype, at.lanes)


def _read(e: Emitter, place: Place, instruction: str, *names: str) -> str:
    """A load; shared and hoisted when nothing writes the buffer. `names`: what it depends on."""
    if not place.is_frozen:
        return e.code.effect(instruction)
    return e.code.invariant(instruction, *names)


def _load_vector(e: Emitter, place: Place, dtype: DType, at: Value) -> str:
    pointer = address(e, place, dtype, at.text, at.plus)
    kind = memory_text(dtype, at.lanes)
    if e.mask is None or place.space is Space.REGISTER:
        return _read(e, place, f"load {kind}, ptr {pointer}, align {dtype.bytes}", pointer)
    name = f"llvm.masked.load.{suffix(kind)}.p0"
    mask = type_text(BOOL, at.lanes)
    e.helpers.declare(name, kind, f"ptr, {mask}, {kind}")
    return _read(
        e,
        place,
        f"call {kind} @{name}(ptr align {dtype.bytes} {pointer}, {mask} {e.mask.text}, "
        f"{kind} zeroinitializer)",
        pointer,
        e.mask.text,
    )


def _load_run(e: Emitter, buffer: Buffer, at: Value) -> str | None:
    """The lanes' elements out of rows that are read whole; None where `at` is in no run (`Emitter.runs`)."""
    known = e.runs.get((buffer, at.text, at.step), ())
    run = next((r for r in known if r[0] <= at.plus < sum(r)), None)
    if run is None:
        return None
    inside = at.plus - run[0]
    pieces = powers_of_two(run[1], at.lanes)
    first, count = next((f, c) for f, c in pieces if f <= inside < f + c)
    if count == 1:
        return None
    rows = lane_offsets(e, Value(at.text, INT64, at.lanes, run[0] + first, at.step))
    loaded = [_load_row(e, buffer, row, lane, count) for lane, row in enumerate(rows)]
    return columns_of(e, loaded, buffer.dtype, count)[inside - first]


def powers_of_two(count: int, most: int) -> list[tuple[int, int]]:
    """`count` cut into falling powers of two, none above `most`: where each begins, and its size."""
    pieces, first = [], 0
    while first < count:
        size = min(most, 1 << ((count - first).bit_length() - 1))
        pieces.append((first, size))
        first += size
    return pieces


def _load_row(e: Emitter, buffer: Buffer, at: Value, lane: int, count: int) -> str:
    """`count` neighbours for one lane; anything where the lane does not run."""
    place, dtype, mask = e.places[buffer], buffer.dtype, e.mask
    kind = memory_text(dtype, count)
    if mask is not None and mask.count is not None and lane >= mask.count:
        return "poison"
    pointer = address(e, place, dtype, at.text, at.plus)
    if mask is None or mask.count is not None:
        return _read(e, place, f"load {kind}, ptr {pointer}, align {dtype.bytes}", pointer)
    flag = lane_flag(e, mask, lane)
    flags, every = type_text(BOOL, count), splat(e, flag, BOOL, count)
    name = f"llvm.masked.load.{suffix(kind)}.p0"
    e.helpers.declare(name, kind, f"ptr, {flags}, {kind}")
    to = f"ptr align {dtype.bytes} {pointer}"
    text = f"call {kind} @{name}({to}, {flags} {every}, {kind} zeroinitializer)"
    return _read(e, place, text, pointer, every)


def lane_flag(e: Emitter, mask: Mask, lane: int) -> str:
    """An i1: whether the lane runs."""
    kind = type_text(BOOL, mask.lanes)
    return e.code.pure(f"extractelement {kind} {mask.text}, i64 {lane}", mask.text)


def _load_strided(e: Emitter, place: Place, dtype: DType, at: Value) -> str | None:
    """Lanes a small constant step apart, out of vectors that span them; None where there are none such."""
    step = None if at.step is None else at.step.number
    if step is None or not 1 <= abs(step) <= SPANNED or e.mask is not None or not place.is_frozen:
        return None
    lanes, kind = at.lanes, memory_text(dtype, at.lanes)
    span = abs(step) * (lanes - 1) + 1
    low = at.plus + min(step * (lanes - 1), 0)
    starts = [*range(0, span - lanes, lanes), span - lanes]
    where = [(lane if step > 0 else lanes - 1 - lane) * abs(step) for lane in range(lanes)]
    found, known = "poison", [-1] * lanes
    for start in starts:
        pointer = address(e, place, dtype, at.text, low + start)
        text = _read(e, place, f"load {kind}, ptr {pointer}, align {dtype.bytes}", pointer)
        here = [lanes + w - start if 0 <= w - start < lanes else k for w, k in zip(where, known)]
        found = shuffled(e, found, text, here, dtype, lanes)
        known = [-1 if h < 0 else lane for lane, h in enumerate(here)]
    return found


def lane_offsets(e: Emitter, at: Value) -> list[Value]:
    """The offset of every lane as a uniform value."""
    if at.step is not None:
        base = Value(at.text, INT64, 1, at.plus)
        return [add(e, base, multiply(e, integer(i), at.step)) for i in range(at.lanes)]
    kind = type_text(INT64, at.lanes)
    names = [
        e.code.pure(f"extractelement {kind} {at.text}, i64 {i}", at.text) for i in range(at.lanes)
    ]
    return [Value(name, INT64) for name in names]


def _gather(e: Emitter, place: Place, dtype: DType, at: Value) -> str:
    kind = memory_text(dtype, at.lanes)
    if e.mask is not None and e.mask.count is None:
        at = _in_running_lanes(e, at, e.mask)
    count = at.lanes if e.mask is None or e.mask.count is None else e.mask.count
    vector = "poison"
    for i, one in enumerate(lane_offsets(e, at)[:count]):
        pointer = address(e, place, dtype, one.text, one.plus)
        text = f"load {dtype.llvm}, ptr {pointer}, align {dtype.bytes}"
        element = _read(e, place, text, pointer)
        step = f"insertelement {kind} {vector}, {dtype.llvm} {element}, i64 {i}"
        vector = e.code.pure(step, vector, element)
    return vector


def _in_running_lanes(e: Emitter, at: Value, mask: Mask) -> Value:
    """Offsets in which a lane that does not run points where one that runs does."""
    kind = type_text(INT64, at.lanes)
    dense = vector_text(e, at, at.lanes)
    if mask.is_tail:
        first = "0"
    else:
        bits = f"i{at.lanes}"
        flat = e.code.pure(f"bitcast {type_text(BOOL, at.lanes)} {mask.text} to {bits}", mask.text)
        e.helpers.declare(f"llvm.cttz.{bits}", bits, f"{bits}, i1")
        position = e.code.pure(f"call {bits} @llvm.cttz.{bits}({bits} {flat}, i1 false)", flat)
        inside = e.code.pure(f"and {bits} {position}, {at.lanes - 1}", position)
        first = e.code.pure(f"zext {bits} {inside} to i64", inside) if at.lanes < 64 else inside
    one = e.code.pure(f"extractelement {kind} {dense}, i64 {first}", dense, first)
    running = Value(mask.text, BOOL, at.lanes)
    return choose(e, running, Value(dense, INT64, at.lanes), Value(one, INT64))


# ---------------------------------------------------------------- stores


def store(e: Emitter, buffer: Buffer, index: list[Value], v: Value) -> None:
    """buffer[index] = v in the lanes that run."""
    place, dtype = e.places[buffer], buffer.dtype
    at = offset(e, place, index)
    if at.lanes == 1:
        if v.lanes > 1:
            raise CompileError(
                "F420",
                "a vectorized loop stores different values in one element",
                reason=f"the index of {buffer.name} does not change with the loop",
            )
        pointer = address(e, place, dtype, at.text, at.plus)
        text = narrow(e, v, dtype, 1)
        e.code.line(f"store {dtype.llvm} {text}, ptr {pointer}, align {dtype.bytes}")
    elif at.step is not None and at.step.number == 1:
        _store_vector(e, buffer, index, at, v)
    else:
        e.has_scatter = True
        _scatter(e, place, dtype, at, narrow(e, v, dtype, at.lanes))


def _store_vector(e: Emitter, buffer: Buffer, index: list[Value], at: Value, v: Value) -> None:
    place, dtype = e.places[buffer], buffer.dtype
    pointer = address(e, place, dtype, at.text, at.plus)
    kind = memory_text(dtype, at.lanes)
    text = narrow(e, v, dtype, at.lanes)
    mask = e.mask
    if mask is not None and place.space is not Space.REGISTER:
        lanes = known_flags(mask.text, at.lanes)
        if lanes is not None and sum(lanes) == 1:  # LLVM 22 stores too many bytes after a trunc
            _store_lane(e, place, dtype, at, text, lanes.index(True))
            return
        flags = type_text(BOOL, at.lanes)
        name = f"llvm.masked.store.{suffix(kind)}.p0"
        e.helpers.declare(name, "void", f"{kind}, ptr, {flags}")
        to = f"ptr align {dtype.bytes} {pointer}"
        e.code.line(f"call void @{name}({kind} {text}, {to}, {flags} {mask.text})")
        return
    if mask is not None and not _rest_is_padding(place, index, mask):
        old = e.code.effect(f"load {kind}, ptr {pointer}, align {dtype.bytes}")
        flags = type_text(BOOL, at.lanes)
        choice = f"select {flags} {mask.text}, {kind} {text}, {kind} {old}"
        text = e.code.pure(choice, mask.text, text, old)
    e.code.line(f"store {kind} {text}, ptr {pointer}, align {dtype.bytes}")


def _store_lane(e: Emitter, place: Place, dtype: DType, at: Value, text: str, lane: int) -> None:
    """One lane of stored elements."""
    kind = memory_text(dtype, at.lanes)
    element = e.code.pure(f"extractelement {kind} {text}, i64 {lane}", text)
    pointer = address(e, place, dtype, at.text, at.plus + lane)
    e.code.line(f"store {dtype.llvm} {element}, ptr {pointer}, align {dtype.bytes}")


def _rest_is_padding(place: Place, index: list[Value], mask: Mask) -> bool:
    """Whether the lanes that do not run lie behind the last element of a row."""
    if place.tiles > 1:
        return mask.is_tail
    last = index[-1]
    is_row = last.text == "" and all(i.lanes == 1 for i in index[:-1])
    return mask.count is not None and is_row and last.plus + mask.count == place.extent


def _scatter(e: Emitter, place: Place, dtype: DType, at: Value, text: str) -> None:
    kind = memory_text(dtype, at.lanes)
    if e.mask is not None and e.mask.count is None:
        dense = vector_text(e, at, at.lanes)
        pointers = f"<{at.lanes} x ptr>"
        step = f"getelementptr {dtype.llvm}, ptr {place.pointer}, {type_text(INT64, at.lanes)}"
        where = e.code.pure(f"{step} {dense}", place.pointer, dense)
        flags = type_text(BOOL, at.lanes)
        name = f"llvm.masked.scatter.{suffix(kind)}.v{at.lanes}p0"
        e.helpers.declare(name, "void", f"{kind}, {pointers}, {flags}")
        to = f"{pointers} align {dtype.bytes} {where}"
        e.code.line(f"call void @{name}({kind} {text}, {to}, {flags} {e.mask.text})")
        return
    count = at.lanes if e.mask is None or e.mask.count is None else e.mask.count
    for i, one in enumerate(lane_offsets(e, at)[:count]):
        pointer = address(e, place, dtype, one.text, one.plus)
        element = e.code.pure(f"extractelement {kind} {text}, i64 {i}", text)
        e.code.line(f"store {dtype.llvm} {element}, ptr {pointer}, align {dtype.bytes}")


def store_rows(e: Emitter, buffer: Buffer, at: Value, columns: list[str]) -> None:
    """The element of every column for each lane that runs, side by side from the lane's offset `at` on.

    columns: stored vectors of `at.lanes`, no more of them than that.
    """
    place, dtype, count = e.places[buffer], buffer.dtype, len(columns)
    rows = rows_of(e, columns, dtype, at.lanes)
    running = at.lanes if e.mask is None or e.mask.count is None else e.mask.count
    is_known = e.mask is None or e.mask.count is not None
    is_dense = is_known and at.step is not None and at.step.number == count
    padded = 1 << (count - 1).bit_length()
    for lane, (one, (text, start)) in enumerate(zip(lane_offsets(e, at)[:running], rows)):
        is_covered = is_dense and lane * count + padded <= running * count  # by the rows to come
        width = padded if is_covered else count
        with _if_running(e, None if is_known else lane):
            element = picked(e, text, dtype, at.lanes, start, width)
            pointer = address(e, place, dtype, one.text, one.plus)
            kind = memory_text(dtype, width)
            e.code.line(f"store {kind} {element}, ptr {pointer}, align {dtype.bytes}")


@contextmanager
def _if_running(e: Emitter, lane: int | None) -> Iterator[None]:
    """Emission of what happens only if the lane runs; None: it does."""
    if lane is None or e.mask is None:
        yield
        return
    code, taken, done = e.code, e.code.label(), e.code.label()
    code.branch_if(lane_flag(e, e.mask, lane), taken, done)
    code.start(taken)
    with e.level(is_loop=False):
        yield
        code.branch(done)
    code.start(done)
