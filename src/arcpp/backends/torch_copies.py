"""Content-checked copies host -> device -> host, and device -> host -> device, with torch.

``python -m arcpp.backends.torch_copies KIND FIRST [OTHER ...]`` checks device KIND:FIRST, alone
and towards each OTHER, and prints one JSON object. Copies between devices always pass through
pinned host memory, as arcpp's links do: peer access was reported present and corrupt
(compute-runtime#942). Not run on an Intel GPU; run on the CPU and on a pair of CUDA cards.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from arcpp.units import GiB, KiB, MiB

from .torch_devices import one_line, synchronize, trial_allocation

#: Every size class a boundary can have, odd sizes too: 16 KiB copies failed on one pair of cards.
SIZES = (
    4 * KiB, 4 * KiB + 1, 16 * KiB, 20 * KiB, 64 * KiB + 3, 320 * KiB, MiB, 5 * MiB + 1,
    16 * MiB, 64 * MiB,
)  # fmt: skip
_SINGLE = 4 * GiB + 4 * KiB  # a single allocation an A770 refuses with 15 GiB free
_TRIAL = 1 * GiB


class Copier(Protocol):
    """Moves bytes; ``place`` is a device's index."""

    def put(self, size: int, seed: int) -> Any:
        """A pattern of ``size`` bytes made from ``seed``, in pinned host memory where it can be."""
        ...

    def to_device(self, place: int, host: Any) -> Any:
        """Copy ``host`` to the device, and wait for it."""
        ...

    def room(self, size: int) -> Any:
        """``size`` zero bytes of host memory, pinned where it can be."""
        ...

    def to_host(self, place: int, device: Any, room: Any) -> Any:
        """Copy ``device``'s bytes into ``room``, wait for it, and return ``room``."""
        ...

    def wrong_bytes(self, host: Any, wanted: Any) -> int:
        """In how many bytes two host buffers differ."""
        ...


@dataclass(frozen=True)
class Copy:
    """One check: bytes, and seconds of each leg's fastest copy; None when it did not finish."""

    path: tuple[str, ...]
    size: int
    wrong_bytes: int | None
    to_device_s: float | None
    to_host_s: float | None
    error: str | None = None


def check_copies(
    copier: Copier, kind: str, first: int, others: Sequence[int], sizes: Sequence[int] = SIZES
) -> list[Copy]:
    """Check ``kind:first`` alone, then towards each of ``others``. Never raises for a device."""
    found = []
    for route in ([first], *([first, other] for other in others)):
        for seed, size in enumerate(sizes):
            found.append(_check(copier, kind, route, size, seed + 1))
    return found


def _check(copier: Copier, kind: str, route: Sequence[int], size: int, seed: int) -> Copy:
    path = tuple(f"{kind}:{place}" for place in route)
    try:
        wanted = copier.put(size, seed)
        carried, up, down = wanted, [], []
        for place in route:
            device, seconds = _fastest(lambda at=place, data=carried: copier.to_device(at, data))
            up.append(seconds)
            room = copier.room(size)
            carried, seconds = _fastest(
                lambda at=place, data=device, into=room: copier.to_host(at, data, into)
            )
            down.append(seconds)
        return Copy(path, size, copier.wrong_bytes(carried, wanted), max(up), max(down))
    except Exception as error:
        return Copy(path, size, None, None, None, one_line(error))


def _fastest(copy: Any, times: int = 3) -> tuple[Any, float]:
    """Result and seconds of the fastest of a few copies."""
    best, result = float("inf"), None
    for _ in range(times):
        started = time.perf_counter()
        result = copy()
        best = min(best, time.perf_counter() - started)
    return result, best


class TorchCopier:
    """Copier over torch devices of one kind."""

    def __init__(self, torch: Any, kind: str) -> None:
        self._torch, self._kind = torch, kind

    def put(self, size: int, seed: int) -> Any:
        """As in the port."""
        generator = self._torch.Generator().manual_seed(seed)
        made = self._torch.randint(0, 256, (size,), dtype=self._torch.uint8, generator=generator)
        host = self._host(size)
        host.copy_(made)
        return host

    def to_device(self, place: int, host: Any) -> Any:
        """As in the port."""
        device = self._torch.empty(host.numel(), dtype=host.dtype, device=self._place(place))
        device.copy_(host, non_blocking=True)
        synchronize(self._torch, self._place(place))
        return device

    def room(self, size: int) -> Any:
        """As in the port."""
        return self._host(size).fill_(0)

    def to_host(self, place: int, device: Any, room: Any) -> Any:
        """As in the port."""
        room.copy_(device, non_blocking=True)
        synchronize(self._torch, self._place(place))
        return room

    def wrong_bytes(self, host: Any, wanted: Any) -> int:
        """As in the port."""
        return int((host != wanted).sum().item())

    def _host(self, size: int) -> Any:
        pinned = self._kind != "cpu"
        return self._torch.empty(size, dtype=self._torch.uint8, pin_memory=pinned)

    def _place(self, index: int) -> Any:
        return self._torch.device(self._kind, index)


def _single_allocation(torch: Any, kind: str, index: int, room: int) -> bool | None:
    """Whether one allocation above 4 GiB works; None when there is no room to try."""
    if kind == "cpu" or room < _SINGLE + GiB:
        return None
    place = torch.device(kind, index)
    try:
        torch.empty(_SINGLE, dtype=torch.uint8, device=place).fill_(1)
        synchronize(torch, place)
    except Exception:
        return False
    return True


def main(arguments: Sequence[str]) -> int:
    """Check one device and print the result."""
    import torch

    kind, first = arguments[0], int(arguments[1])
    others = [int(other) for other in arguments[2:]]
    trial = trial_allocation(torch.device(kind, first), _TRIAL if kind != "cpu" else 64 * MiB)
    room = _room(torch, kind, first)
    copies = check_copies(TorchCopier(torch, kind), kind, first, others)
    answer = {
        "trial": asdict(trial),
        "single_allocation": _single_allocation(torch, kind, first, room),
        "copies": [asdict(copy) for copy in copies],
    }
    json.dump(answer, sys.stdout)
    return 0


def _room(torch: Any, kind: str, index: int) -> int:
    try:
        return int(getattr(torch, kind).mem_get_info(index)[0])
    except Exception:
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
