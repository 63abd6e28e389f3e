"""An If whose branches differ in rank: the declared rank chooses, calls that mean the other branch are refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fissile.fission import fission
from fissile.frontend import fix_extents, read_model
from tests.fission.oracle import reference, run

FLOAT = TensorProto.FLOAT
node = helper.make_node
Shape = Sequence[int | str] | None


def model(
    compare: str = "Equal",
    inside: Shape = None,
    outside: Shape = None,
    behind: Sequence[onnx.NodeProto] = (),
) -> onnx.ModelProto:
    """x[b, c, t] without its axis 1 where c is 1. inside: declared of the If's output, outside: of the model's."""
    untyped = [helper.make_tensor_value_info(name, FLOAT, None) for name in ("s", "i")]
    squeezed = helper.make_graph(
        [node("Squeeze", ["x", "axes"], ["s"])], "squeezed", [], untyped[:1]
    )
    same = helper.make_graph([node("Identity", ["x"], ["i"])], "same", [], untyped[1:])
    branches = (squeezed, same) if compare == "Equal" else (same, squeezed)
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["c"]),
        node("Equal", ["c", "one"], ["is_one"]),
        *([] if compare == "Equal" else [node("Not", ["is_one"], ["is_other"])]),
        node("If", ["is_one" if compare == "Equal" else "is_other"], ["q"],
             name="branching", then_branch=branches[0], else_branch=branches[1]),
        *(behind or [node("Relu", ["q"], ["y"])]),
    ]  # fmt: skip
    y = (
        onnx.ValueInfoProto(name="y")
        if outside is None
        else helper.make_tensor_value_info("y", FLOAT, outside)
    )
    hints = [] if inside is None else [helper.make_tensor_value_info("q", FLOAT, inside)]
    weights = [
        numpy_helper.from_array(np.array(1), "one"),
        numpy_helper.from_array(np.array([1]), "axes"),
    ]
    x = helper.make_tensor_value_info("x", FLOAT, ["b", "c", "t"])
    graph = helper.make_graph(nodes, "g", [x], [y], weights, value_info=hints)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


FLAT, DEEP = ["b", "t"], ["b", "c", "t"]
FLATTENED = [node("Transpose", ["q"], ["y"], perm=[1, 0])]
TRANSPOSED = [node("Transpose", ["q"], ["y"], perm=[2, 0, 1])]


@pytest.mark.parametrize("compare", ["Equal", "Not"])
@pytest.mark.parametrize(
    ("inside", "outside", "behind", "channels"),
    [
        (FLAT, None, (), 1),
        (DEEP, None, (), 3),
        (None, FLAT, (), 1),
        (None, DEEP, (), 3),
        (None, None, (), 3),
        (None, None, TRANSPOSED, 2),
        (None, None, FLATTENED, 1),
    ],
)
def test_the_declared_rank_chooses(
    compare: str, inside: Shape, outside: Shape, behind: Sequence[onnx.NodeProto], channels: int
) -> None:
    made = model(compare, inside, outside, behind)
    x = np.random.default_rng(1).normal(size=(2, channels, 4)).astype(np.float32)
    (want,) = reference(made, {"x": x})
    (got,) = run(made, {"x": x})
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want)
    other = np.zeros((2, 1 if channels > 1 else 2, 4), np.float32)
    with pytest.raises(
        AssertionError, match=r"branching: the branches differ in rank.*--shape c=(NUMBER|1$)"
    ):
        run(made, {"x": other})


@pytest.mark.parametrize("channels", [1, 3])
def test_fixed_extents_choose(channels: int) -> None:
    """`--shape c=3` makes the condition a constant, whatever is declared."""
    x = np.random.default_rng(2).normal(size=(2, channels, 4)).astype(np.float32)
    (want,) = reference(model(), {"x": x})
    (got,) = run(fix_extents(read_model(model()), {"c": channels}), {"x": x})
    np.testing.assert_array_equal(got, want)


def test_a_branch_not_taken_demands_nothing() -> None:
    """The Squeeze of the branch that was only looked at leaves no guard behind."""
    graph = fission(read_model(model(inside=DEEP)))
    assert len(graph.guards) == 1
