"""Node cases of the onnx package compiled and run: `python -m tests.e2e.backend NAME...` prints a line per case.

A line is a JSON list: name, "native", "foreign" (an operator of it runs in Python), "refused" or what is wrong. The
name alone is printed before the case runs, so that a crash has one. LLVM runs in this process, with the passes that
every compilation has: to start its workers anew for a thousand small models would take most of the time.
"""

from __future__ import annotations

import json
import sys
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
from onnx import numpy_helper

import fissile
from fissile import pipeline
from fissile.errors import FissileError, UnsupportedError
from tests.e2e.here import compiling_here
from tests.fission.oracle import reference
from tests.fission.test_backend import CASES, DISPUTED, close

RANDOM = ("bernoulli", "dropout", "random", "multinomial")  # only their types are told by a case


def verdict(case: Any) -> str:
    """What happens to one case."""
    try:
        executable = fissile.compile(case.model, threads=1, cache=False, foreign="allow")
    except UnsupportedError:
        return "refused"
    except FissileError as error:
        return str(error)
    for given, expected in case.data_sets:
        feeds = {i.name: _array(v) for i, v in zip(executable.inputs, given, strict=True)}
        if case.name in DISPUTED:  # the specification's words, and onnxruntime, say something else
            expected = reference(case.model, feeds)
        try:
            results = list(executable.run(feeds).values())
        except FissileError as error:
            return str(error)
        for got, want in zip(results, map(_array, expected), strict=True):
            if (got.shape, got.dtype) != (want.shape, want.dtype):
                return f"{got.dtype}{got.shape}, not {want.dtype}{want.shape}"
            if any(word in case.name for word in RANDOM) and executable.foreign:
                continue
            bits = want.dtype.name == "bfloat16"
            a, b = (x.view(np.uint16) if bits else x for x in (got, want))
            if not close(a, b, case.rtol, bits):
                return f"{got.ravel()[:5]}, not {want.ravel()[:5]}"
    return "foreign" if executable.foreign else "native"


def _array(value: Any) -> np.ndarray:
    return np.asarray(numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value)


if __name__ == "__main__":
    with patch.object(pipeline, "compiling", compiling_here):
        for name in sys.argv[1:]:
            print(json.dumps(name), flush=True)
            print(json.dumps([name, verdict(CASES[name])]), flush=True)
