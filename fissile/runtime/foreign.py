"""The door to operators that run in Python: loaded only for an artifact that names a foreign node.

In: the serialized ONNX model of one operator, then arrays. Out: the operator's results. Invariant: it is the only
module of `runtime` that needs onnx.
"""

from fissile.reference import evaluate, evaluator

__all__ = ["evaluate", "evaluator"]
