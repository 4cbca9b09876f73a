"""What sources say of a device's memory, and which of it can be believed.

No single source is right on every Intel card: drivers were seen to report 0 bytes free, more free
than there is, the total as free for ever, or to raise. So several are asked, what is impossible
is put aside with its reason, and the lowest possible figure wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from arcpp.devices import DeviceMemory
from arcpp.units import MiB, format_gib

#: Source of memory figures that the host (vLLM) measured itself; its total is the one it budgets.
HOST = "host"
DECLARED = "declared"
_SMALLEST, _LARGEST = 16 * MiB, 1024**5


@dataclass(frozen=True)
class Reading:
    """One source's figures for one device, in bytes. None: the source does not say.

    error: why the source could not be read, or None.
    """

    source: str
    total: int | None = None
    free: int | None = None
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Fields by name; sizes in bytes."""
        return {
            "source": self.source,
            "total_bytes": self.total,
            "free_bytes": self.free,
            "error": self.error,
        }


@dataclass(frozen=True)
class Rejected:
    """A reading that was not used for the free figure, and why."""

    reading: Reading
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Fields by name; sizes in bytes."""
        return {**self.reading.to_json(), "reason": self.reason}

    def __str__(self) -> str:
        return f"{self.reading.source}: {self.reason}"


@dataclass(frozen=True)
class Verdict:
    """What can be believed of one device.

    memory: None when no source gave a possible total. free_known: False when every free figure
    was impossible or absent, and memory.free is only the total less what this process holds.
    doubt: why a trial allocation is due before the free figure is relied on, or None.
    """

    memory: DeviceMemory | None
    free_known: bool
    accepted: tuple[Reading, ...]
    rejected: tuple[Rejected, ...]
    doubt: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Fields by name; sizes in bytes."""
        memory = self.memory
        return {
            "total_bytes": None if memory is None else memory.total,
            "free_bytes": None if memory is None else memory.free,
            "source": None if memory is None else memory.source,
            "free_known": self.free_known,
            "doubt": self.doubt,
            "accepted": [reading.to_json() for reading in self.accepted],
            "rejected": [rejected.to_json() for rejected in self.rejected],
        }


@dataclass(frozen=True)
class Trial:
    """Outcome of allocating ``asked`` bytes for a moment.

    got: bytes that could be held and written. reason: why it was less, or None.
    free_moved: whether the runtime's own free figure fell meanwhile; None: not observed.
    """

    asked: int
    got: int
    reason: str | None = None
    free_moved: bool | None = None


def judge(readings: Iterable[Reading], *, held: int = 0) -> Verdict:
    """Believe what is possible in ``readings`` of one device; the lowest possible free wins.

    A declared reading wins over measured ones: its owner knows. The total is the declared or the
    host's own when possible (the host's budget is a fraction of it), else the lowest possible.
    held: bytes this process holds on the device, subtracted from the total when nobody gives a
    possible free figure. Never raises.
    """
    accepted: list[Reading] = []
    rejected: list[Rejected] = []
    totals: dict[str, int] = {}
    for reading in readings:
        fault = reading.error or _total_fault(reading.total)
        if fault is None:
            assert reading.total is not None
            totals.setdefault(reading.source, reading.total)
            fault = _free_fault(reading.free, reading.total)
        if fault is None:
            accepted.append(reading)
        else:
            rejected.append(Rejected(reading, fault))
    if not totals:
        return Verdict(None, False, tuple(accepted), tuple(rejected))
    return _weigh(totals, accepted, rejected, held)


def after_trial(verdict: Verdict, trial: Trial) -> Verdict:
    """``verdict`` with what a trial allocation showed; it can only lower the free figure.

    A trial that got nothing at all lowers nothing (it may have failed for another reason, and
    must not stop a server by itself); it leaves a doubt instead.
    """
    memory = verdict.memory
    if memory is None:
        return verdict
    if trial.got <= 0:
        return replace(verdict, doubt=f"a trial allocation got nothing: {trial.reason}")
    doubt = None
    if trial.free_moved is False:
        doubt = "the free figure did not move while memory was held: it cannot show what others use"
    if trial.got < min(trial.asked, memory.free):
        source = f"trial allocation (below {memory.source})"
        memory = replace(memory, free=trial.got, source=source)
    return replace(verdict, memory=memory, doubt=doubt)


def _weigh(
    totals: dict[str, int], accepted: list[Reading], rejected: list[Rejected], held: int
) -> Verdict:
    total = totals.get(DECLARED, totals.get(HOST, min(totals.values())))
    frees = [reading for reading in accepted if reading.free is not None]
    declared = [reading for reading in frees if reading.source == DECLARED]
    best = min(declared or frees, key=lambda reading: reading.free or 0, default=None)
    seen = tuple(accepted), tuple(rejected)
    if best is None or best.free is None:
        named = next(source for source, size in totals.items() if size == total)
        memory = DeviceMemory(
            total, max(1, total - max(0, held)), source=f"{named}'s total, free unknown"
        )
        return Verdict(memory, False, *seen, doubt="no source gives a possible free figure")
    doubt = None
    if best.source != DECLARED and best.free == best.total:
        doubt = f"{best.source} reports all of {format_gib(best.free)} GiB free"
    return Verdict(
        DeviceMemory(total, min(best.free, total), source=best.source), True, *seen, doubt=doubt
    )


def _total_fault(total: object) -> str | None:
    if total is None:
        return "gives no total"
    if isinstance(total, bool) or not isinstance(total, int):
        return f"gives a total that is no number of bytes ({str(total)[:40]})"
    if total <= 0:
        return f"gives a total of {total} bytes"
    if not _SMALLEST <= total <= _LARGEST:
        return f"gives an absurd total of {total} bytes"
    return None


def _free_fault(free: object, total: int) -> str | None:
    if free is None:
        return None
    if isinstance(free, bool) or not isinstance(free, int):
        return f"gives a free figure that is no number of bytes ({str(free)[:40]})"
    if free == 0:
        return f"gives 0 bytes free of {format_gib(total)} GiB"
    if free < 0:
        return f"gives a negative free figure ({free})"
    if free > total:
        return f"gives more free ({format_gib(free)} GiB) than there is ({format_gib(total)} GiB)"
    return None
