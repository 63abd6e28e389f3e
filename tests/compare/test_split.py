"""`fissile fission`: what it writes runs elsewhere with equal values, before and after the rules."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from .conftest import Command


@pytest.mark.parametrize("more", [(), ("--canonical",)])
def test_the_written_model_means_the_same(
    fissile: Command, model: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    out = tmp_path / "split.onnx"
    done = fissile("fission", model, "-o", out, "--json", *more)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    written = onnx.load(out)
    assert said["nodes"] == len(written.graph.node)
    assert "Softmax" not in {node.op_type for node in written.graph.node}
    sessions = [runtime.InferenceSession(str(path)) for path in (model, out)]
    draw = np.random.default_rng(0)
    for shape in ((1, 3, 8, 8), (3, 3, 17, 11)):
        x = draw.standard_normal(shape).astype(np.float32)
        want, found = (session.run(None, {"x": x})[0] for session in sessions)
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-6)


def test_a_folder_that_is_not_there(fissile: Command, model: Path, tmp_path: Path) -> None:
    done = fissile("fission", model, "-o", tmp_path / "none" / "x.onnx")
    assert done.returncode == 1
    assert "none" in done.stderr
