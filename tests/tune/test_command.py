"""The command `tune` around what is tuned: who else writes the artifact, interruptions while writing, lost readers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fissile import cli, compiler
from fissile.commands import tune as command
from fissile.commands.tune import NO_BUDGET, Screen, tuned_beside
from fissile.options import Event
from fissile.tune.tune import Tuned

FOUND = Tuned(b"ours", "tuned", "plan 1", "{}", {}, {}, {}, {}, False, ())


@pytest.fixture(autouse=True)
def _as_in_a_terminal() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def by_rename(path: Path, data: bytes) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(data)
    os.replace(other, path)


@pytest.mark.parametrize("at_first", [b"", b"before"])
def test_what_another_process_has_written_meanwhile_is_a_rival(tmp_path: Path, at_first: bytes) -> None:
    path, asked = tmp_path / "m.fsl", list[tuple[str, bytes]]()
    if at_first:
        path.write_bytes(at_first)

    def tune(budget: str, installed: Path | None) -> Tuned:
        asked.append((budget, installed.read_bytes() if installed else b""))
        if len(asked) < 3:
            by_rename(path, b"theirs %d" % len(asked))
        return FOUND

    assert tuned_beside(path, "1m", tune) == (FOUND, True)
    assert asked == [("1m", at_first), (NO_BUDGET, b"theirs 1"), (NO_BUDGET, b"theirs 2")]


def test_after_an_interruption_what_another_process_has_written_stays(tmp_path: Path) -> None:
    path, stopped = tmp_path / "m.fsl", replace(FOUND, is_interrupted=True)

    def tune(budget: str, installed: Path | None) -> Tuned:
        by_rename(path, b"theirs")
        return stopped

    assert tuned_beside(path, "1m", tune) == (stopped, False)


def tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: Tuned, *options: str) -> int:
    """The exit code of the command, where tuning finds this."""
    monkeypatch.setattr(compiler, "tune", lambda *_, **__: found)
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").touch()
    with pytest.raises(SystemExit) as ended:
        cli.main(["tune", "m.onnx", "--budget", "9s", *options])
    return int(ended.value.code or 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_while_writing_waits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals
) -> None:
    install = command._install

    def interrupted(*arguments: Any) -> None:
        signal.raise_signal(number)
        install(*arguments)

    monkeypatch.setattr(command, "_install", interrupted)
    assert tuned(monkeypatch, tmp_path, FOUND, "--save-plan", "plan.json") == 130
    assert (Path("m.fsl").read_bytes(), Path("plan.json").read_text()) == (b"ours", "{}")
    assert tuned(monkeypatch, tmp_path, replace(FOUND, artifact=b"new"), "--force") == 130
    assert Path("m.fsl").read_bytes() == b"new"


def test_exit_codes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert tuned(monkeypatch, tmp_path, FOUND) == 0
    assert tuned(monkeypatch, tmp_path, replace(FOUND, is_interrupted=True), "--force", "--json") == 130
    Path("precious.txt").write_text("keep me")
    assert tuned(monkeypatch, tmp_path, FOUND, "-o", "precious.txt") == 1
    assert Path("precious.txt").read_text() == "keep me"


def test_nobody_has_to_read_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as broken, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", broken)
        for as_json in (False, True):
            screen = Screen(quiet=False, as_json=as_json)
            for stage in ("model", "round", "measuring", "lower"):
                screen.show(Event(stage, "a text", share=0.5))
            screen.clear()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)


def test_every_event_is_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(quiet=False, as_json=True)
    for number in range(3):
        screen.show(Event("measuring", f"kernel {number}/3", share=0.5))
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert lines == [{"stage": "measuring", "text": f"kernel {n}/3", "share": 0.5} for n in range(3)]


@pytest.mark.parametrize("closed", [(1,), (2,), (1, 2)])
def test_closed_streams_are_no_failure(closed: tuple[int, ...]) -> None:
    """As `fissile ... 2>&-` has them."""
    redirected = " ".join(f"{number}>&-" for number in closed)
    line = f'"{sys.executable}" -m fissile.cli show --rules {redirected}'
    root = Path(__file__).parents[2]
    assert subprocess.run(["/bin/sh", "-c", line], cwd=root, check=False, timeout=60).returncode == 0
