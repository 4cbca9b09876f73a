"""The two ends of a link, as every implementation offers them.

A link is directed and point to point: one sender, one receiver, adjacent stages, hops in order.
Both ends count hops from 0, so that a lost, repeated or reordered hop is noticed. An end belongs
to one thread at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .frame import BoundarySpec


@dataclass(frozen=True)
class LinkEnd:
    """One end of a link that is to be opened.

    name: of the link ("stage0->stage1"). sends: whether this is the sending end. peer: global
    rank of the process at the other end. device: where this stage's tensors lie ("xpu:1").
    group: a torch.distributed gloo group of all stages' processes, to meet the other end over
    or to send over; its collectives are not for a link, which only two of them open.
    boundary: the largest hop that is agreed on, None when it is not known; to size buffers, and
    to know a hop that cannot be meant.
    """

    name: str
    sends: bool
    peer: int
    device: str
    group: Any
    boundary: BoundarySpec | None = None


@dataclass
class LinkCounters:
    """What one end counted since it was opened.

    hops, bytes: that crossed. wait_seconds: spent waiting for the other end or for room.
    verify_failures: hops whose content was found to be wrong.
    """

    hops: int = 0
    bytes: int = 0
    wait_seconds: float = 0.0
    verify_failures: int = 0

    def crossed(self, nbytes: int) -> None:
        """Count one more hop of ``nbytes`` bytes."""
        self.hops += 1
        self.bytes += nbytes


class LinkSender(ABC):
    """Sending end. ``name`` appears in every error ("stage0->stage1").

    ``kind`` names the implementation; both ends of a link have the same. ``notes``: what whoever
    opened it should know, a line each; most have none.
    """

    name: str
    kind: str
    notes: tuple[str, ...] = ()

    @abstractmethod
    def send(self, tensors: Mapping[str, Any], *, timeout: float) -> None:
        """Hand over one boundary: named tensors on this stage's device.

        Blocks until the link holds its own copy and has room for it (backpressure instead of
        growth), not until the other end has taken it. The caller may overwrite the tensors
        when this returns. ``timeout`` is in seconds and bounds every wait inside.

        Raises PeerLost, DeadlineExceeded; ValueError for tensors that cannot cross.
        After any of these the link is unusable: close it.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back whatever the end holds. Never blocks long, never raises, may be repeated.

        Hops that were sent and not yet received may be lost.
        """


class LinkReceiver(ABC):
    """Receiving end. ``name``, ``kind`` and ``notes`` as the sending end's."""

    name: str
    kind: str
    notes: tuple[str, ...] = ()

    @abstractmethod
    def recv(self, *, timeout: float) -> dict[str, Any]:
        """Take the next boundary: named tensors on this stage's device, safe to use at once.

        Blocks until it is there, at most ``timeout`` seconds in all. The tensors belong to the
        caller.

        Raises PeerLost, DeadlineExceeded, LinkCorrupt. After any of these the link is unusable.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back whatever the end holds. Never blocks long, never raises, may be repeated."""
