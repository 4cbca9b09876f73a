"""Every kind of link that the suite runs against, for two processes or for two threads."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from arcpp.link import LinkEnd, RingOptions, Verification, open_ring_pair
from arcpp.link.meeting import Invitation, Meeting
from arcpp.link.ring import Geometry
from arcpp.link.ring_open import open_ring_receiver, open_ring_sender
from arcpp.link.staging import Staging
from arcpp.settings import Settings
from arcpp.testing import NullFault, NullStaging

NAME = "stage0->stage1"
#: Where the sender's and the receiver's tensors lie; one name for both, or two.
DEVICES = tuple((os.environ.get("LINK_TEST_DEVICE", "cpu") + ",").split(",")[:2])
DEVICES = (DEVICES[0], DEVICES[1] or DEVICES[0])
VERIFIED = RingOptions(verification=Verification.DEVICE)
#: Slots smaller than some hops, so that those cross in pieces.
SMALL = Geometry(4, 64 << 10)


@dataclass
class Opened:
    """One end, and what to do around everything that is done with it."""

    end: Any
    around: Callable[[], AbstractContextManager[Any]] = nullcontext


@dataclass(frozen=True)
class Kind:
    """A kind of link between two processes.

    devices: of sender and receiver. data: a fault of the virtual devices, if any.
    """

    name: str
    opener: Callable[[Kind, int, Path, int], Opened]
    devices: tuple[str, str] = DEVICES
    settings: Settings = field(default_factory=Settings)
    options: RingOptions = field(default_factory=RingOptions)
    staging: Callable[[str, str], tuple[Staging, Callable[[], Any]]] | None = None
    pinning: str = ""
    data: Any = None

    def open(self, rank: int, folder: Path, number: int) -> Opened:
        """The end of rank 0 or 1 of link ``number`` of two processes, which share ``folder``."""
        return self.opener(self, rank, folder, number)

    def __str__(self) -> str:
        return self.name

    def stagings(self) -> list[tuple[Staging, Callable[[], Any]]]:
        """Of sender and receiver, each with what is to be around its use."""
        if isinstance(self.data, NullFault):
            return [(NullStaging(device, [self.data]), nullcontext) for device in self.devices]
        make = self.staging or _usual
        return [make(device, self.pinning) for device in self.devices]

    def open_both(self) -> tuple[Opened, Opened]:
        """Both ends in this process, for two threads."""
        (sending, sends), (receiving, receives) = self.stagings()
        sender, receiver = open_ring_pair(NAME, sending, receiving, self.options)
        return Opened(sender, sends), Opened(receiver, receives)

    def with_options(self, **changes: Any) -> Kind:
        """The same with other options of the ring."""
        return replace(self, options=replace(self.options, **changes))


def _usual(device: str, pinning: str) -> tuple[Staging, Callable[[], Any]]:
    from arcpp.backends.torch_staging import staging_for

    return staging_for(device), nullcontext


def _virtual(device: str, pinning: str) -> tuple[Staging, Callable[[], Any]]:
    return NullStaging(device), nullcontext


def _streams(device: str, pinning: str) -> tuple[Staging, Callable[[], Any]]:
    from .fake_device import staging_on_fake

    return staging_on_fake(pinning)


def _over_group(kind: Kind, rank: int, folder: Path, number: int) -> Opened:
    """As a host opens it: over a torch.distributed group, through the plugin."""
    join_group(rank, folder)
    return open_over_group(kind, rank)


def join_group(rank: int, folder: Path) -> None:
    """Be rank 0 or 1 of a group of two processes; once in a process."""
    import torch.distributed as dist

    if not dist.is_initialized():
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        store = f"file://{folder / 'store'}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)


def open_over_group(kind: Kind, rank: int) -> Opened:
    """The end of rank 0 or 1 over a group of their own."""
    import torch.distributed as dist

    from arcpp.backends.links import arcpp_open_link

    group = dist.new_group(ranks=[0, 1], backend="gloo")
    device = kind.devices[rank]
    end = LinkEnd(NAME, rank == 0, 1 - rank, device, group, kind.options.boundary)
    return Opened(arcpp_open_link(end, kind.settings))


def _over_file(kind: Kind, rank: int, folder: Path, number: int) -> Opened:
    """Without torch.distributed: the invitation is carried in a file."""
    carried = folder / f"invitation-{number}"
    staging, around = kind.stagings()[rank]
    if rank == 1:
        meeting = Meeting(NAME)
        part = carried.with_suffix(".part")
        part.write_bytes(meeting.invitation.to_bytes())
        part.rename(carried)
        return Opened(open_ring_receiver(meeting, NAME, staging, kind.options, 20.0), around)
    deadline = time.monotonic() + 20
    while not carried.exists():
        assert time.monotonic() < deadline, "the receiving end made no invitation"
        time.sleep(0.001)
    invitation = Invitation.from_bytes(carried.read_bytes())
    return Opened(open_ring_sender(NAME, invitation, staging, kind.options, 20.0), around)


GLOO = Kind("gloo", _over_group, settings=Settings(link="gloo"))
#: The link arcpp opens when neither a plugin nor a setting says otherwise.
RING = Kind("ring", _over_group)
VERIFIED_RING = Kind("ring, verified", _over_group, settings=Settings(link_verification="device"))
#: From card to card where that is possible, else a ring that says why not.
P2P = Kind("p2p", _over_group, settings=Settings(link="p2p"))
PLAIN = Kind("ring that met over a file", _over_file)
#: Whatever LINK_TEST_DEVICE says: slots are handed out as tensors there.
HOST = Kind("ring in host memory", _over_file, ("cpu", "cpu"))
NULL = Kind("null", _over_file, ("null:0", "null:1"), options=VERIFIED, staging=_virtual)
SMALL_NULL = replace(NULL.with_options(geometry=SMALL), name="null, small slots")
PINNINGS = ("registered", "bounce", "pageable")
STREAMS = tuple(
    Kind(f"streams, {pinning}", _over_file, ("cpu", "cpu"), options=VERIFIED,
         staging=_streams, pinning=pinning)
    for pinning in PINNINGS
)  # fmt: skip
