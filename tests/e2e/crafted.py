"""Artifacts with something wrong in them, loaded and run: `python -m tests.e2e.crafted FIRST COUNT`.

Out: a JSON list per number: the number, the kind of change, what became of it, and "" or what is wrong. All hashes are
made again for what was changed, as whoever crafts an artifact would do. What is loaded is run on 1 or 2 threads, with
pages beside outputs and arena that nobody may touch: it gives results or one clear error. The number alone is printed
before its artifact is looked at, so that a crash has one.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import random
import resource
import signal
import sys
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

import fissile
from fissile import pipeline
from fissile.errors import FissileError
from fissile.runtime import artifact as artifacts
from fissile.runtime import executable, memory
from fissile.runtime.artifact import json_bytes, read_artifact
from fissile.runtime.seal import sealed
from tests.e2e import late
from tests.e2e.foreign_checks import chosen, model
from tests.e2e.here import compiling_here

Array = npt.NDArray[Any]
Pick = random.Random
FLOAT = TensorProto.FLOAT
SECONDS, MEMORY = 30, 8 << 30
NUMBERS = (0, 1, -1, 2, 3, 5, 7, 8, 63, 64, 4096, 1 << 20, 1 << 31, 1 << 32, 1 << 40, 1 << 62,
           (1 << 63) - 1, 1 << 63, -(1 << 63), -2, -64, 10**30)  # fmt: skip
OTHERS: tuple[Any, ...] = (None, True, False, "", "x", "eq", "float32", "float64", "O", "é", 0.5, 1e300,
                           [], {}, [0], {"a": 1})  # fmt: skip
MANIFEST = "manifest.json"


@dataclass
class Opened:
    """An artifact in parts."""

    manifest: dict[str, Any]
    members: dict[str, bytes]
    feeds: dict[str, Array]

    def plan(self, pick: Pick) -> tuple[str, str, dict[str, Any]]:
        """The names of a target's code and plan, and the plan."""
        row = pick.choice(self.manifest["targets"])
        return row["code"], row["plan"], json.loads(self.members[row["plan"]])


def models() -> Iterator[tuple[onnx.ModelProto, list[str], dict[str, Array]]]:
    """Models, the targets they are compiled for, and feeds."""
    rng = np.random.default_rng(5)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Softmax", ["p"], ["s"], axis=1),
        helper.make_node("ReduceSum", ["s"], ["t"], keepdims=0),
        helper.make_node("Gather", ["p", "i"], ["g"], axis=0),
        helper.make_node("Mul", ["s", "t"], ["y"]),
    ]
    weights = {"w": rng.normal(size=(24, 20)).astype(np.float32), "i": np.array([0, 2, 1])}
    outputs: Any = [("y", FLOAT, ["n", 20]), ("g", FLOAT, [3, 20])]
    native = model(nodes, [("x", FLOAT, ["n", 24])], outputs, weights)
    feeds = {"x": rng.normal(size=(9, 24)).astype(np.float32)}
    yield native, ["x86-64-v3"], feeds
    yield native, ["x86-64-v3", "x86-64-v4"], feeds
    keep = np.arange(11) % 3 > 0
    yield chosen(), ["x86-64-v3"], {"x": rng.integers(-3, 4, (11, 5)).astype(np.float32), "keep": keep}
    for seed in (7, 29, 54):
        yield late.model(seed), ["x86-64-v3"], late.feeds_of(seed)[1]


@cache
def corpus() -> tuple[Opened, ...]:
    """The artifacts that changes begin with."""
    found = []
    for made, target, feeds in models():
        compiled = fissile.compile(
            made, threads=2, target=target, cache=False, foreign="allow",
            options=fissile.Options(store=False),
        )  # fmt: skip
        whole = read_artifact(bytes(compiled.program.artifact.buffer))
        members = {name: bytes(whole.member(name)) for name in whole.spans if name != MANIFEST}
        found.append(Opened(dict(whole.manifest), members, feeds))
    return tuple(found)


