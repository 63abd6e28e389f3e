"""Whole ONNX models drawn from a seed, with feeds at several assignments of their free dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from tests.e2e.model_operations import OFTEN, OPERATIONS, first
from tests.e2e.model_pool import FREE, OPSET, Pool, Unfit, Value, code_of, numpy_type

ODD = (np.nan, np.inf, -np.inf, -0.0)
ASSIGNMENTS = 3


@dataclass(frozen=True)
class Drawn:
    """A model; feeds by input name, for each assignment.

    exact: which outputs every engine gives the same bits. odd: whether NaN and infinities are fed.
    """

    model: onnx.ModelProto
    feeds: tuple[dict[str, npt.NDArray[Any]], ...]
    exact: tuple[bool, ...]
    odd: bool

    @property
    def operators(self) -> list[str]:
        """The types of its nodes."""
        return [n.op_type for n in self.model.graph.node]


def drawn(seed: int) -> Drawn:
    """The model of a seed."""
    rng = np.random.default_rng(seed)
    pool = Pool(rng, ("n", "m")[: int(rng.integers(0, 3))], odd=bool(rng.random() < 0.1))
    first(pool)
    wanted = pool.integer(1, 7)
    for _ in range(60):
        if wanted == 0:
            break
        wanted -= _applied(pool, pool.choice([*OPERATIONS, *OFTEN]))
    outputs = _outputs(pool)
    assignments = [
        {name: int(rng.choice(FREE)) for name in pool.free}
        for _ in range(ASSIGNMENTS if pool.free else 1)
    ]
    feeds = tuple(_feeds(pool, numbers) for numbers in assignments)
    return Drawn(_model(pool, outputs), feeds, tuple(v.exact for v in outputs), pool.odd)


def _applied(pool: Pool, name: str) -> bool:
    """Whether the operation fitted; if it did not, the pool is as before."""
    lists = pool.values, pool.inputs, pool.nodes, pool.weights
    before = [len(x) for x in lists]
    try:
        OPERATIONS[name](pool)
    except Unfit:
        for content, count in zip(lists, before):
            del content[count:]
        return False
    return True


def _outputs(pool: Pool) -> list[Value]:
    """Values that nobody reads, and a few of the others."""
    read = {name for n in pool.nodes for name in n.input}
    made = {name for n in pool.nodes for name in n.output}
    found = [v for v in pool.values if v.name not in read or pool.flip(6)]
    found = [v for v in found if v.name in made or pool.flip(4)]
    return found or [pool.values[-1]]


def _feeds(pool: Pool, numbers: dict[str, int]) -> dict[str, npt.NDArray[Any]]:
    feeds = {}
    for value in pool.inputs:
        shape = [numbers[d] if isinstance(d, str) else d for d in value.shape]
        array = pool.array(value.kind, shape)
        if pool.odd and value.is_float:
            chosen = pool.rng.choice(np.array(ODD), shape).astype(array.dtype)
            array = np.where(pool.rng.random(shape) < 0.2, chosen, array).astype(
                numpy_type(value.kind)
            )
        feeds[value.name] = array
    return feeds


def _model(pool: Pool, outputs: list[Value]) -> onnx.ModelProto:
    """All nodes that some output needs."""
    needed = {v.name for v in outputs}
    nodes = []
    for node in reversed(pool.nodes):
        if needed & set(node.output):
            nodes.append(node)
            needed |= set(node.input)
    used = {name for n in nodes for name in n.input} | {v.name for v in outputs}
    infos = [helper.make_tensor_value_info(v.name, code_of(v.kind), v.shape) for v in pool.inputs]
    results = [helper.make_tensor_value_info(v.name, code_of(v.kind), None) for v in outputs]
    weights = [w for w in pool.weights if w.name in used]
    graph = helper.make_graph(nodes[::-1], "drawn", infos, results, weights)
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9)
