"""exp, log, tanh, erf, sin, pow and the like as expressions of basic operators (DESIGN 3.5).

In: an operator's name and float32 or float64 arguments. Out: an expression of add, mul, fma, div,
sqrt, comparisons, selects and bit operations, so one definition serves every number of lanes.
Invariant: at most 4 ulp; right at zeros, infinities, NaN and denormals, but that sigmoid is 0 instead of nearly all
denormals; integer powers exact.
Polynomials interpolate at Chebyshev nodes in 50 digits; that of log(erfc) is a least-squares fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fissile.ir.dtype import FLOAT32, FLOAT64, INT32, INT64, DType
from fissile.ir.loop import Expr, bitcast, cast, const, op

# (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2
_EXP32 = (0.5, 0.166665766661, 0.041666554213, 0.00836323288368, 0.00139262508315)
_EXP64 = (
    0.5, 0.1666666666666667103, 0.041666666666666669783, 0.0083333333333260831202,
    0.0013888888888883711167, 0.00019841269875002278793, 0.0000248015873256774619,
    2.7557255170000887438e-6, 2.7557273478718580474e-7, 2.5105312729622101787e-8,
    2.09147553258932022e-9,
)  # fmt: skip
# (log(1 + f) - f + f^2 / 2) / f^3 for sqrt(1/2) <= 1 + f <= sqrt(2)
_LOG32 = (
    0.333333304912, -0.25000318836, 0.200011125509, -0.166405949727,
    0.142116741969, -0.1300433175, 0.126508132631, -0.0792081866272,
)  # fmt: skip
# (log((1 + s) / (1 - s)) / s - 2) / z for z = s^2 <= 0.0296
_LOG64 = (
    0.66666666666666698066, 0.39999999999896070498, 0.28571428627528795607,
    0.22222210881932927138, 0.18182907497671217826, 0.1533111258796016759, 0.14623956608211878749,
)  # fmt: skip
# the same without its first term 2/3, over z once more
_POW64 = (
    0.39999999999999999809, 0.28571428571429397423, 0.22222222221636843862,
    0.18181818339697632173, 0.15384594503809888863, 0.13334829573906534786,
    0.11705571895677204588, 0.11730107861893072178,
)  # fmt: skip
# (sin(r) - r) / r^3 and (cos(r) - 1 + z / 2) / z^2 for z = r^2, |r| <= pi / 4
_SIN64 = (
    -0.16666666666666664587, 0.0083333333333309125467, -0.00019841269836704285544,
    2.7557316074434427983e-6, -2.505112599355001415e-8, 1.5917708352040116317e-10,
)  # fmt: skip
_COS64 = (
    0.041666666666666665366, -0.0013888888888887374755, 0.000024801587298731726214,
    -2.7557317254139663362e-7, 2.0876142607805489695e-9, -1.1382369086995409124e-11,
)  # fmt: skip
# (atan(t) - t) / t^3 for z = t^2, t <= sqrt(2) - 1
_ATAN64 = (
    -0.33333333333333333214, 0.19999999999999800523, -0.14285714285658822942,
    0.11111111105057618632, -0.090909087486376781367, 0.076922962345621043016,
    -0.066664223652985351883, 0.058789000468626213784, -0.052302412575139905671,
    0.045506225250304515252, -0.034545622575104518907, 0.01625814585726704857,
)  # fmt: skip
# (asin(t) - t) / t^3 for z = t^2 <= 1/4
_ASIN64 = (
    0.16666666666666648529, 0.075000000000208696712, 0.044642857103239559945,
    0.030381947379559159502, 0.022372047201808885135, 0.017355268563953518903,
    0.013929545950485803228, 0.011876344296279416692, 0.0077986264075622330211,
    0.016049124584949317839, -0.010773195325585556889, 0.028187667142318098935,
)  # fmt: skip
# erf(x) / x for z = x^2 <= 1
_ERF64 = (
    1.1283791670955125738, -0.37612638903183748051, 0.11283791670954878405,
    -0.026866170645076741058, 0.0052239776248174785736, -0.00085483269808014474477,
    0.00012055331110409493762, -0.000014925595235970651586, 1.6460999970345427177e-6,
    -1.6350307065234626216e-7, 1.4659736155673959676e-8, -1.1372693191126323651e-9,
    5.9569056336530305449e-11,
)  # fmt: skip
# exp(x^2) erfc(x) for u = (x - 3) / (x + 3), 1 <= x <= 6.1
_ERFC64 = (
    0.17900115118138994442, -0.32623356004303724993, 0.24560380171233537825,
    -0.15011593650076943402, 0.071665837197427775712, -0.024392499319618204262,
    0.0042691363580674346482, 0.00070774648885337156254, -0.00059706249394330838868,
    0.000045254012694831998054, 0.000064062390319478289207, -0.000012843533148373502205,
    -8.0049684215838801138e-6, 2.0095139924831048988e-6, 1.2580932443721675721e-6,
    -8.8013598306888904423e-9,
)  # fmt: skip
# erf(x) / x for z = x^2 <= 1, and log(erfc(x)) for 1 <= x <= 4
_ERF32 = (
    1.12837912616, -0.376123436382, 0.112803153821, -0.0267150138057, 0.00492171027559,
    -0.000564783065091,
)  # fmt: skip
_LOG_ERFC32 = (
    -0.002671694213, -1.117438512, -0.6544889044, -0.08863420415, 0.01477813032, -0.001150423508,
)  # fmt: skip

_LOG2E = math.log2(math.e)
_LEAST_EXPONENT = {FLOAT32: -104.0, FLOAT64: -746.0}  # below it exp is 0
_LN2 = {  # two parts; the first of float64 has 42 bits, so that a multiple of it is exact
    FLOAT32: (float.fromhex("0x1.62e43p-1"), float.fromhex("-0x1.05c61p-29")),
    FLOAT64: (float.fromhex("0x1.62e42fefa38p-1"), float.fromhex("0x1.ef35793c7673p-45")),
}
_HALF_PI = tuple(
    map(float.fromhex, ("0x1.921fb54442d18p+0", "0x1.1a62633145c07p-54", "-0x1.f1976b7ed8fbcp-110"))
)
_BITS = {FLOAT32: (INT32, 23, 127), FLOAT64: (INT64, 52, 1023)}
REDUCIBLE = 2.0**30  # beyond it sin, cos and tan need more bits of pi than `reduced` uses


# ---------------------------------------------------------------- building blocks


def _like(x: Expr, value: float) -> Expr:
    return const(value, x.dtype)


def _add(a: Expr, b: Expr | float) -> Expr:
    return op("add", a, b if not isinstance(b, float) else _like(a, b))


def _sub(a: Expr, b: Expr | float) -> Expr:
    return op("sub", a, b if not isinstance(b, float) else _like(a, b))


def _mul(a: Expr, b: Expr | float) -> Expr:
    return op("mul", a, b if not isinstance(b, float) else _like(a, b))


def _div(a: Expr, b: Expr) -> Expr:
    return op("div", a, b)


def _fma(a: Expr, b: Expr | float, c: Expr | float) -> Expr:
    b = b if not isinstance(b, float) else _like(a, b)
    return op("fma", a, b, c if not isinstance(c, float) else _like(a, c))


def _where(condition: Expr, a: Expr, b: Expr) -> Expr:
    return op("select", condition, a, b)


def _less(a: Expr, b: Expr | float) -> Expr:
    return op("lt", a, b if not isinstance(b, float) else _like(a, b))


def _is(a: Expr, b: Expr | float) -> Expr:
    return op("eq", a, b if not isinstance(b, float) else _like(a, b))


def _clamp(x: Expr, low: float, high: float) -> Expr:
    return op("min", op("max", x, _like(x, low)), _like(x, high))


def _signed(magnitude: Expr, sign: Expr) -> Expr:
    return op("copysign", magnitude, sign)


def _horner(z: Expr, coefficients: Sequence[float]) -> Expr:
    """c0 + z (c1 + z (c2 + ...))"""
    total: Expr = _like(z, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = _fma(total, z, c)
    return total


def _magic(dtype: DType) -> float:
    """Adding it rounds to an integer and leaves that integer in the low bits."""
    return 1.5 * 2.0 ** _BITS[dtype][1]


def _two_to(n: Expr) -> Expr:
    """2^n for an integral float -bias < n <= bias."""
    kind, width, bias = _BITS[n.dtype]
    bits = bitcast(_add(n, _magic(n.dtype) + bias))
    return bitcast(op("shift_left", bits, const(width, kind)))


def _scale(p: Expr, n: Expr) -> Expr:
    """p 2^n in two steps, so that overflow and denormals come out right."""
    half = _sub(_fma(n, 0.5, _magic(n.dtype)), _magic(n.dtype))
    return _mul(_mul(p, _two_to(half)), _two_to(_sub(n, half)))


def _split(x: Expr) -> tuple[Expr, Expr]:
    """(n, r): x = n ln(2) + r with n integral."""
    magic = _magic(x.dtype)
    high, low = _LN2[x.dtype]
    n = _sub(_fma(x, _LOG2E, magic), magic)
    return n, _fma(n, -low, _fma(n, -high, x))


def _exp_tail(r: Expr) -> Expr:
    """(exp(r) - 1 - r) / r^2"""
    return _horner(r, _EXP32 if r.dtype is FLOAT32 else _EXP64)


def _exp_reduced(r: Expr) -> Expr:
    return _fma(_fma(_exp_tail(r), r, 1.0), r, 1.0)


def _decompose(x: Expr) -> tuple[Expr, Expr]:
    """(e, m): x = 2^e m with sqrt(1/2) <= m < sqrt(2), for positive finite x, denormal or not."""
    kind, width, bias = _BITS[x.dtype]
    is_tiny = _less(x, 2.0 ** (1 - bias))
    bits = bitcast(_where(is_tiny, _mul(x, 2.0 ** (width + 2)), x))
    root = _pattern(math.sqrt(0.5), x.dtype)
    moved = op("add", bits, const(_pattern(1.0, x.dtype) - root, kind))
    exponent = op("shift_right", moved, const(width, kind))
    m = bitcast(op("add", op("and", moved, const(2**width - 1, kind)), const(root, kind)))
    wide = bitcast(op("or", exponent, const(_pattern(2.0**width, x.dtype), kind)))
    e = _sub(wide, 2.0**width + bias)
    return _where(is_tiny, _sub(e, float(width + 2)), e), m


def _pattern(value: float, dtype: DType) -> int:
    kind = _BITS[dtype][0]
    return int(dtype.numpy.type(value).view(kind.numpy))


# ---------------------------------------------------------------- exponentials


def _exp(x: Expr) -> Expr:
    low, high = (-104.0, 89.0) if x.dtype is FLOAT32 else (-746.0, 710.0)
    n, r = _split(_clamp(x, low, high))
    return _scale(_exp_reduced(r), n)


def _exp_scaled(x: Expr, bias: float) -> Expr:
    """exp(x) 2^bias in one step of scaling, where that is a normal number."""
    kind, width, _ = _BITS[x.dtype]
    high, low = _LN2[x.dtype]
    magic = _magic(x.dtype) + bias
    t = _fma(x, _LOG2E, magic)
    n = _sub(t, magic)
    r = _fma(n, -low, _fma(n, -high, x))
    steps = op("shift_left", bitcast(t), const(width, kind))
    power = bitcast(op("add", steps, const(_pattern(1.0, x.dtype), kind)))
    return _mul(_exp_reduced(r), power)


def _exp_negative(x: Expr) -> Expr:
    """exp of x <= 0."""
    x = op("max", x, _like(x, _LEAST_EXPONENT[x.dtype]))
    return _mul(_exp_scaled(x, 64.0), 2.0**-64)


def _expm1_positive_scale(x: Expr) -> Expr:
    """exp(x) - 1 up to the sign of zero: 2 (s p + (s - 1/2)), s = 2^(n-1), p = exp(r) - 1."""
    n, r = _split(_clamp(x, -45.0, 710.0))
    p = _fma(_exp_tail(r), _mul(r, r), r)
    s = _two_to(_sub(n, 1.0))
    return _mul(_fma(s, p, _sub(s, 0.5)), 2.0)


def _expm1(x: Expr) -> Expr:
    return _signed(_expm1_positive_scale(x), x)


def _sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x)); where exp(-x) rounds to a power that is not finite, 0 and no denormal.

    So it is with the same formula in numpy. Denormals would slow down every kernel that reads them.
    """
    most = (_BITS[x.dtype][2] + 1) * math.log(2)  # exp of it is 2^(bias + 1): infinity
    e = _exp_scaled(_clamp(op("neg", x), -40.0, most), 0.0)
    return _div(_like(x, 1.0), _add(e, 1.0))


