"""InferenceSession: a model or artifact behind onnxruntime's calls (PRODUCT 4.4).

In: a path or bytes of `.onnx` or `.fsl`, session options, feeds. Out: lists of arrays.
Invariant: a call that is right is not checked twice: feeds go straight to the executable, and only
when that refuses are they examined to raise the class and words that onnxruntime's callers expect.
"""

import logging
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import fissile
from fissile.errors import (
    FissileError,
    FissileWarning,
    InvalidFeed,
    NotYet,
    did_you_mean,
)
from fissile.files import open_regular
from fissile.options import Options
from fissile.ort.errors import Fail, InvalidArgument, loading_error
from fissile.ort.options import (
    OVERRIDABLE,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
    free_dimensions,
    overridable,
)
from fissile.ort.value import (
    UNSET_VERSION,
    Array,
    IOBinding,
    ModelMetadata,
    NodeArg,
    OrtValue,
    type_name,
)
from fissile.runtime.plan import TensorInfo

logger = logging.getLogger("fissile")

CPU = "CPUExecutionProvider"
Provider = str | tuple[str, Mapping[str, object]]
Source = str | os.PathLike[str] | bytes
# Accepted for compatibility; they choose between implementations that do not exist here.
_IGNORED_KEYWORDS = {"disabled_optimizers", "enable_fallback", "read_config_from_model"}


