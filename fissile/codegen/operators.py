"""The scalar operators as LLVM instructions: the emitter's column beside `SCALAR_OPS` (ir.scalar).

In: an operator and values of one compute type, uniform or vectors. Out: the result's value.
Invariant: nothing here traps or is poison, whatever the operands are, so a masked-off lane may hold
anything; no fast-math flags, no contraction (DESIGN 1).
"""

from __future__ import annotations

from collections.abc import Callable

from fissile.codegen.emitter import (
    Emitter,
    Routine,
    Value,
    add,
    boolean,
    integer,
    is_linear,
    lane_flags,
    literal,
    multiply,
    operands,
    subtract,
)
from fissile.codegen.math import CIRCULAR, UNARY
from fissile.codegen.text import memory_text, suffix, type_text
from fissile.ir.dtype import BOOL, FLOAT16, FLOAT32, FLOAT64, INT32, INT64, DType

Emit = Callable[[Emitter, list[Value]], Value]
OPERATORS: dict[str, Emit] = {}


def binary(e: Emitter, instruction: str, a: Value, b: Value, result: DType | None = None) -> Value:
    """One two-operand instruction."""
    lanes, (x, y) = operands(e, a, b)
    text = e.code.pure(f"{instruction} {type_text(a.dtype, lanes)} {x}, {y}", x, y)
    return Value(text, result or a.dtype, lanes)


def intrinsic(e: Emitter, name: str, *values: Value, flags: str = "") -> Value:
    """A call of the overloaded intrinsic `llvm.<name>`; `flags`: constant operands at the end."""
    lanes, texts = operands(e, *values)
    kind = type_text(values[0].dtype, lanes)
    full = f"llvm.{name}.{suffix(kind)}"
    extra = f", {flags}" if flags else ""
    types = ", ".join([kind] * len(texts) + ([flags.split()[0]] if flags else []))
    e.helpers.declare(full, kind, types)
    inside = ", ".join(f"{kind} {t}" for t in texts)
    text = e.code.pure(f"call {kind} @{full}({inside}{extra})", *texts)
    return Value(text, values[0].dtype, lanes)


def routine(e: Emitter, name: str, *values: Value) -> Value:
    """A call of the module's own function for operator `name`."""
    lanes, texts = operands(e, *values)
    dtype = values[0].dtype
    wanted = Routine(name, dtype, lanes)
    e.helpers.routines[wanted] = None
    kind = type_text(dtype, lanes)
    inside = ", ".join(f"{kind} {t}" for t in texts)
    return Value(e.code.pure(f"call {kind} @{wanted.name}({inside})", *texts), dtype, lanes)


def choose(e: Emitter, condition: Value, a: Value, b: Value) -> Value:
    """condition ? a : b with both sides evaluated."""
    if condition.text in ("true", "false"):
        return a if condition.text == "true" else b
    if a == b:
        return a
    if condition.lanes == 1:
        lanes, (x, y) = operands(e, a, b)
        kind = "i1"
        c = condition.text
    else:
        lanes, (c, x, y) = operands(e, condition, a, b)
        kind = type_text(BOOL, lanes)
    vector = type_text(a.dtype, lanes)
    text = e.code.pure(f"select {kind} {c}, {vector} {x}, {vector} {y}", c, x, y)
    return Value(text, a.dtype, lanes)


def negated(e: Emitter, v: Value) -> Value:
    """not v on bool."""
    if v.text in ("true", "false"):
        return boolean(v.text == "false")
    return binary(e, "xor", v, boolean(True))


def compare(e: Emitter, relation: str, a: Value, b: Value) -> Value:
    """a <relation> b as bool; unordered floats compare false, except `ne`."""
    if a.number is not None and b.number is not None:
        return boolean(_FOLDED[relation](a.number, b.number))
    if a.dtype.is_float:
        code = "une" if relation == "ne" else f"o{relation}"
        return binary(e, f"fcmp {code}", a, b, BOOL)
    sign = "" if relation in ("eq", "ne") else "s" if a.dtype.kind == "i" else "u"
    if a.dtype is INT64 and is_linear(a) and is_linear(b):
        if a.lanes != b.lanes:
            return _compare_lanes(e, relation, a, b)
        a, b = _apart(e, a, b)
    return binary(e, f"icmp {sign}{relation}", a, b, BOOL)