def _tanh(x: Expr) -> Expr:
    e = _expm1_positive_scale(_mul(op("abs", x), -2.0))
    return _signed(_div(e, _add(e, 2.0)), x)


def _sinh(x: Expr) -> Expr:
    a = op("abs", x)
    e = _expm1_positive_scale(a)
    small = _mul(_add(e, _div(e, _add(e, 1.0))), 0.5)
    h = _exp(_mul(a, 0.5))
    return _signed(_where(_less(a, 20.0), small, _mul(_mul(h, 0.5), h)), x)


def _cosh(x: Expr) -> Expr:
    h = _exp(_mul(op("abs", x), 0.5))
    return _add(_mul(_mul(h, 0.5), h), _div(_like(x, 0.5), _mul(h, h)))


# ---------------------------------------------------------------- logarithms


def _log_kernel(x: Expr, correction: Expr | None = None) -> Expr:
    """log(x) for positive finite x; `correction` is added with the low parts."""
    high, low = _LN2[x.dtype]
    e, m = _decompose(x)
    f = _sub(m, 1.0)
    half = _mul(_mul(f, f), 0.5)
    tail = _mul(e, low) if correction is None else _fma(e, low, correction)
    if x.dtype is FLOAT32:
        rest = _fma(_mul(_mul(f, f), f), _horner(f, _LOG32), tail)
        return _fma(e, high, _add(f, _sub(rest, half)))
    s = _div(f, _add(f, 2.0))
    z = _mul(s, s)
    rest = _fma(s, _fma(z, _horner(z, _LOG64), half), tail)
    return _fma(e, high, _sub(f, _sub(half, rest)))


