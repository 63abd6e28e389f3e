"""Cases of tests/cases through `fissile.ort`: `python -m tests.ort.cases NAME...` prints a line of JSON per case.

A line is a list: name, what is wrong ("" when nothing is), what runs in Python. The name alone is printed before the
case runs, so that a crash has one. The machine code runs in this process, so tests start it as a child.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import numpy as np

from fissile.errors import FissileWarning
from fissile.ort import InferenceSession

FOLDER = Path(__file__).parents[1] / "cases"


def verdict(name: str) -> tuple[str, list[str]]:
    """What is wrong with a case, and the warnings it came with."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        session = InferenceSession(str(FOLDER / f"{name}.onnx"))
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as stored:
        feeds = {str(n): stored[f"in_{k}"] for k, n in enumerate(stored["in_names"])}
        wanted = [stored[f"out_{k}"] for k in range(sum(k.startswith("out_") for k in stored))]
        tolerance = float(stored["tol"])
    found = session.run(None, feeds)
    texts = [str(w.message) for w in said if issubclass(w.category, FissileWarning)]
    if len(found) != len(wanted):
        return f"{len(found)} outputs, not {len(wanted)}", texts
    for got, want in zip(found, wanted):
        if (got.shape, got.dtype) != (want.shape, want.dtype):
            return f"{got.dtype}{got.shape}, not {want.dtype}{want.shape}", texts
        loose = tolerance if want.dtype.kind == "f" else 0.0
        if not np.allclose(got, want, loose, loose, equal_nan=want.dtype.kind == "f"):
            return f"{got.ravel()[:6]}, not {want.ravel()[:6]}", texts
    return "", texts


if __name__ == "__main__":
    for case in sys.argv[1:]:
        print(json.dumps(case), flush=True)
        print(json.dumps([case, *verdict(case)]), flush=True)
