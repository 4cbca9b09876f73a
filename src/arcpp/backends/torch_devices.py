"""Source: devices and memory as torch sees them (xpu and cuda), and a trial allocation.

``python -m arcpp.backends.torch_devices`` prints what it finds as one JSON object; probes run it
as a child process, because importing torch and asking a driver may hang or crash. Not run on an
Intel GPU: written to torch 2.13's interfaces, tested with fakes of what drivers were seen to say.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from arcpp.devices import AllocationLimit, known_limit
from arcpp.probe.host_memory import cpu_reading
from arcpp.probe.identity import hex_uuid, pci_from_intel_uuid, pci_from_parts
from arcpp.probe.pci import pci_sightings
from arcpp.probe.reading import HOST, Reading, Trial, Verdict, judge
from arcpp.probe.sighting import Sighting
from arcpp.units import MiB

from . import levelzero_devices

_KINDS = ("xpu", "cuda")
_CHUNK = 512 * MiB  # well below the 4 GiB that an A770 refuses
_SMALLEST_CHUNK = 32 * MiB


def torch_sightings(torch: Any) -> list[Sighting]:
    """Devices of ``torch`` (the module, or a fake of it). Never raises."""
    found = []
    for kind in _KINDS:
        backend = getattr(torch, kind, None)
        for index in range(_count(backend)):
            found.append(_sighting(torch, backend, kind, index))
    return found


def torch_readings(torch: Any, kind: str, index: int) -> list[Reading]:
    """Memory of device ``kind:index`` by every way torch has to ask. Never raises."""
    backend: Any = getattr(torch, kind, None)
    properties = _attempt(lambda: backend.get_device_properties(index))
    total = getattr(properties, "total_memory", None)
    return [
        _pair("torch.accelerator", lambda: torch.accelerator.get_memory_info(index)),
        _pair(f"torch.{kind}", lambda: backend.mem_get_info(index)),
        Reading(f"torch.{kind} properties", total, error=None if total else "give no total"),
    ]


@dataclass(frozen=True)
class Measured:
    """A device as the process that uses it measured it.

    verdict: what can be believed. pci: its address, when known. display: it drives a monitor.
    """

    verdict: Verdict
    pci: str | None
    display: bool


def measure_device(
    device: Any, host: Reading | None = None, declared: Reading | None = None
) -> Measured:
    """The torch device ``device``, in the process that uses it.

    host: what the host measured (:func:`host_reading`), so that an impossible figure of the
    host's is replaced instead of ending its start. Asks torch, and on xpu Level Zero. Never
    raises for a source's sake.
    """
    import torch

    place = torch.device(device)
    index = place.index or 0
    readings = [reading for reading in (declared, host) if reading is not None]
    if place.type not in _KINDS:
        return Measured(judge([*readings, cpu_reading()]), None, False)
    seen = _sighting(torch, getattr(torch, place.type), place.type, index)
    readings += seen.readings
    address = seen.pci or pci_from_intel_uuid(seen.uuid)
    if place.type == "xpu":
        card, readings_there = levelzero_devices.look_up(seen)
        readings += readings_there
        address = address or (None if card is None else card.pci)
    shown = {each.pci: bool(each.display) for each in pci_sightings()}
    verdict = judge(readings, held=held_bytes(place))
    return Measured(verdict, address, address is not None and shown.get(address, False))


def allocation_limit(device: Any) -> AllocationLimit | None:
    """Largest single allocation of the torch device ``device``, where its driver or its card's
    name says. None for others, the CPU among them. Never raises."""
    import torch

    place = torch.device(device)
    if place.type not in _KINDS:
        return None
    seen = _sighting(torch, getattr(torch, place.type), place.type, place.index or 0)
    card = levelzero_devices.look_up(seen)[0] if place.type == "xpu" else None
    if card is not None and card.max_allocation:
        return AllocationLimit(card.max_allocation, card.source)
    return known_limit(seen.name)


def host_reading(total: int | None, free: int | None, error: str | None = None) -> Reading:
    """The host's own figures as a reading."""
    return Reading(HOST, total, free, error)


def held_bytes(device: Any) -> int:
    """Bytes torch's allocator holds on ``device`` in this process; 0 when it cannot say."""
    import torch

    place = torch.device(device)
    backend: Any = getattr(torch, place.type, None)
    held = _attempt(lambda: backend.memory_reserved(place.index or 0))
    return held if isinstance(held, int) and held > 0 else 0


