"""The executable from outside: feeds, outputs, shapes, refusals, copies; all in child processes."""

from pathlib import Path
from typing import Any


def test_runs_alone_and_with_a_gang(child: Any) -> None:
    text = """
results = []
for threads in (1, 2, 3):
    exe = load(TOYS + "/rows.fsl", threads=threads)
    for n in (1, 2, 17, 1000, 0, 17):
        feeds = rows_feeds(n)
        results.append(rows_right(feeds, exe.run(feeds)))
exe = load(open(TOYS + "/rows.fsl", "rb").read(), threads=2)
results.append(rows_right(feeds, exe.run(feeds)))
exe = load(TOYS + "/rows.fsl", mmap=False)
results.append(rows_right(feeds, exe.run(feeds)))
answer(results)
"""
    assert child(text) == [True] * 20


def test_loading_needs_numpy_alone(child: Any) -> None:
    text = """
exe = load(TOYS + "/rows.fsl")
exe.run(rows_feeds(5))
ours = sorted(n for n in sys.modules if n.startswith("fissile.") and sys.modules[n])
answer([exe.metadata["key"], exe.manifest["format"], ours])
"""
    key, form, ours = child(text)
    assert (key, form) == ("value", [1, 0])
    rooms = {name.split(".")[1] for name in ours}
    assert rooms <= {"errors", "files", "options", "target", "runtime", "ir"}


def test_every_kind_of_array_is_taken(child: Any) -> None:
    text = """
exe = load(TOYS + "/rows.fsl", threads=1)
feeds = rows_feeds(6)
x = feeds["x"]
big = np.zeros((12, 6), np.float32)
big[::2, ::2] = x
frozen = x.copy()
frozen.flags.writeable = False
raw = np.zeros(x.nbytes + 1, np.uint8)[1:]
odd = raw.view(np.float32).reshape(6, 3)
odd[:] = x


class Wrapped:
    def __array__(self, dtype=None, copy=None):
        return x


class Packed:
    def __dlpack__(self, **keywords):
        return x.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return x.__dlpack_device__()


kinds = [x, big[::2, ::2], frozen, odd, np.asfortranarray(x), x.astype(">f4"), x.tolist(),
         Wrapped(), Packed(), [list(row) for row in x]]
answer([rows_right(feeds, exe.run({"x": kind, "y": feeds["y"]})) for kind in kinds])
"""
    assert child(text) == [True] * 10


def test_outputs_are_fresh_aligned_and_selectable(child: Any) -> None:
    text = """
exe = load(TOYS + "/rows.fsl", threads=1)
feeds = rows_feeds(5)
one, two = exe.run(feeds), exe.run(feeds)
z = one["z"]
facts = [a.ctypes.data % 64 == 0 and a.flags.writeable and a.flags.c_contiguous
         for a in (*one.values(), *two.values())]
facts.append(not np.shares_memory(one["z"], two["z"]))
facts.append(list(exe.run(feeds, ["s"])) == ["s"])
facts.append(list(exe.run(feeds, ["s", "z"])) == ["s", "z"])
facts.append(isinstance(exe(feeds["x"], y=feeds["y"]), tuple))
mine = np.full((5, 3), 9, np.float32)
got = exe.run(feeds, out={"z": mine})
facts.append(got["z"] is mine and rows_right(feeds, got))
answer(facts)
"""
    assert child(text) == [True] * 9


REFUSALS = {
    "missing": ('{"x": f["x"]}', "F201", "y"),
    "unknown": ('{**f, "X": f["x"]}', "F202", "X"),
    "float64": ('{**f, "x": f["x"].astype("f8")}', "F203", "astype('float32')"),
    "text": ('{**f, "x": [["a"] * 3]}', "F203", "x"),
    "ragged": ('{**f, "x": [[1, 2, 3], [1]]}', "F203", "x"),
    "rank": ('{**f, "x": f["x"][0]}', "F204", "rank 1"),
    "extent": ('{**f, "x": f["x"][:, :2]}', "F205", "axis 1 is 2, expected 3"),
    "disagree": ('{**f, "y": f["y"][:2]}', "F205", "n is 4 in axis 0 of x"),
    "none": ('{**f, "x": None}', "F207", "x"),
    "guard": ("rows_feeds(100001)", "F206", "n is at most 100000"),
}


