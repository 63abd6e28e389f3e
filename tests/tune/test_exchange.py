"""Stores that travel: what comes back, what does not fit this machine, and files that are no export."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fissile.errors import FileMissing, StoreError
from fissile.runtime.machine import identity
from fissile.runtime.statistic import Samples
from fissile.runtime.store import Key, Reject, Store
from fissile.tune.exchange import export, take

HERE = Key("abc", f"{identity()} as x86-64-v3", 2, "warm", "default")
THERE = replace(HERE, isa="Abacus 3000 as x86-64-v3")
ONE = Samples(np.array([1.5, 2.0]), np.array([1.0, 2.0]), np.array([0.0, 3.0]), 2)


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    path = tmp_path / "all.jsonl"
    with Store([tmp_path / "a.db"]) as store:
        for key in (HERE, THERE, THERE):
            store.add(key, ONE)
        store.reject(Reject(replace(HERE, code="bad"), "conv (/a)", "ended by SIGSEGV"))
        store.reject(Reject(replace(HERE, code="bad"), "conv (/b)", "another reason"))
        assert export(store, path) == 3
    return path


def test_what_fits_is_taken_once(exported: Path, tmp_path: Path) -> None:
    with Store([tmp_path / "b.db"]) as store:
        first, again = take(store, exported), take(store, exported)
        (found,) = store.records(HERE)
        assert store.records(THERE) == []
        assert store.reason(replace(HERE, code="bad")) == "ended by SIGSEGV"
        assert len(store.rejects()) == 1
    assert (first.new, first.known, first.elsewhere) == (1, 0, {THERE.isa: 2})
    assert (again.new, again.known) == (0, 1)
    assert "measured on Abacus 3000" in first.text()
    assert found.seconds.tolist() == ONE.seconds.tolist()


def test_everything_is_taken_when_asked_for(exported: Path, tmp_path: Path) -> None:
    with Store([tmp_path / "b.db"]) as store:
        assert take(store, exported, everything=True).new == 2  # equal rows are one
        assert len(store.records(THERE)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "", "no json", "[]", '{"fissile_store":9}', '{"fissile_store":1}\n{"code":"x"}',
        '{"fissile_store":1}\n' + json.dumps({**vars(HERE), "samples": "[[1],[1],[]]"}),
        '{"fissile_store":1}\n' + json.dumps({**vars(HERE), "samples": '[["1"],[1],[1]]'}),
        '{"fissile_store":1}\n' + json.dumps({**vars(HERE), "samples": "[[NaN],[1],[1]]"}),
        '{"fissile_store":1}\n' + json.dumps({**vars(HERE), "samples": "[[-1],[1],[1]]"}),
        '{"fissile_store":1}\n' + json.dumps({**vars(HERE), "samples": f"[[1{'0' * 400}],[1],[1]]"}),
        '{"fissile_store":1}\n' + json.dumps({**vars(HERE), "samples": "[[1],[1],[1]]", "threads": [1]}),
        '{"fissile_store":1}\n' + json.dumps({**vars(HERE), "samples": "[[1],[1],[1]]", "code": 7}),
        '{"fissile_store":1}\n' + json.dumps({**vars(HERE), "samples": "[[1],[1],[1]]", "isa": "\ud800"}),
        '{"fissile_store":1}\n' + json.dumps({**vars(HERE), "label": "x", "reason": "\ud800"}),
        '{"fissile_store":1}\n' + "[" * 100_000,
    ],
)  # fmt: skip
def test_other_files_are_refused_whole(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text(text)
    with Store([tmp_path / "b.db"]) as store:
        with pytest.raises(StoreError, match="F512"):
            take(store, path)
        assert store.rows() == []
        with pytest.raises(FileMissing):
            take(store, tmp_path / "none")


def test_rejects_of_layers_without_that_table(tmp_path: Path) -> None:
    with Store([tmp_path / "a.db"]) as store:
        store.add(HERE, ONE)
        with store.layers[-1] as layer:
            layer.execute("drop table reject")
    with Store([tmp_path / "a.db", tmp_path / "b.db"]) as store:
        assert store.rejects() == []
        assert store.reason(HERE) is None
        assert len(store.rows()) == 1
