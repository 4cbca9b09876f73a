"""A device as one source sees it: the port that every source of devices implements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .reading import Reading

XPU, CUDA, OTHER = "xpu", "cuda", "other"


@dataclass(frozen=True)
class Sighting:
    """One device, seen by one source.

    source: "torch", "levelzero", "openvino" or "pci". index: the source's own number for it.
    number: how its host names it ("xpu:1", "GPU.0"), or None. kind: XPU, CUDA or OTHER. pci:
    ``dddd:bb:dd.f``; uuid: 32 hex digits. integrated, display: None when the source does not
    know. max_allocation: largest single allocation in bytes. driver: kernel module.
    readings: memory figures, several when the source has several ways to ask.
    """

    source: str
    index: int
    name: str
    kind: str
    number: str | None = None
    pci: str | None = None
    uuid: str | None = None
    integrated: bool | None = None
    display: bool | None = None
    driver: str | None = None
    max_allocation: int | None = None
    readings: tuple[Reading, ...] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        """Fields by name, for a child process to hand over."""
        result = {name: getattr(self, name) for name in _FIELDS}
        result["readings"] = [reading.to_json() for reading in self.readings]
        return result


_FIELDS = (
    "source", "index", "name", "kind", "number", "pci", "uuid", "integrated", "display",
    "driver", "max_allocation",
)  # fmt: skip


def from_json(value: Mapping[str, Any]) -> Sighting:
    """The sighting that ``to_json`` wrote. Raises KeyError or TypeError on anything else."""
    readings = tuple(
        Reading(each["source"], each["total_bytes"], each["free_bytes"], each["error"])
        for each in value["readings"]
    )
    return Sighting(**{name: value[name] for name in _FIELDS}, readings=readings)