class InferenceSession:
    """`InferenceSession("model.onnx").run(None, {"x": x})`, compiled and cached on first use.

    path_or_bytes: an ONNX model or a `.fsl` artifact. sess_options: see SessionOptions.
    providers: anything but the CPU is a UserWarning and then the CPU.
    Raises NoSuchFile, InvalidProtobuf, InvalidGraph, NotImplemented as onnxruntime does.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
        **kwargs: object,
    ) -> None:
        if unknown := kwargs.keys() - _IGNORED_KEYWORDS:
            raise TypeError(
                f"InferenceSession() got unexpected keyword arguments {sorted(unknown)}"
            )
        _check_providers(providers, provider_options)
        if not isinstance(sess_options, SessionOptions | None):
            raise TypeError(f"sess_options is a SessionOptions, got {type(sess_options).__name__}")
        self._options = sess_options or SessionOptions()
        self._source: Source | None = path_or_bytes
        self._attach(_open(path_or_bytes, self._options))

    def _attach(self, executable: "fissile.Executable") -> None:
        self._executable = executable
        self._input_names = tuple(info.name for info in executable.inputs)
        self._output_names = tuple(info.name for info in executable.outputs)
        self._special: dict[str, fissile.Executable | None] = {}  # by the extents they are for

    def __getstate__(self) -> dict[str, object]:
        return {"executable": self._executable}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._options, self._source = SessionOptions(), None
        self._attach(state["executable"])

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Array]:
        """The named outputs (all for None or []) as fresh arrays, in the order asked for."""
        names = output_names or self._output_names
        if isinstance(names, str):
            raise TypeError(f"run(): output_names is a sequence of names, got the string {names!r}")
        if not isinstance(names, Sequence):
            raise InvalidArgument(f"run(): output_names is a sequence of names, got {names!r}")
        if not isinstance(input_feed, Mapping):
            kind = type(input_feed).__name__
            raise InvalidArgument(f"run(): input_feed is a mapping from names to arrays, got {kind}")
        feeds = {name: _plain(value) for name, value in input_feed.items()}
        return self._run(names, feeds)

    def _run(
        self,
        names: Sequence[str],
        feeds: dict[str, Any],
        out: Mapping[str, Array] | None = None,
    ) -> list[Array]:
        try:
            # A name may be asked for twice; the executable computes it once.
            results = self._results(feeds, tuple(dict.fromkeys(names)), out)
        except (FissileError, ValueError, TypeError, KeyError) as error:
            self._explain(names, feeds)
            if isinstance(error, FissileError):
                raise InvalidArgument(str(error)) from error
            raise
        return [results[name] for name in names]

    def _results(
        self, feeds: dict[str, Any], names: tuple[str, ...], out: Mapping[str, Array] | None
    ) -> Mapping[str, Array]:
        """The outputs; by the model compiled for this call's extents of 0 and 1 where it takes those to be others."""
        try:
            return self._executable.run(feeds, names, out=out)
        except InvalidFeed as error:
            special = self._specialized(feeds, error) if error.code == "F206" else None
            if special is None:
                raise
            try:
                return special.run(feeds, names, out=out)
            except InvalidFeed:
                raise error from None

    def _specialized(
        self, feeds: Mapping[str, Any], error: InvalidFeed
    ) -> "fissile.Executable | None":
        """The model compiled for the extents of 0 and 1 in these feeds, made once; None where that cannot be."""
        shapes = _small_extents(self._executable.inputs, feeds)
        if not shapes or self._source is None or _is_artifact(self._source):
            return None
        key = repr(shapes)
        if key not in self._special:
            try:
                self._special[key] = _open(self._source, self._options, shapes)
            except (FissileError, Fail, ValueError, RuntimeError) as problem:
                logger.debug("no executable for %s: %s", key, problem)
                self._special[key] = None
            else:
                said = ", ".join(f"{name}={n}" for name, n in shapes.items())
                text = f"the model was compiled once more, for {said}: {error.message}"
                warnings.warn(text, FissileWarning, stacklevel=5)
        return self._special[key]

    def _explain(self, names: Sequence[str], feeds: Mapping[str, Any]) -> None:
        """Raise what onnxruntime raises for the first mistake found in the call, if any."""
        known = ", ".join(self._input_names)
        if missing := [n for n in self._input_names if n not in feeds]:
            hint = did_you_mean(missing[0], feeds)
            raise ValueError(
                f"Required inputs ({missing}) are missing from input feed ({list(feeds)}). {hint}"
            )
        for name in feeds:
            if name not in self._input_names:
                hint = did_you_mean(name, self._input_names)
                raise InvalidArgument(
                    f"Invalid input name: {name}\n  inputs: {known}. {hint}\n"
                    "  initializers are constants of the compiled model; to feed one, name it before: "
                    f"add_session_config_entry({OVERRIDABLE!r}, {name!r}), or Options(overridable=[{name!r}])"
                )
        for name in names:
            if name not in self._output_names:
                hint = did_you_mean(name, self._output_names)
                valid = ", ".join(self._output_names)
                raise InvalidArgument(f"Invalid output name:{name}\n  outputs: {valid}. {hint}")
        for info in self._executable.inputs:
            _explain_feed(info.name, info.dtype, info.shape, feeds[info.name])

    def get_inputs(self) -> list[NodeArg]:
        """Inputs without initializers."""
        return [NodeArg(i.name, type_name(i.dtype), list(i.shape)) for i in self._executable.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Outputs in the model's order."""
        return [
            NodeArg(o.name, type_name(o.dtype), list(o.shape)) for o in self._executable.outputs
        ]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Empty: initializers are constants of the compiled model."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """What the model says about itself; version is 2**63 - 1 when the model gives none."""
        about = self._executable.manifest.get("model", {})
        return ModelMetadata(
            custom_metadata_map=dict(self._executable.metadata),
            description=about.get("description", ""),
            domain=about.get("domain", ""),
            graph_description=about.get("graph_description", ""),
            graph_name=about.get("graph_name", ""),
            producer_name=about.get("producer_name", ""),
            version=UNSET_VERSION if about.get("version") is None else about["version"],
        )

    def get_providers(self) -> list[str]:
        """The CPU."""
        return [CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """No options."""
        return {CPU: {}}

    def set_providers(
        self,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
    ) -> None:
        """Checked as in the constructor; no effect."""
        _check_providers(providers, provider_options)

    def get_session_options(self) -> SessionOptions:
        """The options given."""
        return self._options

    def enable_fallback(self) -> None:
        """No effect."""

    def disable_fallback(self) -> None:
        """No effect."""

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Array], object, str], None],
        user_data: object,
        run_options: RunOptions | None = None,
    ) -> None:
        """`callback(results, user_data, error_text)` from another thread."""

        def work() -> None:
            try:
                results, text = self.run(output_names, input_feed, run_options), ""
            except (FissileError, Fail, ValueError, RuntimeError, TypeError) as error:
                results, text = [], str(error)
            callback(results, user_data, text)

        threading.Thread(target=work, name="fissile-run-async", daemon=True).start()

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Like `run`, with OrtValues on both sides."""
        results = self.run(output_names, input_dict_ort_values, run_options)
        return [OrtValue(array) for array in results]

    def io_binding(self) -> IOBinding:
        """An empty binding."""
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Run with bound inputs; results land in bound memory or in the binding."""
        if not isinstance(iobinding, IOBinding):
            raise TypeError(f"iobinding is an IOBinding, got {type(iobinding).__name__}")
        out = {name: array for name, array in iobinding.outputs.items() if array is not None}
        names = tuple(iobinding.outputs) or self._output_names
        iobinding.keep(self._run(names, dict(iobinding.inputs), out or None))

    def end_profiling(self) -> str:
        """The empty string; NotYet if profiling was asked for."""
        if self._options.enable_profiling:
            raise NotYet(
                "F690",
                "profiles in onnxruntime's file format are not written",
                remedy="fissile.compile(model).profile(feeds) gives the times per node",
            )
        return ""


def _small_extents(infos: Sequence[TensorInfo], feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The free dimensions that are 0 or 1 in these feeds: names with numbers, inputs with rows of unnamed ones."""
    found: dict[str, Any] = {}
    for info in infos:
        row: list[int | None] = [None] * len(info.shape)
        for axis, (declared, n) in enumerate(zip(info.shape, np.shape(feeds[info.name]))):
            if n <= 1 and isinstance(declared, str):
                found[declared] = n
            elif n <= 1 and declared is None:
                row[axis] = n
        if any(n is not None for n in row):
            found[info.name] = row
    return found


def _open(
    source: Source, options: SessionOptions, shapes: Mapping[str, Any] | None = None
) -> "fissile.Executable":
    """Load an artifact or compile a model, whichever `source` holds; `shapes` besides those of the options."""
    if not isinstance(source, str | os.PathLike | bytes):
        raise TypeError(f"Unable to load from type '{type(source)}'")
    name = "bytes" if isinstance(source, bytes) else os.fspath(source)
    threads = options.intra_op_num_threads or None
    rewrite = options.graph_optimization_level != GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        if _is_artifact(source):
            return fissile.load(source, threads=threads)
        return fissile.compile(
            source,
            threads=threads,
            shapes={**free_dimensions(options), **(shapes or {})} or None,
            options=Options(rewrite=rewrite, overridable=overridable(options)),
        )
    except FissileError as error:
        raise loading_error(error, name) from error


def _is_artifact(source: Source) -> bool:
    """Whether `source` starts like a zip, as a `.fsl` does and an ONNX model never."""
    if isinstance(source, bytes):
        return source[:2] == b"PK"
    with open_regular(source) as file:
        return file.read(2) == b"PK"


def _check_providers(
    providers: Sequence[Provider] | None, options: Sequence[Mapping[str, object]] | None
) -> None:
    names = [_provider_name(p) for p in _listed(providers)]
    if options is not None and providers is not None and len(options) != len(names):
        raise ValueError("'providers' and 'provider_options' should be the same length")
    for name in names:
        if name != CPU:
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names."
                f"Available providers: '{CPU}'",
                UserWarning,
                stacklevel=4,
            )


