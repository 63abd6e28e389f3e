"""SessionOptions, RunOptions and their enumerations, with onnxruntime's names and defaults.

In: attributes as an onnxruntime user sets them. Out: the few that mean something here (threads,
optimisation off, free dimensions); the rest is accepted and has no effect. Invariant: an unknown
attribute raises AttributeError, a mistyped configuration key warns once.
"""

import logging
import operator
from enum import IntEnum

from fissile.errors import did_you_mean
from fissile.ort.errors import InvalidArgument

logger = logging.getLogger("fissile")

_SEVERITY = {
    0: logging.DEBUG,
    1: logging.INFO,
    2: logging.WARNING,
    3: logging.ERROR,
    4: logging.CRITICAL,
}

OVERRIDABLE = "fissile.overridable_initializers"
_CONFIG_KEYS = (
    OVERRIDABLE,
    "ep.context_enable",
    "ep.context_embed_mode",
    "ep.context_file_path",
    "optimization.disable_specified_optimizers",
    "optimization.enable_cast_chain_elimination",
    "optimization.enable_gelu_approximation",
    "optimization.minimal_build_optimizations",
    "session.debug_layout_transformation",
    "session.disable_aot_function_inlining",
    "session.disable_cpu_ep_fallback",
    "session.disable_double_qdq_remover",
    "session.disable_prepacking",
    "session.disable_quant_qdq",
    "session.dynamic_block_base",
    "session.enable_quant_qdq_cleanup",
    "session.force_spinning_stop",
    "session.inter_op.allow_spinning",
    "session.intra_op.allow_spinning",
    "session.intra_op_thread_affinities",
    "session.load_model_format",
    "session.model_external_initializers_file_folder_path",
    "session.optimized_model_external_initializers_file_name",
    "session.qdq_matmulnbits_accuracy_level",
    "session.qdqisint8allowed",
    "session.save_model_format",
    "session.set_denormal_as_zero",
    "session.strict_shape_type_inference",
    "session.use_device_allocator_for_initializers",
    "session.use_env_allocators",
    "session.use_memory_efficient_optimization",
    "session.use_ort_model_bytes_directly",
    "session.use_ort_model_bytes_for_initializers",
)
_warned: set[str] = set()


