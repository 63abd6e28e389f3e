"""Checks of models with operators in Python, run in a child process: `python -m tests.e2e.foreign_checks FOLDER`.

Out: one JSON object, the name of every check -> "" or what went wrong. Every model is compiled, saved, and run against
onnxruntime with nothing optimised.
"""

from __future__ import annotations

import json
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from ml_dtypes import bfloat16
from onnx import TensorProto, helper, numpy_helper

import fissile
from fissile.errors import CompileError, FissileWarning, InvalidFeed, UnsupportedError
from tests.fission.oracle import reference, same

Array = npt.NDArray[Any]
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
RNG = np.random.default_rng(7)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[tuple[str, int, Sequence[int | str]]],
    outputs: Sequence[tuple[str, int, Sequence[int | str]]],
    constants: dict[str, Array] | None = None,
) -> onnx.ModelProto:
    """A model of opset 17."""
    infos = [[helper.make_tensor_value_info(*v) for v in values] for values in (inputs, outputs)]
    weights = [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(nodes, "checks", *infos, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def chosen() -> onnx.ModelProto:
    """Elements above zero, their squares and sum, the largest two: native, Python, native, Python, native."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Unique", ["r"], ["u", "", "", "counts"], name="unique"),
        helper.make_node("Mul", ["u", "u"], ["squares"]),
        helper.make_node("ReduceSum", ["squares"], ["total"], keepdims=0),
        helper.make_node("Shape", ["u"], ["count"]),
        helper.make_node("Mul", ["x", "total"], ["scaled"]),
        helper.make_node("Compress", ["scaled", "keep"], ["kept"], axis=0, name="compress"),
        helper.make_node("Add", ["kept", "total"], ["y"]),
        helper.make_node("Neg", ["squares"], ["z"]),
    ]
    outputs: list[tuple[str, int, Sequence[int | str]]] = [
        ("y", FLOAT, ["a", 5]),
        ("z", FLOAT, ["b"]),
        ("count", INT64, [1]),
        ("counts", INT64, ["b"]),
        ("total", FLOAT, []),
    ]
    return model(nodes, [("x", FLOAT, ["n", 5]), ("keep", BOOL, ["n"])], outputs)


def looped() -> onnx.ModelProto:
    """A Loop whose number of turns is data, with a value from around it and stacked results."""
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["state", "outer"], ["scaled"]),
            helper.make_node("Add", ["scaled", "outer"], ["next"]),
            helper.make_node("ReduceSum", ["next"], ["sum"], keepdims=0),
            helper.make_node("Identity", ["going"], ["goes"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", INT64, []),
            helper.make_tensor_value_info("going", BOOL, []),
            helper.make_tensor_value_info("state", FLOAT, [3]),
        ],
        [
            helper.make_tensor_value_info("goes", BOOL, []),
            helper.make_tensor_value_info("next", FLOAT, [3]),
            helper.make_tensor_value_info("sum", FLOAT, []),
        ],
    )
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["outer"]),
        helper.make_node("Exp", ["x"], ["start"]),
        helper.make_node("Loop", ["turns", "", "start"], ["last", "sums"], body=body, name="loop"),
        helper.make_node("Add", ["last", "outer"], ["y"]),
        helper.make_node("Neg", ["sums"], ["z"]),
    ]
    inputs: list[tuple[str, int, Sequence[int | str]]] = [("x", FLOAT, [3]), ("turns", INT64, [])]
    return model(nodes, inputs, [("y", FLOAT, [3]), ("z", FLOAT, ["t"])])


def grown() -> onnx.ModelProto:
    """A tensor from before the call is read after it, beside tensors whose size the call decides."""
    nodes = [
        helper.make_node("Exp", ["x"], ["early"]),
        helper.make_node("Neg", ["early"], ["negative"]),
        helper.make_node("Unique", ["long"], ["values"], name="unique"),
        helper.make_node("Unsqueeze", ["values", "axis"], ["column"]),
        helper.make_node("Mul", ["column", "early"], ["table"]),
        helper.make_node("Softmax", ["table"], ["soft"], axis=0),
        helper.make_node("MatMul", ["soft", "square"], ["product"]),
        helper.make_node("Add", ["product", "negative"], ["y"]),
    ]
    constants = {"axis": np.array([1]), "square": RNG.normal(size=(7, 7)).astype(np.float32)}
    inputs: list[tuple[str, int, Sequence[int | str]]] = [
        ("x", FLOAT, [7]),
        ("long", FLOAT, ["n"]),
    ]
    return model(nodes, inputs, [("y", FLOAT, ["k", 7])], constants)


def branched() -> onnx.ModelProto:
    """An If on data, one of whose branches has an operator that runs in Python."""
    shape = helper.make_tensor_value_info("r", FLOAT, ["k"])
    branches = [
        helper.make_graph([helper.make_node("Unique", ["x"], ["r"])], "then", [], [shape]),
        helper.make_graph([helper.make_node("Neg", ["x"], ["r"])], "else", [], [shape]),
    ]
    nodes = [
        helper.make_node(
            "If", ["c"], ["r"], then_branch=branches[0], else_branch=branches[1], name="if"
        ),
        helper.make_node("Exp", ["r"], ["y"]),
    ]
    inputs: list[tuple[str, int, Sequence[int | str]]] = [("x", FLOAT, ["n"]), ("c", BOOL, [])]
    return model(nodes, inputs, [("y", FLOAT, ["k"])])


def agree(made: onnx.ModelProto, feeds: Sequence[dict[str, Array]], names: set[str]) -> None:
    """The right values at 1 and 2 threads, the same bits, and after loading the saved artifact."""
    one = fissile.compile(made, threads=1, cache=False, foreign="allow")
    assert set(one.foreign) == names, one.foreign
    path = Path(sys.argv[1]) / "saved.fsl"
    one.save(path)
    executables = [one, one.with_threads(2), fissile.load(path, threads=1)]
    for feed in feeds:
        wanted = reference(made, feed)
        results = [list(e.run(feed).values()) for e in executables]
        for got in results:
            pairs = zip(got, wanted, strict=True)
            assert all(same(a, b) for a, b in pairs), f"{got} is not {wanted}"
            assert all(a.tobytes() == b.tobytes() for a, b in zip(got, results[0])), "other bits"


def some(n: int) -> dict[str, Array]:
    """Feeds for `chosen`."""
    return {
        "x": RNG.integers(-3, 4, (n, 5)).astype(np.float32),
        "keep": RNG.integers(0, 2, n).astype(bool),
    }


def check_extents_of_data() -> None:
    """Extents that depend on data, at shapes that grow and shrink."""
    agree(chosen(), [some(n) for n in (3, 1, 40, 2, 0 + 1, 17)], {"unique", "compress"})


def check_loop() -> None:
    """A loop of many turns, of one, and of none."""
    x = RNG.normal(size=3).astype(np.float32)
    agree(looped(), [{"x": x, "turns": np.array(t)} for t in (3, 1, 0, 5)], {"loop"})


def check_arena() -> None:
    """What was written before the arena grew is still there."""
    feeds = [
        {"x": RNG.normal(size=7).astype(np.float32), "long": RNG.normal(size=n).astype(np.float32)}
        for n in (2, 3000, 5, 40_000)
    ]
    agree(grown(), feeds, {"unique"})


def check_branch() -> None:
    """Only the branch taken runs."""
    x = RNG.integers(0, 3, 9).astype(np.float32)
    agree(branched(), [{"x": x, "c": np.array(c)} for c in (True, False)], {"if"})


def check_callers() -> None:
    """Several callers at once, each with shapes of its own."""
    executable = fissile.compile(chosen(), threads=1, cache=False, foreign="allow")
    feeds = [some(n) for n in (3, 9, 20, 50)]
    wanted = [executable.run(f) for f in feeds]
    wrong: list[str] = []

    def call(k: int) -> None:
        for _ in range(10):
            got = executable.run(feeds[k])
            wrong.extend(n for n in got if got[n].tobytes() != wanted[k][n].tobytes())

    threads = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


def check_out() -> None:
    """Arrays to write into, also where the extent is known during the run only."""
    executable = fissile.compile(chosen(), threads=1, cache=False, foreign="allow")
    feed = some(8)
    want = executable.run(feed)
    out = {"z": np.empty_like(want["z"]), "total": np.empty((), np.float32)}
    got = executable.run(feed, out=out)
    assert got["z"] is out["z"]
    assert np.array_equal(out["z"], want["z"])
    assert np.array_equal(out["total"], want["total"])
    with pytest.raises(InvalidFeed) as caught:
        executable.run(feed, out={"z": np.empty(999, np.float32)})
    assert caught.value.code == "F208"


def check_said() -> None:
    """Foreign operators are named: in the profile, in a warning, in a refusal, by check."""
    executable = fissile.compile(chosen(), threads=1, cache=False, foreign="allow")
    profile = executable.profile(some(5), runs=2)
    assert {"unique", "compress"} <= set(profile.by_node()), profile.by_node()
    assert (profile.seconds >= 0).all()
    assert profile.seconds.shape[0] == 2
    support = fissile.check(chosen())
    assert [p.node for p in support.foreign] == ["unique", "compress"]
    assert not support.unsupported
    with pytest.raises(UnsupportedError) as caught:
        fissile.compile(chosen(), cache=False, foreign="error")
    assert [p.node for p in caught.value.where] == ["unique", "compress"]
    with pytest.warns(FissileWarning, match=r"2 operators run in Python, .*unique \(Unique\)"):
        fissile.compile(chosen(), cache=False)


def check_failure() -> None:
    """An operator whose result is not of the rank that the model declares is one error that names it."""
    nodes = [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0, name="bad")]
    inputs: list[tuple[str, int, Sequence[int | str]]] = [
        ("x", FLOAT, [3, 4]),
        ("axes", INT64, ["k"]),
    ]
    made = model(nodes, inputs, [("y", FLOAT, ["m"])])
    executable = fissile.compile(made, cache=False, foreign="allow")
    x = RNG.normal(size=(3, 4)).astype(np.float32)
    got = executable.run({"x": x, "axes": np.array([0])})["y"]
    np.testing.assert_allclose(got, x.sum(0), rtol=1e-5)
    with pytest.raises(CompileError) as caught:
        executable.run({"x": x, "axes": np.array([0, 1])})
    assert caught.value.code == "F310"
    assert caught.value.where[0].node == "bad"


def check_half() -> None:
    """A half type goes to Python as float32 and is rounded once when it comes back."""
    for code, kind in ((TensorProto.FLOAT16, np.float16), (TensorProto.BFLOAT16, bfloat16)):
        nodes = [
            helper.make_node("Det", ["x"], ["d"], name="det"),
            helper.make_node("Unique", ["d"], ["u"], name="unique"),
            helper.make_node("Mul", ["u", "u"], ["y"]),
        ]
        made = model(nodes, [("x", code, ["n", 4, 4])], [("u", code, ["m"]), ("y", code, ["m"])])
        executable = fissile.compile(made, threads=1, cache=False, foreign="allow")
        x = RNG.standard_normal((5, 4, 4)).astype(kind)
        with np.errstate(all="ignore"):
            exact = np.unique(np.linalg.det(x.astype(np.float32)).astype(kind).astype(np.float32))
        got = executable.run({"x": x})
        assert got["u"].dtype == got["y"].dtype == kind
        assert np.array_equal(got["u"].astype(np.float32), exact), got["u"]
        want = (exact * exact).astype(kind)
        assert np.array_equal(got["y"].astype(np.float32), want.astype(np.float32)), got["y"]


CHECKS: dict[str, Callable[[], None]] = {
    name.removeprefix("check_"): value
    for name, value in list(globals().items())
    if name.startswith("check_")
}


def main() -> None:
    """Run all checks and print what went wrong."""
    found = {}
    for name, check in CHECKS.items():
        try:
            check()
            found[name] = ""
        except (AssertionError, RuntimeError, ValueError, TypeError, LookupError):
            found[name] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
