"""Models with something wrong in them: one clear error each, or results; no signal, nothing over 30 s or 8 GiB."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import onnx
import pytest
from onnx import TensorProto, helper

from tests.conftest import SUMMARY
from tests.e2e import mutate

Row = tuple[int, str, str]


@pytest.mark.timeout(36_000)
def test_mutated_models(request: pytest.FixtureRequest) -> None:
    """As many as `--mutants` says; without it, those that the seconds of the fuzz test are enough for."""
    first = 1000 * int(request.config.getoption("--fuzz-seed"))
    count = int(request.config.getoption("--mutants"))
    jobs = len(os.sched_getaffinity(0)) if count else 1
    seconds = 36_000.0 if count else float(request.config.getoption("--fuzz-seconds"))
    shares = [range(first + k, first + (count or 100_000), jobs) for k in range(jobs)]
    with ThreadPoolExecutor(jobs) as pool:
        parts = pool.map(lambda share: list(_within(share, seconds)), shares)
    rows = [*itertools.chain(*parts)]
    counts = Counter(kind for _, kind, _ in rows)
    request.config.stash.setdefault(SUMMARY, []).append(
        f"mutated models: {len(rows)}, {counts['run']} run, {counts['compiled']} compiled only"
    )
    assert not [row for row in rows if row[1] == "wrong"], "python -m tests.e2e.mutate NUMBER 1"
    assert len(rows) == count or not count
    assert len(rows) >= 20
    assert counts["run"]
    assert counts["refused when called to check"]


def _within(numbers: Sequence[int], seconds: float) -> Iterator[Row]:
    rows, end = mutate.verdicts(numbers), None
    for row in rows:
        yield row
        end = end or time.monotonic() + seconds  # the first one waits for the child to start
        if time.monotonic() > end:
            rows.close()
            return


def test_mutants_are_what_their_numbers_say() -> None:
    made = [mutate.mutant(number) for number in range(200)]
    assert made == [mutate.mutant(number) for number in range(200)]
    assert len(set(made)) > 190


@pytest.mark.parametrize(
    ("said", "kind"),
    [(b"", "refused when called to check"), (b"\x08\x08", "refused when called to check")],
)
def test_what_is_no_model_is_refused(said: bytes, kind: str) -> None:
    assert mutate.verdict(said) == (kind, "F011")


@pytest.mark.parametrize(
    ("kind", "output", "found"),
    [
        ("Relu", "nowhere", ("refused when called to check", "F012")),
        ("SequenceConstruct", "y", ("refused when called to compile", "F021")),
        ("Relu", "y", ("run", "")),
    ],
)
def test_check_looks_at_what_leaves_the_graph(
    kind: str, output: str, found: tuple[str, str]
) -> None:
    """A name that no node makes, and a sequence, is not promised to run."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    leaving = onnx.ValueInfoProto(name=output)
    if kind == "SequenceConstruct":
        leaving.type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT
    graph = helper.make_graph([helper.make_node(kind, ["x"], ["y"])], "g", [x], [leaving])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert mutate.verdict(model.SerializeToString()) == found
