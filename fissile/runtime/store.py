"""The tuning store: measurements that survive, in layers of sqlite files (DESIGN 4, PRODUCT 5.4).

In: a key (code hash, instruction set, threads, cache state, effort) and raw samples. Out: all that
was ever measured under a key, oldest first. Layers are read in order and only the last is written.
Beside them stand notes: what else must not be found out twice, as text by name.
Invariant: records are appended, never changed; each is one transaction in a rollback journal, so
kill -9, a full disk and two processes at once leave a store that opens.
"""

import hashlib
import json
import os
import sqlite3
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fissile.errors import FissileWarning, StoreError
from fissile.runtime.statistic import Samples

WAIT_SECONDS = 30.0
_AT_ONCE = 500  # names in one question
READ_SECONDS = 2.0  # how long somebody who could do without the store waits for it
_SCHEMA = """
create table if not exists record (
  code text not null, isa text not null, threads integer not null, cache text not null,
  effort text not null, samples text not null);
create index if not exists by_key on record (code, isa, threads, cache, effort);
create table if not exists reject (
  code text not null, isa text not null, threads integer not null, cache text not null,
  effort text not null, label text not null, reason text not null,
  primary key (code, isa, threads, cache, effort));
create table if not exists peak (machine text, quantity text, value real not null,
  primary key (machine, quantity));
create table if not exists note (name text primary key, value text not null);
"""
_MATCH = "code = ? and isa = ? and threads = ? and cache = ? and effort = ?"


@dataclass(frozen=True)
class Key:
    """What a measurement is of. isa: instruction set and the processor that ran it (`machine.identity`).

    cache: how many bytes were touched between two runs of it; effort: how hard its schedule was sought.
    """

    code: str
    isa: str
    threads: int
    cache: str
    effort: str


@dataclass(frozen=True)
class Reject:
    """A kernel that could not be measured. label: the ONNX nodes it is from; reason: in a sentence."""

    key: Key
    label: str
    reason: str


@dataclass(frozen=True)
class Row:
    """A measurement as it is kept. samples: JSON of seconds, processor seconds, involuntary switches."""

    key: Key
    samples: str


def default_paths() -> tuple[Path, ...]:
    """Where the store is when FISSILE_STORE does not say: the user's data directory."""
    folder = import_module("platformdirs").user_data_dir("fissile", appauthor=False)
    return (Path(folder) / "tuning.sqlite",)


class Store:
    """Layers of one store; a context manager. A last layer that cannot be written stays in memory."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        readable = [p for p in paths[:-1] if Path(p).is_file()]
        self.layers = [_connect(Path(p), read_only=True) for p in readable]
        self.layers.append(_writable(Path(paths[-1])) if paths else _in_memory())

    @property
    def name(self) -> str:
        """Where measurements are kept, for people."""
        ((_, _, path),) = self.layers[-1].execute("pragma database_list").fetchall()
        return path or "in memory"

    def records(self, key: Key) -> list[Samples]:
        """Every measurement under a key, the outer layers' first."""
        found: list[Samples] = []
        for layer in self.layers:
            rows = layer.execute(
                f"select samples from record where {_MATCH} order by rowid", astuple(key)
            )
            found += [_samples(text, key.threads) for (text,) in rows]
        return found

    def add(self, key: Key, samples: Samples) -> None:
        """Append a measurement."""
        rows = [x.tolist() for x in (samples.seconds, samples.cpu, samples.switches)]
        self._write(
            "insert into record values (?, ?, ?, ?, ?, ?)", (*astuple(key), json.dumps(rows))
        )

    def reject(self, rejected: Reject) -> None:
        """Keep why a kernel cannot be measured; the first reason stays."""
        self._write(
            "insert or ignore into reject values (?, ?, ?, ?, ?, ?, ?)",
            (*astuple(rejected.key), rejected.label, rejected.reason),
        )

    def rejects(self) -> list[Reject]:
        """Every kernel that could not be measured."""
        rows = [r for layer in self.layers for r in _all(layer, "reject")]
        return [Reject(Key(*row[:5]), row[5], row[6]) for row in rows]

    def reason(self, key: Key) -> str | None:
        """Why a kernel could not be measured; None where nothing is known against it."""
        query = f"select reason from reject where {_MATCH}"
        rows = (r for x in self.layers if _has(x, "reject") for r in x.execute(query, astuple(key)))
        return next((str(reason) for (reason,) in rows), None)

    def rows(self) -> list[Row]:
        """Every measurement, the outer layers' first."""
        rows = (r for layer in self.layers for r in _all(layer, "record"))
        return [Row(Key(*row[:5]), row[5]) for row in rows]

    def merge(self, rows: Sequence[Row], rejects: Sequence[Reject]) -> int:
        """Take over what is not there yet, all or nothing; the number of measurements that are new."""
        known = set(self.rows())
        new = [row for row in dict.fromkeys(rows) if row not in known]
        values = [(*astuple(row.key), row.samples) for row in new]
        others = [(*astuple(r.key), r.label, r.reason) for r in rejects]
        try:
            with self.layers[-1] as transaction:
                transaction.executemany("insert into record values (?, ?, ?, ?, ?, ?)", values)
                transaction.executemany(
                    "insert or ignore into reject values (?, ?, ?, ?, ?, ?, ?)", others
                )
        except sqlite3.Error as error:
            raise _unwritable(error) from error
        return len(new)

    def peak(self, machine: str, quantity: str) -> float | None:
        """The highest value ever seen of a quantity ("flops.float32", "bytes.l2", ...)."""
        query = "select value from peak where machine = ? and quantity = ?"
        rows = [r for layer in self.layers for r in layer.execute(query, (machine, quantity))]
        return max((float(value) for (value,) in rows), default=None)

    def raise_peak(self, machine: str, quantity: str, value: float) -> None:
        """Record a value if it is the highest yet."""
        self._write(
            "insert into peak values (?, ?, ?) on conflict (machine, quantity) "
            "do update set value = max(value, excluded.value)",
            (machine, quantity, value),
        )

    def notes(self, names: Sequence[str]) -> dict[str, str]:
        """The notes there are under these names."""
        found: dict[str, str] = {}
        for layer in self.layers:
            if _has(layer, "note"):
                for first in range(0, len(names), _AT_ONCE):
                    some = names[first : first + _AT_ONCE]
                    query = f"select name, value from note where name in ({', '.join('?' * len(some))})"
                    found |= dict(layer.execute(query, tuple(some)).fetchall())
        return found

    def keep_notes(self, notes: Mapping[str, str]) -> None:
        """Write notes down; what stood under their names is replaced."""
        try:
            with self.layers[-1] as transaction:
                statement = "insert or replace into note values (?, ?)"
                transaction.executemany(statement, list(notes.items()))
        except sqlite3.Error as error:
            raise _unwritable(error) from error

    def close(self) -> None:
        """Close all layers."""
        for layer in self.layers:
            layer.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _write(self, statement: str, values: tuple[object, ...]) -> None:
        try:
            with self.layers[-1] as transaction:
                transaction.execute(statement, values)
        except sqlite3.Error as error:
            raise _unwritable(error) from error


