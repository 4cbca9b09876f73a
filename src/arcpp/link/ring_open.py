"""Opening a ring: between threads of one process, or between two processes.

The sending end makes the memory, because it knows the largest hop; the receiving end gets it over
the socket on which the two met.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, closing
from dataclasses import dataclass

from arcpp.errors import LinkError

from .frame import BoundarySpec
from .layout import layout_of
from .meeting import Invitation, Liveness, Meeting, connect, receive_descriptors, send_descriptors
from .ring import GEOMETRY_BYTES, Bell, Geometry, RingMemory, geometry_for
from .ring_end import Ring, Verification
from .ring_receiver import RingReceiver
from .ring_sender import RingSender
from .segment import MEMFD, NAMED, create_segment
from .staging import Staging

_SPIN_S = 100e-6  # longer than a hop of decode size takes, far shorter than a step
OPEN_S = 60.0  # for the other end to come; both have loaded their layers by then


@dataclass(frozen=True)
class RingOptions:
    """How to open a ring; both ends get the same.

    boundary: the largest hop, None when it is not known. geometry: None for what fits boundary.
    memory_kinds: of shared memory, in the order to try them. spin: seconds to look for a change
    before blocking.
    """

    boundary: BoundarySpec | None = None
    verification: Verification = Verification.DESCRIPTOR
    geometry: Geometry | None = None
    memory_kinds: tuple[str, ...] = (MEMFD, NAMED)
    spin: float = _SPIN_S

    @property
    def shape(self) -> Geometry:
        """The geometry, worked out where none is given."""
        largest = None if self.boundary is None else layout_of(self.boundary.tensors).nbytes
        return self.geometry or geometry_for(largest)


_USUAL = RingOptions()


def open_ring_pair(
    name: str, sending: Staging, receiving: Staging, options: RingOptions = _USUAL
) -> tuple[RingSender, RingReceiver]:
    """Both ends in this process, for two threads. Raises LinkError when there is no memory."""
    geometry = options.shape
    with ExitStack() as undo:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.callback(here.close)
        undo.callback(there.close)
        descriptor = create_segment(geometry.nbytes, link=name, kinds=options.memory_kinds)
        undo.callback(os.close, descriptor)
        ours, theirs = [], []
        for _ in range(2):
            ours.append(undo.enter_context(closing(Bell())))
            theirs.append(undo.enter_context(closing(Bell(os.dup(ours[-1].descriptor)))))
        rings = [
            _ring(
                name,
                end,
                descriptor,
                geometry,
                bells=bells,
                connection=connection,
                options=options,
                undo=undo,
                spin=0.0,
            )
            for end, bells, connection in ((sending, ours, here), (receiving, theirs, there))
        ]
        undo.pop_all()
        os.close(descriptor)
    return RingSender(rings[0]), RingReceiver(rings[1])


def open_ring_sender(
    name: str,
    invitation: Invitation,
    staging: Staging,
    options: RingOptions = _USUAL,
    timeout: float = OPEN_S,
) -> RingSender:
    """The sending end, for a receiving end that waits in another process.

    Raises PeerLost, DeadlineExceeded; LinkError when there is no memory, which the other end
    hears of at once.
    """
    geometry = options.shape
    with ExitStack() as undo:
        connection = undo.enter_context(connect(invitation, name, timeout))
        descriptor = create_segment(geometry.nbytes, link=name, kinds=options.memory_kinds)
        undo.callback(os.close, descriptor)
        bells = [undo.enter_context(closing(Bell())) for _ in range(2)]
        passed = [descriptor, *(bell.descriptor for bell in bells)]
        send_descriptors(connection, geometry.to_bytes(), passed, name)
        ring = _ring(
            name,
            staging,
            descriptor,
            geometry,
            bells=bells,
            connection=connection,
            options=options,
            undo=undo,
        )
        undo.pop_all()
        os.close(descriptor)
    return RingSender(ring)


def open_ring_receiver(
    meeting: Meeting,
    name: str,
    staging: Staging,
    options: RingOptions = _USUAL,
    timeout: float = OPEN_S,
) -> RingReceiver:
    """The receiving end; ``meeting``'s invitation was carried to the other. Raises as above."""
    with ExitStack() as undo:
        connection = undo.enter_context(meeting.accept(timeout))
        said, descriptors = receive_descriptors(connection, GEOMETRY_BYTES, 3, name, timeout)
        descriptor, data, room = descriptors
        undo.callback(os.close, descriptor)
        bells = [undo.enter_context(closing(Bell(each))) for each in (data, room)]
        try:
            geometry = Geometry.from_bytes(said)
        except ValueError as error:
            raise LinkError(f"{name}: the other end sent {error}", link=name) from None
        ring = _ring(
            name,
            staging,
            descriptor,
            geometry,
            bells=bells,
            connection=connection,
            options=options,
            undo=undo,
        )
        undo.pop_all()
        os.close(descriptor)
    return RingReceiver(ring)


def _ring(
    name: str,
    staging: Staging,
    descriptor: int,
    geometry: Geometry,
    *,
    bells: list[Bell],
    connection: socket.socket,
    options: RingOptions,
    undo: ExitStack,
    spin: float | None = None,
) -> Ring:
    """bells: the sender's, then the receiver's. undo: for when the rest of opening fails.

    Raises LinkError, also for a device that refuses the memory.
    """
    liveness = undo.enter_context(closing(Liveness(connection)))
    memory = RingMemory(descriptor, geometry, name)
    assert memory.map is not None
    undo.callback(staging.detach)
    try:
        staging.attach(memory.map)
    except Exception as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise LinkError(
            f"{name}: {staging.device} cannot use the shared memory: {why}", link=name
        ) from error
    return Ring(
        name,
        memory,
        bells[0],
        bells[1],
        liveness,
        staging,
        options.boundary,
        options.verification,
        options.spin if spin is None else spin,
    )
