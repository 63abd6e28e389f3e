"""An ONNX graph under construction, and extents as small integer tensors in it.

In: operators one after the other, symbolic extents. Out: nodes and initializers of a graph. Extents that
are not numbers are computed from the shapes of the inputs by ONNX's own operators, each once. Invariant:
every extent is an int64 tensor of shape [1], so that a shape is a Concat of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fissile.ir.dim import Dim, DimLike, FloorDiv, Min, Mod, Symbol, Truncated, solve, terms
from fissile.ir.dim_float import fold
from fissile.ir.dim_terms import Atom
from fissile.ir.dtype import BFLOAT16, FLOAT64, INT64, DType
from fissile.ir.graph import Graph, Node

Place = tuple[Node, int]
_STEPS = {  # of a `Truncated` extent
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "min": "Min", "max": "Max", "neg": "Neg",
    "abs": "Abs", "floor": "Floor", "ceil": "Ceil", "rint": "Round",
}  # fmt: skip


def code_of(of: DType) -> int:
    """ONNX's number of an element type."""
    if of is BFLOAT16:
        return int(onnx.TensorProto.BFLOAT16)
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(of.name)))


def tensor_of(array: np.ndarray, of: DType, name: str) -> onnx.TensorProto:
    """An initializer; a bfloat16 array holds its bits."""
    if of is BFLOAT16:
        raw = np.ascontiguousarray(array).tobytes()
        return helper.make_tensor(name, onnx.TensorProto.BFLOAT16, array.shape, raw, raw=True)
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


class Writer:
    """Nodes and initializers so far; `names[node]` is the tensor that holds a primitive's value.

    taken: names that no new tensor may have, beside those of inputs and outputs. opset: of the model, 13 or newer.
    """

    def __init__(self, graph: Graph, taken: Iterable[str] = (), opset: int = 18) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.opsets: dict[str, int] = {}
        self.names: dict[Node, str] = {n: n.attr("name") for n in graph.inputs}
        self._taken = {n.attr("name") for n in graph.inputs} | {name for name, _ in graph.outputs}
        self._taken.update(taken)
        self._opset = opset
        self._count = 0
        self._known: dict[object, str] = {}
        self._places = _places(graph)

    def fresh(self) -> str:
        """A name that no tensor has."""
        while True:
            self._count += 1
            name = f"t{self._count}"
            if name not in self._taken:
                return name

    def emit(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of one output; its name."""
        name = self.fresh()
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def constant(self, array: np.ndarray, of: DType) -> str:
        """An initializer, each value once."""
        key = (of.name, array.shape, array.tobytes())
        if key not in self._known:
            name = self._known[key] = self.fresh()
            self.initializers.append(tensor_of(array, of, name))
        return self._known[key]

    def integers(self, values: Sequence[int]) -> str:
        """A vector of int64."""
        return self.constant(np.array(values, np.int64).reshape(len(values)), INT64)

    def scalar(self, value: float | int | bool, of: DType) -> str:
        """A constant of rank 0."""
        return self.constant(np.array(value, of.numpy), of)

    def vector(self, extents: Sequence[DimLike]) -> str:
        """A shape (or starts, or pads) as one int64 vector."""
        numbers = [d for d in extents if isinstance(d, int)]
        if len(numbers) == len(extents):
            return self.integers(numbers)
        key = ("vector", tuple(extents))
        if key not in self._known:
            parts = [self.extent(d) for d in extents]
            self._known[key] = self.emit("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]
        return self._known[key]

    def extent(self, d: DimLike) -> str:
        """An extent as an int64 vector of one element."""
        if isinstance(d, int):
            return self.integers([d])
        if d not in self._known:
            self._known[d] = self._extent(d)
        return self._known[d]

    def rank0(self, d: DimLike) -> str:
        """An extent as an int64 scalar."""
        if isinstance(d, int):
            return self.scalar(d, INT64)
        return self.emit("Squeeze", self.extent(d), self.integers([0]))

    def ramp(self, n: DimLike) -> str:
        """0, 1, .. n - 1 as int64."""
        if isinstance(n, int):
            return self.constant(np.arange(n, dtype=np.int64), INT64)
        return self.emit("Range", self.scalar(0, INT64), self.rank0(n), self.scalar(1, INT64))

    def _extent(self, d: Dim) -> str:
        """The polynomial: a sum of products of atoms."""
        total = ""
        for scale, atoms in terms(d):
            product = "" if scale != 1 or not atoms else self._atom(atoms[0])
            rest = atoms[1:] if product else atoms
            product = product or self.integers([scale])
            for atom in rest:
                product = self.emit("Mul", product, self._atom(atom))
            total = self.emit("Add", total, product) if total else product
        return total

    def _atom(self, atom: Atom) -> str:
        if atom not in self._known:
            self._known[atom] = self._new_atom(atom)
        return self._known[atom]

    def _new_atom(self, atom: Atom) -> str:
        if isinstance(atom, Symbol):
            return self._symbol(atom)
        if isinstance(atom, FloorDiv | Mod):
            num, den = self.extent(atom.num), self.extent(atom.den)
            rest = self.emit("Mod", num, den)  # the sign of the divisor, as Python's
            if isinstance(atom, Mod):
                return rest
            return self.emit("Div", self.emit("Sub", num, rest), den)
        if isinstance(atom, Truncated):
            return self._truncated(atom)
        parts = [self.extent(arg) for arg in atom.args]
        return self.emit("Min" if isinstance(atom, Min) else "Max", *parts)

    def _truncated(self, atom: Truncated) -> str:
        """The steps in the same floats. What NaN and infinities become is left open: no extent is one."""
        Typed = tuple[str, DType]

        def convert(read: Typed, to: DType) -> Typed:
            return self.emit("Cast", read[0], to=code_of(to)), to

        def apply(name: str, *reads: Typed) -> Typed:
            if name == "trunc":
                return convert(convert(reads[0], INT64), reads[0][1])
            return self.emit(_STEPS[name], *(read for read, _ in reads)), reads[0][1]

        def number(value: float) -> Typed:
            return self.constant(np.array([value]), FLOAT64), FLOAT64

        args = [(self.extent(a), INT64) for a in atom.args]
        return convert(fold(atom.steps, args, number, convert, apply), INT64)[0]

    def _symbol(self, symbol: Symbol) -> str:
        """The number of a free dimension: an extent of a tensor, solved for it."""
        node, axis = self._places[symbol.name]
        solved = solve(node.shape[axis])
        assert solved is not None
        _, scale, offset = solved
        if self._opset >= 15:
            value = self.emit("Shape", self.names[node], start=axis, end=axis + 1)
        else:
            whole = self.emit("Shape", self.names[node])
            value = self.emit("Gather", whole, self.integers([axis]))
        if offset:
            value = self.emit("Sub", value, self.integers([offset]))
        return self.emit("Div", value, self.integers([scale])) if scale != 1 else value


def _places(graph: Graph) -> Mapping[str, Place]:
    """Where every symbol can be read: an axis of an input, or of the node that gives it its number."""
    found: dict[str, Place] = {}
    for node in (*graph.inputs, *graph.late.values()):
        for axis, extent in enumerate(node.shape):
            solved = solve(extent) if isinstance(extent, Dim) else None
            if solved is not None:
                found.setdefault(solved[0].name, (node, axis))
    return found
