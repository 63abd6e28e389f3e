"""Tuning that is killed again and again, and two tuners on one store: nothing that was measured is lost.

    python bench/kill_tuning.py MODEL [--kills 20] [--seconds 12] [--budget 60s]

Every run uses the same store and is killed with SIGKILL at a random moment within `seconds` of its first measurement,
one in four before it. After each the store must be sound and hold all it held before. Then two runs share the store,
and a last one must find what they left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from fissile.runtime.store import Row, Store

EARLY = 0.25  # of the kills come before anything is measured


@dataclass(frozen=True)
class Place:
    """A store, the model that is tuned, and where artifacts go."""

    store: Path
    model: Path
    folder: Path

    def tuner(self, name: str, budget: str, said: int | None = None) -> subprocess.Popen[str]:
        """A process that tunes. said: where its events go."""
        command = [
            sys.executable, "-m", "fissile.cli", "tune", str(self.model), "--budget", budget,
            "--threads", "1", "-o", str(self.folder / f"{name}.fsl"), "--json",
        ]  # fmt: skip
        env = os.environ | {"FISSILE_STORE": str(self.store)}
        return subprocess.Popen(
            command, env=env, text=True, stdout=subprocess.PIPE, stderr=said or subprocess.DEVNULL
        )

    def rows(self) -> set[Row]:
        """What the store holds; SystemExit if it is damaged."""
        if not self.store.exists():
            return set()
        with sqlite3.connect(self.store) as connection:
            (state,) = connection.execute("pragma integrity_check").fetchone()
        if state != "ok":
            raise SystemExit(f"the store is damaged: {state}")
        with Store([self.store]) as opened:
            return set(opened.rows())


def kill(place: Place, count: int, seconds: float, budget: str, rng: random.Random) -> int:
    """Kill so many runs; how many of them had measured something. SystemExit if anything is lost."""
    productive = 0
    before = place.rows()
    for number in range(count):
        process = place.tuner("killed", budget, subprocess.PIPE)
        if rng.random() > EARLY:
            _until_measuring(process)
        time.sleep(rng.uniform(0.0, seconds))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        now = place.rows()
        if lost := before - now:
            raise SystemExit(f"kill {number + 1} lost {len(lost)} measurements")
        productive += len(now) > len(before)
        before = now
    return productive


def _until_measuring(process: subprocess.Popen[str]) -> None:
    for line in process.stderr or ():
        if json.loads(line)["stage"] == "start":
            return


def share(place: Place, budget: str) -> int:
    """Two runs at once; how many measurements they added."""
    before = place.rows()
    both = [place.tuner(name, budget) for name in ("first", "second")]
    answers = [process.communicate()[0] for process in both]
    if codes := [p.returncode for p in both if p.returncode != 0]:
        raise SystemExit(f"a tuner that shares its store ended with {codes}: {answers}")
    now = place.rows()
    if before - now:
        raise SystemExit("two tuners lost measurements")
    return len(now) - len(before)


def main() -> None:
    """Print one line about each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fissile-") as folder:
        place = Place(Path(folder) / "store.sqlite", given.model, Path(folder))
        productive = kill(place, given.kills, given.seconds, given.budget, random.Random(given.seed))
        kept = len(place.rows())
        print(f"{given.kills} kills, store sound, {kept} measurements kept ({productive} runs added some)")
        print(f"two tuners on one store: both ended well, {share(place, given.budget)} measurements added")
        before = len(place.rows())
        last = place.tuner("last", given.budget)
        said = last.communicate()[0]
        found = json.loads(said)["certificate"]
        print(
            f"resumed: {found['measured']} kernels known at the end, {len(place.rows()) - before} measurements "
            f"new, complete: {found['complete']}"
        )


if __name__ == "__main__":
    main()
