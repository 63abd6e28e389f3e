"""The compile cache: keys, locking between processes, eviction, unusable folders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fissile import cache, compiler
from fissile.errors import FileAccess, FissileWarning


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FISSILE_CACHE_DIR", str(tmp_path / "cache"))


def test_key_is_by_content() -> None:
    assert cache.key({"a": 1, "b": ["x"]}) == cache.key({"b": ["x"], "a": 1})
    assert cache.key({"a": 1}) != cache.key({"a": "1"})


def test_an_entry_is_made_once_and_found_again() -> None:
    for expected in (False, True):
        with cache.entry("k") as path:
            assert path is not None
            assert path.exists() is expected
            if not expected:
                assert cache.keep(path, b"1234")
    assert (cache.contents().artifacts, cache.contents().size) == (1, 4)
    assert cache.clear().artifacts == 1
    assert cache.contents().artifacts == 0


def test_the_oldest_goes_first(tmp_path: Path) -> None:
    for age, name in enumerate("abc"):
        path = tmp_path / f"{name}.fsl"
        path.write_bytes(b"0" * 10)
        os.utime(path, (1000 - age, 1000 - age))
    cache.trim(tmp_path, cap=25)
    assert sorted(p.name for p in tmp_path.glob("*.fsl")) == ["a.fsl", "b.fsl"]
    cache.trim(tmp_path, cap=0, keep_path=tmp_path / "b.fsl")
    assert [p.name for p in tmp_path.glob("*.fsl")] == ["b.fsl"]


def test_two_processes_make_it_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom fissile import cache\n"
        "with cache.entry('same') as path:\n"
        "    if not path.exists():\n"
        "        time.sleep(0.3)\n"
        f"        open({str(log)!r}, 'a').write('made\\n')\n"
        "        cache.keep(path, b'x')\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait(30) for process in running] == [0, 0]
    assert log.read_text() == "made\n"


def test_off_and_unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("FISSILE_CACHE_DIR", str(blocked / "cache"))
    with pytest.warns(FissileWarning, match="no compile cache"), cache.entry("k") as path:
        assert path is None
    monkeypatch.setenv("FISSILE_CACHE", "0")
    with cache.entry("k") as path:
        assert path is None


def test_a_failed_save_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(FissileWarning, match="No space left"):
        assert not cache.keep(tmp_path / "k.fsl", b"PK")
    assert not [*tmp_path.iterdir()]


def test_a_warning_points_at_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("FISSILE_CACHE_DIR", str(blocked / "other"))
    with pytest.warns(FissileWarning, match="no compile cache") as said, cache.entry("k"):
        pass
    assert [warning.filename for warning in said] == [__file__]


def test_a_folder_in_place_of_a_file_is_left_alone() -> None:
    folder = cache.directory()
    assert folder is not None
    (folder / "k.fsl").mkdir()
    (folder / "k.fsl" / "precious").touch()
    assert cache.contents().artifacts == 0
    assert not cache.damaged()
    cache.trim(folder, cap=0)
    cache.clear()
    assert (folder / "k.fsl" / "precious").exists()


def test_what_is_damaged_is_named() -> None:
    folder = cache.directory()
    assert folder is not None
    (folder / "k.fsl").write_bytes(b"PK no artifact")
    [(path, reason)] = cache.damaged()
    assert path.name == "k.fsl"
    assert "archive" in reason


def test_a_file_that_goes_while_it_is_looked_at_is_made_again(tmp_path: Path) -> None:
    assert compiler._from_cache(tmp_path / "gone.fsl", 1) is None


def test_a_file_that_cannot_be_read_now_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(path: Path) -> None:
        raise FileAccess("F502", f"{path} cannot be read", reason="Too many open files")

    path = tmp_path / "good.fsl"
    path.write_bytes(b"PK")
    monkeypatch.setattr(cache, "opened", opened)
    with pytest.warns(FissileWarning, match="Too many open files"):
        assert compiler._from_cache(path, 1) is None
    assert path.exists()
