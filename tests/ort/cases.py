"""Cases of tests/cases through `fissile.ort`: `python -m tests.ort.cases NAME...` prints a line of JSON per case.

A line is a list: name, what is wrong ("" when nothing is, "refused: " and the error where there is one), what the
compiler warned of. The name alone is printed before the case runs, so that a crash has one. The machine code runs in
this process, so tests start it as a child.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import numpy as np

from fissile.errors import FissileWarning
from fissile.ort import Fail, InferenceSession, InvalidArgument, InvalidGraph, NotImplemented

FOLDER = Path(__file__).parents[1] / "cases"


def verdict(name: str) -> tuple[str, list[str]]:
    """What is wrong with a case, and the warnings it came with."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            wrong = _compared(name)
        except (Fail, InvalidArgument, InvalidGraph, NotImplemented) as error:
            wrong = f"refused: {error}"
    return wrong, [str(w.message) for w in said if issubclass(w.category, FissileWarning)]


def _compared(name: str) -> str:
    session = InferenceSession(str(FOLDER / f"{name}.onnx"))
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as stored:
        feeds = {str(n): stored[f"in_{k}"] for k, n in enumerate(stored["in_names"])}
        wanted = [stored[f"out_{k}"] for k in range(sum(k.startswith("out_") for k in stored))]
        tolerance = float(stored["tol"])
    found = session.run(None, feeds)
    if len(found) != len(wanted):
        return f"{len(found)} outputs, not {len(wanted)}"
    for got, want in zip(found, wanted):
        if (got.shape, got.dtype) != (want.shape, want.dtype):
            return f"{got.dtype}{got.shape}, not {want.dtype}{want.shape}"
        loose = tolerance if want.dtype.kind == "f" else 0.0
        if not np.allclose(got, want, loose, loose, equal_nan=want.dtype.kind == "f"):
            return f"{got.ravel()[:6]}, not {want.ravel()[:6]}"
    return ""


if __name__ == "__main__":
    for case in sys.argv[1:]:
        print(json.dumps(case), flush=True)
        print(json.dumps([case, *verdict(case)]), flush=True)
