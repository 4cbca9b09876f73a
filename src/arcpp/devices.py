"""Devices and their memory, as probed or as declared. Pure values; nothing is touched."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from .errors import BadInput
from .units import parse_size

_DECLARED = re.compile(r"(?P<name>[^=]+)=(?P<total>[^:@]+)(:(?P<free>[^@]+))?(@(?P<gbps>.+))?")

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
class Device:
    """One physical device that may hold stages.

    name: unique, as shown in tables ("B580", "xpu:1"). bandwidth_gb_s: memory bandwidth in
    10**9 bytes per second, or None when unknown. Two stages may name the same device: they
    then share its memory.
    """

    name: str
    memory: DeviceMemory
    bandwidth_gb_s: float | None = None


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
