"""The options that say how much the tests that could take long do."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz-seconds", type=float, default=10, help="how long the fuzz test draws programs"
    )
    parser.addoption(
        "--fuzz-seed", type=int, default=1, help="the first seed: the one a failure printed"
    )
    parser.addoption(
        "--backend-every", type=int, default=32, help="which node cases are compiled: every n-th"
    )