def _compare_lanes(e: Emitter, relation: str, a: Value, b: Value) -> Value:
    """base + step * lane against a uniform value, in int32: half the registers of int64."""
    if a.lanes == 1:
        a, b, relation = b, a, _MIRRORED[relation]
    step = None if a.step is None else a.step.number
    if step is None or abs(step) * a.lanes >= _FAR:
        return binary(e, f"icmp {'' if relation in ('eq', 'ne') else 's'}{relation}", a, b, BOOL)
    gap = subtract(e, _within(e, b, 2**62), Value(a.text, INT64, 1, a.plus))
    if gap.number is not None:
        return lane_flags([_FOLDED[relation](i * step, gap.number) for i in range(a.lanes)])
    near = _within(e, gap, _FAR)
    lanes = "<" + ", ".join(f"i32 {i * step}" for i in range(a.lanes)) + ">"
    code = relation if relation in ("eq", "ne") else f"s{relation}"
    left = Value(lanes, INT32, a.lanes)
    return binary(e, f"icmp {code}", left, _as(e, "trunc", near, INT32), BOOL)


def _within(e: Emitter, v: Value, limit: int) -> Value:
    """A uniform int64, at most `limit` from 0."""
    if v.number is not None:
        return integer(max(min(v.number, limit), -limit))
    return intrinsic(e, "smax", intrinsic(e, "smin", v, integer(limit)), integer(-limit))


def _apart(e: Emitter, a: Value, b: Value) -> tuple[Value, Value]:
    """Both sides without a common constant."""
    if a.text and b.text and a.plus == b.plus:
        return (
            Value(a.text, INT64, a.lanes, 0, a.step),
            Value(b.text, INT64, b.lanes, 0, b.step),
        )
    return a, b


_FAR = 2**30  # no lane is so far from lane 0
_MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_FOLDED: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}


# ---------------------------------------------------------------- arithmetic


def _arithmetic(
    float_instruction: str, int_instruction: str, linear: Callable[[Emitter, Value, Value], Value]
) -> Emit:
    def emit(e: Emitter, args: list[Value]) -> Value:
        a, b = args
        if a.dtype is INT64:
            return linear(e, a, b)
        return binary(e, float_instruction if a.dtype.is_float else int_instruction, a, b)

    return emit


def _neg(e: Emitter, args: list[Value]) -> Value:
    a = args[0]
    if not a.dtype.is_float:
        return _sub(e, [literal(0, a.dtype), a])
    lanes, (x,) = operands(e, a)
    return Value(e.code.pure(f"fneg {type_text(a.dtype, lanes)} {x}", x), a.dtype, lanes)


def _abs(e: Emitter, args: list[Value]) -> Value:
    a = args[0]
    if a.dtype.is_float:
        return intrinsic(e, "fabs", a)
    if a.dtype.kind == "u":
        return a
    return intrinsic(e, "abs", a, flags="i1 false")


def is_nan_free(v: Value) -> bool:
    """Whether `v` is a literal and not NaN."""
    if not v.text.startswith("0x"):
        return False
    bits = int(v.text, 16) & (2**63 - 1)
    return bits <= 0x7FF0000000000000


def _extreme(relation: str, fold: Callable[[int, int], int]) -> Emit:
    """min and max. `x relation y ? x : y` is one x86 instruction that answers y when unordered."""

    def emit(e: Emitter, args: list[Value]) -> Value:
        a, b = args
        if a.number is not None and b.number is not None:
            return integer(fold(a.number, b.number))
        if not a.dtype.is_float:
            letter = "s" if a.dtype.kind == "i" else "u"
            return intrinsic(e, letter + ("min" if relation == "olt" else "max"), a, b)
        if is_nan_free(b):
            a, b = b, a
        best = choose(e, binary(e, f"fcmp {relation}", a, b, BOOL), a, b)
        if is_nan_free(a):
            return best
        return choose(e, binary(e, "fcmp uno", a, a, BOOL), a, best)

    return emit


# ---------------------------------------------------------------- division


def _is_safe_divisor(b: Value) -> bool:
    return b.number not in (None, 0, -1) or (b.text.isdecimal() and int(b.text) > 0)


def _quotient(e: Emitter, a: Value, b: Value) -> Value:
    """a / b truncated; 0 for b = 0; wraps for the smallest integer over -1."""
    if a.dtype.kind == "u":
        zero = compare(e, "eq", b, literal(0, b.dtype))
        safe = b if _is_safe_divisor(b) else choose(e, zero, literal(1, b.dtype), b)
        return _zero_if(e, zero, binary(e, "udiv", a, safe), b)
    if _is_safe_divisor(b):
        return binary(e, "sdiv", a, b)
    zero = compare(e, "eq", b, literal(0, b.dtype))
    minus = compare(e, "eq", b, literal(-1, b.dtype))
    odd = binary(e, "or", zero, minus)
    quotient = binary(e, "sdiv", a, choose(e, odd, literal(1, b.dtype), b))
    quotient = choose(e, minus, _neg(e, [a]), quotient)
    return _zero_if(e, zero, quotient, b)


