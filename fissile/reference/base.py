"""What every operator of ours shares: how it reads its attributes.

Invariant: an operator is a class derived from `Corrected`, called like the operators of onnx.reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx.reference.op_run import OpRun

Array = npt.NDArray[Any]


class Corrected(OpRun):  # type: ignore[misc]
    """An operator of our own; `given` reads an attribute that the node itself sets."""

    op_domain = ""

    def given(self, name: str, default: Any = None) -> Any:
        """An attribute, text as str; `default` where the node does not set it."""
        for attribute in self.onnx_node.attribute:
            if attribute.name == name:
                return _plain(onnx.helper.get_attribute_value(attribute))
        return default


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, onnx.TensorProto):
        return np.asarray(onnx.numpy_helper.to_array(value))
    if isinstance(value, (list, tuple)) or not np.isscalar(value) and hasattr(value, "__len__"):
        return [_plain(v) for v in value]
    return value
