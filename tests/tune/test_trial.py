"""Kernels alone: the artifact runs them as a network would find them, equal ones share a hash."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fissile.ir.dim import symbol
from fissile.ir.graph import Graph, Node, make
from fissile.ir.primitive import INPUT, PRIMITIVES, constant
from fissile.options import resolve_target
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.plan import Kernel
from fissile.runtime.alone import alone_of
from fissile.runtime.artifact import read_artifact
from fissile.runtime.measure import Request, measure
from fissile.tune.trial import State, Trial, artifact_of, artifacts_of, launches_of, trials

TARGET = resolve_target()
WARM, COLD = State(0, 1 << 20), State(1 << 16, 1 << 20)
RNG = np.random.default_rng(0)


def product(columns: int, seed: int = 0) -> Kernel:
    weights = np.random.default_rng(seed).standard_normal((5, columns)).astype(np.float32)
    return last(make(PRIMITIVES["matmul"], rows(5), constant(weights)))


def rows(columns: int) -> Node:
    return make(INPUT, name="x", dtype="float32", shape=(symbol("n"), columns))


def last(node: Node) -> Kernel:
    inputs = [node.inputs[0]]
    return greedy_plan(Graph(tuple(inputs), (("y", node),))).kernels()[-1]


def trial(kernel: Kernel, state: State = WARM, seconds: float = 1e-4, n: int = 3) -> Trial:
    return trials([kernel], TARGET, {"n": n}, state, [seconds])[0]


def test_values_do_not_matter_and_extents_do() -> None:
    one = trial(product(7))
    assert one.code == trial(product(7, seed=1)).code
    assert one.code != trial(product(7), n=4).code
    assert one.code != trial(product(9)).code
    assert launches_of(one) == 16
    assert launches_of(trial(product(7), seconds=1e-2)) == 1
    assert launches_of(trial(product(7), seconds=1e-6)) == 16


@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_run_in_the_measuring_child(tmp_path: Path, threads: int) -> None:
    kernels = [product(7), last(make(PRIMITIVES["exp"], rows(3)))]
    found = trials(kernels, TARGET, {}, COLD, [1e-4, 1e-5])
    paths = []
    for k, artifact in enumerate(artifacts_of(found, TARGET, threads, most=1 << 16)):
        path = tmp_path / f"{k}.fsl"
        path.write_bytes(artifact)
        paths.append(str(path))
    samples = measure(Request(tuple(paths), threads, samples=3, seconds=1e-4))
    assert all((s.seconds > 0).all() for s in samples)


def test_places_of_an_arena_that_leaves_the_caches_are_far() -> None:
    near, far = State(0, 1 << 25, arena=1 << 25), State(0, 1 << 25, arena=1 << 26)
    assert near.name == State(0, 1 << 25).name != far.name
    sizes = []
    for state in (near, far):
        found = trial(product(7), state, seconds=1e-6)
        assert launches_of(found) == (16 if state is near else 1)
        artifact = read_artifact(artifacts_of([found], TARGET, 1, most=1 << 16)[0])
        rows_of = json.loads(bytes(artifact.member("plan.json")))["inputs"]
        sizes.append(next(row["shape"][0] for row in rows_of if row["name"] == "lead"))
    assert sizes == [2 * TARGET.l2 // 4, 5 * (1 << 23) // 4]


def test_indices_are_the_real_ones() -> None:
    table = make(INPUT, name="x", dtype="float32", shape=(6, 2))
    node = make(PRIMITIVES["gather"], table, constant(np.array([5, 0, 3])), axis=0)
    artifact = artifact_of(last(node), TARGET)
    assert np.array([5, 0, 3]).tobytes() in artifact


def test_what_the_network_touches_between_has_copies() -> None:
    warm = artifact_of(product(7), TARGET, extents={"n": 2})
    found = trials([product(7)], TARGET, {"n": 2}, COLD, [1e-4])
    cold = artifacts_of(found, TARGET, 1, most=1 << 16)[0]
    assert warm.count(b'"name":"t') < cold.count(b'"name":"t')
    assert COLD.name == State(40_000, 1 << 20).name != WARM.name
    assert State(1 << 40, 1 << 20).touched == 5 << 18


@pytest.mark.parametrize("count", [1, 3])
def test_what_a_launch_reads_and_writes_has_just_been_written(count: int) -> None:
    inner = make(PRIMITIVES["matmul"], rows(6), constant(np.ones((6, 5), np.float32)))
    outer = make(PRIMITIVES["matmul"], inner, constant(np.ones((5, 7), np.float32)))
    kernels = greedy_plan(Graph((rows(6),), (("y", outer),))).kernels()
    first, found = trials([kernels[0], kernels[-1]], TARGET, {"n": 2}, COLD, [2e-3 / count] * 2)
    artifact = read_artifact(artifacts_of([found], TARGET, 1, most=1 << 16)[0])
    alone = alone_of(artifact.manifest)
    plan = json.loads(bytes(artifact.member("plan.json")))
    names = [row["kernel"] for row in plan["launches"]]
    assert alone is not None
    assert names == [*["k1", "k1", "k1", "k0"] * count, "k1"]  # output, something large, input, the kernel
    assert alone.timed == tuple(4 * k + 3 for k in range(count))
    assert plan["template"][plan["launches"][-1]["tasks"]] == 0
    assert [row["step"] for row in plan["launches"]] == [*range(len(names))]
    constants = [row["name"] for row in plan["inputs"][: alone.constants]]
    assert len(constants) == count
    assert alone.far == COLD.touched
    given = read_artifact(artifacts_of([first], TARGET, 1, most=1 << 16)[0])  # nobody writes the model's input
    rows_of = json.loads(bytes(given.member("plan.json")))["launches"]
    assert [row["kernel"] for row in rows_of] == [*["k1", "k1", "k0"] * count, "k1"]
    assert given.manifest["alone"]["constants"] == 2 * count
