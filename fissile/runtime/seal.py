"""The seal: which plan a code member was linked for.

In: code and its plan. Out: the code with a seal behind it, or an ArtifactError. Native code believes the
tables of its plan: how many words `bind` writes, which arguments are addresses, how much a kernel reads behind one. No
check of the tables alone can find all of that out, so code runs only with the very plan that it was linked for.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from fissile.errors import ArtifactError
from fissile.runtime.artifact import json_bytes

_MARK = b"fissile: sealed with its plan..."
_LENGTH = len(_MARK) + hashlib.sha256().digest_size


def sealed(code: bytes, plan: Mapping[str, Any]) -> bytes:
    """The code, and behind it the hash of the plan that it runs with, as an artifact has it."""
    return code + _MARK + hashlib.sha256(json_bytes(plan)).digest()


def check_seal(code: memoryview, plan: bytes | memoryview, *, is_old: bool) -> None:
    """ArtifactError F104 unless the plan is the one that the code was linked for.

    is_old: of an artifact from before there were seals, which may lack one.
    """
    seal = bytes(code[-_LENGTH:])
    if not seal.startswith(_MARK):
        wrong = not is_old
    else:
        wrong = seal[len(_MARK) :] != hashlib.sha256(plan).digest()
    if wrong:
        raise ArtifactError(
            "F104",
            "the artifact's code was made for another plan",
            remedy="compile the model again",
        )
