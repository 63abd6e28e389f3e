"""Functions a module calls: the expansions of `codegen.math`, exact fmod, far reduction for sin.

In: which operator, type and lanes the emitted code asked for. Out: their LLVM text.
Invariant: each is written once per module, is internal, calls no library and cannot trap.
"""

from __future__ import annotations

from fissile.codegen.emitter import Emitter, Helpers, Routine, Value, literal, plain
from fissile.codegen.expression import any_of, evaluate, value_of
from fissile.codegen.math import CIRCULAR, REDUCIBLE, circular, expand, reduced
from fissile.codegen.operators import choose, compare, convert, intrinsic
from fissile.codegen.text import type_text
from fissile.ir.dtype import FLOAT64, DType
from fissile.ir.loop import var
from fissile.ir.scalar import SCALAR_OPS
from fissile.target import Target

INLINE_LINES = 48  # longer functions stay calls

# words of 2 / pi after its point, behind one word of zeros
_TWO_OVER_PI = (
    0x0000000000000000, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041,
    0xFE5163ABDEBBC561, 0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E,
    0xE88235F52EBB4484, 0xE99C7026B45F7E41, 0x3991D639835339F4, 0x9C845F8BBDF9283B,
    0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7, 0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB,
)  # fmt: skip

# x = n pi / 2 + r for any finite x beyond 2^30: 192 bits of 2 / pi from where they matter (mod 4)
_FAR = """\
@two_over_pi = private unnamed_addr constant [20 x i64] [{words}]
define internal {{ double, double }} @far(double %x) noinline #0 {{
%bits = bitcast double %x to i64
%top = lshr i64 %bits, 52
%exponent = and i64 %top, 2047
%fraction = and i64 %bits, 4503599627370495
%m = or i64 %fraction, 4503599627370496
%from = sub i64 %exponent, 1013
%word = lshr i64 %from, 6
%shift = and i64 %from, 63
%q0 = getelementptr [20 x i64], ptr @two_over_pi, i64 0, i64 %word
%q1 = getelementptr i64, ptr %q0, i64 1
%q2 = getelementptr i64, ptr %q0, i64 2
%q3 = getelementptr i64, ptr %q0, i64 3
%t0 = load i64, ptr %q0, align 8
%t1 = load i64, ptr %q1, align 8
%t2 = load i64, ptr %q2, align 8
%t3 = load i64, ptr %q3, align 8
%f0 = call i64 @llvm.fshl.i64(i64 %t0, i64 %t1, i64 %shift)
%f1 = call i64 @llvm.fshl.i64(i64 %t1, i64 %t2, i64 %shift)
%f2 = call i64 @llvm.fshl.i64(i64 %t2, i64 %t3, i64 %shift)
%mw = zext i64 %m to i128
%w1 = zext i64 %f1 to i128
%w2 = zext i64 %f2 to i128
%p2 = mul i128 %mw, %w2
%c2 = lshr i128 %p2, 64
%p1 = mul i128 %mw, %w1
%s1 = add i128 %p1, %c2
%m0 = mul i64 %m, %f0
%w0 = zext i64 %m0 to i128
%h0 = shl i128 %w0, 64
%turns = add i128 %s1, %h0
%half = add i128 %turns, {half}
%quarter = lshr i128 %half, 126
%whole = shl i128 %quarter, 126
%rest = sub i128 %turns, %whole
%below = icmp slt i128 %rest, 0
%minus = sub i128 0, %rest
%size = select i1 %below, i128 %minus, i128 %rest
%zeros = call i128 @llvm.ctlz.i128(i128 %size, i1 false)
%amount = and i128 %zeros, 127
%high = shl i128 %size, %amount
%lead = lshr i128 %high, 64
%digits = trunc i128 %lead to i64
%number = uitofp i64 %digits to double
%lost = trunc i128 %amount to i64
%scale = sub i64 961, %lost
%power = shl i64 %scale, 52
%unit = bitcast i64 %power to double
%part = fmul double %number, %unit
%angle = fmul double %part, 0x3FF921FB54442D18
%away = fneg double %angle
%minor = select i1 %below, double %away, double %angle
%n64 = trunc i128 %quarter to i64
%n = sitofp i64 %n64 to double
%negative = icmp slt i64 %bits, 0
%r1 = fneg double %minor
%n1 = fneg double %n
%r2 = select i1 %negative, double %r1, double %minor
%n2 = select i1 %negative, double %n1, double %n
%zero = fsub double %x, %x
%r3 = fadd double %r2, %zero
%one = insertvalue {{ double, double }} poison, double %r3, 0
%both = insertvalue {{ double, double }} %one, double %n2, 1
ret {{ double, double }} %both
}}
"""

