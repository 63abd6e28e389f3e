"""External data of a model: where a tensor's bytes lie beside the model, and how they are mapped.

In: a TensorProto that says `location`, and the model's folder. Out: a read-only array mapped from
the file. Invariant: nothing outside the folder is opened, neither by `..`, by an absolute path nor
through a symbolic link, and no byte beyond the file's end is promised.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

from fissile.errors import FileMissing, ModelError


def external_files(model: onnx.ModelProto, folder: Path | None) -> list[Path]:
    """The files with tensors of the model, each once, sorted. Raises like `external_path`."""
    external = onnx.TensorProto.EXTERNAL
    tensors = (t for t in _tensors(model.graph) if t.data_location == external)
    return sorted({external_path(t, folder) for t in tensors})


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """The tensors of a graph and of the graphs in its attributes."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)


def external_path(tensor: onnx.TensorProto, folder: Path | None) -> Path:
    """The file that holds the tensor. ModelError when it is not inside `folder`, FileMissing when absent."""
    location = _entries(tensor).get("location", "")
    if folder is None:
        raise ModelError(
            "F015",
            "the model keeps weights in other files",
            where=tensor.name,
            reason=f"its folder is unknown, so {location!r} cannot be found",
            remedy="pass the model's path, or base_dir",
        )
    path = folder / location
    if not location or Path(location).is_absolute() or ".." in Path(location).parts:
        raise _outside(tensor, location)
    if not path.resolve().is_relative_to(folder.resolve()) or _has_link(folder, location):
        raise _outside(tensor, location)
    if not path.is_file():
        raise FileMissing(
            "F016",
            f"the file {location!r} with the model's weights is missing",
            where=tensor.name,
            remedy="put it into the folder of the model",
        )
    return path


def external_array(tensor: onnx.TensorProto, folder: Path | None, of: np.dtype) -> np.ndarray:
    """The tensor's values, mapped from its file. ModelError when the file is too short."""
    path, entries = external_path(tensor, folder), _entries(tensor)
    shape = tuple(tensor.dims)
    want = math.prod(shape) * of.itemsize
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", want))
    except ValueError as error:
        raise _broken(tensor, f"offset and length must be numbers: {error}") from error
    size = path.stat().st_size
    if min(offset, length, *shape, 0) < 0 or length != want or offset + want > size:
        raise _broken(
            tensor,
            f"{want} bytes from {offset} are wanted, the file has {size} ({length} declared)",
        )
    if want == 0:
        return np.zeros(shape, of)
    return np.memmap(path, of, "r", offset, shape)


def _entries(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _has_link(folder: Path, location: str) -> bool:
    parts = Path(location).parts
    return any(folder.joinpath(*parts[: n + 1]).is_symlink() for n in range(len(parts)))


def _outside(tensor: onnx.TensorProto, location: str) -> ModelError:
    return ModelError(
        "F017",
        f"the model asks for weights at {location!r}",
        where=tensor.name,
        reason="external data must lie inside the folder of the model, not behind a link",
        remedy="put the file beside the model",
    )


def _broken(tensor: onnx.TensorProto, reason: str) -> ModelError:
    return ModelError("F018", "broken external data", where=tensor.name, reason=reason)
