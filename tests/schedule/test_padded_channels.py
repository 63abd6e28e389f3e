"""Depthwise windows over images whose channels are padded, too: some lanes of a vector read zeros, others memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fissile.ir.dim import symbol
from fissile.ir.graph import Graph, Node, data, make
from fissile.ir.primitive import PRIMITIVES, constant
from tests.codegen.harness import targets
from tests.e2e.agree import assert_agree
from tests.e2e.draw import Case

Made = Callable[[Node, int], Node]


def _padded(channels: int) -> Node:
    x = make(PRIMITIVES["input"], name="x0", dtype="float32", shape=(2, symbol("n"), channels))
    zero = data(np.array(0, np.float32))
    return make(PRIMITIVES["pad"], x, low=(0, 1, 2), high=(0, 1, 3), value=zero)


def _convolved(x: Node, channels: int) -> Node:
    weights = np.arange(2 * (channels + 5), dtype=np.float32).reshape(2, 1, channels + 5)
    ones = {"strides": (1,), "dilations": (1,)}
    return make(PRIMITIVES["conv"], x, constant(weights), groups=channels + 5, **ones)


def _pooled(x: Node, _: int) -> Node:
    window = make(PRIMITIVES["window"], x, axes=(1,), sizes=(2,), strides=(1,), dilations=(1,))
    return make(PRIMITIVES["reduce_max"], window, axes=(3,))


@pytest.mark.parametrize("filling", ["whole", "odd"])
@pytest.mark.parametrize("channels", [5, 19])
@pytest.mark.parametrize("made", [_convolved, _pooled])
def test_padded_channels(made: Made, channels: int, filling: str) -> None:
    node = made(_padded(channels), channels)
    (read,) = [n for n in Graph((), (("y0", node),)).nodes() if n.name == "input"]
    graph = Graph((read,), (("y0", node),))
    assert_agree(Case(graph, ({"n": 7}, {"n": 1}), 3, filling, False), targets())
