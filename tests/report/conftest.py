"""One folder of artifacts and pages for all tests of `fissile report`."""

from __future__ import annotations

import onnx
import pytest

from tests.report.pages import Place, hostile


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Compiled and reported once for all tests."""
    found = Place(tmp_path_factory.mktemp("report"))
    onnx.save(hostile(), str(found.folder / "hostile.onnx"))
    steps = (
        ("compile", "hostile.onnx", "--threads", "1", "-q", "--target", "native"),
        ("compile", "hostile.onnx", "-q", "--disable", "merge_transposes", "-o", "other.fsl"),
        ("report", "hostile.fsl", "other.fsl", "-o", "both.html", "--shape", "n<i>=5"),
    )
    for step in steps:
        done = found.fissile(*step)
        assert done.returncode == 0, done.stderr
    return found
