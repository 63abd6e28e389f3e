"""Calls of functions that are not one instruction: `exp`, `tanh`, ... of `codegen.math`."""

from __future__ import annotations

from fissile.codegen.emitter import Emitter, Value
from fissile.ir.dtype import DType

MATH: frozenset[str] = frozenset()


def is_math(name: str, dtype: DType) -> bool:
    """Whether operator `name` on `dtype` is a function of `codegen.math`."""
    return name in MATH and dtype.is_float


def call_math(e: Emitter, name: str, args: list[Value]) -> Value:
    """The call of `name`."""
    raise NotImplementedError(name)