class StoreToRead(Store):
    """Layers that are only read; what would be written stays in memory. sqlite3.Error where one cannot be read.

    No file is made, and a layer that does not exist is left out.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        readable = [Path(p) for p in paths if Path(p).is_file()]
        self.layers = [_connect(p, read_only=True, wait=READ_SECONDS) for p in readable]
        self.layers = [x for x in self.layers if _has(x, "record")] + [_in_memory()]

    def stamp(self) -> str:
        """A text that changes with every measurement that is added; "" where there is none."""
        query = "select rowid, * from record order by rowid desc limit 1"
        layers = [x.execute(query).fetchone() for x in self.layers]
        rejects = [x.execute("select max(rowid) from reject").fetchone() for x in self.layers if _has(x, "reject")]
        told = repr((layers, rejects)).encode()
        return hashlib.sha256(told).hexdigest()[:16] if any(layers) else ""


def _unwritable(error: sqlite3.Error) -> StoreError:
    return StoreError("F510", "the tuning store cannot be written", reason=str(error))


def _has(layer: sqlite3.Connection, table: str) -> bool:
    """Whether a layer has a table; one that is only read may be older than the table."""
    query = "select 1 from sqlite_master where type = 'table' and name = ?"
    return layer.execute(query, (table,)).fetchone() is not None


def _all(layer: sqlite3.Connection, table: str) -> list[Any]:
    return layer.execute(f"select * from {table} order by rowid").fetchall() if _has(layer, table) else []


def _samples(text: str, threads: int) -> Samples:
    seconds, cpu, switches = (np.array(row, float) for row in json.loads(text))
    return Samples(seconds, cpu, switches, threads)


def _connect(path: Path, *, read_only: bool, wait: float = WAIT_SECONDS) -> sqlite3.Connection:
    mode = "ro" if read_only else "rwc"
    return sqlite3.connect(
        f"{path.resolve().as_uri()}?mode={mode}", uri=True, timeout=wait,
        check_same_thread=False,
    )  # fmt: skip


def _in_memory() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.executescript(_SCHEMA)
    return connection


def _writable(path: Path) -> sqlite3.Connection:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = _connect(path, read_only=False)
        connection.executescript(_SCHEMA)
    except (sqlite3.OperationalError, OSError) as error:
        message = f"the tuning store {path} cannot be written ({error}); keeping it in memory"
        warnings.warn(message, FissileWarning, stacklevel=3)
        return _in_memory()
    except sqlite3.DatabaseError as error:
        raise StoreError(
            "F511", f"{path} is no tuning store", reason=str(error), remedy=f"rm {path}"
        ) from error
    return connection