def _log(x: Expr) -> Expr:
    r = _where(_less(x, math.inf), _log_kernel(x), x)
    r = _where(_is(x, 0.0), _like(x, -math.inf), r)
    return _where(_less(x, 0.0), _like(x, math.nan), r)


def _log1p(x: Expr) -> Expr:
    """log(u) + (x - (u - 1)) / u for u = 1 + x rounded"""
    u = _add(x, 1.0)
    # (1 - (u - x)) is exact where x is large, (x - (u - 1)) where it is small
    lost = _where(_less(x, 1.0), _sub(x, _sub(u, 1.0)), _sub(_like(x, 1.0), _sub(u, x)))
    r = _where(_less(x, math.inf), _log_kernel(u, _div(lost, u)), x)
    r = _where(_is(x, -1.0), _like(x, -math.inf), r)
    r = _where(_is(x, 0.0), x, r)
    return _where(_less(x, -1.0), _like(x, math.nan), r)


def _asinh(x: Expr) -> Expr:
    a = op("abs", x)
    square = _mul(a, a)
    root = op("sqrt", _add(square, 1.0))
    small = _log1p(_add(a, _div(square, _add(root, 1.0))))
    large = _add(_log(a), math.log(2))
    return _signed(_where(_less(a, 1e8), small, large), x)


