"""Element types: how a value is stored and in which type it is computed.

Storage is not compute: float16 and bfloat16 are stored in two bytes and computed in float32, and a value is rounded to
one of them where it is cast to it, in memory or not; every other type computes as itself. A `DType` is a row of one
table, so equality is identity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class DType:
    """One element type. `kind` is "f" float, "i" signed, "u" unsigned, "b" bool; `llvm` is its storage type in LLVM."""

    name: str
    kind: str
    bits: int
    llvm: str

    @property
    def bytes(self) -> int:
        """Bytes of one stored element."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """Whether values are floating-point numbers."""
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        """Whether values are signed or unsigned integers (bool is not one)."""
        return self.kind in "iu"

    @property
    def compute(self) -> DType:
        """The type arithmetic is done in."""
        return FLOAT32 if self in (FLOAT16, BFLOAT16) else self

    @property
    def is_half(self) -> bool:
        """Whether values are stored more coarsely than they are computed."""
        return self.compute is not self

    @property
    def numpy(self) -> np.dtype:
        """The numpy type of a stored array; bfloat16 is viewed as uint16."""
        return np.dtype("uint16" if self is BFLOAT16 else self.name)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, ...]:
        return dtype, (self.name,)


FLOAT64 = DType("float64", "f", 64, "double")
FLOAT32 = DType("float32", "f", 32, "float")
FLOAT16 = DType("float16", "f", 16, "half")
BFLOAT16 = DType("bfloat16", "f", 16, "i16")
INT64 = DType("int64", "i", 64, "i64")
INT32 = DType("int32", "i", 32, "i32")
INT16 = DType("int16", "i", 16, "i16")
INT8 = DType("int8", "i", 8, "i8")
UINT64 = DType("uint64", "u", 64, "i64")
UINT32 = DType("uint32", "u", 32, "i32")
UINT16 = DType("uint16", "u", 16, "i16")
UINT8 = DType("uint8", "u", 8, "i8")
BOOL = DType("bool", "b", 8, "i8")

DTYPES = (
    FLOAT64, FLOAT32, FLOAT16, BFLOAT16, INT64, INT32, INT16, INT8, UINT64, UINT32, UINT16, UINT8, BOOL,
)  # fmt: skip
_BY_NAME = {d.name: d for d in DTYPES}


def dtype(name: str) -> DType:
    """The row called `name` ("float32", "bool", ...); KeyError when there is none."""
    return _BY_NAME[name]


def from_numpy(array_dtype: np.dtype) -> DType:
    """The row of a numpy type; KeyError when there is none."""
    return _BY_NAME[np.dtype(array_dtype).name]
