"""Tuning that is killed again and again, and two tuners on one store: nothing that was measured is lost.

    python bench/kill_tuning.py MODEL [--kills 20] [--seconds 4] [--budget 60s]

Every run uses the same store and is killed with SIGKILL at a random moment within `seconds` of its first measurement,
one in four of its start. After each the store must be sound, hold all it held before, and whatever the run said it
had measured. Then two runs share the store, and a last one must find what they left. The last line is the verdict;
exit status 1 if anything is lost. Take a model with more kernels than are measured in all these seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fissile.runtime.artifact import check_members, read_artifact
from fissile.runtime.store import Row, Store

EARLY = 0.25  # of the kills come soon after the start, mostly before anything is measured
PROGRESS = re.compile(r"kernel (\d+)/(\d+)$")


@dataclass(frozen=True)
class Place:
    """A store, the model that is tuned, and where artifacts go."""

    store: Path
    model: Path
    folder: Path

    def tuner(self, name: str, budget: str) -> subprocess.Popen[str]:
        """A process that tunes; its events go to a pipe."""
        command = [
            sys.executable, "-m", "fissile.cli", "tune", str(self.model), "--budget", budget,
            "--threads", "1", "-o", str(self.folder / f"{name}.fsl"), "--json",
        ]  # fmt: skip
        env = os.environ | {"FISSILE_STORE": str(self.store)}
        return subprocess.Popen(
            command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def rows(self) -> list[Row]:
        """What the store holds; SystemExit if it is damaged."""
        if not self.store.exists():
            return []
        with sqlite3.connect(self.store) as connection:
            (state,) = connection.execute("pragma integrity_check").fetchone()
        if state != "ok":
            raise SystemExit(f"the store is damaged: {state}")
        with Store([self.store]) as opened:
            return opened.rows()

    def rejects(self) -> int:
        """How many kernels the store says cannot run."""
        if not self.store.exists():
            return 0
        with Store([self.store]) as opened:
            return len(opened.rejects())


class Watch(threading.Thread):
    """Hears a tuner. stage: of its last event; finished: measurements that it has gone on from; said: the rest.

    It speaks before every batch: the batches before that are finished, and so are the lists of kernels before this one.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(daemon=True)
        self.process, self.stage, self.finished, self.said = process, "", 0, ""
        self.beyond_start = threading.Event()
        self._done = self._wanted = 0

    def run(self) -> None:
        """Until the process ends."""
        for line in self.process.stderr or ():
            try:
                event = json.loads(line)
            except ValueError:
                self.said += line  # cut off by the kill, or no event
                continue
            self.stage = event["stage"]
            if found := PROGRESS.search(event["text"]):
                done, wanted = int(found[1]), int(found[2])
                self.finished += (self._wanted if done == 0 else done) - self._done
                self._done, self._wanted = done, wanted
            if self.stage in ("measuring", "whole"):
                self.beyond_start.set()
        self.beyond_start.set()


def check_artifacts(place: Place) -> None:
    """ArtifactError if a file that was put in place is not whole."""
    for path in place.folder.glob("*.fsl"):
        check_members(read_artifact(path))


@dataclass
class Kills:
    """What was killed. measuring: in the midst of a batch of kernels; added: runs that left something in the store."""

    count: int = 0
    measuring: int = 0
    late: int = 0  # runs that had come to their end before
    added: int = 0
    finished: int = 0


def kill(place: Place, count: int, seconds: float, budget: str, rng: random.Random) -> Kills:
    """Kill so many runs. SystemExit if anything is lost."""
    done = Kills()
    before, rejects = place.rows(), place.rejects()
    for number in range(count):
        process = place.tuner("killed", budget)
        watch = Watch(process)
        watch.start()
        if rng.random() > EARLY:
            watch.beyond_start.wait()
        time.sleep(rng.uniform(0.0, seconds))
        is_measuring = watch.stage == "measuring"
        process.send_signal(signal.SIGKILL)
        watch.join()
        process.communicate()
        if process.returncode not in (0, -signal.SIGKILL):
            raise SystemExit(f"run {number + 1} ended with {process.returncode}: {watch.said}")
        check_artifacts(place)
        now, refused = place.rows(), place.rejects()
        if lost := len(Counter(before) - Counter(now)):
            raise SystemExit(f"kill {number + 1} lost {lost} measurements")
        new = len(now) - len(before) + refused - rejects
        if new < watch.finished:
            raise SystemExit(
                f"kill {number + 1}: {watch.finished} were measured, {new} are in the store"
            )
        done.late += process.returncode == 0
        done.count += process.returncode != 0
        done.measuring += is_measuring and process.returncode != 0 and new == watch.finished
        done.added += new > 0
        done.finished += watch.finished
        before, rejects = now, refused
    return done


def _answer(process: subprocess.Popen[str]) -> str:
    """What a tuner prints at its end; SystemExit with its last words when it fails."""
    answer, said = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"a tuner ended with {process.returncode}: {said.splitlines()[-3:]}")
    return answer


def share(place: Place, budget: str) -> int:
    """Two runs at once; how many measurements they added."""
    before = place.rows()
    both = [place.tuner(name, budget) for name in ("first", "second")]
    with ThreadPoolExecutor() as pool:
        list(pool.map(_answer, both))
    now = place.rows()
    if Counter(before) - Counter(now):
        raise SystemExit("two tuners lost measurements")
    return len(now) - len(before)


def main() -> None:
    """Print one line about each part, and the verdict."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fissile-") as folder:
        place = Place(Path(folder) / "store.sqlite", given.model, Path(folder))
        done = kill(place, given.kills, given.seconds, given.budget, random.Random(given.seed))
        print(
            f"{done.count} kills, {done.measuring} of them while kernels were measured ({done.late} came too late): "
            f"store sound after each, {len(place.rows())} measurements in it from {done.added} runs, all "
            f"{done.finished} that were finished among them",
            flush=True,
        )
        added = share(place, given.budget)
        print(f"two tuners on one store: both ended well, {added} measurements added", flush=True)
        before = len(place.rows())
        found = json.loads(_answer(place.tuner("last", given.budget)))["certificate"]
        print(
            f"resumed: {found['measured']} kernels known at the end, {len(place.rows()) - before} measurements "
            f"new, complete: {found['complete']}"
        )
        print("nothing lost")


if __name__ == "__main__":
    main()
