"""Plan files: what is read back is the same plan, the build is the same to the byte, and misfits are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fissile
from fissile import demo
from fissile.errors import FileMissing, OptionError
from fissile.options import Options, resolve_target
from fissile.orchestrate.plan import Plan
from fissile.orchestrate.plan_file import plan_text, read_plan
from fissile.pipeline import Work, run


@pytest.fixture(scope="module")
def work() -> Work:
    made = Work(demo.network(), None, (resolve_target(),), 1, Options())
    return run(made, lambda event: None, "plan")


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
        {"graph": "0"}, {"fissile_plan": 99}, {"steps": []}, {"steps": [[["elementwise"]]]},
        {"steps": [[["odd", [0], [0], [0], 0]]]}, {"steps": 3},
    ],
)  # fmt: skip
def test_misfits_are_refused(work: Work, change: dict[str, object]) -> None:
    document = json.loads(plan_text(work.known("plan"))) | change
    with pytest.raises(OptionError, match="F612"):
        read_plan(json.dumps(document), work.known("graph"))


def test_what_is_no_plan_file_is_refused(work: Work, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="F612"):
        read_plan("[]", work.known("graph"))
    with pytest.raises(FileMissing, match="F501"):
        fissile.compile(demo.network(), options=Options(plan=tmp_path / "none"), cache=False)
