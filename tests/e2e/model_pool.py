"""What drawn ONNX models are made of: values with what is known of them, and a pool that grows node by node.

An extent is a number, or a name: that of a free dimension, or a fresh one for what only a call or the data decides. Two
extents of one name are equal; of two names nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Array = npt.NDArray[Any]
Extent = int | str
OPSET = 20
# Whole numbers up to here are exact, and so are their sums in any order.
EXACT: Mapping[str, float] = {
    "float64": 2.0**53,
    "float32": 2.0**24,
    "float16": 2048,
    "bfloat16": 256,
}
LONGEST = 40  # no extent is drawn longer
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 16, 17, 32, 33)
FREE = (0, 1, 1, 2, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31)
HALVES = ("float16", "bfloat16")
FLOATS = ("float32", "float64", *HALVES)
SIGNED = ("int32", "int64", "int8", "int16")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = (*SIGNED, *UNSIGNED)
TYPES: Mapping[str, Any] = {"bfloat16": ml_dtypes.bfloat16}


class Unfit(Exception):
    """What was to be drawn does not fit what is there."""


def numpy_type(kind: str) -> np.dtype:
    """The numpy type of an element type's name."""
    found: np.dtype = np.dtype(TYPES.get(kind, kind))
    return found


def code_of(kind: str) -> int:
    """ONNX's number for an element type."""
    return int(helper.np_dtype_to_tensor_dtype(numpy_type(kind)))


@dataclass(frozen=True)
class Value:
    """A tensor. bound: no finite element is larger; exact: every right engine computes the same bits."""

    name: str
    kind: str
    shape: tuple[Extent, ...]
    bound: float
    exact: bool = True
    constant: bool = False

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether elements are floats, halves included."""
        return self.kind in FLOATS


@dataclass
class Pool:
    """The model so far. odd: whether NaN and infinities are among the values fed."""

    rng: np.random.Generator
    free: tuple[str, ...]
    odd: bool
    values: list[Value] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    count: int = 0

    # ---- chance

    def integer(self, low: int, high: int) -> int:
        """A number from `low` to `high`."""
        return int(self.rng.integers(low, high + 1))

    def choice(self, items: Sequence[Any]) -> Any:
        """One of the items."""
        if not items:
            raise Unfit
        return items[self.integer(0, len(items) - 1)]

    def flip(self, one_in: int = 2) -> bool:
        """True once in `one_in` times."""
        return self.integer(1, one_in) == 1

    # ---- names and values

    def fresh(self, prefix: str = "v") -> str:
        """A name of its own."""
        self.count += 1
        return f"{prefix}{self.count}"

    def extent(self) -> str:
        """The name of an extent of which nothing is known."""
        return self.fresh("e")

    def some(self, keep: Callable[[Value], bool] = lambda v: True) -> Value:
        """One of the values that `keep` holds for, those made last more often."""
        found = [v for v in self.values if keep(v)]
        value: Value = self.choice(found[-3:] if self.flip() else found)
        return value

    def floats(self, least: int = 0) -> Value:
        """A float32 or float64 value of at least so many axes, mostly."""
        kinds = FLOATS if self.flip(3) else FLOATS[:2]
        return self.some(lambda v: v.kind in kinds and v.rank >= least)

    def array(self, kind: str, shape: Sequence[int]) -> Array:
        """Small whole numbers."""
        if kind == "bool":
            return self.rng.integers(0, 2, shape).astype(bool)
        low, high = (0, 4) if kind in UNSIGNED else (-3, 4)
        numbers = self.rng.integers(low, high, shape)
        with np.errstate(all="ignore"):
            return numbers.astype(numpy_type(kind))

    def constant(self, array: Array, kind: str = "int64") -> Value:
        """An initializer."""
        name = self.fresh("w")
        content = np.asarray(array).astype(numpy_type(kind))
        self.weights.append(numpy_helper.from_array(content, name))
        bound = float(np.max(np.abs(content.astype(np.float64)), initial=0.0))
        return Value(name, kind, content.shape, bound, constant=True)

    def input(self, kind: str, shape: Sequence[Extent]) -> Value:
        """One more input of the model."""
        value = Value(self.fresh("x"), kind, tuple(shape), 1 if kind == "bool" else 4)
        self.inputs.append(value)
        return value

    def leaf(self, kind: str, shape: Sequence[Extent]) -> Value:
        """A constant where all extents are numbers, or an input."""
        numbers = [d for d in shape if isinstance(d, int)]
        if len(numbers) == len(shape) and self.flip():
            return self.constant(self.array(kind, numbers), kind)
        if any(isinstance(d, str) and d not in self.free for d in shape):
            raise Unfit
        return self.input(kind, shape)

    # ---- nodes

    def node(
        self, kind: str, inputs: Sequence[Value | None], outputs: int = 1, **attrs: Any
    ) -> list[str]:
        """A node; the names of its outputs."""
        names = [self.fresh() for _ in range(outputs)]
        given = [v.name if v else "" for v in inputs]
        self.nodes.append(helper.make_node(kind, given, names, name=self.fresh("n"), **attrs))
        return names

    def made(
        self, name: str, kind: str, shape: Sequence[Extent], bound: float, exact: bool
    ) -> Value:
        """The value `name` joins the others."""
        fits = kind in HALVES or kind not in FLOATS or bound <= EXACT[kind]
        value = Value(name, kind, tuple(shape), bound, exact and fits)
        self.values.append(value)
        return value

    def apply(
        self,
        kind: str,
        inputs: Sequence[Value | None],
        like: Value,
        shape: Sequence[Extent] | None = None,
        bound: float | None = None,
        exact: bool | None = None,
        **attrs: Any,
    ) -> Value:
        """One node with one output, which is as `like` but for what is given."""
        (name,) = self.node(kind, inputs, **attrs)
        are = [v.exact for v in inputs if v is not None]
        return self.made(
            name,
            like.kind,
            like.shape if shape is None else shape,
            like.bound if bound is None else bound,
            all(are) if exact is None else exact and all(are),
        )

    def ints(self, *numbers: int) -> Value:
        """A constant of int64."""
        return self.constant(np.array(numbers, np.int64))
