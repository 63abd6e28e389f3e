"""The front door: `compile`, `check`, `optimize` and `show`, with the compile cache before the pipeline.

In: a model as path, bytes or ModelProto. Out: an `Executable`, or what was asked about the model. Invariant: what is
found in the cache costs neither `onnx` nor `llvmlite`; the pipeline is imported when something must be compiled.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fissile import cache
from fissile.errors import (
    ArtifactError,
    FileAccess,
    FileMissing,
    FissileError,
    InvalidFeed,
    NotYet,
    OptionError,
    Place,
    UnsupportedError,
    did_you_mean,
    one_form,
)
from fissile.files import open_regular
from fissile.options import PROVIDERS, Event, Options, are_texts, environment, resolve_target
from fissile.runtime.executable import Executable, checked_threads, executable_of, load
from fissile.runtime.manifest import memory_limit
from fissile.runtime.memory import check_limit
from fissile.runtime.threads import default_threads
from fissile.target import Target, missing_features

if TYPE_CHECKING:
    import onnx

    from fissile.rewrite import Miss

    Model: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap
Shapes = Mapping[str, Any]


@dataclass(frozen=True)
class Support:
    """What of a model runs how: the number of operators, and those that are foreign or unsupported.

    weight_bytes: of its initializers; what a call needs beside them says `Executable.memory` of the compiled model.
    """

    operators: int
    foreign: tuple[Place, ...]
    unsupported: tuple[Place, ...]
    weight_bytes: int = 0


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
    data of a model given as bytes. foreign: what to do about operators that run in Python only; "error" refuses, "warn"
    names them in a FissileWarning. budget: "10m", "200trials" or seconds, for measuring; such a result is not cached,
    since the measurements are kept. Raises FissileError: ModelError, UnsupportedError, OptionError, CompileError.
    """
    _check_options(shapes, foreign, options)
    _check_arguments(base_dir, progress)
    report = progress or (lambda event: None)
    request = _request(model, base_dir, target, threads, shapes, options)
    if budget is not None:
        executable = load(_tuned(request, budget, report, None).artifact, threads=threads)
    elif cache:
        executable = _cached(request, threads, report)
    else:
        executable = load(_compiled(request, report), threads=threads)
    _check_memory(executable)
    if executable.foreign and foreign != "allow":
        _about_foreign(executable, request.source, foreign)
    return executable


def tune(
    model: Model,
    budget: str | float,
    *,
    threads: int | None = None,
    target: str | Target | Sequence[str] = "native",
    shapes: Shapes | None = None,
    foreign: Literal["error", "warn", "allow"] = "warn",
    options: Options | None = None,
    installed: Path | None = None,
    progress: Callable[[Event], None] | None = None,
) -> Any:
    """The artifact that measurements choose within a budget, with what is proved about it: a `fissile.tune.tune.Tuned`.

    installed: an artifact that the result would replace, and that stays if it is faster.
    """
    _check_options(shapes, foreign, options)
    request = _request(model, None, target, threads, shapes, options)
    if foreign == "error" and (places := check(model).foreign):
        raise _refused_foreign(places)
    found = _tuned(request, budget, progress or (lambda event: None), installed)
    executable = load(found.artifact, threads=threads)
    _check_memory(executable)
    if executable.foreign and foreign == "warn":
        _about_foreign(executable, request.source, foreign)
    return found


def plan_file(
    model: Model,
    *,
    threads: int | None = None,
    target: str | Target | Sequence[str] = "native",
    shapes: Shapes | None = None,
    options: Options | None = None,
) -> str:
    """The text of the plan file of an untuned compilation."""
    request = _request(model, None, target, threads, shapes, options)
    work = _planned(request, lambda event: None)
    text: str = import_module("fissile.orchestrate.plan_file").plan_text(work.plan)
    return text


