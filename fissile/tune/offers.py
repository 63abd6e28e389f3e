"""Seconds of kernels that another package may run, measured like all others (DESIGN 3.4; Korch section 5.2).

In: kernels, those of packages among them. Out: seconds of each; a package's are those of the call as the runtime makes
it, with the copies of its results. Every call runs in a child with a limit of time, and its values are compared with
the interpreter's before they count. Invariant: a package that crashes, hangs, or computes something else costs
infinitely much, the store says why, and measuring goes on.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from fissile.errors import CompileError
from fissile.ir.graph import Node, evaluate
from fissile.options import PROVIDERS
from fissile.orchestrate.bound import CALL
from fissile.orchestrate.liveness import stored_bytes
from fissile.orchestrate.plan import Anchor, Kernel, Plan
from fissile.provider import Refused, arguments, called, graph_of, model_of
from fissile.runtime.hire import ARGUMENTS, MODEL, RESULTS, Job, hire, read_arrays, write_arrays
from fissile.runtime.measure import random_feed
from fissile.runtime.plan import TensorInfo
from fissile.runtime.statistic import Samples
from fissile.runtime.store import Key, Reject, Store
from fissile.tune.measure import OutOfTime, Setting, Tally, recall
from fissile.tune.rounds import Measure
from fissile.tune.trial import number

LIMIT_SECONDS = 30.0  # for one offer: the package is imported and takes its model, too
LATE = 20.0  # how many times longer than it must take at least a call may take
GIVEN_UP = 3  # failures after which a package is not asked again
WRONG = 1e-3  # of the largest finite magnitude: how far off a package's values may be

Hire = Callable[[Job, float], Samples]


def is_own(plan: Plan) -> bool:
    """Whether no other package runs any of it."""
    return "providers" not in called(plan)


def with_packages(
    native: Measure, setting: Setting, store: Store, tally: Tally, hired: Hire = hire
) -> Measure:
    """Measures kernels of packages, and has `native` measure all others. OutOfTime. hired: for tests."""
    hiring = _Hiring(setting, store, tally, hired)

    def measure(kernels: Sequence[Kernel], times: int) -> list[float]:
        own = [k for k in kernels if k.anchor is not Anchor.PACKAGE]
        found = dict(zip(own, native(own, times), strict=True)) if own else {}
        asked = [k for k in dict.fromkeys(kernels) if k.anchor is Anchor.PACKAGE]
        for done, kernel in enumerate(asked):
            tally.done, tally.wanted = done, len(asked)
            found[kernel] = hiring.seconds(kernel, times)
        return [found[k] for k in kernels]

    return measure


@dataclass
class _Hiring:
    """What offers are measured by, and how often every package has failed."""

    setting: Setting
    store: Store
    tally: Tally
    hired: Hire
    failed: Counter[str] = field(default_factory=Counter)

    def seconds(self, kernel: Kernel, times: int) -> float:
        """Seconds of a call, what a segment more costs included; infinity for one that fails. OutOfTime."""
        code = code_of(kernel, self.setting.numbers)
        known = recall(code, self.setting, self.store, times)
        if known is not None:
            self.tally.remembered += 1
            return known + CALL
        if time.monotonic() > self.setting.deadline or self.tally.measured >= self.setting.trials:
            raise OutOfTime
        if self.failed[kernel.provider] >= GIVEN_UP:
            return math.inf
        self.tally.last = (self.label(kernel),)
        self.setting.told(self.tally)
        return self._measured(kernel, self.setting.key(code), times)

    def label(self, kernel: Kernel) -> str:
        """Who would run what."""
        return f"{kernel.provider}: {self.setting.label(kernel)}"

    def _measured(self, kernel: Kernel, key: Key, times: int) -> float:
        """Measure into the store, or into its rejects."""
        try:
            found, wrong = self._called(kernel, model_of(kernel), times)
        except Refused as error:
            return self._rejected(kernel, key, f"cannot be lowered: {error}")
        except CompileError as error:
            if time.monotonic() > self.setting.deadline:
                raise OutOfTime from error  # it may have had too little time, who knows
            self.failed[kernel.provider] += 1
            return self._rejected(kernel, key, error.reason or error.message)
        if wrong:
            return self._rejected(kernel, key, wrong)
        self.store.add(key, found)
        self.tally.measured += 1
        seconds = recall(key.code, self.setting, self.store)
        return math.inf if seconds is None else seconds + CALL

    def _rejected(self, kernel: Kernel, key: Key, reason: str) -> float:
        label = self.label(kernel)
        self.tally.rejected[label] = reason
        self.store.reject(Reject(key, label, reason))
        return math.inf

    def _called(self, kernel: Kernel, model: bytes, times: int) -> tuple[Samples, str]:
        """Samples of a call, and what is wrong with its values ("": nothing)."""
        samples = self.setting.samples * times
        feeds = _feeds(kernel, self.setting.numbers)
        limit = LIMIT_SECONDS + LATE * samples * self.setting.estimate(kernel)
        limit = min(limit, max(1.0, self.setting.deadline - time.monotonic()))
        with tempfile.TemporaryDirectory(prefix="fissile-") as folder:
            touched = max(0, self.setting.state.touched - _constants(kernel))
            job = Job(kernel.provider, folder, self.setting.threads, samples, touched)
            (Path(folder) / MODEL).write_bytes(model)
            write_arrays(folder, ARGUMENTS, [*feeds.values()])
            found = self.hired(job, limit)
            values = read_arrays(folder, RESULTS)
        return found, _wrong(kernel, feeds, self.setting.numbers, values)


def _constants(kernel: Kernel) -> int:
    """Bytes of the constants that a package holds itself: those are touched anyway."""
    return sum(number(stored_bytes(n), {}) for n in {*kernel.inputs} - {*arguments(kernel)})


def _feeds(kernel: Kernel, numbers: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Random arguments by the names of the graph's inputs."""
    rng = np.random.default_rng(0)
    found = {}
    for k, node in enumerate(arguments(kernel)):
        shape = tuple(number(d, numbers) for d in node.shape)
        found[f"i{k}"] = random_feed(TensorInfo("", node.dtype.numpy, shape), shape, rng)
    return found


