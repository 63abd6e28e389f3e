"""ONNX models in, operator graphs out (DESIGN 3.1)."""

from fissile.frontend.operator_graph import Metadata, Operator, OperatorGraph, Value
from fissile.frontend.read import read_model

__all__ = ["Metadata", "Operator", "OperatorGraph", "Value", "read_model"]
