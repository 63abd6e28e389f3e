"""The trained OCR networks through fission and numpy, against onnxruntime, at several shapes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from fissile.fission import fission
from fissile.frontend import read_model
from tests.fission.oracle import reference, run_graph, same

FOUND = importlib.util.find_spec("rapidocr_onnxruntime")
MODELS = Path("" if FOUND is None or FOUND.origin is None else FOUND.origin).parent / "models"
pytestmark = pytest.mark.skipif(
    FOUND is None, reason="the package that carries the models is absent"
)


def picture(n: int, height: int, width: int) -> np.ndarray:
    """White paper with a word on it: on paper without one the detector's answers are tiny numbers."""
    paper = Image.new("RGB", (width, height), "white")
    font = ImageFont.load_default(size=min(28, height - 4))
    ImageDraw.Draw(paper).text((6, 1), "fission", fill="black", font=font)
    pixels = np.asarray(paper, np.float32).transpose(2, 0, 1) / 127.5 - 1
    dimmer = np.linspace(1, 0.8, n, dtype=np.float32)
    return pixels * dimmer[:, None, None, None]


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("ch_PP-OCRv4_det_infer", [(1, 64, 128), (2, 32, 160)]),
        ("ch_ppocr_mobile_v2.0_cls_infer", [(1, 48, 192), (3, 48, 100)]),
        ("ch_PP-OCRv4_rec_infer", [(1, 48, 64), (2, 48, 37)]),
    ],
)
def test_network(name: str, shapes: list[tuple[int, int, int]]) -> None:
    model = MODELS / f"{name}.onnx"
    graph = fission(read_model(model))
    for n, height, width in shapes:
        feeds = {"x": picture(n, height, width)}
        got, want = run_graph(graph, feeds), reference(model, feeds)
        assert all(map(same, got, want))


def test_a_wrong_size_breaks_a_guard_that_names_both_extents() -> None:
    graph = fission(read_model(MODELS / "ch_PP-OCRv4_det_infer.onnx"))
    with pytest.raises(AssertionError, match=r"shape .* must broadcast to .*"):
        run_graph(graph, {"x": picture(1, 64, 72)})


def test_every_primitive_knows_its_operator() -> None:
    graph = fission(read_model(MODELS / "ch_PP-OCRv4_det_infer.onnx"))
    assert all(graph.origins.get(node) for node in graph.nodes() if node.inputs)
