"""Any program, any schedule: the same meaning, or a refusal. And each law on one example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fissile.errors import ScheduleError
from fissile.ir.dtype import BOOL
from fissile.ir.interpret import footprint, interpret
from fissile.ir.loop import Alloc, Buffer, For, Function, Kind, Space, Var, const, statements, var
from fissile.ir.simplify import simplify_function
from fissile.ir.text import parse, show
from fissile.ir.verify import problems
from fissile.schedule.steps import (
    STEPS,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeRoot,
    Fuse,
    Inline,
    Parallel,
    Reorder,
    Rfactor,
    Split,
    Step,
    Tensorize,
    Unroll,
    Vectorize,
    View,
    apply,
)

MATMUL = parse("""def mm(A: float32[M, K], B: float32[K, N], C: float32[M, N],
                         M: int64, N: int64, K: int64):
    for mi in range(M):
        for ni in range(N):
            C[mi, ni] = 0.0
    for m in range(M):
        for n in range(N):
            for k in range(K):
                C[m, n] = fma(A[m, k], B[k, n], C[m, n])
""")
NAIVE = parse("""def naive(A: int32[M, 12], B: int32[12, N], C: int32[M, N], M: int64, N: int64):
    for m in range(M):
        for n in range(N):
            acc: register(int32[1])
            acc[0] = const(0, int32)
            for k in range(12):
                acc[0] = acc[0] + A[m, k] * B[k, n]
            C[m, n] = acc[0]
""")
STAGES = parse("""def stages(A: float32[M, N], C: float32[M, N], S: float32[M], M: int64, N: int64):
    T: scratch(float32[M, N])
    for i in range(M):
        for j in range(N):
            T[i, j] = A[i, j] * A[i, j] + 1.0
    for p in range(M):
        total: register(float32[()])
        total[()] = 0.0
        for r in range(N):
            total[()] = total[()] + T[p, r]
        S[p] = total[()]
        for q in range(N):
            C[p, q] = T[p, q] + (T[p, q - 1] if q > 0 else 0.0)
""")
LOCAL = parse("""def local(A: float32[M, N], C: float32[M], M: int64, N: int64):
    for p in range(M):
        shift: float32 = A[p, 0] if N > 0 else 0.0
        if p < M - 1:
            T: scratch(float32[N])
            for r in range(N):
                T[r] = max(A[p, r], A[p + 1, r])
            C[p] = shift
            for s in range(N):
                C[p] = C[p] + T[s]
""")
TRANSPOSE = parse("""def transpose(A: int64[M, N, 5], C: int64[5, N, M], M: int64, N: int64):
    for i in range(M):
        for j in range(N):
            for k in range(5):
                C[k, j, i] = A[i, j, k] + i * 100
""")
SCAN = parse("""def scan(A: int64[N, M], M: int64, N: int64):
    for i in range(N):
        for j in range(M):
            A[i, j] = A[i, j] + (A[i - 1, j] if i > 0 else 1)
""")
REDUCE = parse("""def reduce(A: int32[M, N], C: int32[M], D: bool[M], M: int64, N: int64):
    for i in range(M):
        C[i] = const(-99, int32)
        D[i] = True
        for j in range(N):
            C[i] = max(C[i], A[i, j])
        for k in range(N):
            D[i] = D[i] & (A[i, k] < const(3, int32))
""")
SKEW = parse("""def skew(A: int64[M + 1, N + 1], C: int64[1], M: int64, N: int64):
    for i in range(M):
        for j in range(N):
            A[i + 1, j] = A[i, j + 1] + j
    for p in range(3):
        for q in range(M):
            C[0] = C[0] * 3 + A[q, 0] + p
