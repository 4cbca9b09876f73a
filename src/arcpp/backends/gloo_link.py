"""A link over host memory and gloo: correct on any device, slow, no device collective.

Every boundary is staged: device -> host memory -> gloo -> host memory -> device. This is the
first implementation behind the Link port; it exists so that nothing above depends on how a
boundary travels.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..errors import DeadlineExceeded, LinkError, PeerLost
from ..link import (
    FRAME_HEADER_BYTES,
    Frame,
    LinkReceiver,
    LinkSender,
    TensorSpec,
    decode_frame,
    encode_frame,
)

_HOPS_IN_FLIGHT = 4  # sends whose buffers are still held before the next send waits


class GlooSender(LinkSender):
    """Sends to global rank ``peer`` over ``group``, which must be a gloo group of both ends."""

    def __init__(self, name: str, peer: int, group: Any) -> None:
        self.name = name
        self._peer, self._group = peer, group
        self._step = 0
        self._in_flight: deque[list[tuple[Any, torch.Tensor]]] = deque()

    def send(self, tensors: Mapping[str, Any], *, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while len(self._in_flight) >= _HOPS_IN_FLIGHT:
            for work, _buffer in self._in_flight.popleft():
                _wait(work, deadline, self.name, self._step)
        staged = {name: _stage(tensor) for name, tensor in tensors.items()}
        specs = (
            TensorSpec(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            for name, tensor in staged.items()
        )
        header = encode_frame(Frame(self._step, tuple(specs)))
        buffers = [torch.frombuffer(bytearray(header), dtype=torch.uint8)]
        buffers += [_as_bytes(tensor) for tensor in staged.values() if tensor.numel()]
        try:
            self._in_flight.append([(self._isend(buffer), buffer) for buffer in buffers])
        except RuntimeError as error:
            raise _lost(self.name, self._step, error) from error
        self._step += 1

    def _isend(self, buffer: torch.Tensor) -> Any:
        return dist.isend(buffer, dst=self._peer, group=self._group)

    def close(self) -> None:
        self._in_flight.clear()


class GlooReceiver(LinkReceiver):
    """Receives from global rank ``peer`` over ``group`` and places tensors on ``device``."""

    def __init__(self, name: str, peer: int, group: Any, device: torch.device) -> None:
        self.name = name
        self._peer, self._group, self._device = peer, group, device
        self._step = 0
        self._header = torch.empty(FRAME_HEADER_BYTES, dtype=torch.uint8)

    def recv(self, *, timeout: float) -> dict[str, torch.Tensor]:
        deadline = time.monotonic() + timeout
        self._fill(self._header, deadline)
        frame = decode_frame(self._header.numpy().tobytes(), link=self.name, step=self._step)
        tensors = {}
        for spec in frame.tensors:
            host = torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))
            if host.numel():
                self._fill(_as_bytes(host), deadline)
            tensors[spec.name] = host.to(self._device)
        self._step += 1
        return tensors

    def _fill(self, buffer: torch.Tensor, deadline: float) -> None:
        try:
            work = dist.irecv(buffer, src=self._peer, group=self._group)
        except RuntimeError as error:
            raise _lost(self.name, self._step, error) from error
        _wait(work, deadline, self.name, self._step)

    def close(self) -> None:
        """Nothing is held between hops."""


def _stage(tensor: torch.Tensor) -> torch.Tensor:
    """Own contiguous copy in host memory, complete when this returns."""
    return tensor.detach().contiguous().to("cpu", copy=True)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _wait(work: Any, deadline: float, link: str, step: int) -> None:
    remaining = max(deadline - time.monotonic(), 0.001)
    try:
        work.wait(timedelta(seconds=remaining))
    except RuntimeError as error:
        if time.monotonic() >= deadline:
            raise DeadlineExceeded(
                f"{link}: hop {step} did not finish in time and the peer is silent",
                link=link,
                step=step,
            ) from error
        raise _lost(link, step, error) from error


def _lost(link: str, step: int, error: Exception) -> LinkError:
    return PeerLost(f"{link}: the peer went away during hop {step} ({error})", link=link, step=step)
