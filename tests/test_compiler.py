"""The front door: shapes, the compile cache, determinism, loading with numpy alone.

In: small models, compiled here or in child processes of their own. Out: what the product promises
about them. What needs a fresh interpreter (imports, hash seeds, kills) runs in a child.
"""

import hashlib
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fissile
from fissile import compiler, demo
from fissile.errors import (
    CompileError,
    FileAccess,
    FissileError,
    FissileWarning,
    InvalidFeed,
    NotYet,
    OptionError,
    OutOfMemory,
)
from fissile.options import Event, Options

X = np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32)


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("FISSILE_CACHE_DIR", str(folder))
    return folder


def model(**facts: Any) -> onnx.ModelProto:
    """y[n, 3] = x[n, 5] @ w + b, z = tanh(y)."""
    draw = np.random.default_rng(1)
    weights = [
        numpy_helper.from_array(draw.standard_normal((5, 3)).astype(np.float32), "w"),
        numpy_helper.from_array(draw.standard_normal(3).astype(np.float32), "b"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 5])
    outputs = [helper.make_tensor_value_info(o, TensorProto.FLOAT, ["n", 3]) for o in "yz"]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["t"], name="product"),
        helper.make_node("Add", ["t", "b"], ["y"], name="bias"),
        helper.make_node("Tanh", ["y"], ["z"], name="tanh"),
    ]
    graph = helper.make_graph(nodes, "small", [x], outputs, weights)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **facts)


