"""Half types are rounded once per operator, wherever kernels are cut: drawn models, every plan, every target."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

from fissile import pipeline
from fissile.fission import fission
from fissile.frontend import read_model
from fissile.ir.dtype import FLOAT64, dtype
from fissile.ir.graph import Graph, evaluate, make
from fissile.ir.primitive import PRIMITIVES, cast
from fissile.options import Options
from fissile.orchestrate.candidates import Limits, candidates_of
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.orchestrate import choose, plan_of, problem_of
from fissile.orchestrate.plan import Plan
from fissile.rewrite import canonicalize
from fissile.target import Target
from tests.codegen.harness import targets
from tests.e2e import machine
from tests.e2e.half import BF16, F16, NUMPY, ROWS, drawn, expected, ulps, with_all_outputs

Array = np.ndarray[Any, Any]
LIMITS = Limits(per_sink=12, largest=8)
VALUES = {"n": ROWS}
EXACT = frozenset(  # the same bits in numpy and in machine code; which zero is larger is nobody's concern
    ["input", "constant", "iota", "extents", "add", "sub", "mul", "div", "neg", "abs"]
    + ["sqrt", "floor", "ceil", "rint", "trunc", "eq", "ne", "lt", "le", "gt", "ge", "and", "or"]
    + ["xor", "not", "select", "cast", "broadcast", "window", "reshape", "transpose", "slice"]
    + ["concat", "pad", "dilate", "gather"]
)


def test_drawn_models(request: pytest.FixtureRequest) -> None:
    end = time.monotonic() + float(request.config.getoption("--fuzz-seconds"))
    first = seed = int(request.config.getoption("--fuzz-seed"))
    while time.monotonic() < end:
        try:
            check(seed)
        except BaseException:
            print(f"rerun with --fuzz-seed {seed}")
            raise
        seed += 1
    print(f"{seed - first} models")


def check(seed: int) -> None:
    """All meanings of the model that this seed draws."""
    model, feeds = drawn(seed)
    operator_by_operator(model, feeds)
    graph = canonicalize(fission(read_model(model))).graph
    given = {name: _bits(a) for name, a in feeds.items()}
    with np.errstate(all="ignore"):
        want = evaluate(graph, given, VALUES)
    is_exact = all(n.name in EXACT for n in graph.nodes())
    seen: dict[str, dict[str, Array]] = {}
    for target in targets():
        found = {who: outputs(plan, target, given) for who, plan in plans(graph, seed).items()}
        first = found["greedy"]
        for who, got in found.items():
            for name, node in graph.outputs:
                assert_bits(got[name], first[name], node.dtype.name, f"{seed} {target.name} {who} {name}")
                if is_exact:
                    assert_bits(got[name], want[name], node.dtype.name, f"{seed} {who} {name}: numpy")
        seen[target.name] = first
    if is_exact:
        for name, node in graph.outputs:
            arrays = [got[name] for got in seen.values()]
            for other in arrays[1:]:
                assert_bits(arrays[0], other, node.dtype.name, f"{seed} {name}: targets")


def operator_by_operator(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> None:
    """Every operator of the primitive graph gives what it gives in float32, rounded once."""
    whole = with_all_outputs(model)
    graph = fission(read_model(whole))
    with np.errstate(all="ignore"):
        found = evaluate(graph, {n: _bits(a) for n, a in feeds.items()}, VALUES)
    types = {v.name: v.type.tensor_type.elem_type for v in (*whole.graph.output, *whole.graph.input)}
    known: dict[str, Array] = dict(feeds)
    known.update({t.name: onnx.numpy_helper.to_array(t) for t in whole.graph.initializer})
    known.update({n: a.view(NUMPY[types[n]]) for n, a in found.items()})
    for node in whole.graph.node:
        inputs = [known[n] for n in node.input]
        name = node.output[0]
        got, want = known[name], expected(node, inputs, types[name])
        assert got.shape == want.shape, f"{node.op_type}: {got.shape}, not {want.shape}"
        far = distance(got, want, inputs)
        if node.op_type == "QuantizeLinear":
            far = np.where(np.isnan(inputs[0].astype(np.float32)), 0, far)
        assert not np.any(far > 1), (
            f"{node.op_type} of {[i.dtype for i in inputs]}: {got[far > 1][:5]}, not {want[far > 1][:5]}"
        )


def distance(got: Array, want: Array, inputs: list[Array]) -> Array:
    """In steps of a half type, or in what float32 may be off where large numbers cancel."""
    with np.errstate(all="ignore"):
        wide = [np.abs(np.asarray(a, np.float64)) for a in (*inputs, want)]
        scale = max(float(np.max(w[np.isfinite(w)], initial=0)) for w in wide)
        a, b = np.asarray(got, np.float64), np.asarray(want, np.float64)
        slack = 4e-6 * scale if got.dtype != np.float64 else 1e-13 * scale
        near = (a == b) | (np.abs(a - b) <= slack) | (np.isnan(a) & np.isnan(b))
        near |= np.abs(a - b) <= 3e-6 * np.abs(b) if got.dtype == np.float32 else a == b
    far = ulps(got, want) if got.dtype in (np.float16, NUMPY[BF16]) else np.where(near, 0, 9)
    return np.where(near, 0, far)


# ---------------------------------------------------------------- plans


def plans(graph: Graph, seed: int) -> dict[str, Plan]:
    """The greedy plan, one kernel per primitive, kernels cut by chance, and what the compiler chooses."""
    found = candidates_of(greedy_plan(graph), LIMITS)
    rng = random.Random(seed)
    single = [float(len(c.executes) ** 3) for c in found.all]
    chance = [(0.5 + rng.random()) * len(c.executes) ** rng.random() for c in found.all]
    made = {"greedy": greedy_plan(graph)}
    for who, costs in (("one by one", single), ("by chance", chance)):
        made[who] = plan_of(found, choose(problem_of(found, costs), found.greedy))
    work = pipeline.Work(b"", None, (targets()[0],), 1, Options(), graph=graph)
    work = pipeline.plan_kernels(pipeline.substitute_graph(work))
    made["chosen"] = work.known("plan")
    return made


def outputs(plan: Plan, target: Target, feeds: Mapping[str, Array]) -> dict[str, Array]:
    work = pipeline.Work(b"", None, (target,), 1, Options(), graph=plan.graph, plan_given=plan)
    for stage in (pipeline.plan_kernels, pipeline.lower_kernels, pipeline.emit_text):
        work = stage(work)
    return machine.run(machine.build(work), VALUES, feeds, 1, lead=False)


# ---------------------------------------------------------------- bits


def _bits(a: Array) -> Array:
    return a.view(np.uint16) if a.dtype == NUMPY[BF16] else a


def assert_bits(a: Array, b: Array, of: str, who: str) -> None:
    """Equal, any NaN for a NaN."""
    a, b = (x.view(NUMPY[BF16]) if of == "bfloat16" else x for x in (a, b))
    if of in ("float16", "bfloat16", "float32", "float64"):
        wide = [np.asarray(x, np.float64) for x in (a, b)]
        same = np.isnan(wide[0]) & np.isnan(wide[1])
        same |= (wide[0] == wide[1]) & (np.signbit(wide[0]) == np.signbit(wide[1]))
    else:
        same = np.asarray(a == b)
    assert same.all(), f"{who}: {(~same).sum()} of {same.size} differ, {a[~same][:5]}, {b[~same][:5]}"


# ---------------------------------------------------------------- by hand


def bits_of_plans(graph: Graph, feeds: Mapping[str, Array]) -> None:
    """Every plan gives the bits of the greedy one."""
    for target in targets():
        found = {who: outputs(plan, target, feeds) for who, plan in plans(graph, 5).items()}
        for who, got in found.items():
            for name, node in graph.outputs:
                assert_bits(got[name], found["greedy"][name], node.dtype.name, f"{who} {name}")


@pytest.mark.parametrize("of", ["float16", "float32"])
def test_a_sum_does_not_depend_on_what_else_its_kernel_computes(of: str) -> None:
    """Neither on float64 beside it, nor on whether the products that it adds are stored."""
    rng = np.random.default_rng(2)
    x = make(PRIMITIVES["input"], name="x", dtype="float32", shape=(37, 211))
    rows = make(PRIMITIVES["reduce_sum"], x, axes=(1,))
    again = make(PRIMITIVES["broadcast"], make(PRIMITIVES["reshape"], rows, shape=(37, 1)), shape=x.shape)
    beside = make(PRIMITIVES["mul"], cast(x, FLOAT64), cast(again, FLOAT64))
    columns = make(PRIMITIVES["reduce_sum"], make(PRIMITIVES["mul"], x, x), axes=(0,))
    out = [cast(n, dtype(of)) for n in (rows, columns)]
    graph = Graph((x,), (("rows", out[0]), ("columns", out[1]), ("beside", beside)))
    bits_of_plans(graph, {"x": rng.standard_normal((37, 211)).astype(np.float32)})


@pytest.mark.parametrize("keys", [40, 9000])
def test_attention_of_a_half_type_rounds_its_scores(keys: int) -> None:
    """Rows that no memory holds are not taken in pieces, either."""
    rng = np.random.default_rng(3)
    shapes = {"q": (1, 2, 5, 32), "k": (1, 2, 32, keys), "v": (1, 2, keys, 32)}
    infos = [onnx.helper.make_tensor_value_info(n, F16, s) for n, s in shapes.items()]
    nodes = [
        onnx.helper.make_node("MatMul", ["q", "k"], ["scores"]),
        onnx.helper.make_node("Softmax", ["scores"], ["rows"], axis=-1),
        onnx.helper.make_node("MatMul", ["rows", "v"], ["y"]),
    ]
    graph = onnx.helper.make_graph(nodes, "g", infos, [onnx.ValueInfoProto(name="y")])
    opset = [onnx.helper.make_opsetid("", 21)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=10)
    feeds = {n: rng.standard_normal(s).astype(np.float16) for n, s in shapes.items()}
    operator_by_operator(model, feeds)
    bits_of_plans(canonicalize(fission(read_model(model))).graph, feeds)
