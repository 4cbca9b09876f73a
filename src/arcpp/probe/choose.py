"""Devices for a plan from what was found on this machine, in PCI order. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import replace

from arcpp.devices import Device, DeviceMemory
from arcpp.errors import BadInput
from arcpp.units import GiB

from .identity import short_name
from .merge import FoundDevice
from .reading import Reading, judge

#: Kept free on a card with a monitor, beyond what its desktop uses already.
DISPLAY_RESERVE = 1 * GiB
DECLARE = "declare each card as --device NAME=TOTAL[:FREE][@GBPS], in stage order"
CPU = "cpu"
#: Memory bandwidth in 10**9 bytes per second, from the cards' data sheets.
_BANDWIDTH = {"A770": 560.0, "B580": 456.0, "B60": 456.0, "B70": 608.0}
#: Host -> the source that numbers devices for it.
_NUMBERED_BY = {"vllm": "torch", "openvino": "openvino"}
_NUMBER = re.compile(r"(?:xpu|cuda):\d{1,3}|GPU\.\d{1,3}|cpu", re.IGNORECASE | re.ASCII)


def is_number(text: str) -> bool:
    """Whether ``text`` is a host's number for a device (``xpu:1``, ``GPU.1``), or ``cpu``."""
    return _NUMBER.fullmatch(text) is not None


def name_of(found: FoundDevice, host: str | None) -> str:
    """What plans call ``found``: the host's own number for it, else another's, else its address."""
    numbers = found.numbers
    own = numbers.get(_NUMBERED_BY[host]) if host in _NUMBERED_BY else None
    other = numbers.get("torch") or numbers.get("openvino")
    return own or other or found.pci or found.name


def devices_for(
    found: Sequence[FoundDevice], host: str | None, reserved: Container[str] = ()
) -> list[Device]:
    """Accelerators ``host`` ("vllm", "openvino"; None: any) can use, in PCI order. May be empty.

    Integrated GPUs are left out. When the host's own runtime sees any device, those it does not
    see (masked ones) are left out too. reserved: names whose reserve the user set. A device
    without possible memory is there with 0 bytes, which every plan refuses by its name.
    """
    usable = [device for device in found if device.usable]
    source = _NUMBERED_BY.get(host or "")
    seen = [device for device in usable if source in device.numbers]
    return [_device(device, name_of(device, host), reserved) for device in seen or usable]


def named_device(
    name: str,
    found: Sequence[FoundDevice],
    host: str | None,
    cpu: Reading,
    reserved: Container[str] = (),
) -> Device:
    """The device numbered ``name`` by any host, integrated ones included, or the CPU.

    Raises BadInput when there is none.
    """
    if name.lower() == CPU:
        memory = judge([cpu]).memory or DeviceMemory(0, 0, source=cpu.source)
        return Device(CPU, memory)
    for device in found:
        if name.lower() in (number.lower() for number in device.numbers.values()):
            return _device(device, name_of(device, host), reserved)
    raise BadInput("--device", name, f"is not here ({nothing(found)}): {DECLARE}")


def numbering(found: FoundDevice, name: str) -> str:
    """One line: which card ``name`` is, and how both hosts number it."""
    parts = [f"{name}: {found.name} at {found.pci or 'an unknown PCI address'}"]
    torch, openvino = found.numbers.get("torch"), found.numbers.get("openvino")
    if torch is not None:
        parts.append(f"vLLM --device-ids {torch.rpartition(':')[2]}")
    if openvino is not None:
        parts.append(f"OpenVINO {openvino}")
    return ", ".join(parts)


def device_ids(chosen: Sequence[FoundDevice]) -> tuple[str, ...]:
    """``--device-ids`` vLLM needs for this stage order, or nothing when it is the default one."""
    numbers = [device.numbers.get("torch", "").rpartition(":")[2] for device in chosen]
    if not all(numbers) or numbers == [str(index) for index in range(len(numbers))]:
        return ()
    return "--device-ids", ",".join(numbers)


def nothing(found: Sequence[FoundDevice]) -> str:
    """Why there is no device to use, in words."""
    integrated = [device.name for device in found if device.integrated]
    if integrated and len(integrated) == len(found):
        return f"only an integrated GPU was found ({integrated[0]}), which is used only when named"
    if not found:
        return "no accelerator was found on this machine, see arcpp doctor"
    return f"found: {', '.join(name_of(device, None) for device in found)}"


def default_reserve(display: bool) -> int:
    """Bytes kept free for a desktop, unless the user set a reserve."""
    return DISPLAY_RESERVE if display else 0


def _device(found: FoundDevice, name: str, reserved: Container[str]) -> Device:
    memory = found.verdict.memory
    if memory is None:
        why = "; ".join(str(rejected) for rejected in found.verdict.rejected)
        memory = DeviceMemory(0, 0, source=why or "no source answers")
    elif name not in reserved:
        memory = replace(memory, reserve=default_reserve(found.display))
    speed = _BANDWIDTH.get(short_name(found.name) or "")
    return Device(name, memory, speed, found.max_allocation)