def check(model: Model, *, target: str | Target = "native") -> Support:
    """Which operators of `model` run natively; nothing is compiled. ModelError, FileMissing."""
    resolve_target(target)
    frontend, fission = import_module("fissile.frontend"), import_module("fissile.fission")
    source = _source(model, None)
    with one_form("check"):
        operators = frontend.read_model(source.model, source.base_dir)
        weights = sum(array.nbytes for array in operators.initializers.values())
    foreign, unsupported = fission.placed(operators)
    return Support(len(operators.operators), foreign, unsupported, weights)


def optimize(model: Model, *, options: Options | None = None) -> bytes:
    """The model with what substitutions make cheaper in any runtime, as standard ONNX of the same opset.

    options: `disable` names rules to leave out. CompileError F414 for what is over 2 GB: `fissile optimize` writes that
    to a file. Raises like `compile` for a model that is broken, or has operators whose types are not supported.
    """
    source, chosen = _source(model, None), _checked(options)
    room = import_module("fissile.optimizer")
    with one_form("optimize"):
        found = room.optimized(source.model, source.base_dir, chosen.disable)
        content: bytes = room.content_of(found.model)
    return content


def show(
    model: Model,
    stage: str,
    *,
    target: str | Target = "native",
    shapes: Shapes | None = None,
    options: Options | None = None,
) -> str:
    """The model as text after a stage of the pipeline (`stage_names`)."""
    source, chosen = _source(model, None), _checked(options)
    request = Request(source, _targets(target), default_threads(), _plain_shapes(shapes), chosen)
    pipeline = import_module("fissile.pipeline")
    return str(pipeline.show(_work(pipeline, request), stage))


def model_hash(path: Path) -> str:
    """The hash by which manifests name the model at `path`."""
    return _source(path, None).sha256


def stage_names() -> list[str]:
    """The names of the pipeline's stages, in order."""
    return [stage.name for stage in import_module("fissile.pipeline").STAGES]


def rule_laws() -> dict[str, dict[str, str]]:
    """The rewrite rules by regime: name -> law, in order."""
    rewrite = import_module("fissile.rewrite")
    laws: dict[str, dict[str, str]] = {regime: {} for regime in rewrite.REGIMES}
    for name, rule in rewrite.RULES.items():
        laws[rule.regime][name] = rule.law
    return laws


def why(
    model: Model, rule: str, *, shapes: Shapes | None = None, options: Options | None = None
) -> list[Miss]:
    """Why `rule` does not fire where it might, rarest reason first. OptionError F603 for a name that no rule has.

    A rule that always applies is asked before the rewriting, a substitution after what always applies.
    """
    source, chosen = _source(model, None), _checked(options)
    request = Request(source, _targets("native"), default_threads(), _plain_shapes(shapes), chosen)
    pipeline, rewrite = import_module("fissile.pipeline"), import_module("fissile.rewrite")
    if rule not in rewrite.RULES:
        hint = did_you_mean(rule, rewrite.RULES)
        raise OptionError("F603", f"no rule is called {rule}", remedy=hint)
    asked = rewrite.RULES[rule]
    stage = "fission" if asked.regime == "canonicalize" else "canonicalize"
    work = pipeline.run(_work(pipeline, request), lambda event: None, stage)
    return list(rewrite.misses(work.graph, asked))


def near_misses(
    model: Model, *, shapes: Shapes | None = None, disable: Sequence[str] = ()
) -> dict[str, list[Miss]]:
    """`why` of every rule that is chosen by cost, after what always applies; a rule that never declines has none."""
    source, chosen = _source(model, None), Options(disable=tuple(disable))
    request = Request(source, _targets("native"), default_threads(), _plain_shapes(shapes), chosen)
    pipeline, rewrite = import_module("fissile.pipeline"), import_module("fissile.rewrite")
    work = pipeline.run(_work(pipeline, request), lambda event: None, "canonicalize")
    rules = (r for r in rewrite.RULES.values() if r.regime == "substitute" and r.name not in disable)
    return {rule.name: list(rewrite.misses(work.graph, rule)) for rule in rules}


# ---------------------------------------------------------------- what is asked for


