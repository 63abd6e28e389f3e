"""ONNX in (a path, bytes or a ModelProto), checked operator graph out (DESIGN 3.1).

The model is checked by the onnx package, local functions are inlined, attributes become Python
values and weights numpy arrays: those in the file are views of its bytes, external ones are mapped.
Invariant: whatever is wrong with the model is one FissileError, and the given object is unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError, EncodeError
from onnx import checker, inliner, numpy_helper

from fissile.errors import FileMissing, ModelError, Place, UnsupportedError
from fissile.frontend.external import external_array, external_files
from fissile.frontend.operator_graph import Extents, Metadata, Operator, OperatorGraph, Value
from fissile.frontend.tidy import initializers_read, tidy

OLDEST_OPSET = 7
NEWEST_OPSET: int = onnx.defs.onnx_opset_version()
_KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
_GRAPH = onnx.AttributeProto.GRAPH
_GRAPHS = onnx.AttributeProto.GRAPHS


def read_model(
    model: str | Path | bytes | onnx.ModelProto, base_dir: str | Path | None = None
) -> OperatorGraph:
    """The operator graph of a model.

    base_dir: folder of external data; by default the folder of the path.
    ModelError when the model is broken, UnsupportedError when its opset or a domain is not known,
    FileMissing when a file is not there.
    """
    folder = None if base_dir is None else Path(base_dir)
    file_name = ""
    if isinstance(model, str | Path):
        path = Path(model)
        folder = path.parent if folder is None else folder
        content, file_name = _read_file(path), path.name
    elif isinstance(model, onnx.ModelProto):
        content = serialized(model)
    else:
        content = bytes(model)
    try:
        return _read(content, file_name, folder)
    except UnicodeDecodeError as error:
        raise _no_model(file_name, f"a string in it is not UTF-8 ({error.reason})") from error


def _read(content: bytes, file_name: str, folder: Path | None) -> OperatorGraph:
    proto = _parsed(content, file_name)
    digest = _sha256(content, external_files(proto, folder))
    said = proto.graph.name, proto.ir_version
    tidy(proto)
    _check_versions(proto)
    fed = {t.name for t in proto.graph.initializer}
    tensors = _take_weights(proto.graph)
    declared = [[_value(v) for v in values] for values in (proto.graph.input, proto.graph.output)]
    hints = _shapes([*proto.graph.value_info, *proto.graph.output])
    proto = _plain(proto)
    opsets = {_domain(o.domain): o.version for o in proto.opset_import}
    read = initializers_read(proto.graph)
    weights = {t.name: _array(t, folder) for t in tensors if t.name in read}
    _add_sparse(proto.graph, weights)
    metadata = Metadata(
        producer=_said(proto.producer_name),
        producer_version=_said(proto.producer_version),
        domain=_said(proto.domain),
        version=proto.model_version if proto.HasField("model_version") else None,
        doc=_said(proto.doc_string),
        graph_doc=_said(proto.graph.doc_string),
        custom={_said(p.key): _said(p.value) for p in proto.metadata_props},
        opsets=opsets,
        ir_version=said[1],
        sha256=digest,
        file_name=file_name,
        graph_name=_said(said[0]),
    )
    operators = tuple(operator_of(node, opsets, folder) for node in proto.graph.node)
    inputs = tuple(v for v in declared[0] if v.name not in fed and v.name not in weights)
    return OperatorGraph(operators, weights, inputs, tuple(declared[1]), metadata, hints)


# ---- bytes and checks ----------------------------------------------------------------------------


def _read_file(path: Path) -> bytes:
    if not path.is_file():
        raise FileMissing("F010", f"there is no model at {str(path)!r}", remedy="check the path")
    return path.read_bytes()


def serialized(model: onnx.ModelProto) -> bytes:
    """The model as bytes, always the same. ModelError F011 where it is over 2 GB, which no message may be."""
    try:
        return bytes(model.SerializeToString(deterministic=True))
    except (ValueError, EncodeError) as error:
        raise ModelError(
            "F011",
            "the model does not fit into one protobuf message, which holds 2 GB",
            reason=str(error),
            remedy="onnx.save(model, PATH, save_as_external_data=True), and pass the path",
        ) from error


def _parsed(content: bytes, file_name: str) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
        broken = "" if model.HasField("graph") else "it holds no graph"
    except DecodeError as error:
        broken = str(error)
    if broken:
        raise _no_model(file_name, broken)
    return model


def _no_model(file_name: str, reason: str) -> ModelError:
    return ModelError(
        "F011",
        f"{file_name or 'the given bytes'}: not an ONNX model",
        reason=reason,
        remedy="pass a file written by onnx.save or an exporter",
    )


def _check_versions(model: onnx.ModelProto) -> None:
    opsets = {_domain(o.domain): o.version for o in model.opset_import}
    version = opsets.get("", 0)
    if (version and not OLDEST_OPSET <= version <= NEWEST_OPSET) or not opsets:
        raise UnsupportedError(
            "F020",
            f"opset {version} of ONNX is not supported",
            reason=f"known are {OLDEST_OPSET} to {NEWEST_OPSET}",
            remedy="convert the model with onnx.version_converter",
        )
    own = {_domain(f.domain) for f in model.functions}
    used = {_domain(n.domain) for n in model.graph.node}
    strange = sorted(used - own - {_domain(d) for d in _KNOWN_DOMAINS})
    if strange:
        places = [
            Place(_said(n.name) or ", ".join(map(_said, n.output)), f"{n.domain}.{_said(n.op_type)}")
            for n in model.graph.node
            if _domain(n.domain) in strange
        ]
        raise UnsupportedError(
            "F021",
            f"unknown operator domain {', '.join(strange)}",
            where=places,
            remedy="export the model with operators of ONNX alone",
        )


def _plain(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, checked and without functions of its own; those of another opset are converted to the model's."""
    if not model.functions:
        _check(model)
        return model
    opset = {_domain(o.domain): o.version for o in model.opset_import}.get("")
    if all({_domain(o.domain): o.version for o in f.opset_import}.get("", opset) == opset
           for f in model.functions):  # fmt: skip
        _check(model)
        return inliner.inline_local_functions(model)
    try:
        plain = inliner.inline_local_functions(model, convert_version=True)
    except (RuntimeError, ValueError) as error:
        raise UnsupportedError(
            "F021", "a function of the model is of another opset", reason=str(error)
        ) from error
    if plain.functions:
        places = [Place(f.name, f.domain) for f in plain.functions]
        raise UnsupportedError(
            "F021",
            f"functions of the model are of another opset than {opset}",
            where=places,
            remedy="export the model with one opset",
        )
    _check(plain)
    return plain


