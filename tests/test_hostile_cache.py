"""A folder of the compile cache in which somebody else has been: nothing of it is loaded, nothing hangs.

In: an artifact with wrong answers, put in ever other ways where the compile cache looks. Out: the right answers, a
warning that names the file, and whatever links and locks pointed to is as it was.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fissile
from fissile import cache, cli, compiler
from fissile.errors import FissileWarning
from fissile.runtime.artifact import Artifact, check_members, read_artifact

SOMEBODY = 12345
LIMIT = 30
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def model(factor: float) -> bytes:
    """y = x * factor + 1, in a product so that there are weights."""
    w = numpy_helper.from_array(np.eye(8, dtype=np.float32) * np.float32(factor), "w")
    b = numpy_helper.from_array(np.ones(8, np.float32), "b")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Gemm", ["x", "w", "b"], ["y"])], "g", [x], [y], [w, b])
    opset = [helper.make_opsetid("", 17)]
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=opset, ir_version=8)
    return bytes(made.SerializeToString())


GOOD, EVIL = model(2.0), model(666.0)


@pytest.fixture(scope="module")
def bytes_of() -> dict[bytes, bytes]:
    """The artifacts of both models."""
    return {
        m: bytes(fissile.compile(m, threads=1, cache=False).program.artifact.buffer)
        for m in (GOOD, EVIL)
    }


@dataclass
class Place:
    """The folder, the names in it, the artifacts, and a file of the user elsewhere."""

    folder: Path
    good: bytes
    evil: bytes
    precious: Path
    compiled: int = 0

    @property
    def path(self) -> Path:
        request = compiler._request(GOOD, None, "native", 1, None, None)
        return self.folder / f"{request.key()}.fsl"

    @property
    def lock(self) -> Path:
        return self.path.with_suffix(".lock")

    @property
    def note(self) -> Path:
        return self.path.with_suffix(".checked")


@pytest.fixture
def place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_of: dict[bytes, bytes]
) -> Iterator[Place]:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    precious = tmp_path / "precious"
    precious.write_bytes(bytes_of[EVIL])
    made = Place(folder, bytes_of[GOOD], bytes_of[EVIL], precious)

    def compiled(request: object, progress: object) -> bytes:
        made.compiled += 1
        return made.good

    monkeypatch.setenv("FISSILE_CACHE_DIR", str(folder))
    monkeypatch.setattr(compiler, "_compiled", compiled)
    monkeypatch.setattr(cache, "TELL_SECONDS", 0.2)
    monkeypatch.setattr(cache, "LOCK_SECONDS", 0.6)

    def hangs(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it hangs after {LIMIT} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(LIMIT)
    yield made
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def flipped(data: bytes, member: str, at: int) -> bytes:
    """An artifact with one bit of a member turned."""
    changed = bytearray(data)
    offset, size = read_artifact(data).spans[member]
    changed[offset + at % size] ^= 1
    return bytes(changed)


def write(place: Place, data: bytes, mode: int = 0o600, user: int = -1) -> None:
    place.path.write_bytes(data)
    place.path.chmod(mode)
    os.chown(place.path, user, -1)


def as_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name[:90])
            Path(path.name[:90]).rename(path.name)
    finally:
        os.chdir(here)


def forged_note(place: Place) -> None:
    """Damaged weights, and the user's own note that they were checked, given to somebody else."""
    write(place, place.good)
    cache.opened(place.path)
    assert place.note.exists()
    with place.path.open("r+b") as file:
        offset, size = read_artifact(place.good).spans["weights.safetensors"]
        file.seek(offset + size - 1)
        file.write(bytes([place.good[offset + size - 1] ^ 1]))
    os.chown(place.note, SOMEBODY, -1)


def other_inode(place: Place) -> None:
    """A note of another file: the artifact was replaced by one with damaged weights."""
    write(place, place.good)
    cache.opened(place.path)
    note = place.note.read_bytes()
    place.path.rename(place.folder / "old")
    write(place, flipped(place.good, "weights.safetensors", -1))
    place.note.write_bytes(note)


