"""Models with something wrong in them, compiled and, where that is possible, run: one clear error, or results.

In: numbers. Out: for each the model that it stands for (a small one, changed at one to three places), and a line of
what became of it. `python -m tests.e2e.mutate FIRST COUNT [JOBS]` goes through many and counts. Models run in child
processes that may take 30 seconds of a processor and 8 GiB for one; a child that dies costs its model alone.
"""

from __future__ import annotations

import json
import random
import resource
import select
import signal
import subprocess
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, cast
from unittest.mock import patch

import numpy as np
import onnx
from onnx import TensorProto
from onnx.backend.test.loader import load_model_tests

import fissile
from fissile import pipeline
from fissile.codegen.worker import read_frame, write_frame
from fissile.errors import FissileError
from tests.e2e.here import compiling_here

ROOT = Path(__file__).parents[2]
SECONDS = 30
WAIT = 240  # seconds by the clock, for a machine that is busy
MEMORY = 8 << 30
MOST_BYTES = 1 << 20  # of the feeds of a model that is run
KEPT = 400  # models that one child takes on
NUMBERS = (0, 1, -1, 2, 3, 5, 7, 64, 255, 1 << 16, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 40, 1 << 62,
           (1 << 63) - 1, -2, -5, -(1 << 31), -(1 << 62), -(1 << 63))  # fmt: skip
REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, -3e38, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "x", "y", "nowhere", "é", "a/b", "..", "\0", "linear", "SAME_UPPER", "n*2", "-1", "?", "x" * 3000)
LATER = ("F211",)  # what only a compilation can find out: that there is not enough memory
FAULTS = ("F401", "F402", "F430")  # the compiler's own
Pick = random.Random


@cache
def corpus() -> tuple[bytes, ...]:
    """Small models: those of the tests and ONNX's node cases."""
    paths = [*sorted(ROOT.glob("tests/cases/*.onnx")), *sorted(ROOT.glob("tests/artifacts/*/*.onnx"))]
    with np.errstate(all="ignore"):
        loaded = sorted(load_model_tests(kind="node"), key=lambda case: case.name)
    cases = [case.model.SerializeToString(deterministic=True) for case in loaded]
    small = [case for case in cases if len(case) < 20_000]
    return (*[path.read_bytes() for path in paths] * 8, *small)


def mutant(number: int) -> bytes:
    """The model that a number stands for."""
    pick = random.Random(number)
    content = pick.choice(corpus())
    for _ in range(pick.choice((1, 1, 1, 2, 3))):
        if pick.random() < 0.15:
            content = _flip(content, pick)
            continue
        model = onnx.ModelProto()
        try:
            model.ParseFromString(content)
            pick.choice(CHANGES)(model, pick)
            content = model.SerializeToString()
        except Exception:  # noqa: BLE001 - flipped before, nothing to change, or a field that does not take the value
            continue
    return content


# ---- changes -------------------------------------------------------------------------------------


def _flip(content: bytes, pick: Pick) -> bytes:
    """A byte changed, taken out or put in, or the end cut off."""
    if not content:
        return content
    data, at = bytearray(content), pick.randrange(len(content))
    how = pick.randrange(4)
    if how == 0:
        data[at] ^= 1 << pick.randrange(8)
    elif how == 1:
        data[at] = pick.choice((0, 1, 127, 128, 255))
    elif how == 2:
        data[at : at + pick.randrange(1, 9)] = bytes(pick.randrange(256) for _ in range(pick.randrange(3)))
    else:
        del data[at:]
    return bytes(data)


def _graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    found, k = [model.graph], 0
    while k < len(found):
        for node in found[k].node:
            for a in node.attribute:
                found += [a.g] if a.HasField("g") else []
                found += a.graphs
        k += 1
    return found


def _node(model: onnx.ModelProto, pick: Pick) -> onnx.NodeProto:
    return pick.choice([node for graph in _graphs(model) for node in graph.node])


def _attribute(model: onnx.ModelProto, pick: Pick) -> onnx.AttributeProto:
    nodes = [node for graph in _graphs(model) for node in graph.node]
    return pick.choice([a for node in nodes for a in node.attribute])


def _tensor(model: onnx.ModelProto, pick: Pick) -> onnx.TensorProto:
    nodes = [node for graph in _graphs(model) for node in graph.node]
    held = [a.t for node in nodes for a in node.attribute if a.HasField("t")]
    return pick.choice([*held, *(t for graph in _graphs(model) for t in graph.initializer)])


