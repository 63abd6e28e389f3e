"""ONNX models in, operator graphs out (DESIGN 3.1)."""

from fissile.frontend.extents import fix_extents
from fissile.frontend.operator_graph import Metadata, Operator, OperatorGraph, Value
from fissile.frontend.overridable import as_inputs
from fissile.frontend.read import model_sha256, read_model, serialized
from fissile.frontend.write import single_model, values_read

__all__ = [
    "Metadata",
    "Operator",
    "OperatorGraph",
    "Value",
    "as_inputs",
    "fix_extents",
    "model_sha256",
    "read_model",
    "serialized",
    "single_model",
    "values_read",
]
