"""`bench/zoo.py`: a folder with a whole and a weightless model gives a page with both, failures included."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

SCRIPT = Path(__file__).parents[2] / "bench" / "zoo.py"


def _weightless(model: Path, folder: Path) -> None:
    light = onnx.load(model)
    rows = []
    for weight in list(light.graph.initializer):
        if len(weight.dims) > 1:
            values = numpy_helper.to_array(weight)
            shape = list(values.shape)
            rows.append([weight.name, "float32", shape, float(values.mean()), float(np.std(values))])
            light.graph.initializer.remove(weight)
    onnx.save(light, folder / "light.light.onnx")
    (folder / "light.json").write_text(json.dumps(rows))


def test_a_page_of_two_models(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    _weightless(model, tmp_path)
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    page = tmp_path / "page.md"
    options = ["--against", "onnxruntime", "--threads", "1", "--repeat", "1", "--rounds", "5"]
    env = {
        **os.environ,
        "FISSILE_STORE": str(tmp_path / "store.sqlite"),
        "FISSILE_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path, *options, "--page", page],
        capture_output=True, text=True, env=env, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    for part in ("| light |", "| broken | compile failed: error F0", "agrees, max rel", "geometric mean"):
        assert part in text, text
    raw = {row["name"]: row for row in json.loads(page.with_suffix(".json").read_text())}
    assert raw["light"]["benches"][0]["records"][0]["engine"] == "fissile"
    assert raw["broken"]["failures"]["compile"]
