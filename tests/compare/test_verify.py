"""`fissile verify`: agreement at drawn shapes, and wrong rules and kernels planted and found by one command."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fissile.runtime.artifact import read_artifact

from .conftest import Command

WRONG_RULE = """
from fissile.ir.graph import make
from fissile.ir.primitive import PRIMITIVES
from fissile.rewrite.rule import RULES, Refused, Rule
def apply(node):
    return make(PRIMITIVES["tanh"], *node.inputs)
RULES["sigmoid_is_tanh"] = Rule(
    "sigmoid_is_tanh", "sigmoid(x) -> tanh(x)", ("sigmoid",), apply, "fissile.rewrite.algebra")
"""
WRONG_KERNEL = """
from dataclasses import replace
import fissile.pipeline as pipeline
from fissile.ir import loop as L
right = pipeline.lower_all
def change(e):
    return L.op("tanh", *e.args) if isinstance(e, L.Op) and e.op == "sigmoid" else None
def wrong(row):
    body = L.map_stmt(row.function.body, L.mapper(change))
    return replace(row, function=replace(row.function, body=body))
pipeline.lower_all = lambda kernels, target: [wrong(row) for row in right(kernels, target)]
"""

WRONG_FISSION = """
import fissile.fission.driver
from fissile.fission.table import TABLE
TABLE["", "Sigmoid"] = TABLE["", "Tanh"]
"""


@pytest.mark.parametrize("oracle", ["reference", "onnxruntime"])
def test_a_right_model_agrees_at_every_shape(fissile: Command, model: Path, oracle: str) -> None:
    if oracle == "onnxruntime":
        pytest.importorskip(oracle)
    done = fissile("verify", model, "--against", oracle, "--calls", 3, "--json", "--bisect")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["agrees"]
    assert found["finding"] is None
    labels = {row["draw"] for row in found["rows"]}
    assert len(labels) == 4
    assert sum("x100" in label for label in labels) == 1


def test_a_planted_rule_is_found(fissile: Command, model: Path) -> None:
    options = ("--against", "reference", "--calls", 1, "--no-cache", "--bisect")
    done = fissile("verify", model, *options, code=WRONG_RULE)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "FAIL" in done.stdout
    assert "the difference comes in with rule sigmoid_is_tanh" in done.stdout
    assert "ONNX nodes: s2" in done.stdout
    assert "--disable sigmoid_is_tanh" in done.stdout
    off = ("--disable", "sigmoid_is_tanh")
    assert fissile("verify", model, *options, *off, code=WRONG_RULE).returncode == 0


def test_a_planted_kernel_is_found(fissile: Command, model: Path) -> None:
    options = ("--against", "reference", "--calls", 1, "--no-cache", "--bisect", "--json")
    done = fissile("verify", model, *options, code=WRONG_KERNEL)
    assert done.returncode == 3, done.stdout + done.stderr
    finding = json.loads(done.stdout)["finding"]
    assert finding["level"] == "kernel"
    assert "s2" in finding["nodes"]
    assert "sigmoid" in finding["detail"]


def test_a_planted_definition_is_found(fissile: Command, model: Path) -> None:
    options = ("--against", "reference", "--calls", 1, "--no-cache", "--bisect", "--json")
    done = fissile("verify", model, *options, code=WRONG_FISSION)
    assert done.returncode == 3, done.stdout + done.stderr
    finding = json.loads(done.stdout)["finding"]
    assert (finding["level"], finding["name"]) == ("fission", "Sigmoid(17)")
    assert finding["nodes"] == ["s2"]


def test_a_model_that_nobody_can_compare_is_not_right(fissile: Command, tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 7])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("Relu", ["x"], ["y"], name="only")
    path = tmp_path / "relu.onnx"
    opsets = [helper.make_opsetid("", 17)]
    graph = helper.make_graph([node], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    refuse = (
        "import fissile.compare.oracle as o\n"
        "def refuse(feeds): raise RuntimeError('no thanks')\n"
        "o.ORACLES['reference'] = lambda model: refuse"
    )
    done = fissile("verify", path, "--against", "reference", "--calls", 1, code=refuse)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "no thanks" in done.stdout


def test_unknown_oracles_are_refused(fissile: Command, model: Path) -> None:
    done = fissile("verify", model, "--against", "referense")
    assert done.returncode == 2
    assert 'did you mean "reference"?' in done.stderr


def _flip(path: Path) -> None:
    """Change a bit of the last weight."""
    content = bytearray(path.read_bytes())
    offset, size = read_artifact(path).spans["weights.safetensors"]
    content[offset + size - 1] ^= 1
    path.write_bytes(content)


def test_damaged_weights_are_noticed(fissile: Command, model: Path, tmp_path: Path) -> None:
    assert fissile("compile", model, "-o", "a.fsl").returncode == 0
    _flip(tmp_path / "a.fsl")
    done = fissile("verify", "a.fsl", "--model", model, "--against", "reference", "--calls", 1)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "weights.safetensors does not match its hash" in done.stderr
    assert "copy it again" in done.stderr


def test_damaged_weights_in_the_cache_are_noticed(
    fissile: Command, model: Path, tmp_path: Path
) -> None:
    verify = ("verify", model, "--against", "reference", "--calls", 1)
    assert fissile(*verify).returncode == 0
    assert fissile("doctor").returncode == 0
    [path] = (tmp_path / "cache").glob("*.fsl")
    _flip(path)
    done = fissile(*verify)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "do: fissile cache clear" in done.stderr
    done = fissile("doctor", "--json")
    assert done.returncode == 1
    [problem] = json.loads(done.stdout)["problems"]
    assert path.name in problem
    assert "do: fissile cache clear" in problem
    assert fissile("cache", "clear").returncode == 0
    assert fissile(*verify).returncode == 0


def _touchy(path: Path) -> None:
    """y = exp(x w), worth few digits when it is large; z = sin((x w)^2), worth none then."""
    rng = np.random.default_rng(0)
    w = onnx.numpy_helper.from_array((rng.standard_normal((64, 7)) / 40).astype(np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [9, 64])
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [9, 7]) for n in "yz"]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
        helper.make_node("Exp", ["p"], ["y"], name="exp"),
        helper.make_node("Mul", ["p", "p"], ["q"], name="square"),
        helper.make_node("Mul", ["q", "q"], ["r"], name="again"),
        helper.make_node("Sin", ["r"], ["z"], name="sin"),
    ]
    graph = helper.make_graph(nodes, "g", [x], outputs, [w])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


WRONG_WHERE_LARGE = """
import numpy as np
from fissile.runtime.executable import Executable
right = Executable.run
def wrong(self, feeds):
    found = right(self, feeds)
    return found | {"y": np.where(found["y"] > 1e10, found["y"] * np.float32(1.01), found["y"])}
