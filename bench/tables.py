"""Recorded cost tables: all candidate kernels of parts of real networks, with bound, guess and measurement.

    python bench/tables.py [--models DIR] [--to tests/orchestrate/tables] [--only TITLE] [--samples 9]

One JSON file per part, small enough to keep: what the program sees (tensors by number, primitives by number) and three
costs per candidate. Tests let lazy profiling work on the tables, where measuring costs nothing. Candidates are those of
an untuned compile. DIR holds NAME.onnx. Takes minutes and wants a quiet machine; measurements are kept in the tuning
store, so it may be interrupted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fissile.fission import fission
from fissile.frontend import read_model
from fissile.options import environment, resolve_target
from fissile.orchestrate.bound import estimate, family, prices
from fissile.orchestrate.candidates import Candidates, candidates_of
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.nominal import representative
from fissile.orchestrate.orchestrate import QUICK
from fissile.orchestrate.units import representative_bytes
from fissile.rewrite import canonicalize
from fissile.runtime.store import Store, default_paths
from fissile.schedule.lower import form
from fissile.tune.measure import Setting, Tally, seconds_of
from fissile.tune.peak import machine_peaks
from fissile.tune.provider import State
from fissile.tune.start import machine_of


@dataclass(frozen=True)
class Part:
    """What lies between two ONNX nodes of a model, both included."""

    title: str
    model: str
    first: str
    last: str


PARTS = (
    Part("segformer_attention", "segformer_b0", "node_layer_norm_1", "node_add"),
    Part("segformer_head", "segformer_b0", "node_MatMul_800", "node_Conv_885"),
    Part("efficientvit_attention", "efficientvit_b1", "node_Conv_1028", "node_add_5"),
    Part("candy_residual", "candy_224", "node_pad_3", "node_add"),
    Part("yolox_csp", "yolox_nano", "node_Conv_1720", "node_silu_8"),
    Part("mobilenet_inverted_residual", "mobilenet_v2", "node_Conv_833", "node_add_1"),
    Part("resnet_bottleneck", "resnet50", "node_Conv_763", "node_relu_6"),
    Part("bert_layer", "bert_base", "node_Mul_84", "node_layer_norm_1"),
    Part("minilm_attention", "minilm_l6_dyn", "node_Mul_87", "node_scaled_dot_product_attention"),
    Part("yolov4_mish", "yolov4", "node_Conv_1737", "n0_7"),
)


def units_between(found: Candidates, part: Part) -> frozenset[int]:
    """The numbers of the units from the first that serves one node to the last that serves the other."""
    origins = found.units.graph.origins
    served = [origins.get(unit.value, ()) for unit in found.units.all]
    first = min(u for u, names in enumerate(served) if part.first in names)
    last = max(u for u, names in enumerate(served) if part.last in names)
    return frozenset(range(first, last + 1))


def table(part: Part, folder: Path, samples: int) -> dict[str, object]:
    """The table of a part as plain data: all its candidates, measured."""
    graph = canonicalize(
        fission(read_model(str(folder / f"{part.model}.onnx"), None), foreign=True), frozenset()
    ).graph
    found = candidates_of(greedy_plan(graph), QUICK)
    units = units_between(found, part)
    inside = [c for c in found.all if c.executes <= units and c.executes]
    target = resolve_target()
    machine, numbers = machine_of(machine_peaks(), 1), representative(graph, {})
    constants = sum(
        representative_bytes(n) for n in found.units.graph.nodes() if n.name == "constant"
    )
    setting = Setting(
        target, 1, numbers, State(constants, target.l3),
        lambda kernel: estimate(kernel, machine, numbers), samples=samples,
    )  # fmt: skip
    kernels = [c.kernel for c in inside]
    with Store(environment().store or default_paths()) as store:
        measured = seconds_of(kernels, setting, store, Tally())
    keys = _numbered([form(k)[0] for k in kernels])
    families = _numbered([family(k) for k in kernels])
    read = {s for u, sources in enumerate(found.units.reads) if u not in units for s in sources}
    needed = sorted(units & (read | {*found.units.needed}))
    edges = [[p, u] for u in sorted(units) for p in found.units.reads[u] if p in units]
    rows = [
        [
            [r for r in c.reads if r in units], list(c.writes), sorted(c.executes), key, kind,
            *(_micro(s) for s in (*prices(c.kernel, machine, numbers), seconds)),
        ]
        for c, key, kind, seconds in zip(inside, keys, families, measured, strict=True)
    ]  # fmt: skip
    return {"title": part.title, "needed": needed, "edges": edges, "candidates": rows}


def _numbered(values: Sequence[object]) -> list[int]:
    numbers: dict[object, int] = {}
    return [numbers.setdefault(v, len(numbers)) for v in values]


def _micro(seconds: float) -> float:
    """Microseconds with four digits."""
    return float(f"{seconds * 1e6:.4g}")


def text_of(rows: dict[str, object]) -> str:
    """The table as JSON, a candidate per line."""
    candidates = rows["candidates"]
    assert isinstance(candidates, list)
    head = {key: value for key, value in rows.items() if key != "candidates"}
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in candidates)
    return f'{json.dumps(head, separators=(",", ":"))[:-1]},"candidates":[\n{lines}\n]}}\n'


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", type=Path, default=Path())
    parser.add_argument("--to", type=Path, default=Path("tests/orchestrate/tables"))
    parser.add_argument("--only", default="")
    parser.add_argument("--samples", type=int, default=9)
    args = parser.parse_args()
    args.to.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        if args.only not in ("", part.title):
            continue
        rows = table(part, args.models, args.samples)
        (args.to / f"{part.title}.json").write_text(text_of(rows), encoding="utf-8")
        print(f"{part.title:28} {len(rows['candidates'])} candidates", flush=True)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
