"""Source: OpenVINO's GPU plugin: totals, the largest allocation and GPU.N; no free memory.

Not run on an Intel GPU: written to OpenVINO 2026.4, tested with fakes.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable
from typing import Any

from arcpp.probe.identity import hex_uuid, pci_address, pci_from_parts
from arcpp.probe.reading import Reading
from arcpp.probe.sighting import XPU, Sighting

NAME = "openvino"
_SOURCE = "OpenVINO"
_PARTS = ("domain", "bus", "device", "function")


def openvino_sightings(core: Any) -> list[Sighting]:
    """GPUs of ``core`` (an ``openvino.Core``, or a fake of it). Never raises."""
    found: list[Sighting] = []
    for device in _attempt(lambda: list(core.available_devices)) or []:
        if str(device).partition(".")[0] != "GPU":
            continue
        found.append(_sighting(core, str(device), len(found)))
    return found


def _sighting(core: Any, device: str, index: int) -> Sighting:
    def ask(name: str) -> Any:
        return _attempt(lambda: core.get_property(device, name))

    kind, total = ask("DEVICE_TYPE"), ask("GPU_DEVICE_TOTAL_MEM_SIZE")
    limit = ask("GPU_DEVICE_MAX_ALLOC_MEM_SIZE")
    reading = Reading(_SOURCE, total, error=None if total is not None else "gives no total")
    return Sighting(
        source=NAME,
        index=index,
        name=str(ask("FULL_DEVICE_NAME") or device).removesuffix(" (dGPU)"),
        kind=XPU,
        number=device if "." in device else f"{device}.0",
        pci=_pci(ask("DEVICE_PCI_INFO")),
        uuid=hex_uuid(ask("DEVICE_UUID")),
        integrated=None if kind is None else "INTEGRATED" in str(kind).upper(),
        max_allocation=limit if isinstance(limit, int) and limit > 0 else None,
        readings=(reading,),
    )


def _pci(info: Any) -> str | None:
    """Address in DEVICE_PCI_INFO: an object with numbers, or text, by version."""
    parts = [getattr(info, name, None) for name in _PARTS]
    if all(isinstance(part, int) for part in parts):
        return pci_from_parts(*(int(str(part)) for part in parts))
    found = dict(re.findall(r"(domain|bus|device|function)\s*[:=]\s*(0x[0-9a-f]+|\d+)", str(info)))
    if len(found) != len(_PARTS):
        return pci_address(str(info))
    return pci_from_parts(*(int(found[name], 0) for name in _PARTS))


def _attempt(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception:
        return None


def main() -> int:
    """Print version and devices as one JSON object."""
    openvino = importlib.import_module("openvino")
    seen = [sighting.to_json() for sighting in openvino_sightings(openvino.Core())]
    json.dump({"version": str(openvino.__version__), "sightings": seen}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
