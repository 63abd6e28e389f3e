"""Every knob: `Options` for a compilation, `environment()` for the process (PRODUCT 5.3).

In: keyword arguments and the environment. Out: two frozen dataclasses.
Invariant: nobody else reads the environment; an explicit argument wins over a variable; a variable
that starts with FISSILE_ but is not in the table warns with the nearest name.
"""

import hashlib
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from fissile.errors import FileAccess, FissileWarning, OptionError, did_you_mean
from fissile.files import open_regular
from fissile.target import Target, resolve

# Packages that may run kernels: module, wheel.
PROVIDERS: Mapping[str, tuple[str, str]] = {
    "openblas": ("scipy_openblas32", "scipy-openblas32"),
    "onnxruntime": ("onnxruntime", "onnxruntime"),
    "openvino": ("openvino", "openvino"),
}


@dataclass(frozen=True)
class Options:
    """What may be chosen about a compilation beside model, target, threads and shapes.

    disable: names of rewrite rules to leave out. rewrite: False leaves all of them out.
    substitute: search for substitutions that make the graph cheaper; False applies the rules alone that always help.
    seed: of anything drawn. strict_shapes: declared ranges are a contract, checked at `run`.
    workers: compile processes, None for the CPUs allowed. verify: check the loop programs that
    kernels become. affinity: CPUs for the gang, as "0-3" (None: no pinning).
    plan: a plan file, which says what kernels there are; None: the compiler chooses.
    store: plan by what the tuning store remembers of this machine; False: by guesses, which are the same everywhere.
    overridable: initializers that stay inputs, to be fed with every call; all others are packed into the artifact.
    max_memory: bytes that weights, arena and scratch of one call may take; None: what the system has. A model that
    needs more at its smallest shape is refused when compiling, a call that does, when it comes.
    providers: packages (of `PROVIDERS`) that tuning may let run kernels; the artifact then needs those it chose.
    """

    disable: tuple[str, ...] = ()
    rewrite: bool = True
    substitute: bool = True
    seed: int = 0
    strict_shapes: bool = False
    workers: int | None = None
    verify: bool = False
    affinity: str | None = None
    plan: str | os.PathLike[str] | None = None
    store: bool = True
    overridable: tuple[str, ...] = ()
    max_memory: int | None = None
    providers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_kinds(self)
        object.__setattr__(self, "disable", tuple(self.disable))
        object.__setattr__(self, "overridable", tuple(dict.fromkeys(self.overridable)))
        object.__setattr__(self, "providers", tuple(dict.fromkeys(self.providers)))
        for name in self.providers:
            if name not in PROVIDERS:
                hint = did_you_mean(name, PROVIDERS)
                reason = f"there are {', '.join(PROVIDERS)}"
                raise OptionError("F616", f"there is no provider {name}", reason=reason, remedy=hint)
        if self.workers is not None and self.workers < 1:
            raise OptionError("F601", f"workers={self.workers}: at least one is needed")

    def key(self) -> dict[str, object]:
        """The fields that can change an artifact's bytes, as plain data for hashing."""
        fields = asdict(self)
        for name in ("workers", "verify", "affinity", "store"):
            del fields[name]
        fields["disable"] = sorted(self.disable)
        for name in ("overridable", "providers"):
            if not fields[name]:
                del fields[name]
        if self.max_memory is None:
            del fields["max_memory"]
        if self.plan is None:
            del fields["plan"]
        else:
            fields["plan"] = hashlib.sha256(plan_file_text(self.plan).encode()).hexdigest()
        return fields


def _check_kinds(options: Options) -> None:
    """OptionError F601 for a value of another type than its field's."""
    for name in ("rewrite", "substitute", "strict_shapes", "verify", "store"):
        if not isinstance(value := getattr(options, name), bool):
            raise OptionError("F601", f"{name}={value!r}", remedy=f"{name}=True or {name}=False")
    for name in ("disable", "providers"):
        names = getattr(options, name)
        if not isinstance(names, list | tuple | set | frozenset) or not are_texts(names):
            raise OptionError("F601", f"{name}={names!r}", remedy=f'{name}=("NAME", ...)')
    if isinstance(options.seed, bool) or not isinstance(options.seed, int):
        raise OptionError("F601", f"seed={options.seed!r}", remedy="seed=0, a whole number")
    if isinstance(options.workers, bool) or not isinstance(options.workers, int | None):
        raise OptionError("F601", f"workers={options.workers!r}", remedy="workers=2, a whole number")
    most = options.max_memory
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise OptionError("F601", f"max_memory={most!r}", remedy="max_memory=2 << 30, in bytes")
    if not isinstance(options.affinity, str | None):
        raise OptionError("F601", f"affinity={options.affinity!r}", remedy='affinity="0-3"')
    if not isinstance(options.plan, str | os.PathLike | None):
        raise OptionError("F601", f"plan={options.plan!r}", remedy='plan="plan.json", a path')


