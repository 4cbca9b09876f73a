"""Source: Level Zero sysman, through ``pyzes`` (which XPU builds of torch bring along).

Sysman sees every card whatever the masks, knows PCI addresses, and counts memory of all
processes. Some drivers answer only with elevated privileges. Not run on an Intel GPU: written to
pyzes 0.1.3, tested with fakes.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from ctypes import byref, c_uint32, c_void_p, cast, pointer
from typing import Any

from arcpp.probe.identity import hex_uuid, pci_from_intel_uuid, pci_from_parts, visible_cards
from arcpp.probe.reading import Reading
from arcpp.probe.sighting import XPU, Sighting

NAME = "levelzero"
_SOURCE = "Level Zero sysman"
_SUCCESS = 0
_ERRORS = {
    0x70000001: "device lost",
    0x70010000: "needs elevated privileges",
    0x70010001: "not available",
    0x78000001: "not initialised",
    0x78000003: "not supported by this driver",
}
_INTEGRATED = 1  # ZES_DEVICE_PROPERTY_FLAG_INTEGRATED, ZE_DEVICE_PROPERTY_FLAG_INTEGRATED
_LOCATION_DEVICE = 1  # ZES_MEM_LOC_DEVICE


class SysmanError(Exception):
    """A sysman call did not succeed. The text names the call and the driver's reason."""


def sysman_sightings(pyzes: Any) -> list[Sighting]:
    """Every card of ``pyzes`` (the module, or a fake of it), masks or not.

    Raises SysmanError when sysman itself cannot be asked; a card's own failure is in its reading.
    """
    _check("zesInit", pyzes.zesInit(0))
    found: list[Sighting] = []
    for driver in _handles(pyzes.zesDriverGet, pyzes.zes_driver_handle_t):
        for device in _handles(pyzes.zesDeviceGet, pyzes.zes_device_handle_t, driver):
            found.append(_sighting(pyzes, device, len(found)))
    return found


def look_up(seen: Sighting) -> tuple[Sighting | None, list[Reading]]:
    """Sysman's card that torch sees as ``seen``, and its memory or why there is none.

    The PCI address decides (an Intel UUID holds one), then the UUID; without either, torch's
    index is counted among the cards that the masks let through. Never raises.
    """
    try:
        pyzes = importlib.import_module("pyzes")
    except Exception:
        return None, [Reading(_SOURCE, error="no pyzes, or no Level Zero loader for it")]
    try:
        cards = sysman_sightings(pyzes)
    except Exception as error:
        return None, [Reading(_SOURCE, error=f"{type(error).__name__}: {error}"[:200])]
    card = match(seen, cards)
    if card is None:
        return None, [Reading(_SOURCE, error="shows no card that is surely this one")]
    return card, list(card.readings)


def match(seen: Sighting, cards: list[Sighting]) -> Sighting | None:
    """The card among sysman's that torch sees as ``seen``, or None when it is not sure."""
    address = seen.pci or pci_from_intel_uuid(seen.uuid)
    for card in cards:
        if address is not None and card.pci == address:
            return card
        if address is None and seen.uuid is not None and card.uuid == seen.uuid:
            return card
    if address is not None and any(card.pci is not None for card in cards):
        return None
    integrated = [bool(card.integrated) for card in cards]
    mask, selector = os.environ.get("ZE_AFFINITY_MASK"), os.environ.get("ONEAPI_DEVICE_SELECTOR")
    visible = visible_cards(integrated, mask, selector)
    return cards[visible[seen.index]] if seen.index < len(visible) else None


def _sighting(pyzes: Any, device: Any, index: int) -> Sighting:
    properties = _properties(pyzes, device)
    core = getattr(properties, "core", None)
    uuid = None
    if core is not None:
        uuid = hex_uuid(bytes(core.uuid.id).hex())
    return Sighting(
        source=NAME,
        index=index,
        name=_text(getattr(core, "name", b"")) or f"Level Zero device {index}",
        kind=XPU,
        number=str(index),
        pci=_pci(pyzes, device) or pci_from_intel_uuid(uuid),
        uuid=uuid,
        integrated=None if core is None else bool(int(core.flags) & _INTEGRATED),
        max_allocation=int(getattr(core, "maxMemAllocSize", 0)) or None,
        readings=(_memory(pyzes, device),),
    )


