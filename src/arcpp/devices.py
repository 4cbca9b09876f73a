"""Devices and their memory, as probed or as declared. Pure values; nothing is touched."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from .errors import BadInput
from .units import GiB, parse_size

_DECLARED = re.compile(r"(?P<name>[^=]+)=(?P<total>[^:@]+)(:(?P<free>[^@]+))?(@(?P<gbps>.+))?")

_NAME_LIMIT = 80
_BANDWIDTH = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of one device, in bytes. 0 < free <= total; reserve is promised to others.

    source: where the numbers come from ("declared", "torch.accelerator", ...), shown to people.
    """

    total: int
    free: int
    reserve: int = 0
    source: str = "declared"


@dataclass(frozen=True)
class AllocationLimit:
    """Largest single allocation a device allows, in bytes, and who says so, for people."""

    size: int
    source: str


#: Alchemist drivers refuse single allocations of 4 GiB, however much is free.
ALCHEMIST = AllocationLimit(4 * GiB - 1, "compute-runtime#627")
_ALCHEMIST = re.compile(
    r"(?<![a-z0-9])(?:A(?:3[1578]0|5[3578]0|7[357]0)M?|Arc Pro A[3-6]0M?)(?![a-z0-9])",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Device:
    """One physical device that may hold stages.

    name: unique, as shown in tables ("B580", "xpu:1"). bandwidth_gb_s: memory bandwidth in
    10**9 bytes per second, or None when unknown. max_allocation: as its driver says; None when
    unknown. Two stages may name the same device: they then share its memory.
    """

    name: str
    memory: DeviceMemory
    bandwidth_gb_s: float | None = None
    max_allocation: AllocationLimit | None = None

    @property
    def allocation_limit(self) -> AllocationLimit | None:
        """``max_allocation``, or what is known of the card its name says it is."""
        return self.max_allocation or known_limit(self.name)

    @property
    def is_cpu(self) -> bool:
        """Whether it is a processor (``cpu``, ``CPU``, ``cpu:0``), by its name."""
        return is_cpu(self.name)


def known_limit(name: str) -> AllocationLimit | None:
    """What is known of the card ``name`` says it is: Alchemist's limit, or None."""
    return ALCHEMIST if _ALCHEMIST.search(name) else None


def is_cpu(name: str) -> bool:
    """Whether ``name`` is that of a processor."""
    return name.lower().startswith("cpu")


def check_memory(device: str, total: int, free: int) -> None:
    """Refuse memory figures that cannot be (BadInput); 0/0 is what a broken driver reports."""
    if total <= 0:
        raise BadInput(f"device {device}", total, "bytes of memory in total: nothing can be placed")
    if free <= 0:
        raise BadInput(f"device {device}", free, "bytes free: nothing can be placed")
    if free > total:
        raise BadInput(f"device {device}", free, f"bytes free is more than its total of {total}")


def parse_device(text: str) -> Device:
    """Device declared as ``NAME=TOTAL[:FREE][@GBPS]``; free defaults to total.

    Raises BadInput with the part that is wrong.
    """
    match = _DECLARED.fullmatch(text.strip())
    if match is None:
        raise BadInput(
            "--device",
            text,
            "is not NAME=TOTAL[:FREE][@GBPS], for example B580=11605MiB:11.0GiB@456",
        )
    name = match["name"].strip()
    if not name.isprintable() or len(name) > _NAME_LIMIT:
        right = f"is not a name of a device: at most {_NAME_LIMIT} printable characters"
        raise BadInput("--device", name, right)
    total = parse_size(match["total"], f"--device {name}: total")
    free = total if match["free"] is None else parse_size(match["free"], f"--device {name}: free")
    check_memory(name, total, free)
    return Device(name, DeviceMemory(total, free), _bandwidth(name, match["gbps"]))


def _bandwidth(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    value = float(text) if _BANDWIDTH.fullmatch(text.strip()) else math.nan
    if not (0 < value < 1e6):
        raise BadInput(f"--device {name}: bandwidth", text, "is not a number of GB/s, such as 456")
    return value
