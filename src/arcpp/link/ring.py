"""The shared memory of a ring: its geometry, its control words, and waiting for them to change.

Memory: control words, then slots. A slot is a header page, checksums, and room for one piece of a
hop. The sender takes a free slot, writes header and payload, and publishes the slot's number; the
receiver gives slots back in any order. Every word has one writer at a time and a cache line of
its own. Words are published by plain stores, which stay in order on x86-64 (total store order);
`is_supported` says so.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import platform
import select
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from .frame import FRAME_HEADER_BYTES
from .meeting import Liveness
from .segment import map_segment

_PAGE = 4096
_MOST_SLOTS = 64
_WORD, _LINE = 8, 8  # bytes of a word, words of a cache line
_PUBLISHED = 0
_ENTRIES = 2 * _LINE
_BUSY = _ENTRIES + _MOST_SLOTS
_FILLED = _BUSY + _MOST_SLOTS * _LINE
_CONTROL_BYTES = -(-(_FILLED + _MOST_SLOTS * _LINE) * _WORD // _PAGE) * _PAGE
_CHECKSUM_BYTES = _PAGE
_GEOMETRY = struct.Struct("<8sIIQ")  # magic, version, slots, room
_MAGIC, _VERSION = b"ARCPRING", 1

_LONGEST_POLL_S = 3600.0  # poll() counts milliseconds in 32 bits

_MiB = 1 << 20
DEFAULT_ROOM = 16 * _MiB
_LEAST_ROOM, _MOST_ROOM = 256 << 10, 64 * _MiB


def is_supported() -> bool:
    """Whether this machine keeps stores in order and has the calls that a ring needs."""
    return (
        platform.machine().lower() in {"x86_64", "amd64"}
        and sys.byteorder == "little"
        and hasattr(os, "eventfd")
        and hasattr(os, "posix_fallocate")
    )


@dataclass(frozen=True)
class Geometry:
    """slots: how many, 1 to 64. room: payload bytes of each; a larger hop crosses in pieces.

    Raises ValueError where room is not a number of whole pages, on which slots begin.
    """

    slots: int
    room: int

    def __post_init__(self) -> None:
        if not 0 < self.slots <= _MOST_SLOTS:
            raise ValueError(f"{self.slots} slots, not 1 to {_MOST_SLOTS}")
        if self.room <= 0 or self.room % _PAGE:
            raise ValueError(f"room of {self.room} bytes, not of whole pages of {_PAGE}")

    @property
    def slot_bytes(self) -> int:
        """One slot with its header and checksums."""
        return FRAME_HEADER_BYTES + _CHECKSUM_BYTES + self.room

    @property
    def nbytes(self) -> int:
        """The whole segment."""
        return _CONTROL_BYTES + self.slots * self.slot_bytes

    def to_bytes(self) -> bytes:
        """For the other end."""
        return _GEOMETRY.pack(_MAGIC, _VERSION, self.slots, self.room)

    @staticmethod
    def from_bytes(carried: bytes) -> Geometry:
        """What to_bytes() gave. Raises ValueError for anything else."""
        magic, version, slots, room = _GEOMETRY.unpack(carried)
        if magic != _MAGIC or version != _VERSION:
            raise ValueError("not the geometry of a ring of this version")
        return Geometry(slots, room)


GEOMETRY_BYTES = _GEOMETRY.size


def geometry_for(largest: int | None, slots: int | None = None) -> Geometry:
    """Geometry for hops of at most ``largest`` payload bytes (None: not known).

    Four slots, so that one may be held, one read and one written; eight of small ones.
    """
    wanted = DEFAULT_ROOM if largest is None else min(max(largest, _LEAST_ROOM), _MOST_ROOM)
    room = -(-wanted // _PAGE) * _PAGE
    return Geometry(slots or (8 if room <= 4 * _MiB else 4), room)


class RingMemory:
    """A segment as one end sees it."""

    def __init__(self, descriptor: int, geometry: Geometry, link: str) -> None:
        """Maps the segment. Raises LinkError."""
        self.geometry = geometry
        self.map: mmap.mmap | None = map_segment(descriptor, geometry.nbytes, link=link)
        self._view = memoryview(self.map)
        self.words = self._view[:_CONTROL_BYTES].cast("Q")
        slots = range(geometry.slots)
        starts = [_CONTROL_BYTES + slot * geometry.slot_bytes for slot in slots]
        self.headers = [self._view[at : at + FRAME_HEADER_BYTES] for at in starts]
        self.checksums_at = [at + FRAME_HEADER_BYTES for at in starts]
        self.payload_at = [at + _CHECKSUM_BYTES for at in self.checksums_at]
        self.busy = [_BUSY + slot * _LINE for slot in slots]
        self.filled = [_FILLED + slot * _LINE for slot in slots]

    @property
    def published(self) -> int:
        """Pieces published since the ring was made."""
        return self.words[_PUBLISHED]

    def publish(self, count: int, slot: int) -> None:
        """Make the piece in ``slot`` the next; ``count`` pieces were published before."""
        self.words[_ENTRIES + count % _MOST_SLOTS] = slot
        self.words[_PUBLISHED] = count + 1

    def entry(self, count: int) -> int:
        """Slot of piece ``count``, as the other end wrote it."""
        return self.words[_ENTRIES + count % _MOST_SLOTS]

    def checksums(self, slot: int, count: int) -> list[int]:
        """``count`` checksums beside ``slot``."""
        at = self.checksums_at[slot]
        return list(self._view[at : at + _WORD * count].cast("Q"))

    def forget(self) -> None:
        """Let go of the segment, which stays mapped for whatever else refers to it.

        A word that another thread writes from now on, to give a slot back, goes nowhere.
        """
        self.words = memoryview(bytearray(_CONTROL_BYTES)).cast("Q")
        self.headers, self.map, self._view = [], None, memoryview(b"")


class Gone(Exception):
    """The other end is gone; raised to the ends, which say which hop it was."""


class Stopped(Exception):
    """This end is being closed by another thread."""


class Bell:
    """Wakes the end that waits for it: an eventfd, of which both ends hold a descriptor."""

    def __init__(self, descriptor: int | None = None) -> None:
        """A new one, or the one that the other end made."""
        flags = os.EFD_NONBLOCK | os.EFD_CLOEXEC
        self.descriptor = os.eventfd(0, flags) if descriptor is None else descriptor
        # Entered again when the garbage collector, started by what is done under it, frees tensors
        # whose slot is given back.
        self._open, self._lock = True, threading.RLock()

    def ring(self) -> None:
        """Wake whoever waits. Never blocks; does nothing once closed."""
        with self._lock:  # or the number might be another file's by now
            if self._open:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_write(self.descriptor, 1)

    def hush(self) -> None:
        """Forget rings so far."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)

    def close(self) -> None:
        """May be repeated."""
        with self._lock:
            if self._open:
                self._open = False
                os.close(self.descriptor)


