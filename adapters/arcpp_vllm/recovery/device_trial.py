"""Whether a card can be used again after a stage on it was lost."""

from __future__ import annotations

from arcpp.probe import child
from arcpp.units import format_gib

_MODULE = "arcpp.backends.torch_device_trial"
_DEADLINE_S = 120.0  # opening a card compiles kernels; half a minute is for memory to come back


def trouble(device: str, needed: int) -> str | None:
    """One line on what is wrong with ``device`` ("xpu:0"), or None. Takes seconds.

    A child process opens it, computes and allocates a little, and waits until ``needed`` bytes are
    free: a driver may take its time to give back what a killed process held.
    """
    outcome = child.run(_MODULE, [device, str(needed)], deadline_s=_DEADLINE_S)
    if outcome.status == child.OK:
        free = outcome.data.get("free")
        if free is None or free >= needed:
            return None
        kind = device.partition(":")[0].upper()
        return (
            f"{kind} out of memory: {device} has {format_gib(free)} GiB free and its stages need "
            f"{format_gib(needed)}: a process that does not end, or another program, has the rest"
        )
    return f"device lost: {device} {outcome.detail}: reset the card, or reboot"
