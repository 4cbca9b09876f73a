"""A device with streams where there is none: what is begun is done later, a little at a time.

Stands for torch.cuda and torch.xpu. Copies that torch was asked to make without waiting are put in
the queue of the current stream, and go on only when somebody asks an event or a stream whether it
is done, by a seed. So whatever uses bytes before they were copied, or gives memory back before it
was read, gets wrong bytes. Everything else that computes is done at once, after what its stream
still had to do, as on a device.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from arcpp.backends.pinning import Pinning
from arcpp.backends.torch_stream_staging import StreamStaging

CHUNK = 32 << 10
# What only looks at a tensor or makes one; all else is work for the device.
_AT_ONCE = {
    *("__getitem__", "__get__", "view", "detach", "numel", "size", "dim", "storage_offset"),
    *("data_ptr", "empty", "frombuffer", "is_floating_point", "__len__", "unbind", "tolist"),
}
_IF_CONTIGUOUS = {"contiguous", "reshape"}


class FakeRuntime:
    """torch.cuda or torch.xpu of one thread."""

    def __init__(self, seed: int) -> None:
        self._chosen = random.Random(seed)
        self.stuck = False  # nothing is ever done any more
        self.compute = FakeStream(self)
        self.current = self.compute

    def Stream(self, device: Any = None) -> FakeStream:  # noqa: N802 (torch's name)
        return FakeStream(self)

    def Event(self) -> FakeEvent:  # noqa: N802
        return FakeEvent()

    def current_stream(self, device: Any = None) -> FakeStream:
        return self.current

    def moves(self) -> bool:
        """Whether the device gets anything done right now."""
        return not self.stuck and self._chosen.random() < 0.6

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


class FakeStream:
    """Work in order. An entry of the queue says, when it is tried, whether it is done."""

    def __init__(self, runtime: FakeRuntime) -> None:
        self.runtime = runtime
        self.queue: deque[Callable[[], bool]] = deque()

    def query(self) -> bool:
        if self.queue and self.runtime.moves():
            self.step()
        return not self.queue

    def step(self) -> None:
        if self.queue and self.queue[0]():
            self.queue.popleft()

    def drain(self) -> None:
        while self.queue:
            self.step()

    def wait_stream(self, other: FakeStream) -> None:
        event = FakeEvent()
        event.record(other)

        def waited() -> bool:
            other.step()
            return event.happened

        self.queue.append(waited)


class FakeEvent:
    """Happened once its stream came to it. May be recorded again."""

    def __init__(self) -> None:
        self.happened = False
        self._stream: FakeStream | None = None
        self._recorded: object = None

    def record(self, stream: FakeStream) -> None:
        mark = object()
        self.happened, self._stream, self._recorded = False, stream, mark

        def reached() -> bool:
            self.happened |= self._recorded is mark
            return True

        stream.queue.append(reached)

    def query(self) -> bool:
        if not self.happened and self._stream is not None:
            self._stream.query()
        return self.happened


class FakeDevice(TorchFunctionMode):
    """Within it, copies of this thread that nobody waits for go through ``runtime``."""

    def __init__(self, runtime: FakeRuntime) -> None:
        super().__init__()
        self.runtime = runtime

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "copy_":
            if kwargs.get("non_blocking"):
                self.runtime.current.queue.append(lambda: _done(func, args, kwargs))
                return args[0]
            if "non_blocking" not in kwargs:
                return func(*args, **kwargs)  # host to host
        plain = name in _IF_CONTIGUOUS and args[0].is_contiguous()
        if not plain and name not in _AT_ONCE:
            self.runtime.current.drain()
        return func(*args, **kwargs)


def _record_stream(tensor: torch.Tensor, stream: Any) -> None:
    """torch's own wants a stream of its own before it asks anybody."""
    if not isinstance(stream, FakeStream):
        torch._C.TensorBase.record_stream(tensor, stream)


torch.Tensor.record_stream = _record_stream


def _done(func: Any, args: Any, kwargs: Any) -> bool:
    with torch._C.DisableTorchFunction():
        func(*args, **kwargs)
    return True


def staging_on_fake(
    pinning: str, seed: int = 0, chunk: int = CHUNK
) -> tuple[StreamStaging, Callable[[], AbstractContextManager[Any]]]:
    """A staging on a device of its own, and what is to be around its use."""
    runtime = FakeRuntime(seed)
    pinner = lambda address, nbytes, place: Pinning(pinning, lambda: None)  # noqa: E731
    staging = StreamStaging(torch.device("cpu", 0), pinner, chunk, runtime)
    return staging, lambda: FakeDevice(runtime)