def are_texts(values: Iterable[object]) -> bool:
    """Whether all are strings."""
    return all(isinstance(value, str) for value in values)


def plan_file_text(path: str | os.PathLike[str]) -> str:
    """The text of a plan file; FileMissing F501, FileAccess F502."""
    with open_regular(path) as file:
        try:
            return file.read().decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FileAccess("F502", f"{path} cannot be read", reason=str(error)) from error


@dataclass(frozen=True)
class Event:
    """What a long call tells its `progress` callback.

    stage: a name of `pipeline.STAGES`, or a label such as "model". text: one line for people.
    seconds: how long the stage took; None while it begins and for plain labels. share: how far what takes long is,
    from 0 to 1.
    """

    stage: str
    text: str = ""
    seconds: float | None = None
    share: float | None = None


@dataclass(frozen=True)
class Variable:
    """One row of the table of environment variables."""

    name: str
    value: str
    meaning: str


ENVIRONMENT: tuple[Variable, ...] = (
    Variable("FISSILE_NUM_THREADS", "N", "threads per call; then OMP_NUM_THREADS, then the cores"),
    Variable("FISSILE_CACHE_DIR", "DIR", "the compile cache, instead of the user's cache folder"),
    Variable("FISSILE_CACHE", "0", "no compile cache"),
    Variable("FISSILE_STORE", "A:B:C", "tuning stores, read in order; the last is written"),
    Variable("FISSILE_LOG", "warning|info|debug", "how much is logged (logger: fissile)"),
    Variable("FISSILE_TARGET", "NAME", "the best target that native may mean"),
    Variable("FISSILE_PERF_MAP", "1", "write /tmp/perf-PID.map for Linux perf"),
)


@dataclass(frozen=True)
class Environment:
    """The environment, read and checked. None means not set."""

    num_threads: int | None = None
    cache_dir: Path | None = None
    cache: bool = True
    store: tuple[Path, ...] = ()
    log: str = "warning"
    target: str | None = None
    perf_map: bool = False


def environment(variables: Mapping[str, str] | None = None) -> Environment:
    """Read the table above from `variables` (default: os.environ); OptionError on a bad value."""
    env = os.environ if variables is None else variables
    _warn_unknown(env)
    log = env.get("FISSILE_LOG", "warning").lower()
    if log not in ("warning", "info", "debug"):
        raise OptionError("F602", f"FISSILE_LOG={log}", remedy="FISSILE_LOG=warning|info|debug")
    directory = env.get("FISSILE_CACHE_DIR")
    return Environment(
        num_threads=_count(env, "FISSILE_NUM_THREADS") or _omp_threads(env),
        cache_dir=Path(directory) if directory else None,
        cache=_switch(env, "FISSILE_CACHE", default=True),
        store=tuple(Path(p) for p in env.get("FISSILE_STORE", "").split(":") if p),
        log=log,
        target=env.get("FISSILE_TARGET") or None,
        perf_map=_switch(env, "FISSILE_PERF_MAP", default=False),
    )


def resolve_target(target: str | Target = "native") -> Target:
    """`target.resolve` with the cap of FISSILE_TARGET applied to "native"."""
    return resolve(target, environment().target)


def _warn_unknown(env: Mapping[str, str]) -> None:
    known = [v.name for v in ENVIRONMENT]
    for name in env:
        if name.startswith("FISSILE_") and name not in known:
            hint = did_you_mean(name, known)
            warnings.warn(f"{name} is not a variable of fissile; {hint}", FissileWarning, 3)


def _count(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "").strip()
    if not text:
        return None
    if not text.isdigit() or int(text) == 0:
        raise OptionError("F602", f"{name}={text}", remedy=f"{name}=2, a whole number from 1 on")
    return int(text)


def _omp_threads(env: Mapping[str, str]) -> int | None:
    """OMP_NUM_THREADS may be a list per nesting level; its first number counts, junk is ignored."""
    first = env.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdigit() and int(first) > 0 else None


def _switch(env: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = env.get(name, "").strip().lower()
    if text in ("", "0", "1", "no", "yes", "off", "on", "false", "true"):
        return default if not text else text in ("1", "yes", "on", "true")
    raise OptionError("F602", f"{name}={text}", remedy=f"{name}=0 or {name}=1")
