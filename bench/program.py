"""The program that chooses kernels, as Korch prints it and in its tight form: relaxation gap and time to solve.

    python bench/program.py [--models DIR] [--seconds 30]

For windows of real networks: units (primitives as they are counted), candidates, the optimum, how far each relaxation
lies below it, and the time each form needs. Costs are guesses for one nominal core; the gap hardly depends on them.
DIR holds NAME.onnx.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

from fissile.fission import fission
from fissile.frontend import read_model
from fissile.orchestrate.bound import Machine, estimate
from fissile.orchestrate.candidates import Candidates, candidates_of
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.orchestrate import problem_of
from fissile.orchestrate.partition import part_of
from fissile.orchestrate.program import Problem, relax, solve
from fissile.rewrite import canonicalize

NOMINAL = Machine(
    1.3e11, ((2.0**15, 2e11), (2.0**20, 8e10), (2.0**25, 2.5e10), (2.0**60, 1e10)), 4e-7
)


@dataclass(frozen=True)
class Window:
    """What lies between two ONNX nodes of a model, both included."""

    title: str
    model: str
    first: str
    last: str


WINDOWS = (
    Window("SegFormer attention", "segformer_b0", "node_layer_norm_1", "node_add"),
    Window("SegFormer decode head", "segformer_b0", "node_MatMul_800", "node_Conv_885"),
    Window("EfficientViT attention", "efficientvit_b1", "node_Conv_1028", "node_add_5"),
    Window("Candy residual block", "candy_224", "node_pad_3", "node_add"),
    Window("YOLOX CSP block", "yolox_nano", "node_Conv_1720", "node_silu_8"),
)


def candidates(path: Path) -> Candidates:
    """The candidates of a model."""
    graph = canonicalize(fission(read_model(str(path), None), foreign=True), frozenset()).graph
    return candidates_of(greedy_plan(graph))


def units_between(found: Candidates, window: Window) -> frozenset[int]:
    """The numbers of the units from the first that serves one node to the last that serves the other."""
    origins = found.units.graph.origins
    served = [origins.get(unit.value, ()) for unit in found.units.all]
    first = min(u for u, names in enumerate(served) if window.first in names)
    last = max(u for u, names in enumerate(served) if window.last in names)
    return frozenset(range(first, last + 1))


def row(title: str, problem: Problem, units: int, seconds: float) -> str:
    """One line of the table."""
    best = solve(problem, time_limit=seconds)
    parts = [f"{title:24} {units:5} {len(problem.choices):6} {best.cost * 1e3:9.3f}"]
    for tight in (False, True):
        low = relax(problem, tight=tight).objective
        began = time.perf_counter()
        try:
            optimal = solve(problem, tight=tight, time_limit=seconds).optimal
        except ValueError:
            optimal = False
        took = time.perf_counter() - began
        parts.append(
            f"{100 * (best.cost - low) / best.cost:8.2f} % {took:8.2f} s{'' if optimal else ' *'}"
        )
    return "  ".join(parts)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", type=Path, default=Path())
    parser.add_argument("--seconds", type=float, default=30.0)
    args = parser.parse_args()
    print(
        "window                   units  cands   cost ms  printed: gap, time     tight: gap, time"
    )
    for model in dict.fromkeys(w.model for w in WINDOWS):
        found = candidates(args.models / f"{model}.onnx")
        whole = problem_of(found, [estimate(c.kernel, NOMINAL) for c in found.all])
        for window in (w for w in WINDOWS if w.model == model):
            units = units_between(found, window)
            print(row(window.title, part_of(whole, units), len(units), args.seconds), flush=True)
        print(row(f"{model}, whole", whole, len(found.units.all), args.seconds), flush=True)
    print("* not proved optimal in the time given")


if __name__ == "__main__":
    main()
