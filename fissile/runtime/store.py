"""The tuning store: measurements that survive, in layers of sqlite files (DESIGN 4, PRODUCT 5.4).

In: a key (code hash, instruction set, threads, cache state, effort) and raw samples. Out: all that
was ever measured under a key, oldest first. Layers are read in order and only the last is written.
Beside them stand notes: what else must not be found out twice, as text by name.
Invariant: records are appended, never changed; what is written at once is one transaction in a rollback journal, so
kill -9, a full disk and two processes at once leave a store that opens. A layer that cannot be written any longer
costs a warning: what comes then stays in memory.
"""

import hashlib
import json
import os
import sqlite3
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import astuple, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np

from fissile.errors import FileAccess, FissileWarning, StoreError
from fissile.runtime.statistic import Samples

WAIT_SECONDS = 30.0
_AT_ONCE = 500  # names in one question
READ_SECONDS = 2.0  # how long somebody who could do without the store waits for it
FORMAT = 1  # `user_version` of the file; 0 came before it and may lack some of the tables
_SCHEMA = f"""
begin immediate;
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
pragma user_version = {FORMAT};
commit;
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
    """Where the store is when FISSILE_STORE does not say: the user's data directory; in memory for want of a home."""
    folder = Path(import_module("platformdirs").user_data_dir("fissile", appauthor=False))
    return (folder / "tuning.sqlite" if folder.is_absolute() else Path(os.devnull),)