""")
CORPUS = (MATMUL, NAIVE, STAGES, LOCAL, TRANSPOSE, SCAN, REDUCE, SKEW)
Extents = tuple[int, ...]


def _arguments(f: Function, extents: Sequence[int]) -> dict[str, Any]:
    scalars = [p for p in f.params if isinstance(p, Var)]
    values = dict(zip(scalars, extents))
    draw = np.random.default_rng(3)
    args: dict[str, Any] = {v.name: x for v, x in values.items()}
    for p in f.params:
        if isinstance(p, Buffer):
            high = 2 if p.dtype is BOOL else 5
            low = 0 if p.dtype is BOOL else -4
            args[p.name] = draw.integers(low, high, footprint(p, values)).astype(p.dtype.numpy)
    return args


def same(before: Function, after: Function, extents: Sequence[int]) -> None:
    """Both give the same arrays; small whole numbers make every order of summation exact."""
    assert problems(after) == [], show(after)
    expected = _arguments(before, extents)
    interpret(before, expected)
    for program in (after, simplify_function(after)):
        for backwards in (False, True):
            found = _arguments(before, extents)
            interpret(program, found, backwards=backwards)
            for name, value in expected.items():
                np.testing.assert_array_equal(found[name], value, err_msg=show(program))


def _names(f: Function) -> list[str]:
    return [s.var.name for s in statements(f.body) if isinstance(s, For)]


def _buffers(f: Function) -> list[str]:
    own = [s.buffer.name for s in statements(f.body) if isinstance(s, Alloc)]
    return own + [p.name for p in f.params if isinstance(p, Buffer)]


@st.composite
def _step(draw: st.DrawFn, f: Function) -> Step:
    loop = st.sampled_from(_names(f))
    buffer = st.sampled_from(_buffers(f))
    kind = draw(st.sampled_from(STEPS[:-1]))
    if kind is Split:
        return Split(draw(loop), draw(st.sampled_from([1, 2, 3, 4])))
    if kind is Rfactor:
        return Rfactor(draw(loop), draw(st.sampled_from([2, 3, 4])))
    if kind is Fuse:
        return Fuse(draw(loop), draw(loop))
    if kind is Reorder:
        return Reorder(tuple(draw(st.lists(loop, min_size=1, max_size=4, unique=True))))
    if kind in (Inline, ComputeRoot):
        return Inline(draw(buffer)) if kind is Inline else ComputeRoot(draw(buffer))
    if kind is ComputeAt:
        return ComputeAt(draw(buffer), draw(loop))
    if kind in (CacheRead, CacheWrite):
        space = draw(st.sampled_from([Space.REGISTER, Space.SCRATCH]))
        make = CacheRead if kind is CacheRead else CacheWrite
        return make(draw(buffer), draw(loop), space)
    if kind is Vectorize:
        return Vectorize(draw(loop))
    return Parallel(draw(loop)) if kind is Parallel else Unroll(draw(loop))


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_schedule_keeps_the_meaning(data: st.DataObject) -> None:
    f = data.draw(st.sampled_from(CORPUS))
    extents = data.draw(st.tuples(*[st.sampled_from([0, 1, 2, 3, 5, 7])] * 3))
    g = f
    for _ in range(data.draw(st.integers(1, 6))):
        step = data.draw(_step(g))
        try:
            g = step.apply(g)
        except ScheduleError:
            continue
    same(f, g, extents)


TILED = (
    Split("m", 4),
    Split("n", 8),
    Reorder(("m_0", "n_0", "k", "m_1", "n_1")),
    CacheWrite("C", "n_0"),
    CacheRead("B", "n_0"),
    Unroll("m_1"),
    Vectorize("n_1"),
)
SCHEDULES: list[tuple[str, Function, tuple[Step, ...]]] = [
    ("tiled", MATMUL, TILED),
    ("symbolic", MATMUL, (Split("m", var("N")), Split("k", 3))),
    ("blocked", MATMUL, (Split("k", 4), Reorder(("k_0", "m", "n", "k_1")), Unroll("k_1"))),
    ("fused", TRANSPOSE, (Fuse("i", "j"), Fuse("i_j", "k"), Split("i_j_k", 4), Unroll("i_j_k_1"))),
    ("tasks", TRANSPOSE, (Reorder(("k", "j", "i")), Fuse("k", "j"), Parallel("k_j"))),
    ("tasks split", NAIVE, (Split("m", 3), Parallel("m_0"), CacheRead("A", "m_0"))),
    ("rows", NAIVE, (Fuse("m", "n"), Split("m_n", 4), Parallel("m_n_0"))),
    ("lanes", NAIVE, (Rfactor("k", 4), Vectorize("k_1"), Unroll("k_0"))),
    ("odd lanes", NAIVE, (Rfactor("k", 5), Vectorize("k_1"))),
    ("maximum", REDUCE, (Rfactor("j", 3), Rfactor("k", 2), Vectorize("k_1"))),
    ("at row", STAGES, (ComputeAt("T", "p"), Parallel("p"))),
    ("at row and back", STAGES, (ComputeAt("T", "p"), ComputeRoot("T"))),
    ("inlined", STAGES, (Inline("T"), Parallel("p"))),
    ("hoisted", LOCAL, (ComputeRoot("T"),)),
    ("columns", SCAN, (Split("j", 2), Vectorize("j_1"))),
    ("kept in registers", REDUCE, (CacheWrite("C", "i"), CacheWrite("D", "i"), Parallel("i"))),
]


@pytest.mark.parametrize("extents", [(5, 7, 3), (1, 13, 2), (8, 4, 12), (3, 1, 0)])
@pytest.mark.parametrize(
    ("f", "schedule"), [c[1:] for c in SCHEDULES], ids=[c[0] for c in SCHEDULES]
)
def test_schedule(f: Function, schedule: tuple[Step, ...], extents: Extents) -> None:
    same(f, apply(f, schedule), extents)


def test_replay_gives_the_same_program() -> None:
    assert apply(MATMUL, TILED) == apply(MATMUL, TILED)


def test_split_guards_only_what_may_be_outside() -> None:
    assert "if" not in show(Split("k", 4).apply(NAIVE))
    assert "if k_0 * 5 + k_1 < 12" in show(Split("k", 5).apply(NAIVE))
    assert "if m_0 * 4 + m_1 < M" in show(Split("m", 4).apply(NAIVE))
    twice = apply(NAIVE, [Split("m", 4), Split("m_0", 2)])
    assert {"m_0_0", "m_0_1", "m_1"} <= set(_names(twice))


def test_compute_at_keeps_only_what_an_iteration_reads() -> None:
    f = ComputeAt("T", "p").apply(STAGES)
    assert "T: scratch(float32[1, N])" in show(f)


def test_cache_write_reads_first_only_where_it_must() -> None:
    assert "C_cache_0" in _names(CacheWrite("C", "n").apply(MATMUL))
    assert "C_cache_0" not in _names(CacheWrite("C", "i").apply(REDUCE))


TILE = parse("""def tile(a: float32[4, K], b: float32[K, 8], c: float32[4, 8], K: int64):
    acc: register(float32[4, 8])
    for i in range(4):
        for j in range(8):
            acc[i, j] = c[i, j]
    for k in range(K):
        for p in unrolled(4):
            for q in vectorized(8):
                acc[p, q] = fma(a[p, k], b[k, q], acc[p, q])
    for u in range(4):
        for v in range(8):
            c[u, v] = acc[u, v]
