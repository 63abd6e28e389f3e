"""The support module: textual LLVM IR that every image carries (DESIGN 3.8).

In: an architecture. Out: one module text that defines `fissile_run`, `fissile_worker`,
`fissile_stop`, `fissile_cycles`, memmove/memcpy/memset and the half and bfloat16 conversions.
Invariant: the text declares nothing but LLVM intrinsics, so an image with it has no undefined
symbol of ours. It has no target line: whoever compiles it chooses the triple.
"""

from importlib.resources import files

from fissile.errors import NotYet

ENTRIES = ("fissile_run", "fissile_worker", "fissile_stop", "fissile_cycles")
SHARED = ("gang", "memory", "convert")
ARCHITECTURES = ("x86_64",)


def support_text(architecture: str = "x86_64") -> str:
    """The support module for one of `ARCHITECTURES`, ready to be parsed. NotYet F305 for another."""
    if architecture not in ARCHITECTURES:
        raise NotYet(
            "F305",
            f"code for {architecture} does not exist in this version",
            reason=f"there is code for {', '.join(ARCHITECTURES)}",
            remedy="--target x86-64-v3",
        )
    folder = files(__package__)
    names = (*SHARED, architecture)
    return "\n".join(folder.joinpath(f"{name}.ll").read_text("utf-8") for name in names)