def _zero_if(e: Emitter, zero: Value, v: Value, divisor: Value) -> Value:
    if _is_safe_divisor(divisor):
        return v
    return choose(e, zero, literal(0, v.dtype), v)


def _div(e: Emitter, args: list[Value]) -> Value:
    a, b = args
    return binary(e, "fdiv", a, b) if a.dtype.is_float else _quotient(e, a, b)


def _rem(e: Emitter, args: list[Value]) -> Value:
    """Remainder with the dividend's sign; a - (a / b) * b is 0 where b is -1."""
    a, b = args
    if a.dtype.is_float:
        return routine(e, "rem", a, b)
    remainder = _sub(e, [a, _mul(e, [_quotient(e, a, b), b])])
    return _zero_if(e, compare(e, "eq", b, literal(0, b.dtype)), remainder, b)


def _wrong_side(e: Emitter, remainder: Value, b: Value) -> Value:
    """Where a truncated quotient is one above the floor: remainder and divisor differ in sign."""
    rest = compare(e, "ne", remainder, literal(0, b.dtype))
    signs = compare(e, "lt", binary(e, "xor", remainder, b), literal(0, b.dtype))
    return binary(e, "and", rest, signs)


def _power_of_two(v: Value) -> int | None:
    number = v.number
    if number is not None and number > 0 and number & (number - 1) == 0:
        return number.bit_length() - 1
    return None