@dataclass(frozen=True)
class Source:
    """A model as the pipeline reads it, and the hash that names it."""

    model: Path | bytes
    base_dir: Path | None
    name: str
    sha256: str


@dataclass(frozen=True)
class Request:
    """Everything that decides about the bytes of an artifact."""

    source: Source
    targets: tuple[Target, ...]
    threads: int
    shapes: Mapping[str, Any]
    options: Options

    def key(self) -> str:
        """The name in the compile cache."""
        parts = {
            "model": self.source.sha256,
            "name": self.source.name,
            "targets": [str(t) for t in self.targets],
            "threads": self.threads,
            "shapes": self.shapes,
            "options": self.options.key(),
            "versions": cache.versions(),
        }
        stamp = _store_stamp() if self.asks_store() else ""
        return cache.key({**parts, "store": stamp} if stamp else parts)

    def asks_store(self) -> bool:
        """Whether measurements that are kept decide about the plan."""
        return self.options.store and self.options.plan is None


def _request(
    model: Model,
    base_dir: str | os.PathLike[str] | None,
    target: str | Target | Sequence[str],
    threads: int | None,
    shapes: Shapes | None,
    options: Options | None,
) -> Request:
    return Request(
        _source(model, base_dir),
        _targets(target),
        default_threads() if threads is None else checked_threads(threads),
        _plain_shapes(shapes),
        _checked(options),
    )


def _check_arguments(base_dir: object, progress: object) -> None:
    """OptionError F601 for what is no folder or cannot be called."""
    if not isinstance(base_dir, str | os.PathLike | None):
        raise OptionError("F601", f"base_dir={base_dir!r}", remedy='base_dir="FOLDER"')
    if progress is not None and not callable(progress):
        raise OptionError("F601", f"progress={progress!r}", remedy="a function of an Event")


def _check_options(shapes: Shapes | None, foreign: str, options: Options | None) -> None:
    _checked(options)
    _plain_shapes(shapes)
    if foreign not in ("error", "warn", "allow"):
        raise OptionError("F606", f"foreign={foreign!r}", remedy='"error", "warn" or "allow"')
    if shapes and options is not None and options.strict_shapes:
        raise NotYet(
            "F303",
            "ranges as contracts (strict_shapes) do not exist in this version",
            reason="a range says where the plan should be good; other extents still run",
            remedy="leave strict_shapes out, or fix the dimension: shapes={name: 8}",
        )
    if options is not None and options.affinity is not None:
        raise NotYet(
            "F304",
            "pinning threads (affinity) does not exist in this version",
            remedy="taskset -c 0-3 COMMAND",
        )


def _checked(options: Options | None) -> Options:
    """The options, or those that stand for None. OptionError F601 for anything else."""
    if not isinstance(options, Options | None):
        raise OptionError("F601", f"options={options!r}", remedy="options=fissile.Options(...)")
    return options or Options()


def _targets(target: str | Target | Sequence[str]) -> tuple[Target, ...]:
    names: Sequence[str | Target] = [target] if isinstance(target, str | Target) else target
    if not isinstance(names, list | tuple) or not all(isinstance(n, str | Target) for n in names):
        raise OptionError("F607", f"target={target!r}", remedy='target="native"')
    if not names:
        raise OptionError("F607", "no target", remedy='target="native"')
    found = [resolve_target(name) for name in names]
    return tuple(sorted(dict.fromkeys(found), key=lambda t: -t.level))


def _plain_shapes(shapes: Shapes | None) -> dict[str, Any]:
    """Wishes as plain data: sequences of an input's extents are lists, ranges are tuples."""

    def plain(wish: Any) -> Any:
        if isinstance(wish, list):
            return [plain(one) for one in wish]
        return tuple(wish) if isinstance(wish, Sequence) and not isinstance(wish, str) else wish

    if not isinstance(shapes, Mapping | None) or not are_texts(shapes or ()):
        raise OptionError("F608", f"shapes={shapes!r}", remedy='shapes={"batch": 8}')
    return {name: plain(wish) for name, wish in (shapes or {}).items()}


