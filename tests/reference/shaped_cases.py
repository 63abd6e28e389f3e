"""Cases of operators that are native where shapes are known, and in Python where the data of a call decides them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tests.reference.cases import Array, Case

X = np.random.default_rng(5).normal(size=(3, 4, 5)).astype(np.float32)
IMAGE = np.random.default_rng(6).normal(size=(1, 2, 5, 4)).astype(np.float32)


def _ints(*values: int) -> Array:
    return np.array(values, np.int64)


def shaped() -> Iterator[Case]:
    """All of them."""
    yield from _layouts()
    yield from _reductions()
    yield from _pads()
    yield from _resized()


def _case(kind: str, name: str, opset: int, inputs: Mapping[str, Array | None], **more: Any) -> Case:
    outputs = more.pop("outputs", ("y",))
    return Case(f"{kind} by data {name}", kind, opset, inputs, more, outputs)


def _layouts() -> Iterator[Case]:
    x: dict[str, Array | None] = {"x": X}
    for shape in ((12, 5), (0, -1), (3, 2, 10)):
        yield _case("Reshape", f"{shape}", 14, {**x, "shape": _ints(*shape)})
    empty = {"x": np.zeros((0, 4), np.float32), "shape": _ints(2, 0, 3)}
    yield _case("Reshape", "allowzero", 14, empty, allowzero=1)
    yield _case("Expand", "", 13, {"x": X[:, :1], "shape": _ints(2, 1, 4, 1)})
    yield _case("Tile", "", 13, {**x, "repeats": _ints(2, 1, 3)})
    for name, parts in {
        "plain": ((1, 0), (3, 4)), "negative": ((-2, -3), (-1, 100)), "backwards": ((2, -1), (-9, 0)),
        "empty": ((2, 3), (1, 2)),
    }.items():  # fmt: skip
        steps = _ints(-1, -2) if name == "backwards" else _ints(1, 2)
        bounds = {"starts": _ints(*parts[0]), "ends": _ints(*parts[1]), "axes": _ints(0, 2)}
        yield _case("Slice", name, 13, {**x, **bounds, "steps": steps})
    yield _case("Range", "up", 11, {"a": np.array(2), "b": np.array(11), "c": np.array(3)})
    yield _case("Range", "down", 11, {n: np.array(v, np.float32) for n, v in
                                      (("a", 2.5), ("b", -3.0), ("c", -0.75))})  # fmt: skip
    yield _case("ConstantOfShape", "", 9, {"shape": _ints(2, 0, 3)})
    yield _case("OneHot", "", 11, {"i": np.array([[0, -1], [4, 7]]), "depth": np.array(5),
                                   "values": np.array([2.0, 3.0], np.float32)}, axis=1)  # fmt: skip
    yield _case("Split", "", 13, {**x, "sizes": _ints(1, 3, 0)}, axis=1, outputs=("a", "b", "c"))
    yield _case("Squeeze", "", 13, {"x": X[:, :1], "axes": _ints(-2)})
    yield _case("Unsqueeze", "", 13, {**x, "axes": _ints(-1, 1)})
    for size in ((2, 7), (6, 3)):
        yield _case("CenterCropPad", f"{size}", 18, {**x, "size": _ints(*size)}, axes=[0, 2])


def _reductions() -> Iterator[Case]:
    for kind in (
        "Sum",
        "Mean",
        "Max",
        "Min",
        "Prod",
        "L1",
        "L2",
        "LogSum",
        "LogSumExp",
        "SumSquare",
    ):
        opset = 13 if kind == "Sum" else 18
        x = np.abs(X) + np.float32(0.1)
        for keep, axes in ((0, (1,)), (1, (-1, 0)), (1, ())):
            more = {"keepdims": keep}
            name = f"{keep} {axes}"
            yield _case(f"Reduce{kind}", name, opset, {"x": x, "axes": _ints(*axes)}, **more)
        yield _case(
            f"Reduce{kind}", "nothing", opset, {"x": x, "axes": _ints()}, noop_with_empty_axes=1
        )
    for largest, axis in ((0, 0), (1, -1)):
        yield _case("TopK", f"{largest} {axis}", 11, {"x": X, "k": _ints(2)}, largest=largest, axis=axis,
                    outputs=("v", "i"))  # fmt: skip
    for exclusive, reverse in ((0, 0), (1, 0), (0, 1), (1, 1)):
        yield _case("CumSum", f"{exclusive} {reverse}", 14, {"x": X, "axis": np.array(-2)},
                    exclusive=exclusive, reverse=reverse)  # fmt: skip
    for upper, k in ((0, 1), (1, -2), (1, 9)):
        yield _case("Trilu", f"{upper} {k}", 14, {"x": X, "k": np.array(k)}, upper=upper)


def _pads() -> Iterator[Case]:
    for mode in ("constant", "edge", "reflect"):
        for pads in ((1, 0, 2, 0, 1, 1), (0, 2, 1, 1, 0, 3), (-1, 0, 1, 0, 1, -2)):
            yield _case("Pad", f"{mode} {pads}", 13, {"x": X, "pads": _ints(*pads)}, mode=mode)
    filled = {
        "x": X,
        "pads": _ints(1, 2, 0, 1),
        "value": np.array(7, np.float32),
        "axes": _ints(0, -1),
    }
    yield _case("Pad", "axes", 18, filled)
    yield _case("Pad", "wrap", 19, {"x": X, "pads": _ints(1, 0, 2, 0, 1, 1)}, mode="wrap")


def _resized() -> Iterator[Case]:
    for mode in ("nearest", "linear", "cubic"):
        for how in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
            sizes: dict[str, Array | None] = {
                "x": IMAGE, "roi": None, "scales": None, "sizes": _ints(1, 2, 7, 6),
            }  # fmt: skip
            more = {"mode": mode, "coordinate_transformation_mode": how}
            yield _case("Resize", f"sizes {mode} {how}", 13, sizes, **more)
            scales: dict[str, Array | None] = {
                "x": IMAGE, "roi": None, "scales": np.array([1, 1, 0.6, 1.5], np.float32),
            }  # fmt: skip
            yield _case("Resize", f"scales {mode} {how}", 13, scales, **more)
    up = {"x": IMAGE, "scales": np.array([1, 1, 2, 3], np.float32)}
    for mode in ("nearest", "linear"):
        yield _case("Upsample", mode, 9, up, mode=mode)
