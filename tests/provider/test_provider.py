"""Plans with offers compute what plans without them do: in numpy, and as machine code in a child process."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from onnx import TensorProto, helper, numpy_helper

from fissile import cli
from fissile.errors import CompileError, OptionError
from fissile.fission.export import export
from fissile.ir.dim import symbol
from fissile.ir.dtype import BFLOAT16, FLOAT16, DType
from fissile.ir.graph import Graph, make
from fissile.ir.primitive import INPUT, PRIMITIVES, cast, constant
from fissile.options import PROVIDERS, Options, resolve_target
from fissile.orchestrate.bound import CALL
from fissile.orchestrate.candidates import Candidate
from fissile.orchestrate.orchestrate import choose, plan_of, problem_of
from fissile.orchestrate.plan import Anchor, Plan, evaluate
from fissile.pipeline import Work, run
from fissile.provider import Offered, Refused, accept, called, model_of, offered
from fissile.runtime import foreign
from fissile.runtime.artifact import read_artifact
from fissile.runtime.hire import ARGUMENTS, MODEL, RESULTS, Job, hire, read_arrays, write_arrays
from fissile.runtime.plan import read_plan
from fissile.runtime.roofline import LEVELS, Peaks
from fissile.runtime.statistic import Ratio, Samples
from fissile.tune import offers as measured_offers
from fissile.tune.budget import Budget
from fissile.tune.plans import TimeWhole
from fissile.tune.told import rejected_text
from fissile.tune.tune import Tuned, tune
from fissile.tune.whole import Whole
from tests.e2e.draw import Case, cases, feeds_of
from tests.orchestrate.test_candidates import constant_table, found_in

ROOT = Path(__file__).parents[2]
TARGET = resolve_target()
PEAKS = Peaks(1e11, dict.fromkeys(LEVELS, 1e10), {"l1": 1 << 15, "l2": 1 << 20, "l3": 1 << 25})
CHILD = """
import sys, numpy as np, fissile
own, other, rows, width = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
x = np.random.default_rng(1).standard_normal((rows, width)).astype(np.float32)
a, b = (fissile.load(path, threads=2).run({"x": x}) for path in (own, other))
for name in a:
    assert a[name].shape == b[name].shape
    np.testing.assert_allclose(a[name], b[name], rtol=2e-5, atol=2e-5)
