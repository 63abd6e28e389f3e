"""The table of operators that run in Python, over their attributes: what `tests/reference/test_table.py` compares.

A case is one operator with its inputs. Extents are distinct and odd where the operator lets them be; each attribute
stands at least once at another value than its default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

Array = npt.NDArray[Any]
ML = "ai.onnx.ml"


@dataclass(frozen=True)
class Case:
    """One operator. inputs: arrays by name, None where absent. constants: inputs that the model holds as weights."""

    name: str
    kind: str
    opset: int
    inputs: Mapping[str, Array | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("y",)
    constants: tuple[str, ...] = ()
    domain: str = ""

    def model(self) -> onnx.ModelProto:
        """The model of this operator alone; the types of its results are left open."""
        given = {n: a for n, a in self.inputs.items() if a is not None}
        infos = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in given.items()
            if n not in self.constants
        ]
        weights = [onnx.numpy_helper.from_array(given[n], n) for n in self.constants]
        names = ["" if a is None else n for n, a in self.inputs.items()]
        node = helper.make_node(
            self.kind, names, self.outputs, name="it", domain=self.domain, **self.attributes
        )
        made = [onnx.ValueInfoProto(name=n) for n in self.outputs if n]
        graph = helper.make_graph([node], "case", infos, made, weights)
        imports = [helper.make_opsetid(self.domain, self.opset)]
        if self.domain:
            imports.append(helper.make_opsetid("", 17))
        return helper.make_model(graph, opset_imports=imports, ir_version=8)

    def feeds(self) -> dict[str, Array]:
        """What a call gives."""
        return {n: a for n, a in self.inputs.items() if a is not None and n not in self.constants}


def _draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


# ---- recurrences ---------------------------------------------------------------------------------

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
TIME, BATCH, INPUT, HIDDEN = 5, 3, 4, 2
BOUNDED = ("ScaledTanh", "HardSigmoid", "Softsign", "Tanh", "Sigmoid")
UNBOUNDED = ("Affine", "LeakyRelu", "Elu", "Softplus", "Relu")


def _recurrent(
    name: str,
    kind: str,
    opset: int = 14,
    directions: int = 1,
    scale: float = 1.0,
    outputs: int = 3,
    drop: tuple[str, ...] = (),
    lengths: tuple[int, ...] | None = None,
    dtype: type = np.float32,
    **attributes: Any,
) -> Case:
    gates, d, h = GATES[kind], directions, HIDDEN
    swap = bool(attributes.get("layout", 0))

    def state(seed: int) -> Array:
        whole = _draw(d, BATCH, h, seed=seed)
        return whole.swapaxes(0, 1).copy() if swap else whole

    x = _draw(TIME, BATCH, INPUT, seed=1) * np.float32(scale)
    inputs: dict[str, Array | None] = {
        "x": x.swapaxes(0, 1).copy() if swap else x,
        "w": _draw(d, gates * h, INPUT, seed=2) / 2,
        "r": _draw(d, gates * h, h, seed=3) / 3,
        "b": _draw(d, 2 * gates * h, seed=4),
        "lengths": None if lengths is None else np.array(lengths, np.int32),
        "h0": state(5),
    }
    if kind == "LSTM":
        inputs |= {"c0": state(6), "p": _draw(d, 3 * h, seed=7)}
    inputs = {n: None if n in drop or a is None else _as(a, dtype) for n, a in inputs.items()}
    names = ("y", "yh", "yc")[: min(outputs, 3 if kind == "LSTM" else 2)]
    if directions == 2:
        attributes["direction"] = "bidirectional"
    return Case(name, kind, opset, inputs, {"hidden_size": h, **attributes}, names)


def _as(a: Array, dtype: type) -> Array:
    return a.astype(dtype) if a.dtype == np.float32 else a


def recurrences() -> Iterator[Case]:
    """RNN, GRU and LSTM."""
    for kind, per in (("RNN", 1), ("GRU", 2), ("LSTM", 3)):
        made = _recurrent
        yield made(f"{kind} plain", kind)
        yield made(f"{kind} opset 7", kind, opset=7)
        yield made(f"{kind} doubles", kind, dtype=np.float64)
        yield made(f"{kind} bare", kind, drop=("b", "h0", "c0", "p"))
        yield made(f"{kind} only y", kind, outputs=1)
        yield made(f"{kind} lengths", kind, lengths=(5, 2, 3))
        yield made(f"{kind} lengths 0", kind, lengths=(0, 4, 1))
        yield made(f"{kind} reverse", kind, direction="reverse")
        yield made(f"{kind} reverse lengths", kind, direction="reverse", lengths=(5, 2, 3))
        yield made(f"{kind} two ways", kind, directions=2)
        yield made(f"{kind} two ways lengths", kind, directions=2, lengths=(4, 5, 1))
        yield made(f"{kind} clip", kind, scale=4, clip=0.4)
        yield made(f"{kind} two ways clip lengths", kind, directions=2, lengths=(4, 5, 1), clip=0.3)
        yield made(f"{kind} layout", kind, layout=1)
        yield made(f"{kind} layout two ways", kind, layout=1, directions=2, lengths=(5, 2, 3))
        for name in BOUNDED:
            yield made(f"{kind} {name}", kind, activations=[name] * per)
        for name in UNBOUNDED:
            names = [name] if kind == "RNN" else ["Sigmoid", *[name] * (per - 1)]
            yield made(f"{kind} {name}", kind, activations=names)
        names = (
            ["ThresholdedRelu"] * per
            if kind == "RNN"
            else ["Sigmoid", *["ThresholdedRelu"] * (per - 1)]
        )
        yield made(f"{kind} ThresholdedRelu", kind, activations=names, activation_alpha=[0.1] * per)
        yield made(
            f"{kind} alphas", kind, activations=(["LeakyRelu", "ScaledTanh", "Elu"])[:per],
            activation_alpha=[0.3, 0.7, 1.5][:per], activation_beta=[0.1, 0.8][:max(per - 1, 1)],
        )  # fmt: skip
        yield made(
            f"{kind} two ways activations", kind, directions=2,
            activations=["HardSigmoid", "Affine", "Softsign"][:per]
            + ["Sigmoid", "Relu", "Tanh"][:per],
            activation_alpha=[0.4, 0.6], activation_beta=[0.3, 0.2],
        )  # fmt: skip
    yield _recurrent("GRU before reset", "GRU", linear_before_reset=1)
    yield _recurrent("GRU two ways before reset", "GRU", directions=2, linear_before_reset=1)
    yield _recurrent("LSTM coupled", "LSTM", input_forget=1)
    yield _recurrent("LSTM coupled peepless", "LSTM", input_forget=1, drop=("p",))
    yield _recurrent("LSTM two ways peepholes lengths", "LSTM", directions=2, lengths=(2, 5, 3))


# ---- images --------------------------------------------------------------------------------------


def images() -> Iterator[Case]:
    """Operators that sample or scatter images."""
    yield from _roi_align()
    yield from _grids()
    yield from _unpooled()
    yield from _transposed()
    yield from _col2im()
    yield from _deformed()


def _roi_align() -> Iterator[Case]:
    rois = np.array(
        [[0, 0, 80, 90], [10.5, 20.2, 60.1, 70.7], [-30, -20, 20, 15], [50, 40, 51, 41],
         [70, 60, 200, 180], [40, 40, 30, 20]], np.float32)  # fmt: skip
    inputs: dict[str, Array | None] = {
        "x": _draw(2, 3, 12, 10),
        "rois": rois,
        "batch": np.array([0, 1, 1, 0, 1, 0]),
    }
    base = {"output_height": 3, "output_width": 2, "spatial_scale": 0.125}
    for opset, mode, ratio in product((10, 16, 22), ("avg", "max"), (0, 1, 3)):
        more = {**base, "mode": mode, "sampling_ratio": ratio}
        yield Case(f"RoiAlign {opset} {mode} {ratio}", "RoiAlign", opset, inputs, more)
    for mode in ("half_pixel", "output_half_pixel"):
        more = {**base, "coordinate_transformation_mode": mode, "sampling_ratio": 2}
        yield Case(f"RoiAlign 16 {mode}", "RoiAlign", 16, inputs, more)
    yield Case("RoiAlign defaults", "RoiAlign", 16, inputs)


def _grids() -> Iterator[Case]:
    flat: dict[str, Array | None] = {
        "x": _draw(2, 3, 5, 4),
        "grid": _draw(2, 3, 2, 2, seed=1) * np.float32(0.9),
    }
    deep: dict[str, Array | None] = {
        "x": _draw(1, 2, 3, 4, 5),
        "grid": _draw(1, 2, 3, 2, 3, seed=1) * np.float32(0.9),
    }
    modes = {16: ("bilinear", "nearest", "bicubic"), 20: ("linear", "nearest", "cubic")}
    paddings = ("zeros", "border", "reflection")
    for opset, k, padding, align in product((16, 20), range(3), paddings, (0, 1)):
        mode = modes[opset][k]
        more = {"mode": mode, "padding_mode": padding, "align_corners": align}
        name = f"GridSample {opset} {mode} {padding} {align}"
        yield Case(name, "GridSample", opset, flat, more)
        if opset == 20 and mode != "cubic":
            yield Case(f"{name} deep", "GridSample", opset, deep, more)
    yield Case("GridSample defaults", "GridSample", 16, flat)
    empty = {"x": flat["x"], "grid": np.zeros((2, 0, 2, 2), np.float32)}
    yield Case("GridSample of no point", "GridSample", 16, empty)
    none = {"x": _draw(0, 2, 4, 5), "grid": np.zeros((0, 3, 2, 2), np.float32)}
    yield Case("GridSample of no image", "GridSample", 16, none)


def _unpooled() -> Iterator[Case]:
    x = _draw(1, 2, 2, 3)
    flat = np.array([1, 3, 9, 10, 16, 19, 21, 24, 27, 30, 33, 39]).reshape(1, 2, 2, 3)
    some: dict[str, Array | None] = {"x": x, "places": flat}
    for opset in (9, 11, 22):
        yield Case(
            f"MaxUnpool {opset}", "MaxUnpool", opset, some,
            {"kernel_shape": [2, 2], "strides": [2, 2]},
        )  # fmt: skip
    size = {"size": np.array([1, 2, 5, 7])}
    yield Case(
        "MaxUnpool output_shape", "MaxUnpool", 11, {**some, **size},
        {"kernel_shape": [2, 2], "strides": [2, 2]}, constants=("size",),
    )  # fmt: skip
    yield Case(
        "MaxUnpool output_shape data", "MaxUnpool", 11, {**some, **size},
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    )  # fmt: skip
    yield Case(
        "MaxUnpool pads", "MaxUnpool", 11, some,
        {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 0, 0]},
    )  # fmt: skip
    line = {"x": _draw(2, 1, 3), "places": np.array([[[0, 2, 5]], [[7, 9, 10]]])}
    yield Case("MaxUnpool line", "MaxUnpool", 11, line, {"kernel_shape": [2], "strides": [2]})
    yield Case("MaxUnpool stride 1", "MaxUnpool", 11, line, {"kernel_shape": [4]})


def _transposed() -> Iterator[Case]:
    w = _draw(2, 3, 3, 2, seed=1)
    w[1, 1, 0, 1] = np.inf
    w[0, 2, 2, 0] = np.nan
    flat: dict[str, Array | None] = {"x": _draw(2, 2, 4, 3), "w": w, "b": _draw(3, seed=2)}
    more: dict[str, dict[str, Any]] = {
        "strides": {"strides": [2, 3]},
        "pads": {"strides": [2, 2], "pads": [1, 0, 0, 1]},
        "dilations": {"strides": [2, 1], "dilations": [2, 3]},
        "output_padding": {"strides": [2, 3], "output_padding": [1, 2]},
        "output_shape": {"strides": [2, 2], "output_shape": [10, 7]},
        "upper shape": {"strides": [2, 2], "output_shape": [7, 5], "auto_pad": "SAME_UPPER"},
        "lower shape": {"strides": [2, 2], "output_shape": [7, 5], "auto_pad": "SAME_LOWER"},
        "upper": {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
        "lower": {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
        "valid": {"strides": [2, 2], "auto_pad": "VALID"},
    }
    for name, attributes in more.items():
        title = f"ConvTranspose not finite {name}"
        yield Case(title, "ConvTranspose", 11, flat, attributes, constants=("w",))
    groups: dict[str, Array | None] = {"x": _draw(1, 4, 4, 3), "w": _spoiled(4, 3, 2, 2)}
    yield Case(
        "ConvTranspose not finite groups", "ConvTranspose", 11, groups,
        {"group": 2, "strides": [2, 2]}, constants=("w",),
    )  # fmt: skip
    line: dict[str, Array | None] = {"x": _draw(2, 3, 5), "w": _spoiled(3, 2, 4)}
    yield Case(
        "ConvTranspose not finite line", "ConvTranspose", 11, line, {"strides": [3]},
        constants=("w",),
    )  # fmt: skip
    deep: dict[str, Array | None] = {"x": _draw(1, 2, 3, 2, 3), "w": _spoiled(2, 2, 2, 3, 2)}
    yield Case(
        "ConvTranspose not finite deep", "ConvTranspose", 11, deep, {"strides": [2, 1, 2]},
        constants=("w",),
    )  # fmt: skip


def _spoiled(*shape: int) -> Array:
    w = _draw(*shape, seed=1)
    w.reshape(-1)[[1, -2]] = np.inf, np.nan
    return w


def _col2im() -> Iterator[Case]:
    def case(name: str, x: Array, image: list[int], block: list[int], **more: Any) -> Case:
        inputs = {"x": x, "image": np.array(image), "block": np.array(block)}
        return Case(f"Col2Im {name}", "Col2Im", 18, inputs, more, constants=("image", "block"))

    yield case("plain", _draw(2, 6, 12), [3, 6], [2, 1])
    yield case("wide", _draw(1, 12, 12), [5, 5], [2, 3])
    yield case("strides", _draw(1, 12, 4), [5, 5], [2, 3], strides=[3, 2])
    yield case("pads", _draw(1, 6, 12), [3, 4], [3, 2], pads=[1, 0, 1, 1])
    yield case("dilations", _draw(2, 6, 6), [5, 4], [2, 3], dilations=[2, 1])
    yield case("line", _draw(2, 6, 4), [6], [3])
    yield case("deep", _draw(1, 8, 8), [3, 3, 3], [2, 2, 2])


def _deformed() -> Iterator[Case]:
    def case(name: str, groups: int = 1, masked: bool = True, **more: Any) -> Case:
        rows, columns = more.pop("out", (4, 3))
        inputs: dict[str, Array | None] = {
            "x": _draw(2, 4, 5, 4),
            "w": _draw(6, 4 // more.get("group", 1), 2, 2, seed=1),
            "offset": _draw(2, groups * 8, rows, columns, seed=2),
            "b": _draw(6, seed=3),
            "mask": _draw(2, groups * 4, rows, columns, seed=4) if masked else None,
        }
        more |= {"offset_group": groups} if groups > 1 else {}
        return Case(f"DeformConv {name}", "DeformConv", 19, inputs, more)

    yield case("plain")
    yield case("no mask", masked=False)
    yield case("groups", group=2)
    yield case("offset groups", groups=2)
    yield case("strides", strides=[2, 1], out=(2, 3))
    yield case("pads", pads=[1, 0, 1, 1], out=(6, 4))
    yield case("dilations", dilations=[2, 1], out=(3, 3))


# ---- signals -------------------------------------------------------------------------------------


def signals() -> Iterator[Case]:
    """Transforms of signals, windows and filter banks."""
    yield from _short_time()
    for opset in (17, 20):
        yield from _fourier(opset)
    for floor in (0.0, 100.0):
        inputs: dict[str, Array | None] = {
            "bins": np.array(6), "length": np.array(32), "rate": np.array(8000),
            "low": np.array(floor, np.float32), "high": np.array(3700, np.float32),
        }  # fmt: skip
        yield Case(f"MelWeightMatrix {floor}", "MelWeightMatrix", 17, inputs)
        more = {"output_datatype": TensorProto.DOUBLE}
        yield Case(f"MelWeightMatrix {floor} doubles", "MelWeightMatrix", 17, inputs, more)


def _short_time() -> Iterator[Case]:
    window = np.hanning(8).astype(np.float32)
    step, length = np.array(3), np.array(8)
    signals = {"rows": _draw(2, 23), "real": _draw(2, 23, 1), "complex": _draw(2, 23, 2)}
    for name, signal in signals.items():
        for sided in (0, 1):
            if name == "complex" and sided:
                continue
            for windowed, sized in ((True, True), (True, False), (False, True)):
                inputs: dict[str, Array | None] = {
                    "signal": signal,
                    "step": step,
                    "window": window if windowed else None,
                    "length": length if sized else None,
                }
                inputs = inputs if sized else {n: inputs[n] for n in ("signal", "step", "window")}
                title = f"STFT {name} {sided} {windowed} {sized}"
                given = tuple(n for n in ("step", "length") if inputs.get(n) is not None)
                more = {"onesided": sided}
                yield Case(title, "STFT", 17, inputs, more, constants=given)


def _fourier(opset: int) -> Iterator[Case]:
    for name, signal in (("real", _draw(2, 5, 4, 1)), ("complex", _draw(2, 5, 4, 2))):
        for axis, length, inverse, sided in product((1, 2), (None, 3, 7), (0, 1), (0, 1)):
            if sided and (inverse or name == "complex"):
                continue
            inputs: dict[str, Array | None] = {
                "x": signal,
                "length": None if length is None else np.array(length),
            }
            more: dict[str, Any] = {"inverse": inverse, "onesided": sided}
            if opset == 20:
                inputs["axis"] = np.array(axis)
            else:
                more["axis"] = axis
            title = f"DFT {opset} {name} {axis} {length} {inverse} {sided}"
            given = tuple(n for n in ("length", "axis") if inputs.get(n) is not None)
            yield Case(title, "DFT", opset, inputs, more, constants=given)


# ---- data-dependent extents, boxes, counts -------------------------------------------------------


def selections() -> Iterator[Case]:
    """Operators whose extents depend on data, and the rest of ONNX's own."""
    x = np.random.default_rng(1).integers(-2, 3, (4, 5)).astype(np.float32)
    some: dict[str, Array | None] = {"x": x}
    yield Case("NonZero", "NonZero", 13, some)
    yield Case("NonZero of nothing", "NonZero", 13, {"x": np.zeros((3, 0), np.float32)})
    rows = np.array([[1, 0, 1], [0, 2, 0], [1, 0, 1], [-1, 0, 1]], np.float32)
    names = ("y", "first", "back", "counts")
    for axis, order in product((None, 0, 1, -1), (0, 1)):
        more: dict[str, Any] = {"sorted": order} | ({} if axis is None else {"axis": axis})
        inputs: dict[str, Array | None] = {"x": rows}
        yield Case(f"Unique {axis} {order}", "Unique", 11, inputs, more, names)
    yield Case("Unique of nothing", "Unique", 11, {"x": np.zeros(0, np.float32)}, {}, names)
    yield Case("Compress flat", "Compress", 11, {**some, "keep": np.array([1, 0, 1], bool)})
    keep = {"keep": np.array([1, 0, 0, 1], bool)}
    yield Case("Compress axis", "Compress", 11, {**some, **keep}, {"axis": 1})
    yield Case("Det", "Det", 11, {"x": _draw(2, 3, 4, 4)})
    yield Case("Det of one", "Det", 11, {"x": _draw(3, 3)})
    boxes = np.random.default_rng(2).uniform(0, 9, (2, 7, 4)).astype(np.float32)
    inputs = {
        "boxes": boxes,
        "scores": np.random.default_rng(3).permutation(42).reshape(2, 3, 7).astype(np.float32),
        "most": np.array([2]),
        "limit": np.array([0.3], np.float32),
        "floor": np.array([5], np.float32),
    }
    for opset, centered in product((10, 11), (0, 1)):
        more = {"center_point_box": centered}
        title = f"NonMaxSuppression {opset} {centered}"
        yield Case(title, "NonMaxSuppression", opset, inputs, more)
    yield from _counted_words()


