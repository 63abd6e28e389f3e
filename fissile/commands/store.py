"""`fissile store`: what the tuning store holds, and how it travels (PRODUCT 5.4).

In: the store of FISSILE_STORE or the user's data directory. Out: its contents for people or as JSON.
"""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fissile.commands.options import common
from fissile.commands.writing import EXPORT, Output, check_outputs, forcing
from fissile.console import plain, set_up
from fissile.options import environment

if TYPE_CHECKING:
    from fissile.runtime.store import Store


@click.group("store")
def store_group() -> None:
    """The tuning store: measurements that are kept."""


@store_group.command("info")
@common
def info_command(as_json: bool, quiet: bool, verbose: bool) -> int:
    """Where it is and what it holds."""
    set_up(quiet=quiet, verbose=verbose)
    with _opened() as store:
        machines = Counter(row.key.isa for row in store.rows())
        rejects = len(store.rejects())
        name = store.name
    if as_json:
        print(json.dumps({"store": name, "measurements": machines, "rejects": rejects}))
        return 0
    print(plain(f"store    {name} · {sum(machines.values())} measurements · {rejects} rejected"))
    for machine, count in machines.most_common():
        print(f"{count:8} {machine}")
    return 0


@store_group.command("export")
@click.argument("file", type=click.Path(path_type=Path))
@forcing
@common
def export_command(file: Path, force: bool, as_json: bool, quiet: bool, verbose: bool) -> int:
    """Write all measurements to FILE, one a line."""
    set_up(quiet=quiet, verbose=verbose)
    from fissile.tune.exchange import export

    check_outputs([Output("store export", file, EXPORT)], force)
    with _opened() as store:
        count = export(store, file)
    print(json.dumps({"file": str(file), "measurements": count}) if as_json
          else plain(f"wrote    {file} · {count} measurements"))  # fmt: skip
    return 0


@store_group.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--all", "everything", is_flag=True, help="Those of other machines, too.")
@common
def import_command(
    file: Path, everything: bool, as_json: bool, quiet: bool, verbose: bool
) -> int:
    """Take over the measurements of FILE that were made on such a machine."""
    set_up(quiet=quiet, verbose=verbose)
    from fissile.tune.exchange import take

    with _opened() as store:
        taken = take(store, file, everything=everything)
    print(json.dumps(asdict(taken)) if as_json else plain(taken.text()))
    return 0


@store_group.command("rejects")
@common
def rejects_command(as_json: bool, quiet: bool, verbose: bool) -> int:
    """Kernels that could not be measured, and why."""
    set_up(quiet=quiet, verbose=verbose)
    with _opened() as store:
        rejects = store.rejects()
    if as_json:
        print(json.dumps([asdict(reject) for reject in rejects]))
        return 0
    for reject in rejects:
        print(plain(f"{reject.label}: {reject.reason}  [{reject.key.code[:12]}]"))
    if not rejects:
        print("nothing was rejected")
    return 0


def _opened() -> "Store":
    from fissile.runtime.store import Store, default_paths

    return Store(environment().store or default_paths())
