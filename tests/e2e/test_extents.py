"""Every native operator at extents 0 to 5: the value of onnxruntime or the reference, or a refusal where they refuse.

All models by the numpy meaning of their primitives at a few shapes, some of them as machine code at more; with
`--extents-every 1` all of them as machine code, with `--extents-most 216` at every shape of three free extents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.codegen.harness import targets
from tests.conftest import SUMMARY
from tests.e2e.operators import ROWS
from tests.e2e.sweep import Count, Peer, sweep, why


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    pytest.importorskip("onnxruntime")
    made = Peer()
    yield made
    made.stop()


def _faults(count: Count) -> str:
    return "\n".join(str(f) for f in count.findings if not why(f))


def test_by_the_meaning_of_primitives(peer: Peer) -> None:
    count = Count()
    for row in ROWS:
        sweep(row, peer, None, 8, count)
    assert not (faults := _faults(count)), faults
    assert count.calls > 4 * count.models
    assert count.equal > count.calls // 2


@pytest.mark.timeout(7200)  # of the whole table at every shape
def test_as_machine_code(peer: Peer, request: pytest.FixtureRequest) -> None:
    every = int(request.config.getoption("--extents-every"))
    most = int(request.config.getoption("--extents-most"))
    count = Count()
    for row in ROWS[::every]:
        sweep(row, peer, targets()[-1], most, count)
    reasons = Counter(why(f) for f in count.findings)
    lines = request.config.stash.setdefault(SUMMARY, [])
    lines.append(
        f"extents 0 to 5: {count.models} models, {count.calls} calls, {count.equal} equal, "
        f"{count.both_refuse} refused by both, {len(count.foreign)} models run in Python"
    )
    lines.extend(f"  {n} calls: {reason}" for reason, n in sorted(reasons.items()) if reason)
    assert not (faults := _faults(count)), faults
