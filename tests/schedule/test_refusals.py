"""Every refusal of every step, by its reason."""

from __future__ import annotations

import pytest

from fissile.errors import ScheduleError
from fissile.ir.loop import const
from fissile.ir.text import parse
from fissile.schedule.steps import (
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
    Unroll,
    Vectorize,
    apply,
)

LOOPS = """
    for i in range(M):
        for j in range(N):
            C[i, j] = A[i, j]
"""
SUM = """
    for i in range(M):
        for j in range(8):
            C[i, 0] = C[i, 0] + A[i, j]
"""
TRIANGLE = """
    for i in range(M):
        for j in range(i):
            C[i, j] = A[i, j]
"""
STAGE = """
    T: scratch(float32[M])
    for t in range(M):
        T[t] = A[t, 0]
    for i in range(M):
        for j in range(N):
            C[i, j] = T[i]
"""
HALF = STAGE.replace("float32[M]", "float16[M]")
GATHER = """
    for i in range(M):
        C[I[i], 0] = A[i, 0]
"""

CASES: list[tuple[str, str, tuple[Step, ...]]] = [
    ('there is no loop jj; did you mean "j"', LOOPS, (Split("jj", 2),)),
    ("there are 2 loops called i", LOOPS + LOOPS, (Split("i", 2),)),
    ("the factor 0 is not positive", LOOPS, (Split("i", 0),)),
    ("the factor -1 is not positive", LOOPS, (Split("i", const(-1)),)),
    ("loop j_1 is unrolled already", LOOPS, (Split("j", 4), Unroll("j_1"), Split("j_1", 2))),
    ("j is not directly inside j", LOOPS, (Fuse("j", "j"),)),
    ("loops are parallel and serial", LOOPS, (Parallel("i"), Fuse("i", "j"))),
    ("extent of j is not the same for all i", TRIANGLE, (Fuse("i", "j"),)),
    ("every loop must be named once", LOOPS, (Reorder(("i", "i")),)),
    ("t not perfectly nested", STAGE, (Reorder(("i", "t")),)),
    ("loop i is parallel already", LOOPS, (Parallel("i"), Reorder(("j", "i")))),
    ("extent of j depends on a loop inside it", TRIANGLE, (Reorder(("j", "i")),)),
    (
        "i and j cannot change",
        """
    for i in range(M - 1):
        for j in range(N - 1):
            C[i + 1, j] = C[i, j + 1]
""",
        (Reorder(("j", "i")),),
    ),
    ("extent of j is not constant", LOOPS, (Vectorize("j"),)),
    ("extent of j is not constant", LOOPS, (Unroll("j"),)),
    ("a reduction needs Rfactor first", SUM, (Vectorize("j"),)),
    (
        "loop j is vectorized already",
        SUM.replace("C[i, 0]", "C[i, j]"),
        (Vectorize("j"), Split("i", 4), Vectorize("i_1")),
    ),
    ("differs from lane to lane", TRIANGLE.replace("(M)", "(4)"), (Vectorize("i"),)),
    ("loop j is not the whole function", LOOPS, (Parallel("j"),)),
    ("loop i is not the whole function", STAGE, (Parallel("i"),)),
    ("may be the same element", GATHER, (Parallel("i"),)),
    ("0 buffers called X are allocated", STAGE, (Inline("X"),)),
    ("storing T as float16 rounds", HALF, (Inline("T"),)),
    ("T is written by 2 statements", STAGE + "    T[0] = 1.0\n", (Inline("T"),)),
    ("changes before T is read", STAGE.replace("C[i, j]", "A[i, j]"), (Inline("T"),)),
    ("does not cover T", STAGE.replace("range(M)", "range(M - 1)", 1), (Inline("T"),)),
    ("not filled element by element", STAGE.replace("T[t] =", "T[M - 1 - t] ="), (Inline("T"),)),
    (
        "is read before it is filled",
        STAGE.replace("    for t", "    C[0, 0] = T[0]\n    for t"),
        (ComputeAt("T", "i"),),
    ),
    ("is read outside loop i too", STAGE + "    C[0, 0] = T[0]\n", (ComputeAt("T", "i"),)),
    (
        "T is not read in loop k",
        STAGE + "    for k in range(M):\n        C[k, 0] = 1.0\n",
        (ComputeAt("T", "k"),),
    ),
    ("C is local already", STAGE.replace("T", "C_").replace("C_", "C"), (CacheRead("C", "i"),)),
    ("C is written in loop i", LOOPS, (CacheRead("C", "i"),)),
    ("A is not written in loop i", LOOPS, (CacheWrite("A", "i"),)),
    ("X is not touched in loop i", LOOPS, (CacheRead("X", "i"),)),
    ("has no constant shape", LOOPS, (CacheWrite("C", "i"),)),
    ("loop j_1 is vectorized", LOOPS, (Split("j", 4), Vectorize("j_1"), CacheRead("A", "j_1"))),
    ("fewer than two lanes", SUM, (Rfactor("j", 1),)),
    ("does more than update one element", SUM, (Rfactor("i", 2),)),
    (
        "not updated by an associative operator",
        SUM.replace("C[i, 0] + ", "C[i, 0] - "),
        (Rfactor("j", 2),),
    ),
    (
        "the value depends on C itself",
        SUM.replace("+ A[i, j]", "+ A[i, j] * C[i, 0]"),
        (Rfactor("j", 2),),
    ),
    ("each j updates another element", SUM.replace("C[i, 0]", "C[i, j]"), (Rfactor("j", 2),)),
]


@pytest.mark.parametrize(
    ("reason", "body", "schedule"), CASES, ids=[f"{c[2][-1]}: {c[0]}"[:70] for c in CASES]
)
def test_refusal(reason: str, body: str, schedule: tuple[Step, ...]) -> None:
    head = "def f(A: float32[M, N], C: float32[M, N], I: int64[M], M: int64, N: int64):"
    f = parse(head + body)
    with pytest.raises(ScheduleError) as caught:
        apply(f, schedule)
    assert caught.value.code == "F420"
    assert reason in caught.value.reason
    assert type(schedule[-1]).__name__ in caught.value.message


def test_a_root_stage_stays_where_what_it_needs_changes() -> None:
    f = parse("""def f(A: float32[M], M: int64):
    for i in range(M - 1):
        T: register(float32[1])
        T[0] = A[i]
        A[i + 1] = T[0] * 2.0
""")
    with pytest.raises(ScheduleError, match="changes in loop i"):
        ComputeRoot("T").apply(f)
