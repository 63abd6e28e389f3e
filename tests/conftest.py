"""The options that say how much the tests that could take long do, and what tests say at the end."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

SUMMARY = pytest.StashKey[list[str]]()  # lines for the summary of the run


@dataclass(frozen=True)
class Share:
    """An option of a test that could take long: its value in every run, with --long, and what it means."""

    option: str
    every_run: float
    long_run: float
    meaning: str


SHARES = (
    Share("fuzz-seconds", 15, 900, "how long each fuzz test draws"),
    Share("mutants", 0, 20_000, "how many mutated models (0: for --fuzz-seconds)"),
    Share("crafted", 300, 5_000, "how many crafted artifacts are loaded and run"),
    Share("models", 150, 20_000, "how many drawn ONNX models are compared"),
    Share("signals", 150, 1_000, "how many signals end calls of every kind"),
    Share("backend-every", 4, 1, "which of ONNX's node cases are compiled: every n-th"),
    Share("extents-every", 16, 1, "which operators are compiled for extents 0 to 5: every n-th"),
    Share("extents-most", 24, 216, "at how many shapes each of them is called"),
)


def pytest_configure(config: pytest.Config) -> None:
    """What this machine's user has measured decides about no test, and no test adds to it."""
    folder = tempfile.TemporaryDirectory(prefix="fissile-store-")
    config.add_cleanup(folder.cleanup)
    os.environ["FISSILE_STORE"] = str(Path(folder.name) / "tuning.sqlite")
    is_long = config.getoption("--long")
    for share in SHARES:
        name = share.option.replace("-", "_")
        if getattr(config.option, name) is None:
            setattr(config.option, name, share.long_run if is_long else share.every_run)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="the whole of what is otherwise a share")
    parser.addoption(
        "--fuzz-seed", type=int, default=1, help="the first seed: the one a failure printed"
    )
    for share in SHARES:
        text = f"{share.meaning} ({share.every_run:g}; with --long {share.long_run:g})"
        parser.addoption(f"--{share.option}", type=float, default=None, help=text)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = config.stash.get(SUMMARY, [])
    if lines:
        terminalreporter.section("coverage of ONNX")
    for line in lines:
        terminalreporter.line(line)
