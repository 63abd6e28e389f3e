"""NodeArg, ModelMetadata, OrtValue and IOBinding: what crosses the session's boundary, on the CPU.

In: numpy arrays, pointers with dtype and shape. Out: the same under onnxruntime's names.
Invariant: an OrtValue made from a numpy array shares its memory.
"""

import ctypes
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fissile.ort.errors import InvalidArgument

Array = NDArray[Any]

UNSET_VERSION = 2**63 - 1

_TYPE_NAMES = {
    "float32": "float",
    "float64": "double",
    "str": "string",
    "object": "string",
}
# TensorProto.DataType -> numpy name
_ELEMENT_TYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
}


def type_name(dtype: DTypeLike) -> str:
    """A dtype -> "tensor(float)" and the like."""
    name = np.dtype(dtype).name
    return f"tensor({_TYPE_NAMES.get(name, name)})"


@dataclass(frozen=True)
class NodeArg:
    """An input or output. shape: int, dimension name, or None where the model gives no name."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True)
class ModelMetadata:
    """What the model says about itself."""

    custom_metadata_map: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    domain: str = ""
    graph_description: str = ""
    graph_name: str = ""
    producer_name: str = ""
    version: int = UNSET_VERSION


class OrtValue:
    """A tensor on the CPU."""

    def __init__(self, array: Array) -> None:
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: Array, device_type: str = "cpu", device_id: int = 0
    ) -> "OrtValue":
        """Shares the memory of `numpy_obj`."""
        _cpu(device_type, device_id)
        return OrtValue(np.asarray(numpy_obj))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: object, device_type: str = "cpu", device_id: int = 0
    ) -> "OrtValue":
        """Uninitialised memory; element_type is a dtype or a TensorProto number."""
        _cpu(device_type, device_id)
        dtype, extents = element_dtype(element_type), _extents(shape)
        try:
            return OrtValue(np.empty(extents, dtype))
        except (ValueError, MemoryError) as error:
            raise InvalidArgument(f"no memory for {dtype}{list(extents)}: {error}") from error

    def numpy(self) -> Array:
        """The array itself."""
        return self._array

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        return np.array(self._array, dtype=dtype, copy=True if copy else None)

    def shape(self) -> list[int]:
        """Extents."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """Like "tensor(float)"."""
        return type_name(self._array.dtype)

    def element_type(self) -> int:
        """The TensorProto number."""
        return next((k for k, v in _ELEMENT_TYPES.items() if v == self._array.dtype.name), 0)

    def data_ptr(self) -> int:
        """Address of the first element."""
        return int(self._array.__array_interface__["data"][0])

    def tensor_size_in_bytes(self) -> int:
        """Bytes of the elements."""
        return self._array.nbytes

    def update_inplace(self, np_arr: Array) -> None:
        """Copy `np_arr` (same shape and dtype) into this value."""
        if np_arr.shape != self._array.shape or np_arr.dtype != self._array.dtype:
            raise InvalidArgument(f"got {np_arr.dtype}{list(np_arr.shape)}, expected {self!r}")
        self._array[...] = np_arr

    def device_name(self) -> str:
        """Always "cpu"."""
        return "cpu"

    def has_value(self) -> bool:
        """Always True."""
        return True

    def is_tensor(self) -> bool:
        """Always True."""
        return True

    def is_sparse_tensor(self) -> bool:
        """Always False."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Always False."""
        return False

    def __repr__(self) -> str:
        return f"OrtValue({self.data_type()}, {self.shape()})"


class IOBinding:
    """Names bound to arrays for `run_with_iobinding`; outputs without an array are made by it."""

    def __init__(self, session: object = None) -> None:
        self._session = session
        self.inputs: dict[str, Array] = {}
        self.outputs: dict[str, Array | None] = {}
        self._results: list[Array] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: ArrayLike) -> None:
        """Bind an array; its memory is read at each run."""
        self.inputs[name] = np.asarray(arr_on_cpu)

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: object,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind memory by address."""
        _cpu(device_type, device_id)
        self.inputs[name] = _view(buffer_ptr, element_type, shape)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an OrtValue."""
        self.inputs[name] = _value(ortvalue).numpy()

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: object = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output, into memory at `buffer_ptr` if given."""
        _cpu(device_type, device_id)
        given = buffer_ptr is not None and shape is not None
        self.outputs[name] = _view(buffer_ptr or 0, element_type, shape or ()) if given else None

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Ask for an output in the memory of `ortvalue`."""
        self.outputs[name] = _value(ortvalue).numpy()

    def keep(self, results: Sequence[Array]) -> None:
        """Called by the session with the arrays of the last run."""
        self._results = list(results)

    def get_outputs(self) -> list[OrtValue]:
        """Results of the last run, in the order they were bound."""
        return [OrtValue(array) for array in self._results]

    def copy_outputs_to_cpu(self) -> list[Array]:
        """Results of the last run as fresh arrays."""
        return [array.copy() for array in self._results]

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        self.outputs.clear()
        self._results = []

    def synchronize_inputs(self) -> None:
        """Nothing to wait for on a CPU."""

    def synchronize_outputs(self) -> None:
        """Nothing to wait for on a CPU."""


def element_dtype(element_type: object) -> np.dtype[Any]:
    """A dtype, numpy scalar type or TensorProto number -> dtype."""
    if isinstance(element_type, int):
        if element_type not in _ELEMENT_TYPES:
            raise InvalidArgument(f"element type {element_type} has no numpy dtype")
        return np.dtype(_ELEMENT_TYPES[element_type])
    try:
        return np.dtype(element_type)  # type: ignore[call-overload,no-any-return]
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"element type {element_type!r}: {error}") from error


def _extents(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape whose extents are numbers that an array can have."""
    try:
        extents = tuple(operator.index(d) for d in shape)
    except TypeError as error:
        raise InvalidArgument(f"{shape!r} is no shape: {error}") from error
    if any(not 0 <= d < 1 << 62 for d in extents) or math.prod(extents) >= 1 << 59:
        raise InvalidArgument(f"{list(extents)} is no shape of an array in memory")
    return extents


def _value(value: object) -> OrtValue:
    if not isinstance(value, OrtValue):
        raise InvalidArgument(f"an OrtValue is needed, not {type(value).__name__}")
    return value


def _cpu(device_type: str, device_id: int) -> None:
    if str(device_type).lower() != "cpu" or device_id != 0:
        raise InvalidArgument(f"device {device_type}:{device_id}: only cpu:0 exists here")


def _view(address: int, element_type: object, shape: Sequence[int]) -> Array:
    dtype = element_dtype(element_type)
    extents = _extents(shape)
    count = math.prod(extents)
    if count == 0:
        return np.empty(extents, dtype)
    if isinstance(address, bool) or not isinstance(address, int) or address <= 0:
        raise InvalidArgument(f"{address!r} is no address of memory")
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.ndarray(extents, dtype, buffer=memoryview(memory))