def _listed(providers: object) -> Sequence[Any]:
    if providers is None:
        return ()
    if isinstance(providers, str):
        return (providers,)
    if not isinstance(providers, Sequence):
        raise ValueError(f"providers is a list of names, got {providers!r}")
    return providers


def _provider_name(provider: Any) -> str:
    """The name of a provider, which may stand in a pair with its options."""
    name = provider[0] if isinstance(provider, tuple) and provider else provider
    if not isinstance(name, str):
        raise ValueError(f"a provider is a name, or a pair of it and its options, got {provider!r}")
    return name


def _plain(value: Any) -> Any:
    return value.numpy() if isinstance(value, OrtValue) else value


def _explain_feed(
    name: str, dtype: np.dtype[Any], shape: Sequence[int | str | None], value: Any
) -> None:
    if value is None:
        raise ValueError(f"input {name} is None; feed an array of {type_name(dtype)}")
    try:
        array = np.asarray(value)
    except Exception as error:  # of another package's array, anything
        raise InvalidArgument(
            f"input {name} is no array: {type(error).__name__}: {error}"
        ) from error
    if isinstance(value, np.ndarray) and array.dtype.newbyteorder("=") != dtype:
        raise InvalidArgument(
            f"Unexpected input data type. Actual: ({type_name(array.dtype)}) , "
            f"expected: ({type_name(dtype)})\n  do: feed {name}.astype('{dtype.name}')"
        )
    if array.ndim != len(shape):
        raise InvalidArgument(
            f"Invalid rank for input: {name} Got: {array.ndim} Expected: {len(shape)} "
            f"Please fix either the inputs/outputs or the model.\n  expected shape: {list(shape)}"
        )
    wrong = [
        f" index: {axis} Got: {got} Expected: {expected}"
        for axis, (got, expected) in enumerate(zip(array.shape, shape, strict=True))
        if isinstance(expected, int) and got != expected
    ]
    if wrong:
        raise InvalidArgument(
            f"Got invalid dimensions for input: {name} for the following indices\n"
            + "\n".join(wrong)
            + f"\n Please fix either the inputs/outputs or the model.\n  expected: {list(shape)}"
        )
