"""A sending end whose hops are announced wrongly, to see that the receiving end notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from arcpp.link import Frame, RingSender, TensorSpec, decode_frame, encode_frame
from arcpp.link.frame import DTYPE_BYTES
from arcpp.link.ring import RingMemory


class Meddling(Enum):
    """What becomes of one hop: OUT_OF_ORDER changes places with the next, TWICE comes again.

    The others announce what is not there; CUT_SHORT: the first half of the payload, and no more.
    """

    OUT_OF_ORDER = "out of order"
    TWICE = "twice"
    LOST = "lost"
    ANOTHER_STEP = "another step"
    ANOTHER_SHAPE = "another shape"
    ANOTHER_DTYPE = "another dtype"
    CUT_SHORT = "cut short"
    NOISE = "noise"
    NO_SUCH_SLOT = "no such slot"


def meddle(sender: RingSender, meddling: Meddling, hop: int = 0) -> None:
    """Let hop number ``hop`` of ``sender``, in one piece, go wrong. Once for each sender."""
    sender._memory = _Meddled(sender._memory, meddling, hop)


class _Meddled(RingMemory):
    """The memory of a ring, with another hand on what is published."""

    def __init__(self, memory: RingMemory, meddling: Meddling, hop: int) -> None:
        self.__dict__.update(memory.__dict__)
        self._meddling, self._hop = meddling, hop
        self._count = 0  # published, which may be more or fewer than the sender believes
        self._held: int | None = None

    def publish(self, count: int, slot: int) -> None:
        """As in RingMemory."""
        if count != self._hop:
            self._next(slot)
            if self._held is not None:
                self._next(self._held)
                self._held = None
        elif self._meddling is Meddling.OUT_OF_ORDER:
            self._held = slot
        elif self._meddling is Meddling.TWICE:
            self._next(slot)
            self._next(slot)
        elif self._meddling is Meddling.NO_SUCH_SLOT:
            self._next(self.geometry.slots)
        elif self._meddling is not Meddling.LOST:
            self._announce(slot)
            self._next(slot)

    def _next(self, slot: int) -> None:
        super().publish(self._count, slot)
        self._count += 1

    def _announce(self, slot: int) -> None:
        if self._meddling is Meddling.NOISE:
            self.headers[slot][:] = b"\xa5" * len(self.headers[slot])
            return
        frame = decode_frame(self.headers[slot], link="", step=self._hop)
        self.headers[slot][:] = encode_frame(_CHANGES[self._meddling](frame))


def _other_shape(tensor: TensorSpec) -> TensorSpec:
    return replace(tensor, shape=(*tensor.shape[:-2], *reversed(tensor.shape[-2:])))


def _other_dtype(tensor: TensorSpec) -> TensorSpec:
    size = DTYPE_BYTES[tensor.dtype]
    alike = (name for name in DTYPE_BYTES if DTYPE_BYTES[name] == size and name != tensor.dtype)
    return replace(tensor, dtype=next(alike))


def _shorter(frame: Frame) -> Frame:
    payload = frame.nbytes if frame.payload is None else frame.payload
    return replace(frame, length=payload // 2)


_CHANGES: dict[Meddling, Callable[[Frame], Frame]] = {
    Meddling.ANOTHER_STEP: lambda frame: replace(frame, step=frame.step + 1),
    Meddling.ANOTHER_SHAPE: lambda frame: replace(
        frame, tensors=tuple(map(_other_shape, frame.tensors))
    ),
    Meddling.ANOTHER_DTYPE: lambda frame: replace(
        frame, tensors=tuple(map(_other_dtype, frame.tensors))
    ),
    Meddling.CUT_SHORT: _shorter,
}