def _properties(pyzes: Any, device: Any) -> Any:
    properties = pyzes.zes_device_properties_t()
    properties.stype = pyzes.ZES_STRUCTURE_TYPE_DEVICE_PROPERTIES
    extended = pyzes.zes_device_ext_properties_t()
    extended.stype = pyzes.ZES_STRUCTURE_TYPE_DEVICE_EXT_PROPERTIES
    properties.pNext = cast(pointer(extended), c_void_p)
    if pyzes.zesDeviceGetProperties(device, byref(properties)) != _SUCCESS:
        return None
    properties.core.flags |= int(extended.flags) & _INTEGRATED
    return properties


def _pci(pyzes: Any, device: Any) -> str | None:
    properties = pyzes.zes_pci_properties_t()
    properties.stype = pyzes.ZES_STRUCTURE_TYPE_PCI_PROPERTIES
    if pyzes.zesDevicePciGetProperties(device, byref(properties)) != _SUCCESS:
        return None
    address = properties.address
    return pci_from_parts(
        int(address.domain), int(address.bus), int(address.device), int(address.function)
    )


def _memory(pyzes: Any, device: Any) -> Reading:
    """Free and size summed over the card's memory modules."""
    try:
        modules = _handles(pyzes.zesDeviceEnumMemoryModules, pyzes.zes_mem_handle_t, device)
        states = [_state(pyzes, module) for module in modules if _on_card(pyzes, module)]
    except SysmanError as error:
        return Reading(_SOURCE, error=str(error))
    if not states:
        return Reading(_SOURCE, error="shows no memory module")
    return Reading(_SOURCE, sum(size for size, _ in states), sum(free for _, free in states))


def _state(pyzes: Any, module: Any) -> tuple[int, int]:
    state = pyzes.zes_mem_state_t()
    state.stype = pyzes.ZES_STRUCTURE_TYPE_MEM_STATE
    _check("zesMemoryGetState", pyzes.zesMemoryGetState(module, byref(state)))
    return int(state.size), int(state.free)


def _on_card(pyzes: Any, module: Any) -> bool:
    """False for modules in host memory; True when the driver does not say."""
    properties = pyzes.zes_mem_properties_t()
    properties.stype = pyzes.ZES_STRUCTURE_TYPE_MEM_PROPERTIES
    if pyzes.zesMemoryGetProperties(module, byref(properties)) != _SUCCESS:
        return True
    return int(properties.location) == _LOCATION_DEVICE


def _handles(call: Callable[..., int], kind: Any, *owner: Any) -> list[Any]:
    """Handles of one of sysman's two-call enumerations. Raises SysmanError."""
    name = getattr(call, "__name__", "sysman")
    count = c_uint32(0)
    _check(name, call(*owner, byref(count), None))
    if not count.value:
        return []
    handles = (kind * count.value)()
    _check(name, call(*owner, byref(count), handles))
    return [handles[index] for index in range(count.value)]


def _check(call: str, code: int) -> None:
    if code != _SUCCESS:
        reason = _ERRORS.get(int(code) & 0xFFFFFFFF, f"error {int(code) & 0xFFFFFFFF:#x}")
        raise SysmanError(f"{call}: {reason}")


def _text(raw: Any) -> str:
    return bytes(raw).split(b"\0")[0].decode(errors="replace") if raw else ""


def main() -> int:
    """Print devices as one JSON object, or why there are none."""
    try:
        pyzes = importlib.import_module("pyzes")
        answer: dict[str, Any] = {"sightings": [seen.to_json() for seen in sysman_sightings(pyzes)]}
    except Exception as error:
        answer = {"sightings": [], "error": f"{type(error).__name__}: {error}"[:300]}
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