def _floordiv(e: Emitter, args: list[Value]) -> Value:
    a, b = args
    if a.number is not None and b.number is not None:
        return integer(a.number // b.number if b.number else 0)
    if a.dtype.kind == "u":
        return _quotient(e, a, b)
    if (shift := _power_of_two(b)) is not None:
        return a if shift == 0 else binary(e, "ashr", a, integer(shift))
    quotient = _quotient(e, a, b)
    remainder = _sub(e, [a, _mul(e, [quotient, b])])
    lower = _sub(e, [quotient, literal(1, b.dtype)])
    wrong = _wrong_side(e, remainder, b)
    zero = compare(e, "eq", b, literal(0, b.dtype))
    return _zero_if(e, zero, choose(e, wrong, lower, quotient), b)


def _mod(e: Emitter, args: list[Value]) -> Value:
    a, b = args
    if a.dtype.is_float:
        return _float_mod(e, a, b)
    if a.number is not None and b.number is not None:
        return integer(a.number % b.number if b.number else 0)
    if a.dtype.kind == "u":
        return _rem(e, args)
    if _power_of_two(b) is not None and b.number is not None:
        return binary(e, "and", a, integer(b.number - 1))
    remainder = _rem(e, args)
    wrong = _wrong_side(e, remainder, b)
    return choose(e, wrong, _add(e, [remainder, b]), remainder)


def _float_mod(e: Emitter, a: Value, b: Value) -> Value:
    """Remainder with the divisor's sign: a zero gets it too, as in Python."""
    zero = literal(0.0, a.dtype)
    remainder = _rem(e, [a, b])
    wrong = binary(
        e,
        "and",
        compare(e, "ne", remainder, zero),
        binary(e, "xor", compare(e, "lt", remainder, zero), compare(e, "lt", b, zero)),
    )
    moved = choose(e, wrong, _add(e, [remainder, b]), remainder)
    return choose(e, compare(e, "eq", moved, zero), intrinsic(e, "copysign", zero, b), moved)


def _int_pow(e: Emitter, a: Value, b: Value) -> Value:
    """Wrapping integer power by squaring; a negative exponent gives 0 but for bases 1 and -1."""
    one, zero, kind = literal(1, a.dtype), literal(0, a.dtype), a.dtype
    result, power, left = one, a, b
    signed = kind.kind == "i"
    if signed:
        left = choose(e, compare(e, "lt", b, zero), zero, b)
    for bit in range(min(kind.bits, 64) - (1 if signed else 0)):
        is_set = compare(e, "ne", binary(e, "and", left, literal(1 << bit, kind)), zero)
        result = choose(e, is_set, _mul(e, [result, power]), result)
        power = _mul(e, [power, power])
    if not signed:
        return result
    odd = compare(e, "ne", binary(e, "and", b, one), zero)
    minus = literal(-1, kind)
    unit = choose(e, compare(e, "eq", a, minus), choose(e, odd, minus, one), zero)
    unit = choose(e, compare(e, "eq", a, one), one, unit)
    return choose(e, compare(e, "lt", b, zero), unit, result)


# ---------------------------------------------------------------- bits and booleans


def _logic(instruction: str) -> Emit:
    def emit(e: Emitter, args: list[Value]) -> Value:
        a, b = args
        if a.dtype is BOOL:
            for x, y in ((a, b), (b, a)):
                if x.text in ("true", "false") and instruction != "xor":
                    return y if (x.text == "true") == (instruction == "and") else x
        if a.number is not None and b.number is not None:
            folded = {"and": int.__and__, "or": int.__or__, "xor": int.__xor__}[instruction]
            return integer(folded(a.number, b.number))
        return binary(e, instruction, a, b)

    return emit


def _not(e: Emitter, args: list[Value]) -> Value:
    if args[0].dtype is BOOL:
        return negated(e, args[0])
    return binary(e, "xor", args[0], literal(-1, args[0].dtype))


def _shift(instruction: str) -> Emit:
    """Shifts whose amount, read as unsigned, may be anything: beyond the width they give 0."""

    def emit(e: Emitter, args: list[Value]) -> Value:
        a, b = args
        known = b.number if b.number is not None else None
        if known is None and b.text.isdecimal():
            known = int(b.text)
        if known is not None and 0 <= known < a.dtype.bits:
            return binary(e, instruction, a, b)
        amount = binary(e, "and", b, literal(a.dtype.bits - 1, b.dtype))
        inside = binary(e, "icmp ult", b, literal(a.dtype.bits, b.dtype), BOOL)
        return choose(e, inside, binary(e, instruction, a, amount), literal(0, a.dtype))

    return emit


# ---------------------------------------------------------------- conversions


def convert(e: Emitter, v: Value, to: DType) -> Value:
    """`cast`: floats truncate, integers wrap, bool tests against zero (see `cast_value`)."""
    source = v.dtype
    if source is to:
        return v
    if to is BOOL:
        return compare(e, "ne", v, literal(0, source))
    if source is BOOL:
        return _as(e, "uitofp" if to.is_float else "zext", v, to)
    if source.is_float:
        if to.is_float:
            return _as(e, "fpext" if to is FLOAT64 else "fptrunc", v, to)
        return _float_to_int(e, v, to)
    if to.is_float:
        return _as(e, "sitofp" if source.kind == "i" else "uitofp", v, to)
    if to.bits == source.bits:
        lanes, (x,) = operands(e, v)
        return Value(x, to, lanes)
    widen = "sext" if source.kind == "i" else "zext"
    return _as(e, "trunc" if to.bits < source.bits else widen, v, to)


def _as(e: Emitter, instruction: str, v: Value, to: DType) -> Value:
    lanes, (x,) = operands(e, v)
    source = type_text(v.dtype, lanes)
    return Value(e.code.pure(f"{instruction} {source} {x} to {type_text(to, lanes)}", x), to, lanes)


def _float_to_int(e: Emitter, v: Value, to: DType) -> Value:
    """Through int32 where the result is narrower, else int64; out of range: its smallest number."""
    wide = INT32 if to.bits < 32 or to is INT32 else INT64
    limit = literal(2.0 ** (wide.bits - 1), v.dtype)
    inside = compare(e, "lt", intrinsic(e, "fabs", v), limit)
    safe = choose(e, inside, v, literal(0.0, v.dtype))
    smallest = literal(-(2 ** (wide.bits - 1)), wide)
    result = choose(e, inside, _as(e, "fptosi", safe, wide), smallest)
    if to.bits == 64 and to.kind == "u":
        high = compare(e, "ge", v, limit)
        fits = binary(e, "and", high, compare(e, "lt", v, literal(2.0**64, v.dtype)))
        rest = choose(e, fits, binary(e, "fsub", v, limit), literal(0.0, v.dtype))
        upper = add(e, _as(e, "fptosi", rest, INT64), smallest)
        result = choose(e, fits, upper, result)
    return convert(e, result, to)


def reinterpret(e: Emitter, v: Value, to: DType) -> Value:
    """`bitcast`: the same bits."""
    return _as(e, "bitcast", v, to)


def _odd_float32(e: Emitter, v: Value) -> Value:
    """A float64 as float32; what lies between two of them becomes the odd one: rounding again then rounds once."""
    if v.dtype is not FLOAT64:
        return v
    near = convert(e, v, FLOAT32)
    back = convert(e, near, FLOAT64)
    bits = reinterpret(e, near, INT32)
    beyond = compare(e, "gt", intrinsic(e, "fabs", back), intrinsic(e, "fabs", v))
    toward_zero = choose(e, beyond, binary(e, "sub", bits, literal(1, INT32)), bits)
    odd = binary(e, "or", toward_zero, literal(1, INT32))
    inexact = binary(e, "fcmp one", back, v, BOOL)  # a NaN is exact
    return reinterpret(e, choose(e, inexact, odd, bits), FLOAT32)


def _nudged(e: Emitter, bits: Value) -> Value:
    """float32 bits whose upper half is that of the nearest bfloat16, ties to even, unless they are a NaN's."""
    odd = binary(e, "and", binary(e, "lshr", bits, literal(16, INT32)), literal(1, INT32))
    return binary(e, "add", binary(e, "add", bits, literal(0x7FFF, INT32)), odd)


def bits_of_bfloat16(e: Emitter, v: Value) -> Value:
    """The upper half of float32 bits in an int32, rounded to nearest even; a NaN stays one and quiet."""
    bits = reinterpret(e, v, INT32)
    rounded = binary(e, "lshr", _nudged(e, bits), literal(16, INT32))
    quiet = binary(e, "or", binary(e, "lshr", bits, literal(16, INT32)), literal(0x40, INT32))
    return choose(e, binary(e, "fcmp uno", v, v, BOOL), quiet, rounded)


def _as_bfloat16(e: Emitter, args: list[Value]) -> Value:
    """A NaN stays as it is."""
    v = _odd_float32(e, args[0])
    rounded = binary(e, "and", _nudged(e, reinterpret(e, v, INT32)), literal(-0x10000, INT32))
    return choose(e, binary(e, "fcmp uno", v, v, BOOL), v, reinterpret(e, rounded, FLOAT32))


def _as_float16(e: Emitter, args: list[Value]) -> Value:
    lanes, (x,) = operands(e, _odd_float32(e, args[0]))
    wide, half = type_text(FLOAT32, lanes), memory_text(FLOAT16, lanes)
    narrow = e.code.pure(f"fptrunc {wide} {x} to {half}", x)
    return Value(e.code.pure(f"fpext {half} {narrow} to {wide}", narrow), FLOAT32, lanes)


# ---------------------------------------------------------------- the table


def _named(name: str) -> Emit:
    return lambda e, args: intrinsic(e, name, *args)


def _relation(name: str) -> Emit:
    return lambda e, args: compare(e, name, args[0], args[1])


def _pow(e: Emitter, args: list[Value]) -> Value:
    a, b = args
    return routine(e, "pow", a, b) if a.dtype.is_float else _int_pow(e, a, b)


def _function(name: str) -> Emit:
    return lambda e, args: routine(e, name, *args)


def _circular(name: str) -> Emit:
    """sin, cos and tan are functions of float64 alone."""

    def emit(e: Emitter, args: list[Value]) -> Value:
        return convert(e, routine(e, name, convert(e, args[0], FLOAT64)), args[0].dtype)

    return emit


_add = _arithmetic("fadd", "add", add)
_sub = _arithmetic("fsub", "sub", subtract)
_mul = _arithmetic("fmul", "mul", multiply)

OPERATORS.update(
    add=_add,
    sub=_sub,
    mul=_mul,
    div=_div,
    floordiv=_floordiv,
    mod=_mod,
    rem=_rem,
    neg=_neg,
    abs=_abs,
    fma=_named("fma"),
    min=_extreme("olt", min),
    max=_extreme("ogt", max),
    pow=_pow,
    sqrt=_named("sqrt"),
    floor=_named("floor"),
    ceil=_named("ceil"),
    rint=_named("roundeven"),
    trunc=_named("trunc"),
    copysign=_named("copysign"),
    as_float16=_as_float16,
    as_bfloat16=_as_bfloat16,
    shift_left=_shift("shl"),
    shift_right=_shift("lshr"),
    select=lambda e, args: choose(e, *args),
    **{name: _logic(name) for name in ("and", "or", "xor")},
    **{name: _relation(name) for name in _FOLDED},
    **{name: _function(name) for name in UNARY},
    **{name: _circular(name) for name in CIRCULAR},
)
OPERATORS["not"] = _not