# long division of mantissas, eleven bits at a time
_FMOD = """\
define internal double @fmod(double %x, double %y) noinline #0 {
entry:
%a = call double @llvm.fabs.f64(double %x)
%b = call double @llvm.fabs.f64(double %y)
%finite = fcmp olt double %a, 0x7FF0000000000000
%some = fcmp ogt double %b, 0x0000000000000000
%good = and i1 %finite, %some
br i1 %good, label %compare, label %bad
bad:
%zero = fmul double %x, 0x0000000000000000
%nan = fdiv double %zero, %zero
%sum = fadd double %nan, %y
ret double %sum
compare:
%less = fcmp olt double %a, %b
br i1 %less, label %same, label %divide
same:
ret double %x
divide:
%ai = bitcast double %a to i64
%bi = bitcast double %b to i64
%ae0 = lshr i64 %ai, 52
%be0 = lshr i64 %bi, 52
%az = icmp eq i64 %ae0, 0
%bz = icmp eq i64 %be0, 0
%af = and i64 %ai, 4503599627370495
%bf = and i64 %bi, 4503599627370495
%an = or i64 %af, 4503599627370496
%bn = or i64 %bf, 4503599627370496
%am = select i1 %az, i64 %af, i64 %an
%bm = select i1 %bz, i64 %bf, i64 %bn
%ae = select i1 %az, i64 1, i64 %ae0
%be = select i1 %bz, i64 1, i64 %be0
%far = sub i64 %ae, %be
%first = urem i64 %am, %bm
%none = icmp eq i64 %far, 0
br i1 %none, label %done, label %loop
loop:
%left = phi i64 [ %far, %divide ], [ %after, %loop ]
%m = phi i64 [ %first, %divide ], [ %next, %loop ]
%step = call i64 @llvm.umin.i64(i64 %left, i64 11)
%moved = shl i64 %m, %step
%next = urem i64 %moved, %bm
%after = sub i64 %left, %step
%more = icmp ne i64 %after, 0
br i1 %more, label %loop, label %done
done:
%r = phi i64 [ %first, %divide ], [ %next, %loop ]
%empty = icmp eq i64 %r, 0
%lead = call i64 @llvm.ctlz.i64(i64 %r, i1 false)
%want = sub i64 %lead, 11
%room = sub i64 %be, 1
%least = call i64 @llvm.smin.i64(i64 %want, i64 %room)
%shift = select i1 %empty, i64 0, i64 %least
%digits = shl i64 %r, %shift
%exponent = sub i64 %room, %shift
%raised = shl i64 %exponent, 52
%packed = add i64 %digits, %raised
%bits = select i1 %empty, i64 0, i64 %packed
%size = bitcast i64 %bits to double
%result = call double @llvm.copysign.f64(double %size, double %x)
ret double %result
}
"""


def routine_text(helpers: Helpers, target: Target) -> list[str]:
    """The text of every routine that `helpers` was asked for, and of those these ask for."""
    lines: list[str] = []
    done: set[Routine] = set()
    while waiting := [r for r in helpers.routines if r not in done]:
        for routine in waiting:
            done.add(routine)
            lines.extend(_routine(routine, helpers, target))
    names = {r.operator for r in done}
    if "rem" in names:
        lines.append(_FMOD)
        helpers.declare("llvm.fabs.f64", "double", "double")
        helpers.declare("llvm.copysign.f64", "double", "double, double")
        for name in ("umin", "smin"):
            helpers.declare(f"llvm.{name}.i64", "i64", "i64, i64")
        helpers.declare("llvm.ctlz.i64", "i64", "i64, i1")
    if names & CIRCULAR:
        words = ", ".join(f"i64 {w}" for w in _TWO_OVER_PI)
        lines.append(_FAR.format(words=words, half=2**125))
        helpers.declare("llvm.fshl.i64", "i64", "i64, i64, i64")
        helpers.declare("llvm.ctlz.i128", "i128", "i128, i1")
    return lines