class Store:
    """Layers of one store; a context manager. A last layer that cannot be written stays in memory, with a warning.

    StoreError F511 for a file that is no store, F513 for one that a newer version made.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self.layers = _to_read(paths[:-1])
        self.layers += _to_write(Path(paths[-1])) if paths else [_in_memory()]

    @property
    def name(self) -> str:
        """Where measurements are kept, for people."""
        return _path(self.layers[-1]) or "in memory"

    def records(self, key: Key) -> list[Samples]:
        """Every measurement under a key, the outer layers' first."""
        query = f"select samples from record where {_MATCH} order by rowid"
        return [
            _samples(text, key.threads, layer)
            for layer in self.layers
            for (text,) in _rows(layer, query, astuple(key))
        ]

    def add(self, key: Key, samples: Samples) -> None:
        """Append a measurement."""
        self.add_all([(key, samples)])

    def add_all(self, measured: Sequence[tuple[Key, Samples]]) -> None:
        """Append measurements, all or none."""
        columns = [(k, [x.tolist() for x in (s.seconds, s.cpu, s.switches)]) for k, s in measured]
        values = [(*astuple(key), json.dumps(rows)) for key, rows in columns]
        self._write("insert into record values (?, ?, ?, ?, ?, ?)", values)

    def reject(self, rejected: Reject) -> None:
        """Keep why a kernel cannot be measured; the first reason stays."""
        values = (*astuple(rejected.key), rejected.label, rejected.reason)
        self._write("insert or ignore into reject values (?, ?, ?, ?, ?, ?, ?)", [values])

    def rejects(self) -> list[Reject]:
        """Every kernel that could not be measured."""
        rows = [r for layer in self.layers for r in _all(layer, "reject")]
        return [Reject(Key(*row[:5]), row[5], row[6]) for row in rows]

    def reason(self, key: Key) -> str | None:
        """Why a kernel could not be measured; None where nothing is known against it."""
        query = f"select reason from reject where {_MATCH}"
        rows = (r for x in self.layers if _has(x, "reject") for r in _rows(x, query, astuple(key)))
        return next((str(reason) for (reason,) in rows), None)

    def rows(self) -> list[Row]:
        """Every measurement, the outer layers' first."""
        rows = (r for layer in self.layers for r in _all(layer, "record"))
        return [Row(Key(*row[:5]), row[5]) for row in rows]

    def merge(self, rows: Sequence[Row], rejects: Sequence[Reject]) -> int:
        """Take over what is not there yet, all or nothing; the number of measurements that are new.

        StoreError F510 where they cannot be kept: memory alone would not do.
        """
        others = [(*astuple(r.key), r.label, r.reason) for r in rejects]
        if not _path(self.layers[-1]):
            raise StoreError("F510", "the tuning store cannot be written", reason="it is in memory")
        try:
            with self.layers[-1] as transaction:
                transaction.execute("begin immediate")  # another import sees all of this one
                known = set(self.rows())
                new = [row for row in dict.fromkeys(rows) if row not in known]
                values = [(*astuple(row.key), row.samples) for row in new]
                transaction.executemany("insert into record values (?, ?, ?, ?, ?, ?)", values)
                transaction.executemany(
                    "insert or ignore into reject values (?, ?, ?, ?, ?, ?, ?)", others
                )
        except sqlite3.Error as error:
            raise StoreError("F510", "the tuning store cannot be written", reason=str(error)) from error
        return len(new)

    def peak(self, machine: str, quantity: str) -> float | None:
        """The highest value ever seen of a quantity ("flops.float32", "bytes.l2", ...)."""
        query, values = "select value from peak where machine = ? and quantity = ?", (machine, quantity)
        rows = [r for x in self.layers if _has(x, "peak") for r in _rows(x, query, values)]
        return max((float(value) for (value,) in rows), default=None)

    def raise_peak(self, machine: str, quantity: str, value: float) -> None:
        """Record a value if it is the highest yet."""
        self._write(
            "insert into peak values (?, ?, ?) on conflict (machine, quantity) "
            "do update set value = max(value, excluded.value)",
            [(machine, quantity, value)],
        )

    def notes(self, names: Sequence[str]) -> dict[str, str]:
        """The notes there are under these names."""
        found: dict[str, str] = {}
        for layer in self.layers:
            if _has(layer, "note"):
                for first in range(0, len(names), _AT_ONCE):
                    some = names[first : first + _AT_ONCE]
                    query = f"select name, value from note where name in ({', '.join('?' * len(some))})"
                    found |= dict(_rows(layer, query, tuple(some)))
        return found

    def keep_notes(self, notes: Mapping[str, str]) -> None:
        """Write notes down; what stood under their names is replaced."""
        self._write("insert or replace into note values (?, ?)", [*notes.items()])

    def close(self) -> None:
        """Close all layers."""
        for layer in self.layers:
            layer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _write(self, statement: str, values: Sequence[tuple[object, ...]]) -> None:
        """One transaction. Where the last layer takes no more, a layer in memory takes its place."""
        try:
            with self.layers[-1] as transaction:
                transaction.executemany(statement, values)
        except sqlite3.Error as error:
            _warn_of_memory(self.name, str(error))
            self.layers.append(_in_memory())
            with self.layers[-1] as transaction:
                transaction.executemany(statement, values)


