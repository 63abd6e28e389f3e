"""Target: the frozen facts of an instruction set that code generation relies on (DESIGN 2).

In: a name ("native", "x86-64-v3", ...) or the flags of this CPU. Out: a `Target`.
Invariant: a named target is the same on every machine, so artifacts are reproducible; only
`native()` looks at the machine, and it changes nothing but the cache sizes of a named target.
Nothing here is measured.
"""

import platform
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from fissile.errors import TargetError, did_you_mean


@dataclass(frozen=True)
class Target:
    """An instruction set with the sizes that matter to tiling.

    vector_bits: width of one vector register. vector_registers: how many of them. l1, l2, l3: bytes
    of data cache (l1, l2 per core; l3 shared). features: CPU flags (as the kernel spells them) that
    the code needs. llvm_triple, llvm_cpu, llvm_features: what LLVM is told. level: larger runs on
    fewer machines of the same arch.
    """

    name: str
    arch: str
    level: int
    features: tuple[str, ...]
    vector_bits: int
    vector_registers: int
    l1: int
    l2: int
    l3: int
    llvm_triple: str
    llvm_cpu: str
    llvm_features: str

    def lanes(self, itemsize: int) -> int:
        """How many elements of `itemsize` bytes one register holds."""
        return self.vector_bits // (8 * itemsize)


_V2 = ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3")
_V3 = (*_V2, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_LINUX_X86 = "x86_64-unknown-linux-gnu"
_LINUX_ARM = "aarch64-unknown-linux-gnu"
_KIB = 1024
_CACHES = (32 * _KIB, 512 * _KIB, 16384 * _KIB)

TARGETS: dict[str, Target] = {
    t.name: t
    for t in (
        Target("x86-64-v3", "x86_64", 3, _V3, 256, 16, *_CACHES, _LINUX_X86, "x86-64-v3", ""),
        Target(
            # LLVM's generic v4 prefers 256-bit vectors; ours are 512 wide on purpose.
            "x86-64-v4",
            "x86_64",
            4,
            _V4,
            512,
            32,
            *_CACHES,
            _LINUX_X86,
            "x86-64-v4",
            "-prefer-256-bit",
        ),
        Target(
            "aarch64-neon",
            "aarch64",
            1,
            ("asimd", "fp"),
            128,
            32,
            *_CACHES,
            _LINUX_ARM,
            "generic",
            "+neon",
        ),
    )
}


def named(name: str) -> Target:
    """The target called `name`; TargetError with the nearest name if there is none."""
    if name in TARGETS:
        return TARGETS[name]
    raise TargetError(
        "F110",
        f'no target is called "{name}"',
        reason=f"known targets: native, {', '.join(TARGETS)}",
        remedy=did_you_mean(name, ["native", *TARGETS]),
    )


@cache
def cpu_flags() -> frozenset[str]:
    """Feature flags of this CPU as /proc/cpuinfo spells them; empty where there is no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


@cache
def cpu_name() -> str:
    """The CPU's own name, for people; "unknown CPU" where the system does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return "unknown CPU"
    lines = (line.partition(":") for line in text.splitlines())
    return next((v.strip() for k, _, v in lines if k.strip() == "model name"), "unknown CPU")


def missing_features(features: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `features` that this CPU lacks."""
    return tuple(f for f in features if f not in cpu_flags())


def native(cap: str | None = None) -> Target:
    """The best target this machine runs, with its own cache sizes; never above `cap`."""
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    limit = named(cap).level if cap else max(t.level for t in TARGETS.values())
    fit = [
        t
        for t in TARGETS.values()
        if t.arch == arch and t.level <= limit and not missing_features(t.features)
    ]
    if not fit:
        raise TargetError(
            "F111",
            f"this machine ({arch}, {cpu_name()}) runs none of the targets",
            reason="x86-64 needs AVX2, FMA and F16C; aarch64 needs NEON",
            remedy="fissile compile --target x86-64-v3 makes an artifact for another machine",
        )
    best = max(fit, key=lambda t: t.level)
    l1, l2, l3 = _cache_sizes()
    return replace(best, l1=l1 or best.l1, l2=l2 or best.l2, l3=l3 or best.l3)


def resolve(target: "str | Target", cap: str | None = None) -> Target:
    """A name, "native" or a Target -> Target. `cap` limits "native" only."""
    if isinstance(target, Target):
        return target
    return native(cap) if target == "native" else named(target)


@cache
def _cache_sizes() -> tuple[int, int, int]:
    sizes = {1: 0, 2: 0, 3: 0}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            kind = (index / "type").read_text().strip()
            level = int((index / "level").read_text())
            size = (index / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if kind != "Instruction" and level in sizes:
            sizes[level] = _bytes(size)
    return sizes[1], sizes[2], sizes[3]


def _bytes(text: str) -> int:
    unit = {"K": _KIB, "M": _KIB * _KIB}.get(text[-1:], 1)
    digits = text.rstrip("KM")
    return int(digits) * unit if digits.isdigit() else 0
