"""`fissile run --profile`: the launches of a run beside the least they could take.

In: an executable and feeds. Out: a table (or JSON) on stdout, a trace in a file.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fissile.console import plain

if TYPE_CHECKING:
    from fissile.runtime.executable import Executable
    from fissile.runtime.profile import Profile
    from fissile.runtime.roofline import Peaks


def show_profile(
    executable: "Executable",
    feeds: Mapping[str, Any],
    runs: int,
    trace: Path | None,
    *,
    as_json: bool,
) -> int:
    """Profile `runs` runs and print what came out; exit code 0."""
    from fissile.tune.peak import machine_peaks

    peaks = machine_peaks()
    found = executable.profile(feeds, runs=runs)
    if trace is not None:
        found.to_chrome_trace(trace)
    print(json.dumps(_document(found, peaks)) if as_json else plain(_text(found, peaks)))
    return 0


def _document(found: "Profile", peaks: "Peaks") -> dict[str, Any]:
    rows = [asdict(row) | {"excess": row.excess} for row in found.rows(peaks)]
    slow = [row.kernel for row in found.slow(peaks)]
    whole = float(found.median.sum())
    return {"seconds": whole, "threads": found.threads, "peaks": asdict(peaks), "rows": rows,
            "slow": slow}  # fmt: skip


def _text(found: "Profile", peaks: "Peaks") -> str:
    from fissile.runtime.profile import EXCESS, SHARE

    rates = ", ".join(f"{level} {rate / 1e9:.0f}" for level, rate in peaks.bytes.items())
    lines = [
        found.table(peaks=peaks),
        f"{len(found.launches)} launches, {found.median.sum() * 1e3:.3f} ms, {found.threads} thread"
        f"{'s' * (found.threads > 1)}; peaks of one core: {peaks.operations / 1e9:.0f} GFLOP/s, "
        f"GB/s {rates}",
    ]
    slow = found.slow(peaks)
    said = f"over {SHARE:.0%} of the time and {EXCESS:g}x the bound:"
    lines.append(f"{said} {'none' if not slow else ''}".rstrip())
    lines += [row.text() for row in slow]
    return "\n".join(lines)