class StoreToRead(Store):
    """Layers that are only read; what would be written stays in memory. StoreError, FileAccess where one cannot be.

    No file is made, and a layer that does not exist is left out.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self.layers = [*_to_read(paths, READ_SECONDS), _in_memory()]

    def stamp(self) -> str:
        """A text that changes with every measurement that is added; "" where there is none."""
        query = "select rowid, * from record order by rowid desc limit 1"
        layers = [_rows(x, query)[:1] for x in self.layers]
        last = "select max(rowid) from reject"
        rejects = [_rows(x, last)[0] for x in self.layers if _has(x, "reject")]
        told = repr((layers, rejects)).encode()
        return hashlib.sha256(told).hexdigest()[:16] if any(layers) else ""


def _rows(layer: sqlite3.Connection, query: str, values: Sequence[object] = ()) -> list[Any]:
    """The answer to a question. StoreError F511 for what is damaged, FileAccess F514 for what cannot be read now."""
    try:
        return layer.execute(query, tuple(values)).fetchall()
    except sqlite3.OperationalError as error:
        raise FileAccess("F514", f"the tuning store {_path(layer)} cannot be read", reason=str(error)) from error
    except sqlite3.DatabaseError as error:
        raise _no_store(_path(layer), str(error)) from error


def _no_store(path: str, reason: str) -> StoreError:
    remedy = [f"mv {path} {path}.old", "name another in FISSILE_STORE"]
    return StoreError("F511", f"{path} is no tuning store", reason=reason, remedy=remedy)


def _path(layer: sqlite3.Connection) -> str:
    """The file of a layer; "" in memory."""
    ((_, _, path),) = layer.execute("pragma database_list").fetchall()
    return str(path)


def _has(layer: sqlite3.Connection, table: str) -> bool:
    """Whether a layer has a table; one that is only read may be older than the table."""
    return bool(_rows(layer, "select 1 from sqlite_master where type = 'table' and name = ?", [table]))


def _all(layer: sqlite3.Connection, table: str) -> list[Any]:
    return _rows(layer, f"select * from {table} order by rowid") if _has(layer, table) else []


def _samples(text: str, threads: int, layer: sqlite3.Connection) -> Samples:
    try:
        seconds, cpu, switches = (np.array(row, float) for row in json.loads(text))
    except (ValueError, TypeError) as error:
        raise _no_store(_path(layer), f"a record is damaged ({error})") from error
    return Samples(seconds, cpu, switches, threads)


def _connect(path: Path, mode: str, wait: float) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.resolve().as_uri()}?mode={mode}", uri=True, timeout=wait, check_same_thread=False
    )


def _to_read(
    paths: Sequence[str | os.PathLike[str]], wait: float = WAIT_SECONDS
) -> list[sqlite3.Connection]:
    """Those that exist and hold anything."""
    layers = [_readable(Path(p), wait) for p in paths if Path(p).is_file()]
    return [x for x in layers if _has(x, "record")]


def _readable(path: Path, wait: float) -> sqlite3.Connection:
    if Path(f"{path}-journal").exists():
        # a writer may have been killed: only who may write, too, can take back what it left half done
        with suppress(sqlite3.Error), closing(_connect(path, "rw", wait)) as writer:
            writer.execute("select 1 from sqlite_master").fetchall()
    layer = _connect(path, "ro", wait)
    _check_format(layer, path)
    return layer


def _check_format(layer: sqlite3.Connection, path: Path) -> int:
    """The format of a file that is a store, or empty. StoreError F511, F513."""
    ((found,),) = _rows(layer, "pragma user_version")
    if found > FORMAT:
        raise StoreError(
            "F513", f"the tuning store {path} has format {found}; this fissile knows {FORMAT}",
            reason="it was written by a newer version; those of earlier versions stay readable",
            remedy=["pip install --upgrade fissile", "name another in FISSILE_STORE"],
        )  # fmt: skip
    others = _rows(layer, "select name from sqlite_master where type = 'table'")
    if others and not _has(layer, "record"):
        raise _no_store(str(path), f"it has a table {others[0][0]}, but none of measurements")
    return int(found)


def _in_memory() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.executescript(_SCHEMA)
    return connection


def _to_write(path: Path) -> list[sqlite3.Connection]:
    """A layer that is written; where that is impossible what can be read of it, and one in memory."""
    if path == Path(os.devnull):
        return [_in_memory()]
    try:
        return [_writable(path)]
    except FileAccess as error:
        reason = error.reason
    except (sqlite3.OperationalError, OSError) as error:
        reason = str(error)
    _warn_of_memory(str(path), reason)
    with suppress(FileAccess):
        return [*_to_read([path], READ_SECONDS), _in_memory()]
    return [_in_memory()]


def _writable(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        raise OSError("it is no file")
    connection = _connect(path, "rwc", WAIT_SECONDS)
    if _check_format(connection, path) < FORMAT:
        connection.executescript(_SCHEMA)
    return connection


def _warn_of_memory(name: str, reason: str) -> None:
    text = f"the tuning store {name} cannot be written ({reason}); keeping in memory what is measured from now on"
    warnings.warn(text, FissileWarning, stacklevel=4)
