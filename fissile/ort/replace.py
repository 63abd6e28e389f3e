"""Put this package in the place of onnxruntime, for programs that import that themselves.

In: a module table without onnxruntime, or a program to run. Out: `import onnxruntime` gives this
package, `onnxruntime.capi...` the names that programs take from there; submodules that are not ours
(`onnxruntime.quantization`) stay importable where onnxruntime is installed.
"""

import runpy
import sys
from importlib.machinery import PathFinder
from types import ModuleType

from fissile.errors import OptionError
from fissile.ort import errors, options, session, value

_CAPI = "onnxruntime.capi"
_SHIM_NAMES = (errors, options, value, session)


def install(package: ModuleType) -> None:
    """Make `package` answer to `onnxruntime`; refuses if onnxruntime was imported before."""
    present = sys.modules.get("onnxruntime")
    if present is package:
        return
    if present is not None:
        raise OptionError(
            "F610",
            "onnxruntime was imported before fissile.ort.install()",
            reason="modules that hold the original would go on using it",
            remedy=["call install() first", "python -m fissile.ort your_app.py"],
        )
    original = PathFinder.find_spec("onnxruntime")
    elsewhere = list(original.submodule_search_locations or ()) if original else []
    package.__path__ = [*package.__path__, *elsewhere]
    sys.modules["onnxruntime"] = package
    capi = ModuleType(_CAPI, "Names that programs import from onnxruntime.capi.")
    capi.__path__ = []
    sys.modules[_CAPI] = capi
    setattr(package, "capi", capi)  # noqa: B010 (the package has no such name before)
    for name in ("onnxruntime_pybind11_state", "_pybind_state", "onnxruntime_inference_collection"):
        shim = _shim(f"{_CAPI}.{name}")
        sys.modules[shim.__name__] = shim
        setattr(capi, name, shim)


def _shim(name: str) -> ModuleType:
    shim = ModuleType(name, "Names that programs import from here.")
    for module in _SHIM_NAMES:
        public = {k: v for k, v in vars(module).items() if isinstance(v, type) and k[0] != "_"}
        vars(shim).update(public)
    vars(shim)["SessionIOBinding"] = value.IOBinding
    return shim


def run_program(arguments: list[str]) -> None:
    """Run `PROGRAM ARGS...` or `-m MODULE ARGS...` as __main__, as `python` itself would."""
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, "")
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = list(arguments)
    runpy.run_path(arguments[0], run_name="__main__")
