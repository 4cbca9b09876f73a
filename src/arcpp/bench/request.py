"""What ``arcpp bench hop`` measures, from what was written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from arcpp.errors import BadInput
from arcpp.nearest import nearest
from arcpp.probe import FoundDevice
from arcpp.probe.choose import CPU, is_number
from arcpp.units import GiB, KiB, MiB, parse_size

#: Word on the command line -> what the measuring processes call it.
WAYS = {
    "raw": "raw copies",
    "ring": "ring",
    "verified": "ring, verified",
    "p2p": "p2p",
    "gloo": "gloo",
    "nccl": "nccl",
    "xccl": "xccl",
}
RAW, GLOO = WAYS["raw"], WAYS["gloo"]
#: A decode step of one request and of sixteen, a short and a long prefill, for a hidden size of
#: 5120 in 16 bits, with its residual.
SIZES = (20 * KiB, 320 * KiB, 5 * MiB, 40 * MiB)
LARGEST = GiB
MOST_ROUNDS = 1000


@dataclass(frozen=True)
class HopRequest:
    """devices: torch's names of both ends ("xpu:0", "cpu"). sizes: payload bytes, ascending.
    ways: as the measuring processes call them, empty for all that can be. rounds: how often each
    is measured; the median counts. seconds: of one measurement, about."""

    devices: tuple[str, str]
    sizes: tuple[int, ...] = SIZES
    ways: tuple[str, ...] = ()
    rounds: int = 5
    seconds: float = 0.2


def hop_request(
    devices: Sequence[str],
    sizes: Sequence[str],
    ways: Sequence[str],
    rounds: int,
    probe: Callable[[], Sequence[FoundDevice]],
) -> HopRequest:
    """What the words mean. probe: devices of this machine, asked only where it is needed.

    Without devices: the first two accelerators, both ends on the only one, or the CPU. One
    device: both ends on it. Raises BadInput.
    """
    if not 1 <= rounds <= MOST_ROUNDS:
        raise BadInput("--rounds", rounds, f"is not between 1 and {MOST_ROUNDS}")
    found = tuple(sorted({_size(size) for size in sizes})) or SIZES
    chosen = tuple(dict.fromkeys(_way(way) for way in ways))
    if chosen and RAW not in chosen:
        chosen = (RAW, *chosen)
    return HopRequest(_devices(devices, probe), found, chosen, rounds)


def _size(text: str) -> int:
    size = parse_size(text, "--size")
    if not 1 <= size <= LARGEST:
        raise BadInput("--size", text, "is not between 1 byte and 1 GiB")
    return size


def _way(word: str) -> str:
    known = WAYS.get(word.strip().lower())
    if known is None:
        right = f"is none of {', '.join(WAYS)}{nearest(word, WAYS)}"
        raise BadInput("--way", word, right)
    return known


def _devices(written: Sequence[str], probe: Callable[[], Sequence[FoundDevice]]) -> tuple[str, str]:
    names = [_name(text) for text in written]
    if len(names) > 2:
        raise BadInput("--device", ", ".join(written), "is more than the two ends of a hop")
    if not names or set(names) != {CPU}:
        here = _accelerators(probe())
        for name in names:
            if name not in {CPU, *here}:
                there = ", ".join([*here, CPU])
                raise BadInput("--device", name, f"is no device torch finds here: {there}")
        names = names or [name for name, integrated in here.items() if not integrated][:2] or [CPU]
    return names[0], names[-1]


def _name(text: str) -> str:
    name = text.strip().lower()
    if not is_number(name) or name.startswith("gpu."):
        raise BadInput("--device", text, "is not a device of torch, such as xpu:0, cuda:1 or cpu")
    return name


def _accelerators(found: Sequence[FoundDevice]) -> dict[str, bool]:
    """Torch's names of what it sees, in PCI order -> whether it is an integrated GPU."""
    return {
        device.numbers["torch"]: device.integrated for device in found if "torch" in device.numbers
    }
