"""A link over host memory and gloo: correct on any device, slow, no device collective.

Every boundary is staged: device -> host memory -> gloo -> host memory -> device. This is the
first implementation behind the Link port; it exists so that nothing above depends on how a
boundary travels.

An expired wait makes gloo close the connection of the two ranks within the group. The other end
then sees PeerLost, as would a second link between the same two ranks over the same group.
"""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from arcpp.errors import DeadlineExceeded, LinkCorrupt, LinkError, PeerLost
from arcpp.link import (
    FRAME_HEADER_BYTES,
    Frame,
    LinkCounters,
    LinkEnd,
    LinkReceiver,
    LinkSender,
    TensorSpec,
    decode_frame,
    encode_frame,
)
from arcpp.link.frame import DTYPE_BYTES

from .torch_bytes import as_bytes

_HOPS_IN_FLIGHT = 4  # sends whose buffers are still held before the next send waits
# gloo's messages begin with a source file and end in advice about remote workers.
_GLOO_NOISE = re.compile(r"^\[[^\]]*\] | This is typically .*$")


def open_gloo_end(end: LinkEnd) -> LinkSender | LinkReceiver:
    """The end that ``end`` describes."""
    if end.sends:
        return GlooSender(end.name, end.peer, end.group)
    return GlooReceiver(end.name, end.peer, end.group, torch.device(end.device))


class _GlooEnd:
    """What both ends share: the peer, the count of hops, and the fault that ended the link."""

    kind = "gloo"

    def __init__(self, name: str, peer: int, group: Any) -> None:
        self.name = name
        self._peer, self._group = peer, group
        self._step = 0
        self._fault: LinkError | None = None
        self.counters = LinkCounters()

    def _check_usable(self) -> None:
        """After a fault, gloo's own errors would blame the peer for what we closed."""
        if self._fault is not None:
            raise type(self._fault)(
                f"{self.name}: not usable since hop {self._fault.step} failed",
                link=self.name,
                step=self._fault.step,
            )

    def _wait(self, work: Any, deadline: float) -> None:
        # Rounded up: gloo counts whole milliseconds, and a wait that ends before the deadline
        # is taken for a lost peer. At least one, because 0 means no limit.
        milliseconds = max(math.ceil((deadline - time.monotonic()) * 1000), 1)
        began = time.monotonic()
        try:
            work.wait(timedelta(milliseconds=milliseconds))
        except RuntimeError as error:
            if time.monotonic() < deadline:
                raise self._lost(error) from error
            raise self._failed(
                DeadlineExceeded, f"hop {self._step} did not finish in time and the peer is silent"
            ) from error
        finally:
            self.counters.wait_seconds += time.monotonic() - began

    def _lost(self, error: Exception) -> LinkError:
        reason = _GLOO_NOISE.sub("", " ".join(str(error).split()))
        return self._failed(PeerLost, f"the peer went away during hop {self._step} ({reason})")

    def _counted(self, frame: Frame) -> None:
        self._step += 1
        self.counters.crossed(frame.nbytes)

    def _failed(self, kind: type[LinkError], what: str) -> LinkError:
        self._fault = kind(f"{self.name}: {what}", link=self.name, step=self._step)
        return self._fault


class GlooSender(_GlooEnd, LinkSender):
    """Sends to global rank ``peer`` over ``group``, a gloo group of both ends for this link."""

    def __init__(self, name: str, peer: int, group: Any) -> None:
        super().__init__(name, peer, group)
        self._in_flight: deque[list[tuple[Any, torch.Tensor]]] = deque()

    def send(self, tensors: Mapping[str, Any], *, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        self._check_usable()
        frame = Frame(
            self._step, tuple(_spec(name, tensor, self.name) for name, tensor in tensors.items())
        )
        header = encode_frame(frame)
        while len(self._in_flight) >= _HOPS_IN_FLIGHT:
            for work, _buffer in self._in_flight.popleft():
                self._wait(work, deadline)
        buffers = [torch.frombuffer(bytearray(header), dtype=torch.uint8)]
        buffers += [as_bytes(_stage(tensor)) for tensor in tensors.values() if tensor.numel()]
        try:
            self._in_flight.append([(self._isend(buffer), buffer) for buffer in buffers])
        except RuntimeError as error:
            raise self._lost(error) from error
        self._counted(frame)

    def _isend(self, buffer: torch.Tensor) -> Any:
        return dist.isend(buffer, dst=self._peer, group=self._group)

    def close(self) -> None:
        """Drop the buffers; what the peer has not taken by now may not reach it."""
        self._in_flight.clear()


class GlooReceiver(_GlooEnd, LinkReceiver):
    """Receives from global rank ``peer`` over ``group`` and places tensors on ``device``."""

    def __init__(self, name: str, peer: int, group: Any, device: torch.device) -> None:
        super().__init__(name, peer, group)
        self._device = device
        self._header = torch.empty(FRAME_HEADER_BYTES, dtype=torch.uint8)

    def recv(self, *, timeout: float) -> dict[str, torch.Tensor]:
        deadline = time.monotonic() + timeout
        self._check_usable()
        self._fill(self._header, deadline)
        try:
            frame = decode_frame(self._header.numpy().tobytes(), link=self.name, step=self._step)
        except LinkCorrupt as error:
            self._fault = error
            raise
        tensors = {}
        for spec in frame.tensors:
            host = self._room(spec)
            if host.numel():
                self._fill(as_bytes(host), deadline)
            tensors[spec.name] = host.to(self._device)
        self._counted(frame)
        return tensors

    def _room(self, spec: TensorSpec) -> torch.Tensor:
        try:
            return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:
            raise self._failed(
                LinkCorrupt,
                f"hop {self._step} announces {spec.nbytes} bytes, shape {spec.shape}: no room",
            ) from error

    def _fill(self, buffer: torch.Tensor, deadline: float) -> None:
        try:
            work = dist.irecv(buffer, src=self._peer, group=self._group)
        except RuntimeError as error:
            raise self._lost(error) from error
        self._wait(work, deadline)

    def close(self) -> None:
        """Nothing is held between hops."""


def _spec(name: object, tensor: object, link: str) -> TensorSpec:
    """Description of what crosses. Raises ValueError for what cannot."""
    if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{link}: {name!r} with {type(tensor).__name__} is not a named tensor")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"{link}: {name!r} is {dtype}, which cannot cross")
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise ValueError(f"{link}: {name!r} is not a dense tensor with data")
    return TensorSpec(name, dtype, tuple(tensor.shape))


def _stage(tensor: torch.Tensor) -> torch.Tensor:
    """Own contiguous copy in host memory, complete when this returns."""
    return tensor.detach().contiguous().to("cpu", copy=True)
