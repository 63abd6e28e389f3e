"""The options that say how much the tests that could take long do, and what tests say at the end."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

SUMMARY = pytest.StashKey[list[str]]()  # lines for the summary of the run


def pytest_configure(config: pytest.Config) -> None:
    """What this machine's user has measured decides about no test, and no test adds to it."""
    folder = tempfile.TemporaryDirectory(prefix="fissile-store-")
    config.add_cleanup(folder.cleanup)
    os.environ["FISSILE_STORE"] = str(Path(folder.name) / "tuning.sqlite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz-seconds", type=float, default=10, help="how long the fuzz test draws programs"
    )
    parser.addoption(
        "--fuzz-seed", type=int, default=1, help="the first seed: the one a failure printed"
    )
    parser.addoption(
        "--mutants", type=int, default=0, help="how many mutated models (0: for --fuzz-seconds)"
    )
    parser.addoption(
        "--crafted", type=int, default=300, help="how many crafted artifacts are loaded and run"
    )
    parser.addoption(
        "--signals", type=int, default=150, help="how many signals end calls of every kind"
    )
    parser.addoption(
        "--models", type=int, default=150, help="how many drawn ONNX models are compared"
    )
    parser.addoption(
        "--backend-every", type=int, default=1, help="which node cases are compiled: every n-th"
    )
    parser.addoption(
        "--extents-every",
        type=int,
        default=16,
        help="which operators are compiled for extents 0 to 5",
    )
    parser.addoption(
        "--extents-most", type=int, default=24, help="at how many shapes each of them is called"
    )


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = config.stash.get(SUMMARY, [])
    if lines:
        terminalreporter.section("coverage of ONNX")
    for line in lines:
        terminalreporter.line(line)
