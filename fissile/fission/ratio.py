"""Quotients of extents: the float detours of shape arithmetic (Cast, Mul 0.5, Floor, Cast back).

In: nodes of float32 or float64 that are extents over small numbers. Out: object arrays of `Ratio`,
and nodes that say the same. Invariant: below 2**22 a floored or raised ratio is what the floats of
the model would give, since dividing by a small number cannot round across an integer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fissile.ir.dim import Dim, DimLike, ceildiv
from fissile.ir.dim_logic import quotient
from fissile.ir.dtype import DType
from fissile.ir.graph import Node, make
from fissile.ir.primitive import CAST, EXTENTS, PRIMITIVES, cast, constant, constant_value

_LARGEST_DIVISOR = 1 << 12
_DIV = PRIMITIVES["div"]


class NoRatio(Exception):
    """The value is not an extent over a small number."""


@dataclass(frozen=True)
class Ratio:
    """num / den, den >= 1."""

    num: DimLike
    den: int = 1

    def __add__(self, other: Ratio) -> Ratio:
        return _ratio(self.num * other.den + other.num * self.den, self.den * other.den)

    def __sub__(self, other: Ratio) -> Ratio:
        return _ratio(self.num * other.den - other.num * self.den, self.den * other.den)

    def __mul__(self, other: Ratio) -> Ratio:
        return _ratio(self.num * other.num, self.den * other.den)

    def __truediv__(self, other: Ratio) -> Ratio:
        if isinstance(other.num, Dim) or other.num <= 0:
            raise NoRatio
        return _ratio(self.num * other.den, self.den * int(other.num))

    def floor(self) -> Ratio:
        """Rounded down."""
        return Ratio(self.num // self.den)

    def ceil(self) -> Ratio:
        """Rounded up."""
        return Ratio(ceildiv(self.num, self.den))

    def trunc(self) -> DimLike:
        """Rounded towards zero."""
        return quotient(self.num, self.den)


def _ratio(num: DimLike, den: int) -> Ratio:
    if not isinstance(num, Dim):
        exact = Fraction(int(num), den)
        num, den = exact.numerator, exact.denominator
    if den > _LARGEST_DIVISOR:
        raise NoRatio
    return Ratio(num, den)


def ratios(node: Node, largest: int) -> np.ndarray | None:
    """The elements of a small float tensor as an object array of Ratio, or None.

    Half types hold no whole number beyond 2048 (256 for bfloat16) and its neighbours: extents may be rounded there.
    """
    if not node.dtype.is_float or node.dtype.is_half:
        return None
    array = constant_value(node)
    try:
        if array is not None:
            return _constants(array, largest)
        if node.primitive is _DIV and node.inputs[1].type.rank == node.type.rank:
            parts = [ratios(i, largest) for i in node.inputs]
            if parts[0] is not None and parts[1] is not None:
                return np.asarray(np.frompyfunc(lambda a, b: a / b, 2, 1)(*parts), object)
    except NoRatio:
        return None
    if node.primitive is CAST and node.inputs[0].primitive is EXTENTS:
        return _objects([Ratio(v) for v in node.inputs[0].attr("values")], node)
    return None


def _constants(array: np.ndarray, largest: int) -> np.ndarray | None:
    if array.size > largest or not np.isfinite(array).all():
        return None
    exact = [Fraction(float(v)) for v in array.reshape(-1)]
    return _filled([_ratio(f.numerator, f.denominator) for f in exact], array.shape)


def _objects(values: list[Ratio], node: Node) -> np.ndarray:
    return _filled(values, node.inputs[0].attr("shape"))


def _filled(values: list[Ratio], shape: tuple[int, ...]) -> np.ndarray:
    result = np.empty(len(values), object)
    result[:] = values
    return result.reshape(shape)


def node_of_ratios(values: np.ndarray, of: DType) -> Node:
    """The float tensor of these ratios: extents divided by constants."""
    flat: list[Ratio] = list(values.reshape(-1))
    shape = tuple(values.shape)
    extents = make(EXTENTS, values=tuple(r.num for r in flat), shape=shape)
    whole = cast(extents, of)
    if math.prod(r.den for r in flat) == 1:
        return whole
    below = np.array([r.den for r in flat], of.numpy).reshape(shape)
    return make(_DIV, whole, constant(below, of))