def _acosh(x: Expr) -> Expr:
    t = _sub(x, 1.0)
    small = _log1p(_add(t, op("sqrt", _fma(t, t, _mul(t, 2.0)))))
    r = _where(_less(x, 1e8), small, _add(_log(x), math.log(2)))
    return _where(_less(x, 1.0), _like(x, math.nan), r)


def _atanh(x: Expr) -> Expr:
    a = op("abs", x)
    double = _mul(a, 2.0)
    below = _fma(double, _div(a, _sub(_like(x, 1.0), a)), double)
    above = _div(double, _sub(_like(x, 1.0), a))
    r = _mul(_log1p(_where(_less(a, 0.5), below, above)), 0.5)
    return _signed(r, x)


# ---------------------------------------------------------------- powers


def _two_sum(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """a + b and what rounding lost, for |a| >= |b| or a = 0"""
    total = _add(a, b)
    return total, _add(_sub(a, total), b)


def _two_product(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    product = _mul(a, b)
    return product, _fma(a, b, op("neg", product))


def _log_double(x: Expr) -> tuple[Expr, Expr]:
    """log(x) to about 68 bits as a sum of two, for positive finite x."""
    e, m = _decompose(x)
    f, g = _sub(m, 1.0), _add(m, 1.0)
    g_low = _sub(m, _sub(g, 1.0))
    s = _div(f, g)
    negative = op("neg", s)
    s_low = _div(_fma(negative, g_low, _fma(negative, g, f)), g)
    z, z_low = _two_product(s, s)
    z_low = _add(z_low, _mul(_mul(s, s_low), 2.0))
    third = _like(x, 2.0 / 3.0)
    v, v_low = _two_sum(third, _mul(z, _horner(z, _POW64)))
    v_low = _add(v_low, float.fromhex("0x1.5555555555555p-55"))
    w, w_low = _two_product(z, v)
    w_low = _add(w_low, _fma(z, v_low, _mul(z_low, v)))
    t, t_low = _two_sum(_like(x, 2.0), w)
    t_low = _add(t_low, w_low)
    p, p_low = _two_product(s, t)
    p_low = _add(p_low, _fma(s, t_low, _mul(s_low, t)))
    high, low = _LN2[FLOAT64]
    total, rest = _two_sum(_mul(e, high), p)
    return total, _add(rest, _fma(e, low, p_low))


def _exp_double(q: Expr, q_low: Expr) -> Expr:
    """exp(q + q_low) with one final rounding of 1 + ..., so that exact powers come out exact."""
    high, low = _LN2[FLOAT64]
    magic = _magic(FLOAT64)
    n = _sub(_fma(q, _LOG2E, magic), magic)
    r_high = _fma(n, -high, q)
    rest = _fma(n, -low, q_low)
    r, r_low = _two_sum(r_high, rest)
    tail = _fma(_exp_tail(r), _mul(r, r), r_low)
    return _scale(_add(_add(r, tail), 1.0), n)


def _pow64(x: Expr, y: Expr) -> Expr:
    """|x|^y"""
    base = op("min", op("abs", x), _like(x, float.fromhex("0x1.fffffffffffffp+1023")))
    log, log_low = _log_double(base)
    q, q_low = _two_product(y, log)
    q_low = _fma(y, log_low, q_low)
    inside = _less(op("abs", q), 760.0)
    q_low = _where(inside, q_low, _like(x, 0.0))
    return _exp_double(_clamp(q, -760.0, 760.0), q_low)


def _pow(x: Expr, y: Expr) -> Expr:
    if x.dtype is FLOAT32:
        wide = cast(op("abs", x), FLOAT64)
        finite = op("min", wide, const(2.0**200, FLOAT64))
        r = cast(_exp(_mul(cast(y, FLOAT64), _log_kernel(finite))), FLOAT32)
    else:
        r = _pow64(x, y)
    a, b = op("abs", x), op("abs", y)
    zero, one, inf = (_like(x, v) for v in (0.0, 1.0, math.inf))
    whole = _is(op("trunc", y), y)
    half = _mul(y, 0.5)
    odd = op("and", whole, op("ne", op("trunc", half), half))
    goes_up = op("eq", op("gt", a, one), op("gt", y, zero))  # |x|^y grows with |y|
    extreme = _where(goes_up, inf, zero)
    special = op("or", op("or", _is(a, 0.0), _is(a, inf)), _is(b, inf))
    r = _where(special, extreme, r)
    r = _where(op("and", _less(x, 0.0), op("not", whole)), _like(x, math.nan), r)
    r = _where(_is(x, -math.inf), extreme, r)
    negative = op("and", odd, _less(_signed(one, x), 0.0))
    r = _where(negative, op("neg", r), r)
    r = _where(op("and", _is(a, 1.0), _is(b, inf)), one, r)
    r = _where(op("ne", x, x), x, r)
    r = _where(op("ne", y, y), y, r)
    return _where(op("or", _is(y, 0.0), _is(x, 1.0)), one, r)


# ---------------------------------------------------------------- error function


def _erf(x: Expr) -> Expr:
    z, size = _mul(x, x), op("abs", x)
    if x.dtype is FLOAT32:
        small = _mul(x, _horner(z, _ERF32))
        erfc = _exp_negative(_horner(op("min", size, _like(x, 4.0)), _LOG_ERFC32))
    else:
        small = _mul(x, _horner(z, _ERF64))
        a = op("min", size, _like(x, 6.1))
        tail = _horner(_div(_sub(a, 3.0), _add(a, 3.0)), _ERFC64)
        erfc = _mul(_exp_negative(op("neg", _mul(a, a))), tail)
    large = _sub(_like(x, 1.0), erfc)
    return _where(_less(size, 1.0), small, _signed(large, x))


# ---------------------------------------------------------------- circular functions


def reduced(x: Expr) -> tuple[Expr, Expr]:
    """(r, n): x = n pi / 2 + r, for float64 |x| <= REDUCIBLE; n integral."""
    n = op("rint", _mul(x, 2 / math.pi))
    r = x
    for part in _HALF_PI:
        r = _fma(n, -part, r)
    return r, n


def circular(name: str, r: Expr, n: Expr) -> Expr:
    """sin, cos or tan (float64) of n pi / 2 + r."""
    z = _mul(r, r)
    sine = _fma(_mul(z, r), _horner(z, _SIN64), r)
    half = _mul(z, 0.5)
    w = _sub(_like(r, 1.0), half)
    # what 1 - z/2 lost comes back with the small terms
    lost = _sub(_sub(_like(r, 1.0), w), half)
    cosine = _add(w, _fma(_mul(z, z), _horner(z, _COS64), lost))
    quarter = _sub(n, _mul(op("floor", _mul(n, 0.25)), 4.0))  # 0 .. 3
    is_odd = op("or", _is(quarter, 1.0), _is(quarter, 3.0))
    if name == "tan":
        top = _where(is_odd, op("neg", cosine), sine)
        return _div(top, _where(is_odd, sine, cosine))
    if name == "sin":
        value, flip = _where(is_odd, cosine, sine), op("ge", quarter, _like(r, 2.0))
    else:
        value = _where(is_odd, sine, cosine)
        flip = op("or", _is(quarter, 1.0), _is(quarter, 2.0))
    return _where(flip, op("neg", value), value)


def _atan(x: Expr) -> Expr:
    a = op("abs", x)
    one = _like(x, 1.0)
    is_far, is_mid = op("gt", a, _like(x, math.sqrt(2) + 1)), op("gt", a, _like(x, 0.41421356))
    mid = _div(_sub(a, 1.0), _add(a, 1.0))
    t = _where(is_far, _div(op("neg", one), a), _where(is_mid, mid, a))
    low = _where(is_far, _like(x, _HALF_PI[1]), _like(x, _HALF_PI[1] / 2))
    low = _where(is_mid, low, _like(x, 0.0))
    base = _where(is_far, _like(x, math.pi / 2), _like(x, math.pi / 4))
    base = _where(is_mid, base, _like(x, 0.0))
    z = _mul(t, t)
    return _signed(_add(base, _add(_fma(_mul(z, t), _horner(z, _ATAN64), low), t)), x)


def _asin_small(t: Expr, z: Expr) -> Expr:
    """asin(t) for z = t^2 <= 1/4"""
    return _fma(_mul(z, t), _horner(z, _ASIN64), t)


def _asin(x: Expr) -> Expr:
    a = op("abs", x)
    is_large = op("gt", a, _like(x, 0.5))
    half = _mul(_sub(_like(x, 1.0), a), 0.5)
    z = _where(is_large, half, _mul(a, a))
    r = _asin_small(_where(is_large, op("sqrt", half), a), z)
    return _signed(_where(is_large, _sub(_like(x, math.pi / 2), _mul(r, 2.0)), r), x)


def _acos(x: Expr) -> Expr:
    a = op("abs", x)
    is_large = op("gt", a, _like(x, 0.5))
    half = _mul(_sub(_like(x, 1.0), a), 0.5)
    z = _where(is_large, half, _mul(a, a))
    r = _asin_small(_where(is_large, op("sqrt", half), x), z)
    double = _mul(r, 2.0)
    folded = _where(_less(x, 0.0), _sub(_like(x, math.pi), double), double)
    middle = _sub(_like(x, math.pi / 2), _sub(r, _HALF_PI[1]))
    return _where(is_large, folded, middle)


# ---------------------------------------------------------------- the table


UNARY: dict[str, Callable[[Expr], Expr]] = {
    "exp": _exp,
    "expm1": _expm1,
    "log": _log,
    "log1p": _log1p,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "erf": _erf,
    "sinh": _sinh,
    "cosh": _cosh,
    "asinh": _asinh,
    "acosh": _acosh,
    "atanh": _atanh,
    "atan": _atan,
    "asin": _asin,
    "acos": _acos,
}
_NARROW = frozenset({"exp", "log", "sigmoid", "tanh", "erf"})  # have a float32 form of their own
CIRCULAR = frozenset({"sin", "cos", "tan"})


def expand(name: str, args: Sequence[Expr]) -> Expr:
    """Operator `name` of float32 or float64 `args` in basic operators.

    sin, cos and tan: for |x| <= REDUCIBLE; beyond it, emission reduces the argument by itself.
    """
    if name == "pow":
        return _pow(args[0], args[1])
    x = args[0]
    if x.dtype is FLOAT32 and name not in _NARROW:
        return cast(expand(name, [cast(x, FLOAT64)]), FLOAT32)
    if name in CIRCULAR:
        r, n = reduced(x)
        return (
            _where(_is(x, 0.0), x, circular(name, r, n)) if name != "cos" else circular(name, r, n)
        )
    return UNARY[name](x)
