"""Copies through a pinned buffer, for devices to which a ring's own pages cannot be made known.

Each end has two buffers of one chunk: the device fills or reads one while the host moves the other
to or from the slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from arcpp.link.layout import Layout
from arcpp.link.staging import Incoming, Outgoing, Piece

from .torch_events import finish
from .torch_staging import room_for, spans, split

if TYPE_CHECKING:
    from .torch_stream_staging import StreamStaging


class Bounces:
    """Two pinned buffers of one chunk, made when first used."""

    def __init__(self, chunk: int) -> None:
        self._chunk, self._turn = chunk, 0
        self._buffers: list[torch.Tensor] = []
        self._read: list[Any] = [None, None]  # event after the last copy out of each

    def __getitem__(self, number: int) -> torch.Tensor:
        if not self._buffers:
            self._buffers = [pinned(self._chunk, torch.uint8) for _ in range(2)]
        return self._buffers[number % 2]

    def free(self, staging: StreamStaging, deadline: float) -> torch.Tensor:
        """The next buffer, once the device has read it. Raises TimeoutError."""
        event = self._read[self._turn]
        if event is not None:
            finish(event, deadline)
            staging.events.reuse(event)
            self._read[self._turn] = None
        return self[self._turn]

    def used(self, event: Any) -> None:
        """The device has read the buffer that free() gave when ``event`` has happened."""
        self._read[self._turn] = event
        self._turn = 1 - self._turn


def pinned(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Host memory, pinned where the machine can."""
    try:
        return torch.empty(count, dtype=dtype, pin_memory=True)
    except RuntimeError:
        return torch.empty(count, dtype=dtype)


class BouncedOutgoing(Outgoing):
    """Device -> buffer -> slot."""

    def __init__(self, staging: StreamStaging, tensors: Mapping[str, Any], piece: Piece) -> None:
        self._staging, at, checksums_at = staging, piece.at, piece.checksums_at
        self._length = piece.length
        self._chunks = [
            (flat[first : min(first + staging.chunk, high)], at + to + first - low)
            for flat, low, high, to in spans(tensors, piece)
            for first in range(low, high, staging.chunk)
        ]
        if checksums_at is not None:
            sums = staging.sums_of(tensors).view(torch.uint8)
            self._chunks.append((sums, checksums_at))
        self._at, self._next = at, 0
        self._begun: list[Any] = []
        for number in range(min(2, len(self._chunks))):
            self._begin(number)

    def _begin(self, number: int) -> None:
        source, _ = self._chunks[number]
        room = self._staging.bounces[number][: source.numel()]
        room.copy_(source, non_blocking=True)
        self._begun.append(self._staging.mark())

    def wait(self, deadline: float) -> int:
        """As in the port."""
        if self._next == len(self._chunks):
            return self._length
        number, (source, into) = self._next, self._chunks[self._next]
        finish(self._begun[number], deadline)
        self._staging.events.reuse(self._begun[number])
        size = source.numel()
        self._staging.memory[into : into + size].copy_(self._staging.bounces[number][:size])
        self._next += 1
        if number + 2 < len(self._chunks):
            self._begin(number + 2)
        if self._next == len(self._chunks):
            return self._length
        return min(into + size - self._at, self._length - 1) if into >= self._at else 0


class BouncedIncoming(Incoming):
    """Slot -> buffer -> device."""

    def __init__(self, staging: StreamStaging, layout: Layout, deadline: float) -> None:
        self._staging, self._deadline = staging, deadline
        self._flat = room_for(layout.nbytes, staging.place)
        self._tensors = split(self._flat, layout)

    def take(self, at: int, start: int, length: int) -> None:
        """As in the port."""
        staging = self._staging
        for first in range(0, length, staging.chunk):
            size = min(staging.chunk, length - first)
            room = staging.bounces.free(staging, self._deadline)
            room[:size].copy_(staging.memory[at + first : at + first + size])
            target = self._flat[start + first : start + first + size]
            target.copy_(room[:size], non_blocking=True)
            staging.bounces.used(staging.mark())

    def mark(self) -> Callable[[], bool]:
        """As in the port: what was taken lies in the buffers."""
        return lambda: True

    def finish(self) -> dict[str, Any]:
        """As in the port: all of it is on the current stream."""
        return self._tensors