def _source(model: Model, base_dir: str | os.PathLike[str] | None) -> Source:
    folder = None if base_dir is None else Path(base_dir)
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        digest = _sha256(_mapped(path), folder or path.parent)
        return Source(path, folder, path.name, digest)
    if isinstance(model, bytes | bytearray | memoryview):
        return Source(bytes(model), folder, "", _sha256(model, folder))
    if not hasattr(model, "SerializeToString"):
        raise OptionError(
            "F615",
            f"{type(model).__name__} is no model",
            reason="a model is a path, bytes, or an onnx.ModelProto",
        )
    content: bytes = import_module("fissile.frontend").serialized(model)
    return Source(content, folder, "", _sha256(content, folder))


def _mapped(path: Path) -> bytes | mmap.mmap:
    """The bytes of a file; they are not copied."""
    with open_regular(path) as file:
        try:
            if os.fstat(file.fileno()).st_size == 0:
                return b""
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise FileAccess("F502", f"{path} cannot be read", reason=str(error)) from error


def _sha256(content: Buffer, folder: Path | None) -> str:
    """The hash of a model; `onnx` is needed only where a tensor may lie in another file."""
    view = content if isinstance(content, mmap.mmap) else bytes(content)
    if view.find(b"location") < 0:
        return hashlib.sha256(content).hexdigest()
    digest: str = import_module("fissile.frontend").model_sha256(bytes(content), folder)
    return digest


def _about_foreign(executable: Executable, source: Source, foreign: str) -> None:
    """Refuse, or warn about, what runs in Python."""
    calls = executable.program.plan.calls
    if foreign == "warn":
        named = ", ".join(f"{c.name} ({c.operator})" for c in calls)
        count = "1 operator runs" if len(calls) == 1 else f"{len(calls)} operators run"
        text = f"{count} in Python, not natively: {named}"
        cache.warn(text)
        return
    frontend, fission = import_module("fissile.frontend"), import_module("fissile.fission")
    places, _ = fission.placed(frontend.read_model(source.model, source.base_dir))
    raise _refused_foreign(places)


def _refused_foreign(places: Sequence[Place]) -> UnsupportedError:
    return UnsupportedError(
        "F024",
        f"{len(places)} operators can run in Python only" if len(places) != 1
        else "1 operator can run in Python only",
        where=places,
        reason='foreign="error" allows native operators alone',
        remedy=["--foreign allow", 'compile(..., foreign="allow")'],
    )


def _check_memory(executable: Executable) -> None:
    """OutOfMemory F213 where the model needs more than `Options.max_memory` at its fixed shape, or at the smallest."""
    limit = memory_limit(executable.manifest)
    if limit is None:
        return
    try:
        needed = executable.memory()
    except InvalidFeed:  # its free extents cannot all be 1
        check_limit(limit, executable.program.weight_bytes, 0, 0)
    else:
        check_limit(limit, needed.weights, needed.arena, needed.scratch)


# ---------------------------------------------------------------- what is done


def _work(pipeline: Any, request: Request) -> Any:
    source = request.source
    return pipeline.Work(
        source.model,
        source.base_dir,
        request.targets,
        request.threads,
        request.options,
        request.shapes,
    )


def _compiled(request: Request, progress: Callable[[Event], None]) -> bytes:
    pipeline = import_module("fissile.pipeline")
    work = _planned(request, progress)
    artifact: bytes = pipeline.run(work, progress, first="lower").artifact
    return artifact


def _planned(request: Request, progress: Callable[[Event], None]) -> Any:
    """The work with its plan: by measurements that are kept, where there are any of this machine."""
    pipeline = import_module("fissile.pipeline")
    work = pipeline.run(_work(pipeline, request), progress, "plan")
    if not (request.asks_store() and _store_stamp()):
        return work
    start, paths = time.perf_counter(), _store_paths()
    try:
        with import_module("fissile.runtime.store").StoreToRead(paths) as store:
            found = import_module("fissile.tune.stored").replanned(work, store)
    except STORE_ERRORS as error:
        _warn_of_store(paths, error)
        return work
    if found is not work:
        text = pipeline.said_plan(found)
        progress(Event("store", text, time.perf_counter() - start))
    return found


