"""The manifest of an artifact: what it must say before anything else of the artifact is looked at.

In: the bytes of `manifest.json` and the sizes of the other members. Out: the manifest as plain data whose every part
that the runtime reads has the right type. Invariant: an artifact of a newer format, or with code of another layout, is
refused with what to do before its other parts are judged.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fissile.errors import ArtifactError
from fissile.runtime.abi import ABI, BEFORE_ABI

FORMAT = (1, 0)
WEIGHTS = "weights.safetensors"
REPORT = "report.json"
_TEXTS = ("name", "sha256", "producer_name", "producer_version", "domain", "description")


def read_manifest(path: Path | None, text: bytes, sizes: Mapping[str, int]) -> Mapping[str, Any]:
    """The manifest, checked. `sizes`: bytes of every other member. ArtifactError F101, F103, F113."""
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(path, "the manifest is not JSON") from error
    if not isinstance(manifest, dict):
        raise damaged(path, "the manifest is no object")
    _check_format(path, manifest)
    _check_abi(path, manifest)
    problem = _wrong_facts(manifest) or _wrong_targets(manifest) or _wrong_members(manifest, sizes)
    if problem:
        raise damaged(path, problem)
    return manifest


def damaged(path: Path | None, reason: str) -> ArtifactError:
    """F101."""
    name = str(path) if path else "the artifact"
    return ArtifactError(
        "F101",
        f"{name} is not a usable artifact",
        reason=reason,
        remedy="copy it again, or compile the model again",
    )


def _check_format(path: Path | None, manifest: Mapping[str, Any]) -> None:
    found = manifest.get("format")
    if not isinstance(found, list) or len(found) != 2 or not all(_is_count(x) for x in found):
        raise damaged(path, "the manifest has no format number")
    if tuple(found) > FORMAT:
        raise ArtifactError(
            "F103",
            f"{_name(path)} has format {found[0]}.{found[1]}; this fissile reads up to "
            f"{FORMAT[0]}.{FORMAT[1]}",
            reason="it was written by a newer version",
            remedy=["pip install --upgrade fissile", "compile the model again with this version"],
        )
    if found[0] < FORMAT[0]:
        raise damaged(path, f"no version ever wrote format {found[0]}.{found[1]}")


def _check_abi(path: Path | None, manifest: Mapping[str, Any]) -> None:
    found = manifest.get("abi", BEFORE_ABI)
    if found == ABI and _is_count(found):
        return
    made = manifest.get("fissile", "another version")
    said = found if _is_count(found) else "that is no number"
    raise ArtifactError(
        "F113",
        f"{_name(path)} has code of layout {said}; this fissile runs layout {ABI}",
        reason=f"it was compiled by fissile {made}, and its code would read this version's memory wrongly",
        remedy=recompile(path, manifest),
    )


def recompile(path: Path | None, manifest: Mapping[str, Any]) -> str:
    """The command that makes the artifact again."""
    model = manifest.get("model")
    name = model.get("name") if isinstance(model, dict) else None
    source = name if isinstance(name, str) and name else "MODEL.onnx"
    return f"fissile compile {source} -o {_name(path, 'MODEL.fsl')}"


def _wrong_facts(manifest: Mapping[str, Any]) -> str:
    """What is wrong with what the artifact says of its model; "" if nothing is."""
    model = manifest.get("model", {})
    if not isinstance(model, dict) or not all(isinstance(model.get(k, ""), str) for k in _TEXTS):
        return "what the manifest says of the model is malformed"
    metadata = manifest.get("metadata", {})
    if not isinstance(metadata, dict) or not _are_texts(list(metadata.values())):
        return "the manifest's metadata are no texts"
    if not _are_texts(manifest.get("foreign", [])):
        return "the manifest's list of foreign is malformed"
    providers = manifest.get("providers", {})
    if not isinstance(providers, dict) or not all(map(_are_texts, providers.values())):
        return "the manifest's table of providers is malformed"
    for key in ("certificate", "options", "shapes"):
        if not isinstance(manifest.get(key, {}), dict):
            return f"the manifest's {key} are malformed"
    return ""


def _wrong_targets(manifest: Mapping[str, Any]) -> str:
    rows = manifest.get("targets")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        return "the manifest names no targets"
    for row in rows:
        if not all(isinstance(row.get(key), str) for key in ("name", "code", "plan")):
            return "a target of the manifest has no name, code or plan"
        if not _are_texts(row.get("features")):
            return f"the features of target {row['name']} are malformed"
    return ""


def _wrong_members(manifest: Mapping[str, Any], sizes: Mapping[str, int]) -> str:
    """What is wrong between the manifest's table of members and those that are there."""
    table = manifest.get("members")
    if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
        return "the manifest has no table of members"
    if missing := sorted(table.keys() - sizes.keys()):
        return f"member {missing[0]} is missing"
    if extra := sorted(sizes.keys() - table.keys()):
        return f"member {extra[0]} is not in the manifest"
    for name, row in table.items():
        if not isinstance(row.get("sha256"), str) or not _is_count(row.get("bytes")):
            return f"the manifest has no hash or size of member {name}"
        if row["bytes"] != sizes[name]:
            return f"member {name} has {sizes[name]} bytes, not {row['bytes']}"
    needed = [row[part] for row in manifest["targets"] for part in ("code", "plan")]
    needed += [WEIGHTS, REPORT]
    missing = sorted({name for name in needed if name not in table})
    return f"member {missing[0]} is missing" if missing else ""


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _name(path: Path | None, without: str = "the artifact") -> str:
    return path.name if path else without


def memory_limit(manifest: Mapping[str, Any]) -> int | None:
    """Bytes that weights, arena and scratch of one call may take; None where the artifact says nothing of it."""
    limit = manifest.get("options", {}).get("max_memory")
    return limit if isinstance(limit, int) and not isinstance(limit, bool) else None