"""


def network(width: int = 19, inner: int = 33, depth: int = 3) -> onnx.ModelProto:
    """relu(x . w + b) again and again, then a softmax; a free number of rows, and two outputs."""
    rng = np.random.default_rng(0)
    given, nodes, last = [], [], "x"
    sizes = [width, *[inner + k for k in range(depth)]]
    for k, (m, n) in enumerate(zip(sizes, sizes[1:])):
        arrays = {f"w{k}": rng.standard_normal((m, n)) / 5, f"b{k}": rng.standard_normal(n)}
        given += [numpy_helper.from_array(a.astype(np.float32), s) for s, a in arrays.items()]
        nodes += [
            helper.make_node("MatMul", [last, f"w{k}"], [f"h{k}"], f"product{k}"),
            helper.make_node("Add", [f"h{k}", f"b{k}"], [f"i{k}"], f"bias{k}"),
            helper.make_node("Relu", [f"i{k}"], [f"r{k}"], f"relu{k}"),
        ]
        last = f"r{k}"
    nodes.append(helper.make_node("Softmax", [last], ["y"], "softmax"))
    ends = [("x", width), ("y", sizes[-1]), ("r0", inner)]
    infos = [helper.make_tensor_value_info(s, TensorProto.FLOAT, ["n", e]) for s, e in ends]
    graph = helper.make_graph(nodes, "small", infos[:1], infos[1:], given)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.fixture(scope="module")
def work() -> Work:
    return run(Work(network(), None, (TARGET,), 2, Options()), lambda event: None)


Wanted = Callable[[Candidate], bool]


def planned(graph: Graph, provider: str, wanted: Wanted) -> Plan:
    """The plan in which wanted offers make all products that they can."""
    found = offered(found_in(graph), (provider,)).candidates

    def cost(candidate: Candidate) -> float:
        if candidate.kernel.provider and wanted(candidate):
            return 1e-6
        products = sum(n.primitive.kind == "linear" for n in candidate.kernel.nodes)
        return 1.0 + 10.0 * products + 1e3 * bool(candidate.kernel.provider)

    costs = [*map(cost, found.all)]
    selected = choose(problem_of(found, costs), found.greedy)
    return plan_of(found, selected)


def single(candidate: Candidate) -> bool:
    return len(candidate.executes) <= 2


def whole(candidate: Candidate) -> bool:
    return len(candidate.executes) > 2


def offers(plan: Plan) -> int:
    return sum(kernel.anchor is Anchor.PACKAGE for kernel in plan.kernels())


def installed(provider: str) -> None:
    module, wheel = PROVIDERS[provider]
    if find_spec(module) is None:
        pytest.skip(f"{wheel} is not installed")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_who_computes_changes_nothing(work: Work, provider: str) -> None:
    x = np.random.default_rng(2).standard_normal((5, 19)).astype(np.float32)
    right = evaluate(work.known("plan"), {"x": x}, {"n": 5})
    for wanted in [single] + [whole] * (provider != "openblas"):
        plan = planned(work.known("graph"), provider, wanted)
        assert offers(plan) == (3 if wanted is single else 1)
        other = accept(plan)
        assert len(other.foreign()) == offers(plan)
        assert [*called(other)["providers"]] == [provider]
        served = {n for kernel in other.foreign() for n in other.graph.origins[kernel.nodes[0]]}
        assert served >= {f"product{k}" for k in range(3)}
        assert ("softmax" in served) == (wanted is whole)
        plain = evaluate(plan, {"x": x}, {"n": 5})
        got = evaluate(other, {"x": x}, {"n": 5}, foreign.evaluate)
        for name, value in right.items():
            np.testing.assert_allclose(plain[name], value, rtol=2e-5, atol=2e-5)
            np.testing.assert_allclose(got[name], value, rtol=2e-5, atol=2e-5)


def can_be_said(candidate: Candidate) -> bool:
    try:
        return bool(candidate.kernel.provider and model_of(candidate.kernel))
    except Refused:
        return False


@settings(
    max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
@given(cases())
def test_calls_among_any_kernels_compute_the_graph(case: Case) -> None:
    found = offered(found_in(case.graph), ("onnxruntime", "openblas")).candidates
    rng = random.Random(case.seed)
    table = constant_table(found, rng)
    costs = [
        table[c.kernel] * (0.3 if can_be_said(c) else 100.0 if c.kernel.provider else 1.0)
        for c in found.all
    ]
    plan = plan_of(found, choose(problem_of(found, costs), found.greedy))
    feeds = feeds_of(case, case.assignments[0])
    right = evaluate(plan, feeds, case.assignments[0])
    got = evaluate(accept(plan), feeds, case.assignments[0], foreign.evaluate)
    for name, value in right.items():
        assert got[name].shape == value.shape
        # What packages make of NaN is their own: their ArgMax passes it over.
        whole = value.dtype.kind in "iub" and case.filling == "real"
        if case.filling == "whole" or whole:
            np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [0, 1, 7, 130])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_packages_run_kernels_between_native_ones(
    work: Work, provider: str, rows: int, tmp_path: Path
) -> None:
    installed(provider)
    other = made(work, planned(work.known("graph"), provider, single))
    assert agree(work.artifact, other.artifact, rows, tmp_path) == ""


@pytest.mark.parametrize("provider", ["onnxruntime", "openvino"])
def test_packages_run_windows(work: Work, provider: str, tmp_path: Path) -> None:
    installed(provider)
    other = made(work, planned(work.known("graph"), provider, whole))
    assert agree(work.artifact, other.artifact, 11, tmp_path) == ""


def test_what_a_package_runs_is_shown_under_its_name(
    work: Work, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.fsl"
    path.write_bytes(made(work, planned(work.known("graph"), "openblas", single)).artifact)
    with pytest.raises(SystemExit):
        cli.main(["show", str(path), "--json"])
    rows = json.loads(capsys.readouterr().out)["kernels"]
    theirs = [row for row in rows if row["kernel"] == "openblas"]
    assert [row["serves"] for row in theirs] == [[f"product{k}"] for k in range(3)]
    assert all(row["function"] for row in rows if row["kernel"] != "openblas")
    with pytest.raises(SystemExit):
        cli.main(["show", str(path)])
    assert capsys.readouterr().out.count("openblas") == 3


@pytest.mark.parametrize("provider", ["onnxruntime", "openvino"])
def test_an_argument_may_be_there_for_its_extents_alone(provider: str, tmp_path: Path) -> None:
    installed(provider)
    n = symbol("n")
    row, x, y = (
        make(INPUT, name=f"i{k}", dtype="float32", shape=shape)
        for k, shape in enumerate([(5,), (n, 3), (2 * n, 3)])
    )
    total = make(PRIMITIVES["add"], make(PRIMITIVES["reshape"], y, shape=(n, 6)), make(
        PRIMITIVES["broadcast"], constant(np.array(2.5, np.float32)), shape=(n, 6), axes=()))  # fmt: skip
    model = export(Graph((row, x, y), (("o0", total),))).SerializeToString()
    (tmp_path / MODEL).write_bytes(model)
    arrays = [np.arange(k, dtype=np.float32).reshape(-1, 3) for k in (12, 24)]
    write_arrays(str(tmp_path), ARGUMENTS, [np.zeros(5, np.float32), *arrays])
    samples = hire(Job(provider, str(tmp_path), 1, 3), 60.0)
    assert len(samples.seconds) == 3
    (found,) = read_arrays(str(tmp_path), RESULTS)
    np.testing.assert_array_equal(found, arrays[1].reshape(4, 6) + np.float32(2.5))


def test_a_missing_package_is_named(work: Work, tmp_path: Path) -> None:
    path = tmp_path / "a.fsl"
    path.write_bytes(made(work, planned(work.known("graph"), "openblas", single)).artifact)
    said = child(f"import sys, fissile; sys.modules['scipy_openblas32'] = None; "
                 f"fissile.load({str(path)!r}, threads=1)")  # fmt: skip
    assert "F112" in said
    assert "scipy-openblas32" in said


def test_what_runs_in_python_is_offered_to_nobody(work: Work) -> None:
    graph: Graph = work.known("graph")
    other = accept(planned(graph, "onnxruntime", single)).graph
    found: Offered = offered(found_in(other), ("onnxruntime",))
    assert not any(n.name == "foreign" for kernel in found.parts for n in kernel.nodes)


@pytest.mark.parametrize("of", [FLOAT16, BFLOAT16])
def test_what_is_rounded_to_a_half_type_is_offered_to_nobody(of: DType) -> None:
    """Other packages keep float32 between operators, or sum in another order."""
    x = make(INPUT, name="x", dtype="float32", shape=(40, 40))
    weight = constant(np.random.default_rng(1).standard_normal((40, 40)).astype(np.float32))
    product = make(PRIMITIVES["matmul"], x, weight)
    for y, some in ((product, True), (cast(product, of), False)):
        found = found_in(Graph((x,), (("y", y),)))
        for provider in ("onnxruntime", "openblas"):
            assert bool(offered(found, (provider,)).parts) == some


def test_an_unknown_provider_is_refused() -> None:
    with pytest.raises(OptionError, match="F616"):
        Options(providers=("openblass",))
    assert "providers" not in Options().key()


def made(work: Work, plan: Plan) -> Work:
    return run(replace(work, plan_given=plan), lambda event: None, first="plan")


def agree(own: bytes, other: bytes, rows: int, folder: Path) -> str:
    paths = [folder / name for name in ("own.fsl", "other.fsl")]
    for path, content in zip(paths, (own, other), strict=True):
        path.write_bytes(content)
    return child(CHILD, [*map(str, paths), str(rows), "19"])


def child(code: str, arguments: Iterable[str] = ()) -> str:
    """What a child process complains of."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    return done.stderr if done.returncode else ""


