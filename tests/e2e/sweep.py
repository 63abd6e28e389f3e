"""Operators of the table at free extents from 0 to 5, as guarded machine code, against onnxruntime and the reference.

In: a `Row`. Out: findings: calls whose outcome is not what onnxruntime, or else the reference, says. A model is
compiled once and called at many shapes; onnxruntime runs in a process of its own, since empty tensors end it now and
then.
"""

from __future__ import annotations

import atexit
import itertools
import multiprocessing as mp
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fissile import pipeline
from fissile.errors import FissileError
from fissile.ir.dim import evaluate as number
from fissile.ir.graph import Graph, evaluate
from fissile.options import Options
from fissile.target import Target
from tests.e2e import machine, promises
from tests.e2e.operators import Row

Arrays: TypeAlias = dict[str, np.ndarray]
LARGEST = 5
ALL = 216  # assignments tried where a row has at most three free extents
SECONDS = 30
_TYPES = {
    "f": "float32", "d": "float64", "p": "float32", "i": "int64", "j": "int32", "B": "uint8", "s": "int8", "b": "bool",
}  # fmt: skip


@dataclass(frozen=True)
class Refused:
    """Somebody does not answer, and says why."""

    reason: str


Outcome: TypeAlias = list[np.ndarray] | Refused


@dataclass(frozen=True)
class Finding:
    """A call whose outcomes do not agree. kind: wrong, refused, answered, crashed."""

    kind: str
    row: Row
    extents: Mapping[str, int]
    detail: str
    own: Outcome = field(default_factory=list)
    third: Outcome = field(default_factory=list)  # of the reference

    def __str__(self) -> str:
        return f"{self.kind}: {self.row} at {dict(self.extents)}: {self.detail}"


@dataclass
class Count:
    """What a sweep has done."""

    models: int = 0
    calls: int = 0
    equal: int = 0
    both_refuse: int = 0
    foreign: list[Row] = field(default_factory=list)  # models that run in Python
    findings: list[Finding] = field(default_factory=list)


# ---------------------------------------------------------------- models


@dataclass(frozen=True)
class _Input:
    name: str
    kind: str
    shape: tuple[int | str, ...]


def _parsed(row: Row) -> tuple[list[_Input], Arrays, list[str]]:
    """(inputs, constants, names in order)."""
    inputs, constants, names = [], {}, []
    rng = np.random.default_rng(3)
    for text in row.inputs:
        name, *words = text.split()
        if name == "-":
            names.append("")
            continue
        names.append(name)
        if words[0].startswith("="):
            constants[name] = _literal(words[0][1:], words[1:])
        elif words[0].startswith("!"):
            shape = tuple(int(w) for w in words[1:])
            constants[name] = _drawn(rng, words[0][1:], shape, {})
        else:
            dims = tuple(int(w) if w.isdigit() else w for w in words[1:])
            inputs.append(_Input(name, words[0], dims))
    return inputs, constants, names


def _literal(kind: str, words: list[str]) -> np.ndarray:
    letter = kind.strip(".")
    values = np.array([float(w) for w in words]).astype(_TYPES[letter or "i"])
    return values.reshape(()) if kind.startswith(".") else values


def _drawn(
    rng: np.random.Generator, kind: str, shape: tuple[int, ...], extents: Mapping[str, int]
) -> np.ndarray:
    if kind[0] in "@^+":
        n = int(kind[1:]) if kind[1:].isdigit() else extents[kind[1:]]
        if kind[0] == "+":
            return rng.integers(min(n, 1), n + 1, shape)
        return (
            rng.integers(-n if kind[0] == "@" else 0, n, shape) if n else np.zeros(shape, np.int64)
        )
    if kind == "p":
        return rng.uniform(0.1, 2, shape).astype(np.float32)
    if kind in "fd":
        return rng.standard_normal(shape).astype(_TYPES[kind])
    if kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return rng.integers(0 if kind == "B" else -4, 6, shape).astype(_TYPES[kind])


