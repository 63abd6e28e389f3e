"""Levels that have no whole command of their own: a stage between fission and plan whose rule is wrong."""

from dataclasses import replace

import numpy as np
import pytest

from fissile.compare.bisect import Case, symbol_values, wrong_rule
from fissile.ir.dim import symbol
from fissile.ir.graph import Graph, evaluate, make
from fissile.ir.primitive import INPUT, PRIMITIVES
from fissile.options import Options
from fissile.pipeline import Stage, Work
from fissile.rewrite.rule import RULES, Refused, Rule

N = symbol("n")
X = make(INPUT, name="x", dtype="float32", shape=(2 * N + 1, 3))
RIGHT = Graph((X,), (("y", make(PRIMITIVES["sigmoid"], X)),))
WRONG = Graph((X,), (("y", make(PRIMITIVES["tanh"], X)),))
FEEDS = {"x": np.arange(15, dtype=np.float32).reshape(5, 3)}
CASE = Case(FEEDS, "reference", 1e-4)


def plant(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    rule = Rule(name, "law", ("add",), lambda node: Refused(""), "tests", "substitute")
    monkeypatch.setitem(RULES, name, rule)


def find(stage: Stage) -> tuple[str, str]:
    extents = symbol_values(RIGHT, FEEDS)
    assert extents == {"n": 2}
    work = replace(Work("", None, (), 1, Options()), graph=RIGHT)
    found = wrong_rule(stage, work, evaluate(RIGHT, FEEDS, extents), CASE, extents)
    assert found.found.max_rel > 1e-4
    return found.level, found.name


def test_the_rule_without_which_the_stage_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second", "third"):
        plant(monkeypatch, name)

    def run(work: Work) -> Work:
        return replace(work, graph=RIGHT if "second" in work.options.disable else WRONG)

    assert find(Stage("substitute", run, str, str)) == ("rule", "second")


def test_a_stage_that_is_wrong_by_itself() -> None:
    stage = Stage("mangle", lambda work: replace(work, graph=WRONG), str, str)
    assert find(stage) == ("stage", "mangle")