def dangling(place: Place) -> None:
    place.path.symlink_to(place.folder / "nowhere")


def loop(place: Place) -> None:
    place.path.symlink_to(place.path)


def folder_in_place(place: Place) -> None:
    place.path.mkdir()


def another_layout(place: Place) -> None:
    write(place, place.evil.replace(b'"abi":1', b'"abi":9'))


MINE = 0o700
ARTIFACTS: dict[str, Callable[[Place], object]] = {
    "writable by the group": lambda p: write(p, p.evil, 0o660),
    "writable by all": lambda p: write(p, p.evil, 0o606),
    "a link": lambda p: p.path.symlink_to(p.precious),
    "a dangling link": dangling,
    "a link to itself": loop,
    "a named pipe": lambda p: os.mkfifo(p.path),
    "a socket": lambda p: as_socket(p.path),
    "a link to a device": lambda p: p.path.symlink_to("/dev/zero"),
    "a folder": folder_in_place,
    "empty": lambda p: write(p, b""),
    "cut": lambda p: write(p, p.evil[: len(p.evil) // 2]),
    "no artifact": lambda p: write(p, b"PK\3\4" + bytes(5000)),
    "another layout": another_layout,
    "a bit of the code": lambda p: write(p, flipped(p.good, "code-" + code(p.good), 99)),
    "a bit of the plan": lambda p: write(p, flipped(p.good, "plan.json", 99)),
    "a bit of the weights": lambda p: write(p, flipped(p.good, "weights.safetensors", -9)),
    "a bit of the weights' header": lambda p: write(p, flipped(p.good, "weights.safetensors", 40)),
    "the length of the weights' header": lambda p: write(p, flipped(p.good, "weights.safetensors", 5)),
    "a note of another file": other_inode,
}
OF_OTHERS: dict[str, Callable[[Place], object]] = {
    "of somebody": lambda p: write(p, p.evil, 0o600, SOMEBODY),
    "of somebody, who lets all read": lambda p: write(p, p.evil, 0o444, SOMEBODY),
    "a device": lambda p: os.mknod(p.path, 0o600 | stat.S_IFCHR, os.makedev(1, 5)),
    "a note of somebody": forged_note,
}
FOLDERS: dict[str, Callable[[Place], object]] = {
    "group": lambda p: p.folder.chmod(0o770),
    "all": lambda p: p.folder.chmod(0o707),
    "all, sticky": lambda p: p.folder.chmod(0o1777),
}


def code(data: bytes) -> str:
    """What the code's member is called after `code-`."""
    name: str = read_artifact(data).manifest["targets"][0]["code"]
    return name.removeprefix("code-")


def check(place: Place, kept: bool = True) -> list[str]:
    """The answers are right, twice; what was said. kept: whether the second time needs no compilation."""
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            with fissile.compile(GOOD, threads=1) as executable:
                assert np.array_equal(executable.run({"x": x})["y"], 2 * x + 1)
    assert place.compiled == (1 if kept else 2)
    assert place.precious.read_bytes() == place.evil
    assert all(w.category is FissileWarning for w in said)
    return [str(w.message) for w in said]


@pytest.mark.parametrize("name", ARTIFACTS)
def test_an_artifact_that_is_not_ours_is_made_anew(place: Place, name: str) -> None:
    ARTIFACTS[name](place)
    said = check(place, kept=name != "a folder")
    assert any(place.path.name in text for text in said) or name == "a dangling link"


@as_root
@pytest.mark.parametrize("name", OF_OTHERS)
def test_an_artifact_of_somebody_else_is_made_anew(place: Place, name: str) -> None:
    OF_OTHERS[name](place)
    said = check(place)
    assert any(place.path.name in text for text in said)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_others_write_to_is_not_used(place: Place, name: str) -> None:
    write(place, place.evil)
    FOLDERS[name](place)
    [text] = check(place, kept=False)
    assert "no compile cache" in text
    assert "chmod go-w" in text
    assert place.path.read_bytes() == place.evil


@as_root
def test_a_folder_of_somebody_else_is_not_used(place: Place) -> None:
    write(place, place.evil)
    os.chown(place.folder, SOMEBODY, -1)
    [text] = check(place, kept=False)
    assert f"belongs to user {SOMEBODY}" in text


def test_a_lock_that_is_a_link_leaves_its_target_alone(place: Place) -> None:
    place.lock.symlink_to(place.precious)
    assert "it is a symbolic link" in check(place)[0]


def test_a_lock_that_is_a_pipe(place: Place) -> None:
    os.mkfifo(place.lock)
    assert "it is a named pipe" in check(place)[0]


def test_a_lock_that_is_a_folder(place: Place) -> None:
    place.lock.mkdir()
    assert "no lock on" in check(place)[0]


def test_a_lock_with_contents_keeps_them(place: Place) -> None:
    place.lock.write_bytes(b"notes")
    assert check(place) == []
    assert place.lock.read_bytes() == b"notes"


def test_a_lock_that_is_held_for_ever_is_told_and_given_up(place: Place) -> None:
    with place.lock.open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        said = check(place)
    assert "waiting for its lock" in said[0]
    assert "has held it" in said[1]
    assert all(place.lock.name in text for text in said)


def test_a_note_that_is_a_link_leaves_its_target_alone(place: Place) -> None:
    write(place, place.good)
    place.note.symlink_to(place.precious)
    x = np.ones((1, 8), np.float32)
    assert fissile.compile(GOOD, threads=1).run({"x": x})["y"][0, 0] == 3
    assert place.precious.read_bytes() == place.evil


def test_weights_are_checked_once_and_after_every_start_of_the_machine(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[object] = []

    def counting(artifact: Artifact, names: Iterable[str] | None = None) -> None:
        checked.append(names)
        check_members(artifact, names)

    monkeypatch.setattr(cache, "check_members", counting)
    boot = tmp_path / "boot_id"
    boot.write_text("first\n", encoding="ascii")
    monkeypatch.setattr(cache, "_BOOT", boot)
    assert check(place) == []
    assert checked == []  # this process made them
    boot.write_text("second\n", encoding="ascii")
    for _ in range(3):
        fissile.compile(GOOD, threads=1)
    assert len(checked) == 1
    boot.unlink()
    fissile.compile(GOOD, threads=1)
    fissile.compile(GOOD, threads=1)
    assert len(checked) == 3


def test_an_explicit_load_is_the_users_own_decision(place: Place) -> None:
    write(place, place.good, 0o666)
    x = np.ones((1, 8), np.float32)
    assert fissile.load(place.path, threads=1).run({"x": x})["y"][0, 0] == 3
    link = place.folder / "link.fsl"
    link.symlink_to(place.path)
    assert fissile.load(link, threads=1, verify=True).run({"x": x})["y"][0, 0] == 3


ODD: dict[str, Callable[[Place], str]] = {
    "a file": lambda p: str(p.precious),
    "below a file": lambda p: str(p.precious / "x"),
    "too long": lambda p: str(p.folder / ("x" * 300)),
    "a device": lambda p: "/dev/null",
    "a tilde": lambda p: "~/cache",
    "proc": lambda p: "/proc/self/nothing",
}


@pytest.mark.parametrize("name", ODD)
def test_odd_values_of_the_variable(
    place: Place, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FISSILE_CACHE_DIR", ODD[name](place))
    [text] = check(place, kept=False)
    assert text.isprintable()
    assert "no compile cache" in text


def test_a_name_that_is_no_text(
    place: Place, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FISSILE_CACHE_DIR", os.fsdecode(os.fsencode(place.folder) + b"/\xff"))
    assert check(place) == []
    for command in ("cache", "doctor"):
        with pytest.raises(SystemExit) as leaving:
            cli.main([command])
        assert leaving.value.code == 0
        assert "1 artifacts" in capfd.readouterr().out