def model_of(row: Row) -> onnx.ModelProto:
    """The model of a row; its outputs are declared without shapes."""
    inputs, constants, names = _parsed(row)
    infos = [
        helper.make_tensor_value_info(
            x.name, helper.np_dtype_to_tensor_dtype(np.dtype(_TYPES.get(x.kind, "int64"))), x.shape
        )
        for x in inputs
    ]
    results = [f"out{k}" for k in range(row.outputs)]
    node = helper.make_node(row.op, names, results, name="it", domain=row.domain, **row.attributes)
    weights = [numpy_helper.from_array(v, k) for k, v in constants.items()]
    made = [onnx.ValueInfoProto(name=r) for r in results]
    graph = helper.make_graph([node], "test", infos, made, weights)
    opsets = [helper.make_opsetid("", row.opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8 if row.opset < 19 else 10)


def letters(row: Row) -> list[str]:
    """The free extents of a row."""
    found = (d for x in _parsed(row)[0] for d in x.shape if isinstance(d, str))
    return list(dict.fromkeys(found))


def assignments(row: Row, most: int) -> Iterator[dict[str, int]]:
    """Numbers for the free extents: all there are, or so many drawn ones with the small and the equal first."""
    names = letters(row)
    every = list(itertools.product(range(LARGEST + 1), repeat=len(names)))
    if len(every) > most:
        first = [(n,) * len(names) for n in range(LARGEST + 1)]
        drawn = np.random.default_rng(len(names)).permutation(len(every))[: most - len(first)]
        every = list(dict.fromkeys([*first, *(every[k] for k in drawn)]))[:most]
    yield from (dict(zip(names, numbers, strict=True)) for numbers in every)


def feeds_of(row: Row, extents: Mapping[str, int]) -> Arrays:
    """Arrays for the inputs of a row."""
    rng = np.random.default_rng(7)
    found = {}
    for x in _parsed(row)[0]:
        shape = tuple(extents[d] if isinstance(d, str) else d for d in x.shape)
        found[x.name] = _drawn(rng, x.kind, shape, extents)
    return found


# ---------------------------------------------------------------- onnxruntime, in a process of its own


def _serve(pipe: Any) -> None:
    import onnxruntime  # noqa: PLC0415  # in the child alone

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = None
    while (given := pipe.recv()) is not None:
        try:
            if isinstance(given, bytes):
                session = onnxruntime.InferenceSession(given, options, ["CPUExecutionProvider"])
                pipe.send([])
            else:
                assert session is not None
                pipe.send(session.run(None, given))
        except Exception as error:  # noqa: BLE001  # whatever it is, it does not answer
            pipe.send(Refused(str(error)[:300]))


class Peer:
    """onnxruntime with a model; started again where a call has ended it."""

    def __init__(self) -> None:
        self.process: Any = None
        self.model = b""
        atexit.register(self.stop)

    def load(self, model: onnx.ModelProto) -> Refused | None:
        """Take a model; why not, if so."""
        self.model = model.SerializeToString()
        answer = self._ask(self.model)
        return answer if isinstance(answer, Refused) else None

    def run(self, feeds: Arrays) -> Outcome:
        """The outputs for a call."""
        if self.process is None:
            self._ask(self.model)
        return self._ask(feeds)

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None

    def _ask(self, what: Any) -> Outcome:
        if self.process is None:
            context = mp.get_context("spawn")
            self.pipe, theirs = context.Pipe()
            self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
            self.process.start()
            theirs.close()
        try:
            self.pipe.send(what)
            if self.pipe.poll(SECONDS):
                answer: Outcome = self.pipe.recv()
                return answer
        except (EOFError, OSError):
            pass
        self.process.join(1)
        code = self.process.exitcode
        self.stop()
        return Refused("takes too long" if code is None else f"ends its process with {code}")


def reference(model: onnx.ModelProto, feeds: Arrays) -> Outcome:
    """The outputs by onnx.reference."""
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415  # slow to import, seldom needed

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [np.asarray(a) for a in ReferenceEvaluator(model).run(None, feeds)]
    except Exception as error:  # noqa: BLE001  # whatever it is, it does not answer
        return Refused(f"{type(error).__name__}: {str(error)[:200]}")


# ---------------------------------------------------------------- this compiler


class Own:
    """A row's model compiled once; refusals of a call are its guards."""

    def __init__(self, model: onnx.ModelProto, target: Target | None) -> None:
        """target: None computes by the numpy meaning of the primitive graph."""
        content = model.SerializeToString()
        work = pipeline.Work(content, None, (target,) if target else (), 1, Options())
        last = "text" if target else "canonicalize"
        for stage in pipeline.STAGES:
            work = stage.run(work)
            if stage.name == last:
                break
        self.graph: Graph = work.known("graph")
        self.built = machine.build(work) if target else None
        self.turn = 0

    def run(self, feeds: Arrays, extents: Mapping[str, int]) -> Outcome:
        """The outputs for a call. AssertionError where the machine code touches what is not its own."""
        for guard in self.graph.guards:
            if number(guard.left, extents) != number(guard.right, extents):
                return Refused(guard.message)
        if self.built is None:
            with np.errstate(all="ignore"):
                return list(evaluate(self.graph, feeds, extents).values())
        self.turn += 1
        return list(machine.run(self.built, extents, feeds, 1, self.turn % 2 == 0).values())


# ---------------------------------------------------------------- the verdict


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal types, shapes and values, but for roundings."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    return bool(np.allclose(a, b, 2e-5, 2e-5, equal_nan=True))


def _all_same(a: Outcome, b: Outcome) -> bool:
    if isinstance(a, Refused) or isinstance(b, Refused):
        return isinstance(a, Refused) and isinstance(b, Refused)
    return len(a) == len(b) and all(same(x, np.asarray(y)) for x, y in zip(a, b, strict=True))


def _told(outcome: Outcome) -> str:
    if isinstance(outcome, Refused):
        return f"refuses ({outcome.reason})"
    return " ".join(f"{a.dtype}{list(a.shape)}{a.reshape(-1)[:4].tolist()}" for a in outcome)


def promised(row: Row, feeds: Arrays) -> Outcome | None:
    """What the README says of indices out of range, where onnxruntime refuses; None where it says nothing."""
    rule = promises.RULES.get(row.op)
    if rule is None:
        return None
    try:
        return [rule({**_parsed(row)[1], **feeds}, row.attributes)]
    except IndexError as error:
        return Refused(str(error))


def _finding(
    row: Row,
    model: onnx.ModelProto,
    extents: Mapping[str, int],
    feeds: Arrays,
    own: Outcome,
    ort: Outcome,
) -> Finding | None:
    """What is wrong with an outcome that is not onnxruntime's; None where README or reference take our side."""
    said = promised(row, feeds)
    if said is not None and _all_same(own, said):
        return None
    third = reference(model, feeds)
    if not isinstance(own, Refused) and _all_same(own, third):
        return None
    kind = (
        "refused"
        if isinstance(own, Refused)
        else "answered"
        if isinstance(ort, Refused)
        else "wrong"
    )
    detail = f"{_told(own)}, onnxruntime {_told(ort)}, reference {_told(third)}"
    return Finding(kind, row, extents, detail, own, third)


def sweep(row: Row, peer: Peer, target: Target | None, most: int, count: Count) -> None:
    """Compile a row and call it at up to `most` shapes; adds to `count`."""
    model = model_of(row)
    problem = peer.load(model)
    own: Own | Refused
    try:
        own = Own(model, target)
    except FissileError as error:
        own = Refused(str(error))
    count.models += 1
    if isinstance(own, Own) and any(n.name == "foreign" for n in own.graph.nodes()):
        count.foreign.append(row)
        return
    for extents in assignments(row, most):
        feeds = feeds_of(row, extents)
        count.calls += 1
        try:
            mine = own if isinstance(own, Refused) else own.run(feeds, extents)
        except (AssertionError, ValueError, IndexError) as error:
            count.findings.append(Finding("crashed", row, extents, str(error)[:400]))
            continue
        theirs = problem or peer.run(feeds)
        if _all_same(mine, theirs):
            count.equal += not isinstance(mine, Refused)
            count.both_refuse += isinstance(mine, Refused)
        elif (found := _finding(row, model, extents, feeds, mine, theirs)) is not None:
            count.findings.append(found)


# ---------------------------------------------------------------- differences that are meant


@dataclass(frozen=True)
class Meant:
    """Findings that are as they should be, and why."""

    kind: str
    ops: str
    holds: Callable[[Finding], bool]
    why: str


def _values(found: Finding) -> list[np.ndarray]:
    return [] if isinstance(found.own, Refused) else found.own


def _is_empty(found: Finding) -> bool:
    return all(a.size == 0 for a in _values(found))


def _is_neutral(found: Finding) -> bool:
    """Nothing but what a reduction of no elements gives."""
    floats = [a for a in _values(found) if a.dtype.kind == "f"]
    return all(np.all(np.isnan(a) | np.isneginf(a) | (a == 0)) for a in floats)


def _is_refused_by_all(found: Finding) -> bool:
    return isinstance(found.third, Refused)


MEANT = (
    Meant(
        "answered",
        "",
        _is_empty,
        "onnxruntime refuses some empty tensors; there is nothing to compute",
    ),
    Meant("answered", "Pool", _is_neutral, "a window over no element has the neutral value"),
    Meant("answered", "Loss", _is_neutral, "a mean over no element is NaN"),
    Meant(
        "answered",
        "Attention",
        lambda f: f.extents["m"] == 0,
        "a sum over no key is 0; onnxruntime wants one",
    ),
    Meant("answered", "LRN", lambda f: True, "onnxruntime takes four axes only"),
    Meant(
        "answered",
        "Pad",
        lambda f: f.row.attributes.get("mode") == "reflect",
        "what is left of an axis is mirrored as often as it takes, as numpy does",
    ),
    Meant(
        "answered",
        "AffineGrid",
        lambda f: f.extents["n"] > 2,
        "ONNX's own definition takes as many matrices as it needs; onnxruntime counts them first",
    ),
    Meant(
        "refused",
        "Squeeze",
        lambda f: 1 in f.extents.values(),
        "the rank of the result depends on the call (README)",
    ),
    Meant(
        "refused",
        "",
        _is_refused_by_all,
        "shapes that contradict each other, of which onnxruntime sees that nothing is computed",
    ),
)


def why(found: Finding) -> str:
    """Why a finding is as it should be; empty where it is a fault."""
    rows = (m for m in MEANT if m.kind == found.kind and m.ops in found.row.op and m.holds(found))
    return next((m.why for m in rows), "")
