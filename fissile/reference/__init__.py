"""Operators in Python: what a model means where nothing native does, and an oracle for tests.

In: ONNX models and arrays. Out: arrays. Loaded only where something runs in Python: it imports onnx.
"""

from fissile.reference.evaluator import CORRECTIONS, evaluate, evaluator, runner

__all__ = ["CORRECTIONS", "evaluate", "evaluator", "runner"]
