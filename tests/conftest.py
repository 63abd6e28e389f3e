"""The options that say how long the fuzz test searches, and from where on."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz-seconds", type=float, default=10, help="how long the fuzz test draws programs"
    )
    parser.addoption(
        "--fuzz-seed", type=int, default=1, help="the first seed: the one a failure printed"
    )