""")


def _tile_parts(transposed: bool = False) -> tuple[Function, Tensorize]:
    f = parse("""def mm(A: float32[16, K], B: float32[K, 24], C: float32[16, 24], K: int64):
    for m in range(4):
        for n in range(3):
            for i in range(4):
                for j in range(8):
                    for k in range(K):
                        C[m * 4 + i, n * 8 + j] = fma(
                            A[m * 4 + i, k], B[k, n * 8 + j], C[m * 4 + i, n * 8 + j])
""")
    a, b, c = (p for p in f.params if isinstance(p, Buffer))
    m, n = var("m"), var("n")
    row, column = parse_index("m * 4"), parse_index("n * 8")
    bind = (
        ("a", View(a, (row, const(0)), (1, 0) if transposed else (0, 1))),
        ("b", View(b, (const(0), column), (0, 1))),
        ("c", View(c, (row, column), (0, 1))),
        ("K", var("K")),
    )
    assert m is not n
    return f, Tensorize("i", TILE, bind)


def parse_index(text: str) -> Any:
    """An int64 expression of m and n."""
    f = parse(f"def f(z: int64[()], m: int64, n: int64):\n    z[()] = {text}")
    return f.body.value  # type: ignore[union-attr]


def test_tensorize_puts_the_tile_in() -> None:
    f, step = _tile_parts()
    g = step.apply(f)
    assert any(s.kind is Kind.VECTORIZED for s in statements(g.body) if isinstance(s, For))
    same(f, g, (3,))
    same(f, apply(f, [step, Parallel("m")]), (5,))


def test_tensorize_refuses_another_meaning() -> None:
    f, step = _tile_parts(transposed=True)
    with pytest.raises(ScheduleError, match="computes another C|reaches outside"):
        step.apply(f)
    with pytest.raises(ScheduleError, match="parameter K is not bound"):
        Tensorize("i", TILE, step.bind[:3]).apply(f)
    with pytest.raises(ScheduleError, match="tile computes another C"):
        Tensorize("j", TILE, step.bind).apply(f)
