"""`bench/callers.py`: several threads call one artifact, free and under a quota, and get equal bits."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "bench" / "callers.py"


def test_rows_with_and_without_a_quota(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    options = ["--callers", "3", "--seconds", "0.1", "--repeat", "2", "--json", str(out)]
    env = {**os.environ, "FISSILE_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, SCRIPT, model, *options, "--shape", "n=2", "--shape", "h=17", "--shape", "w=19"],
        capture_output=True, text=True, env=env, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())
    kinds = [(row["engine"], row["threads"], row["quota"]) for row in rows]
    assert kinds == [("fissile", 1, 0), ("fissile", 2, 0), ("fissile", 1, 1), ("fissile", 2, 1)]
    for row in rows:
        assert row["same_bits"]
        assert row["callers"] == 3
        assert len(row["single"]) == len(row["many"]) == 2
        assert 0 < row["p50"] <= row["p99"]
        assert row["cores"] == 1 or not row["quota"]
        assert (row["held_by"] in ("cgroup", "affinity")) == bool(row["quota"])
    assert done.stdout.count("equal") == 4