STORE_ERRORS = (
    FissileError, OSError, sqlite3.Error, ValueError, TypeError, LookupError, ArithmeticError,
)  # fmt: skip


def _store_paths() -> tuple[Path, ...]:
    default: Callable[[], tuple[Path, ...]] = import_module("fissile.runtime.store").default_paths
    return environment().store or default()


def _store_stamp() -> str:
    """What tells the measurements that are kept from those kept before; "" where there are none."""
    paths = _store_paths()
    try:
        if not any(path.is_file() for path in paths):
            return ""
        with import_module("fissile.runtime.store").StoreToRead(paths) as store:
            stamp: str = store.stamp()
            return stamp
    except STORE_ERRORS as error:
        _warn_of_store(paths, error)
        return ""


def _warn_of_store(paths: tuple[Path, ...], error: Exception) -> None:
    """Say once per store that its measurements are left aside."""
    if paths not in _TOLD:
        _TOLD.add(paths)
        named = ", ".join(map(str, paths))
        cache.warn(f"planned without the tuning store {named}, which cannot be read: {error}")


_TOLD: set[tuple[Path, ...]] = set()


def _tuned(
    request: Request,
    budget: str | float,
    progress: Callable[[Event], None],
    installed: Path | None,
) -> Any:
    if request.options.plan is not None:
        raise OptionError(
            "F613", "a plan file says what to choose, and a budget asks to choose by measuring",
            remedy=["leave --budget out", "leave --plan out"],
        )  # fmt: skip
    if lacking := missing_features(request.targets[0].features):
        raise OptionError(
            "F614",
            f"{request.targets[0].name} cannot be measured here",
            reason=f"this CPU lacks {', '.join(lacking)}",
            remedy="--target native, or tune on such a machine and build with --plan",
        )
    for provider in request.options.providers:
        _check_provider(provider)
    allowed = import_module("fissile.tune.budget").parse_budget(budget)
    pipeline, tuning = import_module("fissile.pipeline"), import_module("fissile.tune.tune")
    work = _work(pipeline, request)
    return tuning.tune(work, allowed, progress, installed=installed)


def _check_provider(provider: str) -> None:
    """OptionError F617 for a package that is not installed: said before the budget is spent."""
    module, wheel = PROVIDERS[provider]
    if find_spec(module) is None:
        raise OptionError("F617", f"{provider} is not installed", remedy=f"pip install {wheel}")


def _cached(
    request: Request, threads: int | None, progress: Callable[[Event], None]
) -> Executable:
    """From the cache, or made once and kept there; two processes that want the same make it once."""
    with cache.entry(request.key()) as path:
        if path is not None and os.path.lexists(path):
            executable = _from_cache(path, threads)
            if executable is not None:
                progress(Event("cached", str(path)))
                return executable
        executable = load(_compiled(request, progress), threads=threads)
        # the file may have changed while it was compiled: that is an artifact, but not of this hash
        is_same = executable.manifest["model"]["sha256"] == request.source.sha256
        made = executable.program.artifact
        if path is not None and is_same and cache.keep(path, made.buffer, made.sha256):
            return _from_cache(path, threads) or executable
        return executable


def _from_cache(path: Path, threads: int | None) -> Executable | None:
    """The artifact; None where it is gone again, or cannot be read or trusted, or is damaged (it is deleted then)."""
    try:
        return executable_of(cache.opened(path), threads)
    except FileMissing:  # another process clears the cache
        return None
    except (ArtifactError, FileAccess) as error:
        text = f"{cache.shown(path)} in the compile cache is unusable and made anew: {error.message}"
        cache.warn(text if not error.reason else f"{text} ({error.reason})")
        if isinstance(error, ArtifactError):
            cache.forget(path)
        return None