def packed(parts: Opened) -> bytes:
    """The artifact of these parts, with hashes and sizes that fit."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, data in parts.members.items():
            artifacts._store(archive, name, [data], len(data))
        text = json_bytes(parts.manifest)
        digest = artifacts._store(archive, MANIFEST, [text], len(text))
        archive.comment = f"fissile sha256 {digest}".encode()
        for info in archive.infolist():
            info.extra = b""
    return stream.getvalue()


def hashed(parts: Opened) -> Opened:
    """The parts, and a table of members that is right."""
    table = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        for name, data in parts.members.items()
    }
    parts.manifest["members"] = table
    return parts


# ---------------------------------------------------------------- changes


def edited(root: Any, pick: Pick) -> None:
    """Change something anywhere in a tree of lists and mappings."""
    places: list[tuple[Any, Any]] = []
    stack = [root]
    while stack:
        node = stack.pop()
        inner = list(node.items() if isinstance(node, dict) else enumerate(node))
        # long tables of numbers are one place among others
        few = inner if len(inner) < 40 else pick.sample(inner, 40)
        places += [(node, key) for key, _ in few]
        stack += [value for _, value in inner if isinstance(value, dict | list)]
    node, key = pick.choice(places)
    how = pick.randrange(8)
    if how == 0:
        del node[key]
    elif how == 1:
        node[key] = copy.deepcopy(pick.choice(OTHERS))
    elif how == 2:
        other, at = pick.choice(places)
        node[key] = copy.deepcopy(other[at]) if other is not root or node is not root else 0
    elif how == 3 and isinstance(node, list):
        node.insert(pick.randrange(len(node) + 1), copy.deepcopy(node[key]))
    elif how == 4 and isinstance(node, list):
        pick.shuffle(node)
    elif isinstance(node[key], int):
        step = pick.choice((-8, -1, 1, 8, 64))
        node[key] = pick.choice(NUMBERS) if how == 5 else node[key] + step
    else:
        node[key] = copy.deepcopy(pick.choice((*OTHERS, *NUMBERS)))


def _plan(parts: Opened, pick: Pick) -> bytes:
    """Tables that are not those the code was linked for."""
    for row in parts.manifest["targets"]:
        name = row["plan"]
        before, plan = parts.members[name], json.loads(parts.members[name])
        while json_bytes(plan) == before:
            for _ in range(pick.randint(1, 3)):
                edited(plan, pick)
        parts.members[name] = json_bytes(plan)
    return packed(hashed(parts))


def _sealed(parts: Opened, pick: Pick) -> bytes:
    """The same, and the seal of the code made again. What is read of it is not run."""
    code, name, plan = parts.plan(pick)
    for _ in range(pick.randint(1, 3)):
        edited(plan, pick)
    _seal(parts, code, name, plan)
    return packed(hashed(parts))


def _seal(parts: Opened, code: str, name: str, plan: dict[str, Any]) -> None:
    parts.members[name] = json_bytes(plan)
    parts.members[code] = sealed(parts.members[code][:-64], plan)


def _order(parts: Opened, pick: Pick) -> bytes:
    """Launches, calls and levels in another order, and sealed."""
    code, name, plan = parts.plan(pick)
    launches, calls = plan["launches"], plan.get("calls", [])
    for _ in range(pick.randint(1, 3)):
        how = pick.randrange(7)
        if how == 0 and launches:
            pick.choice(launches)["step"] += pick.choice((-3, -2, -1, 1, 2, 3))
            launches.sort(key=lambda row: row["step"])
        elif how == 1 and calls:
            pick.choice(calls)["step"] += pick.choice((-3, -2, -1, 1, 2, 3))
        elif how == 2:
            pick.choice(plan["outputs"])["level"] = pick.randint(0, len(calls))
        elif how == 3 and calls:
            top = pick.randint(0, len(calls))
            plan["levels"] = [min(level, top) for level in plan["levels"]]
        elif how == 4 and calls:
            plan["levels"][pick.randrange(len(plan["levels"]))] = pick.randint(0, len(calls))
        elif how == 5 and len(calls) > 1:
            a, b = pick.sample(range(len(calls)), 2)
            calls[a]["step"], calls[b]["step"] = calls[b]["step"], calls[a]["step"]
        elif how == 6 and calls:
            top, last = pick.randint(0, len(calls) - 1), calls[-1]["step"]
            plan["levels"] = [min(level, top) for level in plan["levels"]]
            for row in plan["outputs"]:
                row["level"] = min(row["level"], top)
            for row in launches:
                row["step"] = min(row["step"], pick.randint(-1, last) if pick.random() < 0.5 else -1)
            launches.sort(key=lambda row: row["step"])
    _seal(parts, code, name, plan)
    return packed(hashed(parts))


def _manifest(parts: Opened, pick: Pick) -> bytes:
    """Another manifest, with its hash."""
    for _ in range(pick.randint(1, 3)):
        edited(parts.manifest, pick)
    return packed(parts)


def _bytes(parts: Opened, pick: Pick) -> bytes:
    """Some bytes of the file changed, lost or added."""
    content = bytearray(packed(hashed(parts)))
    how = pick.randrange(4)
    if how == 0:
        return bytes(content[: pick.randrange(len(content))])
    if how == 1:
        at, length = pick.randrange(len(content)), pick.randint(1, 5000)
        del content[at : at + length]
    elif how == 2:
        at = pick.randrange(len(content))
        content[at:at] = pick.randbytes(pick.randint(1, 100))
    else:
        # half of them where the directory is: code and padding are most of the file
        low = len(content) - 2000 if pick.random() < 0.5 else 0
        for _ in range(pick.randint(1, 8)):
            content[pick.randrange(low, len(content))] = pick.randrange(256)
    return bytes(content)


def _members(parts: Opened, pick: Pick) -> bytes:
    """Members in each other's places, from another artifact, empty, cut or gone."""
    other = pick.choice(corpus())
    names = list(parts.members)
    name = pick.choice(names)
    how = pick.randrange(6)
    if how == 0:
        twin = pick.choice(names)
        parts.members[name], parts.members[twin] = parts.members[twin], parts.members[name]
    elif how == 1:
        parts.members[name] = pick.choice(list(other.members.values()))
    elif how == 2:
        # code and plan that belong together, beside weights and operators of another model
        mine, yours = (p.manifest["targets"][0] for p in (parts, other))
        for part in ("code", "plan"):
            parts.members[mine[part]] = other.members[yours[part]]
    elif how == 3:
        parts.members[name] = b""
    elif how == 4:
        parts.members[name] = parts.members[name][: pick.randrange(len(parts.members[name]) + 1)]
    else:
        del parts.members[name]
    return packed(hashed(parts))


