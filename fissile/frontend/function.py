"""The bodies of operators that ONNX itself defines by other operators (Attention, losses, windows).

In: an operator and the types of its inputs. Out: its body as an operator graph whose inputs and
outputs stand in the operator's order, or None. Invariant: references to the operator's attributes
are resolved, so a body reads like any other graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import defs, helper

from fissile.frontend.operator_graph import Metadata, Operator, OperatorGraph, Value
from fissile.frontend.read import operator_of

TensorKind = tuple[str, tuple[int | str, ...]]  # numpy name of the dtype, extents


def function_body(operator: Operator, types: Sequence[TensorKind | None]) -> OperatorGraph | None:
    """The operator's definition by simpler operators; None when ONNX gives none for these types."""
    try:
        schema = defs.get_schema(operator.type, operator.version, operator.domain)
    except defs.SchemaError:
        return None
    body = _body(schema, operator, types)
    if body is None:
        return None
    opsets = {o.domain: o.version for o in body.opset_import}
    given = dict(operator.attributes)
    for name, attribute in schema.attributes.items():
        if attribute.default_value.name:
            given.setdefault(name, helper.get_attribute_value(attribute.default_value))
    steps = tuple(operator_of(node, opsets, None, given) for node in body.node)
    inputs = tuple(Value(name, "", None) for name in body.input)
    outputs = tuple(Value(name, "", None) for name in body.output)
    return OperatorGraph(steps, {}, inputs, outputs, Metadata(opsets=opsets))


def _body(
    schema: defs.OpSchema, operator: Operator, types: Sequence[TensorKind | None]
) -> onnx.FunctionProto | None:
    if schema.has_function:
        return schema.function_body
    if not schema.has_context_dependent_function:
        return None
    versions = [
        v for v in schema.context_dependent_function_opset_versions if v <= operator.version
    ]
    attributes = {k: v for k, v in operator.attributes.items() if not isinstance(v, OperatorGraph)}
    node = helper.make_node(operator.type, operator.inputs, operator.outputs, **attributes)
    kinds = [_type_proto(t).SerializeToString() for t in types]
    text = schema.get_context_dependent_function_with_opset_version(
        max(versions, default=operator.version), node.SerializeToString(), kinds
    )
    body = onnx.FunctionProto()
    body.ParseFromString(text)
    return body if body.node else None


def _type_proto(kind: TensorKind | None) -> onnx.TypeProto:
    if kind is None:
        return onnx.TypeProto()
    name, shape = kind
    code = getattr(
        onnx.TensorProto, {"float32": "FLOAT", "float64": "DOUBLE"}.get(name, name.upper())
    )
    return helper.make_tensor_type_proto(code, list(shape))
