"""Drawn calls: shapes that are unlike, mostly odd, with a 1 among them, and what the model's extents allow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

CODE = """
import itertools, json, sys
import fissile
from fissile.compare.draws import draws
executable = fissile.compile(sys.argv[1], cache=False)
ranges = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(sys.argv[2]).items()}
found = itertools.islice(draws(executable, ranges, 3), 5)
print(json.dumps([[draw.label, [a.shape for a in draw.feeds.values()], draw.shapes] for draw in found]))
"""


def _nodes(shape: list[Any]) -> list[onnx.NodeProto]:
    """A negation; where extents are multiples, maps that only then meet again when made small and large."""
    factors = [int(d.split("*")[0]) for d in shape if isinstance(d, str) and "*" in d]
    if not factors:
        return [helper.make_node("Neg", ["x"], ["y"])]
    scales = helper.make_tensor("v", TensorProto.FLOAT, [4], [1.0, 1.0, *map(float, factors)])
    return [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=factors, strides=factors),
        helper.make_node("Constant", [], ["s"], value=scales),
        helper.make_node("Resize", ["p", "", "s"], ["r"], mode="nearest"),
        helper.make_node("Concat", ["x", "r"], ["y"], axis=1),
    ]


def drawn(folder: Path, shape: list[Any], ranges: dict[str, Any]) -> list[tuple[int, ...]]:
    """The shapes of a model of one input, call after call."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(_nodes(shape), "g", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    command = [sys.executable, "-c", CODE, str(path), json.dumps(ranges)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len({label for label, *_ in rows}) == len(rows)
    for _, [own], text in rows:
        assert text == f"x[{','.join(map(str, own))}]"
    return [tuple(shapes[0]) for _, shapes, _ in rows]


@pytest.mark.parametrize(
    ("shape", "multiples"),
    [
        (["batch", "seq"], (1, 1)),
        (["n", 3, "32*h", "32*w"], (1, 1, 32, 32)),
        ([1, 3, "4*h", "4*w"], (1, 1, 4, 4)),
        (["n", 3, "h", "w"], (1, 1, 1, 1)),
        (["n"], (1,)),
        ([3, 20, 20], (1, 1, 1)),
    ],
    ids=str,
)
def test_shapes(tmp_path: Path, shape: list[Any], multiples: tuple[int, ...]) -> None:
    found = drawn(tmp_path, shape, {})
    free = [axis for axis, extent in enumerate(shape) if isinstance(extent, str)]
    assert len(set(found)) == len(found) == (5 if free else 1)
    for one in found:
        assert all(n == e for n, e in zip(one, shape) if isinstance(e, int))
        assert all(n > 0 and n % m == 0 for n, m in zip(one, multiples, strict=True))
    units = [tuple(one[a] // multiples[a] for a in free) for one in found]
    if free:
        assert any(1 in row for row in units)
        assert any(n % 2 and n > 1 for row in units for n in row)
        assert all(len(set(row)) == len(row) for row in units[1:])


def test_ranges_are_kept(tmp_path: Path) -> None:
    found = drawn(tmp_path, ["n", "m"], {"n": 6, "m": [20, 22]})
    assert {n for n, _ in found} == {6}
    assert {m for _, m in found} == {20, 21, 22}
