"""Which device is which: PCI addresses, UUIDs, masks. Pure text in, values out.

Sources number devices differently (torch leaves integrated GPUs out when there is a discrete one,
OpenVINO counts an integrated one as GPU.0, Level Zero sysman ignores every mask), so an index
alone says nothing across sources. The PCI address does; an Intel UUID contains it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_PCI = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", re.IGNORECASE)
_INTEL = "8086"
_MODEL = re.compile(r"\b(?:(A[357]\d0M?)|(B[2-9]\d0?|B[5-9]\d\d)|((?:Max|Flex) ?\d{3,4}))\b")


def pci_address(text: object) -> str | None:
    """``text`` as ``dddd:bb:dd.f`` in lower case, or None when it is no PCI address."""
    match = _PCI.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        return None
    return pci_from_parts(
        int(match[1] or "0", 16), int(match[2], 16), int(match[3], 16), int(match[4])
    )


def pci_from_parts(domain: int, bus: int, device: int, function: int = 0) -> str:
    """The address made of its four numbers."""
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def hex_uuid(text: object) -> str | None:
    """``text`` as 32 hex digits, or None when it is no UUID or all zeros."""
    digits = re.sub(r"[^0-9a-f]", "", str(text).lower().removeprefix("gpu-"))
    return digits if len(digits) == 32 and digits.strip("0") else None


def pci_from_intel_uuid(uuid: str | None) -> str | None:
    """PCI address inside a UUID of Intel's compute runtime, or None for any other UUID.

    Its layout (compute-runtime, Device::generateUuidFromPciBusInfo), little endian: vendor,
    device, revision and PCI domain in 16 bits each, then bus, device and function in 8. Newer
    drivers may use a serial instead, which does not start with the vendor.
    """
    if uuid is None or len(uuid) != 32 or uuid[2:4] + uuid[0:2] != _INTEL:
        return None
    raw = bytes.fromhex(uuid)
    domain = int.from_bytes(raw[6:8], "little")
    bus, device, function = raw[8], raw[9], raw[10]
    if device > 31 or function > 7 or (bus, device) == (0, 0):
        return None
    return pci_from_parts(domain, bus, device, function)


def short_name(name: str) -> str | None:
    """Model of an Intel card inside its marketing name: ``B580``, ``A770``; None when unknown."""
    match = _MODEL.search(name)
    return match[0].replace(" ", "") if match else None


def affinity_mask(value: str | None) -> tuple[int, ...] | None:
    """Card numbers that ``ZE_AFFINITY_MASK`` lets through, ascending; None: all of them.

    ``0.1`` (a tile) lets its card through. Text that is no mask lets everything through, as the
    driver does.
    """
    if value is None or not value.strip():
        return None
    found = set()
    for part in value.split(","):
        card = part.strip().partition(".")[0]
        if not card.isascii() or not card.isdigit():
            return None
        found.add(int(card))
    return tuple(sorted(found))


def device_selector(value: str | None, count: int) -> tuple[int, ...]:
    """Of ``count`` Level Zero GPUs, the numbers that ``ONEAPI_DEVICE_SELECTOR`` lets through.

    Terms are ``backend:devices``, joined by ``;``; a term that starts with ``!`` takes away.
    Devices are numbers, ``*``, ``gpu`` or ``cpu``; only Level Zero (or ``*``) terms matter here.
    """
    if value is None or not value.strip():
        return tuple(range(count))
    kept: set[int] = set()
    taken: set[int] = set()
    accepts = False
    for term in value.lower().split(";"):
        minus = term.strip().startswith("!")
        accepts = accepts or not minus
        backend, colon, devices = term.strip().lstrip("!").partition(":")
        if not colon or backend.strip() not in ("level_zero", "*"):
            continue
        (taken if minus else kept).update(_selected(devices, count))
    if not accepts:
        kept = set(range(count))
    return tuple(sorted(kept - taken))


def _selected(devices: str, count: int) -> set[int]:
    found: set[int] = set()
    for part in devices.split(","):
        name = part.strip()
        if name in ("*", "gpu"):
            found.update(range(count))
        elif name.partition(".")[0].isascii() and name.partition(".")[0].isdigit():
            found.add(int(name.partition(".")[0]))
    return {number for number in found if number < count}


def visible_cards(
    integrated: Sequence[bool], mask: str | None, selector: str | None
) -> tuple[int, ...]:
    """Numbers, among all cards in Level Zero's order, of those torch.xpu shows, in its order.

    integrated: for every card, whether it is an integrated GPU; torch drops those when a
    discrete card is visible (torch/xpu/__init__.py, _enum_zes_device_infos).
    """
    masked = affinity_mask(mask)
    cards = [n for n in range(len(integrated)) if masked is None or n in masked]
    cards = [cards[n] for n in device_selector(selector, len(cards))]
    discrete = [n for n in cards if not integrated[n]]
    return tuple(discrete or cards)
