"""Differences of arrays: finite, special, unlike."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fissile.compare.difference import difference, worst


@given(st.floats(1e-3, 1e3), st.floats(-1e-2, 1e-2))
def test_relative_to_the_largest_magnitude(scale: float, gap: float) -> None:
    want = np.array([scale, -scale / 3, 0.0])
    have = want + [0.0, 0.0, gap]
    found = difference(want, have)
    assert found.max_abs == pytest.approx(abs(gap))
    assert found.max_rel == pytest.approx(abs(gap) / scale)


def test_specials_at_equal_places_agree() -> None:
    want = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert difference(want, want.copy()).within(0.0)
    for place, value in ((0, 1.0), (1, -np.inf), (1, np.nan), (3, np.nan), (3, np.inf)):
        have = want.copy()
        have[place] = value
        found = difference(want, have)
        assert not found.within(1e9)
        assert f"[{place}]" in found.reason


def test_unlike_arrays_are_named() -> None:
    x = np.zeros((2, 3), np.float32)
    assert "shape" in difference(x, x[:1]).reason
    assert "float64" in difference(x, x.astype(np.float64)).reason
    assert difference(np.zeros((0, 3)), np.zeros((0, 3))).within(0.0)
    assert math.isinf(difference(np.zeros(2), np.array([0.0, 1e-9])).max_rel)


def test_the_worst_output_counts() -> None:
    want = {"a": np.ones(3), "b": np.ones(2)}
    have = {"a": np.ones(3) * 1.5, "b": np.ones(2) * 1.25}
    assert worst(want, have).max_rel == 0.5
    assert worst(want, have | {"b": np.ones(3)}).reason


def test_noise_is_no_difference_but_what_goes_beyond_it_is() -> None:
    want, have = np.array([100.0, 1.0, 5.0]), np.array([100.0, 1.5, 5.0])
    assert difference(want, have, np.array([0.0, 0.5, 0.0])).within(0.0)
    found = difference(want, have, np.array([9.0, 0.25, 9.0]))
    assert (found.max_abs, found.max_rel) == (0.25, 0.0025)
    assert difference(want, want, np.zeros(3)).within(0.0)


def test_noise_excuses_specials_only_where_it_is_infinite() -> None:
    want = np.array([1.0, np.inf, np.nan, np.inf])
    have = np.array([np.nan, 3e38, 1.0, np.inf])
    assert difference(want, have, np.array([np.inf, np.inf, np.inf, 0.0])).within(0.0)
    for place in range(3):
        noise = np.full(4, np.inf)
        noise[place] = 1e300
        assert not difference(want, have, noise).within(1e9)
