"""Moving a boundary between adjacent stages: what a link promises, and the ring that keeps it.

``port`` is the interface every link implements and ``frame`` the header every link writes. The
ring (``ring``, ``ring_end``, ``ring_open``) moves bytes through shared memory (``segment``) between
ends that have met (``meeting``); what it needs of a runtime that has tensors is ``staging``, which
``arcpp.backends`` implements.
"""

from .frame import FRAME_HEADER_BYTES, BoundarySpec, Frame, TensorSpec, decode_frame, encode_frame
from .port import LinkCounters, LinkEnd, LinkReceiver, LinkSender
from .ring_end import Verification
from .ring_open import RingOptions, open_ring_pair
from .ring_receiver import RingReceiver
from .ring_sender import RingSender

__all__ = [
    "FRAME_HEADER_BYTES",
    "BoundarySpec",
    "Frame",
    "LinkCounters",
    "LinkEnd",
    "LinkReceiver",
    "LinkSender",
    "RingOptions",
    "RingReceiver",
    "RingSender",
    "TensorSpec",
    "Verification",
    "decode_frame",
    "encode_frame",
    "open_ring_pair",
]