class Waiting:
    """Waits for a word to change: spins briefly, then blocks on a bell and on the peer's life."""

    def __init__(self, bell: Bell, liveness: Liveness, spin: float) -> None:
        """bell: rung by the other end. spin: seconds to look before blocking."""
        self._bell, self._spin, self._stopped = bell, spin, False
        self._poll = select.poll()
        for descriptor in (bell.descriptor, *liveness.descriptors):
            self._poll.register(descriptor, select.POLLIN)

    def until(
        self,
        ready: Callable[[], bool],
        deadline: float,
        settling: Callable[[], bool] | None = None,
    ) -> None:
        """Returns when ``ready()``. Raises TimeoutError at ``deadline``, Gone and Stopped.

        settling: asked each millisecond for as long as it says True; for work in the background
        that rings no bell.
        """
        if ready():
            return
        spin_until = min(time.monotonic() + self._spin, deadline)
        while time.monotonic() < spin_until:
            if ready():
                return
        while True:
            self._bell.hush()
            if ready():
                return
            if self._stopped:
                raise Stopped
            left = min(deadline - time.monotonic(), _LONGEST_POLL_S)
            if left <= 0:
                raise TimeoutError
            if settling is not None and settling():
                left = min(left, 0.001)
            events = self._poll.poll(math.ceil(left * 1000))
            if any(descriptor != self._bell.descriptor for descriptor, _ in events):
                if ready():
                    return
                raise Gone

    def stop(self) -> None:
        """Let whoever waits, in another thread, raise Stopped at once."""
        self._stopped = True
        self._bell.ring()
