"""A content check of the copies a link would make, before anything depends on them.

Runs over a ring of its own with checksums taken on both devices, in every size class a boundary
can have, odd sizes too: on one pair of cards copies of 16 KiB failed, on another peer-to-peer
copies arrived changed (compute-runtime#942).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from arcpp.errors import DeadlineExceeded, LinkCorrupt, LinkError, PeerLost
from arcpp.link import LinkEnd, LinkReceiver, LinkSender

SIZES = (4096, 4097, 16 << 10, (16 << 10) + 3, 20 << 10, 320 << 10, (1 << 20) + 1, (5 << 20) + 5)
_EXCHANGE_S = 60.0
_HOP_S = 20.0
_NONE = -1


def first_wrong_copy(
    end: LinkEnd, opened: LinkSender | LinkReceiver, sizes: tuple[int, ...] = SIZES
) -> int | None:
    """Bytes of the first copy that arrived changed over ``opened``, or None; both ends agree.

    opened: an end with device verification, closed when this returns. Raises LinkError for a copy
    that did not happen at all.
    """
    found = _NONE
    try:
        if isinstance(opened, LinkSender):
            _send(end, opened, sizes)
        else:
            found = _receive(opened, sizes)
    finally:
        opened.close()
    found = from_receiver(end, found)
    return None if found == _NONE else found


def _send(end: LinkEnd, sender: LinkSender, sizes: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    for size in sizes:
        made = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
        try:
            sender.send({"x": made.to(end.device)}, timeout=_HOP_S)
        except PeerLost:  # it closed after a copy that was wrong, and says so next
            return


def _receive(receiver: LinkReceiver, sizes: tuple[int, ...]) -> int:
    for size in sizes:
        try:
            receiver.recv(timeout=_HOP_S)
        except LinkCorrupt:
            return size
    return _NONE


def from_receiver(end: LinkEnd, number: int) -> int:
    """``number`` as the receiving end has it, at both ends. Raises PeerLost, DeadlineExceeded."""
    said = torch.tensor([number])
    carry(end, said, to_sender=True)
    return int(said.item())


def carry(end: LinkEnd, carried: torch.Tensor, *, to_sender: bool) -> None:
    """Bring ``carried`` from one end to the other over the group in which they met.

    Raises PeerLost, DeadlineExceeded.
    """
    move: Callable[..., dist.Work | None] = dist.irecv if end.sends == to_sender else dist.isend
    peer = {"src": end.peer} if move is dist.irecv else {"dst": end.peer}
    try:
        work = move(carried, group=end.group, **peer)
        assert work is not None
        work.wait(timedelta(seconds=math.ceil(_EXCHANGE_S)))
    except RuntimeError as error:
        late = "imed out" in str(error)
        kind: type[LinkError] = DeadlineExceeded if late else PeerLost
        what = "is silent" if late else "went away"
        raise kind(f"{end.name}: the other end {what} while opening", link=end.name) from error
