"""The stitched program: `bind` computes what the extents say, for every slot, at any values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import fissile
from fissile.codegen.main import BIND, Launch, Memory, dim_expr, expr_dim, stitch
from fissile.errors import FissileError, ModelError
from fissile.ir import loop as L
from fissile.ir.dim import Dim, DimLike, ceildiv, evaluate, max_, min_, symbol
from fissile.ir.graph import Graph, make
from fissile.ir.interpret import interpret, run_expr
from fissile.ir.primitive import PRIMITIVES
from fissile.target import named
from tests.e2e.draw import Case, cases
from tests.e2e.machine import build, lowered

A, B = symbol("a"), symbol("b")
NAMES = {"a": L.var("a"), "b": L.var("b")}
V3 = named("x86-64-v3")


@st.composite
def extents(draw: st.DrawFn, depth: int = 3) -> DimLike:
    """An expression over a and b whose divisors are positive."""
    if depth == 0 or draw(st.booleans()):
        leaves: list[DimLike] = [A, B, 1, 2, 7, 16]
        leaf: DimLike = draw(st.sampled_from(leaves))
        return leaf
    x, y = draw(extents(depth - 1)), draw(extents(depth - 1))
    kind = draw(st.sampled_from(["+", "-", "*", "//", "%", "ceil", "min", "max"]))
    divisor = max_(1, y)
    made: dict[str, DimLike] = {
        "+": x + y, "-": x - y, "*": x * y, "//": x // divisor, "%": x % divisor,
        "ceil": ceildiv(x, divisor), "min": min_(x, y), "max": max_(x, y),
    }  # fmt: skip
    return made[kind]


@settings(max_examples=200, deadline=None)
@given(extents(), st.integers(0, 100), st.integers(0, 100))
def test_an_extent_as_code_has_its_value_and_comes_back(d: DimLike, a: int, b: int) -> None:
    expression = dim_expr(d, NAMES)
    values = {"a": a, "b": b}
    want = evaluate(d, values) if isinstance(d, Dim) else d
    assert run_expr(expression, {NAMES[k]: v for k, v in values.items()}) == want
    back = expr_dim(expression, {NAMES["a"]: A, NAMES["b"]: B})
    assert (evaluate(back, values) if isinstance(back, Dim) else back) == want


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases())
def test_bind_fills_every_slot_that_depends_on_the_shape(case: Case) -> None:
    work = lowered(case.graph, V3)
    built = build(work)
    plan = built.plan
    assert plan["slots"] == len(plan["template"])
    for values in case.assignments:
        slots = np.array(plan["template"], np.int64)
        given_values = np.array([values[s["name"]] for s in plan["symbols"]] or [0], np.int64)
        interpret(built.bind, {"symbols": given_values, "slots": slots})
        for (_, row), launch in zip(work.loops[0].lowered, plan["launches"], strict=True):
            assert slots[launch["tasks"]] == _number(row.tasks, values)
            for k, argument in enumerate(row.arguments):
                if isinstance(argument, Dim | int):
                    assert slots[launch["first"] + k] == _number(argument, values)
        for info, (_, node) in zip(plan["outputs"], work.known("plan").graph.outputs, strict=True):
            assert [slots[s] for s in info["slots"]] == [_number(d, values) for d in node.shape]


def _number(d: DimLike, values: dict[str, int]) -> int:
    return evaluate(d, values) if isinstance(d, Dim) else d


def test_a_dimension_that_no_input_gives_is_refused() -> None:
    x = make(PRIMITIVES["input"], name="x", dtype="float32", shape=(A * B,))
    graph = Graph((x,), (("y", make(PRIMITIVES["neg"], x)),))
    with pytest.raises(ValueError, match="no input gives the dimension a"):
        stitch(graph, [], Memory({}, {}, (), ()))


def test_an_extent_is_shown_by_its_name_and_an_unnamed_one_not_at_all() -> None:
    shape = (A, symbol("x:1"), 2 * B, 3)
    x = make(PRIMITIVES["input"], name="x", dtype="float32", shape=shape)
    graph = Graph((x,), (("y", make(PRIMITIVES["neg"], x)),))
    launch = Launch("k0", (x, 5), 1, 0, ())
    plan, bind = stitch(graph, [launch], Memory({}, {}, (), (64, 128)))
    assert plan["inputs"][0]["shape"] == ["a", None, "2*b", 3]
    assert [(s["name"], s["axis"], s["scale"]) for s in plan["symbols"]] == [
        ("a", 0, 1), ("x:1", 1, 1), ("b", 2, 2),
    ]  # fmt: skip
    assert bind.name == BIND


def test_sizes_that_are_no_64_bit_number_are_more_memory_than_there_is() -> None:
    """Else a wrapped size is small, and kernels write beside it."""
    n = helper.make_node
    axes = {"i12": [1, 2], "i02": [0, 2], "i01": [0, 1], "one": 0}
    nodes = [
        n("Unsqueeze", ["x", "i12"], ["a"]), n("Unsqueeze", ["y", "i02"], ["b"]),
        n("Unsqueeze", ["z", "i01"], ["c"]), n("Mul", ["a", "b"], ["d"]), n("Mul", ["d", "c"], ["e"]),
        n("CumSum", ["e", "one"], ["f"]), n("Neg", ["f"], ["g"]),
    ]  # fmt: skip
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"n{name}"]) for name in "xyz"
    ]
    held = [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in axes.items()]
    output = helper.make_tensor_value_info("g", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", inputs, [output], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    executable = fissile.compile(model, threads=1, cache=False)
    asked = dict.fromkeys(("nx", "ny", "nz"), 1 << 10)
    assert executable.memory(asked).arena >= 4 << 30
    for bits in (18, 21, 22, 31, 40, 61):
        asked = dict.fromkeys(("nx", "ny", "nz"), 1 << bits)
        with pytest.raises(FissileError, match="F211"):
            executable.memory(asked)
    feeds = {name: np.zeros(1 << 21, np.float32) for name in "xyz"}
    with pytest.raises(FissileError, match="F211"):
        executable.run(feeds)
    assert executable.run({name: np.ones(3, np.float32) for name in "xyz"})["g"].sum() == -54


def test_extents_beyond_all_memory_are_refused_when_compiling() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("Expand", ["u", "s"], ["y"], name="the_expand")
    up = helper.make_node("Unsqueeze", ["x", "a"], ["u"])
    axes = numpy_helper.from_array(np.array([2], np.int64), "a")
    ones = numpy_helper.from_array(np.array([1, 1, 1 << 62], np.int64), "s")
    graph = helper.make_graph([up, node], "g", [x], [y], [axes, ones])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for ask in (fissile.check, lambda m: fissile.compile(m, cache=False)):
        with pytest.raises(ModelError, match="F019") as caught:
            ask(model)
        assert caught.value.where[0].node == "the_expand"
