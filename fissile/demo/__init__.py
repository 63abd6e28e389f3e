"""`fissile demo`: one small network, one artifact, three shapes, checked and timed; offline.

In: nothing but what the wheel holds. Out: an `Outcome` with the largest relative difference and the
times of each shape. The rival is onnxruntime where it is installed, else `onnx.reference` (numpy).
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import fissile

Floats = NDArray[np.float32]
SHAPES = ((1, 3, 32, 32), (2, 3, 48, 80), (5, 3, 33, 57))
TOLERANCE = 1e-4
SECONDS_PER_SHAPE = 1.0


@dataclass(frozen=True)
class Row:
    """One shape: extents, 10th percentiles in seconds, largest relative difference."""

    shape: tuple[int, ...]
    seconds: float
    rival_seconds: float
    difference: float


@dataclass(frozen=True)
class Outcome:
    """What the demo found."""

    rival: str
    compile_seconds: float
    artifact_bytes: int
    rows: tuple[Row, ...]

    @property
    def agrees(self) -> bool:
        """Whether every difference is within the tolerance."""
        return all(row.difference <= TOLERANCE for row in self.rows)

    def as_dict(self) -> dict[str, object]:
        """Plain data for `--json`."""
        return {**asdict(self), "tolerance": TOLERANCE, "agrees": self.agrees}

    def text(self) -> str:
        """A table."""
        lines = [f"{'x float32':>16}{'fissile':>12}{self.rival:>18}   max rel diff"]
        for row in self.rows:
            shape = "x".join(map(str, row.shape))
            times = f"{row.seconds * 1e3:9.3f} ms{row.rival_seconds * 1e3:15.3f} ms"
            lines.append(f"{shape:>16}{times}   {row.difference:.1e}")
        verdict = "all within" if self.agrees else "NOT all within"
        lines.append(f"one artifact of {self.artifact_bytes / 1e3:.0f} kB; {verdict} {TOLERANCE:g}")
        return "\n".join(lines)


def network(seed: int = 0) -> onnx.ModelProto:
    """Two convolutions, a depthwise one, a residual, pooling and a softmax; free n, h, w."""
    draw = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        fan_in = int(np.prod(shape[1:])) or 1
        values = draw.standard_normal(shape) / np.sqrt(fan_in)
        return numpy_helper.from_array(values.astype(np.float32), name)

    weights = [
        weight("w1", 16, 3, 3, 3), weight("b1", 16), weight("w2", 16, 1, 3, 3),
        weight("w3", 16, 16, 1, 1), weight("w4", 16, 10), weight("b4", 10),
    ]  # fmt: skip
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], strides=[2, 2], **pads),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], group=16, **pads),
        helper.make_node("Sigmoid", ["c2"], ["s2"]),
        helper.make_node("Mul", ["c2", "s2"], ["m2"]),
        helper.make_node("Conv", ["m2", "w3"], ["c3"]),
        helper.make_node("Add", ["c3", "r1"], ["a3"]),
        helper.make_node("GlobalAveragePool", ["a3"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w4", "b4"], ["g"]),
        helper.make_node("Softmax", ["g"], ["y"], axis=1),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3, "h", "w"])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 10])
    graph = helper.make_graph(nodes, "demo", [x], [y], weights)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run(
    *, threads: int | None = None, progress: Callable[[str], None] = lambda text: None
) -> Outcome:
    """Compile, save, load, run three shapes, compare and time; about five seconds."""
    model = network()
    start = time.perf_counter()
    compiled = fissile.compile(model, threads=threads, cache=False)
    seconds = time.perf_counter() - start
    progress(f"compiled a network of {len(model.graph.node)} operators in {seconds:.1f} s")
    name, rival = _rival(model, compiled.threads)
    progress(f"running it at {len(SHAPES)} shapes against {name}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demo.fsl"
        compiled.save(path)
        size = path.stat().st_size
        with fissile.load(path, threads=threads) as executable:
            ours = lambda x: executable.run({"x": x})["y"]  # noqa: E731
            rows = tuple(_row(shape, ours, rival) for shape in SHAPES)
    return Outcome(name, seconds, size, rows)


def _rival(model: onnx.ModelProto, threads: int) -> tuple[str, Callable[[Floats], Floats]]:
    if find_spec("onnxruntime"):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session: Any = onnxruntime.InferenceSession(model.SerializeToString(), options)
        return "onnxruntime", lambda x: session.run(None, {"x": x})[0]
    reference: Any = ReferenceEvaluator(model)
    return "onnx.reference", lambda x: reference.run(None, {"x": x})[0]


def _row(
    shape: tuple[int, ...],
    ours: Callable[[Floats], Floats],
    rival: Callable[[Floats], Floats],
) -> Row:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    expected = rival(x)
    difference = float(np.abs(ours(x) - expected).max() / np.abs(expected).max())
    samples: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + SECONDS_PER_SHAPE
    while time.perf_counter() < end or len(samples[0]) < 5:
        for engine, into in zip((ours, rival), samples, strict=True):
            start = time.perf_counter()
            engine(x)
            into.append(time.perf_counter() - start)
    low, rival_low = (float(np.percentile(s, 10)) for s in samples)
    return Row(shape, low, rival_low, difference)
