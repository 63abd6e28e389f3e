"""The machine a number was measured on, for people and for records (DESIGN 6).

In: nothing. Out: plain facts: processor, caches, cores allowed, kernel, hypervisor, load.
Invariant: no host name, no user, no path; what the system does not say is absent.
"""

import os
import platform
from pathlib import Path

from fissile.runtime.threads import allowed_cpus, cgroup_quota
from fissile.target import cpu_flags, cpu_name, native


def facts() -> dict[str, object]:
    """The facts that belong beside a benchmark; JSON-able."""
    target = native()
    quota = cgroup_quota()
    found: dict[str, object] = {
        "cpu": cpu_name(),
        "target": target.name,
        "cpus": os.cpu_count() or 1,
        "allowed": allowed_cpus(),
        "l1_bytes": target.l1,
        "l2_bytes": target.l2,
        "l3_bytes": target.l3,
        "kernel": platform.release(),
        "virtual": "hypervisor" in cpu_flags(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }
    if quota is not None:
        found["quota"] = quota
    governor = _line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return found | ({"governor": governor} if governor else {})


def identity() -> str:
    """What peaks are kept under: the processor and its best target."""
    return f"{cpu_name()} {native().name}"


def _line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""
