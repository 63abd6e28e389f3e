"""Whole networks against onnxruntime: `python networks.py NAME` prints a line of JSON per shape.

In: the name of a network in `NETWORKS`. Out: for every shape the greatest difference from onnxruntime (optimisation
off) over the greatest finite magnitude, whether what is not finite stands at equal places, and whether the bits are
equal on 1, 2 and 3 threads. The machine code runs in this process, so tests start it as a child.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

import fissile
from fissile.runtime.plan import TensorInfo
from tests.fission.test_networks import picture

Array = npt.NDArray[Any]
Feeds = dict[str, Array]
ZOO = Path(__file__).parents[1] / "zoo"


@dataclass(frozen=True)
class Network:
    """A network, where it is from, and the shapes it is run at."""

    file: str
    is_trained: bool
    shapes: tuple[tuple[int, ...], ...]


NETWORKS = {
    "cls": Network(
        "ch_ppocr_mobile_v2.0_cls_infer", True,
        ((1, 3, 48, 192), (2, 3, 48, 101), (3, 3, 64, 100), (1, 3, 48, 16), (6, 3, 48, 64)),
    ),
    "det": Network(
        "ch_PP-OCRv4_det_infer", True,
        ((1, 3, 64, 128), (2, 3, 32, 160), (1, 3, 96, 32), (1, 3, 160, 224), (3, 3, 32, 32)),
    ),
    "rec": Network(
        "ch_PP-OCRv4_rec_infer", True,
        ((1, 3, 48, 64), (2, 3, 48, 37), (3, 3, 48, 101), (1, 3, 48, 320), (1, 3, 48, 8)),
    ),
    "resnet50": Network(
        "resnet50_dynb", False, tuple((n, 3, 224, 224) for n in (1, 2, 3, 5, 0)),
    ),
    "minilm": Network(
        "minilm_l6_dyn", False, ((1, 1), (1, 17), (2, 64), (3, 33), (5, 7), (1, 128)),
    ),
    "candy": Network(
        "candy_224_dyn", False,
        ((1, 3, 64, 96), (1, 3, 32, 44), (1, 3, 40, 40), (1, 3, 96, 64), (1, 3, 48, 32)),
    ),
    "mobilenet": Network("mobilenet_v2", False, ((1, 3, 224, 224),)),
    "yolox": Network("yolox_nano_dynb", False, tuple((n, 3, 416, 416) for n in (1, 2, 3))),
}  # fmt: skip


def models_folder() -> Path | None:
    """Where the package with the trained networks has them; None when it is not installed."""
    found = importlib.util.find_spec("rapidocr_onnxruntime")
    return None if found is None or found.origin is None else Path(found.origin).parent / "models"


def content(network: Network) -> bytes:
    """The network as ONNX bytes, the weights drawn where it is not a trained one."""
    if network.is_trained:
        folder = models_folder()
        if folder is None:
            raise FileNotFoundError("the package with the trained networks is not installed")
        return (folder / f"{network.file}.onnx").read_bytes()
    return inflated(network.file)


def inflated(name: str) -> bytes:
    """A weightless network of the zoo with weights drawn by their names."""
    model = onnx.load(ZOO / f"{name}.light.onnx")
    for tensor, kind, shape, mean, deviation in json.loads((ZOO / f"{name}.json").read_text()):
        rng = np.random.default_rng(zlib.crc32(tensor.encode()))
        values = rng.standard_normal(shape, dtype=np.float32) * deviation + mean
        model.graph.initializer.append(onnx.numpy_helper.from_array(values.astype(kind), tensor))
    return bytes(model.SerializeToString())


def feeds(inputs: Sequence[TensorInfo], shape: tuple[int, ...]) -> Feeds:
    """Pictures of a word for floats; token numbers and masks for integers."""
    rng = np.random.default_rng(sum(shape))
    found: Feeds = {}
    for info in inputs:
        if info.dtype.kind == "f":
            found[info.name] = picture(shape[0], shape[2], shape[3])
        elif "mask" in info.name:
            found[info.name] = (rng.random(shape) < 0.9).astype(info.dtype)
            found[info.name][..., :1] = 1
        else:
            top = 1 if "type" in info.name else 1000
            found[info.name] = rng.integers(0, top + 1, shape).astype(info.dtype)
    return found


def results(network: Network) -> Iterator[dict[str, Any]]:
    """One row per shape."""
    model = content(network)
    alone = fissile.compile(model, threads=1, cache=False)
    gangs = [alone.with_threads(n) for n in (2, 3)]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    rival = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    for shape in network.shapes:
        given = feeds(alone.inputs, shape)
        got = list(alone.run(given).values())
        again = [list(gang.run(given).values()) for gang in gangs]
        want = rival.run(None, given)
        yield {
            "shape": shape,
            "error": max(map(error, got, want)),
            "same_bits": all(bits(other) == bits(got) for other in again),
        }


def bits(arrays: list[Array]) -> list[bytes]:
    """The bytes of all arrays."""
    return [a.tobytes() for a in arrays]


def error(got: Array, want: Array) -> float:
    """The greatest difference over the greatest finite magnitude; infinite where the arrays differ otherwise."""
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return float("inf")
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True) or not finite.any():
        return 0.0 if got.size == 0 else float("inf")
    difference = np.abs(got[finite].astype(np.float64) - want[finite])
    return float(difference.max() / max(np.abs(want[finite]).max(), 1e-30))


if __name__ == "__main__":
    for line in results(NETWORKS[sys.argv[1]]):
        print(json.dumps(line), flush=True)
