"""Plan files: what is read back is the same plan, the build is the same to the byte, and misfits are refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fissile
from fissile import demo
from fissile.errors import FileMissing, OptionError
from fissile.ir.graph import Graph
from fissile.options import Options, resolve_target
from fissile.orchestrate.plan import Plan
from fissile.orchestrate.plan_check import check_plan
from fissile.orchestrate.plan_file import plan_text, read_plan, steps_hash
from fissile.pipeline import Work, run


@pytest.fixture(scope="module")
def work() -> Work:
    made = Work(demo.network(), None, (resolve_target(),), 1, Options())
    return run(made, lambda event: None, "plan")


@pytest.fixture(scope="module")
def plan(work: Work) -> Plan:
    found: Plan = work.known("plan")
    return found


@pytest.fixture(scope="module")
def graph(work: Work) -> Graph:
    found: Graph = work.known("graph")
    return found


def test_a_plan_comes_back(work: Work) -> None:
    plan: Plan = work.known("plan")
    text = plan_text(plan)
    assert read_plan(text, work.known("graph")) == plan
    assert plan_text(read_plan(text, work.known("graph"))) == text


def test_builds_from_a_plan_file_are_equal(work: Work, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan_text(work.known("plan")))
    made = []
    for k in range(2):
        executable = fissile.compile(demo.network(), options=Options(plan=path), cache=False)
        assert "certificate" not in executable.manifest
        executable.save(tmp_path / f"{k}.fsl")
        made.append((tmp_path / f"{k}.fsl").read_bytes())
    assert made[0] == made[1]
    assert Options(plan=path).key() != Options().key()


@pytest.mark.parametrize(
    "change",
    [
        {"graph": "0"}, {"fissile_plan": 99}, {"fissile_plan": 1}, {"steps": []}, {"steps": 3},
        {"steps": [[["elementwise"]]]}, {"steps": [[["odd", [0], [0], [0], 0]]]}, {"sha256": None},
        {"steps": [[["elementwise", [2.0], [0], [2], 0]]]}, {"steps": [[3]]}, {"steps": [None]},
    ],
)  # fmt: skip
def test_misfits_are_refused(work: Work, change: dict[str, object]) -> None:
    document = json.loads(plan_text(work.known("plan"))) | change
    for made in (document, rehashed(document)):
        with pytest.raises(OptionError, match="F612"):
            read_plan(json.dumps(made | {k: v for k, v in change.items() if v is None}), work.known("graph"))


def rehashed(document: dict[str, Any]) -> dict[str, Any]:
    """A document whose hash is that of its steps."""
    steps = document["steps"]
    return document | ({"sha256": steps_hash(steps)} if isinstance(steps, list) else {})


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.randoms(use_true_random=False))
def test_a_damaged_plan_is_refused_or_the_same(plan: Plan, graph: Graph, rng: random.Random) -> None:
    """Numbers, lists and kernels that are lost, doubled or others; with a hash that fits, too."""
    document = json.loads(plan_text(plan))
    step = rng.choice(document["steps"])
    row = rng.choice(step)
    place = rng.choice([step, *row[1:4]])
    at = rng.randrange(len(place)) if place else 0
    number = rng.randrange(-3, len(plan.graph.nodes()) + 2)
    other: list[Any] = rng.choice([[], place[at : at + 1] * 2, [number]])
    place[at : at + 1] = [row[:2]] if place is step and other == [number] else other
    codes: set[str] = set()
    same = document == json.loads(plan_text(plan))
    for made in (document, rehashed(document)):
        try:
            found = read_plan(json.dumps(made), graph)
        except OptionError as error:
            codes.add(error.code)
            continue
        assert same or made is not document
        check_plan(found)
    assert codes <= {"F612"}


def test_what_is_no_plan_file_is_refused(work: Work, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="F612"):
        read_plan("[]", work.known("graph"))
    with pytest.raises(FileMissing, match="F501"):
        fissile.compile(demo.network(), options=Options(plan=tmp_path / "none"), cache=False)
