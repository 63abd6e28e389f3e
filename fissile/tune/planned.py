"""The plan by guesses of a model is found once (DESIGN 3.4).

In: a model after its substitutions, and the store. Out: the same with the plan that an untuned compilation would have,
read from a note where there is one. Invariant: graph, plan and certificate are those that planning anew would give; a
note that cannot be read is replaced.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fissile.cache import versions
from fissile.errors import FissileError
from fissile.orchestrate.plan_file import plan_text, read_plan
from fissile.pipeline import Work, run
from fissile.runtime.store import Store
from fissile.tune.plans import silent


def planned(work: Work, store: Store) -> Work:
    """The work with its plan by guesses. work: with its substitutions made, and the graph without them."""
    name = note_name("plan", facts_of(work))
    done = _as_noted(work, store.notes([name]).get(name, ""))
    if done is None:
        done = run(work, silent, "plan", first="plan")
        is_substituted = done.graph is work.graph
        row = {
            "plan": plan_text(done.known("plan")),
            "is_substituted": is_substituted,
            "certificate": dict(done.certificate),
        }
        store.keep_notes({name: json.dumps(row)})
    return done


def facts_of(work: Work) -> dict[str, Any]:
    """All that decides about an untuned compilation."""
    return {
        "model": work.known("operators").metadata.sha256,
        "shapes": work.shapes,
        "options": work.options.key(),
        "targets": [repr(t) for t in work.targets],
        "threads": work.threads,
        "versions": versions(),
    }


def note_name(kind: str, facts: Mapping[str, Any]) -> str:
    """What is noted under facts that decide about it."""
    text = json.dumps(facts, sort_keys=True, default=str)
    return f"{kind} {hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


def _as_noted(work: Work, text: str) -> Work | None:
    """The work with the plan of a note; None where the note does not fit."""
    try:
        row = json.loads(text)
        graph = work.graph if row["is_substituted"] else work.plain
        if graph is None:
            return None
        plan, proof = read_plan(row["plan"], graph), {**row["certificate"]}
    except (FissileError, ValueError, LookupError, TypeError, AttributeError):
        return None
    log = work.log if graph is work.graph else ()
    given = replace(work, graph=graph, log=log, plain=None, plan_given=plan, certificate=proof)
    return replace(run(given, silent, "plan", first="plan"), plan_given=None)
