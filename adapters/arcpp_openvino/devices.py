"""Which OpenVINO devices stages run on, as OpenVINO and the planner name them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from arcpp.devices import Device
from arcpp.errors import BadInput
from arcpp.probe import FoundDevice, Reading
from arcpp.probe.choose import CPU, named_device
from arcpp.probe.host_memory import cpu_reading
from arcpp.probe.machine import this_machine
from arcpp.settings import Settings

_ONE = re.compile(r"(?:CPU|GPU(?:\.\d{1,3})?)", re.ASCII)


def check_devices(core: Any, devices: Sequence[str]) -> tuple[str, ...]:
    """OpenVINO's names of ``devices``, one per stage. Raises BadInput for one that is not here."""
    if not devices or isinstance(devices, str):
        raise BadInput("devices", devices, "is not a list of devices, one per stage")
    here = [str(device) for device in core.available_devices]
    return tuple(_checked(str(device).strip(), here) for device in devices)


def _checked(device: str, here: Sequence[str]) -> str:
    name = device.upper()
    if not _ONE.fullmatch(name):
        right = "is not one device: write CPU or GPU.N, one per stage (not AUTO, MULTI, HETERO)"
        raise BadInput("device", device, right)
    if name in here or (name == "GPU.0" and "GPU" in here) or (name == "GPU" and "GPU.0" in here):
        return name
    right = f"is not here: OpenVINO sees {', '.join(here) or 'no device'}"
    if name.startswith("GPU"):
        right += ". For a card, install Intel's compute runtime (arcpp doctor says more)"
    raise BadInput("device", device, right)


def planner_devices(devices: Sequence[str], settings: Settings) -> list[Device]:
    """``devices`` with their memory, measured or set, for the planner.

    Raises BadInput where it is neither.
    """
    cpu = cpu_reading()
    found: Sequence[FoundDevice] = ()
    if any(device != "CPU" for device in devices):
        found = this_machine().devices
    return [_with_memory(device, found, cpu, settings) for device in devices]


def _with_memory(
    device: str, found: Sequence[FoundDevice], cpu: Reading, settings: Settings
) -> Device:
    name = CPU if device == "CPU" else "GPU.0" if device == "GPU" else device
    seen = settings.declared(named_device(name, found, "openvino", cpu, settings.reserve))
    if seen.memory.total <= 0:
        right = (
            f"bytes of memory can be believed ({seen.memory.source}): set device_memory, "
            "or give partition and blocks"
        )
        raise BadInput(f"device {device}", seen.memory.total, right)
    return seen
