"""The null backend's staging: virtual devices whose memory is bytes, without torch.

A real staging behind the same interface as the others, chosen by the device's name only. Its
copies are as asynchronous as a device's: a copy out goes on in chunks while it is waited for, and
a copy in reads its slot later than it was begun, so that a ring that gives a slot back too early
delivers wrong bytes here too.
"""

from __future__ import annotations

import hashlib
import mmap
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from arcpp.link.frame import DTYPE_BYTES, TensorSpec
from arcpp.link.layout import Layout, layout_of
from arcpp.link.staging import Incoming, Outgoing, Piece, Staging

from .null_faults import FaultyDevice, NullFault
from .null_tensor import PREFIX, NullTensor

CHUNK = 64 << 10
_CHECKSUM_BYTES = 8


class NullStaging(Staging):
    """Copies between a virtual device and the ring's memory.

    device: "null:0". faults: which copies go wrong. chunk: bytes of one copy.
    """

    pinning = "pageable"
    prepares = True

    def __init__(
        self, device: str = "null:0", faults: Sequence[NullFault] = (), chunk: int = CHUNK
    ) -> None:
        if not device.startswith(PREFIX):
            raise ValueError(f"{device!r} is no device of the null backend, such as null:0")
        self.device, self.chunk = device, chunk
        self.faulty = FaultyDevice(device, faults)
        self.memory = memoryview(b"")
        self.hops_out = self.hops_in = -1  # the hop that is being copied

    def attach(self, memory: mmap.mmap) -> None:
        """As in the port."""
        self.memory = memoryview(memory)

    def detach(self) -> None:
        """As in the port."""
        self.memory = memoryview(b"")

    def layout(self, tensors: Mapping[str, Any]) -> Layout:
        """As in the port."""
        return layout_of(tuple(_spec(name, tensor) for name, tensor in tensors.items()))

    def copy_out(self, tensors: Mapping[str, Any], piece: Piece) -> Outgoing:
        """As in the port."""
        self.hops_out += piece.start == 0
        return NullOutgoing(self, tensors, piece)

    def begin(self, layout: Layout, deadline: float) -> Incoming:
        """As in the port."""
        return NullIncoming(self, layout, deadline)

    def checksums(self, tensors: Mapping[str, Any], deadline: float) -> list[int]:  # noqa: ARG002
        """As in the port."""
        return [int.from_bytes(_checksum(tensor), "little") for tensor in tensors.values()]


class NullOutgoing(Outgoing):
    """A copy out, one chunk each time it is waited for."""

    def __init__(self, staging: NullStaging, tensors: Mapping[str, Any], piece: Piece) -> None:
        self._staging, self._piece, self._tensors = staging, piece, tensors
        self._hop, self._done = staging.hops_out, 0

    def wait(self, deadline: float) -> int:
        """As in the port."""
        layout, at, start, length, checksums_at = self._piece
        self._staging.faulty.use(self._hop, out=True, deadline=deadline)
        low = start + self._done
        high = min(low + self._staging.chunk, start + length)
        for tensor, spec, offset in zip(
            self._tensors.values(), layout.specs, layout.offsets, strict=True
        ):
            first, last = max(low, offset), min(high, offset + spec.nbytes)
            if first < last:
                to = at + first - start
                source = memoryview(tensor.data)[first - offset : last - offset]
                self._staging.memory[to : to + last - first] = source
        self._done = high - start
        if self._done == length:
            self._corrupt(layout, at, start, length)
            if checksums_at is not None:
                sums = b"".join(_checksum(tensor) for tensor in self._tensors.values())
                self._staging.memory[checksums_at : checksums_at + len(sums)] = sums
        return self._done

    def _corrupt(self, layout: Layout, at: int, start: int, length: int) -> None:
        byte = self._staging.faulty.wrong_byte(self._hop, _meant(layout), out=True)
        if byte is not None and start <= (byte := _within(layout, byte)) < start + length:
            self._staging.memory[at + byte - start] ^= 1


class NullIncoming(Incoming):
    """A copy in. What was taken is read one slot at a time, whenever it is asked about."""

    def __init__(self, staging: NullStaging, layout: Layout, deadline: float) -> None:
        self._staging, self._layout, self._deadline = staging, layout, deadline
        self._memory = bytearray(layout.nbytes)
        self._begun: deque[tuple[int, int, int]] = deque()
        self._read = self._taken = 0

    def take(self, at: int, start: int, length: int) -> None:
        """As in the port."""
        if start == 0:
            self._staging.hops_in += 1
        self._staging.faulty.use(self._staging.hops_in, out=False, deadline=self._deadline)
        self._begun.append((at, start, length))
        self._taken += 1

    def mark(self) -> Callable[[], bool]:
        """As in the port."""
        due = self._taken

        def read() -> bool:
            if self._read < due:
                self._read_next()
            return self._read >= due

        return read

    def _read_next(self) -> None:
        at, start, length = self._begun.popleft()
        self._memory[start : start + length] = self._staging.memory[at : at + length]
        self._read += 1

    def finish(self) -> dict[str, Any]:
        """As in the port."""
        while self._begun:
            self._read_next()
        byte = self._staging.faulty.wrong_byte(
            self._staging.hops_in, _meant(self._layout), out=False
        )
        if byte is not None:
            self._memory[_within(self._layout, byte)] ^= 1
        return {
            spec.name: NullTensor(
                spec.dtype,
                spec.shape,
                self._staging.device,
                self._memory[offset : offset + spec.nbytes],
            )
            for spec, offset in zip(self._layout.specs, self._layout.offsets, strict=True)
        }


def _spec(name: object, tensor: object) -> TensorSpec:
    """Description of what crosses. Raises ValueError for what cannot."""
    if not isinstance(name, str) or not isinstance(tensor, NullTensor):
        raise ValueError(f"{name!r} with {type(tensor).__name__} is not a named tensor")
    if tensor.dtype not in DTYPE_BYTES:
        raise ValueError(f"{name!r} is {tensor.dtype}, which cannot cross")
    return TensorSpec(name, tensor.dtype, tensor.shape)


def _checksum(tensor: NullTensor) -> bytes:
    return hashlib.blake2b(tensor.data, digest_size=_CHECKSUM_BYTES).digest()


def _meant(layout: Layout) -> int:
    """Bytes of a hop without the gaps between its tensors."""
    return sum(spec.nbytes for spec in layout.specs)


def _within(layout: Layout, byte: int) -> int:
    """Where byte number ``byte`` of the tensors lies in the payload."""
    for spec, offset in zip(layout.specs, layout.offsets, strict=True):
        if byte < spec.nbytes:
            return offset + byte
        byte -= spec.nbytes
    raise IndexError(byte)
