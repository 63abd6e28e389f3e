"""`fissile optimize`: a model for another runtime, with what substitutions make cheaper there.

In: a model. Out: a model of the same inputs, outputs and opset. What no substitution touches stays as it was.
"""

import json
from pathlib import Path

import click

from fissile.commands.opening import check_rules, existing
from fissile.commands.options import common
from fissile.commands.writing import MODEL, Output, check_outputs, forcing
from fissile.console import plain, set_up
from fissile.errors import FileAccess


@click.command("optimize")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Default: STEM.optimized.onnx")
@click.option("--disable", multiple=True, metavar="RULE", help="Leave a rewrite out.")
@forcing
@common
def optimize_command(
    model: Path,
    output: Path | None,
    disable: tuple[str, ...],
    force: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Write MODEL as standard ONNX that is faster in any runtime, where substitutions find something."""
    set_up(quiet=quiet, verbose=verbose)
    from fissile.compare.split import write_model
    from fissile.optimizer import optimized

    path = output or Path(f"{model.stem}.optimized.onnx")
    if path.suffix == ".fsl":
        raise FileAccess("F511", f"{path} is the name of an artifact", remedy="-o NAME.onnx")
    check_outputs([Output("-o", path, MODEL)], force, [model])
    check_rules(disable)
    done = optimized(existing(model), disabled=disable)
    size = write_model(done.model, path)
    if as_json:
        rules = [firing.rule for firing in done.log]
        counts = {"kept": done.kept, "written": done.written, "bytes": size, "gain": done.gain}
        print(json.dumps({"model": str(path), **counts, "rules": rules, "note": done.note}))
    else:
        print(plain(f"wrote    {path} · {size / 1e6:.1f} MB · {done.text()}"))
    return 0
