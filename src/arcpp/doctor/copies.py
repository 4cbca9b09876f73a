"""Copy checks of every accelerator: one child per device, each with a deadline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from arcpp.probe import child

MODULE = "arcpp.backends.torch_copies"
DEADLINE_S = 180.0
_Runner = Callable[[Sequence[str]], child.Outcome]


@dataclass(frozen=True)
class PathResult:
    """All size classes of one path, such as ("xpu:0", "xpu:1") by way of host memory.

    sizes: how many were checked. wrong: sizes whose content differed. errors: size -> reason.
    to_device_gb_s, to_host_gb_s: 10**9 bytes per second at the largest size, of the slower device.
    """

    path: tuple[str, ...]
    sizes: int
    wrong: tuple[int, ...] = ()
    errors: Mapping[int, str] = field(default_factory=dict)
    to_device_gb_s: float | None = None
    to_host_gb_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Fields by name."""
        return {
            "path": list(self.path),
            "sizes_checked": self.sizes,
            "sizes_wrong": list(self.wrong),
            "errors": {str(size): reason for size, reason in self.errors.items()},
            "to_device_gb_s": self.to_device_gb_s,
            "to_host_gb_s": self.to_host_gb_s,
        }


@dataclass(frozen=True)
class DeviceCheck:
    """What one device's child found. outcome: how the child ended."""

    device: str
    outcome: child.Outcome
    paths: tuple[PathResult, ...] = ()
    free_moved: bool | None = None
    trial_reason: str | None = None
    single_allocation: bool | None = None


def check_devices(numbers: Sequence[str], run: _Runner | None = None) -> tuple[DeviceCheck, ...]:
    """Check every torch device in ``numbers`` ("xpu:0"), alone and to each other of its kind.

    One after another, so that bandwidths are a device's own. Without devices the CPU is checked,
    host to host, which shows only that the check works.
    """
    ask = run or (lambda arguments: child.run(MODULE, arguments, deadline_s=DEADLINE_S))
    found = []
    for number in numbers or ["cpu:0"]:
        kind, _, index = number.partition(":")
        others = [other.partition(":")[2] for other in numbers if other.startswith(f"{kind}:")]
        outcome = ask([kind, index, *(other for other in others if other != index)])
        found.append(understood(number, outcome))
    return tuple(found)


def understood(number: str, outcome: child.Outcome) -> DeviceCheck:
    """A child's answer as values; an answer of another form counts as none."""
    if outcome.status != child.OK:
        return DeviceCheck(number, outcome)
    try:
        by_path: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
        for copy in outcome.data["copies"]:
            by_path.setdefault(tuple(copy["path"]), []).append(copy)
        trial = outcome.data["trial"]
        return DeviceCheck(
            number,
            outcome,
            tuple(_path(path, copies) for path, copies in by_path.items()),
            trial["free_moved"],
            trial["reason"],
            outcome.data["single_allocation"],
        )
    except (KeyError, TypeError):
        return DeviceCheck(number, child.Outcome(child.SILENT, {}, "answer of another form"))


def _path(path: tuple[str, ...], copies: Sequence[Mapping[str, Any]]) -> PathResult:
    largest = max(copies, key=lambda copy: copy["size"])
    return PathResult(
        path,
        len(copies),
        tuple(copy["size"] for copy in copies if copy["wrong_bytes"]),
        {copy["size"]: copy["error"] for copy in copies if copy["error"]},
        _rate(largest["size"], largest["to_device_s"]),
        _rate(largest["size"], largest["to_host_s"]),
    )


def _rate(size: int, seconds: float | None) -> float | None:
    return round(size / seconds / 1e9, 2) if seconds else None
