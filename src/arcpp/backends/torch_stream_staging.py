"""Tensors on a device with streams (xpu, cuda) into and out of a ring's memory.

Small hops are copied on the current stream: it is about to need, or has just made, what crosses.
Large ones come in on a stream of their own, so that what the device still computes goes on
meanwhile; the current stream then waits for exactly that copy. Copies out are awaited before
`send` returns, so a stream of their own would gain nothing. The host never waits inside the
runtime, where no deadline reaches, but asks events.
"""

from __future__ import annotations

import mmap
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from arcpp.link.layout import Layout
from arcpp.link.staging import Incoming, Outgoing, Piece

from .pinning import BOUNCE, Pinning, pin
from .torch_bounce import BouncedIncoming, BouncedOutgoing, Bounces, pinned
from .torch_checksum import checksum
from .torch_events import CurrentStream, Events, finish
from .torch_staging import TorchStaging, quietly, room_for, spans, split, view

CHUNK = 4 << 20  # bytes of one copy of a large hop: the full rate, and few pauses between
_FIRST_CHUNK = 1 << 20  # the receiver can begin all the sooner
_AHEAD = 3  # chunks begun before the first is waited for
# CUDA moves small copies to the device with its compute engine, for which two processes on one
# card wait a time slice (135 us at 20 KiB, 9 us at 320 KiB, H200): such copies are made longer.
_LEAST = {"cuda": 32 << 10}
_MOST_KEPT = 4096
_CLOSE_S = 1.0


class StreamStaging(TorchStaging):
    """Copies between one device and the ring's memory.

    pinner: as pinning.pin, which is the default. chunk: bytes of one copy of a large hop. runtime:
    torch.xpu or torch.cuda, or what stands for it where there is no device.
    """

    prepares = True

    def __init__(
        self,
        place: torch.device,
        pinner: Callable[[int, int, torch.device], Pinning] = pin,
        chunk: int = CHUNK,
        runtime: Any = None,
    ) -> None:
        runtime = runtime or torch.get_device_module(place)
        if place.index is None:
            place = torch.device(place.type, runtime.current_device())
        super().__init__(place)
        self.runtime, self.chunk = runtime, chunk
        self._pinner, self._pinning = pinner, Pinning("pageable", lambda: None)
        self.payload = self.memory
        self.copies, self.least = runtime.Stream(device=place), _LEAST.get(place.type, 0)
        self.events, self.bounces = Events(runtime), Bounces(chunk)
        self.stream = CurrentStream(runtime, place)
        self._views: dict[Any, list[torch.Tensor]] = {}
        self._sums: torch.Tensor | None = None
        self._last: Any = None  # event after the last copy that used the ring's memory
        self.why_not_pinned: str | None = None

    def attach(self, memory: mmap.mmap) -> None:
        """As in the port."""
        super().attach(memory)
        self.payload = self.memory
        self._pinning = self._pinner(self.memory.data_ptr(), self.memory.numel(), self.place)
        self.pinning, self.why_not_pinned = self._pinning.kind, self._pinning.why

    def detach(self) -> None:
        """As in the port. Pages that a copy still uses stay as they are."""
        if self._map is None:
            return
        try:
            if self._last is not None:
                finish(self._last, time.monotonic() + _CLOSE_S)
        except Exception:
            _LEFT.append(self.memory)
        else:
            quietly(self._pinning.release)
        self._views.clear()
        super().detach()
        self.payload = self.memory

    def mark(self, stream: Any = None) -> Any:
        """An event after the copies so far on ``stream`` (None: the current one)."""
        self._last = self.events.mark(self.stream() if stream is None else stream)
        return self._last

    def copy_out(self, tensors: Mapping[str, Any], piece: Piece) -> Outgoing | None:
        """As in the port."""
        layout, at, _, length, checksums_at = piece
        if not length and checksums_at is None:
            return None
        if self.pinning == BOUNCE:
            return BouncedOutgoing(self, tensors, piece)
        if length <= self.chunk and length == layout.nbytes:
            for target, tensor in zip(self._room(layout, at), tensors.values(), strict=True):
                target.copy_(tensor.detach(), non_blocking=True)
            if checksums_at is not None:
                self.sums_to(checksums_at, tensors)
            return SmallOutgoing(self, length)
        return LargeOutgoing(self, tensors, piece)

    def sums_to(self, at: int, tensors: Mapping[str, Any]) -> None:
        """Begin to put each tensor's checksum, taken on the device, at ``at``."""
        room = self.memory[at : at + 8 * len(tensors)].view(torch.int64)
        room.copy_(self.sums_of(tensors), non_blocking=True)

    def _room(self, layout: Layout, at: int) -> list[torch.Tensor]:
        """Views of a slot for the tensors of a hop; kept, because hops repeat their shapes."""
        key = (at, layout.described)
        return self._views.get(key) or self._keep(
            key,
            [
                view(self.payload, at + offset, spec)
                for spec, offset in zip(layout.specs, layout.offsets, strict=True)
            ],
        )

    def bytes_at(self, at: int, length: int) -> torch.Tensor:
        """A view of the ring's memory; kept too."""
        views = self._views.get((at, length))
        return (views or self._keep((at, length), [self.payload[at : at + length]]))[0]

    def _keep(self, key: Any, views: list[torch.Tensor]) -> list[torch.Tensor]:
        if len(self._views) >= _MOST_KEPT:
            self._views.clear()
        self._views[key] = views
        return views

    def sums_of(self, tensors: Mapping[str, Any]) -> torch.Tensor:
        """Each tensor's checksum, on the device."""
        return torch.stack([checksum(tensor.detach()) for tensor in tensors.values()])

    def checksums(self, tensors: Mapping[str, Any], deadline: float) -> list[int]:
        """As in the port."""
        if not tensors:
            return []
        if self._sums is None:
            self._sums = pinned(64, torch.int64)
        sums = self._sums[: len(tensors)]
        sums.copy_(self.sums_of(tensors), non_blocking=True)
        event = self.events.mark(self.stream())
        finish(event, deadline)
        self.events.reuse(event)
        return [each & (2**64 - 1) for each in sums.tolist()]

    def begin(self, layout: Layout, deadline: float) -> Incoming:
        """As in the port."""
        if self.pinning == BOUNCE:
            return BouncedIncoming(self, layout, deadline)
        return StreamIncoming(self, layout)


