"""One HTML page from plain data: no network, no second file, nothing in it that the data could turn into markup.

In: a document as `fissile.report.facts` and the command make it. Out: the text of the page. Invariant: the data is one
JSON block without `<`, `>` and `&`, which the script reads and shows as text only; the policy in the head lets no other
script run, none of an attribute either.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

_ESCAPED = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&"})


def page(document: Mapping[str, Any]) -> str:
    """The page that shows `document`."""
    style, script = _part("page.css"), _part("page.js")
    parts = {
        "policy": f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'",
        "style": style,
        "script": script,
        "data": data_text(document),
    }
    text = _part("page.html")
    for name, part in parts.items():
        before, after = text.split(f"<!--{name}-->" if name != "policy" else "{policy}", 1)
        text = before + part + after
    return text


def data_text(document: Mapping[str, Any]) -> str:
    """JSON that may stand in a script element; a number that is not finite is null."""
    text = json.dumps(_finite(document), separators=(",", ":"), allow_nan=False)
    return text.translate(_ESCAPED)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(row) for key, row in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(row) for row in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _part(name: str) -> str:
    return (files("fissile.report") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
