"""The drop-in for onnxruntime: `import fissile.ort as ort`, `install()`, `python -m fissile.ort`.

In: programs written for onnxruntime. Out: the same calls, answers and exceptions from compiled
models, on the CPU (PRODUCT 4.4). Nothing of onnxruntime is imported.
"""

import sys

import numpy as np

from fissile.ort import replace
from fissile.ort.errors import (
    EngineError,
    EPFail,
    Error,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoaded,
    NoModel,
    NoSuchFile,
    NotImplemented,
    RuntimeException,
)
from fissile.ort.options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
    set_default_logger_severity,
)
from fissile.ort.session import CPU, InferenceSession
from fissile.ort.value import IOBinding, ModelMetadata, NodeArg, OrtValue

# The release whose behaviour is followed; programs compare it with what they need.
__version__ = "1.32.0"
__all__ = [
    "EPFail",
    "EngineError",
    "Error",
    "ExecutionMode",
    "ExecutionOrder",
    "Fail",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoaded",
    "ModelMetadata",
    "NoModel",
    "NoSuchFile",
    "NodeArg",
    "NotImplemented",
    "OrtValue",
    "RunOptions",
    "RuntimeException",
    "SessionOptions",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "install",
    "preload_dlls",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]


def install() -> None:
    """`import onnxruntime` gives this module from now on; refuses if it was imported before."""
    replace.install(sys.modules[__name__])


def get_available_providers() -> list[str]:
    """The CPU."""
    return [CPU]


def get_all_providers() -> list[str]:
    """The CPU."""
    return [CPU]


def get_device() -> str:
    """Always "CPU"."""
    return "CPU"


def get_version_string() -> str:
    """The release whose behaviour is followed."""
    return __version__


def get_build_info() -> str:
    """Says that this is fissile."""
    return f"fissile, following onnxruntime {__version__}"


def set_seed(seed: int) -> None:
    """Seeds numpy's global generator, from which foreign random operators draw."""
    np.random.seed(seed)


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accepted; no effect."""


def enable_telemetry_events() -> None:
    """There is no telemetry."""


def disable_telemetry_events() -> None:
    """There is no telemetry."""


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str = ""
) -> None:
    """Nothing to load."""
