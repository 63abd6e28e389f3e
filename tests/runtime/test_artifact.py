"""Artifacts as files: the same bytes for the same contents, whole or absent, checked before use."""

import io
import json
import mmap
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fissile.errors import ArtifactError, FileAccess, FileMissing
from fissile.runtime import artifact as module
from fissile.runtime.artifact import (
    Contents,
    TargetCode,
    artifact_bytes,
    atomic_file,
    check_members,
    choose_target,
    read_artifact,
    write_artifact,
)
from fissile.runtime.plan import read_plan
from fissile.runtime.weights import Weight, chunks, data_start, layout

WEIGHTS = (
    Weight("a", "float32", (3,), np.arange(3, dtype=np.float32)),
    Weight("empty", "int8", (0, 4), b""),
    Weight("b/ö", "uint8", (65,), bytes(range(65))),
    Weight("c", "int64", (), np.array(7)),
)


def toy(features: tuple[str, ...] = (), **manifest: Any) -> Contents:
    code = TargetCode("x86-64-v3", features, b"\xc3" * 100, {"slots": 0})
    return Contents({"model": {"name": "toy.onnx"}} | manifest, (code,), WEIGHTS, {"r": 1})


def test_same_contents_same_bytes_in_any_order_of_keys() -> None:
    first = artifact_bytes(toy(one=1, two=2))
    assert first == artifact_bytes(toy(two=2, one=1))
    assert b"1980" not in first


def test_members_are_stored_on_pages_and_readable_by_anyone() -> None:
    data = artifact_bytes(toy())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert set(archive.namelist()) == {
            *("code-x86-64-v3.bin", "plan.json", "weights.safetensors", "report.json"),
            "manifest.json",
        }
    artifact = read_artifact(data)
    assert all(offset % mmap.PAGESIZE == 0 for offset, _ in artifact.spans.values())
    check_members(artifact)


def test_weights_follow_the_safetensors_layout() -> None:
    member = b"".join(bytes(piece) for piece in chunks(WEIGHTS))
    start = data_start(member)
    table = json.loads(member[8:start])
    spans = sorted(tuple(row["data_offsets"]) for row in table.values())
    assert spans[0][0] == 0
    assert spans[-1][1] == len(member) - start
    assert all(a[1] == b[0] for a, b in zip(spans, spans[1:])), "the format allows no gaps"
    placed = layout(WEIGHTS)
    assert start % 64 == 0
    for weight in WEIGHTS:
        offset = placed.offsets[weight.name]
        assert offset % 64 == 0
        assert table[weight.name]["data_offsets"][0] == offset
    at = start + placed.offsets["c"]
    assert np.frombuffer(member[at : at + 8], np.int64)[0] == 7


def test_two_weights_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two weights"):
        layout([WEIGHTS[0], WEIGHTS[0]])