class SmallOutgoing(Outgoing):
    """A whole hop in one go, the last thing on the current stream: no event is needed."""

    def __init__(self, staging: StreamStaging, length: int) -> None:
        self._stream, self._length = staging.stream(), length
        staging._last = self._stream

    def wait(self, deadline: float) -> int:
        """As in the port."""
        finish(self._stream, deadline)
        return self._length


class LargeOutgoing(Outgoing):
    """A piece in chunks, a few of them ahead of the one that is waited for: the device is never
    idle, and the receiver hears of the first chunk while the last is not even begun."""

    def __init__(self, staging: StreamStaging, tensors: Mapping[str, Any], piece: Piece) -> None:
        self._staging, self._tensors = staging, tensors
        self._at, self._length, self._checksums_at = piece.at, piece.length, piece.checksums_at
        self._chunks = chunks(spans(tensors, piece), staging.chunk)
        self._begun: deque[tuple[Any, int]] = deque()
        self._all_begun = False
        for _ in range(_AHEAD):
            self._begin()

    def _begin(self) -> None:
        """Begin the next chunk, or what comes after the last: the checksums."""
        chunk = next(self._chunks, None)
        if chunk is not None:
            source, to = chunk
            room = self._staging.payload[self._at + to : self._at + to + source.numel()]
            room.copy_(source, non_blocking=True)
            self._begun.append((self._staging.mark(), min(to + source.numel(), self._length - 1)))
        elif not self._all_begun:
            self._all_begun = True
            if self._checksums_at is not None:
                self._staging.sums_to(self._checksums_at, self._tensors)
            self._begun.append((self._staging.mark(), self._length))

    def wait(self, deadline: float) -> int:
        """As in the port."""
        event, arrived = self._begun.popleft()
        finish(event, deadline)
        self._staging.events.reuse(event)
        self._begin()
        return arrived


def chunks(
    found: Iterable[tuple[torch.Tensor, int, int, int]], size: int
) -> Iterator[tuple[torch.Tensor, int]]:
    """Bytes to copy, ``size`` at a time, and where each chunk goes; found: as spans() gives it."""
    first_size = min(size, _FIRST_CHUNK)
    for flat, low, high, to in found:
        at = low
        while at < high:
            end = min(at + first_size, high)
            yield flat[at:end], to + at - low
            at, first_size = end, size


class StreamIncoming(Incoming):
    """Copies in."""

    def __init__(self, staging: StreamStaging, layout: Layout) -> None:
        self._staging, self._large = staging, layout.nbytes > staging.chunk
        self._nbytes, self._current = layout.nbytes, staging.stream()
        self._stream = staging.copies if self._large else self._current
        if self._large:  # allocated there too: memory that the current stream still reads is not
            with staging.runtime.stream(self._stream):
                self._flat = room_for(layout.nbytes, staging.place)
        else:
            self._flat = room_for(max(layout.nbytes, staging.least), staging.place)
        self._tensors = split(self._flat, layout)

    def is_current(self) -> bool:
        """As in the port: memory belongs to the stream on which it was allocated."""
        return bool(self._staging.stream() == self._current)

    def take(self, at: int, start: int, length: int) -> None:
        """As in the port."""
        if self._large:
            target = self._flat[start : start + length]
            with self._staging.runtime.stream(self._stream):
                target.copy_(self._staging.payload[at : at + length], non_blocking=True)
        elif length == self._nbytes:
            source = self._staging.bytes_at(at, self._flat.numel())
            target = self._flat[: source.numel()]  # the ring's memory may end before it does
            target.copy_(source, non_blocking=True)
        else:
            target = self._flat[start : start + length]
            target.copy_(self._staging.bytes_at(at, length), non_blocking=True)

    def mark(self) -> Callable[[], bool]:
        """As in the port."""
        events, event = self._staging.events, self._staging.mark(self._stream)

        def read() -> bool:
            if not event.query():
                return False
            events.reuse(event)
            return True

        return read

    def finish(self) -> dict[str, Any]:
        """As in the port."""
        if self._large:
            self._current.wait_stream(self._stream)
            self._flat.record_stream(self._current)
        return self._tensors


_LEFT: list[torch.Tensor] = []  # memory that a copy which never ended may still use
