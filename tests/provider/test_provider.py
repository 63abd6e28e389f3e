"""Plans with offers compute what plans without them do: in numpy, and as machine code in a child process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fissile.errors import OptionError
from fissile.options import PROVIDERS, Options, resolve_target
from fissile.orchestrate.plan import Plan, evaluate
from fissile.pipeline import Work, run
from fissile.provider import Offer, Refused, accept, called, offers, window
from fissile.runtime import foreign
from fissile.runtime.artifact import read_artifact
from fissile.runtime.plan import read_plan
from fissile.runtime.roofline import LEVELS, Peaks
from fissile.runtime.statistic import Ratio
from fissile.tune import provided
from fissile.tune.budget import Budget
from fissile.tune.provided import chosen_offers, native_seconds
from fissile.tune.tune import tune
from fissile.tune.whole import Whole

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


def singles(plan: Plan, provider: str) -> list[Offer]:
    return [o for o in offers(plan, provider) if len(o.kernels) == 1]


def widest(plan: Plan, provider: str) -> Offer:
    return max(offers(plan, provider), key=lambda o: len(o.kernels))


def installed(provider: str) -> None:
    module, wheel = PROVIDERS[provider]
    if find_spec(module) is None:
        pytest.skip(f"{wheel} is not installed")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_who_computes_changes_nothing(work: Work, provider: str) -> None:
    plan: Plan = work.known("plan")
    kinds = [singles(plan, provider)] + [[widest(plan, provider)]] * (provider != "openblas")
    x = np.random.default_rng(2).standard_normal((5, 19)).astype(np.float32)
    wanted = evaluate(plan, {"x": x}, {"n": 5})
    for chosen in kinds:
        other = accept(plan, chosen)
        assert len(other.foreign()) == len(chosen)
        assert [*called(other)["providers"]] == [provider]
        got = evaluate(other, {"x": x}, {"n": 5}, foreign.evaluate)
        for name, value in wanted.items():
            np.testing.assert_allclose(got[name], value, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("rows", [0, 1, 7, 130])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_packages_run_kernels_between_native_ones(
    work: Work, provider: str, rows: int, tmp_path: Path
) -> None:
    installed(provider)
    plan: Plan = work.known("plan")
    other = made(work, accept(plan, singles(plan, provider)))
    assert agree(work.artifact, other.artifact, rows, tmp_path) == ""


@pytest.mark.parametrize("provider", ["onnxruntime", "openvino"])
def test_packages_run_windows(work: Work, provider: str, tmp_path: Path) -> None:
    installed(provider)
    plan: Plan = work.known("plan")
    other = made(work, accept(plan, [widest(plan, provider)]))
    assert agree(work.artifact, other.artifact, 11, tmp_path) == ""


def test_a_missing_package_is_named(work: Work, tmp_path: Path) -> None:
    plan: Plan = work.known("plan")
    path = tmp_path / "a.fsl"
    path.write_bytes(made(work, accept(plan, singles(plan, "openblas"))).artifact)
    said = child(f"import sys, fissile; sys.modules['scipy_openblas32'] = None; "
                 f"fissile.load({str(path)!r}, threads=1)")  # fmt: skip
    assert "F112" in said
    assert "scipy-openblas32" in said


def test_what_is_dearer_is_not_taken(work: Work) -> None:
    plan: Plan = work.known("plan")
    native = native_seconds(plan, [[1e-3]] * len(plan.kernels()))
    assert chosen_offers(plan, "onnxruntime", native, lambda offer: 1.0) == []
    whole = chosen_offers(plan, "onnxruntime", native, lambda offer: 1e-4)
    assert max(len(o.kernels) for o in whole) == len(widest(plan, "onnxruntime").kernels)
    alone = chosen_offers(
        plan, "onnxruntime", native, lambda o: 1e-4 if len(o.kernels) == 1 else 1.0
    )
    assert all(len(o.kernels) == 1 for o in alone)
    assert accept(plan, alone)


def test_a_window_with_a_foreign_operator_is_refused(work: Work) -> None:
    plan: Plan = work.known("plan")
    other = accept(plan, singles(plan, "onnxruntime")[:1])
    kernels = tuple(other.kernels())
    with pytest.raises(Refused, match="Python"):
        window(other, "onnxruntime", kernels, 0, len(other.steps) - 1)


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


def test_tuning_keeps_the_plan_with_a_package_where_it_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("onnxruntime")
    monkeypatch.setenv("FISSILE_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.setattr(provided, "timer", lambda *_: lambda offer: 0.0)
    found = tune(
        Work(network(), None, (TARGET,), 1, Options(providers=("onnxruntime",))),
        Budget(60.0),
        lambda event: None,
        measured=lambda kernels, *_, times: [1e-6] * len(kernels),
        timed=faster_with_calls,
        peaks=lambda: PEAKS,
    )
    assert found.name == "with onnxruntime"
    assert found.kept == "tuned"
    assert found.plan == ""  # a plan file says kernels of our own alone
    manifest = read_artifact(found.artifact).manifest
    assert [*manifest["providers"]] == ["onnxruntime"]
    assert manifest["foreign"] == []
    untuned = run(Work(network(), None, (TARGET,), 1, Options()), lambda event: None)
    assert agree(untuned.artifact, found.artifact, 6, tmp_path) == ""


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
