"""A bench as people read it (PRODUCT 2.3).

In: a `Bench` and the machine's facts. Out: lines. Invariant: milliseconds beside every ratio, the noise
beside both, and a rival that is absent or failed is named with what to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fissile.compare.bench import OURS, Bench, Record


def text(found: Bench, facts: Mapping[str, object]) -> str:
    """The whole answer of `fissile bench`."""
    lines = [machine_line(facts, found.versions), _what(found)]
    lines += [f"{name:12} {settings}" for name, settings in found.settings.items() if name != OURS]
    lines.append(
        f"{'threads':>7}  {'engine':12} {'p10 ms':>9} {'median':>9} {'p90':>9}"
        f"   {'vs fissile (p10, 95 %)':24} {'load s':>6} {'RSS MB':>7} {'peak':>6}   max rel diff"
    )
    lines += [_row(record, found.reference) for record in found.records]
    lines += [f"{name:12} {why}" for name, why in found.absent.items()]
    noise = ", ".join(
        f"{ratio:.2f} ({n} thread{'s' * (n > 1)})" for n, ratio in found.noise.items()
    )
    lines.append(f"noise    fissile against itself: {noise}; smaller differences mean nothing")
    if found.rivals():
        lines.append(_best(found))
    return "\n".join(lines)


def machine_line(facts: Mapping[str, object], versions: Mapping[str, str]) -> str:
    """The machine and the versions in one line."""
    quota = f"quota {facts['quota']}" if "quota" in facts else "no quota"
    engines = ", ".join(f"{name} {number}" for name, number in versions.items())
    return (
        f"{facts['cpu']} · {facts['allowed']} cores · {facts['target']} · load {facts['load']}"
        f" · {quota} · {engines}"
    )


def _what(found: Bench) -> str:
    shapes = found.records[0].shape
    inputs = ", ".join(f"{name}[{','.join(map(str, shape))}]" for name, shape in shapes.items())
    rounds = f"interleaved, {found.rounds} rounds, warm"
    return f"{found.records[0].model}: {inputs} random · {rounds} · all float32"


def _row(record: Record, reference: str) -> str:
    times = (record.p10_seconds, record.median_seconds, record.p90_seconds)
    numbers = " ".join(f"{seconds * 1e3:9.3f}" for seconds in times)
    ratio = f"{record.ratio:.2f}"
    if record.engine != OURS:
        ratio += f" [{record.ratio_low:.2f}, {record.ratio_high:.2f}]"
        ratio += " ?" if record.verdict == "inconclusive" else ""
    memory = f"{record.loaded_bytes / 1e6:7.0f} {record.peak_bytes / 1e6:6.0f}"
    return (
        f"{record.threads:7}  {record.engine:12} {numbers}   {ratio:24} {record.load_seconds:6.2f} "
        f"{memory}   {_gap(record, reference)}"
    )


def _gap(record: Record, reference: str) -> str:
    if record.engine == reference:
        return "(ref)"
    if record.max_rel_diff is None:
        return "-"
    return "unlike" if math.isinf(record.max_rel_diff) else f"{record.max_rel_diff:.0e}"


def _best(found: Bench) -> str:
    """The fastest rival at each thread count, in words that say who is slower."""
    parts, names = [], []
    for threads in found.noise:
        rivals = [r for r in found.rivals() if r.threads == threads]
        if not rivals:
            continue
        best = min(rivals, key=lambda r: r.p10_seconds)
        names.append(best.engine)
        word = f"{best.ratio:.2f}x slower" if best.ratio >= 1 else f"{1 / best.ratio:.2f}x faster"
        unsure = ", inconclusive" if best.verdict == "inconclusive" else ""
        parts.append(f"{best.engine} {word} at {threads} thread{'s' * (threads > 1)}{unsure}")
    return f"best rival: {'; '.join(parts)}.   Raw samples: --json FILE"
