"""One operator of the operator graph back into an ONNX model of its own (DESIGN 3.1).

In: an operator, and the types of what it reads. Out: a model of that one node; the values that its
subgraphs take from the graph around them are explicit inputs. Invariant: equal operators give equal
bytes; the model means what the operator means where it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

from fissile.frontend.operator_graph import Operator, OperatorGraph, Value

IR_VERSION = 10
_UNTYPED = (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING)
_CODES = {
    helper.tensor_dtype_to_np_dtype(code).name: code
    for code in onnx.TensorProto.DataType.values()
    if code not in _UNTYPED
}
Extents = Sequence[int | str | None]


def single_model(
    operator: Operator,
    types: Mapping[str, tuple[str, Extents]],
    constants: Mapping[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    """A model of `operator` alone.

    types: numpy dtype name and extents of every value read, outer ones included, in the order of the
    model's inputs. constants: values among them that become initializers instead of inputs.
    """
    known = constants or {}
    inputs = [_typed(n, *kind) for n, kind in types.items() if n not in known]
    weights = [numpy_helper.from_array(np.asarray(a), n) for n, a in known.items()]
    outputs = [onnx.ValueInfoProto(name=n) for n in operator.outputs if n]
    graph = helper.make_graph([_node(operator)], "operator", inputs, outputs, weights)
    opsets = dict(sorted(_opsets([operator])))
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)


def values_read(operator: Operator) -> tuple[str, ...]:
    """The names of all values that the operator reads, those read from within its subgraphs included."""
    names = dict.fromkeys(n for n in operator.inputs if n)
    for body in _bodies(operator):
        names.update(dict.fromkeys(_outer(body)))
    return tuple(names)


def _outer(body: OperatorGraph) -> Iterator[str]:
    """The names that a body takes from the graph around it."""
    inside = {v.name for v in body.inputs} | set(body.initializers)
    for operator in body.operators:
        yield from (n for n in values_read(operator) if n not in inside)
        inside.update(operator.outputs)
    yield from (o.name for o in body.outputs if o.name not in inside)


def _bodies(operator: Operator) -> Iterator[OperatorGraph]:
    for value in operator.attributes.values():
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, OperatorGraph):
                yield one


def _opsets(operators: Iterable[Operator]) -> Iterator[tuple[str, int]]:
    for operator in operators:
        yield operator.domain, operator.version
        for body in _bodies(operator):
            yield from _opsets(body.operators)


def _node(operator: Operator) -> onnx.NodeProto:
    node = helper.make_node(
        operator.type, operator.inputs, operator.outputs, operator.name, domain=operator.domain
    )
    kinds = _attribute_kinds(operator)
    for name, value in sorted(operator.attributes.items()):
        own = "value" if name == "sparse_value" else name  # it has been read as a dense tensor
        node.attribute.append(_attribute(own, value, kinds.get(own)))
    return node


def _attribute_kinds(operator: Operator) -> dict[str, int]:
    try:
        schema = defs.get_schema(operator.type, operator.version, operator.domain)
    except defs.SchemaError:
        return {}
    return {name: int(a.type.value) for name, a in schema.attributes.items()}


def _attribute(name: str, value: Any, kind: int | None) -> onnx.AttributeProto:
    if isinstance(value, OperatorGraph):
        return helper.make_attribute(name, _graph(value))
    if isinstance(value, np.ndarray):
        return helper.make_attribute(name, numpy_helper.from_array(value, name))
    if isinstance(value, tuple) and value and isinstance(value[0], OperatorGraph):
        return helper.make_attribute(name, [_graph(g) for g in value])
    return helper.make_attribute(name, value, attr_type=kind)


def _graph(body: OperatorGraph) -> onnx.GraphProto:
    weights = [numpy_helper.from_array(np.asarray(a), n) for n, a in body.initializers.items()]
    nodes = [_node(o) for o in body.operators]
    inputs, outputs = ([_value(v) for v in values] for values in (body.inputs, body.outputs))
    return helper.make_graph(nodes, "body", inputs, outputs, weights)


def _value(value: Value) -> onnx.ValueInfoProto:
    if value.dtype == "string":
        return helper.make_tensor_value_info(value.name, onnx.TensorProto.STRING, value.shape)
    if value.dtype not in _CODES:
        return onnx.ValueInfoProto(name=value.name)
    return _typed(value.name, value.dtype, value.shape)


def _typed(name: str, of: str, shape: Extents | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, _CODES[of], shape)
