"""The front door: `compile`, `check`, `optimize` and `show`, with the compile cache before the pipeline.

In: a model as path, bytes or ModelProto. Out: an `Executable`, or what was asked about the model. Invariant: what is
found in the cache costs neither `onnx` nor `llvmlite`; the pipeline is imported when something must be compiled.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fissile import __version__, cache
from fissile.errors import FileAccess, FileMissing, NotYet, OptionError, Place
from fissile.options import Event, Options, resolve_target
from fissile.runtime.executable import Executable, load
from fissile.runtime.threads import default_threads
from fissile.target import Target

if TYPE_CHECKING:
    import onnx

    Model: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto

Shapes = Mapping[str, Any]


@dataclass(frozen=True)
class Support:
    """What of a model runs how: the number of operators, and those that are foreign or unsupported."""

    operators: int
    foreign: tuple[Place, ...]
    unsupported: tuple[Place, ...]


def compile(
    model: Model,
    *,
    threads: int | None = None,
    target: str | Target | Sequence[str] = "native",
    shapes: Shapes | None = None,
    budget: str | float | None = None,
    base_dir: str | os.PathLike[str] | None = None,
    foreign: Literal["error", "warn", "allow"] = "warn",
    options: Options | None = None,
    cache: bool = True,
    progress: Callable[[Event], None] | None = None,
) -> Executable:
    """Compile `model` to an executable (PRODUCT 4.1); from the compile cache where it was compiled before.

    threads: gang size, None for the default rule. target: "native", a name, or several. base_dir: folder of external
    data of a model given as bytes. Raises FissileError: ModelError, UnsupportedError, OptionError, CompileError.
    """
    _check_options(shapes, budget, foreign)
    chosen = options or Options()
    count = default_threads() if threads is None else threads
    targets = _targets(target)
    report = progress or (lambda event: None)
    content = _content(model)
    plain = content is not None and b"location" not in content  # external data must be hashed, too
    parts = {
        "model": hashlib.sha256(content).hexdigest() if content is not None else "",
        "name": Path(model).name if isinstance(model, str | os.PathLike) else "",
        "targets": [str(t) for t in targets],
        "threads": count,
        "options": chosen.key(),
        "versions": _versions(),
    }

    def build() -> bytes:
        return _compiled(model, base_dir, targets, count, chosen, report)

    if not (cache and plain):
        return load(build(), threads=threads)
    return _cached(parts, build, threads, report)


def check(model: Model, *, target: str | Target = "native") -> Support:
    """Which operators of `model` run natively; nothing is compiled."""
    resolve_target(target)
    frontend, fission = import_module("fissile.frontend"), import_module("fissile.fission")
    operators = frontend.read_model(_plain_path(model))
    return Support(len(operators.operators), (), fission.unsupported(operators))


def optimize(model: Model, *, options: Options | None = None) -> bytes:
    """The substituted graph as standard ONNX. NotYet in this version."""
    raise NotYet("F301", "optimize does not exist in this version", remedy="fissile compile MODEL")


def show(model: Model, stage: str, *, target: str | Target = "native") -> str:
    """The model as text after a stage of the pipeline."""
    pipeline = import_module("fissile.pipeline")
    work = pipeline.Work(_plain_path(model), None, _targets(target), default_threads(), Options())
    return str(pipeline.show(work, stage))


def stage_names() -> list[str]:
    """The names of the pipeline's stages, in order."""
    return [stage.name for stage in import_module("fissile.pipeline").STAGES]


# ---------------------------------------------------------------- parts


def _check_options(shapes: Shapes | None, budget: str | float | None, foreign: str) -> None:
    if budget is not None:
        raise NotYet(
            "F302",
            "tuning (budget=...) does not exist in this version",
            remedy="compile without a budget",
        )
    if foreign not in ("error", "warn", "allow"):
        raise OptionError("F606", f"foreign={foreign!r}", remedy='"error", "warn" or "allow"')
    if shapes:
        raise NotYet(
            "F303",
            "ranges of shapes (shapes=..., --shape) do not exist in this version",
            reason="every free dimension runs at any extent",
            remedy="leave shapes out",
        )


def _targets(target: str | Target | Sequence[str]) -> tuple[Target, ...]:
    names = [target] if isinstance(target, str | Target) else list(target)
    if not names:
        raise OptionError("F607", "no target", remedy='target="native"')
    found = [resolve_target(name) for name in names]
    return tuple(sorted(dict.fromkeys(found), key=lambda t: -t.level))


def _content(model: Model) -> bytes | None:
    """The bytes that identify a model; None for a ModelProto too large to be one message."""
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        try:
            return path.read_bytes()
        except FileNotFoundError as error:
            raise FileMissing("F501", f"{path} does not exist") from error
        except OSError as error:
            raise FileAccess("F502", f"{path} cannot be read", reason=str(error)) from error
    if isinstance(model, bytes | bytearray | memoryview):
        return bytes(model)
    try:
        return bytes(model.SerializeToString(deterministic=True))
    except ValueError:
        return None


def _plain_path(model: Any) -> Any:
    return Path(model) if isinstance(model, str | os.PathLike) else model


def _versions() -> dict[str, str]:
    found = {"fissile": __version__}
    for package in ("llvmlite", "onnx"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found


def _compiled(
    model: Model,
    base_dir: str | os.PathLike[str] | None,
    targets: tuple[Target, ...],
    threads: int,
    options: Options,
    progress: Callable[[Event], None],
) -> bytes:
    pipeline = import_module("fissile.pipeline")
    work = pipeline.Work(_plain_path(model), base_dir, targets, threads, options)
    done = pipeline.run(work, progress)
    artifact: bytes = done.artifact
    return artifact


def _cached(
    parts: Mapping[str, object],
    build: Callable[[], bytes],
    threads: int | None,
    progress: Callable[[Event], None],
) -> Executable:
    """From the cache, or made once and kept there; two processes that want the same make it once."""
    with cache.entry(cache.key(parts)) as path:
        if path is not None and path.exists():
            progress(Event("cached", str(path)))
            return load(path, threads=threads)
        executable = load(build(), threads=threads)
        if path is not None and cache.keep(path, executable.save):
            return load(path, threads=threads)
        return executable