def _names(model: onnx.ModelProto) -> list[str]:
    graph = model.graph
    found = [*(n for node in graph.node for n in (*node.input, *node.output)), *TEXTS]
    return [*found, *(x.name for x in (*graph.input, *graph.output, *graph.initializer))]


def _dimension(model: onnx.ModelProto, pick: Pick) -> None:
    graph = pick.choice(_graphs(model))
    infos = [*graph.input, *graph.output, *graph.value_info]
    shape = pick.choice(infos).type.tensor_type.shape
    how = pick.randrange(5)
    if how == 0 or not shape.dim:
        shape.dim.add().dim_value = pick.choice(NUMBERS)
    elif how == 1:
        del shape.dim[pick.randrange(len(shape.dim))]
    elif how == 2:
        pick.choice(shape.dim).dim_param = pick.choice((*TEXTS, "n", "batch"))
    elif how == 3:
        pick.choice(shape.dim).Clear()
    else:
        pick.choice(shape.dim).dim_value = pick.choice(NUMBERS)


def _type(model: onnx.ModelProto, pick: Pick) -> None:
    graph = pick.choice(_graphs(model))
    info = pick.choice([*graph.input, *graph.output, *graph.value_info])
    how = pick.randrange(5)
    if how == 0:
        info.ClearField("type")
    elif how == 1:
        info.type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT
    elif how == 2:
        info.type.tensor_type.ClearField("shape")
    elif how == 3:
        info.name = pick.choice(_names(model))
    else:
        info.type.tensor_type.elem_type = pick.randrange(27)


def _number(model: onnx.ModelProto, pick: Pick) -> None:
    """A number in an attribute."""
    a = _attribute(model, pick)
    if a.type in (a.INTS, a.FLOATS):
        values: Any = a.ints if a.type == a.INTS else a.floats
        drawn: Any = pick.choice(NUMBERS if a.type == a.INTS else REALS)
        how = pick.randrange(3)
        if how == 0 or not values:
            values.insert(pick.randrange(len(values) + 1), drawn)
        elif how == 1:
            del values[pick.randrange(len(values))]
        else:
            values[pick.randrange(len(values))] = drawn
    elif a.type == a.FLOAT:
        a.f = pick.choice(REALS)
    elif a.type == a.STRING:
        a.s = pick.choice(TEXTS).encode()
    else:
        a.i = pick.choice(NUMBERS)


def _attributes(model: onnx.ModelProto, pick: Pick) -> None:
    """An attribute renamed, of another type, taken away, given twice, or moved to another node."""
    node = pick.choice([n for graph in _graphs(model) for n in graph.node if n.attribute])
    at = pick.randrange(len(node.attribute))
    how = pick.randrange(6)
    if how == 0:
        del node.attribute[at]
    elif how == 1:
        node.attribute.append(node.attribute[at])
    elif how == 2:
        node.attribute[at].name = pick.choice((*TEXTS, "axis", "axes", "mode", "to", "value"))
    elif how == 3:
        node.attribute[at].type = pick.randrange(15)
    elif how == 4:
        node.attribute[at].ref_attr_name = "axis"
    else:
        _node(model, pick).attribute.append(node.attribute[at])


@cache
def _operators() -> tuple[str, ...]:
    return tuple(sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}))


def _operator(model: onnx.ModelProto, pick: Pick) -> None:
    node = _node(model, pick)
    how = pick.randrange(4)
    if how == 0:
        node.domain = pick.choice(("ai.onnx.ml", "com.microsoft", "ai.onnx", "com.acme", ""))
    elif how == 1:
        node.name = pick.choice(TEXTS)
    else:
        node.op_type = pick.choice(_operators())


def _inputs(model: onnx.ModelProto, pick: Pick) -> None:
    node = _node(model, pick)
    names, how = pick.choice((node.input, node.output)), pick.randrange(5)
    if how == 0 or not names:
        names.insert(pick.randrange(len(names) + 1), pick.choice(_names(model)))
    elif how == 1:
        del names[pick.randrange(len(names))]
    elif how == 2:
        pick.shuffle(held := list(names))
        names[:] = held
    else:
        names[pick.randrange(len(names))] = pick.choice(_names(model))


def _order(model: onnx.ModelProto, pick: Pick) -> None:
    """Nodes, inputs or outputs of a graph in another order, twice, or away."""
    graph = pick.choice(_graphs(model))
    rows: Any = pick.choice((graph.node, graph.node, graph.input, graph.output, graph.initializer))
    at, how = pick.randrange(len(rows)), pick.randrange(3)
    if how == 0:
        del rows[at]
    elif how == 1:
        rows.add().CopyFrom(rows[at])
    else:
        rows.insert(pick.randrange(len(rows)), rows[at])


