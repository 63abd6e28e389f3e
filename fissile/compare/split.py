"""A model's primitive graph as a file that any ONNX engine runs (Korch Fig. 7).

In: a model. Out: a model of primitives. Invariant: ONNX's checker accepts what is written, and nothing is half-written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from fissile.errors import CompileError
from fissile.fission import fission
from fissile.fission.export import export
from fissile.frontend import fix_extents, read_model
from fissile.rewrite import canonicalize
from fissile.runtime.artifact import atomic_file


@dataclass(frozen=True)
class Split:
    """How many of what: ONNX operators read, primitives, ONNX nodes written, bytes."""

    operators: int
    primitives: int
    nodes: int
    bytes: int

    def text(self) -> str:
        """The same for people."""
        return (
            f"{self.operators} operators, {self.primitives} primitives, {self.nodes} ONNX nodes · "
            f"{self.bytes / 1e6:.1f} MB"
        )


def split(
    model: Path, output: Path, shapes: Mapping[str, Any], *, canonical: bool = False
) -> Split:
    """Write the primitive graph of `model` to `output`; CompileError F414 when it is over 2 GB."""
    operators = fix_extents(read_model(model), shapes)
    graph = fission(operators, foreign=True)
    if canonical:
        graph = canonicalize(graph).graph
    written = export(graph)
    try:
        content = written.SerializeToString(deterministic=True)
    except ValueError as error:
        raise CompileError("F414", f"{output} would be over 2 GB", reason=str(error)) from error
    onnx.checker.check_model(content)
    with atomic_file(output) as stream:
        stream.write(content)
    nodes = len(written.graph.node)
    return Split(len(operators.operators), len(graph.nodes()), nodes, len(content))
