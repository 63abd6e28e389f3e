"""Drawn programs: graph, plan, loop programs and guarded machine code mean the same, at any number of threads."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.codegen.harness import targets
from tests.e2e.agree import assert_agree
from tests.e2e.draw import Case, cases


def test_drawn_programs(request: pytest.FixtureRequest) -> None:
    seconds = float(request.config.getoption("--fuzz-seconds"))
    end = time.monotonic() + seconds
    start = int(request.config.getoption("--fuzz-seed"))
    count, found = 0, start
    while time.monotonic() < end:
        found = start + count
        try:
            _batch(found)
        except BaseException:
            print(f"rerun with --fuzz-seed {found}")
            raise
        count += 1


def _batch(number: int, examples: int = 5) -> None:
    """Some programs; what fails is shrunk."""

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(cases())
    def check(case: Case) -> None:
        assert_agree(case, targets())

    check()