def _raw(model: onnx.ModelProto, pick: Pick) -> None:
    """A tensor of another length, type or place, or without one."""
    tensor = _tensor(model, pick)
    how = pick.randrange(6)
    if how == 0:
        tensor.raw_data = tensor.raw_data[: -pick.choice((1, 2, 4, 8))]
    elif how == 1:
        tensor.raw_data += bytes(pick.choice((1, 3, 4, 8)))
    elif how == 2:
        tensor.data_type = pick.randrange(27)
    elif how == 3:
        if tensor.dims and pick.random() < 0.7:
            tensor.dims[pick.randrange(len(tensor.dims))] = pick.choice(NUMBERS)
        else:
            tensor.dims.append(pick.choice(NUMBERS))
    elif how == 4:
        tensor.name = pick.choice(_names(model))
    else:
        tensor.data_location = TensorProto.EXTERNAL
        for key, values in (("location", (*TEXTS, "/etc/passwd", "/dev/zero", "../w")),
                            ("offset", ("-1", "x", "99999999999999999999")), ("length", ("0", "-4", "1"))):  # fmt: skip
            if pick.random() < 0.8:
                tensor.external_data.add(key=key, value=pick.choice(values))


def _value(model: onnx.ModelProto, pick: Pick) -> None:
    """An element of a constant: an extent, an axis, an index, a weight."""
    tensor = _tensor(model, pick)
    array = np.array(onnx.numpy_helper.to_array(tensor))
    of = array.dtype.kind
    values: Sequence[Any] = NUMBERS if of in "iu" else REALS
    with np.errstate(all="ignore"):
        array.reshape(-1)[pick.randrange(array.size)] = np.array(pick.choice(values)).astype(array.dtype)
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def _constant(model: onnx.ModelProto, pick: Pick) -> None:
    """An input that becomes a constant, so that what is decided by values is decided when compiling."""
    info = pick.choice([x for x in model.graph.input if x.type.HasField("tensor_type")])
    of = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
    shape = [d.dim_value or 2 for d in info.type.tensor_type.shape.dim]
    if of.kind not in "iufb" or np.prod(shape, dtype=np.float64) > 4096:
        return
    numbers = [pick.choice((0, 1, 2, 3, -1, pick.choice(NUMBERS[:10]))) for _ in range(int(np.prod(shape)))]
    with np.errstate(all="ignore"):
        array = np.array(numbers, np.int64).astype(of).reshape(shape)
    model.graph.initializer.append(onnx.numpy_helper.from_array(array, info.name))


def _versions(model: onnx.ModelProto, pick: Pick) -> None:
    how = pick.randrange(5)
    if how == 0:
        model.ir_version = pick.choice((0, 1, 2, 3, 4, 7, 10, 13, 99, -1))
    elif how == 1:
        model.opset_import.add(domain=pick.choice(("", "ai.onnx.ml", "com.acme")), version=pick.choice(NUMBERS))
    elif how == 2:
        del model.opset_import[pick.randrange(len(model.opset_import))]
    else:
        pick.choice(model.opset_import).version = pick.choice((*range(1, 28), *NUMBERS))


def _any_field(model: onnx.ModelProto, pick: Pick) -> None:
    """Any field of any message, cleared or set to something."""
    places = [*_messages(model)]
    message = pick.choice(places)
    of = pick.choice(message.DESCRIPTOR.fields)
    if pick.random() < 0.4:
        message.ClearField(of.name)
        return
    kinds: dict[int, Sequence[Any]] = {
        of.CPPTYPE_STRING: [t.encode() for t in TEXTS] if of.type == of.TYPE_BYTES else TEXTS,
        of.CPPTYPE_FLOAT: REALS,
        of.CPPTYPE_DOUBLE: REALS,
        of.CPPTYPE_ENUM: range(16),
    }
    if of.cpp_type == of.CPPTYPE_MESSAGE:
        if of.is_repeated:
            getattr(message, of.name).add()
        else:
            getattr(message, of.name).SetInParent()
        return
    value = pick.choice(kinds.get(of.cpp_type, NUMBERS))
    if of.is_repeated:
        getattr(message, of.name).append(value)
    else:
        setattr(message, of.name, value)


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for of, value in message.ListFields():
        if of.cpp_type == of.CPPTYPE_MESSAGE:
            for inner in value if of.is_repeated else [value]:
                yield from _messages(inner)


