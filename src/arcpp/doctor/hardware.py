"""Advice on cards, drivers and memory figures."""

from __future__ import annotations

from arcpp.probe import FoundDevice
from arcpp.probe.choose import DECLARE, DISPLAY_RESERVE, name_of
from arcpp.probe.identity import short_name
from arcpp.units import format_gib

from .facts import Facts
from .finding import ADVICE, BROKEN, UNCHECKED, Found, discrete


def cards(facts: Facts) -> Found:
    usable = [device for device in facts.devices if device.usable]
    if not usable and not facts.wsl:
        integrated = any(device.integrated for device in facts.devices)
        yield (
            ADVICE,
            f"no Intel card is on the PCI bus{', only an integrated GPU' if integrated else ''}",
            "check seat and power of the card; in a virtual machine pass it through. Without a "
            "card arcpp runs on the CPU, and only when that is named (--device cpu)",
        )
    for card in discrete(facts):
        at = f"{card.name} at {card.pci}"
        if card.driver is None:
            yield (
                BROKEN,
                f"no kernel driver is bound to {at}",
                "boot a kernel whose xe (B series) or i915 (A series) module knows the card, with "
                "its firmware (linux-firmware), and look at dmesg for xe or i915",
            )
        elif card.driver == "vfio-pci":
            yield BROKEN, f"{at} is handed to a virtual machine (vfio-pci)", "bind it to xe or i915"
        elif card.driver == "i915" and (short_name(card.name) or "").startswith("B"):
            yield ADVICE, f"{at} is driven by i915", "use the xe module: i915 is not for B series"


def drivers(facts: Facts) -> Found:
    cards = [card for card in discrete(facts) if card.driver is not None]
    if not cards:
        yield UNCHECKED, "no Intel card with a driver is here", ""
        return
    if not facts.nodes and not facts.wsl:
        yield (
            BROKEN,
            "there is no /dev/dri/renderD* for compute runtimes to open",
            "in a container add --device /dev/dri; outside load the xe or i915 module",
        )
    closed = [node for node, may_open in facts.nodes.items() if not may_open]
    if closed:
        yield (
            BROKEN if len(closed) == len(facts.nodes) else ADVICE,
            f"this user may not open /dev/dri/{', '.join(closed)}",
            "join the group render (sudo usermod -aG render $USER, log in again); in a container "
            "add --group-add with the group's number",
        )
    seen = any(device.numbers for device in facts.devices if device.usable)
    lacking = [name for name, there in facts.libraries.items() if not there]
    if lacking and not seen:
        yield (
            BROKEN,
            f"no runtime sees the card, and {', '.join(lacking)} is not in the usual folders",
            "install Intel's compute runtime (Debian and Ubuntu: libze-intel-gpu1, libze1, "
            "intel-opencl-icd)",
        )


def memory(facts: Facts) -> Found:
    usable = [device for device in facts.devices if device.usable]
    if not any(device.numbers or device.verdict.memory for device in usable):
        why = "no runtime sees a card" if usable else "no card is here"
        yield UNCHECKED, f"{why}, so there is no figure of its memory", ""
    for device in usable:
        yield from _memory_of(device, name_of(device, None))


def _memory_of(device: FoundDevice, name: str) -> Found:
    verdict = device.verdict
    refused = [each for each in verdict.rejected if each.reading.error is None]
    why = "; ".join(str(each) for each in verdict.rejected)
    if verdict.memory is None:
        if device.numbers:  # a card no runtime sees is told elsewhere
            yield BROKEN, f"{name}: no memory figure can be believed ({why})", DECLARE
        return
    if refused:
        yield (
            ADVICE,
            f"{name}: not believed: {'; '.join(str(each) for each in refused)}",
            f"nothing: {format_gib(verdict.memory.free)} GiB free is used, from "
            f"{verdict.memory.source}; report it to the driver's maintainers",
        )
    if verdict.doubt is not None:
        yield (
            ADVICE,
            f"{name}: {verdict.doubt}",
            "arcpp tries an allocation before it plans; declare what other programs take with "
            f"--reserve {name}=SIZE",
        )
    if device.display:
        yield (
            ADVICE,
            f"{name} drives a monitor",
            f"{format_gib(DISPLAY_RESERVE)} GiB of it is kept free; change it with --reserve "
            f"{name}=SIZE, or plug the monitor into another GPU",
        )
