"""Moving a boundary between adjacent stages: what a frame looks like, what a link promises.

``frame`` is the header every link writes, ``port`` the interface every link implements. The
links themselves live in ``arcpp.backends``, because they hold tensors of some runtime.
"""

from .frame import FRAME_HEADER_BYTES, BoundarySpec, Frame, TensorSpec, decode_frame, encode_frame
from .port import LinkEnd, LinkReceiver, LinkSender

__all__ = [
    "FRAME_HEADER_BYTES",
    "BoundarySpec",
    "Frame",
    "LinkEnd",
    "LinkReceiver",
    "LinkSender",
    "TensorSpec",
    "decode_frame",
    "encode_frame",
]
