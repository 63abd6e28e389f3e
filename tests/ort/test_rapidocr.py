"""A package that imports onnxruntime itself runs unmodified and reads the same text.

Skipped where rapidocr-onnxruntime (extra `demo`) cannot be imported.
"""

import subprocess
import sys
from pathlib import Path

import pytest

LINES = ("The quick brown fox", "jumps over the lazy dog", "0123456789")

PROGRAM = f"""
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rapidocr_onnxruntime import RapidOCR

page = Image.new("RGB", (480, 240), "white")
pen = ImageDraw.Draw(page)
for row, line in enumerate({LINES!r}):
    pen.text((40, 40 + 60 * row), line, fill="black", font=ImageFont.load_default(28))
result, _ = RapidOCR()(np.asarray(page))
print("\\n".join(text for _, text, _ in result))
"""


def test_it_reads_the_same_text(tmp_path: Path) -> None:
    pytest.importorskip("cv2", exc_type=ImportError)
    pytest.importorskip("rapidocr_onnxruntime", exc_type=ImportError)
    program = tmp_path / "read.py"
    program.write_text(PROGRAM)
    texts = []
    for command in (["-m", "fissile.ort"], []):
        done = subprocess.run(
            [sys.executable, *command, str(program)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        texts.append(tuple(done.stdout.splitlines()))
    assert texts[0] == texts[1] == LINES