def _routine(routine: Routine, helpers: Helpers, target: Target) -> list[str]:
    e = Emitter(target, helpers, lanes=routine.lanes)
    kind = type_text(routine.dtype, routine.lanes)
    names = ("%a", "%b")[: SCALAR_OPS[routine.operator].arity]
    arguments = [Value(n, routine.dtype, routine.lanes) for n in names]
    if routine.operator == "rem":
        result = _lanewise_fmod(e, arguments)
    elif routine.operator in CIRCULAR:
        result = _circular(e, routine.operator, arguments[0])
    else:
        result = _expanded(e, routine.operator, arguments)
    body = list(e.code.lines())
    note = "alwaysinline" if len(body) <= INLINE_LINES else "noinline"
    header = ", ".join(f"{kind} {n}" for n in names)
    return [
        f"define internal {kind} @{routine.name}({header}) {note} #0 {{",
        "entry:",
        *body,
        f"ret {kind} {result.text}",
        "}",
    ]


def _expanded(e: Emitter, operator: str, arguments: list[Value]) -> Value:
    variables = [var(f"argument{i}", a.dtype) for i, a in enumerate(arguments)]
    e.values.update(zip(variables, arguments))
    return value_of(e, expand(operator, variables))


def _lanewise_fmod(e: Emitter, arguments: list[Value]) -> Value:
    """fmod of float32 through float64 is exact too: the result has the bits of its operands."""
    lanes, dtype = arguments[0].lanes, arguments[0].dtype
    x, y = (convert(e, a, FLOAT64) for a in arguments)
    results = []
    for i in range(lanes):
        a, b = _lane(e, x, i), _lane(e, y, i)
        results.append(e.code.pure(f"call double @fmod(double {a}, double {b})", a, b))
    return convert(e, _together(e, results, FLOAT64), dtype)


def _lane(e: Emitter, v: Value, i: int) -> str:
    if v.lanes == 1:
        return v.text
    kind = type_text(v.dtype, v.lanes)
    return e.code.pure(f"extractelement {kind} {v.text}, i64 {i}", v.text)


def _together(e: Emitter, texts: list[str], dtype: DType) -> Value:
    if len(texts) == 1:
        return Value(texts[0], dtype)
    vector, kind = "poison", type_text(dtype, len(texts))
    for i, text in enumerate(texts):
        step = f"insertelement {kind} {vector}, {type_text(dtype)} {text}, i64 {i}"
        vector = e.code.pure(step, vector, text)
    return Value(vector, dtype, len(texts))


def _circular(e: Emitter, operator: str, x: Value) -> Value:
    """The near reduction for all lanes; when a lane is far, its own one instead."""
    argument, rest, turn = (var(n, FLOAT64) for n in ("x", "r", "n"))
    e.values[argument] = x
    near = [evaluate(e, part) for part in reduced(argument)]
    size = intrinsic(e, "fabs", x)
    is_far = compare(e, "gt", size, literal(REDUCIBLE, FLOAT64))
    code, far, done = e.code, e.code.label(), e.code.label()
    before = code.block
    code.branch_if(any_of(e, is_far), far, done)
    code.start(far)
    with e.level(is_loop=False):
        safe = choose(e, is_far, x, literal(2 * REDUCIBLE, FLOAT64))
        lanes = [_lane(e, safe, i) for i in range(x.lanes)]
        pairs = [code.effect(f"call {{ double, double }} @far(double {lane})") for lane in lanes]
        found = []
        for part, close in enumerate(near):
            texts = [code.effect(f"extractvalue {{ double, double }} {p}, {part}") for p in pairs]
            found.append(choose(e, is_far, _together(e, texts, FLOAT64), close))
        code.branch(done)
    code.start(done)
    kind = type_text(FLOAT64, x.lanes)
    for v, close, apart in zip((rest, turn), near, found):
        text = code.effect(f"phi {kind} [ {close.text}, %{before} ], [ {apart.text}, %{far} ]")
        e.values[v] = plain(text, x)
    result = evaluate(e, circular(operator, rest, turn))
    if operator == "cos":
        return result
    return choose(e, compare(e, "eq", x, literal(0.0, FLOAT64)), x, result)
