"""Is the answer right: an executable beside engines that say what its model means (DESIGN 1).

In: an executable, its model, oracles, drawn calls. Out: a `Report`: per oracle, call and output how far
they are apart. Invariant: the tolerance is relative to the largest finite magnitude of the expected
output, special values must stand at equal places, and a call that the oracle itself refuses is no
difference but is said. Only in a call with large values is an element allowed to be off by what
roundings do to the oracle itself: the exponential of 80 is worth few digits to anybody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fissile import cache
from fissile.compare.difference import Difference, difference
from fissile.compare.draws import Draw
from fissile.compare.oracle import Oracle, load_oracle, rounding_noise
from fissile.errors import ArtifactError, InvalidFeed
from fissile.runtime.artifact import Artifact, check_members
from fissile.runtime.executable import Executable

Array = np.ndarray[Any, np.dtype[Any]]
TOLERANCE = 1e-4
SLACK = 4.0  # roundings of two engines add up; the noise is the move of one


@dataclass(frozen=True)
class Row:
    """One output in one call against one oracle.

    judged: `found` less the noise of roundings, where a call with large values differs otherwise.
    """

    oracle: str
    draw: str
    output: str
    found: Difference
    tolerance: float
    judged: Difference

    @property
    def agrees(self) -> bool:
        """Whether the output is right."""
        return self.judged.within(self.tolerance)


@dataclass(frozen=True)
class Report:
    """rows of all calls; shapes: draw -> those of the inputs, as text.

    refused: what an oracle did not take, and why; failed: a call that differs, and its oracle.
    """

    rows: tuple[Row, ...]
    shapes: Mapping[str, str]
    refused: tuple[str, ...]
    failed: tuple[str, Draw] | None

    @property
    def agrees(self) -> bool:
        """Whether something was compared and nothing differs."""
        return bool(self.rows) and all(row.agrees for row in self.rows)

    def text(self, tolerance: float) -> str:
        """A line per oracle and output, the worst call of each; then what was refused."""
        lines = [f"{'output':24} {'against':12} {'max abs':>9} {'max rel':>9}         worst at"]
        for oracle, output in dict.fromkeys((r.oracle, r.output) for r in self.rows):
            rows = [r for r in self.rows if (r.oracle, r.output) == (oracle, output)]
            lines.append(_line(max(rows, key=lambda r: (not r.agrees, _size(r)))))
        calls = dict.fromkeys(r.draw for r in self.rows)
        lines += [f"call     {draw}: {self.shapes[draw]}" for draw in calls]
        lines.append(
            f"{len(calls)} calls; tolerance {tolerance:g} of the largest finite magnitude of the output, "
            "NaN and infinities at equal places"
        )
        return "\n".join([*lines, *self.refused])

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        rows = [asdict(row) | {"agrees": row.agrees} for row in self.rows]
        refused = list(self.refused)
        return {
            "agrees": self.agrees,
            "rows": rows,
            "shapes": dict(self.shapes),
            "refused": refused,
        }


def verify(
    executable: Executable,
    model: Path,
    oracles: Sequence[str],
    calls: Iterable[Draw],
    *,
    count: int = 5,
    tolerance: float = TOLERANCE,
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Compare at `count` calls that the oracles take; the last one also with large values.

    ArtifactError F101 when a member of the artifact, its weights included, does not match its hash.
    """
    _check_whole(executable.program.artifact)
    loaded = {name: load_oracle(name, model) for name in oracles}
    rows: list[Row] = []
    refused: list[str] = []
    shapes: dict[str, str] = {}
    taken: list[Draw] = []
    failed: tuple[str, Draw] | None = None
    for draw in _with_large(calls, count, taken):
        progress(f"comparing at {draw.label}")
        found, reasons = _compare(executable, model, loaded, draw, tolerance)
        refused += reasons
        rows += found
        shapes[draw.label] = draw.shapes
        if found and not reasons and draw.factor == 1:
            taken.append(draw)
        wrong = [row.oracle for row in found if not row.agrees]
        if wrong and failed is None:
            failed = wrong[0], draw
    return Report(tuple(rows), shapes, tuple(refused), failed)


def _check_whole(artifact: Artifact) -> None:
    """Loading does not read the weights; here they are, and damage names the way to get rid of it."""
    try:
        check_members(artifact)
    except ArtifactError as error:
        if artifact.path is None or artifact.path.parent != cache.directory():
            raise
        raise ArtifactError(
            error.code, error.message, reason=error.reason, remedy="fissile cache clear"
        ) from error


def _with_large(calls: Iterable[Draw], count: int, taken: list[Draw]) -> Iterable[Draw]:
    """Calls until `count` are taken, then the last of those once more with large values."""
    for draw in calls:
        yield draw
        if len(taken) >= count:
            break
    if taken and any(array.dtype.kind == "f" for array in taken[-1].feeds.values()):
        yield taken[-1].enlarged()


def _compare(
    executable: Executable,
    model: Path,
    oracles: Mapping[str, Oracle],
    draw: Draw,
    tolerance: float,
) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    refused: list[str] = []
    results = _results(executable, draw)
    for name, oracle in oracles.items():
        try:
            expected = {key: np.asarray(array) for key, array in oracle(draw.feeds).items()}
        except Exception as error:  # noqa: BLE001 - every engine has its own way to refuse
            reason = (str(error).strip().splitlines() or [""])[0]
            refused.append(f"{name} refuses {draw.label}: {type(error).__name__}: {reason[:160]}")
            continue
        allowed = tolerance * draw.factor
        gaps = _gaps(results, expected)
        judged = gaps
        if draw.factor > 1 and not all(gap.within(allowed) for gap in gaps.values()):
            judged = _gaps(results, expected, _noise(name, model, draw, expected))
        for output, gap in gaps.items():
            rows.append(Row(name, draw.label, output, gap, allowed, judged[output]))
    return rows, refused


def _results(executable: Executable, draw: Draw) -> dict[str, Array] | str:
    """The outputs, or why the executable refuses the call."""
    try:
        return executable.run(draw.feeds)
    except InvalidFeed as error:
        return f"refused: {error.message} {error.reason}"


def _gaps(
    results: dict[str, Array] | str,
    expected: Mapping[str, Array],
    noise: Mapping[str, Array] | None = None,
) -> dict[str, Difference]:
    if isinstance(results, str):
        return {name: Difference(math.inf, math.inf, results) for name in expected}
    return {
        name: difference(expected[name], array, None if noise is None else noise[name])
        for name, array in results.items()
    }


def _noise(
    oracle: str, model: Path, draw: Draw, expected: Mapping[str, Array]
) -> dict[str, Array] | None:
    """What roundings may do to the outputs; None where the oracle does not take the moved model."""
    try:
        found = rounding_noise(oracle, model, draw.feeds, expected)
    except Exception:  # noqa: BLE001 - every engine has its own way to refuse; then nothing is excused
        return None
    return {name: SLACK * array for name, array in found.items()}


def _size(row: Row) -> float:
    return row.found.max_rel / row.tolerance


def _line(row: Row) -> str:
    verdict = "pass" if row.agrees else "FAIL"
    where = f"{row.draw}{': ' if row.found.reason else ''}{row.found.reason}"
    if row.agrees and not row.found.within(row.tolerance):
        where += ": some ulps in the weights move it as far"
    if row.found.reason:
        numbers = f"{'-':>9} {'-':>9}"
    else:
        numbers = f"{row.found.max_abs:9.1e} {row.found.max_rel:9.1e}"
    return f"{row.output[:24]:24} {row.oracle:12} {numbers}   {verdict}  {where}"
