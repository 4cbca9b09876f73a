"""The sending end of a ring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arcpp.errors import PeerLost

from .frame import pack_header
from .layout import Layout
from .port import LinkSender
from .ring_end import Ring, RingEnd
from .staging import Outgoing, Piece


class RingSender(RingEnd, LinkSender):
    """Sending end."""

    def __init__(self, ring: Ring) -> None:
        super().__init__(ring, ring.room)
        self._next_slot = 0

    def send(self, tensors: Mapping[str, Any], *, timeout: float) -> None:
        """As in the port."""
        layout = self._staging.layout(tensors)
        self._hop(lambda deadline: self._send(tensors, layout, deadline), timeout)

    def _send(self, tensors: Mapping[str, Any], layout: Layout, deadline: float) -> None:
        room = self._memory.geometry.room
        start = 0
        while True:
            length = min(layout.nbytes - start, room)
            self._send_piece(tensors, layout, start, length, deadline)
            start += length
            if start >= layout.nbytes:
                break
        if not self._ring.liveness.is_alive():  # last, so that no hop waits for the question
            raise self._failed(PeerLost, f"the peer (process {self._ring.liveness.peer}) is gone")
        self._step += 1
        self.counters.crossed(layout.nbytes)

    def _send_piece(
        self, tensors: Mapping[str, Any], layout: Layout, start: int, length: int, deadline: float
    ) -> None:
        memory = self._memory
        slot = self._take_slot(deadline)
        filled = memory.filled[slot]
        memory.words[filled] = 0
        verified = self._verifies and length and start + length == layout.nbytes
        sums_at = memory.checksums_at[slot] if verified else None
        piece = Piece(layout, memory.payload_at[slot], start, length, sums_at)
        copy = self._staging.copy_out(tensors, piece)
        span = layout.nbytes, start, length
        header = pack_header(self._step, len(layout.specs), layout.described, span)
        memory.headers[slot][: len(header)] = header
        if copy is None:
            memory.words[filled] = length
        memory.publish(self._pieces, slot)  # before the copy is done: the receiver prepares
        self._pieces += 1
        self._ring.data.ring()
        if copy is not None:
            self._follow(copy, filled, length, deadline)

    def _follow(self, copy: Outgoing, filled: int, length: int, deadline: float) -> None:
        """Tell the receiver how far the copy has come, so that its own can follow closely."""
        arrived = -1
        while arrived < length:
            arrived = copy.wait(deadline)
            self._memory.words[filled] = arrived
            self._ring.data.ring()

    def _take_slot(self, deadline: float) -> int:
        slot = self._free_slot()
        if slot is None:
            self._until(
                lambda: self._free_slot() is not None,
                deadline,
                "the peer takes none of the hops sent to it",
            )
            slot = self._free_slot()
            assert slot is not None
        self._memory.words[self._memory.busy[slot]] = 1
        self._next_slot = (slot + 1) % self._memory.geometry.slots
        return slot

    def _free_slot(self) -> int | None:
        words, busy, slots = self._memory.words, self._memory.busy, self._memory.geometry.slots
        for turn in range(slots):
            slot = (self._next_slot + turn) % slots
            if not words[busy[slot]]:
                return slot
        return None
