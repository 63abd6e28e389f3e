"""The table of PRODUCT 4.4, run against fissile.ort and, where it is installed, onnxruntime.

In: a small model (two outputs, a named and a fixed dimension, an initializer). Out: the same class
and key words for the same mistake. The executable behind fissile.ort is compiled for real.
"""

import importlib
import importlib.util
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import fissile.ort

ENGINES = ["fissile.ort"]
if importlib.util.find_spec("onnxruntime"):
    ENGINES.append("onnxruntime")

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def model_bytes() -> bytes:
    """y = relu(x + w), z = -(x + w); x float32[n, 3]; metadata vocabulary = abc."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("y", "z")
    ]
    w = helper.make_tensor("w", TensorProto.FLOAT, [3], [1.0, -20.0, 3.0])
    nodes = [
        helper.make_node("Add", ["x", "w"], ["t"], name="add"),
        helper.make_node("Relu", ["t"], ["y"], name="relu"),
        helper.make_node("Neg", ["t"], ["z"], name="neg"),
    ]
    graph = helper.make_graph(nodes, "small", [x], outputs, [w])
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="tests"
    )
    helper.set_model_props(model, {"vocabulary": "abc"})
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


@pytest.fixture(params=ENGINES)
def ort(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(request.param)


@pytest.fixture
def session(ort: ModuleType) -> Any:
    return ort.InferenceSession(model_bytes(), providers=["CPUExecutionProvider"])


def state(ort: ModuleType) -> ModuleType:
    """Where the exceptions live."""
    if ort.__name__ == "onnxruntime":
        return importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    return ort


def test_answers(session: Any) -> None:
    y, z = session.run(None, {"x": X})
    w = np.array([1.0, -20.0, 3.0], np.float32)
    np.testing.assert_array_equal(y, np.maximum(X + w, 0))
    np.testing.assert_array_equal(z, -(X + w))


def test_order_of_outputs(session: Any) -> None:
    y, z = session.run([], {"x": X})
    again = session.run(["z", "y", "z"], {"x": X})
    for got, expected in zip(again, [z, y, z], strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "feed",
    [[[1.0, 2.0, 3.0]], [[1, 2, 3]], np.ones((3, 2), np.float32).T, np.ones((0, 3), np.float32)],
    ids=["floats", "ints", "transposed", "empty"],
)
def test_feeds_that_are_converted(session: Any, feed: Any) -> None:
    (y,) = session.run(["y"], {"x": feed})
    assert y.dtype == np.float32
    assert y.shape == np.shape(feed)


MISTAKES: list[tuple[str, list[str] | None, dict[str, Any], str, str]] = [
    ("missing", None, {"X": X}, "ValueError", r"Required inputs \(\['x'\]\) are missing"),
    ("extra", None, {"x": X, "q": X}, "InvalidArgument", "Invalid input name: q"),
    ("initializer", None, {"x": X, "w": X[0]}, "InvalidArgument", "Invalid input name: w"),
    ("output", ["q"], {"x": X}, "InvalidArgument", "Invalid output name:q"),
    ("inner", ["t"], {"x": X}, "InvalidArgument", "Invalid output name:t"),
    (
        "dtype",
        None,
        {"x": X.astype(np.float64)},
        "InvalidArgument",
        r"Actual: \(tensor\(double\)\) , expected: \(tensor\(float\)\)",
    ),
    ("rank", None, {"x": X[None]}, "InvalidArgument", "Invalid rank for input: x Got: 3 Expected"),
    ("dim", None, {"x": X.T}, "InvalidArgument", "Got invalid dimensions for input: x"),
]


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: case[0])
def test_mistakes(
    ort: ModuleType, session: Any, case: tuple[str, list[str] | None, dict[str, Any], str, str]
) -> None:
    _, outputs, feeds, kind, words = case
    expected = ValueError if kind == "ValueError" else getattr(state(ort), kind)
    with pytest.raises(expected, match=words):
        session.run(outputs, feeds)


def test_an_initializer_that_calls_feed() -> None:
    """It is named by an entry of the configuration; a refusal names that entry."""
    plain = fissile.ort.InferenceSession(model_bytes())
    with pytest.raises(fissile.ort.InvalidArgument, match="fissile.overridable_initializers"):
        plain.run(["y"], {"x": X, "w": X[0]})
    options = fissile.ort.SessionOptions()
    options.add_session_config_entry("fissile.overridable_initializers", "w")
    session = fissile.ort.InferenceSession(model_bytes(), options)
    assert [i.name for i in session.get_inputs()] == ["x", "w"]
    (y,) = session.run(["y"], {"x": X, "w": X[0]})
    np.testing.assert_array_equal(y, np.maximum(X + X[0], 0))


def test_describes_itself(session: Any) -> None:
    (x,) = session.get_inputs()
    assert (x.name, x.type, x.shape) == ("x", "tensor(float)", ["n", 3])
    assert [o.name for o in session.get_outputs()] == ["y", "z"]
    meta = session.get_modelmeta()
    assert dict(meta.custom_metadata_map) == {"vocabulary": "abc"}
    assert meta.version == 2**63 - 1
    assert (meta.producer_name, meta.graph_name) == ("tests", "small")
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.get_provider_options() == {"CPUExecutionProvider": {}}
    assert session.get_overridable_initializers() == []


def test_models_that_cannot_be_loaded(ort: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(state(ort).NoSuchFile, match="exist"):
        ort.InferenceSession(str(tmp_path / "none.onnx"))
    with pytest.raises(state(ort).InvalidProtobuf, match="protobuf parsing failed"):
        ort.InferenceSession(b"no model")
    with pytest.raises(TypeError, match="Unable to load from type"):
        ort.InferenceSession(3)


def test_session_options(ort: ModuleType) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = False
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    with pytest.raises(AttributeError):
        options.no_such_option = 1
    session = ort.InferenceSession(model_bytes(), options)
    assert len(session.run(None, {"x": X})) == 2


def test_providers(ort: ModuleType) -> None:
    chosen = [("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})]
    session = ort.InferenceSession(model_bytes(), providers=chosen)
    assert session.get_providers() == ["CPUExecutionProvider"]
    with pytest.warns(UserWarning, match="Specified provider 'CUDAExecutionProvider' is not"):
        ort.InferenceSession(
            model_bytes(), providers=["CUDAExecutionProvider", "CPUExecutionProvider"]
        )


def test_binding(ort: ModuleType, session: Any) -> None:
    target = np.empty((2, 3), np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("z")
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(target))
    session.run_with_iobinding(binding)
    y, z = session.run(None, {"x": X})
    np.testing.assert_array_equal(target, y)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], z)


def test_ort_value(ort: ModuleType, session: Any) -> None:
    value = ort.OrtValue.ortvalue_from_numpy(X)
    assert (value.shape(), value.data_type(), value.device_name()) == (
        [2, 3],
        "tensor(float)",
        "cpu",
    )
    (y,) = session.run(["y"], {"x": value})
    np.testing.assert_array_equal(y, session.run(["y"], {"x": X})[0])


def test_async(session: Any) -> None:
    done: list[tuple[Any, Any, str]] = []
    event = importlib.import_module("threading").Event()

    def callback(results: Any, data: Any, error: str) -> None:
        done.append((results, data, error))
        event.set()

    session.run_async(["y"], {"x": X}, callback, "data")
    assert event.wait(30)
    results, data, error = done[0]
    np.testing.assert_array_equal(results[0], session.run(["y"], {"x": X})[0])
    assert (data, error) == ("data", "")


# ---- where fissile.ort is stricter or more able on purpose


@pytest.fixture
def ours() -> Any:
    return importlib.import_module("fissile.ort")


def test_stricter_than_onnxruntime(ours: Any, caplog: pytest.LogCaptureFixture) -> None:
    options = ours.SessionOptions()
    with pytest.raises(ValueError, match="intra_op_num_threads=-1"):
        options.intra_op_num_threads = -1
    with pytest.raises(TypeError, match="foo"):
        ours.InferenceSession(model_bytes(), foo=1)
    caplog.set_level("WARNING", "fissile")  # which another session's options may have raised
    options.add_session_config_entry("session.intra_op.allow_spining", "0")
    assert 'did you mean "session.intra_op.allow_spinning"' in caplog.text
    with pytest.raises(ValueError, match="input x is None"):
        ours.InferenceSession(model_bytes()).run(None, {"x": None})


@pytest.mark.parametrize(
    ("name", "builtin"),
    [("InvalidArgument", ValueError), ("NoSuchFile", FileNotFoundError), ("Fail", RuntimeError)],
)
def test_exceptions_are_natural(ours: Any, name: str, builtin: type[Exception]) -> None:
    assert issubclass(getattr(ours, name), (builtin, ours.Error))
    assert issubclass(getattr(ours, name), builtin)


def test_a_session_can_be_pickled(ours: Any) -> None:
    session = ours.InferenceSession(model_bytes())
    copy = pickle.loads(pickle.dumps(session))  # noqa: S301
    np.testing.assert_array_equal(copy.run(["y"], {"x": X})[0], session.run(["y"], {"x": X})[0])


def test_an_artifact_opens_like_a_model(
    ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fissile: Any = importlib.import_module("fissile")
    path = tmp_path / "small.fsl"
    compile_: Callable[..., Any] = fissile.compile
    compile_(model_bytes()).save(path)
    session = ours.InferenceSession(path)
    assert session.get_modelmeta().custom_metadata_map == {"vocabulary": "abc"}
    np.testing.assert_array_equal(
        session.run(["y"], {"x": X})[0],
        ours.InferenceSession(model_bytes()).run(["y"], {"x": X})[0],
    )


@pytest.mark.parametrize(
    "name", ["GraphOptimizationLevel.ORT_ENABLE_ALL", "ExecutionMode.ORT_SEQUENTIAL"]
)
def test_enumerations_print_their_names(ort: ModuleType, name: str) -> None:
    kind, member = name.split(".")
    value = getattr(getattr(ort, kind), member)
    assert str(value) == name


def test_extents_of_one_that_decide_a_rank(ort: ModuleType) -> None:
    """Squeeze takes away what is 1 in this call; fissile compiles once more for it, and says so once."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[b,1,t] x) => (y) { y = Squeeze(x) }'
    )
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for shape in [(2, 1, 3), (1, 1, 3), (1, 1, 3), (2, 1, 1), (2, 1, 3)]:
            x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], x.squeeze())
    said = [str(w.message) for w in seen if "compiled once more" in str(w.message)]
    assert len(said) == (2 if ort.__name__ == "fissile.ort" else 0), said
