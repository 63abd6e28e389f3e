"""`bench/enumerate.py` on two primitives: what it finds is equal, and the rules know what they were written for."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

PATH = Path(__file__).parents[2] / "bench" / "enumerate.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("enumerate_bench", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_equal_values_are_found_and_confirmed(bench: ModuleType) -> None:
    pool = bench.enumerated(2)
    assert pool.tried > 5000
    assert len(pool.pairs) > 1000
    chosen = np.random.default_rng(0).permutation(len(pool.pairs))[:40]
    assert sum(bench.is_confirmed(*pool.pairs[k]) for k in chosen) > 30


def test_a_coincidence_is_no_equality(bench: ModuleType) -> None:
    x, y = bench.Term("x"), bench.Term("y")
    assert bench.is_confirmed(bench.Term("add", (x, y)), bench.Term("add", (y, x)))
    assert not bench.is_confirmed(bench.Term("sub", (x, y)), bench.Term("sub", (y, x)))
    assert not bench.is_confirmed(bench.Term("exp", (x,)), x)


def term(bench: ModuleType, text: str) -> Any:
    """The term that prints so."""
    stack: list[list[Any]] = [[]]
    for name, mark in re.findall(r"(\w+)|([(),])", text):
        if name:
            stack[-1].append((name, []))
        elif mark == "(":
            stack.append(stack[-1][-1][1])
        elif mark == ")":
            stack.pop()

    def made(row: tuple[str, list[Any]]) -> Any:
        return bench.Term(row[0], tuple(map(made, row[1])))

    return made(stack[0][0])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("add(dot(x, w), dot(x, v))", "dot(x, add(w, v))"),
        ("add(dot(x, w), dot(y, w))", "dot(add(x, y), w)"),
        ("first0(dot(x, w))", "dot(first0(x), w)"),
        ("sum0(dot(x, w))", "dot(sum0(x), w)"),
        ("mul(dot(x, w), c)", "dot(mul(x, c), w)"),
        ("exp(twice0(x))", "twice0(exp(x))"),
        ("exp(rest1(x))", "rest1(exp(x))"),
        ("sum1(join1(x, y))", "add(sum1(x), sum1(y))"),
        ("t(t(x))", "x"),
    ],
)
def test_known_laws_are_subsumed(bench: ModuleType, left: str, right: str) -> None:
    a, b = (term(bench, text) for text in (left, right))
    assert bench.is_confirmed(a, b)
    assert bench.Judge().verdict(a, b) != bench.UNKNOWN
