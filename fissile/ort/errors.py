"""The exceptions of onnxruntime by name, with the natural builtins as second parents.

In: a status and words, or one of our own errors. Out: the class a caller of onnxruntime catches.
Invariant: the key words of the original message come first, our reason and remedy follow.
"""

from fissile.errors import FileMissing, FissileError, ModelError, UnsupportedError


class Error(Exception):
    """Parent of all; `status` is onnxruntime's number and name."""

    status = (1, "FAIL")

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        number, name = self.status
        return f"[ONNXRuntimeError] : {number} : {name} : {self.message}"


class Fail(Error, RuntimeError):
    """Anything without a better name."""


class InvalidArgument(Error, ValueError):
    """A wrong name, dtype, rank or dimension."""

    status = (2, "INVALID_ARGUMENT")


class NoSuchFile(Error, FileNotFoundError):
    """The model file is not there."""

    status = (3, "NO_SUCHFILE")


class NoModel(Error, RuntimeError):
    """Never raised here; the name exists to be caught."""

    status = (4, "NO_MODEL")


class EngineError(Error, RuntimeError):
    """Never raised here; the name exists to be caught."""

    status = (5, "ENGINE_ERROR")


class RuntimeException(Error, RuntimeError):
    """Never raised here; the name exists to be caught."""

    status = (6, "RUNTIME_EXCEPTION")


class InvalidProtobuf(Error, ValueError):
    """The bytes are no ONNX model."""

    status = (7, "INVALID_PROTOBUF")


class ModelLoaded(Error, RuntimeError):
    """Never raised here; the name exists to be caught."""

    status = (8, "MODEL_LOADED")


class NotImplemented(Error, NotImplementedError):
    """The model needs something that does not exist here."""

    status = (9, "NOT_IMPLEMENTED")


class InvalidGraph(Error, ValueError):
    """The model breaks a rule of ONNX."""

    status = (10, "INVALID_GRAPH")


class EPFail(Error, RuntimeError):
    """Never raised here; the name exists to be caught."""

    status = (11, "EP_FAIL")


CLASSES: tuple[type[Error], ...] = (
    Error,
    Fail,
    InvalidArgument,
    NoSuchFile,
    NoModel,
    EngineError,
    RuntimeException,
    InvalidProtobuf,
    ModelLoaded,
    NotImplemented,
    InvalidGraph,
    EPFail,
)


def loading_error(error: FissileError, model: str) -> Error:
    """The exception for a model (named `model`) that could not be loaded."""
    if isinstance(error, FileMissing):
        return NoSuchFile(f"Load model from {model} failed. File doesn't exist\n{error}")
    if isinstance(error, ModelError) and error.code == "F011":
        if model == "bytes":
            return InvalidProtobuf(f"Failed to load model because protobuf parsing failed.\n{error}")
        return InvalidProtobuf(f"Load model from {model} failed:Protobuf parsing failed.\n{error}")
    if isinstance(error, ModelError):
        return InvalidGraph(f"Load model from {model} failed:This is an invalid model.\n{error}")
    if isinstance(error, UnsupportedError):
        return NotImplemented(f"Load model from {model} failed\n{error}")
    return Fail(f"Load model from {model} failed\n{error}")
