"""`fissile bench`: its records, its refusals and its look, on a network of eleven operators."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from fissile.compare.bench import Bench, Record, check_engines
from fissile.compare.engine import ENGINES
from fissile.compare.feeds import complete_feeds, low_ends
from fissile.compare.table import text
from fissile.errors import OptionError
from fissile.runtime.plan import TensorInfo

from .conftest import Command

RIVAL = "onnxruntime"
FACTS = {"cpu": "X", "allowed": 2, "target": "x86-64-v3", "load": 0.1}


def test_two_engines_side_by_side(fissile: Command, model: Path, tmp_path: Path) -> None:
    pytest.importorskip(RIVAL)
    out = tmp_path / "out.json"
    shapes = ("--shape", "n=2", "--shape", "h=17", "--shape", "w=19")
    done = fissile("bench", model, *shapes, "--rounds", 5, "--threads", "1,2", "--json", out,
                   "--against", f"{RIVAL},torch", "--fail-below", "0.0001")  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    records = [(r["engine"], r["threads"]) for r in found["records"]]
    assert records == [("fissile", 1), (RIVAL, 1), ("fissile", 2), (RIVAL, 2)]
    for record in found["records"]:
        assert record["shape"] == {"x": [2, 3, 17, 19]}
        assert 0 < record["p10_seconds"] <= record["median_seconds"] <= record["p90_seconds"]
        assert record["ratio_low"] <= record["ratio_high"]
        assert record["runs"] == 5 == len(found["samples"][f"{record['engine']} {record['threads']}"])
        assert 0 < record["loaded_bytes"] <= record["peak_bytes"]
    assert found["records"][0]["max_rel_diff"] < 1e-4
    assert found["records"][1]["max_rel_diff"] is None
    assert set(found["noise"]) == {"1", "2"}
    assert "fissile against itself" in done.stdout
    if find_spec("torch") is None:
        assert "pip install torch" in done.stdout


def test_an_artifact_finds_its_model_and_the_answer_may_be_no(
    fissile: Command, model: Path, tmp_path: Path
) -> None:
    pytest.importorskip(RIVAL)
    artifact = tmp_path / "demo.fsl"
    assert fissile("compile", model, "-o", artifact).returncode == 0
    lost = fissile("bench", artifact, "--against", RIVAL, "--rounds", 5)
    assert lost.returncode == 1
    assert "--model FILE" in lost.stderr
    options = ("--against", RIVAL, "--rounds", 5, "--model", model, "--json", "--fail-below", 1e9)
    done = fissile("bench", artifact, *options)
    assert done.returncode == 3, done.stderr
    assert len(json.loads(done.stdout)["records"]) == 2


def test_a_rival_that_fails_is_named(fissile: Command, model: Path) -> None:
    pytest.importorskip(RIVAL)
    break_it = (
        "import fissile.compare.bench as b\n"
        "whole = b.Child.ask\n"
        "def ask(self, action, **a):\n"
        "    if self.engine == 'onnxruntime': a['path'] = '/nowhere.onnx'\n"
        "    return whole(self, action, **a)\n"
        "b.Child.ask = ask"
    )
    done = fissile("bench", model, "--against", RIVAL, "--rounds", 5, code=break_it)
    assert done.returncode == 0, done.stderr
    assert "nowhere.onnx" in done.stdout


def test_a_rival_that_takes_too_long_is_named(fissile: Command, model: Path) -> None:
    pytest.importorskip(RIVAL)
    slow = (
        "import fissile.compare.bench as b\n"
        "whole = b.Child.ask\n"
        "def ask(self, action, **a):\n"
        "    if action == 'load' and self.engine == 'onnxruntime': a['patience'] = 0.0\n"
        "    return whole(self, action, **a)\n"
        "b.Child.ask = ask"
    )
    done = fissile("bench", model, "--against", RIVAL, "--rounds", 5, code=slow)
    assert done.returncode == 0, done.stderr
    assert "not done after 0 s" in done.stdout


def test_torch_means_the_same(fissile: Command, model: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip(RIVAL)
    options = ("--against", f"{RIVAL},torch", "--rounds", 5, "--shape", "n=3", "--shape", "h=17")
    done = fissile("bench", model, *options, "--shape", "w=19", "--json")
    assert done.returncode == 0, done.stderr
    rows = {r["engine"]: r for r in json.loads(done.stdout)["records"]}
    assert rows["torch"]["max_rel_diff"] < 1e-5


def test_unknown_engines_are_refused() -> None:
    with pytest.raises(OptionError, match="onnxruntime"):
        check_engines(["onnxruntim"])
    with pytest.raises(OptionError):
        check_engines(["fissile"])
    check_engines([name for name in ENGINES if name != "fissile"])


def test_drawn_feeds() -> None:
    infos = (
        TensorInfo("x", np.dtype("float32"), ("n", None, 3)),
        TensorInfo("m", np.dtype("bool"), ("n",)),
    )
    one = complete_feeds(infos, {}, {"n": 2, "x": [None, 5, None]}, 0)
    assert one["x"].shape == (2, 5, 3)
    assert one["m"].shape == (2,)
    assert np.array_equal(one["x"], complete_feeds(infos, {}, {"n": 2, "x": [None, 5, None]}, 0)["x"])
    info = (TensorInfo("x", np.dtype("int64"), ("4*h", "h + 1", "a.b")),)
    assert complete_feeds(info, {}, {"h": 3}, 0)["x"].shape == (12, 4, 1)
    given = complete_feeds(infos, {"x": np.ones((4, 1, 3), np.float32)}, {}, 0)
    assert given["m"].shape == (4,)
    assert low_ends({"n": (2, 8), "x": [(1, 4), None, 3]}) == {"n": 2, "x": [1, None, 3]}


def _record(engine: str, seconds: float, ratio: float, verdict: str) -> Record:
    return Record("net", {"x": [1, 3]}, 1, engine, seconds, seconds, seconds, 5, 0.0, ratio, ratio,
                  ratio, verdict, None, None, 0.1, 1, 2)  # fmt: skip


def test_a_loss_is_said_as_plainly_as_a_win() -> None:
    records = (
        _record("fissile", 2e-3, 1.0, ""),
        _record("onnxruntime", 1e-3, 0.5, "slower"),
        _record("openvino", 4e-3, 2.0, "inconclusive"),
    )
    found = Bench(records, {1: 1.2}, {"torch": "not installed"}, {}, {}, "onnxruntime", 5, {})
    said = text(found, FACTS)
    assert "onnxruntime 2.00x faster at 1 thread" in said
    assert "2.00 [2.00, 2.00] ?" in said
    assert "1.20 (1 thread)" in said
