"""The program that chooses kernels, as Korch prints it and in its tight form: relaxation gap and time to solve.

    python bench/program.py [--models DIR] [--seconds 30]

For windows of real networks: units (primitives as they are counted), candidates, the optimum, how far each relaxation
lies below it, and the time each form needs. Costs are guesses for one nominal core; the gap hardly depends on them.
DIR holds NAME.onnx.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from windows import WINDOWS, canonical, units_between

from fissile.options import resolve_target
from fissile.orchestrate.bound import estimate
from fissile.orchestrate.candidates import candidates_of
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.nominal import nominal, representative
from fissile.orchestrate.orchestrate import problem_of
from fissile.orchestrate.partition import part_of
from fissile.orchestrate.program import Problem, relax, solve


def row(title: str, problem: Problem, units: int, seconds: float) -> str:
    """One line of the table."""
    best = solve(problem, time_limit=seconds)
    parts = [f"{title:28} {units:5} {len(problem.choices):6} {best.cost * 1e3:9.3f}"]
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
        "window                       units  cands   cost ms  printed: gap, time     tight: gap, time"
    )
    machine = nominal(resolve_target(), 1)
    for model in dict.fromkeys(w.model for w in WINDOWS):
        graph = canonical(args.models, model)
        found, numbers = candidates_of(greedy_plan(graph)), representative(graph, {})
        whole = problem_of(found, [estimate(c.kernel, machine, numbers) for c in found.all])
        for window in (w for w in WINDOWS if w.model == model):
            units = units_between(found, window)
            print(row(window.title, part_of(whole, units), len(units), args.seconds), flush=True)
        print(row(f"{model}, whole", whole, len(found.units.all), args.seconds), flush=True)
    print("* not proved optimal in the time given")


if __name__ == "__main__":
    main()