def _check(model: onnx.ModelProto) -> None:
    """Let onnx check the model, whose weights are out: they stand in as inputs.

    Declared shapes are hints here, but the checker insists on them: it is given some.
    """
    for info in (*model.graph.input, *model.graph.output):
        kind = info.type.WhichOneof("value")
        if kind is None:
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        if kind in (None, "tensor_type") and not info.type.tensor_type.HasField("shape"):
            info.type.tensor_type.shape.SetInParent()
    try:
        checker.check_model(model)
    except checker.ValidationError as error:
        text = str(error).strip()
        if "No Op registered" in text or "No opset import" in text:
            raise UnsupportedError("F021", "unknown operator", reason=text) from error
        raise ModelError("F012", "the model is not valid ONNX", reason=text) from error


def model_sha256(content: bytes, folder: Path | None) -> str:
    """The hash that names a model: of its bytes, then of its external files in the order of their paths.

    Raises like `read_model` when the bytes are no model or a file is not there.
    """
    return _sha256(content, external_files(_parsed(content, ""), folder))


def _sha256(content: bytes, files: Iterable[Path]) -> str:
    digest = hashlib.sha256(content)
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


# ---- weights -------------------------------------------------------------------------------------


def _is_external(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def _take_weights(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    """Take the initializers out of `graph` and declare inputs of their names, so that no pass copies weights."""
    declared = {i.name for i in graph.input}
    taken = list(graph.initializer)
    names = [t.name for t in taken]
    if len(set(names)) != len(names) or "" in names:
        twice = sorted({n for n in names if names.count(n) > 1}) or ["an initializer has no name"]
        raise ModelError("F012", "initializers must have distinct names", where=twice)
    del graph.initializer[:]
    for tensor in taken:
        if tensor.name not in declared:
            info = onnx.helper.make_tensor_value_info(
                tensor.name, tensor.data_type, list(tensor.dims)
            )
            graph.input.append(info)
    return taken


def _array(tensor: onnx.TensorProto, folder: Path | None) -> np.ndarray:
    try:
        if _is_external(tensor):
            of = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            return external_array(tensor, folder, of)
        return np.asarray(numpy_helper.to_array(tensor))
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError("F013", "a broken tensor", where=tensor.name, reason=str(error)) from error


def _add_sparse(graph: onnx.GraphProto, weights: dict[str, np.ndarray]) -> None:
    for sparse in graph.sparse_initializer:
        values, where = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
        dense = np.zeros(tuple(sparse.dims), values.dtype)
        index = where if where.ndim == 1 else np.ravel_multi_index(tuple(where.T), dense.shape)
        dense.reshape(-1)[index] = values
        weights[sparse.values.name] = dense


# ---- the graph -----------------------------------------------------------------------------------


def _domain(text: str | bytes) -> str:
    return "" if text == "ai.onnx" else _name(text)


def _subgraph(
    graph: onnx.GraphProto, opsets: Mapping[str, int], folder: Path | None
) -> OperatorGraph:
    weights = {t.name: _array(t, folder) for t in graph.initializer}
    _add_sparse(graph, weights)
    operators = tuple(operator_of(node, opsets, folder) for node in graph.node)
    inputs = tuple(_value(i) for i in graph.input if i.name not in weights)
    outputs = tuple(_value(o) for o in graph.output)
    hints = _shapes([*graph.value_info, *graph.output])
    return OperatorGraph(operators, weights, inputs, outputs, Metadata(opsets=opsets), hints)


def operator_of(
    node: onnx.NodeProto,
    opsets: Mapping[str, int],
    folder: Path | None,
    given: Mapping[str, Any] | None = None,
) -> Operator:
    """One node; `given` holds the attributes that a function's body may refer to."""
    domain = _domain(node.domain)
    attributes: dict[str, Any] = {}
    for a in node.attribute:
        if not a.ref_attr_name:
            attributes[a.name] = _attribute(a, opsets, folder)
        elif given is not None and a.ref_attr_name in given:
            attributes[a.name] = given[a.ref_attr_name]
    version = opsets.get(domain, 1)
    names = tuple(map(_name, node.input)), tuple(map(_name, node.output))
    return Operator(_name(node.name), domain, node.op_type, version, *names, attributes)


def _attribute(
    attribute: onnx.AttributeProto, opsets: Mapping[str, int], folder: Path | None
) -> Any:
    if attribute.type == _GRAPH:
        return _subgraph(attribute.g, opsets, folder)
    if attribute.type == _GRAPHS:
        return tuple(_subgraph(g, opsets, folder) for g in attribute.graphs)
    if attribute.type == onnx.AttributeProto.TENSOR:
        return _array(attribute.t, folder)
    if attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
        weights: dict[str, np.ndarray] = {}
        _add_sparse(onnx.GraphProto(sparse_initializer=[attribute.sparse_tensor]), weights)
        return next(iter(weights.values()))
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list) or attribute.type in _LISTS:
        return tuple(v.decode(errors="replace") if isinstance(v, bytes) else v for v in value)
    return value


_LISTS = (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS, onnx.AttributeProto.STRINGS)


def _said(text: str | bytes) -> str:
    """A string that nothing depends on."""
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def _name(text: str | bytes) -> str:
    """A string of the model; UnicodeDecodeError where it is none, which protobuf hands out as bytes."""
    return text.decode() if isinstance(text, bytes) else text


def _value(info: onnx.ValueInfoProto) -> Value:
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        return Value(_name(info.name), kind or "", None)
    tensor = info.type.tensor_type
    shape: tuple[int | str | None, ...] | None = None
    if tensor.HasField("shape"):
        shape = tuple(_extent(d) for d in tensor.shape.dim)
    return Value(_name(info.name), _dtype_name(tensor.elem_type), shape)


def _shapes(infos: Iterable[onnx.ValueInfoProto]) -> dict[str, Extents]:
    """The shapes that are declared, by name."""
    values = map(_value, infos)
    return {v.name: v.shape for v in values if v.shape is not None}


def _extent(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    """A number, a name, or None: "?" and negative numbers are how exporters write "unknown"."""
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value > 0 else None
    text = str(dim.dim_param).strip()
    return text if any(c.isalnum() for c in text) and text not in ("None", "-1") else None


def _dtype_name(elem_type: int) -> str:
    if elem_type == onnx.TensorProto.UNDEFINED:
        return ""
    if elem_type == onnx.TensorProto.STRING:
        return "string"
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(elem_type).name)
    except KeyError as error:
        raise ModelError(
            "F012", "the model is not valid ONNX", reason=f"{elem_type} is no type of elements"
        ) from error
