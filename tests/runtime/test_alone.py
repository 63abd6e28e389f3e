"""Memory of a kernel timed alone: places as in a run, constants touched, and only some launches counted."""

import numpy as np
import pytest

from fissile.runtime.alone import Alone, alone_of, placed, touch_far
from fissile.runtime.memory import ALIGNMENT, address_of
from fissile.runtime.plan import TensorInfo


@pytest.mark.parametrize("constants", [0, 1, 3])
def test_everything_has_a_place_of_its_own(constants: int) -> None:
    rng = np.random.default_rng(constants)
    arrays = [rng.standard_normal(n).astype(t) for n, t in [(7, "f4"), (0, "f8"), (33, "f2")]]
    shapes = [(5,), (0,), (129,)]
    outputs = [(s, TensorInfo("y", np.dtype("f4"), s)) for s in shapes]
    moved, results = placed(arrays, outputs, constants)
    assert all((a == b).all() and a.dtype == b.dtype for a, b in zip(arrays, moved, strict=True))
    assert [r.shape for r in results] == shapes
    for k, result in enumerate(results):
        result[...] = k
    assert all((r == k).all() for k, r in enumerate(results))
    assert all((a == b).all() for a, b in zip(arrays, moved, strict=True))
    assert all(address_of(a) % ALIGNMENT == 0 for a in (*moved, *results) if a.size)


@pytest.mark.parametrize("far", [0, 1, 100, 1 << 12])
def test_any_size_can_be_touched(far: int) -> None:
    others = np.ones(far, np.uint8)
    touch_far([np.ones(n, np.float16) for n in (0, 1, 3, 257)], others, far)
    assert others.all()


def test_only_launches_that_count_do() -> None:
    stamps = np.array([0, 5, 10, 12, 30, 39, 100, 101])  # before and after each of four
    assert Alone((1, 2), 0, 0).seconds(stamps, 10.0) == pytest.approx(9.0)
    assert Alone((0,), 0, 0).seconds(stamps, 1.0) == pytest.approx(10.0)


def test_whole_models_are_not_alone() -> None:
    assert alone_of({"threads": 1}) is None
    assert alone_of({"alone": {"timed": [2], "constants": 1, "far": 3}}) == Alone((2,), 1, 3)
