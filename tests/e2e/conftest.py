"""The option that says how long the fuzz test searches."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz-seconds", type=float, default=10, help="how long the fuzz test draws programs"
    )
