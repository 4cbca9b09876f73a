"""Tensors of torch into and out of a ring's memory: what all devices share, and the CPU.

``torch_stream_staging`` has devices with streams (xpu, cuda).
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from arcpp.link.frame import DTYPE_BYTES, TensorSpec
from arcpp.link.layout import Layout, layout_of
from arcpp.link.staging import Incoming, Piece, Staging

from .null_staging import NullStaging
from .null_tensor import PREFIX
from .torch_bytes import as_bytes
from .torch_checksum import checksum

_NAMES = {getattr(torch, name): name for name in DTYPE_BYTES}
_MOST_KEPT = 4096  # layouts and views that are kept for the next hop of the same shapes


def staging_for(device: str | torch.device) -> Staging:
    """The staging for tensors on ``device`` ("xpu:1", "cuda:0", "cpu", "null:0")."""
    if str(device).startswith(PREFIX):
        return NullStaging(str(device))
    place = torch.device(device)
    if place.type == "cpu":
        return CpuStaging(place)
    from .torch_stream_staging import StreamStaging

    return StreamStaging(place)


class TorchStaging(Staging):
    """What every device shares: naming tensors, and the ring's memory as a tensor."""

    def __init__(self, place: torch.device) -> None:
        self.place, self.device, self.pinning = place, str(place), "host"
        self._layouts: dict[Any, Layout] = {}
        self._map: mmap.mmap | None = None
        self.memory = torch.empty(0, dtype=torch.uint8)

    def attach(self, memory: mmap.mmap) -> None:
        """As in the port."""
        self._map = memory
        self.memory = torch.frombuffer(memory, dtype=torch.uint8)

    def detach(self) -> None:
        """As in the port."""
        self._map = None
        self.memory = torch.empty(0, dtype=torch.uint8)

    def layout(self, tensors: Mapping[str, Any]) -> Layout:
        """As in the port. Kept by names, dtypes and shapes, because hops repeat theirs."""
        try:
            key = tuple(
                [(name, t.dtype, t.shape, t.layout, t.is_meta) for name, t in tensors.items()]
            )
            return self._layouts[key]
        except (AttributeError, TypeError):
            return layout_of(tuple(_spec(name, tensor) for name, tensor in tensors.items()))
        except KeyError:
            known = layout_of(tuple(_spec(name, tensor) for name, tensor in tensors.items()))
        if len(self._layouts) >= _MOST_KEPT:
            self._layouts.clear()
        self._layouts[key] = known
        return known

    def checksums(self, tensors: Mapping[str, Any], deadline: float) -> list[int]:  # noqa: ARG002
        """As in the port; here the device is the CPU, which waits for nothing."""
        return [int(checksum(tensor)) & (2**64 - 1) for tensor in tensors.values()]


class CpuStaging(TorchStaging):
    """Tensors in host memory: one copy in, none out where the slot itself can be handed out."""

    def __init__(self, place: torch.device) -> None:
        super().__init__(place)
        self._watched: dict[int, Any] = {}

    def copy_out(self, tensors: Mapping[str, Any], piece: Piece) -> None:
        """As in the port; done when it returns."""
        layout, at, _, length, checksums_at = piece
        if length == layout.nbytes:
            for tensor, spec, offset in zip(
                tensors.values(), layout.specs, layout.offsets, strict=True
            ):
                if tensor.numel():
                    view(self.memory, at + offset, spec).copy_(tensor.detach())
        else:
            for flat, low, high, to in spans(tensors, piece):
                self.memory[at + to : at + to + high - low].copy_(flat[low:high])
        if checksums_at is not None:
            sums = torch.stack([checksum(tensor.detach()) for tensor in tensors.values()])
            room = self.memory[checksums_at : checksums_at + 8 * len(tensors)]
            room.view(torch.int64).copy_(sums)

    def begin(self, layout: Layout, deadline: float) -> Incoming:  # noqa: ARG002
        """As in the port."""
        return CpuIncoming(layout, self.memory)

    def in_place(
        self, layout: Layout, at: int, released: Callable[[], None]
    ) -> dict[str, Any] | None:
        """As in the port: the storage of the tensors keeps a view of the slot alive."""
        if not layout.nbytes or self._map is None:
            return None
        slot = memoryview(self._map)[at : at + layout.nbytes]
        watched = self._watched

        def gone(_view: object) -> None:
            watched.pop(at, None)
            released()

        watched[at] = weakref.ref(slot, gone)
        flat = torch.frombuffer(slot, dtype=torch.uint8)
        return split(flat, layout)


class CpuIncoming(Incoming):
    """A hop copied out of its slots, for when those are needed again."""

    def __init__(self, layout: Layout, memory: torch.Tensor) -> None:
        self._layout, self._memory = layout, memory
        self._flat = room_for(layout.nbytes, torch.device("cpu"))

    def take(self, at: int, start: int, length: int) -> None:
        """As in the port."""
        self._flat[start : start + length].copy_(self._memory[at : at + length])

    def mark(self) -> Callable[[], bool]:
        """As in the port: taken is read."""
        return lambda: True

    def finish(self) -> dict[str, Any]:
        """As in the port."""
        return split(self._flat, self._layout)


def room_for(nbytes: int, place: torch.device) -> torch.Tensor:
    """Memory for a whole hop. Raises MemoryError, RuntimeError (torch's own out of memory)."""
    return torch.empty(nbytes, dtype=torch.uint8, device=place)


def split(flat: torch.Tensor, layout: Layout) -> dict[str, torch.Tensor]:
    """The tensors of a hop, as views of its payload."""
    return {
        spec.name: view(flat, offset, spec)
        for spec, offset in zip(layout.specs, layout.offsets, strict=True)
    }


def view(flat: torch.Tensor, at: int, spec: TensorSpec) -> torch.Tensor:
    """A tensor within bytes."""
    return flat[at : at + spec.nbytes].view(getattr(torch, spec.dtype)).view(spec.shape)


def spans(tensors: Mapping[str, Any], piece: Piece) -> Iterator[tuple[torch.Tensor, int, int, int]]:
    """Which bytes of which tensor lie in a piece.

    Each: the tensor as contiguous bytes, the first and last of them, where they go from start.
    """
    layout, start, length = piece.layout, piece.start, piece.length
    for tensor, spec, offset in zip(tensors.values(), layout.specs, layout.offsets, strict=True):
        low, high = max(start, offset), min(start + length, offset + spec.nbytes)
        if low < high:
            yield as_bytes(tensor), low - offset, high - offset, low - start


def _spec(name: object, tensor: object) -> TensorSpec:
    """Description of what crosses. Raises ValueError for what cannot."""
    if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{name!r} with {type(tensor).__name__} is not a named tensor")
    dtype = _NAMES.get(tensor.dtype)
    if dtype is None:
        raise ValueError(f"{name!r} is {tensor.dtype}, which cannot cross")
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise ValueError(f"{name!r} is not a dense tensor with data")
    return TensorSpec(name, dtype, tuple(tensor.shape))


def quietly(release: Callable[[], object]) -> None:
    """For giving back: a runtime that is gone already has nothing left to give back."""
    with contextlib.suppress(Exception):
        release()
