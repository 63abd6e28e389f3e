"""Models whose extents depend on data, drawn and run: `python -m tests.e2e.late FIRST COUNT` prints a line per seed.

Out: a JSON list per seed: the seed, and "" or what is wrong. Late tensors of several levels stand beside ready ones in
concats (in every order), elementwise operators, products and reductions, and are outputs. Compared with onnxruntime,
nothing optimised; inputs and outputs lie beside pages that nobody may touch, on 1 and 2 threads. The seed alone is
printed before its model runs, so that a crash has one.
"""

from __future__ import annotations

import ctypes
import json
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

import fissile
from fissile import pipeline
from fissile.errors import FissileError, UnsupportedError
from fissile.runtime import executable
from tests.e2e.here import compiling_here
from tests.e2e.machine import Guarded
from tests.fission.oracle import reference, same

Array = npt.NDArray[Any]
WIDTH = 3
SIZES = (0, 1, 2, 5, 17, 40)
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


@dataclass(frozen=True)
class Tensor:
    """A float value of the model; extents are numbers, or names: equal names are equal extents."""

    name: str
    shape: tuple[int | str, ...]


@dataclass
class Drawn:
    """A model while it is drawn."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    count: int = 0

    def name(self, prefix: str = "t") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def constant(self, *values: int) -> str:
        name = self.name("c")
        self.weights[name] = np.array(values, np.int64)
        return name

    def op(self, kind: str, *inputs: str, **attrs: Any) -> str:
        name = self.name()
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=f"n_{name}", **attrs))
        return name

    def keep(self, name: str, *shape: int | str) -> None:
        self.tensors.append(Tensor(name, shape))

    def pick(self, rank: int | None = None) -> Tensor:
        """A tensor; those made last are likelier."""
        of = [t for t in self.tensors if rank is None or len(t.shape) == rank]
        return of[min(len(of) - 1, int(len(of) * math.sqrt(self.rng.random())))]


def unique(d: Drawn) -> None:
    d.keep(d.op("Unique", d.pick(1).name), d.name("u"))


def nonzero(d: Drawn) -> None:
    t = d.pick()
    found = d.op("Cast", d.op("NonZero", t.name), to=FLOAT)
    u = d.name("u")
    if len(t.shape) == 1:
        d.keep(d.op("Reshape", found, d.constant(-1)), u)
    else:
        d.keep(d.op("Transpose", found, perm=[1, 0]), u, 2)


def compress(d: Drawn) -> None:
    t = d.pick()
    total = d.op("ReduceSum", t.name, d.constant(1), keepdims=0) if len(t.shape) == 2 else t.name
    keep = d.op("Cast", d.op("Relu", total), to=BOOL)
    d.keep(d.op("Compress", t.name, keep, axis=0), d.name("u"), *t.shape[1:])


def counted(d: Drawn) -> str:
    """A number that depends on data: how many elements are above zero, at most nine."""
    whole = d.op("Cast", d.op("Cast", d.op("Relu", d.pick().name), to=BOOL), to=INT64)
    return d.op("Min", d.op("ReduceSum", whole, keepdims=0), d.op("Squeeze", d.constant(9)))


def ranged(d: Drawn) -> None:
    start, step = (d.op("Squeeze", d.constant(v)) for v in (0, 1))
    made = d.op("Range", start, counted(d), step)
    d.keep(d.op("Cast", made, to=FLOAT), d.name("u"))


def sliced(d: Drawn) -> None:
    t = d.pick()
    number = d.op("Reshape", counted(d), d.constant(1))
    zero, last = d.constant(0), d.constant(1 << 40)
    ends = (number, last) if d.rng.random() < 0.5 else (zero, number)
    d.keep(d.op("Slice", t.name, *ends, zero), d.name("u"), *t.shape[1:])


def one_to_one(d: Drawn) -> None:
    t = d.pick()
    d.keep(d.op(str(d.rng.choice(["Neg", "Abs", "Relu", "Sign"])), t.name), *t.shape)


def joined(d: Drawn) -> None:
    """A concat of late and ready tensors in any order."""
    first = d.pick()
    like = [t for t in d.tensors if t.shape[1:] == first.shape[1:]]
    others = [like[int(k)] for k in d.rng.integers(0, len(like), int(d.rng.integers(1, 4)))]
    parts = [first, *others]
    order = d.rng.permutation(len(parts))
    made = d.op("Concat", *(parts[k].name for k in order), axis=0)
    d.keep(made, d.name("k"), *first.shape[1:])


def side_by_side(d: Drawn) -> None:
    """A concat along the last axis of tensors with equal rows."""
    t = d.pick(2)
    other = d.op("Neg", t.name)
    names = [t.name, other] if d.rng.random() < 0.5 else [other, t.name]
    width = d.name("k")
    made = d.op("Concat", *names, axis=1)
    d.keep(d.op("ReduceSum", made, d.constant(1), keepdims=0), t.shape[0])
    d.keep(made, t.shape[0], width)


def added(d: Drawn) -> None:
    """A tensor and one that fits it: of its own shape, or its mean."""
    t = d.pick()
    like = [s for s in d.tensors if s.shape == t.shape]
    other = like[int(d.rng.integers(len(like)))].name
    if d.rng.random() < 0.4:
        other = d.op("ReduceSum", d.pick().name, keepdims=0)
    d.keep(d.op("Add", t.name, other), *t.shape)


def outer(d: Drawn) -> None:
    """Every element of one with every element of another, summed along one axis or not."""
    a, b = d.pick(1), d.pick(1)
    column = d.op("Unsqueeze", a.name, d.constant(1))
    made = d.op("Mul", column, b.name)
    axis = int(d.rng.integers(3))
    if axis < 2:
        total = d.op("ReduceSum", made, d.constant(axis), keepdims=0)
        d.keep(total, (b, a)[axis].shape[0])
    else:
        flat = d.op("Reshape", made, d.constant(-1))
        d.keep(flat, d.name("k"))


def gram(d: Drawn) -> None:
    """A product over a late extent, or of late rows with a constant."""
    t = d.pick(2)
    if t.shape[1] == WIDTH and d.rng.random() < 0.5:
        name = d.name("w")
        d.weights[name] = d.rng.integers(-2, 3, (WIDTH, WIDTH)).astype(np.float32)
        d.keep(d.op("MatMul", t.name, name), *t.shape)
        return
    turned = d.op("Transpose", t.name, perm=[1, 0])
    d.keep(d.op("MatMul", turned, t.name), t.shape[1], t.shape[1])


def expanded(d: Drawn) -> None:
    """A row as often as a late tensor has elements."""
    t = d.pick()
    row = d.op("ReduceSum", d.pick(2).name, d.constant(0, 1), keepdims=1)
    shape = d.op("Concat", d.op("Shape", t.name, end=1), d.constant(WIDTH), axis=0)
    d.keep(d.op("Expand", row, shape), t.shape[0], WIDTH)


GIVERS: Sequence[Callable[[Drawn], None]] = (unique, nonzero, compress, ranged, sliced)
OTHERS: Sequence[Callable[[Drawn], None]] = (
    joined, joined, joined, one_to_one, one_to_one, added, added, side_by_side, outer, gram, expanded,
)  # fmt: skip


def model(seed: int) -> onnx.ModelProto:
    """A model with two inputs, x [n, 3] and v [m]."""
    d = Drawn(np.random.default_rng(seed))
    d.keep("x", "n", WIDTH)
    d.keep("v", "m")
    for k in range(int(d.rng.integers(2, 9))):
        table = GIVERS if k == 0 or d.rng.random() < 0.25 else OTHERS
        table[int(d.rng.integers(len(table)))](d)
    made = [t for t in d.tensors if t.name not in ("x", "v")]
    chosen = {made[-1], *(made[int(k)] for k in d.rng.integers(0, len(made), 3))}
    outputs = [t for t in made if t in chosen]
    infos = [helper.make_tensor_value_info(n, FLOAT, s) for n, s in (("x", ["n", WIDTH]), ("v", ["m"]))]
    results = [helper.make_tensor_value_info(t.name, FLOAT, [None] * len(t.shape)) for t in outputs]
    weights = [numpy_helper.from_array(a, n) for n, a in d.weights.items()]
    graph = helper.make_graph(d.nodes, f"late{seed}", infos, results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def feeds_of(seed: int) -> list[dict[str, Array]]:
    """Small integers, of several sizes."""
    rng = np.random.default_rng(seed)

    def some(*shape: int) -> Array:
        return rng.integers(-2, 3, shape).astype(np.float32)

    sizes = rng.choice(SIZES, (3, 2))
    return [{"x": some(int(n), WIDTH), "v": some(int(m))} for n, m in sizes]


# ---------------------------------------------------------------- running

_HELD: list[Guarded] = []


def fresh(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, int]:
    """An array whose end is the end of what may be touched, and its address."""
    size = math.prod(shape) * dtype.itemsize
    made = Guarded.of(size, lead=False)
    _HELD.append(made)
    buffer = (ctypes.c_char * max(size, 1)).from_address(made.start)
    return np.ndarray(shape, dtype, buffer), made.start  # type: ignore[arg-type]


def guarded(array: Array) -> Array:
    """A copy of an array that ends where nothing may be read."""
    copy, _ = fresh(array.shape, array.dtype)
    copy[...] = array
    return copy


class GuardedLender:
    """In place of `lend.Lender`: outputs that end where nothing may be written."""

    def __init__(self, frames: object) -> None:
        self.frames = frames

    def lend(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, int]:
        return fresh(shape, dtype)

    def trim(self) -> None:
        """Nothing is kept."""


def verdict(seed: int) -> str:
    """What happens to the model of a seed: "" when everything agrees."""
    made = model(seed)
    try:
        one = fissile.compile(made, threads=1, cache=False, foreign="allow")
    except UnsupportedError:
        return ""
    two = one.with_threads(2)
    for feeds in feeds_of(seed):
        try:
            wanted = reference(made, feeds)
        except RuntimeError:
            continue
        try:
            given = {name: guarded(array) for name, array in feeds.items()}
            results = [list(e.run(given).values()) for e in (one, one, two)]
        except FissileError as error:
            return f"{[a.shape for a in feeds.values()]}: {error}"
        for got in results:
            for a, b, info in zip(got, wanted, one.outputs, strict=True):
                if not same(a, b, 1e-5):
                    shapes = [x.shape for x in feeds.values()]
                    return f"{shapes}: {info.name} is {a.shape} {a.ravel()[:5]}, not {b.shape} {b.ravel()[:5]}"
        if any(a.tobytes() != b.tobytes() for a, b in zip(results[0], results[2])):
            return "other bits on two threads"
        release()
    return ""


def release() -> None:
    """Give back all that is held; ValueError where something was written beside it."""
    while _HELD:
        _HELD.pop().release()


def main() -> None:
    """Run the seeds of the command line."""
    first, count = map(int, sys.argv[1:])
    with (
        patch.object(pipeline, "compiling", compiling_here),
        patch.object(executable, "Lender", GuardedLender),
    ):
        for seed in range(first, first + count):
            print(json.dumps(seed), flush=True)
            try:
                said = verdict(seed)
            except (AssertionError, RuntimeError, ValueError, TypeError, LookupError):
                said = traceback.format_exc()
            print(json.dumps([seed, said]), flush=True)


if __name__ == "__main__":
    main()