# ---------------------------------------------------------------- tuning


def tuned(
    folder: Path, monkeypatch: pytest.MonkeyPatch, provider: str = "onnxruntime", timed: TimeWhole | None = None
) -> Tuned:
    """A small network tuned with a package; every kernel of ours is said to take a millisecond."""
    monkeypatch.setenv("FISSILE_STORE", str(folder / "store.sqlite"))
    return tune(
        Work(network(), None, (TARGET,), 1, Options(providers=(provider,))),
        Budget(60.0),
        lambda event: None,
        measured=lambda kernels, *_, times: [1e-3] * len(kernels),
        timed=timed or faster_with_calls,
        peaks=lambda: PEAKS,
    )


def hired_for(seconds: float) -> Callable[..., Samples]:
    """A package that computes what is right in so many seconds, by the table."""

    def hired(job: Job, limit: float) -> Samples:
        model = (Path(job.folder) / MODEL).read_bytes()
        write_arrays(job.folder, RESULTS, foreign.evaluate(model, read_arrays(job.folder, ARGUMENTS)))
        row = np.full(job.samples, seconds)
        return Samples(row, row, 0 * row, job.threads)

    return hired


def test_an_offer_wins_where_the_program_finds_it_cheaper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("onnxruntime")
    monkeypatch.setattr(measured_offers.with_packages, "__defaults__", (hired_for(1e-5),))
    found = tuned(tmp_path, monkeypatch)
    assert found.name == "plan 1"
    assert found.kept == "tuned"
    assert found.plan == ""  # a plan file says kernels of our own alone
    assert found.certificate["predicted_seconds"] == pytest.approx(1e-5 + CALL)
    assert found.certificate["gap"] <= 0.01
    counts = found.certificate["offers"]["onnxruntime"]
    assert 0 < counts["measured"] < counts["candidates"]
    artifact = read_artifact(found.artifact)
    assert [*artifact.manifest["providers"]] == ["onnxruntime"]
    assert artifact.manifest["foreign"] == []
    report = json.loads(bytes(artifact.member("report.json")))
    assert [row["anchor"] for row in report["tuning"]["kernels"]] == ["onnxruntime"]
    untuned = run(Work(network(), None, (TARGET,), 1, Options()), lambda event: None)
    assert agree(untuned.artifact, found.artifact, 6, tmp_path) == ""