def trial_allocation(device: Any, size: int, *, chunk: int = _CHUNK) -> Trial:
    """Hold and write ``size`` bytes on ``device`` for a moment, in chunks; all are released.

    A refused chunk is halved and tried again, so that a limit on single allocations does not
    look like missing memory. Never raises for the device's sake: the reason is in the result.
    It cannot show memory that a driver takes from others by moving it to the host (xe may).
    """
    import torch

    place = torch.device(device)
    held: list[Any] = []
    got, reason = 0, None
    _attempt(lambda: getattr(torch, place.type).empty_cache())
    before = _free_now(torch, place)
    try:
        while got < size:
            step = min(chunk, size - got)
            try:
                held.append(torch.empty(step, dtype=torch.uint8, device=place).fill_(0x5A))
                synchronize(torch, place)
            except Exception as error:
                reason = one_line(error)
                chunk //= 2
                if chunk < _SMALLEST_CHUNK:
                    break
                continue
            got, reason = got + step, None
        if reason is None and any(int(part[-1]) != 0x5A for part in held):
            got, reason = 0, "memory did not hold what was written"
        after = _free_now(torch, place)
    except Exception as error:
        reason, after = one_line(error), None
    finally:
        held.clear()
        _attempt(lambda: getattr(torch, place.type).empty_cache())
    moved = None if before is None or after is None or not got else before - after >= got // 2
    return Trial(size, got, reason, moved)


def synchronize(torch: Any, place: Any) -> None:
    """Wait for all work on ``place``; nothing to do on the CPU."""
    if place.type != "cpu":
        getattr(torch, place.type).synchronize(place)


def one_line(error: BaseException) -> str:
    """An exception as one line of at most 200 characters."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text[:200]


def _sighting(torch: Any, backend: Any, kind: str, index: int) -> Sighting:
    properties = _attempt(lambda: backend.get_device_properties(index))
    name = str(getattr(properties, "name", None) or f"{kind} device {index}")
    integrated = getattr(
        properties, "is_integrated_gpu", getattr(properties, "is_integrated", None)
    )
    return Sighting(
        source="torch",
        index=index,
        name=name,
        kind=kind,
        number=f"{kind}:{index}",
        pci=_pci(properties),
        uuid=hex_uuid(getattr(properties, "uuid", None)),
        integrated=None if integrated is None else bool(integrated),
        readings=tuple(torch_readings(torch, kind, index)),
    )


def _pci(properties: Any) -> str | None:
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if parts[1] is None or not all(isinstance(part, int) for part in parts):
        return None
    return pci_from_parts(*parts)  # type: ignore[arg-type]


def _count(backend: Any) -> int:
    count = _attempt(lambda: backend.device_count() if backend.is_available() else 0)
    return count if isinstance(count, int) and 0 < count <= 128 else 0


def _free_now(torch: Any, place: Any) -> int | None:
    frees = [
        reading.free
        for reading in torch_readings(torch, place.type, place.index or 0)
        if reading.free
    ]
    return min(frees, default=None)


def _pair(source: str, ask: Callable[[], Any]) -> Reading:
    """(free, total) of ``ask`` as a reading; what it raises becomes the reading's error."""
    try:
        free, total = ask()
        return Reading(source, _whole(total), _whole(free))
    except AttributeError:
        return Reading(source, error="is not there in this torch")
    except Exception as error:
        return Reading(source, error=one_line(error))


def _whole(value: Any) -> Any:
    """Whole numbers as int; anything else as it is, for the judge to refuse."""
    return int(value) if hasattr(value, "__index__") and not isinstance(value, bool) else value


def _attempt(ask: Callable[[], Any]) -> Any:
    """What ``ask`` returns, or None when it raises."""
    try:
        return ask()
    except Exception:
        return None


def build(torch: Any) -> dict[str, Any]:
    """What kind of torch this is: its version and the runtimes it was built for."""
    version = getattr(torch, "version", None)
    xpu = getattr(torch, "xpu", None)
    return {
        "version": str(getattr(torch, "__version__", "unknown")),
        "cuda": getattr(version, "cuda", None),
        "hip": getattr(version, "hip", None),
        "xpu": getattr(version, "xpu", None),
        "xpu_devices": _count(xpu),
    }


def main() -> int:
    """Print build and devices as one JSON object."""
    import torch

    seen = [sighting.to_json() for sighting in torch_sightings(torch)]
    json.dump({"build": build(torch), "sightings": seen}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