def _wrong(
    kernel: Kernel,
    feeds: Mapping[str, np.ndarray],
    numbers: Mapping[str, int],
    values: Sequence[np.ndarray],
) -> str:
    """How a package's values differ from the interpreter's; "" where they do not."""
    with np.errstate(all="ignore"):
        wanted = [*evaluate(graph_of(kernel), feeds, numbers).values()]
    for value, right in zip(values, wanted, strict=True):
        if value.shape != right.shape or value.dtype != right.dtype:
            return f"it gives {value.dtype}{value.shape} instead of {right.dtype}{right.shape}"
        if right.dtype.kind != "f":
            if not np.array_equal(value, right):
                return "other values than the interpreter's"
            continue
        finite = np.isfinite(right)
        if not np.array_equal(value[~finite], right[~finite], equal_nan=True):
            return "other NaN or infinities than the interpreter's"
        most = float(np.abs(right[finite]).max(initial=0.0))
        off = float(np.abs(value[finite] - right[finite]).max(initial=0.0))
        if not off <= WRONG * most:
            return f"values off by {off:.2g}, the largest being {most:.2g}"
    return ""


def code_of(kernel: Kernel, numbers: Mapping[str, int]) -> str:
    """Hash of all that decides how long a call takes: package, version, primitives, extents; values left out."""
    graph = graph_of(kernel)
    places = {node: k for k, node in enumerate(graph.nodes())}
    rows = [(n.name, str(n.type), _attributes(n), [places[i] for i in n.inputs]) for n in places]
    ends = [places[node] for _, node in graph.outputs]
    sizes = [[number(d, numbers) for d in n.shape] for n in (*arguments(kernel), *kernel.outputs)]
    facts = kernel.provider, _version(kernel.provider), rows, ends, sizes
    return hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()


def _attributes(node: Node) -> str:
    return ", ".join(f"{k}={v}" for k, v in node.attrs if k not in ("value", "name"))


def _version(provider: str) -> str:
    try:
        return version(PROVIDERS[provider][1])
    except (KeyError, PackageNotFoundError):
        return ""
