"""What a ring needs of the runtime whose tensors cross it: copies into and out of its memory.

A ring knows slots, order, deadlines and the peer; a staging knows tensors, devices, streams and
pinned pages. One end has one staging, which serves one thread at a time. Offsets ("at") count
bytes from the start of the ring's mapped memory.
"""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .layout import Layout


class Piece(NamedTuple):
    """What one slot carries: the payload's bytes [start, start + length) of a hop.

    at: where they go. checksums_at: where to put each tensor's 64-bit checksum, taken on the
    device, before the piece counts as arrived; None for none.
    """

    layout: Layout
    at: int
    start: int
    length: int
    checksums_at: int | None


class Outgoing(ABC):
    """A copy from the device into a slot that was begun and may not have finished."""

    @abstractmethod
    def wait(self, deadline: float) -> int:
        """Bytes of the piece that have arrived, more than at the last call; its length at last.

        Raises TimeoutError at ``deadline`` (of time.monotonic()).
        """


class Incoming(ABC):
    """A hop on its way from slots to the device. Its memory is allocated when it is made."""

    @abstractmethod
    def take(self, at: int, start: int, length: int) -> None:
        """Begin to copy the payload's bytes [start, start + length), which lie at ``at``.

        Raises TimeoutError at the deadline.
        """

    def is_current(self) -> bool:
        """Whether a hop that was begun before it was announced can still be used."""
        return True

    @abstractmethod
    def mark(self) -> Callable[[], bool]:
        """A question to ask later: whether everything taken so far has been read."""

    @abstractmethod
    def finish(self) -> dict[str, Any]:
        """The tensors, safe to use on the device's current stream."""


class Staging(ABC):
    """Copies between one device and the ring's memory.

    device: name of the device ("xpu:1"). pinning: how the ring's pages are known to the device's
    runtime: "registered", "imported", "bounce" (through pinned memory), "pageable", or "host"
    where tensors lie in host memory themselves. prepares: whether begin() is worth calling for a
    hop that is only expected.
    """

    device: str
    pinning: str
    prepares = False

    @abstractmethod
    def attach(self, memory: mmap.mmap) -> None:
        """The ring's memory, once, before anything else. Pages are pinned here."""

    @abstractmethod
    def detach(self) -> None:
        """Let go of the memory and its pages. Never raises; may be repeated."""

    @abstractmethod
    def layout(self, tensors: Mapping[str, Any]) -> Layout:
        """The layout of a hop. Raises ValueError, naming the tensor, for what cannot cross."""

    @abstractmethod
    def copy_out(self, tensors: Mapping[str, Any], piece: Piece) -> Outgoing | None:
        """Begin to copy a piece of a hop into its slot.

        Returns None when it is all there already.
        """

    @abstractmethod
    def begin(self, layout: Layout, deadline: float) -> Incoming:
        """Make room for a hop on the device. Raises MemoryError when there is none.

        deadline: of everything that is waited for while the hop comes in.
        """

    @abstractmethod
    def checksums(self, tensors: Mapping[str, Any], deadline: float) -> list[int]:
        """64-bit checksum of each tensor, taken on the device, as copy_out takes it.

        Raises TimeoutError at ``deadline``.
        """

    def in_place(
        self,
        layout: Layout,  # noqa: ARG002 (for those that can)
        at: int,  # noqa: ARG002
        released: Callable[[], None],  # noqa: ARG002
    ) -> dict[str, Any] | None:
        """The payload at ``at`` itself as tensors; ``released`` is called when the last of them,
        and of their views, is gone. None where tensors do not lie in host memory."""
        return None