CHANGES: tuple[Callable[[onnx.ModelProto, Pick], None], ...] = (
    _dimension, _dimension, _type, _number, _number, _attributes, _operator, _operator, _inputs, _inputs, _order,
    _raw, _value, _value, _constant, _versions, _any_field,
)  # fmt: skip


# ---- one model -----------------------------------------------------------------------------------


def verdict(content: bytes) -> tuple[str, str]:
    """"refused" with a code, "compiled" or "run" where all is well; else "wrong" and why.

    What `check` promises, `compile` must do.
    """
    stage, promised = "check", False
    try:
        promised = not fissile.check(content).unsupported
        stage = "compile"
        executable = fissile.compile(
            content, threads=1, target="x86-64-v3", cache=False, foreign="allow",
            options=fissile.Options(store=False),
        )  # fmt: skip
        stage = "run"
        feeds = _feeds(executable, np.random.default_rng(len(content)))
        if feeds is None:
            return "compiled", ""
        executable.run(feeds)
        executable.close()
    except FissileError as error:
        if error.code in FAULTS or (stage == "compile" and promised and error.code not in LATER):
            return "wrong", f"{stage}: {error}"
        return f"refused when called to {stage}", error.code
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | _Late):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        own = [f"{Path(f.filename).name}:{f.lineno}" for f in frames if "/fissile/" in f.filename]
        return "wrong", f"{stage}: {type(error).__name__} at {' '.join(own[-3:])}: {str(error)[:300]}"
    return "run", ""


def _feeds(executable: fissile.Executable, draw: np.random.Generator) -> dict[str, Any] | None:
    """Small arrays for all inputs; None where an input is large."""
    named: dict[str, int] = {}
    feeds: dict[str, Any] = {}
    for info in executable.inputs:
        shape = [
            d if isinstance(d, int) else named.setdefault(str(d), int(draw.integers(0, 5)))
            for d in info.shape
        ]
        if np.prod(shape, dtype=np.float64) * info.dtype.itemsize > MOST_BYTES:
            return None
        drawn = draw.integers(-3, 7, shape) if info.dtype.kind in "iu" else draw.standard_normal(shape)
        with np.errstate(all="ignore"):
            feeds[info.name] = np.asarray(drawn).astype(info.dtype)
    return feeds


def serve() -> None:
    """Models on stdin, a line of JSON for each on stdout."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, _late)
    with patch.object(pipeline, "compiling", compiling_here):
        print("ready", flush=True)
        while (content := read_frame(sys.stdin.buffer)) is not None:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                found = verdict(content)
            except _Late:
                found = "wrong", f"more than {SECONDS} s"
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            print(json.dumps(found), flush=True)


def _late(number: int, frame: FrameType | None) -> None:
    raise _Late


class _Late(BaseException):
    """A model took too long; nothing of the compiler catches this."""


# ---- many models ---------------------------------------------------------------------------------


def verdicts(numbers: Sequence[int]) -> Generator[tuple[int, str, str], None, None]:
    """What becomes of the models, in order, by a child at a time."""
    done = 0
    while done < len(numbers):
        for row in _by_one_child(numbers[done : done + KEPT]):
            done += 1
            yield row


def _by_one_child(numbers: Sequence[int]) -> Iterator[tuple[int, str, str]]:
    """As many as the child lives for."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.e2e.mutate"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        to, of = cast(BinaryIO, child.stdin), cast(BinaryIO, child.stdout)
        try:
            of.readline()
            for number in numbers:
                write_frame(to, mutant(number))
                ready, _, _ = select.select([of], [], [], WAIT)
                line = of.readline() if ready else b""
                if not line:
                    child.kill()
                    said = f"ended its process with {child.wait()}" if ready else f"more than {WAIT} s"
                    yield number, "wrong", said
                    return
                kind, text = json.loads(line)
                yield number, kind, text
        finally:
            child.kill()


def main(first: int, count: int, jobs: int = 1) -> None:
    """Print what is wrong as it comes, and counts at the end."""
    counts: Counter[str] = Counter()
    shares = [range(first + k, first + count, jobs) for k in range(jobs)]

    def share(numbers: Sequence[int]) -> None:
        for number, kind, text in verdicts(numbers):
            counts[kind] += 1
            if kind == "wrong":
                print(number, text.replace("\n", " | "), flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(share, shares))
    print(dict(counts))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(*map(int, sys.argv[1:]))
    else:
        serve()
