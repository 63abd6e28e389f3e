"""Group normalizations as exporters write them: the instance normalization of channels merged with places."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fissile.fission import fission
from fissile.frontend import read_model
from fissile.rewrite import canonicalize
from tests.fission.oracle import reference, run_graph, same


def grouped(groups: int, sides: tuple[str, ...], dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """InstanceNormalization over groups of 12 channels and all places, scaled and shifted by group."""
    draw = np.random.default_rng(groups)
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    parameters = {name: draw.standard_normal(groups).astype(kind) for name in ("scale", "bias")}
    parameters["merged"] = np.array([0, groups, -1])
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Reshape", ["x", "merged"], ["m"]),
        helper.make_node("InstanceNormalization", ["m", "scale", "bias"], ["i"], epsilon=1e-3),
        helper.make_node("Reshape", ["i", "shape"], ["y"]),
    ]
    shape = ["n", 12, *sides]
    values = [helper.make_tensor_value_info(name, dtype, shape) for name in "xy"]
    constants = [numpy_helper.from_array(a, name) for name, a in parameters.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("groups", [1, 3, 12])
@pytest.mark.parametrize("sides", [("h",), ("h", "w"), ("d", "h", "w")])
def test_a_group_is_normalized_where_its_channels_and_places_lie_apart(
    groups: int, sides: tuple[str, ...]
) -> None:
    model = grouped(groups, sides)
    graph = fission(read_model(model))
    sums = [n for n in canonicalize(graph).graph.nodes() if n.name == "reduce_sum"]
    assert sums
    assert all(len(n.attr("axes")) >= len(sides) for n in sums)
    for batch, extent in ((1, 5), (3, 2), (2, 1)):
        size = (batch, 12, *(extent + k for k in range(len(sides))))
        feeds = {
            "x": np.random.default_rng(extent).standard_normal(size).astype(np.float32) * 3 + 1
        }
        (got,), (want,) = run_graph(graph, feeds), reference(model, feeds)
        assert same(got, want), np.max(np.abs(got - want))


def test_a_merged_tensor_of_other_parts_stays_as_it_is() -> None:
    """[n, 12, h, w] seen as [n, 8, 3 * h * w / 2] cuts channels in two."""
    model = grouped(8, ("h", "w"))
    graph = fission(read_model(model))
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 12, 4, 6)).astype(np.float32)}
    (got,), (want,) = run_graph(graph, feeds), reference(model, feeds)
    assert same(got, want)
