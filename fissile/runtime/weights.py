"""Weights in the safetensors layout, every tensor on a 64-byte boundary (DESIGN 3.8).

In: names, dtypes, shapes and bytes of constant arrays, in the order the compiler chose. Out: a
header and a byte offset per tensor; the same two describe what the loader maps.
Invariant: the header's length is a multiple of 64 and gaps are filled by tensors named `_pad.N`, so
that the region is gapless (the format asks for it) and a mapped tensor is as aligned as any other.
"""

import json
import mmap
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
Buffer = bytes | bytearray | memoryview | mmap.mmap | npt.NDArray[Any]
CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}


@dataclass(frozen=True)
class Weight:
    """A constant array: C-contiguous little-endian bytes of `dtype` (a key of `CODES`)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Buffer


@dataclass(frozen=True)
class Layout:
    """`offsets[name]`: bytes from the first data byte; `size`: bytes of the data region."""

    header: bytes
    offsets: dict[str, int]
    size: int


def layout(weights: Sequence[Weight]) -> Layout:
    """Where each tensor goes, in the order given; ValueError for a repeated name."""
    table: dict[str, dict[str, object]] = {}
    offsets: dict[str, int] = {}
    end = 0
    for weight in weights:
        if weight.name in table:
            raise ValueError(f"two weights are called {weight.name}")
        if start := -end % ALIGNMENT:
            span = [end, end + start]
            table[f"_pad.{end}"] = {"dtype": "U8", "shape": [start], "data_offsets": span}
        begin = end + start
        end = begin + view(weight.data).nbytes
        offsets[weight.name] = begin
        table[weight.name] = {
            "dtype": CODES[weight.dtype],
            "shape": list(weight.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    return Layout(struct.pack("<Q", len(text)) + text, offsets, end)


def chunks(weights: Sequence[Weight]) -> Iterator[Buffer]:
    """The whole member piece by piece, so that large models are not copied."""
    yield layout(weights).header
    end = 0
    for weight in weights:
        if pad := -end % ALIGNMENT:
            yield bytes(pad)
        data = view(weight.data)
        yield data
        end += pad + data.nbytes


def data_start(member: Buffer) -> int:
    """Bytes from the start of the member to the first data byte; ValueError where the header cannot be right."""
    content = view(member)
    if content.nbytes < 8:
        raise ValueError("there is no header")
    (length,) = struct.unpack_from("<Q", content)
    start = 8 + int(length)
    if start % ALIGNMENT or start > content.nbytes:
        raise ValueError(f"a header of {length} bytes in {content.nbytes}")
    try:
        table = json.loads(bytes(content[8:start]))
        spans = [row["data_offsets"] for row in table.values()]
        end = max((end for _, end in spans), default=0)
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise ValueError("the header names no tensors") from error
    if end != content.nbytes - start:
        raise ValueError(f"tensors end at {end}, the data at {content.nbytes - start}")
    return start


def view(data: Buffer) -> memoryview:
    """Any C-contiguous buffer as flat bytes, not copied."""
    flat = data.data if isinstance(data, np.ndarray) else memoryview(data)
    return flat.cast("B") if flat.nbytes else memoryview(b"")
