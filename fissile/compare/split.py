"""A model's primitive graph as a file that any ONNX engine runs (Korch Fig. 7).

In: a model. Out: a model of primitives. Invariant: ONNX's checker accepts what is written; no file is half-written, but
for weights apart.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from fissile.fission import fission
from fissile.fission.export import export
from fissile.frontend import fix_extents, read_model
from fissile.optimizer import fits
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
    """Write the primitive graph of `model` to `output`."""
    operators = fix_extents(read_model(model), shapes)
    graph = fission(operators, foreign=True)
    if canonical:
        graph = canonicalize(graph).graph
    written = export(graph)
    size = write_model(written, output)
    nodes = len(written.graph.node)
    return Split(len(operators.operators), len(graph.nodes()), nodes, size)


def write_model(model: onnx.ModelProto, output: Path) -> int:
    """Check the model and write it; bytes written. Weights of over 2 GB go into a file beside it, `NAME.data`."""
    if fits(model):
        content = model.SerializeToString(deterministic=True)
        onnx.checker.check_model(content)
        with atomic_file(output) as stream:
            stream.write(content)
        return len(content)
    apart = f"{output.name}.data"
    copy = onnx.ModelProto()
    copy.CopyFrom(model)  # saving takes the weights out of what it is given
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".fissile-") as folder:
        made = Path(folder) / output.name
        onnx.save_model(copy, made, save_as_external_data=True, location=apart)
        onnx.checker.check_model(str(made))
        size = made.stat().st_size + (made.parent / apart).stat().st_size
        (made.parent / apart).replace(output.parent / apart)
        made.replace(output)
    return size