def _counted_words() -> Iterator[Case]:
    words: dict[str, Array | None] = {
        "x": np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]], np.int32)
    }
    base = {
        "ngram_counts": [0, 4], "ngram_indexes": [0, 1, 2, 3, 4, 5, 6],
        "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7],
    }  # fmt: skip
    for mode, least, most, skips in (
        ("TF", 1, 1, 0), ("TF", 2, 2, 0), ("TF", 1, 2, 0), ("TF", 2, 2, 5), ("IDF", 1, 2, 1),
        ("TFIDF", 1, 2, 5),
    ):  # fmt: skip
        more = {
            **base, "mode": mode, "min_gram_length": least, "max_gram_length": most,
            "max_skip_count": skips, "weights": [0.5, 2.0, 1.5, 3.0, 0.25, 4.0, 1.0],
        }  # fmt: skip
        title = f"TfIdfVectorizer {mode} {least} {most} {skips}"
        yield Case(title, "TfIdfVectorizer", 9, words, more)
        line: dict[str, Array | None] = {"x": np.array([8, 6, 7, 5, 6, 8], np.int64)}
        yield Case(f"{title} line", "TfIdfVectorizer", 9, line, more)


def every() -> list[Case]:
    """All cases."""
    return [*recurrences(), *images(), *signals(), *selections()]
