"""Float tensors of shape arithmetic read back: which computation on extents each element is.

In: a small float node made of extents, constants, arithmetic and moves. Out: an object array of
`Real`, from which a truncation makes an extent (`Truncated`). Invariant: the computation is the
node's own, operation for operation and in its own float type, so both give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fissile.ir.dim import Dim, DimLike, product, truncated
from fissile.ir.dim_float import ARITY, TYPES, computed
from fissile.ir.dtype import FLOAT32, FLOAT64, DType
from fissile.ir.graph import Node
from fissile.ir.primitive import CAST, constant_value

LONGEST = 200  # words of one computation
_MOVES = ("broadcast", "concat", "gather", "reshape", "slice", "transpose")
_REDUCTIONS = {"reduce_max": "max", "reduce_min": "min"}  # in any order the same
_WORDS = {of: word for word, of in TYPES.items()}
_FLOATS = (FLOAT32, FLOAT64)


class NotReal(Exception):
    """The tensor is no arithmetic on extents, or a longer one than is followed."""


@dataclass(frozen=True)
class Real:
    """One float: operators and numbers as words in reverse Polish order, extents in between."""

    words: tuple[str | tuple[DimLike], ...]

    @property
    def value(self) -> float | None:
        """The number, if no extent enters."""
        if any(isinstance(word, tuple) for word in self.words):
            return None
        found = computed(" ".join(word for word in self.words if isinstance(word, str)), ())
        return float(found)

    def truncated(self) -> DimLike:
        """The extent it is when rounded towards zero."""
        args: dict[DimLike, int] = {}
        steps: list[str] = []
        for word in self.words:
            if isinstance(word, tuple):
                word = f"x{args.setdefault(word[0], len(args))}"
            steps.append(word)
        return truncated(" ".join(steps), *args)


def number(value: float, of: DType) -> Real:
    """A constant."""
    return Real((float(value).hex(), _WORDS[of]))


def extent(value: DimLike, of: DType) -> Real:
    """An extent cast to a float type."""
    return Real(((value,), _WORDS[of]))


def applied(operator: str, *operands: Real) -> Real:
    """An operator on reals of one type."""
    words = (*(word for x in operands for word in x.words), operator)
    if len(words) > LONGEST:
        raise NotReal
    return Real(words)


# ---- reading nodes -------------------------------------------------------------------------------


def reals(node: Node, known: Callable[[Node], np.ndarray | None], largest: int) -> np.ndarray | None:
    """The elements of a float tensor as an object array of `Real`, None where data enters.

    known: the integers of a tensor of shape arithmetic. largest: elements of a tensor at most.
    """
    found: dict[Node, np.ndarray] = {}

    def read(part: Node) -> np.ndarray:
        if part not in found:
            found[part] = _read(part, read, known, largest)
        return found[part]

    try:
        return read(node)
    except NotReal:
        return None


def _read(
    node: Node,
    read: Callable[[Node], np.ndarray],
    known: Callable[[Node], np.ndarray | None],
    largest: int,
) -> np.ndarray:
    size = product(node.shape)
    if node.dtype not in _FLOATS or isinstance(size, Dim) or size > largest:
        raise NotReal
    value = constant_value(node)
    if value is not None:
        return _each(lambda v: number(v, node.dtype), value)
    if node.primitive is CAST:
        return _cast(node, read, known)
    if node.name in ARITY:
        return _each(lambda *xs: applied(node.name, *xs), *map(read, node.inputs))
    if node.name in _REDUCTIONS:
        return _reduced(node, read(node.inputs[0]))
    if node.name not in _MOVES:
        raise NotReal
    return _moved(node, read)


def _cast(
    node: Node, read: Callable[[Node], np.ndarray], known: Callable[[Node], np.ndarray | None]
) -> np.ndarray:
    source = node.inputs[0]
    if source.dtype in _FLOATS:
        return _each(lambda x: applied(_WORDS[node.dtype], x), read(source))
    values = known(source)
    if values is None:
        raise NotReal
    return _each(lambda v: extent(v, node.dtype), values)


def _reduced(node: Node, values: np.ndarray) -> np.ndarray:
    for axis in reversed(node.attr("axes")):
        if values.shape[axis] == 0:
            raise NotReal
        rows = np.moveaxis(values, axis, 0)
        total = rows[0]
        for row in rows[1:]:
            total = _each(lambda a, b: applied(_REDUCTIONS[node.name], a, b), total, row)
        values = np.asarray(total, object)
    return values


def _moved(node: Node, read: Callable[[Node], np.ndarray]) -> np.ndarray:
    attrs = dict(node.attrs)
    if any(isinstance(d, Dim) for value in attrs.values() if isinstance(value, tuple) for d in value):
        raise NotReal
    if node.name != "gather":
        return np.asarray(node.primitive.reference(*map(read, node.inputs), **attrs), object)
    places = constant_value(node.inputs[1])
    if places is None:
        raise NotReal
    source = read(node.inputs[0])
    which = np.arange(source.size).reshape(source.shape)
    chosen = node.primitive.reference(which, places, **attrs)
    return np.asarray(source.reshape(-1)[chosen], object)


def _each(function: Callable[..., Real], *arrays: np.ndarray) -> np.ndarray:
    return np.asarray(np.frompyfunc(function, len(arrays), 1)(*arrays), object)
