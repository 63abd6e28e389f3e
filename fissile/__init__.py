"""fissile: an ONNX compiler whose artifacts load with numpy alone.

In: an ONNX model (path, bytes or ModelProto) or a `.fsl` artifact. Out: an `Executable`.
Public names are `compile`, `load`, `check`, `optimize`, `Executable`, `Target`, `Options` and the
errors. All of them are imported on first use, so that `import fissile` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fissile.compiler import check, optimize
    from fissile.compiler import compile as compile
    from fissile.errors import FissileError, FissileWarning
    from fissile.options import Options
    from fissile.runtime.executable import Executable, load
    from fissile.target import Target

__version__ = "0.1.0"

# `compile` is public but not listed: a star import must not shadow the builtin.
__all__ = [
    "Executable",
    "FissileError",
    "FissileWarning",
    "Options",
    "Target",
    "check",
    "load",
    "optimize",
]

_HOME = {
    "compile": "fissile.compiler",
    "check": "fissile.compiler",
    "optimize": "fissile.compiler",
    "load": "fissile.runtime.executable",
    "Executable": "fissile.runtime.executable",
    "Target": "fissile.target",
    "Options": "fissile.options",
    "FissileError": "fissile.errors",
    "FissileWarning": "fissile.errors",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use and keep it in the module."""
    if name not in _HOME:
        raise AttributeError(f"module 'fissile' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Every public name, imported or not."""
    return sorted({*globals(), *_HOME})
