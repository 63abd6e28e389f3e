"""Files that earlier versions wrote (tests/artifacts): they do what they did, or are refused with what to do.

Artifacts run in a child process, since code of another layout would write where it must not.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fissile
from fissile import compiler
from fissile.errors import ArtifactError, OptionError
from fissile.options import Options
from fissile.runtime import manifest
from fissile.runtime.abi import ABI, BEFORE_ABI
from fissile.runtime.artifact import check_members, read_artifact
from fissile.runtime.store import FORMAT, Store, StoreToRead
from fissile.target import missing_features, named

ROOT = Path(__file__).parents[2]
STORED = ROOT / "tests/artifacts/dcbf5a7"
MODELS = ("plain", "free", "foreign", "gang")
RUN = """
import json, sys
import numpy as np
import fissile
stored, name, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
made = fissile.load(f"{stored}/{name}.fsl", threads=threads, verify=True)
with np.load(f"{stored}/cases.npz") as cases:
    parts = [key.split("/") for key in cases.files if key.startswith(f"{name}/")]
    outputs = 0
    for call in sorted({call for _, call, _ in parts}):
        for _ in range(3):
            results = made.run({"x": cases[f"{name}/{call}/x"]})
        for output, found in results.items():
            wanted = cases[f"{name}/{call}/{output}"]
            assert found.dtype == wanted.dtype and np.array_equal(found, wanted), (call, output)
            outputs += 1
print(json.dumps([outputs, made.foreign]))
"""
needs_v3 = pytest.mark.skipif(
    bool(missing_features(named("x86-64-v3").features)), reason="this CPU runs no x86-64-v3"
)


@needs_v3
@pytest.mark.skipif(ABI != BEFORE_ABI, reason="artifacts without a number have another layout")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", sorted({*MODELS} - {"foreign"}))
def test_artifacts_run_with_the_same_results(name: str, threads: int) -> None:
    command = [sys.executable, "-c", RUN, str(STORED), name, str(threads)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    outputs, foreign = json.loads(done.stdout)
    assert outputs == {"plain": 1, "free": 6, "gang": 2}[name]
    assert not foreign


@pytest.mark.skipif(ABI != BEFORE_ABI, reason="artifacts without a number have another layout")
@needs_v3
def test_launches_that_may_come_too_early_are_refused_with_the_command() -> None:
    """What dcbf5a7 wrote does not say which of its launches depend on what a call decides."""
    with pytest.raises(ArtifactError, match="F113") as caught:
        fissile.load(STORED / "foreign.fsl")
    assert caught.value.remedy == ("fissile compile foreign.onnx -o foreign.fsl",)


@pytest.mark.parametrize("name", MODELS)
def test_artifacts_are_whole(name: str) -> None:
    if ABI == BEFORE_ABI:
        artifact = read_artifact(STORED / f"{name}.fsl")
        check_members(artifact)
        assert "abi" not in artifact.manifest
        return
    with pytest.raises(ArtifactError, match="F113"):
        read_artifact(STORED / f"{name}.fsl")


@pytest.mark.parametrize("later", [1, 7])
def test_another_layout_is_refused_with_the_command(
    later: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "ABI", ABI + later)
    with pytest.raises(ArtifactError, match="F113") as caught:
        fissile.load(STORED / "free.fsl")
    assert caught.value.remedy == ("fissile compile free.onnx -o free.fsl",)
    assert f"layout {BEFORE_ABI}; this fissile runs layout {ABI + later}" in str(caught.value)
    assert "0.1.0" in caught.value.reason


@pytest.mark.parametrize("name", MODELS)
def test_plan_files_are_valid_for_one_minor_version(name: str) -> None:
    plan = STORED / f"{name}.plan.json"
    source, options = STORED / f"{name}.onnx", Options(plan=plan)
    steps = json.loads(plan.read_text(encoding="utf-8"))["steps"]
    if _fits(source, plan):
        text = compiler.plan_file(source, target="x86-64-v3", options=options)
        assert json.loads(text)["steps"] == steps
        return
    with pytest.raises(OptionError, match="F612") as caught:
        compiler.plan_file(source, target="x86-64-v3", options=options)
    assert "valid for one minor version" in caught.value.reason
    assert "--save-plan" in caught.value.remedy[0]


def _fits(source: Path, plan: Path) -> bool:
    """Whether the graph that the model becomes is still that of the plan file."""
    now = json.loads(compiler.plan_file(source, target="x86-64-v3"))
    return bool(now["graph"] == json.loads(plan.read_text(encoding="utf-8"))["graph"])


def test_a_plan_file_of_another_minor_version_is_refused(tmp_path: Path) -> None:
    source, path = STORED / "free.onnx", tmp_path / "plan.json"
    text = compiler.plan_file(source)
    assert '"version":"0.1"' in text
    path.write_text(text.replace('"version":"0.1"', '"version":"0.0"'), encoding="utf-8")
    with pytest.raises(OptionError, match="F612") as caught:
        compiler.plan_file(source, options=Options(plan=path))
    assert "made by fissile 0.0, this is 0.1" in caught.value.reason
    assert "valid for one minor version" in caught.value.reason


def test_stores_stay_readable(tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    shutil.copy(STORED / "tuning.sqlite", path)
    with StoreToRead([path]) as store:
        rows = store.rows()
        assert rows
        assert all(len(store.records(row.key)) >= 1 for row in rows)
        assert store.stamp()
    with Store([path]) as store:
        store.add(rows[0].key, store.records(rows[0].key)[0])
        assert len(store.rows()) == len(rows) + 1
    assert FORMAT >= 1
