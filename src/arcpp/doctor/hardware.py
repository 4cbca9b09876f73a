"""Advice on cards, drivers, memory figures and copies."""

from __future__ import annotations

from arcpp.probe import FoundDevice, child
from arcpp.probe.choose import DECLARE, DISPLAY_RESERVE, name_of
from arcpp.probe.identity import short_name
from arcpp.units import format_gib

from .copies import DeviceCheck, PathResult
from .facts import Facts
from .finding import ADVICE, BROKEN, Found, discrete

_SLOW_GB_S = 1.0


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
    for device in facts.devices:
        if not device.usable:
            continue
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


def copies(facts: Facts) -> Found:
    for check in facts.copies:
        if check.outcome.status != child.OK:
            yield (
                BROKEN,
                f"copies of {check.device} did not end: {check.outcome.detail}",
                "reset the card or reboot; then look at dmesg for xe or i915",
            )
            continue
        for path in check.paths:
            yield from _copy_faults(path)
        yield from _allocation_faults(check)


def _copy_faults(path: PathResult) -> Found:
    way = " -> host -> ".join(path.path)
    if path.wrong:
        sizes = ", ".join(f"{size:,}" for size in path.wrong)
        does = "do not serve on it: update the driver, try another slot, and report it"
        yield BROKEN, f"{way}: bytes differ after a copy of {sizes} bytes", does
    if path.errors:
        size, reason = next(iter(path.errors.items()))
        does = "update the driver; reset the card or reboot if it says device lost"
        yield BROKEN, f"{way}: a copy of {size:,} bytes failed: {reason}", does
    slowest = min(filter(None, (path.to_device_gb_s, path.to_host_gb_s)), default=None)
    if slowest is not None and slowest < _SLOW_GB_S and not path.path[0].startswith("cpu"):
        does = "check that the card runs at its PCIe width and speed (lspci -vv, LnkSta)"
        yield ADVICE, f"{way}: only {slowest} GB/s", does


def _allocation_faults(check: DeviceCheck) -> Found:
    if check.trial_reason is not None:
        does = "stop other programs on the card; reset it if it stays"
        yield ADVICE, f"{check.device}: an allocation of 1 GiB failed: {check.trial_reason}", does
    if check.free_moved is False:
        yield (
            ADVICE,
            f"{check.device}: the free figure does not move while memory is held",
            f"declare what others use: --reserve {check.device}=SIZE",
        )
    if check.single_allocation is False:
        yield (
            ADVICE,
            f"{check.device}: one allocation above 4 GiB fails",
            "keep a stage's cache below 4 GiB (vLLM from 0.29 allocates it at once), or spread "
            "the model over more stages",
        )
