"""Kernels that another package runs: OpenBLAS, ONNX Runtime, OpenVINO (DESIGN 3.4; Korch section 5.2).

In: the name of a provider, the serialized model of a sub-graph with inputs i0, i1..., a thread count; then arrays. Out:
the results. A call is alone in its step, so the provider's threads and the gang never run at the same time. Invariant:
only an artifact that was tuned with `providers` names one, and only the package of that one is imported.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fissile.errors import ArtifactError
from fissile.options import PROVIDERS

Array = npt.NDArray[Any]
Evaluator = Callable[[list[Array]], list[Array]]
T = TypeVar("T")
_ROW_MAJOR, _PLAIN = 101, 111


class VendorFailed(RuntimeError):
    """A package does not take a model, or fails while it runs it."""


def evaluator(provider: str, model: bytes, threads: int) -> Evaluator:
    """What runs the model on arrays in the order of its inputs; for one caller at a time.

    ArtifactError F112; VendorFailed, also by what is returned.
    """
    package = require(provider)
    made = _guarded(provider, lambda: _MAKERS[provider](package, model, threads))
    return lambda arrays: _guarded(provider, lambda: made(arrays))


def _guarded(provider: str, work: Callable[[], T]) -> T:
    try:
        return work()
    except Exception as error:  # every package has errors of its own
        raise VendorFailed(f"{provider}: {error}") from error


def require(provider: str) -> Any:
    """The provider's package. ArtifactError F112 where it is not installed, or not known to this version."""
    if provider not in _MAKERS:
        raise ArtifactError(
            "F112",
            f"this artifact calls {provider}, which this version does not know",
            remedy="install the version of fissile that made it",
        )
    module, wheel = PROVIDERS[provider]
    try:
        return import_module(module)
    except ImportError as error:
        raise ArtifactError(
            "F112",
            f"this artifact has kernels that {provider} runs, and it is not installed",
            reason=str(error),
            remedy=[f"pip install {wheel}", "tune the model again without --providers"],
        ) from error


def _openblas(package: Any, model: bytes, threads: int) -> Evaluator:
    """Rows of the first array times the second, in float32; the model is not read."""
    library = ctypes.CDLL(str(next(Path(package.get_lib_dir()).glob("libscipy_openblas*.so"))))
    product, set_threads = library.scipy_cblas_sgemm, library.scipy_openblas_set_num_threads
    size, real, place = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
    product.argtypes = [size] * 6 + [real, place, size, place, size, real, place, size]
    product.restype = set_threads.restype = None
    set_threads.argtypes = [size]

    def run(arrays: list[Array]) -> list[Array]:
        left, right = arrays
        k, n = right.shape
        m = left.size // k if k else 0
        result = np.empty((m, n), np.float32)
        if m and n:
            set_threads(threads)
            product(
                _ROW_MAJOR, _PLAIN, _PLAIN, m, n, k, 1.0, left.ctypes.data, k,
                right.ctypes.data, n, 0.0, result.ctypes.data, n,
            )  # fmt: skip
        return [result]

    return run


def _onnxruntime(package: Any, model: bytes, threads: int) -> Evaluator:
    options = package.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    session = package.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]

    def run(arrays: list[Array]) -> list[Array]:
        return [*session.run(None, dict(zip(names, arrays, strict=True)))]

    return run


def _openvino(package: Any, model: bytes, threads: int) -> Evaluator:
    core = package.Core()
    hints = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = core.compile_model(core.read_model(model), "CPU", hints)
    request = compiled.create_infer_request()
    kept = [_number(port.get_names()) for port in compiled.inputs]  # those read for nothing are gone

    def run(arrays: list[Array]) -> list[Array]:
        request.infer({place: arrays[k] for place, k in enumerate(kept)})
        return [request.get_output_tensor(k).data for k in range(len(compiled.outputs))]

    return run


def _number(names: set[str]) -> int:
    """Which of a model's inputs, i0, i1..., one is."""
    return next(int(name[1:]) for name in names if name[:1] == "i" and name[1:].isdigit())


_MAKERS: dict[str, Callable[[Any, bytes, int], Evaluator]] = {
    "openblas": _openblas,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}
