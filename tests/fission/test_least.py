"""Free extents that convolutions need to be larger: known while a model is split, refused where a call has less."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from fissile.fission import fission
from fissile.frontend import read_model
from fissile.ir.dim import Dim, symbols
from tests.fission.oracle import onnxruntime_errors, reference, run, same


def model_of(text: str) -> onnx.ModelProto:
    """The model with opset 18."""
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {text}')


# lengths as torch.export writes them: ((n / 5 - 3) / 2 + 1), Div truncating, which is n // 10 - 1 where n >= 25
EXPORTED = """g (float[b,1,n] x) => (y) <float[1,1,10] w = {1,2,3,4,5,6,7,8,9,10}, float[1,1,3] v = {1,-2,3},
    int64[1] one = {1}, int64[1] two = {2}, int64[1] five = {5}, int64[1] four = {4}, int64[1] start = {2},
    int64[1] end = {3}> {
  c = Conv<strides = [5]>(x, w)
  d = Conv<strides = [2]>(c, v)
  shape = Shape(x)
  n1 = Slice(shape, start, end)
  n2 = Div(n1, five)
  n3 = Sub(n2, four)
  n4 = Div(n3, two)
  n5 = Add(n4, one)
  minus = Neg(one)
  whole = Concat<axis = 0>(minus, n5)
  y = Reshape(d, whole)
}"""


def test_strides_of_a_convolved_length_are_floor_divisions() -> None:
    graph = fission(read_model(model_of(EXPORTED)))
    (_, y) = graph.outputs[0]
    assert not any("max" in str(d) for d in y.shape), y.shape
    (n,) = (
        s for d in graph.inputs[0].shape if isinstance(d, Dim) for s in symbols(d) if s.name == "n"
    )
    assert n.lower == 20
    for length in (20, 25, 33, 100):
        feeds = {
            "x": np.random.default_rng(length).standard_normal((2, 1, length)).astype(np.float32)
        }
        (got,), (want,) = run(model_of(EXPORTED), feeds), reference(model_of(EXPORTED), feeds)
        assert same(got, want)


@pytest.mark.parametrize("length", [0, 9, 10, 19])
def test_less_is_refused_where_onnxruntime_refuses_it(length: int) -> None:
    feeds = {"x": np.zeros((1, 1, length), np.float32)}
    with pytest.raises(onnxruntime_errors):
        reference(model_of(EXPORTED), feeds)
    with pytest.raises(AssertionError, match="the dimension n must be at least 20"):
        run(model_of(EXPORTED), feeds)


def test_a_branch_that_may_not_run_says_nothing_of_extents() -> None:
    model = model_of("""g (bool c, float[1,1,n] x) => (float[k,l,m] y) {
      y = If (c) <
        then_branch = t () => (a) <float[1,1,5] w = {1,1,1,1,1}> { p = Conv(x, w) a = ReduceSum(p) },
        else_branch = e () => (b) { b = ReduceSum(x) } >
    }""")
    graph = fission(read_model(model), foreign=True)
    names = {
        s.name: s.lower for d in graph.inputs[1].shape if isinstance(d, Dim) for s in symbols(d)
    }
    assert names == {"n": 0}


def test_extents_of_two_names_keep_their_demand() -> None:
    model = model_of(
        "g (float[1,1,n] x, float[1,1,m] z) => (y) <float[1,1,4] w = {1,2,3,4}>"
        "{ c = Concat<axis = 2>(x, z) y = Conv(c, w) }"
    )
    short = {"x": np.ones((1, 1, 2), np.float32), "z": np.ones((1, 1, 1), np.float32)}
    with pytest.raises(AssertionError, match="must be at least 4"):
        run(model, short)
    fits = {"x": np.ones((1, 1, 0), np.float32), "z": np.ones((1, 1, 4), np.float32)}
    assert run(model, fits)[0].item() == 10
