"""An artifact and the model it came from: what a comparison needs both of (PRODUCT 5.4).

In: a `.fsl` or a model, and perhaps a model named by the user. Out: the model's path. Invariant: the
model's hash is the one in the artifact's manifest, or there is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fissile.compiler import model_hash
from fissile.errors import ArtifactError, FileMissing


def find_model(artifact: Path, manifest: Mapping[str, Any], given: Path | None) -> Path:
    """The model an artifact was made from: `given`, else its file beside the artifact, else in the current folder.

    FileMissing F504 where it is not, ArtifactError F109 where it is another one.
    """
    facts = manifest["model"]
    name = facts["name"]
    places = [given] if given else [artifact.parent / name, Path(name)] if name else []
    for path in places:
        if path is not None and path.is_file():
            if model_hash(path) != facts["sha256"]:
                raise ArtifactError(
                    "F109",
                    f"{path} is not the model {artifact} was made from",
                    reason=f"its hash is not {facts['sha256'][:12]}",
                    remedy="--model FILE names the right one",
                )
            return path
    raise FileMissing(
        "F504",
        f"the model of {artifact} is needed, and {name or 'it'} is not here",
        remedy="--model FILE",
    )
