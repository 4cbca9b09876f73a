"""Memory of the CPU: what the kernel has, under the limits of this process's control groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .reading import Reading

_UNLIMITED = 2**60  # control groups of version 1 write about 2**63 for "no limit"


def cpu_reading(root: Path = Path("/")) -> Reading:
    """Total and available bytes, as ``/proc/meminfo`` and control groups (1 and 2) limit them.

    Available counts page cache as available, the kernel's own way. Never raises.
    """
    try:
        sizes = _meminfo(root / "proc/meminfo")
        total = sizes["MemTotal"]
        free = sizes.get("MemAvailable", sizes.get("MemFree"))
    except (OSError, ValueError, KeyError) as error:
        return Reading("/proc/meminfo", error=f"cannot be read ({type(error).__name__})")
    source = "/proc/meminfo"
    for limit, used in _limits(root):
        total = min(total, limit)
        if free is None or limit - used < free:
            free, source = max(0, limit - used), "control group"
    return Reading(source, total, free)


def _meminfo(file: Path) -> dict[str, int]:
    sizes = {}
    for line in file.read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if value.strip().endswith("kB"):
            sizes[name] = int(value.split()[0]) * 1024
    return sizes


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, used without reclaimable cache) of every control group this process is in."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            top, names = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        for depth in range(len(parts), -1, -1):  # a parent's limit counts too
            folder = top.joinpath(*parts[:depth])
            limit, used = (_number(folder / name) for name in names)
            if limit is not None and 0 < limit < _UNLIMITED:
                yield limit, max(0, (used or 0) - _reclaimable(folder / "memory.stat"))


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        return None  # absent, or the word "max"


def _reclaimable(file: Path) -> int:
    """Bytes of cache the kernel gives back under pressure."""
    try:
        for line in file.read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
