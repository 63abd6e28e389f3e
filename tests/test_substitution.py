"""Substitutions from the front: the option, the stage, `show --rules`, `--why`, and a model compiled with them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fissile import cli, compiler, pipeline
from fissile.errors import OptionError
from fissile.options import Options

SIZE, WIDTH = 24, 32


@pytest.fixture
def head(tmp_path: Path) -> Path:
    """Two feature maps through 1x1 convolutions, the smaller one resized, joined, a 1x1 convolution and relu."""
    rng = np.random.default_rng(0)
    inputs, nodes, weights, joined = [], [], [], []

    def conv(source: str, ins: int, outs: int, name: str) -> str:
        for part, shape in (("w", (outs, ins, 1, 1)), ("b", (outs,))):
            array = rng.standard_normal(shape, dtype=np.float32) / 4
            weights.append(numpy_helper.from_array(array, f"{name}_{part}"))
        nodes.append(
            helper.make_node("Conv", [source, f"{name}_w", f"{name}_b"], [name], name=name)
        )
        return name

    for k, (side, channels) in enumerate(((SIZE, 8), (SIZE // 4, 16))):
        shape = [1, channels, side, side]
        inputs.append(helper.make_tensor_value_info(f"x{k}", TensorProto.FLOAT, shape))
        joined.append(conv(f"x{k}", channels, WIDTH, f"c{k}"))
    weights.append(numpy_helper.from_array(np.array([1, 1, 4, 4], np.float32), "scales"))
    nodes.append(
        helper.make_node("Resize", ["c1", "", "scales"], ["r"], name="resize", mode="linear")
    )
    nodes.append(helper.make_node("Concat", ["r", "c0"], ["j"], name="join", axis=1))
    nodes.append(
        helper.make_node("Relu", [conv("j", 2 * WIDTH, WIDTH, "fuse")], ["y"], name="relu")
    )
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, WIDTH, SIZE, SIZE])
    graph = helper.make_graph(nodes, "head", inputs, [y], weights)
    path = tmp_path / "head.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    return path


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        cli.main(arguments)
    assert isinstance(leaving.value.code, int)
    return leaving.value.code


def test_the_option_changes_the_artifact_key() -> None:
    assert Options(substitute=False).key() != Options().key()


def test_the_search_is_on_unless_it_is_not_wanted(head: Path) -> None:
    without = Options(substitute=False)
    plain = compiler.show(head, "substitute", options=without)
    assert plain == compiler.show(head, "canonicalize")
    assert " concat(" in plain
    assert " concat(" not in compiler.show(head, "substitute")
    off = Options(disable=("split_product",))
    assert " concat(" in compiler.show(head, "substitute", options=off)


def test_of_the_substituted_graph_and_the_plain_one_the_cheaper_plan_is_taken(
    head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fission_of(gain: float) -> bool:
        monkeypatch.setattr(pipeline, "SUBSTITUTED_GAIN", gain)
        return "concat" in compiler.show(head, "plan")

    assert not fission_of(1.0)
    assert fission_of(100.0)


def test_rules_are_listed_by_regime(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "--rules") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == ["canonicalize:", "substitute:"]
    assert run("show", "--rules", "--json") == 0
    rules = json.loads(capsys.readouterr().out)["rules"]
    assert "split_product" in rules["substitute"]
    assert "fold_constants" in rules["canonicalize"]


def test_why_a_rule_does_not_fire(head: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", str(head), "--why", "product_before_map") == 0
    assert "concat is no map along places" in capsys.readouterr().out
    assert run("show", str(head), "--why", "merge_transposes", "--json") == 0
    (miss,) = {m["reason"] for m in json.loads(capsys.readouterr().out)}
    assert miss == "the operand is no transpose"
    with pytest.raises(OptionError, match="no rule is called split"):
        compiler.why(head, "split")


COMPARED = """
import sys
import numpy as np
import fissile
from fissile.options import Options
rng = np.random.default_rng(0)
pair = [fissile.compile(sys.argv[1], options=Options(substitute=s), cache=False) for s in (False, True)]
feeds = {i.name: rng.standard_normal(i.shape, dtype=np.float32) for i in pair[0].inputs}
a, b = (one.run(feeds)["y"] for one in pair)
print(float(np.abs(a - b).max() / np.abs(a).max()))
"""


def test_a_compiled_model_keeps_its_values(head: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPARED, str(head)], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 1e-5