def two_inputs() -> onnx.ModelProto:
    """y = x[n, m] + a[n, ?]; the second axis of a has no name."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"])
    a = helper.make_tensor_value_info("a", TensorProto.FLOAT, ["n", None])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Add", ["x", "a"], ["y"])], "two", [x, a], [y])
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def child(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python -c code arguments` with some more environment."""
    command = [sys.executable, "-c", code, *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def stages_of(*arguments: Any, **choices: Any) -> list[str]:
    """The names of the stages that a compilation reports."""
    events: list[Event] = []
    fissile.compile(*arguments, progress=events.append, **choices)
    return list(dict.fromkeys(e.stage for e in events))


# ---------------------------------------------------------------- shapes and options


@pytest.mark.parametrize(
    ("shapes", "x", "a"),
    [
        ({"n": 2}, (2, "m"), (2, "a:1")),
        ({"n": 2, "m": 5}, (2, 5), (2, "a:1")),
        ({"x": [2, 5]}, (2, 5), (2, "a:1")),
        ({"x": [None, 5], "a": [2, 5]}, (2, 5), (2, 5)),
        ({"n": (1, 16), "x": [(1, 8), None]}, ("n", "m"), ("n", "a:1")),
    ],
    ids=["name", "names", "input", "inputs", "ranges"],
)
def test_extents_can_be_fixed(shapes: dict[str, Any], x: tuple[Any, ...], a: Any) -> None:
    exe = fissile.compile(two_inputs(), shapes=shapes)
    found = {info.name: info.shape for info in exe.inputs}
    assert found["x"] == x
    assert tuple(e or "a:1" for e in found["a"]) == a
    feeds = {"x": X, "a": X}
    np.testing.assert_array_equal(exe.run(feeds)["y"], X + X)
    if isinstance(x[0], int):
        with pytest.raises(InvalidFeed):
            exe.run({"x": X[:1], "a": X[:1]})


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"k": 2}, "no dimension or input called 'k'"),
        ({"x": [2, 6]}, "the model itself fixes x, axis 1 as 5"),
        ({"x": [2, (1, 6)]}, "the model itself fixes x, axis 1 as 5"),
        ({"x": [2]}, "is no shape for input x"),
        ({"n": -1}, "n: -1 is no extent"),
        ({"n": (3, 2)}, "is no extent"),
        ({"n": True}, "is no extent"),
        ({"n": 2, "x": [3, None]}, "n is fixed as 2 and as 3"),
    ],
)
def test_impossible_extents(shapes: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        fissile.compile(model(), shapes=shapes)


@pytest.mark.parametrize(
    ("choices", "kind"),
    [
        ({"budget": "soon"}, OptionError),
        ({"shapes": {"n": (1, 2)}, "options": Options(strict_shapes=True)}, NotYet),
        ({"options": Options(affinity="0-1")}, NotYet),
        ({"foreign": "maybe"}, OptionError),
        ({"target": []}, OptionError),
        ({"target": "vax"}, ValueError),
        ({"options": Options(disable=("no_such_rule",))}, OptionError),
        ({"threads": 0}, OptionError),
    ],
    ids=lambda value: str(value)[:30],
)
def test_impossible_choices(choices: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        fissile.compile(model(), **choices)
    assert isinstance(caught.value, FissileError)


def test_what_the_model_says_is_kept(tmp_path: Path) -> None:
    proto = model(producer_name="a tool", domain="org.tests", doc_string="words", model_version=7)
    helper.set_model_props(proto, {"character": "a\nb"})
    fissile.compile(proto).save(tmp_path / "m.fsl")
    exe = fissile.load(tmp_path / "m.fsl")
    assert dict(exe.metadata) == {"character": "a\nb"}
    about = exe.manifest["model"]
    assert about["producer_name"] == "a tool"
    assert (about["domain"], about["description"], about["version"]) == ("org.tests", "words", 7)


@pytest.mark.parametrize("is_cached", [True, False])
def test_executables_are_pickled(is_cached: bool) -> None:
    exe = fissile.compile(model(), cache=is_cached, threads=1)
    data = pickle.dumps(exe)
    assert (len(data) < 2000) == is_cached, "a path and a hash, or the bytes"
    copy = pickle.loads(data)  # noqa: S301
    np.testing.assert_array_equal(copy.run({"x": X})["z"], exe.run({"x": X})["z"])


def test_one_artifact_for_several_targets() -> None:
    exe = fissile.compile(model(), target=["x86-64-v3", "x86-64-v4"])
    alone = fissile.compile(model(), target="x86-64-v3")
    assert {row["name"] for row in exe.manifest["targets"]} == {"x86-64-v3", "x86-64-v4"}
    np.testing.assert_allclose(exe.run({"x": X})["z"], alone.run({"x": X})["z"], rtol=1e-5)


def test_check_counts_operators() -> None:
    assert compiler.check(model()).operators == 3


def test_optimize_gives_a_model_of_the_same_face() -> None:
    done = onnx.load_from_string(fissile.optimize(model()))
    assert done.graph.input == model().graph.input
    assert done.graph.output == model().graph.output


# ---------------------------------------------------------------- the cache


def test_what_was_compiled_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    assert "build" in stages_of(path)
    assert stages_of(path) == ["cached"]
    assert stages_of(str(path)) == ["cached"]
    for change in ({"threads": 3}, {"shapes": {"n": 2}}, {"options": Options(rewrite=False)}):
        assert "build" in stages_of(path, **change)
    assert "build" in stages_of(path, cache=False)
    onnx.save(model(producer_name="other"), path)
    assert "build" in stages_of(path)


def test_external_data_counts(tmp_path: Path) -> None:
    path, data = tmp_path / "m.onnx", tmp_path / "w.bin"
    proto = model()
    choices: Any = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(proto, path, **choices)
    assert "build" in stages_of(path)
    assert stages_of(path) == ["cached"]
    before = fissile.compile(path).run({"x": X})["y"]
    data.write_bytes(bytes(len(data.read_bytes())))
    assert "build" in stages_of(path)
    assert not np.array_equal(fissile.compile(path).run({"x": X})["y"], before)


def test_a_damaged_entry_is_made_anew(cache_folder: Path) -> None:
    fissile.compile(model())
    (entry,) = cache_folder.glob("*.fsl")
    entry.write_bytes(entry.read_bytes()[:-100])
    with pytest.warns(fissile.FissileWarning, match="made anew"):
        exe = fissile.compile(model())
    assert exe.run({"x": X})["y"].shape == (2, 3)
    assert stages_of(model()) == ["cached"]


COMPILE = """
import sys, fissile
stages = []
exe = fissile.compile(sys.argv[1], progress=lambda event: stages.append(event.stage))
heavy = {"onnx", "llvmlite", "highspy", "click", "rich", "google.protobuf"} & set(sys.modules)
print("made" if "build" in stages else "cached", sorted(heavy))
"""


def test_two_processes_compile_once(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    command = [sys.executable, "-c", COMPILE, str(path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    words = sorted(process.communicate()[0].split()[0] for process in both)
    assert words == ["cached", "made"]
    assert child(COMPILE, str(path)).stdout.split() == ["cached", "[]"], "nothing heavy is imported"


KILLED = """
import os, signal, sys, fissile
def progress(event):
    if event.stage == sys.argv[2] and (event.seconds is None) == (sys.argv[3] == "begin"):
        os.kill(os.getpid(), signal.SIGKILL)
fissile.compile(sys.argv[1], progress=progress).save("m.fsl")
"""
SAVING = """
import os, signal, sys, fissile
def fsync(descriptor):
    os.kill(os.getpid(), signal.SIGKILL)
os.fsync = fsync
fissile.compile(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("code", "where"),
    [(KILLED, ("build", "begin")), (KILLED, ("artifact", "end")), (SAVING, ())],
    ids=["building", "made", "saving"],
)
def test_a_killed_process_leaves_nothing_half_written(
    tmp_path: Path, cache_folder: Path, code: str, where: tuple[str, ...]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    done = child(code, str(path), *where)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not list(cache_folder.glob("*.fsl"))
    assert not (tmp_path / "m.fsl").exists()
    assert "build" in stages_of(path)
    assert stages_of(path) == ["cached"]


@pytest.mark.parametrize("home", ["/dev/null", "/proc/none", ""])
def test_without_a_home(tmp_path: Path, home: str) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    env = {"FISSILE_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": home or "/dev/null/none"}
    done = child(COMPILE, str(path), **env)
    assert done.stdout.startswith("made"), done.stderr
    assert done.stderr.count("no compile cache in") == 1
    assert "Traceback" not in done.stderr


def test_the_cache_can_be_off(tmp_path: Path, cache_folder: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    done = child(COMPILE, str(path), FISSILE_CACHE="0")
    assert (done.stdout.split()[0], done.stderr) == ("made", "")
    assert not cache_folder.exists()


# ---------------------------------------------------------------- bytes and loading


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    code = "import sys, fissile; fissile.compile(sys.argv[1], cache=False).save(sys.argv[2])"
    digests = set()
    for seed in ("0", "1", "4711"):
        folder = tmp_path / seed
        folder.mkdir()
        onnx.save(demo.network(), folder / "m.onnx")
        goal = folder / "m.fsl"
        done = child(code, str(folder / "m.onnx"), str(goal), PYTHONHASHSEED=seed)
        assert done.returncode == 0, done.stderr
        digests.add(hashlib.sha256(goal.read_bytes()).hexdigest())
    assert len(digests) == 1


ALONE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in ("fissile", "numpy") and top not in sys.stdlib_module_names:
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Refuse())
import numpy as np
import fissile

exe = fissile.load(sys.argv[1])
size = exe.memory().weights
result = exe.run({"x": np.ones((3, 512), np.float32)})["y"]
dirty = mapped = 0
for line in open("/proc/self/smaps"):
    fields = line.split()
    if not fields[0].endswith(":"):
        inside = line.rstrip().endswith(".fsl")
    elif inside and fields[0] == "Rss:":
        mapped += int(fields[1])
    elif inside and fields[0] in ("Private_Dirty:", "Anonymous:"):
        dirty += int(fields[1])
print(size, mapped * 1024, dirty, float(result.sum()))
"""


def test_numpy_is_enough_and_weights_are_mapped(tmp_path: Path) -> None:
    """4 MB of weights, all read by the run, lie in pages of the file and in no others."""
    w = np.random.default_rng(2).standard_normal((512, 2048)).astype(np.float32)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 512])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2048])
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "wide", [x], [y], [numpy_helper.from_array(w, "w")])
    opsets = [helper.make_opsetid("", 17)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path = tmp_path / "wide.fsl"
    fissile.compile(proto, cache=False).save(path)
    done = child(ALONE, str(path))
    assert done.returncode == 0, done.stderr
    size, mapped, dirty, total = map(float, done.stdout.split())
    assert size >= w.nbytes
    assert mapped >= w.nbytes
    assert dirty == 0
    assert total == pytest.approx(3 * float(w.sum(dtype=np.float64)), rel=1e-3, abs=1.0)


def test_loop_programs_can_be_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline: Any = importlib.import_module("fissile.pipeline")
    choices = Options(verify=True)
    assert fissile.compile(demo.network(), cache=False, options=choices).inputs
    monkeypatch.setattr(pipeline, "problems", lambda f: [f"{f.name} is odd"])
    with pytest.raises(CompileError, match="k0 is odd"):
        fissile.compile(model(), cache=False, options=choices)


def test_failures_of_the_compiler_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline: Any = importlib.import_module("fissile.pipeline")

    def broken(*_: object) -> None:
        raise KeyError("n")

    monkeypatch.setattr(pipeline, "orchestrate", broken)
    with pytest.raises(CompileError, match=r"F401: the compiler failed in stage plan") as caught:
        fissile.compile(model(), cache=False)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("name", "where", "said"),
    [
        ("substitute", "fissile.pipeline", "the search for substitutions failed"),
        ("packed", "fissile.report.record", "the record of the compilation failed"),
        ("_said_model", "fissile.pipeline", "the summary failed"),
    ],
)
def test_what_no_artifact_needs_fails_with_a_warning(
    name: str, where: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(importlib.import_module(where), name, broken)
    with pytest.warns(FissileWarning, match=f"{said}(.|\n)*RecursionError: too deep"):
        executable = fissile.compile(model(), cache=False)
    assert executable.run({"x": X}).keys() == {"y", "z"}


def two_products() -> onnx.ModelProto:
    """x[n, 5] @ v @ w: what lies between is in the arena."""
    weights = [
        numpy_helper.from_array(np.ones((5, 33), np.float32), "v"),
        numpy_helper.from_array(np.ones((33, 5), np.float32), "w"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["t"]),
        helper.make_node("Tanh", ["t"], ["u"]),
        helper.make_node("MatMul", ["u", "w"], ["y"]),
    ]
    sides = [helper.make_tensor_value_info(o, TensorProto.FLOAT, ["n", 5]) for o in "xy"]
    graph = helper.make_graph(nodes, "g", sides[:1], sides[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_what_needs_more_memory_than_allowed_is_refused_with_the_numbers() -> None:
    large = {"x": np.zeros((1000, 5), np.float32)}
    needed = fissile.compile(two_products(), cache=False, threads=1).memory({"n": 1000})
    total = needed.weights + needed.arena + needed.scratch
    assert needed.arena >= 1000 * 33 * 4
    for limit in (total, total - 1):
        choices = Options(max_memory=limit)
        executable = fissile.compile(two_products(), cache=False, threads=1, options=choices)
        assert executable.run({"x": X})
        if limit == total:
            assert executable.run(large)
        else:
            with pytest.raises(OutOfMemory, match=f"F213: {total} bytes .* allows {limit}"):
                executable.run(large)
            assert executable.run({"x": X})
    with pytest.raises(OutOfMemory, match="F213"):
        fissile.compile(model(), cache=False, options=Options(max_memory=1))
    with pytest.raises(OptionError, match="max_memory"):
        Options(max_memory=0)


def test_events_tell_of_every_stage() -> None:
    events: list[Event] = []
    fissile.compile(model(), cache=False, progress=events.append)
    done = [e.stage for e in events if e.seconds is not None]
    assert done == compiler.stage_names()
    (line,) = [e.text for e in events if e.stage == "model"]
    assert line == (
        "opset 17 · 0.0 MB weights · x float32[n,5] → y float32[n,3], z float32[n,3]"
    )


def test_the_report_is_plain_data() -> None:
    exe = fissile.compile(model(), cache=False)
    assert json.loads(json.dumps(dict(exe.manifest)))["model"]["opset"] == 17


def test_every_stage_can_be_shown() -> None:
    showing: Callable[..., str] = compiler.show
    for stage in compiler.stage_names():
        assert showing(model(), stage, shapes={"n": 2}).strip()


def test_what_is_no_model_and_no_path_is_said() -> None:
    with pytest.raises(OptionError, match="int is no model"):
        fissile.compile(3)
    for call in (fissile.compile, fissile.check, fissile.load):
        with pytest.raises(FileAccess, match="null byte"):
            call("a\0b")


def test_feeds_without_names_are_refused() -> None:
    with fissile.compile(model(), cache=False) as executable:
        wrong: tuple[Any, ...] = ([X], X, (), {"x"})
        for feeds in wrong:
            with pytest.raises(InvalidFeed, match="F202") as caught:
                executable.run(feeds)
            assert '"x": ...' in caught.value.remedy[0]


def test_a_folder_in_place_of_a_cached_file_is_a_miss(cache_folder: Path) -> None:
    fissile.compile(model())
    [path] = cache_folder.glob("*.fsl")
    path.unlink()
    path.mkdir()
    kept = pytest.warns(FissileWarning, match="not kept in the compile cache")
    with kept, pytest.warns(FissileWarning, match="made anew") as said:
        assert fissile.compile(model()).run({"x": X})
    ours = [warning for warning in said if issubclass(warning.category, FissileWarning)]
    assert {warning.filename for warning in ours} == {__file__}
    assert path.is_dir()
