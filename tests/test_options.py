"""Options and the environment table: explicit values, bad values, misspelt names; targets."""

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from fissile import options, target
from fissile.errors import FissileWarning, OptionError, TargetError
from fissile.options import ENVIRONMENT, Environment, Options, environment


def test_an_empty_environment_is_the_default() -> None:
    assert environment({}) == Environment()


def test_every_variable_is_read() -> None:
    env = environment(
        {
            "FISSILE_NUM_THREADS": "3",
            "FISSILE_CACHE_DIR": "/c",
            "FISSILE_CACHE": "0",
            "FISSILE_STORE": "/a:/b",
            "FISSILE_LOG": "Debug",
            "FISSILE_TARGET": "x86-64-v3",
            "FISSILE_PERF_MAP": "1",
        }
    )
    stores = (Path("/a"), Path("/b"))
    assert env == Environment(3, Path("/c"), False, stores, "debug", "x86-64-v3", True)
    assert len(ENVIRONMENT) <= 10


@pytest.mark.parametrize(
    ("variables", "threads"),
    [
        ({"OMP_NUM_THREADS": "4,2"}, 4),
        ({"OMP_NUM_THREADS": "many"}, None),
        ({"OMP_NUM_THREADS": "4", "FISSILE_NUM_THREADS": "2"}, 2),
    ],
)
def test_threads_fall_back_to_openmp(variables: dict[str, str], threads: int | None) -> None:
    assert environment(variables).num_threads == threads


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FISSILE_NUM_THREADS", "0"),
        ("FISSILE_NUM_THREADS", "-1"),
        ("FISSILE_NUM_THREADS", "two"),
        ("FISSILE_CACHE", "maybe"),
        ("FISSILE_LOG", "loud"),
    ],
)
def test_bad_values_are_refused(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=name):
        environment({name: value})


def test_a_misspelt_variable_warns() -> None:
    with pytest.warns(FissileWarning, match='did you mean "FISSILE_CACHE_DIR"'):
        environment({"FISSILE_CACHEDIR": "/c"})


def test_options_are_frozen_and_keyed() -> None:
    one = Options(disable=("b", "a"), workers=2)
    assert one.key() == Options(disable=("a", "b"), workers=1).key()
    assert one.key() != Options(disable=("a",)).key()
    with pytest.raises(FrozenInstanceError):
        one.seed = 1  # type: ignore[misc]
    with pytest.raises(OptionError):
        Options(workers=0)


def test_targets() -> None:
    v3, v4 = target.named("x86-64-v3"), target.named("x86-64-v4")
    assert (v3.lanes(4), v3.lanes(8), v3.vector_registers) == (8, 4, 16)
    assert (v4.lanes(4), v4.vector_registers) == (16, 32)
    assert set(v3.features) < set(v4.features)
    with pytest.raises(TargetError, match="did you mean"):
        target.named("x86-64-v33")


def test_native_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    best = target.native()
    assert not target.missing_features(best.features)
    capped = target.native("aarch64-neon" if best.arch == "aarch64" else "x86-64-v3")
    assert capped.level <= best.level
    monkeypatch.setenv("FISSILE_TARGET", capped.name)
    assert options.resolve_target().name == capped.name
    assert options.resolve_target(best) is best
