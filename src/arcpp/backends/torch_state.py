"""State tables of torch: one code for cpu, cuda and xpu."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from arcpp.link.frame import DTYPE_BYTES, TensorSpec
from arcpp.state import StateTables

from .torch_bytes import as_bytes

_NAMES = {getattr(torch, name): name for name in DTYPE_BYTES}


class TorchTables(StateTables):
    """Tables over arrays that exist, each [places, ...] on one device, with any strides.

    ``allocate`` makes them. zero() and copy() are enqueued on the device's current stream and
    return at once (on the CPU they are done): they come after every step enqueued on that stream
    before and before every step after; who uses several streams orders them. They fill and copy
    views of the arrays, which needs no memory of the device. are_zero(), read() and write() wait
    for that stream.

    Raises ValueError for arrays that cannot be tables together.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors = dict(tensors)
        if not self.tensors:
            raise ValueError("tables need one array at least")
        shapes = [tuple(tensor.shape) for tensor in self.tensors.values()]
        devices = {str(tensor.device) for tensor in self.tensors.values()}
        if () in shapes or len({shape[0] for shape in shapes}) > 1 or len(devices) > 1:
            raise ValueError(f"arrays {shapes} on {devices} do not have the same places")
        self.places, self.device = shapes[0][0], devices.pop()
        self.arrays = tuple(_spec(name, tensor) for name, tensor in self.tensors.items())

    @staticmethod
    def allocate(
        arrays: Sequence[TensorSpec], places: int, device: str | torch.device
    ) -> TorchTables:
        """Tables for ``places`` places, an allocation for each array. Raises what torch raises
        when there is no memory."""
        return TorchTables(
            {
                array.name: torch.empty(
                    (places, *array.shape), dtype=getattr(torch, array.dtype), device=device
                )
                for array in arrays
            }
        )

    def zero(self, places: Sequence[int]) -> None:
        """As in the port; one fill for each array and run of adjacent places."""
        self.check(places)
        for first, count in runs(places):
            for tensor in self.tensors.values():
                tensor.narrow(0, first, count).zero_()

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """As in the port."""
        self.check([place for pair in pairs for place in pair])
        for source, target in pairs:
            for tensor in self.tensors.values():
                tensor.select(0, target).copy_(tensor.select(0, source))

    def are_zero(self, places: Sequence[int]) -> bool:
        """As in the port."""
        self.check(places)
        return not any(bool(part.any()) for place in places for part in self._bytes(place))

    def read(self, place: int) -> bytes:
        """As in the port."""
        self.check([place])
        return b"".join(bytes(part.cpu().numpy().tobytes()) for part in self._bytes(place))

    def write(self, place: int, raw: bytes) -> None:
        """As in the port."""
        self.check([place])
        for tensor, part in zip(self.tensors.values(), self.split(raw), strict=True):
            flat = torch.frombuffer(bytearray(part), dtype=torch.uint8)
            row = tensor.select(0, place)
            row.copy_(flat.view(tensor.dtype).view(row.shape))

    def _bytes(self, place: int) -> Iterator[torch.Tensor]:
        return (as_bytes(tensor.select(0, place)) for tensor in self.tensors.values())


def runs(places: Sequence[int]) -> list[tuple[int, int]]:
    """(first, count) of each stretch of adjacent places, whatever their order."""
    found: list[tuple[int, int]] = []
    for place in sorted(set(places)):
        if found and sum(found[-1]) == place:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((place, 1))
    return found


def _spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    dtype = _NAMES.get(tensor.dtype)
    if dtype is None or tensor.layout is not torch.strided or tensor.is_meta:
        raise ValueError(f"{name!r} ({tensor.dtype}) is not a dense array of numbers with data")
    spec = TensorSpec(name, dtype, tuple(tensor.shape[1:]))
    if not spec.nbytes:
        raise ValueError(f"{name!r} has no bytes in a place")
    return spec