def _weights(parts: Opened, pick: Pick) -> bytes:
    """Other weights: in the header, its length, or the data."""
    content = bytearray(parts.members["weights.safetensors"])
    length = int.from_bytes(content[:8], "little")
    how = pick.randrange(4)
    if how == 0:
        content[:8] = (pick.choice(NUMBERS[:17]) % (1 << 64)).to_bytes(8, "little")
    elif how == 1:
        table = json.loads(content[8 : 8 + length] or b"{}")
        table = table or {"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 0]}}
        edited(table, pick)
        text = json.dumps(table).encode()
        text += b" " * (-(len(text) + 8) % 64)
        content[: 8 + length] = len(text).to_bytes(8, "little") + text
    elif how == 2:
        content = content[: pick.randrange(len(content) + 1)]
    else:
        for _ in range(pick.randint(1, 8)):
            content[pick.randrange(len(content))] = pick.randrange(256)
    parts.members["weights.safetensors"] = bytes(content)
    return packed(hashed(parts))


def _foreign(parts: Opened, pick: Pick) -> bytes:
    """Another model of an operator that runs in Python."""
    names = [name for name in parts.members if name.startswith(artifacts.FOREIGN)]
    if not names:
        return _bytes(parts, pick)
    name = pick.choice(names)
    if pick.random() < 0.5:
        content = bytearray(parts.members[name])
        for _ in range(pick.randint(1, 4)):
            content[pick.randrange(len(content))] = pick.randrange(256)
        parts.members[name] = bytes(content)
    else:
        proto = onnx.load_from_string(parts.members[name])
        node = proto.graph.node[0]
        how = pick.randrange(3)
        if how == 0:
            node.op_type = pick.choice(("Neg", "Identity", "Shape", "NonZero", "Nothing", "Size"))
            del node.attribute[:]
        elif how == 1:
            del proto.graph.output[:]
        else:
            value = numpy_helper.from_array(np.zeros((2, 3), np.float64), "fixed")
            proto.graph.initializer.append(value)
            proto.graph.output[0].name = "fixed"
        parts.members[name] = proto.SerializeToString()
    return packed(hashed(parts))


KINDS: tuple[Callable[[Opened, Pick], bytes], ...] = (
    _plan, _plan, _sealed, _sealed, _order, _order, _manifest, _bytes, _members, _weights, _foreign,
)  # fmt: skip
CLEAR = {"F101", "F103", "F104", "F107", "F109", "F112", "F113", "F201", "F202", "F203", "F205", "F206",
         "F207", "F211", "F310", "F615"}  # fmt: skip


# ---------------------------------------------------------------- running


class _Slow(Exception):
    pass


def _slow(number: int, frame: FrameType | None) -> None:
    raise _Slow


def verdict(number: int) -> tuple[str, str, str]:
    """(kind, what became of it, what is wrong)."""
    pick = random.Random(number)
    kind = pick.choice(KINDS)
    parts = copy.deepcopy(pick.choice(corpus()))
    feeds = parts.feeds
    content = kind(parts, pick)
    name = kind.__name__[1:]
    try:
        loaded = fissile.load(content, threads=pick.randint(1, 2))
        if kind is _plan:
            return name, "loaded", "a plan that is not the code's was loaded"
        if kind is _sealed:
            return name, "loaded", ""
        for _ in range(2):
            loaded.run(feeds)
    except FissileError as error:
        return name, error.code, "" if error.code in CLEAR else str(error)
    return name, "ran", ""


def guarded_pages(size: int) -> Array:
    """An arena that ends where nothing may be written."""
    return late.fresh((size,), np.dtype(np.uint8))[0]


def main() -> None:
    """The numbers of the command line."""
    first, count = map(int, sys.argv[1:])
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _slow)
    with (
        patch.object(pipeline, "compiling", compiling_here),
        patch.object(executable, "Lender", late.GuardedLender),
        patch.object(memory, "_pages", guarded_pages),
        np.errstate(all="ignore"),
    ):
        corpus()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        for number in range(first, first + count):
            print(json.dumps(number), flush=True)
            signal.alarm(SECONDS)
            try:
                row = verdict(number)
                late.release()
            except Exception:  # noqa: BLE001  (none may come out of a load or a run, whatever it is)
                row = ("", "raised", traceback.format_exc())
            signal.alarm(0)
            print(json.dumps([number, *row]), flush=True)


if __name__ == "__main__":
    main()
