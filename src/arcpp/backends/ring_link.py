"""A ring between two processes of a torch.distributed group, over which they meet.

Before it is used the copies it makes are checked at several sizes. What the check finds decides
what is verified of every hop, and whether cards may copy from each other's memory.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from arcpp.link import LinkEnd, RingOptions, RingReceiver, RingSender, Verification
from arcpp.link.meeting import INVITATION_BYTES, Invitation, Meeting
from arcpp.link.ring_open import open_ring_receiver, open_ring_sender
from arcpp.link.staging import Staging
from arcpp.settings import Settings

from .link_check import carry, first_wrong_copy
from .null_tensor import PREFIX
from .peer_staging import PeerRefused, peer_staging_for
from .torch_staging import staging_for

_CHECKED = RingOptions(None, Verification.DEVICE)


def open_ring_end(end: LinkEnd, settings: Settings) -> RingSender | RingReceiver:
    """The end that ``end`` describes, once the other end is there too.

    Raises PeerLost, DeadlineExceeded; LinkError when there is no memory for it.
    """
    options = RingOptions(end.boundary, Verification.DESCRIPTOR)
    notes: list[str] = []
    if settings.link == "p2p":
        opened = _open_peer(end, options, settings, notes)
        if opened is not None:
            return opened
    if settings.link_verification is not None:
        options = replace(options, verification=Verification(settings.link_verification))
    elif _has_copies(end):
        wrong = first_wrong_copy(end, _open(end, staging_for(end.device), _CHECKED))
        if wrong is not None:
            options = replace(options, verification=Verification.DEVICE)
            notes.append(
                f"{end.name}: a copy of {wrong} bytes arrived changed; from now on every hop is "
                "verified on both devices, and a changed one ends in an error, not in wrong text"
            )
    opened = _open(end, staging_for(end.device), options)
    opened.notes = tuple(notes)
    return opened


def _open_peer(
    end: LinkEnd, options: RingOptions, settings: Settings, notes: list[str]
) -> RingSender | RingReceiver | None:
    """A ring whose payload crosses from card to card, or None and a line that says why not."""
    try:
        wrong = first_wrong_copy(end, _open(end, peer_staging_for(end, _CHECKED), _CHECKED))
        if wrong is None:
            asked = settings.link_verification
            if asked is not None:
                options = replace(options, verification=Verification(asked))
            return _open(end, peer_staging_for(end, options), options)
        why = f"a copy of {wrong} bytes arrived changed"
    except PeerRefused as error:
        why = str(error)
    notes.append(f"{end.name}: not from card to card but through host memory: {why}")
    return None


def _has_copies(end: LinkEnd) -> bool:
    """Whether either end copies between a device and host memory: both ends are told."""
    here = 0 if end.device.startswith(("cpu", PREFIX)) else 1
    told = []
    for to_sender in (True, False):
        said = torch.tensor([here])
        carry(end, said, to_sender=to_sender)
        told.append(int(said.item()))
    return any(told)


def _open(end: LinkEnd, staging: Staging, options: RingOptions) -> RingSender | RingReceiver:
    if end.sends:
        said = torch.zeros(INVITATION_BYTES, dtype=torch.uint8)
        carry(end, said, to_sender=True)
        invitation = Invitation.from_bytes(said.numpy().tobytes())
        return open_ring_sender(end.name, invitation, staging, options)
    meeting = Meeting(end.name)
    try:
        said = torch.frombuffer(bytearray(meeting.invitation.to_bytes()), dtype=torch.uint8)
        carry(end, said, to_sender=True)
        return open_ring_receiver(meeting, end.name, staging, options)
    finally:
        meeting.close()