def test_an_offer_loses_where_it_is_dearer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured_offers.with_packages, "__defaults__", (hired_for(1.0),))
    found = tuned(tmp_path, monkeypatch)
    assert found.certificate["offers"]["onnxruntime"]["measured"] > 0
    assert found.certificate["predicted_seconds"] < 0.02
    assert "providers" not in read_artifact(found.artifact).manifest


def test_a_package_that_fails_in_the_whole_plan_costs_that_plan_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured_offers.with_packages, "__defaults__", (hired_for(1e-5),))
    runs: list[int] = []

    def timed(paths: Sequence[Path], threads: int, numbers: Mapping[str, int]) -> list[Whole]:
        runs.append(len(paths))
        if any("providers" in read_artifact(path).manifest for path in paths):
            raise CompileError("F411", "measuring failed", reason="ended by SIGSEGV")
        return faster_with_calls(paths, threads, numbers)

    found = tuned(tmp_path, monkeypatch, timed=timed)
    assert len(runs) == 2
    assert runs[1] < runs[0]
    assert "no packages" in found.times
    assert "providers" not in read_artifact(found.artifact).manifest


FAULTS = {
    "crash": ("import os; os.abort()", "ended by SIGABRT"),
    "hang": ("import time; time.sleep(600)", "no answer within"),
    "raise": ("raise RuntimeError('no such operator')", "no such operator"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_package_that_fails_is_named_and_tuning_goes_on(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, reason = FAULTS[fault]
    (tmp_path / "onnxruntime.py").write_text(f"def SessionOptions():\n    {code}\n")
    known = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(tmp_path), known))))
    monkeypatch.setattr(measured_offers, "LIMIT_SECONDS", 3.0)
    monkeypatch.setattr(measured_offers, "GIVEN_UP", 1)
    found = tuned(tmp_path, monkeypatch)
    assert len(found.rejected) == 1
    ((label, said),) = found.rejected.items()
    assert label.startswith("onnxruntime: ")
    assert reason in said
    assert rejected_text(found.rejected).startswith("1: 1 onnxruntime ")
    assert found.kept in ("tuned", "untuned")
    assert found.certificate["complete"]
    assert "providers" not in read_artifact(found.artifact).manifest


def test_a_package_that_computes_something_else_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = hired_for(1e-5)

    def hired(job: Job, limit: float) -> Samples:
        samples = right(job, limit)
        results = read_arrays(job.folder, RESULTS)
        results[0].flat[-1:] += np.abs(results[0]).max() / 100
        write_arrays(job.folder, RESULTS, results)
        return samples

    monkeypatch.setattr(measured_offers.with_packages, "__defaults__", (hired,))
    found = tuned(tmp_path, monkeypatch)
    assert found.certificate["offers"]["onnxruntime"]["measured"] == len(found.rejected) > 0
    assert all(reason.startswith("values off by") for reason in found.rejected.values())
    assert "providers" not in read_artifact(found.artifact).manifest


def faster_with_calls(
    paths: Sequence[Path], threads: int, numbers: Mapping[str, int]
) -> list[Whole]:
    """A timer of whole models: those that call a package take half as long."""
    result = []
    for path in paths:
        artifact = read_artifact(path)
        row = artifact.manifest["targets"][0]
        plan = read_plan(artifact.member(row["plan"]))
        seconds = 1.0 if plan.calls else 2.0
        ratio = Ratio(2 / seconds, 2 / seconds, 2 / seconds, "faster" if plan.calls else "same")
        result.append(Whole(seconds, seconds, ratio, ((1e-3,),) * len(plan.launches)))
    return result