class _Named(IntEnum):
    """A number that prints as its name, as onnxruntime's do."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class GraphOptimizationLevel(_Named):
    """DISABLE_ALL means no rewrites; every other level is the default."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(_Named):
    """Accepted; no effect."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(_Named):
    """Accepted; no effect."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class SessionOptions:
    """Attributes and methods of onnxruntime's class; see PRODUCT 4.4 for what has an effect."""

    __slots__ = (
        "_config",
        "_dimensions",
        "_inter",
        "_intra",
        "_severity",
        "enable_cpu_mem_arena",
        "enable_mem_pattern",
        "enable_mem_reuse",
        "enable_profiling",
        "execution_mode",
        "execution_order",
        "graph_optimization_level",
        "log_verbosity_level",
        "logid",
        "optimized_model_filepath",
        "profile_file_prefix",
        "use_deterministic_compute",
        "use_per_session_threads",
    )

    def __init__(self) -> None:
        self._config: dict[str, str] = {}
        self._dimensions: dict[str, int] = {}
        self._inter = self._intra = 0
        self._severity = -1
        self.enable_cpu_mem_arena = True
        self.enable_mem_pattern = True
        self.enable_mem_reuse = True
        self.enable_profiling = False
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.execution_order = ExecutionOrder.DEFAULT
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.log_verbosity_level = 0
        self.logid = ""
        self.optimized_model_filepath = ""
        self.profile_file_prefix = "onnxruntime_profile_"
        self.use_deterministic_compute = False
        self.use_per_session_threads = True

    @property
    def intra_op_num_threads(self) -> int:
        """Threads of one call; 0 is the default rule."""
        return self._intra

    @intra_op_num_threads.setter
    def intra_op_num_threads(self, count: int) -> None:
        self._intra = _count("intra_op_num_threads", count)

    @property
    def inter_op_num_threads(self) -> int:
        """Accepted; no effect."""
        return self._inter

    @inter_op_num_threads.setter
    def inter_op_num_threads(self, count: int) -> None:
        self._inter = _count("inter_op_num_threads", count)

    @property
    def log_severity_level(self) -> int:
        """0 verbose .. 4 fatal, -1 unchanged; sets the level of the logger `fissile`."""
        return self._severity

    @log_severity_level.setter
    def log_severity_level(self, severity: int) -> None:
        if not isinstance(severity, int):
            raise TypeError(f"log_severity_level={severity!r}: a number from 0 to 4")
        self._severity = severity
        set_default_logger_severity(severity)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Kept and answered by `get_session_config_entry`; unknown keys warn once."""
        if key not in _CONFIG_KEYS and key not in _warned:
            _warned.add(key)
            hint = did_you_mean(key, _CONFIG_KEYS)
            logger.warning("session option %s is not known; %s", key, hint or "it has no effect")
        self._config[key] = str(value)

    def get_session_config_entry(self, key: str) -> str:
        """The value given before; InvalidArgument if there was none."""
        if key not in self._config:
            raise InvalidArgument(f"SessionOptions does not have config with key: {key}")
        return self._config[key]

    def add_free_dimension_override_by_name(self, name: str, extent: int) -> None:
        """Fixes the dimension called `name`."""
        try:
            self._dimensions[str(name)] = operator.index(extent)
        except TypeError as error:
            raise InvalidArgument(f"free dimension {name} = {extent!r}: no whole number") from error

    def add_free_dimension_override_by_denotation(self, denotation: str, extent: int) -> None:
        """Accepted; denotations are not read."""
        logger.warning("free dimension denotation %s = %d has no effect", denotation, extent)

    def add_initializer(self, name: str, value: object) -> None:
        """Refused: initializers are constants of the compiled model."""
        raise InvalidArgument(
            f"initializer {name} cannot be replaced; {type(value).__name__} given\n"
            f"  to feed it with every call: add_session_config_entry({OVERRIDABLE!r}, {name!r})"
        )

    def register_custom_ops_library(self, library: str) -> None:
        """Refused: custom operators of another runtime cannot be called."""
        raise InvalidArgument(f"{library}: custom operator libraries are not supported")

    def add_provider(self, name: str, options: dict[str, str]) -> None:
        """Accepted; everything runs on the CPU."""
        logger.info("provider %s with %s has no effect", name, options)

    def has_providers(self) -> bool:
        """False: no provider is ever added."""
        return False


class RunOptions:
    """Accepted by `run`; no effect."""

    __slots__ = (
        "_config",
        "log_severity_level",
        "log_verbosity_level",
        "logid",
        "only_execute_path_to_fetches",
        "terminate",
    )

    def __init__(self) -> None:
        self._config: dict[str, str] = {}
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False
        self.terminate = False

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Kept and answered by `get_run_config_entry`."""
        self._config[key] = str(value)

    def get_run_config_entry(self, key: str) -> str:
        """The value given before; InvalidArgument if there was none."""
        if key not in self._config:
            raise InvalidArgument(f"RunOptions does not have config with key: {key}")
        return self._config[key]


def set_default_logger_severity(severity: int) -> None:
    """0 verbose .. 4 fatal -> level of the logger `fissile`; other numbers change nothing."""
    if severity in _SEVERITY:
        logger.setLevel(_SEVERITY[severity])


def overridable(options: SessionOptions) -> tuple[str, ...]:
    """The initializers that are to be fed with every call: the names of a configuration entry, by semicolons."""
    return tuple(filter(None, options._config.get(OVERRIDABLE, "").split(";")))


def free_dimensions(options: SessionOptions) -> dict[str, int]:
    """What `add_free_dimension_override_by_name` collected."""
    return dict(options._dimensions)


def _count(name: str, count: int) -> int:
    try:
        count = operator.index(count)
    except TypeError as error:
        raise TypeError(f"{name}={count!r}: a count of threads is a whole number") from error
    if count < 0:
        raise ValueError(f"{name}={count}: a count of threads is 0 (default) or more")
    return count
