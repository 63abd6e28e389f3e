"""Measurements that travel: a store as a file of JSON lines, and back (PRODUCT 5.4).

In: a store, or a file. Out: the file, or what was taken over and what was not, with the reason. Invariant: a record
that was measured on another processor or instruction set never mixes with those of this machine unless it is asked for.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fissile.errors import FileAccess, FileMissing, StoreError
from fissile.runtime.artifact import atomic_file
from fissile.runtime.machine import identity
from fissile.runtime.store import Key, Reject, Row, Store

FORMAT = 1
_MOST = 1e9  # of anything that a record counts
_NAMES = {f.name for f in fields(Key)}


@dataclass(frozen=True)
class Taken:
    """new: measurements that were not there; known: those that were; elsewhere: how many of which other machine."""

    new: int
    known: int
    elsewhere: Mapping[str, int]

    def text(self) -> str:
        """The same for people."""
        lines = [f"{self.new} measurements taken over, {self.known} were there already"]
        lines += [
            f"{count} do not fit this machine: measured on {machine}; this is {identity()} (--all takes them, too)"
            for machine, count in self.elsewhere.items()
        ]
        return "\n".join(lines)


def export(store: Store, path: Path) -> int:
    """Write everything a store has; the number of measurements."""
    rows, rejects = store.rows(), store.rejects()
    with atomic_file(path) as stream:
        stream.write(json.dumps({"fissile_store": FORMAT}).encode() + b"\n")
        for row in rows:
            stream.write(json.dumps({**asdict(row.key), "samples": row.samples}).encode() + b"\n")
        for reject in rejects:
            facts = {"label": reject.label, "reason": reject.reason}
            stream.write(json.dumps({**asdict(reject.key), **facts}).encode() + b"\n")
    return len(rows)


def take(store: Store, path: Path, *, everything: bool = False) -> Taken:
    """Take over what fits this machine, or `everything`. StoreError F512 for a file that is no export."""
    rows, rejects = _read(path)
    here = [r for r in rows if everything or _fits(r.key)]
    elsewhere = Counter(r.key.isa for r in rows if not (everything or _fits(r.key)))
    new = store.merge(here, [r for r in rejects if everything or _fits(r.key)])
    return Taken(new, len(here) - new, elsewhere)


def _fits(key: Key) -> bool:
    return key.isa.startswith(f"{identity()} as ")


def _read(path: Path) -> tuple[list[Row], list[Reject]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise FileMissing("F501", f"{path} does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise FileAccess("F502", f"{path} cannot be read", reason=str(error)) from error
    rows: list[Row] = []
    rejects: list[Reject] = []
    try:
        documents: list[dict[str, Any]] = [json.loads(line) for line in lines]
        if not documents or documents[0].get("fissile_store") != FORMAT:
            raise ValueError("its first line is not that of an export")
        for document in documents[1:]:
            key = _key(document)
            if "samples" in document:
                _check(document["samples"])
                rows.append(Row(key, document["samples"]))
            else:
                rejects.append(Reject(key, str(document["label"]), str(document["reason"])))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError("F512", f"{path} is no export of a tuning store", reason=str(error)) from error
    return rows, rejects


def _key(document: Mapping[str, Any]) -> Key:
    key = Key(**{name: document[name] for name in _NAMES})
    "".join(v for v in document.values() if isinstance(v, str)).encode()  # half a surrogate pair is no text
    if not all(isinstance(value, str) for value in (key.code, key.isa, key.cache, key.effort)):
        raise TypeError("a key has something else than texts")
    if not isinstance(key.threads, int) or not 0 < key.threads < _MOST:
        raise ValueError(f"{key.threads} threads")
    return key


def _check(samples: str) -> None:
    """ValueError unless the text is what the store keeps: three rows of equally many numbers."""
    seconds, cpu, switches = json.loads(samples)
    if not len(seconds) == len(cpu) == len(switches) > 0:
        raise ValueError("a record has rows of different lengths")
    numbers = [x for row in (seconds, cpu, switches) for x in row]
    if not all(isinstance(x, int | float) and 0 <= x < _MOST for x in numbers):
        raise ValueError("a record has something else than seconds and counts")
