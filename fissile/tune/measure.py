"""Seconds of kernels, measured once on a machine and remembered (DESIGN 3.4, 6).

In: kernels. Out: seconds of one launch each, from the store where it knows them, else from the measuring child, in
batches. Invariant: every batch is in the store before its numbers are used, so that nothing is lost when the process
dies; a kernel that crashes, hangs or cannot be built costs infinitely much, and the store says why.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np

from fissile.cache import versions
from fissile.errors import FissileError
from fissile.ir.dim import symbols
from fissile.orchestrate.plan import Anchor, Kernel
from fissile.runtime.machine import identity
from fissile.runtime.measure import Request, measure
from fissile.runtime.statistic import Samples, summarize
from fissile.runtime.store import Key, Reject, Store
from fissile.schedule.lower import form
from fissile.target import Target
from fissile.tune.trial import State, Trial, artifacts_of, launches_of, trials

EFFORT = "default"
BATCH = 8  # kernels timed in one child, interleaved
SAMPLES = 15
MOST_COPIES = 1 << 27  # bytes of all copies of a tensor: more would fill the memory
LIMIT_SECONDS = 10.0  # for a batch, and again for each of its kernels
_FAULTS = (ArithmeticError, AssertionError, LookupError, NotImplementedError, TypeError, ValueError)

Time = Callable[[Sequence[str], int, float], list[Samples]]


@dataclass
class Tally:
    """What was done: kernels measured, found in the store, rejected with their reasons.

    last: labels of those being measured; `done` of those `wanted` were before. lowered: trials of kernels; names: what
    their hashes are noted under; codes: hashes by name, None (as of trials) for what cannot be lowered. built:
    artifacts by the hash of their kernels: some are timed again.
    """

    measured: int = 0
    remembered: int = 0
    rejected: dict[str, str] = field(default_factory=dict)
    last: tuple[str, ...] = ()
    done: int = 0
    wanted: int = 0
    lowered: dict[Kernel, Trial | None] = field(default_factory=dict)
    names: dict[Kernel, str] = field(default_factory=dict)
    codes: dict[str, str | None] = field(default_factory=dict)
    built: dict[str, bytes] = field(default_factory=dict)


def _plain_label(kernel: Kernel) -> str:
    return kernel.nodes[-1].name


def _untold(tally: Tally) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class Setting:
    """How kernels are measured: for which target, threads and extents, in which cache state.

    estimate: seconds a kernel may take. deadline: of `time.monotonic()`; nothing is measured after it, nor once
    `trials` kernels have been. label: names a kernel for people. told: hears of every batch before it is measured.
    """

    target: Target
    threads: int
    numbers: Mapping[str, int]
    state: State
    estimate: Callable[[Kernel], float]
    workers: int | None = None
    samples: int = SAMPLES
    deadline: float = math.inf
    trials: float = math.inf
    label: Callable[[Kernel], str] = _plain_label
    told: Callable[[Tally], None] = _untold

    def key(self, code: str) -> Key:
        """What the measurement of a hash is kept under."""
        machine = f"{identity()} as {self.target.name}"
        return Key(code, machine, self.threads, self.state.name, EFFORT)

    def name(self, kernel: Kernel) -> str:
        """What the hash of a kernel is noted under: all that its code depends on, this compiler included.

        The hash says what runs, but takes lowering and emitting to find out.
        """
        seen = form(kernel)
        free = sorted({s for n in seen[1] for d in n.shape for s in symbols(d)}, key=lambda s: s.name)
        lowest = [(s.name, s.lower, self.numbers.get(s.name)) for s in free]
        facts = repr((seen[0], lowest, self.target, _makers()))
        return f"code {hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()}"


@cache
def _makers() -> list[tuple[str, str]]:
    return sorted(versions().items())


class OutOfTime(Exception):
    """The deadline has passed; what was measured is in the store."""


def seconds_of(
    kernels: Sequence[Kernel],
    setting: Setting,
    store: Store,
    tally: Tally,
    *,
    times: int = 1,
    timed: Time | None = None,
) -> list[float]:
    """Seconds of one launch of every kernel; infinity for those that cannot run. OutOfTime.

    times: how often as many samples as usual are wanted. timed: for tests.
    """
    found: dict[Kernel, float] = {k: 0.0 for k in kernels if k.anchor is Anchor.FOREIGN}
    for kernel, code in _coded(dict.fromkeys(kernels), setting, store, tally):
        known = math.inf if code is None else recall(code, setting, store, times)
        if known is not None:
            found[kernel] = known
            tally.remembered += code is not None
    missing = _lowered([k for k in dict.fromkeys(kernels) if k not in found], setting, store, tally)
    todo = {trial.code: trial for _, trial in missing if trial is not None}
    work = [*todo.values()]
    tally.wanted = len(work)
    for first in range(0, len(work), BATCH):
        if time.monotonic() > setting.deadline or tally.measured >= setting.trials:
            raise OutOfTime
        batch = work[first : first + BATCH]
        tally.done = first
        tally.last = tuple(setting.label(t.kernel) for t in batch)
        setting.told(tally)
        _measure(batch, setting, store, tally, times, timed or in_child(setting.threads))
    for kernel, trial in missing:
        found[kernel] = _or_infinite(None if trial is None else recall(trial.code, setting, store))
    return [found[kernel] for kernel in kernels]


def recall(code: str, setting: Setting, store: Store, times: int = 1) -> float | None:
    """What the store knows of a hash, given that it has as many samples as wanted; infinity for a reject."""
    key = setting.key(code)
    if store.reason(key) is not None:
        return math.inf
    records = store.records(key)
    if sum(len(r.seconds) for r in records) < times * setting.samples:
        return None
    return summarize(_pooled(records, setting.threads)).p10


def samples_of(
    kernels: Sequence[Kernel], setting: Setting, store: Store, tally: Tally
) -> list[tuple[float, ...]]:
    """Seconds of every sample that the store has of kernels; of those that run in Python none."""
    found: dict[Kernel, tuple[float, ...]] = {}
    for kernel, code in _coded(dict.fromkeys(kernels), setting, store, tally):
        records = [] if code is None else store.records(setting.key(code))
        found[kernel] = tuple(s for r in records for s in r.seconds.tolist())
    return [found.get(kernel, ()) for kernel in kernels]


def recalled(kernels: Sequence[Kernel], setting: Setting, store: Store) -> list[float | None]:
    """What the store knows of kernels; None where it knows nothing. Nothing is run."""
    found: dict[Kernel, float | None] = {}
    for kernel, code in _coded(dict.fromkeys(kernels), setting, store, Tally()):
        found[kernel] = math.inf if code is None else recall(code, setting, store)
    return [0.0 if k.anchor is Anchor.FOREIGN else found[k] for k in kernels]


def _or_infinite(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


def _pooled(records: Sequence[Samples], threads: int) -> Samples:
    return Samples(
        np.concatenate([r.seconds for r in records]),
        np.concatenate([r.cpu for r in records]),
        np.concatenate([r.switches for r in records]),
        threads,
    )


def known_before(
    kernels: Sequence[Kernel], setting: Setting, store: Store, tally: Tally
) -> list[float | None]:
    """What the store knows of kernels whose hash it remembers; None for all others. Nothing is lowered."""
    codes = _noted([k for k in kernels if not k.is_call], setting, store, tally)
    found = {k: recall(code, setting, store) for k, code in codes.items() if code is not None}
    calls: dict[Kernel, float | None] = {k: 0.0 for k in kernels if k.anchor is Anchor.FOREIGN}
    return [(calls | found).get(kernel) for kernel in kernels]


def known_beside(
    measured: Sequence[Kernel], kernels: Sequence[Kernel], setting: Setting, store: Store, tally: Tally
) -> list[float | None]:
    """What the store knows of kernels that run the same code as measured ones; None for all others.

    Their seconds change with every measurement of the others. Only kernels that `known_before` was asked for are found.
    """
    codes = [tally.codes.get(tally.names.get(k, "")) for k in kernels]
    changed = {tally.codes.get(tally.names.get(k, "")) for k in measured}
    known = {c: recall(c, setting, store) for c in dict.fromkeys(codes) if c is not None and c in changed}
    return [None if code is None else known.get(code) for code in codes]


# ---------------------------------------------------------------- lowering


def _coded(
    kernels: Iterable[Kernel], setting: Setting, store: Store, tally: Tally
) -> list[tuple[Kernel, str | None]]:
    """Kernels and the hashes of their trials, lowered where the store does not remember them; None as `_lowered`."""
    native = [k for k in kernels if not k.is_call]
    known = _noted(native, setting, store, tally)
    new = [k for k in native if k not in known]
    rows = _lowered(new, setting, store, tally)
    found = {tally.names[k]: None if trial is None else trial.code for k, trial in rows}
    tally.codes |= found
    store.keep_notes({name: code for name, code in found.items() if code is not None})
    return [(kernel, tally.codes[tally.names[kernel]]) for kernel in native]


def _noted(
    kernels: Iterable[Kernel], setting: Setting, store: Store, tally: Tally
) -> dict[Kernel, str | None]:
    """The hashes of kernels, as far as they are known by name."""
    names = {k: tally.names.get(k) or setting.name(k) for k in kernels}
    tally.names |= names
    tally.codes |= store.notes([n for n in dict.fromkeys(names.values()) if n not in tally.codes])
    return {k: tally.codes[name] for k, name in names.items() if name in tally.codes}


def _lowered(
    kernels: Iterable[Kernel],
    setting: Setting,
    store: Store,
    tally: Tally,
) -> list[tuple[Kernel, Trial | None]]:
    """Kernels as trials; None for one that the compiler cannot lower, which is rejected."""
    native = [k for k in kernels if not k.is_call]
    new = [k for k in native if k not in tally.lowered]
    guesses = [setting.estimate(k) for k in new]

    def lowered(some: Sequence[Kernel], guesses: Sequence[float]) -> list[Trial]:
        return trials(some, setting.target, setting.numbers, setting.state, guesses)

    try:
        tally.lowered.update(zip(new, lowered(new, guesses), strict=True))
    except (FissileError, *_FAULTS):  # one of them cannot be lowered: they go one by one
        for kernel, guess in zip(new, guesses, strict=True):
            try:
                (tally.lowered[kernel],) = lowered([kernel], [guess])
            except (FissileError, *_FAULTS) as error:
                digest = hashlib.blake2b(repr(kernel).encode(), digest_size=16).hexdigest()
                reason = f"cannot be lowered: {type(error).__name__}: {error}".splitlines()[0]
                _reject(digest, kernel, reason, setting, store, tally)
                tally.lowered[kernel] = None
    return [(kernel, tally.lowered[kernel]) for kernel in native]


# ---------------------------------------------------------------- timing


def _measure(
    batch: Sequence[Trial],
    setting: Setting,
    store: Store,
    tally: Tally,
    times: int,
    timed: Time,
) -> None:
    """Measure a batch into the store, in one piece; where that fails, its members one by one.

    A kernel is rejected when it fails twice alone, and without it the child does well: a child may also be killed from
    outside, or held up. CompileError F411 where the child cannot do anything.
    """
    try:
        samples = _timed(batch, setting, tally, times, timed)
    except FissileError:
        if len(batch) > 1:
            for trial in batch:
                _measure([trial], setting, store, tally, times, timed)
            return
        timed([], 1, LIMIT_SECONDS)
        try:
            samples = _timed(batch, setting, tally, times, timed)
        except FissileError as error:
            code, kernel = batch[0].code, batch[0].kernel
            _reject(code, kernel, error.reason or error.message, setting, store, tally)
            return
    store.add_all([(setting.key(t.code), _per_launch(t, s)) for t, s in zip(batch, samples, strict=True)])
    tally.measured += len(batch)


def _per_launch(trial: Trial, found: Samples) -> Samples:
    count = launches_of(trial)
    return replace(found, seconds=found.seconds / count, cpu=found.cpu / count)


def _timed(
    batch: Sequence[Trial], setting: Setting, tally: Tally, times: int, timed: Time
) -> list[Samples]:
    new = [trial for trial in batch if trial.code not in tally.built]
    if new:
        made = artifacts_of(new, setting.target, setting.threads, setting.workers, MOST_COPIES)
        tally.built.update(zip([trial.code for trial in new], made, strict=True))
    with tempfile.TemporaryDirectory(prefix="fissile-") as folder:
        paths = [Path(folder) / f"{k}.fsl" for k in range(len(batch))]
        for path, trial in zip(paths, batch, strict=True):
            path.write_bytes(tally.built[trial.code])
        limit = LIMIT_SECONDS * (1 + len(batch) * times)
        return timed([str(p) for p in paths], setting.samples * times, limit)


def in_child(threads: int) -> Time:
    """Times artifacts in the measuring child."""

    def timed(paths: Sequence[str], samples: int, limit: float) -> list[Samples]:
        return measure(Request(tuple(paths), threads, samples=samples), limit)

    return timed


def _reject(
    code: str,
    kernel: Kernel,
    reason: str,
    setting: Setting,
    store: Store,
    tally: Tally,
) -> None:
    tally.rejected[setting.label(kernel)] = reason
    store.reject(Reject(setting.key(code), setting.label(kernel), reason))
