"""Operators without a native definition: nodes that run in Python between native segments (DESIGN 3.1).

In: an operator and its inputs as nodes. Out: one `foreign` node per output, which carries the ONNX
model of that operator alone. Invariant: element types and ranks are known; an extent that depends
on data is a fresh symbol, named after the operator and the axis, whose number its node gives.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import shape_inference

from fissile.errors import Place
from fissile.fission.build import dtype_of_onnx
from fissile.fission.sequence import is_sequence
from fissile.fission.table import Refusal
from fissile.frontend import Operator, OperatorGraph, single_model, values_read
from fissile.ir.dim import Dim, DimLike, symbol
from fissile.ir.dtype import FLOAT32, DType
from fissile.ir.graph import Node, data, make, mentioned
from fissile.ir.primitive import FOREIGN, cast, constant_value
from fissile.reference import runner

_KNOWN_SIZE = 4096  # elements of a constant that inference of types may look into
# Attributes that say how often Python turns a loop, and the most of each.
_TURNS: Mapping[tuple[str, str], int] = {("RoiAlign", "sampling_ratio"): 256}


@dataclass
class Foreigners:
    """The foreign operators met so far, the symbols their extents brought in, and the names in use."""

    places: list[Place] = field(default_factory=list)
    late: dict[str, Node] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    symbols: set[str] = field(default_factory=set)
    ranks: dict[str, int] = field(default_factory=dict)  # what the model declares of its outputs

    def key(self, name: str) -> str:
        """A name for one more foreign operator, its own."""
        return _unused(name, self.keys)

    def fresh(self, key: str, output: int, axis: int) -> Dim:
        """A symbol for an extent that depends on data."""
        text = f"{key}:{axis}" if output == 0 else f"{key}:{output}:{axis}"
        return symbol(_unused(text.replace("`", "'"), self.symbols))


def _unused(name: str, taken: set[str]) -> str:
    found, count = name, 1
    while found in taken:
        count += 1
        found = f"{name}#{count}"
    taken.add(found)
    return found


def foreign_nodes(
    found: Foreigners,
    operator: Operator,
    values: Mapping[str, Node | None],
    reason: str,
    wanted: Container[str],
) -> tuple[Node | None, ...]:
    """The outputs of `operator` as foreign nodes. Refusal when it cannot run in Python or its types are not known.

    values: the nodes of everything in scope, by name. reason: why there is no native definition. wanted: the names that
    something reads; other outputs may be of any type.
    """
    names = values_read(operator)
    inputs = [values[n] for n in names]
    for (kind, name), most in _TURNS.items():
        if operator.type == kind and operator.attributes.get(name, 0) > most:
            raise Refusal(f"{name} is over {most}, and the operator runs in Python")
    if any(node is None for node in inputs):
        raise Refusal("it reads a value that has no native definition")
    if any(map(is_sequence, inputs)):
        raise Refusal("it reads a sequence, and sequences do not leave native code")
    stored = {n: node for n, node in zip(names, inputs) if node is not None}
    dims: dict[str, Dim] = {}
    exact = _inferred(operator, stored, _types(stored, dims), found.ranks, wanted)
    nodes, kinds = _widened(operator, stored, exact, dims, found.ranks, wanted)
    model = single_model(operator, _types(nodes, dims))
    _check_runs(model)
    key = found.key(operator.where)
    before = set(found.symbols)
    content = data(np.frombuffer(model.SerializeToString(deterministic=True), np.uint8))
    results: list[Node | None] = []
    unknown: dict[str, Dim] = {}
    number = 0
    for name in operator.outputs:
        if not name or name not in wanted:
            results.append(None)
            number += bool(name)
            continue
        of, extents = kinds[name]
        shape = tuple(
            _extent(found, d, dims, unknown, (key, number, a)) for a, d in enumerate(extents)
        )
        attrs = {"key": key, "output": number, "dtype": of.name, "shape": shape}
        results.append(make(FOREIGN, *nodes.values(), model=content, **attrs))
        number += 1
    for node in results:
        fresh = () if node is None else [s for s in mentioned(node) if s in found.symbols - before]
        for name in fresh:
            if node is not None:
                found.late.setdefault(name, node)
    found.places.append(Place(operator.where, operator.title, reason))
    rounded = zip(operator.outputs, results, strict=True)
    return tuple(n if n is None else cast(n, exact[name][0]) for name, n in rounded)


Types = Mapping[str, tuple[str, Sequence[int | str]]]


def _types(nodes: Mapping[str, Node], dims: dict[str, Dim]) -> Types:
    return {n: (x.dtype.name, [_label(d, dims) for d in x.shape]) for n, x in nodes.items()}


def _widened(
    operator: Operator,
    nodes: Mapping[str, Node],
    kinds: Mapping[str, Kind],
    dims: dict[str, Dim],
    ranks: Mapping[str, int],
    wanted: Container[str],
) -> tuple[Mapping[str, Node], Mapping[str, Kind]]:
    """Half types as float32, so that Python, too, rounds once: the operands and what the operator then gives.

    As they are where a body says what is of which type, or where float32 is none of the operator's types.
    """
    has_body = any(isinstance(a, OperatorGraph) for a in operator.attributes.values())
    if has_body or not any(x.dtype.is_half for x in nodes.values()):
        return nodes, kinds
    wide = {n: cast(x, x.dtype.compute) for n, x in nodes.items()}
    try:
        found = _inferred(operator, wide, _types(wide, dims), ranks, wanted)
    except Refusal:
        return nodes, kinds
    same = all(of is kinds[name][0].compute or of is kinds[name][0] for name, (of, _) in found.items())
    return (wide, found) if same else (nodes, kinds)


def _label(extent: DimLike, dims: dict[str, Dim]) -> int | str:
    """An extent as inference sees it: equal ones have equal names."""
    if not isinstance(extent, Dim):
        return int(extent)
    for name, known in dims.items():
        if known is extent:
            return name
    name = f"extent{len(dims)}"
    dims[name] = extent
    return name


def _extent(
    found: Foreigners,
    inferred: int | str | None,
    dims: Mapping[str, Dim],
    unknown: dict[str, Dim],
    place: tuple[str, int, int],
) -> DimLike:
    if isinstance(inferred, int):
        return inferred
    if inferred is None:
        return found.fresh(*place)
    if inferred in dims:
        return dims[inferred]
    if inferred not in unknown:
        unknown[inferred] = found.fresh(*place)
    return unknown[inferred]


# ---- what the onnx package knows -----------------------------------------------------------------

Kind = tuple[DType, Sequence[int | str | None]]


def _check_runs(model: onnx.ModelProto) -> None:
    """Refusal when Python does not know the operator, or one inside its subgraphs."""
    try:
        runner(model)
    except (NotImplementedError, RuntimeError, ValueError, TypeError, KeyError) as error:
        raise Refusal(f"no native definition, and Python cannot run it: {_line(error)}") from error


def _inferred(
    operator: Operator,
    nodes: Mapping[str, Node],
    types: Types,
    ranks: Mapping[str, int],
    wanted: Container[str],
) -> dict[str, Kind]:
    """Element type and extents of the wanted outputs; an extent is None, or a name of its own, when not known."""
    constants = {n: v for n, x in nodes.items() if (v := _small(x)) is not None}
    model = single_model(operator, types, constants)
    try:
        done = shape_inference.infer_shapes(model, data_prop=True)
    except (shape_inference.InferenceError, RuntimeError) as error:
        raise Refusal(f"its types are not known: {_line(error)}") from error
    kinds: dict[str, Kind] = {}
    for info in done.graph.output:
        if info.name not in wanted:
            continue
        kind = info.type.WhichOneof("value")
        if kind not in (None, "tensor_type"):
            raise Refusal(f"its output {info.name!r} is a {kind.removesuffix('_type')}")
        tensor = info.type.tensor_type
        if tensor.elem_type == onnx.TensorProto.UNDEFINED and operator.type in _SCORES:
            kinds[info.name] = FLOAT32, [types[operator.inputs[0]][1][0], _columns(operator)]
            continue
        if tensor.elem_type == onnx.TensorProto.UNDEFINED:
            raise Refusal(f"the element type of its output {info.name!r} is not known")
        of = dtype_of_onnx(tensor.elem_type)
        if tensor.HasField("shape"):
            kinds[info.name] = of, [_dimension(d) for d in tensor.shape.dim]
        else:
            rank = _rank(operator, info.name, nodes)
            rank = ranks.get(info.name) if rank is None else rank
            if rank is None:
                raise Refusal(f"the rank of its output {info.name!r} is not known")
            kinds[info.name] = of, [None] * rank
    return kinds


def _small(node: Node) -> np.ndarray | None:
    value = constant_value(node)
    plain = value is not None and value.dtype == node.dtype.numpy and node.dtype.name != "bfloat16"
    return value if plain and value is not None and value.size <= _KNOWN_SIZE else None


def _dimension(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return str(dim.dim_param) or None


def _rank(operator: Operator, name: str, nodes: Mapping[str, Node]) -> int | None:
    """An output's rank where inference gives up, because it wants to know extents too; None when it is open.

    A loop may change extents of what it carries, not the rank; what a body declares is believed. A run that finds
    another rank fails.
    """
    place, kind = operator.outputs.index(name), operator.type
    given = [nodes[n].type for n in operator.inputs if n in nodes]
    if kind == "Loop":
        shape = operator.attr("body").outputs[place + 1].shape
        carried = len(operator.inputs) - 2
        if shape is not None:
            return len(shape) + (place >= carried)
        return nodes[operator.inputs[place + 2]].type.rank if place < carried else None
    if kind == "If":
        branches = (operator.attr(b).outputs[place].shape for b in ("then_branch", "else_branch"))
        return next((len(shape) for shape in branches if shape is not None), None)
    if kind in _SAME_RANK:
        return given[0].rank
    if kind.startswith("Reduce") and operator.attr("keepdims", 1):
        return given[0].rank
    if kind.startswith("Reduce") or kind in ("Squeeze", "Unsqueeze"):
        count = given[1].shape[0] if len(given) > 1 and given[1].rank == 1 else None
        if isinstance(count, Dim) or count is None:
            return None
        if not count and kind.startswith("Reduce"):
            return given[0].rank if operator.attr("noop_with_empty_axes", 0) else 0
        return given[0].rank + (count if kind == "Unsqueeze" else -count)
    return _RANKS.get(kind)


# Operators whose types onnx does not infer: float32, a row for each of the input; the attribute that counts columns.
_SCORES = {
    "LinearRegressor": "targets",
    "SVMRegressor": "",
    "TreeEnsembleClassifier": "classlabels_int64s",
    "TreeEnsembleRegressor": "n_targets",
}


def _columns(operator: Operator) -> int:
    """How many scores a row of an operator of `_SCORES` has."""
    said = operator.attr(_SCORES[operator.type], 1)
    return len(said) if isinstance(said, tuple) else int(said)


_SAME_RANK = ("CenterCropPad", "MaxUnpool", "Pad", "Resize", "Slice", "Split", "Tile", "Upsample")
_RANKS = {
    "BlackmanWindow": 1,
    "HammingWindow": 1,
    "HannWindow": 1,
    "MelWeightMatrix": 2,
    "NonMaxSuppression": 2,
    "Range": 1,
    "STFT": 4,
}


def _line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]
