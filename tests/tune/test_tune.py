"""Tuning a small network: what is kept is no slower, an interruption leaves an artifact, and nothing is lost."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fissile
from fissile import compiler
from fissile.errors import CompileError, OptionError
from fissile.options import Event, Options, resolve_target
from fissile.orchestrate.bound import bound
from fissile.orchestrate.nominal import representative
from fissile.orchestrate.plan import Kernel
from fissile.pipeline import Work, run, said
from fissile.runtime.artifact import read_artifact
from fissile.runtime.roofline import LEVELS, Peaks
from fissile.runtime.statistic import Ratio, Samples
from fissile.runtime.store import Store
from fissile.tune.budget import Budget, parse_budget
from fissile.tune.measure import OutOfTime, Setting, Tally, seconds_of
from fissile.tune.start import faster, machine_of
from fissile.tune.trial import Trial
from fissile.tune.tune import Tuned, tune
from fissile.tune.whole import Whole, keep, runs_of

ROOT = Path(__file__).parents[2]
TARGET = resolve_target()
PEAKS = Peaks(1e11, dict.fromkeys(LEVELS, 1e10), {"l1": 1 << 15, "l2": 1 << 20, "l3": 1 << 25})
Times = Callable[[Sequence[Path], int, Mapping[str, int]], list[Whole]]


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FISSILE_STORE", str(tmp_path / "store.sqlite"))


def network() -> onnx.ModelProto:
    """softmax(x . w + b) of a free number of rows."""
    rng = np.random.default_rng(0)
    arrays = {"w": rng.standard_normal((24, 17)), "b": rng.standard_normal(17)}
    given = [numpy_helper.from_array(a.astype(np.float32), name) for name, a in arrays.items()]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("Add", ["h", "b"], ["i"], "bias"),
        helper.make_node("Softmax", ["i"], ["y"], "softmax"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", extent])
            for name, extent in (("x", 24), ("y", 17))]  # fmt: skip
    graph = helper.make_graph(nodes, "small", ends[:1], ends[1:], given)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def attention() -> onnx.ModelProto:
    """Two heads over a free number of rows that share their input, and the sum of both."""
    rng = np.random.default_rng(0)
    names = [f"{part}{head}" for head in "ab" for part in "qkv"]
    given = [numpy_helper.from_array(rng.standard_normal((24, 8)).astype(np.float32), n) for n in names]
    nodes = [helper.make_node("MatMul", ["x", name], [f"x{name}"]) for name in names]
    for head in "ab":
        nodes += [
            helper.make_node("Transpose", [f"xk{head}"], [f"t{head}"], perm=[1, 0]),
            helper.make_node("MatMul", [f"xq{head}", f"t{head}"], [f"s{head}"]),
            helper.make_node("Softmax", [f"s{head}"], [f"p{head}"]),
            helper.make_node("MatMul", [f"p{head}", f"xv{head}"], [f"o{head}"]),
        ]
    nodes.append(helper.make_node("Add", ["oa", "ob"], ["y"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", extent])
            for name, extent in (("x", 24), ("y", 8))]  # fmt: skip
    graph = helper.make_graph(nodes, "attention", ends[:1], ends[1:], given)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def whole(seconds: float, first: float) -> Whole:
    ratio = first / seconds
    verdict: Any = "faster" if ratio > 1.02 else "slower" if ratio < 0.98 else "same"
    return Whole(seconds, seconds, Ratio(ratio, ratio, ratio, verdict))


def times(*seconds: float) -> Times:
    """A timer of whole models that answers these seconds; all further ones are slow."""

    def timed(paths: Sequence[Path], threads: int, numbers: Mapping[str, int]) -> list[Whole]:
        assert all(path.exists() for path in paths)
        assert len(paths) >= len(seconds)
        slow = [10.0 * max(seconds)] * (len(paths) - len(seconds))
        return [whole(s, seconds[0]) for s in (*seconds, *slow)]

    return timed


def by_size(kernels: Sequence[Kernel], *rest: Any, times: int) -> list[float]:
    """One kernel is cheaper than two; counted as measured."""
    for tally in rest[2:]:
        tally.measured += len(kernels)
    return [1e-6 + 1e-7 * len(kernel.nodes) for kernel in kernels]


def tuned(timed: Times, measured: Any = by_size, **choices: Any) -> Tuned:
    work = Work(choices.pop("model", None) or network(), None, (TARGET,), 1, Options())
    events: list[Event] = choices.pop("events", [])
    return tune(
        work, choices.pop("budget", Budget(60.0)), events.append, timed=timed, measured=measured, peaks=lambda: PEAKS,
        **choices,
    )  # fmt: skip


def outputs(artifact: bytes) -> dict[str, np.ndarray]:
    executable = fissile.load(artifact, threads=1)
    rng = np.random.default_rng(0)
    feeds = {
        info.name: rng.random([e if isinstance(e, int) else 4 for e in info.shape], np.float32)
        for info in executable.inputs
    }
    return executable.run(feeds)


def test_the_faster_one_is_kept_with_its_certificate() -> None:
    events: list[Event] = []
    found = tuned(times(2.0, 1.0), events=events)
    assert found.kept == "tuned"
    proof = fissile.load(found.artifact, threads=1).manifest["certificate"]
    assert proof["complete"]
    assert proof["measured_seconds"] == 1.0
    assert proof["lower_bound_seconds"] <= proof["predicted_seconds"] * (1 + 1e-9)
    assert proof["measured"] <= proof["candidates"]
    assert found.predicted[found.name] == pytest.approx(proof["predicted_seconds"])
    assert {"store", "start", "round", "whole", "proved"} <= {event.stage for event in events}
    assert "2.00x" in found.summary()


def test_a_slower_one_is_not(tmp_path: Path) -> None:
    untuned = tuned(times(1.0, 2.0))
    assert untuned.kept == "untuned"
    proof = fissile.load(untuned.artifact, threads=1).manifest.get("certificate", {})
    assert not proof.get("measured")
    there = tmp_path / "there.fsl"
    there.write_bytes(untuned.artifact)
    again = tuned(times(1.0, 1.5, 2.0), installed=there)
    assert (again.kept, again.artifact) == ("installed", untuned.artifact)
    assert tuned(times(1.0, 1.5, 0.5), installed=there).kept == "tuned"


def test_an_artifact_of_something_else_is_no_rival(tmp_path: Path) -> None:
    there = tmp_path / "there.fsl"
    there.write_bytes(b"PK")
    assert tuned(times(1.0, 0.5), installed=there).kept == "tuned"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OutOfTime])
@pytest.mark.parametrize("after", [0, 2])
def test_an_interruption_leaves_an_artifact(stop: type[BaseException], after: int) -> None:
    left = [after]

    def measured(kernels: Sequence[Kernel], *_: object, times: int) -> list[float]:
        left[0] -= 1
        if left[0] < 0:
            raise stop
        return by_size(kernels, times=times)

    found = tuned(times(2.0, 1.0), measured)
    assert found.is_interrupted == (stop is KeyboardInterrupt)
    assert not found.certificate["complete"]
    want = outputs(tuned(times(1.0, 2.0)).artifact)
    for name, array in outputs(found.artifact).items():
        np.testing.assert_allclose(array, want[name], rtol=1e-4, atol=1e-5)


def test_a_second_interruption_keeps_what_was_there(tmp_path: Path) -> None:
    def timed(*_: object) -> list[Whole]:
        raise KeyboardInterrupt

    found = tuned(timed)
    assert (found.kept, found.is_interrupted) == ("untuned", True)
    assert outputs(found.artifact)


def test_a_failure_of_whole_runs_keeps_what_was_there_and_says_so() -> None:
    def timed(*_: object) -> list[Whole]:
        raise CompileError("F411", "a measurement failed", reason="no answer within 0 s")

    events: list[Event] = []
    found = tuned(timed, events=events)
    assert (found.kept, found.is_interrupted) == ("untuned", False)
    assert any(e.stage == "whole" and "no answer" in e.text for e in events)
    assert outputs(found.artifact)


@pytest.mark.parametrize("stage", ["whole", "proved"])
def test_a_late_interruption_loses_no_choice(stage: str) -> None:
    work = Work(network(), None, (TARGET,), 1, Options())

    def progress(event: Event) -> None:
        if event.stage == stage and event.text:
            raise KeyboardInterrupt

    found = tune(
        work, Budget(60.0), progress, timed=times(2.0, 1.0), measured=by_size, peaks=lambda: PEAKS
    )
    assert found.is_interrupted
    assert found.kept == ("tuned" if stage == "proved" else "untuned")
    assert outputs(found.artifact)


def test_an_artifact_of_other_options_is_no_rival(tmp_path: Path) -> None:
    there = tmp_path / "there.fsl"
    plain = Work(network(), None, (TARGET,), 1, Options(substitute=False))
    there.write_bytes(run(plain, lambda event: None).artifact)
    assert tuned(times(1.0, 2.0), installed=there).kept == "untuned"


def test_what_stays_is_what_the_certificate_measured(tmp_path: Path) -> None:
    there = tmp_path / "there.fsl"
    there.write_bytes(tuned(times(1.0, 2.0)).artifact)
    found = tuned(times(1.0, 1.5, 2.0), installed=there)
    assert (found.kept, found.certificate["measured_seconds"]) == ("installed", 1.0)


def never(*_: object) -> Any:
    raise AssertionError("all of this is known")


def remembered(kernels: Sequence[Kernel], *_: object, times: int) -> list[float]:
    """As `by_size`, but the store knew all of it."""
    return by_size(kernels, times=times)


def test_whole_models_run_once(tmp_path: Path) -> None:
    events: list[Event] = []
    first = tuned(times(2.0, 1.0))
    again = tuned(never, remembered, events=events)
    assert (again.kept, again.name, again.is_remembered) == ("tuned", first.name, True)
    assert outputs(again.artifact).keys() == outputs(first.artifact).keys()
    assert again.plan == first.plan
    assert again.certificate["measured_seconds"] == 1.0
    assert "as found before" in next(e.text for e in events if e.stage == "whole")
    assert "2.00x" in again.summary()
    there = tmp_path / "there.fsl"
    there.write_bytes(again.artifact)
    last = tuned(never, remembered, installed=there)
    assert (last.kept, last.artifact) == ("installed", again.artifact)


def test_whole_models_run_again_when_anything_is_new(tmp_path: Path) -> None:
    first = tuned(times(1.0, 2.0))
    assert first.kept == "untuned"
    assert tuned(times(1.0, 2.0), remembered).is_remembered
    there = tmp_path / "there.fsl"
    there.write_bytes(tuned(times(2.0, 1.0)).artifact)  # measured again
    assert not tuned(times(1.0, 2.0, 3.0), installed=there).is_remembered
    unknown = tmp_path / "unknown.fsl"
    work = Work(network(), None, (TARGET,), 1, Options())
    shifted = network()
    shifted.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((24, 17), np.float32), "w"))
    unknown.write_bytes(run(replace(work, model=shifted), lambda event: None).artifact)
    assert tuned(times(1.0, 2.0), remembered, installed=unknown).kept != "installed"


class Noisy:
    """Takes the place of the measuring child: never the same seconds twice. asked: hashes, and how many samples."""

    def __init__(self) -> None:
        self.rng, self.asked = np.random.default_rng(0), list[tuple[str, int]]()

    def __call__(
        self, batch: Sequence[Trial], setting: Setting, tally: Tally, times: int, timed: object
    ) -> list[Samples]:
        self.asked += [(trial.code, times) for trial in batch]
        found = [1e-3 + 1e-4 * self.rng.random(setting.samples * times) for _ in batch]
        return [Samples(seconds, seconds, 0 * seconds) for seconds in found]


def members(artifact: bytes) -> dict[str, str]:
    """Hashes of code, plan and weights."""
    rows = read_artifact(artifact).manifest["members"].items()
    return {name: row["sha256"] for name, row in rows if name.startswith(("code-", "plan", "weights"))}


@pytest.mark.parametrize("model", [network, attention])
@pytest.mark.parametrize("best", ["untuned", "tuned"])
def test_a_full_store_gives_the_same_artifact(
    monkeypatch: pytest.MonkeyPatch, best: str, model: Callable[[], onnx.ModelProto]
) -> None:
    timed = times(2.0, 1.0) if best == "tuned" else times(1.0, 2.0)
    noisy = Noisy()
    monkeypatch.setattr("fissile.tune.measure._timed", noisy)
    first = tuned(timed, seconds_of, model=model())
    assert len({*noisy.asked}) == len(noisy.asked) > 0
    for what in ("fissile.tune.measure._timed", "fissile.pipeline.orchestrate"):
        monkeypatch.setattr(what, never)
    again = tuned(never, seconds_of, model=model())
    assert (again.kept, again.name, again.is_remembered) == (best, first.name, True)
    assert members(again.artifact) == members(first.artifact)
    assert again.plan == first.plan
    assert again.certificate["complete"]
    for name in ("gap", "window_gap", "predicted_seconds", "measured", "noise"):
        assert again.certificate[name] == pytest.approx(first.certificate[name], abs=1e-12)


def test_a_run_that_was_cut_short_is_taken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = Noisy()
    monkeypatch.setattr("fissile.tune.measure._timed", noisy)
    short = tuned(times(2.0, 1.0), seconds_of, budget=Budget(trials=9), model=attention())
    assert not short.certificate["complete"]
    same = tuned(never, seconds_of, budget=Budget(1e-3), model=attention())
    assert (same.name, same.is_remembered) == (short.name, True)
    before = len(noisy.asked)
    assert tuned(times(2.0, 1.0), seconds_of, model=attention()).certificate["complete"]
    assert len({*noisy.asked}) == len(noisy.asked) > before


def test_a_note_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    assert tuned(times(2.0, 1.0)).kept == "tuned"
    with sqlite3.connect(tmp_path / "store.sqlite") as store:
        store.execute("update note set value = '[1]' where name like 'plan %'")
    assert tuned(times(2.0, 1.0), remembered).is_remembered
    with sqlite3.connect(tmp_path / "store.sqlite") as store:
        store.execute("update note set value = '[1]' where name like 'race %'")
    found = tuned(times(2.0, 1.0), remembered)
    assert (found.kept, found.is_remembered) == ("tuned", False)


def test_slow_models_run_less_often() -> None:
    assert runs_of([1e-4, 2e-4]) == 200
    assert runs_of([0.1] * 4) == 20
    assert runs_of([2.0] * 7) == 9
    assert runs_of([30.0] * 7) == 5


def test_a_package_that_is_not_installed_is_missed_before_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiler, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match="F617"):
        compiler.tune(
            network().SerializeToString(), budget="1h", options=Options(providers=("openblas",))
        )


def test_a_choice_among_whole_models() -> None:
    assert keep([whole(1.0, 1.0), whole(0.999, 1.0)]) == 1
    assert keep([whole(1.0, 1.0), whole(1.5, 1.0), whole(1.2, 1.0)]) == 0


@pytest.mark.parametrize("text", ["", "0s", "10", "ten", "-1m", "1d", "0trials", "30s10m", "m", -1.0, 0])
def test_budgets_that_cannot_be_read(text: str | float) -> None:
    with pytest.raises(OptionError, match="F611"):
        parse_budget(text)


def test_budgets() -> None:
    assert parse_budget("200trials").trials == 200
    assert parse_budget("1.5h").seconds == parse_budget("1h 29m 60s").seconds == 5400
    assert str(parse_budget("10m")) == "10:00"
    assert said(0.134) == "134 ms"
    assert said(0.00667) == "6.67 ms"
    assert said(2.5e-5) == "25 µs"


def test_impossible_wishes() -> None:
    with pytest.raises(OptionError, match="F613"):
        fissile.compile(network(), budget="1s", options=Options(plan="x.json"))
    if TARGET.name != "x86-64-v4":
        with pytest.raises(OptionError, match="F614"):
            fissile.compile(network(), budget="1s", target="x86-64-v4")


def test_representative_extents() -> None:
    made = run(Work(network(), None, (TARGET,), 1, Options()), lambda event: None, "fission")
    graph = made.known("graph")
    assert representative(graph, {}) == {"n": 1}
    assert representative(graph, {"n": (4, 16)}) == {"n": 8}
    assert representative(graph, {"x": [(4, 16), 24]}) == {"n": 8}


@pytest.mark.parametrize("seconds", [1e-9, 1e-7, 1e-6])
def test_the_peak_that_limits_is_raised(seconds: float) -> None:
    made = run(Work(network(), None, (TARGET,), 1, Options()), lambda event: None, "plan")
    for kernel in made.known("plan").kernels():
        machine = machine_of(PEAKS, 1)
        numbers = {"n": 64}
        while bound(kernel, machine, numbers) > seconds:
            machine = faster(machine, kernel, seconds, numbers)
        assert bound(kernel, machine, numbers) <= seconds
        untouched = [machine.flops, *(speed for _, speed in machine.levels)]
        assert sum(a == b for a, b in zip(untouched, [1.05e11, *[1.05e10] * 4], strict=True)) >= 3


# ---------------------------------------------------------------- the real thing, in children

TUNE = """
import sys
import fissile
from tests.tune.test_tune import network
exe = fissile.compile(network(), budget=sys.argv[1], threads=1)
print(exe.manifest.get("certificate", {}).get("measured"))
"""


def tuner(store: Path, budget: str) -> subprocess.Popen[str]:
    env = os.environ | {"FISSILE_STORE": str(store), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", TUNE, budget], env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


def kept(store: Path) -> int:
    if not store.exists():
        return 0
    with Store([store]) as opened:
        return len(opened.rows())


def test_killed_tuners_lose_nothing_and_two_share_a_store(tmp_path: Path) -> None:
    store, rng = tmp_path / "shared.sqlite", random.Random(3)
    before = 0
    for _ in range(3):
        process = tuner(store, "60s")
        time.sleep(rng.uniform(0.5, 3.0))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        now = kept(store)
        assert now >= before
        before = now
    both = [tuner(store, "3s"), tuner(store, "3s")]
    for process in both:
        said, wrong = process.communicate(timeout=90)
        assert process.returncode == 0, wrong
    assert kept(store) >= before