Executable.run = wrong
"""
NUDGED = """
import numpy as np
from fissile.runtime.executable import Executable
right = Executable.run
def nudged(self, feeds):
    return right(self, {name: np.nextafter(array, array + 1) for name, array in feeds.items()})
Executable.run = nudged
"""
WRONG_WHERE_SMALL = WRONG_WHERE_LARGE.replace("> 1e10", "< 1e10")


@pytest.mark.parametrize("oracle", ["reference", "onnxruntime"])
def test_what_rounding_moves_is_excused_and_errors_are_not(
    fissile: Command, tmp_path: Path, oracle: str
) -> None:
    if oracle == "onnxruntime":
        pytest.importorskip(oracle)
    path = tmp_path / "touchy.onnx"
    _touchy(path)
    verify = ("verify", path, "--against", oracle, "--json")
    assert fissile(*verify).returncode == 0
    done = fissile(*verify, code=NUDGED)  # as another engine, whose sums round otherwise, would have it
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {(row["draw"], row["output"]): row for row in json.loads(done.stdout)["rows"]}
    touchy = rows["as declared, x100", "z"]
    assert touchy["found"]["max_rel"] > touchy["tolerance"]
    assert touchy["judged"]["max_rel"] <= touchy["tolerance"]
    for code, draw in ((WRONG_WHERE_LARGE, "as declared, x100"), (WRONG_WHERE_SMALL, "as declared")):
        done = fissile(*verify, code=code)
        assert done.returncode == 3, done.stdout + done.stderr
        wrong = [row for row in json.loads(done.stdout)["rows"] if not row["agrees"]]
        assert {(row["draw"], row["output"]) for row in wrong} >= {(draw, "y")}
        assert "z" not in {row["output"] for row in wrong}
