"""The ways of moving a payload that ``arcpp bench hop`` compares, each between ranks 0 and 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from arcpp.link import BoundarySpec, LinkEnd, LinkReceiver, LinkSender, TensorSpec
from arcpp.settings import Settings

from .links import arcpp_open_link
from .torch_bounce import pinned
from .torch_devices import synchronize

PATIENCE = 60.0


class Way(Protocol):
    """Moves payloads to and from the other rank. Both ranks make the same ways in one order."""

    def send(self, payload: torch.Tensor) -> None:
        """To the other rank; the payload may be overwritten afterwards."""
        ...

    def recv(self, size: int) -> torch.Tensor:
        """``size`` bytes from the other rank, on this rank's device and complete there."""
        ...

    def take(self, size: int) -> torch.Tensor:
        """As recv, but complete only for what the device's current stream does next."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class LinkWay:
    """A link in each direction."""

    def __init__(
        self, rank: int, device: torch.device, largest: int, group: Any, settings: Settings
    ) -> None:
        boundary = BoundarySpec((TensorSpec("x", "uint8", (largest,)),))
        ends = {}
        for source in (0, 1):
            name, sends = f"rank{source}->rank{1 - source}", rank == source
            end = LinkEnd(name, sends, 1 - rank, str(device), group, boundary)
            ends[sends] = arcpp_open_link(end, settings)
        sender, receiver = ends[True], ends[False]
        assert isinstance(sender, LinkSender)
        assert isinstance(receiver, LinkReceiver)
        self.sender, self.receiver, self._device = sender, receiver, device

    def describe(self) -> dict[str, Any]:
        """Kind of link, how its memory is known to the device, and what it noted."""
        pinning = getattr(self.sender, "pinning", "host")
        notes = [*getattr(self.sender, "notes", ()), *getattr(self.receiver, "notes", ())]
        return {"kind": self.sender.kind, "pinning": pinning, "notes": notes}

    def send(self, payload: torch.Tensor) -> None:
        """As in Way."""
        self.sender.send({"x": payload}, timeout=PATIENCE)

    def take(self, size: int) -> torch.Tensor:  # noqa: ARG002 (the header says it)
        """As in Way."""
        payload: torch.Tensor = self.receiver.recv(timeout=PATIENCE)["x"]
        return payload

    def recv(self, size: int) -> torch.Tensor:
        """As in Way."""
        payload = self.take(size)
        if self._device.type != "cpu":
            torch.get_device_module(self._device).current_stream(self._device).synchronize()
        return payload

    def close(self) -> None:
        """As in Way."""
        self.sender.close()
        self.receiver.close()


class GlooWay:
    """torch.distributed's gloo, through host memory."""

    def __init__(self, rank: int, device: torch.device, largest: int, group: Any) -> None:
        self._peer, self._device, self._group = 1 - rank, device, group
        self._host = pinned(largest, torch.uint8)

    def send(self, payload: torch.Tensor) -> None:
        """As in Way."""
        if self._device.type != "cpu":
            host = self._host[: payload.numel()]
            host.copy_(payload, non_blocking=True)
            synchronize(torch, self._device)
            payload = host
        dist.send(payload, dst=self._peer, group=self._group)

    def recv(self, size: int) -> torch.Tensor:
        """As in Way."""
        host = self._host[:size]
        dist.recv(host, src=self._peer, group=self._group)
        if self._device.type == "cpu":
            return host
        arrived = host.to(self._device, non_blocking=True)
        synchronize(torch, self._device)
        return arrived

    take = recv  # the buffer is needed for the next

    def close(self) -> None:
        """As in Way."""


class CollectiveWay:
    """The device's collective library (xccl, nccl), from device memory to device memory."""

    def __init__(self, rank: int, device: torch.device, group: Any) -> None:
        self._peer, self._device, self._group = 1 - rank, device, group

    def send(self, payload: torch.Tensor) -> None:
        """As in Way."""
        dist.send(payload, dst=self._peer, group=self._group)
        synchronize(torch, self._device)

    def recv(self, size: int) -> torch.Tensor:
        """As in Way."""
        arrived = self.take(size)
        synchronize(torch, self._device)
        return arrived

    def take(self, size: int) -> torch.Tensor:
        """As in Way."""
        arrived = torch.empty(size, dtype=torch.uint8, device=self._device)
        dist.recv(arrived, src=self._peer, group=self._group)
        return arrived

    def close(self) -> None:
        """As in Way."""


class RawCopies:
    """The two copies that any way through host memory needs, alone on this rank's device.

    send: device to pinned host memory. recv: back. On the CPU both are a copy in host memory.
    """

    def __init__(self, device: torch.device, largest: int) -> None:
        self._device = device
        self._host = pinned(largest, torch.uint8)
        self._there = torch.empty(largest, dtype=torch.uint8, device=device)

    def send(self, payload: torch.Tensor) -> None:
        """As in Way."""
        self._host[: payload.numel()].copy_(payload, non_blocking=True)
        synchronize(torch, self._device)

    def recv(self, size: int) -> torch.Tensor:
        """As in Way."""
        self._there[:size].copy_(self._host[:size], non_blocking=True)
        synchronize(torch, self._device)
        return self._there[:size]

    take = recv

    def both(self, payload: torch.Tensor) -> Callable[[], None]:
        """Out and back, each waited for, with nothing else in it."""
        host, there = self._host[: payload.numel()], self._there[: payload.numel()]
        if self._device.type == "cpu":
            waited: Callable[[], None] = lambda: None  # noqa: E731
        else:
            waited = torch.get_device_module(self._device).current_stream(self._device).synchronize

        def once() -> None:
            host.copy_(payload, non_blocking=True)
            waited()
            there.copy_(host, non_blocking=True)
            waited()

        return once

    def stream(self, payload: torch.Tensor, times: int, out: bool) -> None:
        """``times`` copies in one direction without waiting between them."""
        size = payload.numel()
        ends = (self._host, payload) if out else (self._there, self._host)
        target, source = ends[0][:size], ends[1][:size]
        for _ in range(times):
            target.copy_(source, non_blocking=True)
        synchronize(torch, self._device)

    def close(self) -> None:
        """As in Way."""


def collective_of(devices: tuple[torch.device, torch.device]) -> str | None:
    """The collective library that connects ``devices``, or None."""
    kinds = {device.type for device in devices}
    name = {"cuda": "nccl", "xpu": "xccl"}.get(devices[0].type)
    if name is None or len(kinds) != 1 or devices[0] == devices[1]:
        return None
    return name if dist.is_backend_available(name) else None
