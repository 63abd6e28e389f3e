"""Single kernels against the machine's peak: sgemm and 3x3 convolutions, on one and two threads, in one run.

    python bench/kernels.py [--threads 1,2] [--target NAME] [--seconds 2] [NAME ...]

Prints for each kernel GFLOP/s and its share of the fused multiply-add peak of one core. Kernel and peak are timed in
turn, in samples of a few milliseconds; both figures are 10th percentiles (DESIGN section 6).
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import fissile
from fissile.options import resolve_target
from fissile.runtime.executable import Executable
from fissile.tune.peak import Peak

Case = tuple[str, bytes, dict[str, np.ndarray], float]


def model_of(node: onnx.NodeProto, x: list[int], w: np.ndarray, y: list[int]) -> bytes:
    """A model of one node with a constant right operand."""
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(w, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def matmul(m: int, n: int, k: int) -> Case:
    """x[m, k] @ w[k, n]."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((k, n), dtype=np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    feeds = {"x": rng.standard_normal((m, k), dtype=np.float32)}
    return f"sgemm {m}x{n}x{k}", model_of(node, [m, k], w, [m, n]), feeds, 2.0 * m * n * k


def conv(c: int, o: int, size: int, taps: int) -> Case:
    """A padded convolution of stride 1 on a square image."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((o, c, taps, taps), dtype=np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[taps // 2] * 4)
    feeds = {"x": rng.standard_normal((1, c, size, size), dtype=np.float32)}
    model = model_of(node, [1, c, size, size], w, [1, o, size, size])
    return f"conv {taps}x{taps} {c}->{o} at {size}", model, feeds, 2.0 * size * size * c * o * taps**2


CASES = (
    matmul(1024, 1024, 1024),
    conv(128, 128, 56, 3),
    matmul(2048, 2048, 2048),
    matmul(128, 384, 384),
    matmul(128, 1536, 384),
    matmul(1, 1000, 2048),
    conv(64, 64, 56, 3),
    conv(512, 512, 7, 3),
    conv(64, 256, 56, 1),
    conv(24, 24, 80, 3),
)


def linear_seconds(exe: Executable, feeds: dict[str, np.ndarray]) -> float:
    """Seconds of the longest launch of one run: the linear kernel."""
    return float(exe.profile(feeds, runs=1).seconds.max())


def measure(case: Case, threads: int, target: str, seconds: float, peak: Peak) -> str:
    """One line of the table."""
    name, model, feeds, flops = case
    options = fissile.Options(store=False)
    exe = fissile.compile(model, threads=threads, target=target, cache=False, options=options)
    linear_seconds(exe, feeds)
    kernel: list[float] = []
    ceiling: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        kernel.append(linear_seconds(exe, feeds))
        ceiling.append(peak.seconds())
    p10 = float(np.percentile(kernel, 10))
    most = peak.flops / float(np.percentile(ceiling, 10)) / 1e9
    rate = flops / p10 / 1e9
    share = rate / most / threads
    return f"{name:26} {threads} thr {p10 * 1e3:9.3f} ms {rate:8.1f} GFLOP/s, peak {most:6.1f}: {share:6.1%}"


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of the kernels to run")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--target", default="native")
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    peak = Peak(resolve_target(args.target))
    for case in CASES:
        if args.names and not any(part in case[0] for part in args.names):
            continue
        for threads in (int(t) for t in args.threads.split(",")):
            print(measure(case, threads, args.target, args.seconds, peak), flush=True)


if __name__ == "__main__":
    main()
