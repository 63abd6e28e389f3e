"""Our exp, log, tanh, ... against numpy's in extended precision: at most 4 ulp, specials exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fissile.codegen.math import CIRCULAR, UNARY, expand
from fissile.ir.dtype import FLOAT32, FLOAT64, DType
from fissile.ir.interpret import run_expr
from fissile.ir.loop import For, Function, Kind, Load, Store, buffer, op, var
from tests.codegen.harness import run, targets

Array = npt.NDArray[Any]
NAMES = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
}
SPECIAL = [
    0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.0, -2.0, 0.5, -0.5, 5e-324, 1e-45, -1e-45,
    1e-40, -1e-310, 1e-310, 709.78, 710.4, -745.1, -746.0, 88.72, 89.4, -103.9, -104.5, 3.0000001,
    1e300, -1e22, 6.02e23, 1073741824.0, 1073741825.0, 3.14159265358979, 1.5707963267948966,
]  # fmt: skip
EXTENDED = np.finfo(np.longdouble).nmant > 60


def kernel(name: str, dtype: DType, arity: int = 1) -> Function:
    n, i = var("n"), var("i")
    inputs = [buffer(f"in{x}", dtype, (n,)) for x in range(arity)]
    out = buffer("out", dtype, (n,))
    body = Store(out, (i,), op(name, *(Load(b, (i,)) for b in inputs)))
    return Function("f", (*inputs, out, n), For(i, n, body, Kind.VECTORIZED))


def samples(dtype: DType) -> Array:
    """All exponents of float32, drawn bits of float64, and where functions are interesting."""
    rng = np.random.default_rng(7)
    if dtype is FLOAT32:
        bits: Array = np.arange(0, 2**32, 2**32 // 16000, dtype=np.uint64).astype(np.uint32)
    else:
        bits = rng.integers(0, 2**64, 16000, dtype=np.uint64)
    near = [rng.standard_normal(4000) * s for s in (1e-3, 0.3, 1.0, 3.0, 30.0, 300.0)]
    near += [rng.uniform(-1, 1, 4000), 1 + rng.standard_normal(2000) * 1e-4]
    with np.errstate(all="ignore"):
        parts = [x.astype(dtype.numpy) for x in (np.array(SPECIAL), *near)]
    return np.concatenate([*parts, bits.view(dtype.numpy)])


def reference(name: str, x: Array) -> Array:
    """The function in extended precision; sigmoid is 0 where exp(-x) is infinity once its power is rounded."""
    with np.errstate(all="ignore"):
        least = np.longdouble(2) ** -(np.finfo(x.dtype).maxexp - 0.5)
        x = x.astype(np.longdouble)
        if name == "sigmoid":
            e = np.exp(-np.abs(x))
            return np.where(x >= 0, 1 / (1 + e), np.where(e < least, 0, e / (1 + e)))
        if name == "erf":
            return erf(x)
        return np.asarray(getattr(np, NAMES.get(name, name))(x))


def erf(x: Array) -> Array:
    """2 / sqrt(pi) exp(-x^2) sum 2^n x^(2n+1) / (2n+1)!!: nothing cancels."""
    z = np.minimum(np.abs(x), 7)
    term, total = z.copy(), z.copy()
    for n in range(1, 250):
        term = term * (2 * z * z) / (2 * n + 1)
        total = total + term
    half_pi = np.arctan2(np.longdouble(1), np.longdouble(0))
    value = np.minimum(total * np.exp(-z * z) / np.sqrt(half_pi / 2), 1)
    return np.copysign(np.where(np.isnan(x), np.nan, value), x)


def check(got: Array, want: Array, at: Array, limit: float = 4.0) -> None:
    """`got` within `limit` ulp of `want`; equal (sign included) where either is special."""
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
        both = np.isfinite(rounded) & np.isfinite(got)
        distance = np.abs(got.astype(np.longdouble) - want) / np.spacing(np.abs(rounded))
    wrong = both & ~(distance <= limit)
    wrong |= ~both & ~((np.isnan(got) & np.isnan(rounded)) | (got == rounded))
    wrong |= (got == 0) & (want == 0) & (np.signbit(got) != np.signbit(want))
    assert not wrong.any(), list(zip(at[wrong][:5], got[wrong][:5], want[wrong][:5]))


@pytest.mark.skipif(not EXTENDED, reason="no extended precision to compare with")
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=repr)
@pytest.mark.parametrize("name", sorted(UNARY.keys() | CIRCULAR))
def test_unary_functions(name: str, dtype: DType) -> None:
    x = samples(dtype)
    want = reference(name, x)
    for target in targets():
        got = run(kernel(name, dtype), target, {"in0": x, "out": np.zeros_like(x), "n": len(x)})[
            "out"
        ]
        check(got, want, x)


@pytest.mark.skipif(not EXTENDED, reason="no extended precision to compare with")
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=repr)
def test_pow(dtype: DType) -> None:
    rng = np.random.default_rng(3)
    odd = [*SPECIAL, 3.0, -3.0, 7.0, -7.0, 1.5, -1.5, 4e15, 9007199254740993.0, 1023.0, -1074.0]
    with np.errstate(all="ignore"):
        values = np.array(odd).astype(dtype.numpy)
    grid = np.meshgrid(values, values)
    a = np.concatenate([rng.uniform(0, 20, 9000), np.exp(rng.uniform(-80, 80, 9000))])
    b = np.concatenate([rng.uniform(-50, 50, 9000), rng.uniform(-8, 8, 9000)])
    x = np.concatenate([grid[0].ravel(), a.astype(dtype.numpy)])
    y = np.concatenate([grid[1].ravel(), b.astype(dtype.numpy)])
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
    for target in targets():
        args: dict[str, Any] = {"in0": x, "in1": y, "out": np.zeros_like(x), "n": len(x)}
        check(run(kernel("pow", dtype, 2), target, args)["out"], want, x)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=repr)
def test_integer_powers_are_exact(dtype: DType) -> None:
    base, exponent = np.meshgrid(np.arange(-40, 41), np.arange(0, 16))
    limit = 2 ** (np.finfo(dtype.numpy).nmant + 1)
    exact = [int(b) ** int(e) for b, e in zip(base.ravel(), exponent.ravel())]
    keep = np.array([abs(v) <= limit for v in exact])
    x, y = (a.ravel()[keep].astype(dtype.numpy) for a in (base, exponent))
    want = np.array([v for v, k in zip(exact, keep) if k]).astype(dtype.numpy)
    for target in targets():
        args: dict[str, Any] = {"in0": x, "in1": y, "out": np.zeros_like(x), "n": len(x)}
        np.testing.assert_array_equal(run(kernel("pow", dtype, 2), target, args)["out"], want)


@pytest.mark.parametrize("name", ["mod", "rem"])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=repr)
def test_remainders_are_exact_however_far_apart(name: str, dtype: DType) -> None:
    rng = np.random.default_rng(4)
    bits = rng.integers(0, 2 ** (8 * dtype.bytes), (2, 4000), dtype=np.uint64)
    x, y = bits.astype(f"u{dtype.bytes}").view(dtype.numpy)
    with np.errstate(all="ignore"):
        want = np.fmod(x, y) if name == "rem" else np.mod(x, y)
    for target in targets():
        args: dict[str, Any] = {"in0": x, "in1": y, "out": np.zeros_like(x), "n": len(x)}
        got = run(kernel(name, dtype, 2), target, args)["out"]
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got)[want == 0], np.signbit(want)[want == 0])


@pytest.mark.parametrize("name", sorted(UNARY))
def test_expansions_run_in_the_interpreter_too(name: str) -> None:
    x = var("x", FLOAT64)
    got = run_expr(expand(name, [x]), {x: 1.25})
    want = float(reference(name, np.array([1.25]))[0])
    assert got == pytest.approx(want, rel=1e-15, nan_ok=True)
