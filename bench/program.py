"""The program that chooses kernels, as Korch prints it and in its tight form: relaxation gap and time to solve.

    python bench/program.py [--models DIR] [--seconds 30] [--page docs/program.md]

For windows of real networks, and the networks whole: units (primitives as they are counted), candidates, the optimum,
how far each relaxation lies below it, and the time each form needs. Costs are guesses for one nominal core; the gap
hardly depends on them. DIR holds NAME.onnx.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from windows import WINDOWS, canonical, units_between

from fissile import __version__
from fissile.compare.table import machine_line
from fissile.options import resolve_target
from fissile.orchestrate.bound import estimate
from fissile.orchestrate.candidates import candidates_of
from fissile.orchestrate.greedy import greedy_plan
from fissile.orchestrate.nominal import nominal, representative
from fissile.orchestrate.orchestrate import problem_of
from fissile.orchestrate.partition import part_of
from fissile.orchestrate.program import Problem, relax, solve
from fissile.runtime.machine import facts

HEAD = (
    "| part | units | candidates | cost ms | printed: gap | s | tight: gap | s |",
    "|---|---:|---:|---:|---:|---:|---:|---:|",
)


@dataclass(frozen=True)
class Form:
    """One form of the program. gap: of its relaxation, over the optimum; seconds: to solve it."""

    gap: float
    seconds: float
    optimal: bool


@dataclass(frozen=True)
class Row:
    """A part of a network. cost: seconds of the cheapest selection that was found."""

    title: str
    units: int
    candidates: int
    cost: float
    printed: Form
    tight: Form

    def line(self) -> str:
        """Its line of the table."""
        cells = [self.title, str(self.units), str(self.candidates), f"{self.cost * 1e3:.3f}"]
        for form in (self.printed, self.tight):
            cells.append(f"{round(100 * form.gap, 2) + 0.0:.2f} %")
            cells.append(f"{form.seconds:.2f}{'' if form.optimal else ' *'}")
        return f"| {' | '.join(cells)} |"


def row(title: str, problem: Problem, units: int, limit: float) -> Row:
    """Both forms of one program, each solved for at most `limit` seconds."""
    best = solve(problem, time_limit=limit).cost
    printed, tight = (form(problem, best, limit, tight=tight) for tight in (False, True))
    return Row(title, units, len(problem.choices), best, printed, tight)


def form(problem: Problem, best: float, limit: float, *, tight: bool) -> Form:
    """One form of the program, beside the cheapest selection known."""
    low = relax(problem, tight=tight).objective
    began = time.perf_counter()
    try:
        optimal = solve(problem, tight=tight, time_limit=limit).optimal
    except ValueError:
        optimal = False
    return Form((best - low) / best, time.perf_counter() - began, optimal)


def page(parts: Sequence[Row], networks: Sequence[Row], limit: float) -> str:
    """docs/program.md."""
    lines = [
        "# The program that chooses kernels",
        "",
        f"Made by `bench/program.py`, {time.strftime('%Y-%m-%d')}.",
        "",
        f"    {machine_line(facts(), {'fissile': __version__})}",
        "",
        "A plan is the cheapest set of candidate kernels that computes the outputs: a binary linear program.",
        "Korch prints it (`printed`) with two kinds of constraints: what is needed is written, and what a chosen",
        "kernel reads is written by another. The form used here (`tight`) also says that every primitive is",
        "executed, that it shares a kernel with what it reads or finds it in memory, and that a tensor is there",
        "only where one kernel writes it. Both have the same optimum. The gap is how far the linear relaxation lies",
        "below the cheapest selection known, in percent of that: where it is small, branching hardly begins. Seconds",
        f"are those to solve; `*`: not proved optimal within {limit:.0f} s. Costs are guesses for one nominal core.",
        "",
        "## Parts of networks",
        "",
        *HEAD,
        *(part.line() for part in parts),
        "",
        "## Whole networks, as one program",
        "",
        "A compile gives such a program little time, from the tight form and a plan that runs; where that does not",
        "do, it goes on window by window, and takes the bound of the whole from the tight relaxation.",
        "",
        *HEAD,
        *(network.line() for network in networks),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print every row as it is known; write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", type=Path, default=Path())
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--page", type=Path, default=Path("docs/program.md"))
    args = parser.parse_args()
    print("\n".join(HEAD), flush=True)
    machine = nominal(resolve_target(), 1)
    parts: list[Row] = []
    networks: list[Row] = []
    for model in dict.fromkeys(w.model for w in WINDOWS):
        graph = canonical(args.models, model)
        found, numbers = candidates_of(greedy_plan(graph)), representative(graph, {})
        whole = problem_of(found, [estimate(c.kernel, machine, numbers) for c in found.all])
        for window in (w for w in WINDOWS if w.model == model):
            units = units_between(found, window)
            parts.append(row(window.title, part_of(whole, units), len(units), args.seconds))
            print(parts[-1].line(), flush=True)
        networks.append(row(model, whole, len(found.units.all), args.seconds))
        print(networks[-1].line(), flush=True)
        args.page.write_text(page(parts, networks, args.seconds), encoding="utf-8")


if __name__ == "__main__":
    main()
