"""Plans of graphs whose extents depend on data: a kernel comes behind the calls that tell where it writes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from onnx import TensorProto, helper

from fissile import pipeline
from fissile.codegen.main import Launch, stitch
from fissile.errors import ArtifactError, OptionError
from fissile.options import Options
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.plan import Anchor, Plan, Step, needed_symbols, verify
from fissile.orchestrate.plan_file import plan_text
from fissile.orchestrate.plan_file import read_plan as read_file
from fissile.runtime.plan import read_plan
from fissile.target import named


def concat(order: str) -> bytes:
    """x and Unique(x), or the other way round, one behind the other."""
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [d]) for n, d in ("xn", "yk")]
    nodes = [
        helper.make_node("Unique", ["x"], ["u"], name="unique"),
        helper.make_node("Concat", [*order], ["y"], axis=0, name="concat"),
    ]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return bytes(made.SerializeToString())


def stitched(order: str = "xu") -> pipeline.Work:
    work = pipeline.Work(concat(order), None, (named("x86-64-v3"),), 1, Options())
    return pipeline.run(work, lambda event: None, "build")


def early(plan: Plan) -> Plan:
    """The plan with its pieces before its call."""
    pieces = [k for k in plan.kernels() if k.anchor is Anchor.PIECE and k.inputs[0].name == "input"]
    rest = [Step(tuple(k for k in s.kernels if k not in pieces)) for s in plan.steps]
    return replace(plan, steps=(Step(tuple(pieces)), *(s for s in rest if s.kernels)))


@pytest.mark.parametrize("order", ["xu", "ux", "xux", "xxu"])
def test_a_piece_waits_for_the_extents_of_all_pieces(order: str) -> None:
    work = stitched(order)
    graph = work.known("graph")
    for plan in (work.known("plan"), greedy_plan(graph)):
        verify(plan)
        anchors = [k.anchor for k in plan.kernels()]
        first = anchors.index(Anchor.FOREIGN)
        assert Anchor.PIECE not in anchors[:first]
        for kernel in plan.kernels():
            late = needed_symbols(kernel) & set(graph.late)
            assert bool(late) is (kernel.anchor is Anchor.PIECE)
        with pytest.raises(AssertionError, match="before .* is known"):
            verify(early(plan))


def test_a_plan_file_with_a_piece_too_early_is_refused() -> None:
    work = stitched()
    graph, plan = work.known("graph"), work.known("plan")
    assert read_file(plan_text(plan), graph) == plan
    with pytest.raises(OptionError, match="F612") as caught:
        read_file(plan_text(early(plan)), graph)
    assert "is known" in caught.value.reason


def test_launches_that_come_too_early_are_not_stitched() -> None:
    work = stitched()
    plan, loops = work.known("plan"), work.loops[0]
    calls, memory = pipeline.calls(plan), pipeline.memory(work, loops)
    launches = pipeline.launches(plan, loops)
    stitch(plan.graph, launches, memory, calls)

    def moved(launch: Launch) -> Launch:
        return replace(launch, step=-1)

    with pytest.raises(ValueError, match="would run after 0 calls, and needs 1"):
        stitch(plan.graph, [moved(x) for x in launches], memory, calls)


def test_the_runtime_refuses_launches_that_come_too_early() -> None:
    plan = dict(stitched().code[0].plan)
    read_plan(json.dumps(plan).encode())
    early = [row | {"step": -1} for row in plan["launches"]]
    with pytest.raises(ArtifactError, match="F104") as caught:
        read_plan(json.dumps(plan | {"launches": early}).encode())
    assert "before it is known" in str(caught.value)
    lied = [0] * len(plan["levels"])
    with pytest.raises(ArtifactError, match="F104"):
        read_plan(json.dumps(plan | {"launches": early, "levels": lied}).encode())
    outputs = [row | {"level": 0} for row in plan["outputs"]]
    with pytest.raises(ArtifactError, match="F104"):
        read_plan(json.dumps(plan | {"outputs": outputs}).encode())
