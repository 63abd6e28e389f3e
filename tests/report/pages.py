"""A model whose names are markup, and the folder in which it is compiled and reported by child processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

EVIL = '</script><img src=x onerror="document.title=1"><!--&amp;"\'\\u2028'


@dataclass(frozen=True)
class Place:
    """A folder with hostile.onnx, hostile.fsl, other.fsl (a rule left out) and both.html about the two."""

    folder: Path

    def fissile(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command, run here; what it printed."""
        environment = {**os.environ, "FISSILE_CACHE_DIR": str(self.folder / "cache")}
        command = [sys.executable, "-m", "fissile.cli", *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )

    def document(self, name: str = "both.html") -> dict[str, Any]:
        """The data in a page."""
        return data_of((self.folder / name).read_text(encoding="utf-8"))


def data_of(text: str) -> dict[str, Any]:
    """The data in the text of a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    document: dict[str, Any] = json.loads(found[1])
    return document


def hostile() -> onnx.ModelProto:
    """A residual block four times over, two transposes that cancel, a softmax and a sum; names are markup."""
    draw = np.random.default_rng(3)
    nodes, constants = [], []
    last = "x<b>"
    for k in range(4):
        for part, size in (("w", (9, 9)), ("v", (9, 9))):
            values = draw.standard_normal(size).astype(np.float32)
            constants.append(helper.make_tensor(f"{part}{k}", TensorProto.FLOAT, size, values))
        nodes += [
            helper.make_node("MatMul", [last, f"w{k}"], [f"a{k}"], name=f"{EVIL}{k}"),
            helper.make_node("Erf", [f"a{k}"], [f"b{k}"], name=f"block{k}/erf"),
            helper.make_node("MatMul", [f"b{k}", f"v{k}"], [f"c{k}"], name=f"block{k}/second"),
            helper.make_node("Add", [f"c{k}", last], [f"d{k}"], name=f"block{k}/add"),
        ]
        last = f"d{k}"
    nodes.append(helper.make_node("Transpose", [last], ["t"], name="turn", perm=[1, 0]))
    nodes.append(helper.make_node("Transpose", ["t"], ["u"], name="turn back", perm=[1, 0]))
    nodes.append(helper.make_node("Softmax", ["u"], ["s"], name="soft", axis=-1))
    nodes.append(helper.make_node("ReduceSum", ["s"], ["y&"], name="sum", keepdims=0))
    x = helper.make_tensor_value_info("x<b>", TensorProto.FLOAT, ["n<i>", 9])
    y = helper.make_tensor_value_info("y&", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, EVIL, [x], [y], constants)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name=EVIL)