def test_any_truncation_is_refused(tmp_path: Path) -> None:
    data = artifact_bytes(toy())
    path = tmp_path / "cut.fsl"
    for size in (0, 1, 100, 5000, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(ArtifactError, match="F101") as caught:
            read_artifact(path)
        assert caught.value.remedy


@pytest.mark.parametrize("name", ["code-x86-64-v3.bin", "plan.json", "manifest.json"])
def test_a_changed_byte_is_refused(name: str) -> None:
    data = bytearray(artifact_bytes(toy()))
    offset, size = read_artifact(bytes(data)).spans[name]
    data[offset + size // 2] ^= 1
    with pytest.raises(ArtifactError, match="hash"):
        read_artifact(bytes(data))


def test_a_changed_weight_is_found_when_asked() -> None:
    data = bytearray(artifact_bytes(toy()))
    offset, size = read_artifact(bytes(data)).spans["weights.safetensors"]
    data[offset + size - 1] ^= 1
    with pytest.raises(ArtifactError, match=r"weights\.safetensors"):
        check_members(read_artifact(bytes(data)))


def test_a_newer_format_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FORMAT", (1, 7))
    data = artifact_bytes(toy())
    monkeypatch.undo()
    with pytest.raises(ArtifactError, match=r"format 1\.7") as caught:
        read_artifact(data)
    assert "upgrade" in caught.value.remedy[0]


def test_another_cpu_is_refused_with_the_command() -> None:
    artifact = read_artifact(artifact_bytes(toy(("sse4_2", "warp_drive"))))
    with pytest.raises(ArtifactError, match="F107") as caught:
        choose_target(artifact)
    assert "warp_drive" in str(caught.value)
    assert "fissile compile toy.onnx --target native" in caught.value.remedy[0]


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.fsl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hello.txt", "hello")
    with pytest.raises(ArtifactError, match="some other zip"):
        read_artifact(path)
    with pytest.raises(FileMissing, match="F501"):
        read_artifact(tmp_path / "nowhere.fsl")
    with pytest.raises(FileAccess, match="F502"):
        read_artifact(tmp_path)


def test_nothing_half_written_remains(tmp_path: Path) -> None:
    path = tmp_path / "model.fsl"
    path.write_bytes(b"old")
    with pytest.raises(KeyError):
        write_and_fail(path)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["model.fsl"]
    with pytest.raises(FileAccess, match="F503"):
        write_artifact(toy(), tmp_path / "no" / "such" / "folder.fsl")
    write_artifact(toy(), path)
    assert path.read_bytes() == artifact_bytes(toy())
    assert [p.name for p in tmp_path.iterdir()] == ["model.fsl"]


def test_an_artifact_in_use_stays_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "model.fsl"
    write_artifact(toy(), path)
    mapped = read_artifact(path)
    before = {name: bytes(mapped.member(name)) for name in mapped.spans}
    write_artifact(replace(toy(), weights=()), path)
    assert {name: bytes(mapped.member(name)) for name in mapped.spans} == before
    assert path.read_bytes() != artifact_bytes(toy())


def write_and_fail(path: Path) -> None:
    with atomic_file(path) as stream:
        stream.write(b"new")
        raise KeyError


def plan_with(**changes: Any) -> bytes:
    plan: dict[str, Any] = {
        "symbols": [],
        "inputs": [{"name": "x", "dtype": "float32", "shape": [3], "slots": [0]}],
        "outputs": [],
        "slots": 2,
        "template": [3, 1],
        "patches": [[1, 2, 0]],
        "launches": [{"kernel": "k", "first": 1, "arguments": 1, "tasks": 0, "step": 0}],
        "guards": [],
        "arena": 0,
        "scratch": 0,
        "entries": {"k": 0},
    }
    return json.dumps(plan | changes).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"arena": 2},
        {"patches": [[1, 3, 0]]},
        {"patches": [[2, 0, 0]]},
        {"template": [1]},
        {"entries": {}},
        {"launches": [{"kernel": "k", "first": -1, "arguments": 1, "tasks": 0, "step": 0}]},
        {"launches": [{"kernel": "k", "first": 1, "arguments": 2, "tasks": 0, "step": 0}]},
        {"launches": [{"kernel": "k", "first": 1, "arguments": 1 << 63, "tasks": 0, "step": 0}]},
        {"launches": [{"kernel": "k", "first": 1, "tasks": 0, "step": 0}]},
        {"patches": [[1, 2, 0], [1, 2, 0]]},
        {"patches": [[0, 2, 0]]},
        {"patches": [[1, 2]]},
        {"patches": [[1, 2.0, 0]]},
        {"slots": 1 << 62},
        {"template": [3, 1 << 63]},
        {"template": [3, None]},
        {"entries": {"k": 1.5}},
        {"entries": []},
        {"inputs": [{"name": "x", "dtype": "O", "shape": [3], "slots": [0]}]},
        {"inputs": [{"name": "x", "dtype": "float8_", "shape": [3], "slots": [0]}]},
        {"inputs": [{"name": "x", "dtype": "float32", "shape": [True], "slots": [0]}]},
        {"symbols": [{"name": "n", "input": 0, "axis": -1}]},
        {"symbols": [{"name": "n", "input": -1, "axis": 0}]},
        {"symbols": [{"name": "n", "input": 0, "axis": 0, "scale": 0}]},
        {
            "calls": [
                {"name": "f", "operator": "F", "model": 0, "step": 1, "inputs": [], "outputs": []}
            ],
            "levels": [0, 0],
        },
        {"late": [{"name": "u", "call": 0, "output": 0, "axis": 0}]},
        {"sums": [[0, 0]]},
        {"inputs": [{"name": "x", "dtype": "float32", "shape": [3], "slots": []}]},
        {"symbols": [{"name": "n", "input": 0, "axis": 1}]},
        {"guards": [{"left": 0, "right": 0, "relation": "lt", "message": ""}]},
        {"scratch": None},
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    read_plan(plan_with())
    with pytest.raises(ArtifactError, match="F104"):
        read_plan(plan_with(**changes))


def test_steps_are_ranges_of_launches() -> None:
    row = {"kernel": "k", "first": 1, "arguments": 1, "tasks": 0}
    launches = [row | {"step": step} for step in (0, 0, 2, 5, 5, 5)]
    plan = read_plan(plan_with(launches=launches))
    assert plan.steps.tolist() == [0, 2, 3, 6]
    assert plan.width == 3
    assert read_plan(plan_with(launches=[])).steps.tolist() == [0]
