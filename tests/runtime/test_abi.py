"""The layout that images and the runtime share changes only together with its number."""

import hashlib
import re
from importlib.resources import files

from fissile.codegen.support import support_text
from fissile.runtime import frame, image, program, threads
from fissile.runtime.abi import ABI

# Whoever changes the layout raises `ABI` and adds its hash; an old number's hash stays what it was.
LAYOUTS = {1: "ef60b8e3e2de7ba2"}
CONSTANTS = {
    frame: (
        "_CONTEXT_WORDS", "_SLOTS", "_STEPS", "_STEP_COUNT", "_SCRATCH", "_STRIDE", "_GANG",
        "_STAMPS", "_LINE_WORDS",
    ),
    program: ("_LAUNCH_WORDS",),
    threads: ("_GANG_WORDS", "_SYSCALL", "_FUTEX", "_SPIN"),
}  # fmt: skip


def layout() -> str:
    """Everything both sides must agree on, as text."""
    text = files("fissile.codegen.support").joinpath("gang.ll").read_text("utf-8")
    words = text[text.index("; Context, i64 words") : text.index("define ")]
    entries = re.findall(r"^define hidden .*@fissile_\w+\([^)]*\)", support_text(), re.MULTILINE)
    kernels = sorted(set(re.findall(r"call void %kernel\([^)]*\)", text)))
    constants = [f"{n}={getattr(m, n)}" for m, names in CONSTANTS.items() for n in names]
    entries += [f"{k._restype_} {k._argtypes_}" for k in (image._CALL, image._CALL2, image._CYCLES)]
    return "\n".join([words, *sorted(entries), *kernels, *constants])


def test_the_layout_has_its_number() -> None:
    found = hashlib.sha256(layout().encode()).hexdigest()[:16]
    assert LAYOUTS.get(ABI) == found, (
        f"the layout numbered {ABI} has changed: raise fissile.runtime.abi.ABI, so that images of "
        f"before are refused, and add its hash {found} here"
    )


def test_every_number_is_of_another_layout() -> None:
    assert len(set(LAYOUTS.values())) == len(LAYOUTS) == ABI
