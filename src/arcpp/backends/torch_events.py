"""Events of a device, asked instead of waited for: a wait inside the runtime has no deadline."""

from __future__ import annotations

import time
from typing import Any

import torch

_ASK_S = 200e-6  # how long to ask without a pause: a copy of decode size is done by then
_PAUSE_S = 50e-6


class CurrentStream:
    """The current stream of one device, asked for several times a hop.

    torch's own question makes a new object each time, which costs as much as starting a copy; its
    raw handle says whether the last answer still holds. Where torch has no such handle the
    question is asked as usual.
    """

    def __init__(self, runtime: Any, place: torch.device) -> None:
        self._runtime, self._place = runtime, place
        self._raw = getattr(torch._C, f"_{place.type}_getCurrentRawStream", None)
        self._handle: int | None = None
        self._stream: Any = None

    def __call__(self) -> Any:
        """The stream."""
        if self._raw is None:
            return self._runtime.current_stream(self._place)
        handle = self._raw(self._place.index)
        if self._stream is None or handle != self._handle:
            self._stream, self._handle = self._runtime.current_stream(self._place), handle
        return self._stream


class Events:
    """Events of one device, kept for the next time once they have happened."""

    def __init__(self, runtime: Any) -> None:
        """runtime: torch.xpu or torch.cuda."""
        self._runtime = runtime
        self._free: list[Any] = []

    def mark(self, stream: Any) -> Any:
        """An event recorded on ``stream`` now."""
        event = self._free.pop() if self._free else self._runtime.Event()
        event.record(stream)
        return event

    def reuse(self, event: Any) -> None:
        """Take back an event that has happened."""
        self._free.append(event)


def finish(event: Any, deadline: float) -> None:
    """Wait until ``event`` has happened, or everything on a stream. Raises TimeoutError."""
    if event.query():
        return
    ask_until = time.monotonic() + _ASK_S
    while not event.query():
        now = time.monotonic()
        if now >= deadline:
            raise TimeoutError
        if now >= ask_until:
            time.sleep(_PAUSE_S)
