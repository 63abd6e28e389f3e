"""Untuned compilations with a store: what was measured decides, and a store that is no store decides nothing."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fissile
from fissile import compiler
from fissile.errors import FissileWarning
from fissile.options import Event, Options, resolve_target
from fissile.orchestrate.candidates import candidates_of
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.nominal import representative
from fissile.orchestrate.plan import Kernel
from fissile.pipeline import Work, run
from fissile.runtime.statistic import Samples
from fissile.runtime.store import Store
from fissile.tune.budget import Budget
from fissile.tune.start import LIMITS, setting_of
from fissile.tune.stored import replanned
from fissile.tune.trial import trials
from tests.tune.test_tune import network

TARGET = resolve_target()


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "store.sqlite"
    monkeypatch.setenv("FISSILE_STORE", str(path))
    monkeypatch.setenv("FISSILE_CACHE_DIR", str(tmp_path / "cache"))
    return path


def planned() -> Work:
    return run(Work(network(), None, (TARGET,), 1, Options()), lambda event: None, "plan")


def remember(store: Store, work: Work, seconds: Callable[[Kernel], float | None]) -> int:
    """Every candidate of the work as if measured; the number of those that are known."""
    graph = work.known("graph")
    setting = setting_of(work, Budget(), representative(graph, work.shapes), 0.0)
    kernels = [c.kernel for c in candidates_of(greedy_plan(graph), LIMITS).all]
    known = [(k, s) for k in kernels if (s := seconds(k)) is not None]
    made = trials([k for k, _ in known], TARGET, setting.numbers, setting.state, [s for _, s in known])
    for trial in made:
        once = np.full(setting.samples, trial.seconds)
        store.add(setting.key(trial.code), Samples(once, once, np.zeros(len(once)), 1))
    return len({trial.code for trial in made})


def apart(kernel: Kernel) -> float:
    """As if kernels of several primitives were slow."""
    return 1e-6 if len(kernel.nodes) == 1 else 1e-3


def together(kernel: Kernel) -> float:
    """As if kernels of one primitive were."""
    return 1e-3 if len(kernel.nodes) == 1 else 1e-6


def test_what_was_measured_decides(tmp_path: Path) -> None:
    work = planned()
    least = []
    for seconds in (apart, together):
        with Store([tmp_path / f"{seconds.__name__}.sqlite"]) as store:
            known = remember(store, work, seconds)
            found, again = replanned(work, store), replanned(work, store)
        kernels = found.known("plan").kernels()
        assert [k.nodes for k in kernels] == [k.nodes for k in again.known("plan").kernels()]
        assert found.certificate == again.certificate
        proof = found.certificate
        assert proof["predicted_seconds"] == pytest.approx(sum(map(seconds, kernels)))
        assert proof["predicted_seconds"] <= sum(map(seconds, work.known("plan").kernels())) + 1e-9
        assert 0 < proof["recalled"] <= len(kernels) == proof["kernels"]
        assert proof["recalled"] <= proof["measured"] <= known
        assert proof["lower_bound_seconds"] <= proof["predicted_seconds"]
        least.append(min(len(k.nodes) for k in kernels))
    assert least[0] == 1 < least[1]


def test_what_nobody_measured_is_not_preferred(own: Path) -> None:
    """All that is measured takes 50 times its guess: so will what is not, though its guess is lower."""
    work = planned()
    graph = work.known("graph")
    setting = setting_of(work, Budget(), representative(graph, work.shapes), 0.0)
    mine = set(work.known("plan").kernels())
    with Store([own]) as store:
        remember(store, work, lambda k: 50 * setting.estimate(k) if k in mine else None)
        found = replanned(work, store)
    assert set(found.known("plan").kernels()) == mine
    assert found.certificate["recalled"] == len(mine)


def test_measurements_of_other_models_change_nothing(own: Path) -> None:
    work = planned()
    with Store([own]) as store:
        remember(store, work, lambda k: None)
        assert replanned(work, store) is work


def test_a_new_measurement_makes_a_new_artifact_and_plans_can_do_without(
    own: Path, tmp_path: Path
) -> None:
    def stages(**choices: object) -> list[str]:
        events: list[Event] = []
        options = Options(**choices)  # type: ignore[arg-type]
        exe = fissile.compile(network(), threads=1, options=options, progress=events.append)
        x = np.random.default_rng(0).standard_normal((3, 24)).astype(np.float32)
        values.append(exe.run({"x": x})["y"])
        proofs.append(exe.manifest.get("certificate", {}))
        return [e.stage for e in events]

    values: list[np.ndarray] = []
    proofs: list[dict[str, float]] = []
    assert "store" not in stages()
    assert stages() == ["cached"]
    assert not own.exists()  # asking makes no file
    with Store([own]) as store:
        remember(store, planned(), apart)
    assert "store" in stages()
    assert stages() == ["cached"]
    assert stages(store=False) == ["cached"]  # the first one: guesses alone make the same bytes
    assert [p["measured"] > 0 for p in proofs] == [False, False, True, True, False]
    for value in values:
        np.testing.assert_allclose(value, values[0], rtol=1e-5)
    text = compiler.plan_file(network(), threads=1)
    assert text != compiler.plan_file(network(), threads=1, options=Options(store=False))
    plan = tmp_path / "plan.json"
    plan.write_text(text)
    assert "store" not in stages(plan=plan)


def nothing(path: Path) -> None:
    path.write_bytes(b"this is no database at all" * 99)




def other(path: Path) -> None:
    with sqlite3.connect(path) as made:
        made.execute("create table record (code text)")
        made.execute("insert into record values ('x')")


def rubbish(path: Path) -> None:
    """A store of this model whose samples are no samples."""
    with Store([path]) as store:
        remember(store, planned(), apart)
    with sqlite3.connect(path) as made:
        made.execute("update record set samples = '[1, {'")


@pytest.mark.parametrize("spoil", [nothing, other, rubbish])
def test_a_store_that_cannot_be_read_is_named_once(
    own: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(own)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(2):
            exe = fissile.compile(network(), threads=1, cache=False)
    told = [str(w.message) for w in heard if issubclass(w.category, FissileWarning)]
    assert len(told) == 1
    assert str(own) in told[0]
    assert exe.manifest["certificate"]["measured"] == 0


def test_a_store_that_is_locked_is_left_aside(own: Path) -> None:
    with Store([own]) as store:
        remember(store, planned(), apart)
    holder = sqlite3.connect(own)
    holder.execute("begin exclusive")
    with pytest.warns(FissileWarning, match="locked"):
        exe = fissile.compile(network(), threads=1, cache=False)
    holder.close()
    assert exe.manifest["certificate"]["measured"] == 0
