"""The operator graph: a thin, read-only record of an ONNX model (DESIGN 3.1).

In: what `read_model` found. Out: plain Python values and numpy arrays, with no protobuf left.
Invariant: operators stand in topological order, every name they read is an input, an initializer
or an earlier output (in a subgraph also a name of the graph around it). Fission is its only reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ONNX_DOMAIN = ""


Extents = tuple[int | str | None, ...]


@dataclass(frozen=True)
class Value:
    """A declared input or output.

    dtype: a numpy name ("float32", "bfloat16", "string", ...), "" when the model does not say.
    shape: numbers, texts of named extents, None where unnamed; None as a whole when not declared.
    """

    name: str
    dtype: str
    shape: Extents | None


@dataclass(frozen=True)
class Operator:
    """One ONNX node. Empty names among `inputs` and `outputs` mean absent; `version` is the opset of `domain`."""

    name: str
    domain: str
    type: str
    version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """`domain.Type(version)`, the domain left out for ONNX's own."""
        return f"{self.domain}.{self.type}({self.version})".removeprefix(".")

    @property
    def where(self) -> str:
        """The node's name, or the name of its first output where the model gives none."""
        return self.name or next((o for o in self.outputs if o), "")

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute called `name`, or `default`."""
        return self.attributes.get(name, default)


@dataclass(frozen=True)
class Metadata:
    """What a model says about itself; `sha256` covers the model's bytes and its external data.

    version: None where the model gives none.
    """

    producer: str = ""
    producer_version: str = ""
    domain: str = ""
    version: int | None = None
    doc: str = ""
    graph_doc: str = ""
    custom: Mapping[str, str] = field(default_factory=dict)
    opsets: Mapping[str, int] = field(default_factory=dict)
    ir_version: int = 0
    sha256: str = ""
    file_name: str = ""
    graph_name: str = ""


@dataclass(frozen=True)
class OperatorGraph:
    """A model, or the body of an If, Loop or Scan (an attribute of type graph).

    shapes: what the model says of outputs and intermediate values; a hint, that nothing has checked.
    """

    operators: tuple[Operator, ...]
    initializers: Mapping[str, np.ndarray]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    metadata: Metadata = Metadata()
    shapes: Mapping[str, Extents] = field(default_factory=dict)
