"""The receiving end of a ring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from arcpp.errors import LinkCorrupt

from .frame import Frame, decode_frame, pack_header
from .layout import Layout, contradiction, layout_of
from .port import LinkReceiver
from .ring_end import Ring, RingEnd, Verification
from .staging import Incoming

_PREPARED_BYTES = 1 << 20  # of a hop for which room is made before it is announced


@dataclass(frozen=True)
class _Expected:
    """The hop that repeats the last one: its layout and header, and room where that is worth it."""

    layout: Layout
    header: bytes
    incoming: Incoming | None


class RingReceiver(RingEnd, LinkReceiver):
    """Receiving end. On host memory it hands out the slot itself where enough others are free."""

    def __init__(self, ring: Ring) -> None:
        super().__init__(ring, ring.data)
        self._held: set[int] = set()  # slots handed out as tensors
        self._settling: list[tuple[Callable[[], bool], int]] = []  # slots still read by a copy
        self._last: Layout | None = None

    def recv(self, *, timeout: float) -> dict[str, Any]:
        """As in the port."""
        return self._hop(self._receive, timeout)

    def _receive(self, deadline: float) -> dict[str, Any]:
        layout, tensors = self._next_hop(deadline)
        self._step += 1
        self.counters.crossed(layout.nbytes)
        self._last = layout
        return tensors

    def _next_hop(self, deadline: float) -> tuple[Layout, dict[str, Any]]:
        """The next hop's layout and tensors. What repeats the last one is known beforehand."""
        expected = self._expect(deadline)
        slot = self._next_slot(deadline)
        header = self._memory.headers[slot]
        if expected is not None and header[: len(expected.header)] == expected.header:
            self._pieces += 1
            layout, length, incoming = expected.layout, expected.layout.nbytes, expected.incoming
        else:
            frame = self._read(slot, None, 0)
            layout, length, incoming = layout_of(frame.tensors), _length(frame), None
        tensors = self._in_place(slot, length, layout, deadline)
        if tensors is None:
            if incoming is None or not incoming.is_current():
                incoming = self._staging.begin(layout, deadline)
            tensors = self._copied(slot, length, layout, incoming, deadline)
        return layout, tensors

    def _expect(self, deadline: float) -> _Expected | None:
        """What the next hop looks like if it repeats the last; its room while it is not there."""
        last, memory = self._last, self._memory
        if last is None or last.nbytes > memory.geometry.room:
            return None
        span = last.nbytes, 0, last.nbytes
        header = pack_header(self._step, len(last.specs), last.described, span)
        early = memory.published == self._pieces and self._staging.prepares
        small = early and last.nbytes <= _PREPARED_BYTES
        return _Expected(last, header, self._staging.begin(last, deadline) if small else None)

    def _in_place(
        self, slot: int, length: int, layout: Layout, deadline: float
    ) -> dict[str, Any] | None:
        """The slot itself as tensors, or None: then it is to be copied."""
        if length != layout.nbytes or 2 * (len(self._held) + 1) > self._memory.geometry.slots:
            return None
        at = self._memory.payload_at[slot]
        self._held.add(slot)  # before: it may be released from another thread at once
        tensors = self._staging.in_place(layout, at, lambda: self._give_back(slot))
        if tensors is None:
            self._held.discard(slot)
            return None
        self._arrive(slot, layout.nbytes, layout.nbytes, deadline)
        if self._verifies:
            self._verify(tensors, self._memory.checksums(slot, len(layout.specs)), deadline)
        return tensors

    def _copied(
        self, slot: int, length: int, layout: Layout, incoming: Incoming, deadline: float
    ) -> dict[str, Any]:
        start, sums = 0, []
        while True:
            self._take(incoming, slot, start, length, deadline)
            start += length
            if start >= layout.nbytes:
                break
            self._settle(incoming, slot)
            slot = self._next_slot(deadline)
            length = _length(self._read(slot, layout, start))
        verifies = self._verifies and length > 0  # without bytes there is nothing to wait for
        if verifies:
            sums = self._memory.checksums(slot, len(layout.specs))
        self._settle(incoming, slot)
        tensors = incoming.finish()
        if verifies:
            self._verify(tensors, sums, deadline)
        return tensors

    def _take(
        self, incoming: Incoming, slot: int, start: int, length: int, deadline: float
    ) -> None:
        """Copy one piece behind the sender's own copy of it."""
        at, taken = self._memory.payload_at[slot], 0
        while taken < length:
            arrived = self._arrive(slot, taken + 1, length, deadline)
            incoming.take(at + taken, start + taken, arrived - taken)
            taken = arrived

    def _next_slot(self, deadline: float) -> int:
        """Slot of the next piece, once it is announced."""
        memory, due = self._memory, self._pieces
        self._until(
            lambda: memory.published > due,
            deadline,
            "nothing was sent and the peer is silent",
            self._reclaim if self._settling else None,
        )
        if self._settling:
            self._reclaim()
        slot = memory.entry(due)
        if slot >= memory.geometry.slots:
            raise self._failed(LinkCorrupt, f"hop {self._step} is announced in slot {slot}")
        return slot

    def _read(self, slot: int, layout: Layout | None, start: int) -> Frame:
        """Header of the piece in ``slot``: the first of a hop, or of ``layout`` from start."""
        try:
            frame = decode_frame(self._memory.headers[slot], link=self.name, step=self._step)
        except LinkCorrupt as error:
            raise self._failed(LinkCorrupt, str(error).removeprefix(f"{self.name}: ")) from None
        self._check(frame, layout, start)
        self._pieces += 1
        return frame

    def _check(self, frame: Frame, layout: Layout | None, start: int) -> None:
        """Raises LinkCorrupt for a piece that is not the one that was due."""
        payload = layout_of(frame.tensors).nbytes
        length = _length(frame)
        another = layout is not None and layout.specs != frame.tensors
        empty = length == 0 and payload > 0
        if another or empty or frame.start != start or _payload(frame) != payload:
            raise self._failed(
                LinkCorrupt,
                f"hop {self._step} announces bytes {frame.start} to {frame.start + length} of "
                f"{_payload(frame)} where byte {start} of {payload} was due",
            )
        if length > self._memory.geometry.room:
            raise self._failed(LinkCorrupt, f"hop {self._step}: a piece of {length} bytes")
        if self._ring.boundary is not None and self.verification is not Verification.OFF:
            wrong = contradiction(frame.tensors, self._ring.boundary)
            if wrong:
                raise self._failed(LinkCorrupt, f"hop {self._step}: {wrong}")

    def _arrive(self, slot: int, wanted: int, length: int, deadline: float) -> int:
        """Bytes of the piece in ``slot`` that are there, from ``wanted`` to its length."""
        words, filled = self._memory.words, self._memory.filled[slot]
        self._until(
            lambda: words[filled] >= wanted,
            deadline,
            "the peer does not finish what it announced",
        )
        arrived = words[filled]
        if arrived > length:
            raise self._failed(LinkCorrupt, f"hop {self._step}: {arrived} bytes of {length} came")
        return arrived

    def _verify(self, tensors: dict[str, Any], sent: list[int], deadline: float) -> None:
        arrived = self._staging.checksums(tensors, deadline)
        for name, was, found in zip(tensors, sent, arrived, strict=True):
            if was != found:
                self.counters.verify_failures += 1
                raise self._failed(
                    LinkCorrupt,
                    f"hop {self._step}: {name} arrived on {self._staging.device} with other bytes "
                    f"than were sent (checksum {found:016x} for {was:016x})",
                )

    def _settle(self, incoming: Incoming, slot: int) -> None:
        """Give ``slot`` back as soon as nothing reads it any more."""
        self._settling.append((incoming.mark(), slot))
        self._reclaim()

    def _reclaim(self) -> bool:
        """Give back what has been read; whether something is still being read."""
        while self._settling and self._settling[0][0]():
            self._give_back(self._settling.pop(0)[1])
        return bool(self._settling)

    def _give_back(self, slot: int) -> None:
        if self._is_forked:  # this is a child's copy of the tensors; the slot is its parent's
            return
        self._held.discard(slot)
        self._memory.words[self._memory.busy[slot]] = 0
        self._ring.room.ring()

    def close(self) -> None:
        """As in the port. Tensors handed out stay valid: they hold the memory themselves."""
        super().close()
        self._settling.clear()


def _payload(frame: Frame) -> int:
    return frame.nbytes if frame.payload is None else frame.payload


def _length(frame: Frame) -> int:
    return _payload(frame) - frame.start if frame.length is None else frame.length
