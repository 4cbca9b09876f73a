"""A fault: one thing that went wrong with a device, a link or a stage, as a value.

Faults cross processes as JSON (``to_json``, ``from_json``): a stage that fails writes one down
before it leaves, and whoever restarts stages reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from arcpp.errors import BadInput

_LONGEST = 300  # characters of a cause: one line of a log, not a stack trace


class FaultKind(StrEnum):
    """What went wrong. Values are the names that people see."""

    DEVICE_LOST = "DeviceLost"
    OUT_OF_DEVICE_MEMORY = "OutOfDeviceMemory"
    STAGE_STALLED = "StageStalled"
    STAGE_DIED = "StageDied"
    STAGE_FAILED = "StageFailed"  # an exception that nobody can place
    LINK_CORRUPT = "LinkCorrupt"
    NON_FINITE = "NonFinite"
    STATE_CORRUPT = "StateCorrupt"
    PEER_LOST = "PeerLost"


class FaultAction(StrEnum):
    """What is done about a fault."""

    RESTART = "restart"
    GIVE_UP = "give up"


@dataclass(frozen=True)
class Fault:
    """One thing that went wrong.

    cause: what was seen, one line. advice: what a person can do about it, one line. device:
    such as "xpu:1". stage, rank: whose process. step: of the engine, as the adapter counts.
    Each of the last four may be unknown (None). consequence: it says no more than that
    something else went wrong before; it is the cause only where nothing better is known.
    """

    kind: FaultKind
    cause: str
    advice: str
    device: str | None = None
    stage: int | None = None
    rank: int | None = None
    step: int | None = None
    consequence: bool = False

    def __str__(self) -> str:
        """``DeviceLost on xpu:1 (stage 1, step 42): what was seen; what to do``, one line."""
        on = f" on {self.device}" if self.device else ""
        where = ", ".join(
            f"{name} {value}"
            for name, value in (("stage", self.stage), ("rank", self.rank), ("step", self.step))
            if value is not None and not (name == "rank" and value == self.stage)
        )
        place = f" ({where})" if where else ""
        advice = f"; {self.advice}" if self.advice else ""
        return one_line(f"{self.kind}{on}{place}: {self.cause}{advice}")

    def to_json(self) -> dict[str, Any]:
        """Every field, of plain types."""
        return {**asdict(self), "kind": self.kind.value}

    @classmethod
    def from_json(cls, written: object) -> Fault:
        """What ``to_json`` wrote. Fields it does not know are left out: another version's.

        Raises BadInput for anything that is no fault.
        """
        if not isinstance(written, Mapping):
            raise BadInput("fault", written, "is not one JSON object")
        kinds = {kind.value: kind for kind in FaultKind}
        kind = written.get("kind")
        if not isinstance(kind, str) or kind not in kinds:
            raise BadInput("fault: kind", kind, f"is none of {', '.join(kinds)}")
        values = {
            name: _read(written, name, kinds_of, default)
            for name, (kinds_of, default) in _FIELDS.items()
        }
        return cls(kinds[kind], **values)


#: Type of a field in JSON, and what it is when it is not there.
_FIELDS: dict[str, tuple[type, Any]] = {
    "cause": (str, ""),
    "advice": (str, ""),
    "device": (str, None),
    "stage": (int, None),
    "rank": (int, None),
    "step": (int, None),
    "consequence": (bool, False),
}


def _read(written: Mapping[Any, Any], name: str, wanted: type, default: Any) -> Any:
    value = written.get(name)
    if value is None:
        return default
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise BadInput(f"fault: {name}", value, f"is not of type {wanted.__name__}")
    return shortened(value) if isinstance(value, str) else value


#: What is nearer to the cause comes first. Consequences come after all of these.
_NEARNESS = (
    FaultKind.DEVICE_LOST,
    FaultKind.OUT_OF_DEVICE_MEMORY,
    FaultKind.STATE_CORRUPT,
    FaultKind.NON_FINITE,
    FaultKind.LINK_CORRUPT,
    FaultKind.STAGE_FAILED,
    FaultKind.STAGE_DIED,
    FaultKind.STAGE_STALLED,
    FaultKind.PEER_LOST,
)


def nearness(fault: Fault) -> tuple[bool, int]:
    """Sorts faults of one incident, the most telling first."""
    return fault.consequence, _NEARNESS.index(fault.kind)


def root_cause(faults: Sequence[Fault]) -> Fault:
    """Of the faults that several stages saw in one incident, the one that caused the others.

    A lost peer, and an end of which nobody knows why, follow from something else. Of equal ones
    the lowest stage's counts, a known stage before an unknown one. Raises BadInput for none.
    """
    if not faults:
        raise BadInput("faults", list(faults), "are none")
    return min(
        faults,
        key=lambda fault: (*nearness(fault), fault.stage is None, fault.stage or 0),
    )


def placed(
    fault: Fault, device: str | None, stage: int | None, rank: int | None, step: int | None
) -> Fault:
    """``fault`` with what is known of its place, where it does not say so itself."""
    return replace(
        fault,
        device=fault.device if device is None else device,
        stage=fault.stage if stage is None else stage,
        rank=fault.rank if rank is None else rank,
        step=fault.step if step is None else step,
    )


def one_line(text: str) -> str:
    """``text`` without line breaks and characters that are not for reading."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def shortened(text: str, longest: int = _LONGEST) -> str:
    """``text`` on one line of at most ``longest`` characters."""
    line = one_line(text)
    return line if len(line) <= longest else line[: longest - 3].rstrip() + "..."