def test_refusals_name_the_place_and_the_remedy(child: Any) -> None:
    cases = "".join(
        f"    {name!r}: lambda: exe.run({case[0]}),\n" for name, case in REFUSALS.items()
    )
    text = f"""
exe = load(TOYS + "/rows.fsl", threads=1)
f = rows_feeds(4)
cases = {{
{cases}
    "output": lambda: exe.run(f, ["Z"]),
    "out shape": lambda: exe.run(f, out={{"z": np.zeros((4, 4), np.float32)}}),
    "out alias": lambda: exe.run(f, out={{"z": f["x"]}}),
    "threads": lambda: load(TOYS + "/rows.fsl", threads=0),
    "busy": lambda: load(TOYS + "/rows.fsl", busy="never"),
    "dimension": lambda: exe.memory({{"N": 3}}),
}}
found = {{}}
for name, case in cases.items():
    try:
        case()
    except ValueError as error:
        found[name] = str(error)
exe.close()
try:
    exe.run(f)
except Exception as error:
    found["closed"] = str(error)
answer(found)
"""
    found = child(text)
    for name, (_, code, words) in REFUSALS.items():
        assert code in found[name], name
        assert words in found[name], found[name]
    others = {"output": "F209", "out shape": "F208", "out alias": "F208", "threads": "F702"}
    others |= {"busy": "F604", "dimension": "F603", "closed": "F106"}
    for name, code in others.items():
        assert code in found[name], name


def test_integers_from_lists_are_never_cut(child: Any) -> None:
    text = """
exe = load(TOYS + "/chain.fsl", threads=1)
facts = [exe.run({"a": [1, 2, 3]})["b"].tolist() == chain(np.array([1, 2, 3])).tolist()]
for bad in ([1.5, 2.0], ["1"], [2 ** 70]):
    try:
        exe.run({"a": bad})
        facts.append(False)
    except ValueError as error:
        facts.append(error.code == "F203")
answer(facts)
"""
    assert child(text) == [True] * 4


def test_copies_share_and_travel(child: Any) -> None:
    text = """
import pickle, tempfile
path = os.path.join(tempfile.mkdtemp(), "copy.fsl")
feeds = rows_feeds(9)
with load(TOYS + "/rows.fsl", threads=1) as exe:
    exe.save(path)
    same = open(path, "rb").read() == open(TOYS + "/rows.fsl", "rb").read()
    more = exe.with_threads(2)
    again = pickle.loads(pickle.dumps(exe))
    byte = pickle.loads(pickle.dumps(load(open(path, "rb").read(), threads=2)))
facts = [same, more.threads == 2, again.threads == 1, byte.threads == 2]
facts += [rows_right(feeds, e.run(feeds)) for e in (more, again, byte)]
stale = pickle.dumps(load(path))
open(path + "2", "wb").write(open(TOYS + "/chain.fsl", "rb").read())
os.replace(path + "2", path)
try:
    pickle.loads(stale)
except ValueError as error:
    facts.append(error.code == "F108")
answer(facts)
"""
    assert child(text) == [True] * 8


def test_memory_warm_and_profile(child: Any) -> None:
    text = """
import tempfile
exe = load(TOYS + "/rows.fsl", threads=2)
exe.warm({"n": 100})
memory = exe.memory({"n": 100})
profile = exe.profile(rows_feeds(2000), runs=5)
path = os.path.join(tempfile.mkdtemp(), "trace.json")
profile.to_chrome_trace(path)
trace = json.load(open(path))["traceEvents"]
answer([memory.arena, memory.scratch, memory.weights, profile.seconds.shape,
        bool((profile.seconds >= 0).all() and profile.seconds.sum() < 1),
        sorted(profile.by_node()), len(profile.table().splitlines()), len(trace)])
"""
    arena, scratch, weights, shape, sane, nodes, lines, events = child(text)
    assert (arena, scratch, weights) == (1216, 128, 76)
    assert shape == [5, 3]
    assert sane
    assert nodes == ["/k0", "/k1", "/k2"]
    assert (lines, events) == (4, 3)


def test_many_shapes_do_not_pile_up(child: Any) -> None:
    text = """
exe = load(TOYS + "/rows.fsl", threads=1)
right = all(rows_right(f, exe.run(f)) for f in (rows_feeds(n) for n in range(300)))
answer([right, len(exe._bindings), len(next(iter(exe._living))._slots)])
"""
    assert child(text) == [True, 256, 32]


PERF = """
import warnings
path = f"/tmp/perf-{os.getpid()}.map"
KIND
try:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made = load(f"{TOYS}/rows.fsl", threads=1)
        made.run(rows_feeds(3))
    content = open(target).read()
    answer([content, [str(w.message) for w in said]])
finally:
    os.unlink(path)
"""


def test_perf_is_told_the_kernels(child: Any) -> None:
    content, said = child(PERF.replace("KIND", "target = path"), FISSILE_PERF_MAP="1")
    names = [line.split()[2] for line in content.splitlines()]
    assert {"fissile_run", "k0", "k1", "k2"} <= set(names)
    assert said == []


def test_a_link_in_place_of_the_map_of_perf_leaves_its_target_alone(
    child: Any, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine", encoding="utf-8")
    put = f"target = {str(precious)!r}; os.symlink(target, path)"
    content, said = child(PERF.replace("KIND", put), FISSILE_PERF_MAP="1")
    assert content == "mine"
    assert len(said) == 1
    assert "perf is not told" in said[0]
