"""Two real processes with one end of a link each, told from outside what to do with it.

The processes come from a fork server that has torch loaded already, and serve one link after the
other, so that a link costs milliseconds; those whose peers were killed or stopped are not reused.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from .link_kinds import DEVICES, P2P, RING, Kind, Opened, join_group, open_over_group

__all__ = ["DEVICES", "Pair", "Pairs", "Peer", "nothing", "open_p2p", "open_ring", "over_group"]

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch.distributed", "arcpp.testing", "numpy", "pytest"])


class Peer:
    """The process with one end. ``start`` runs a module-level function there, with the end."""

    def __init__(self, rank: int, folder: Path) -> None:
        self._connection, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(rank, folder, theirs))
        self._process.start()
        theirs.close()
        self.busy = self.signalled = False
        self.device = ""

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def start(self, half: Callable[..., Any] | None, *arguments: Any) -> None:
        self.busy = True
        self._connection.send((half, arguments))

    def answered(self, patience: float) -> bool:
        """Whether result() would not wait, after ``patience`` seconds at most."""
        return self._connection.poll(patience)

    def result(self, patience: float = 60.0) -> Any:
        """What the function returned; AssertionError with its traceback if it raised."""
        assert self._connection.poll(patience), "no answer: the peer hangs"
        try:
            worked, value = self._connection.recv()
        except EOFError:
            self._process.join(5)
            raise AssertionError(f"the peer ended with {self._process.exitcode}") from None
        self.busy = False
        assert worked, f"in the peer:\n{value}"
        return value

    def run(self, half: Callable[..., Any] | None, *arguments: Any) -> Any:
        self.start(half, *arguments)
        return self.result()

    def signal(self, number: int) -> None:
        self.signalled = True
        os.kill(self.pid, number)

    def end(self) -> None:
        """Whatever it does, or does not do because it is stopped."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._process.join(10)
        self._connection.close()


class Pair:
    """Sender and receiver, each in its process.

    opener: within ``with``, what makes the only link, from the rank in a torch.distributed group.
    """

    def __init__(self, folder: Path, opener: Callable[[int], Any] | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self._opener = opener
        self.sender, self.receiver = (Peer(rank, folder) for rank in (0, 1))
        self._links = 0

    def __enter__(self) -> Pair:
        if self._opener is not None:
            self.open(over_group(self._opener))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def open(self, kind: Kind) -> None:
        """A new link of ``kind`` between the two, in the place of the last."""
        self._links += 1
        for peer, device in zip((self.sender, self.receiver), kind.devices, strict=True):
            peer.device = device
            peer.start(None, kind, self._links)
        for peer in (self.sender, self.receiver):
            peer.result()

    @property
    def is_whole(self) -> bool:
        """Whether both are there, idle, and were not sent a signal."""
        return not any(peer.busy or peer.signalled for peer in (self.sender, self.receiver))

    def end(self) -> None:
        self.sender.end()
        self.receiver.end()


class Pairs:
    """Hands out a pair, the same one for as long as it is whole."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, 0
        self._pair: Pair | None = None

    def get(self, kind: Kind) -> Pair:
        """A pair with a new link of ``kind``."""
        if self._pair is not None and not self._pair.is_whole:
            self.end()
        if self._pair is None:
            self._made += 1
            self._pair = Pair(self._folder / str(self._made))
        self._pair.open(kind)
        return self._pair

    def end(self) -> None:
        if self._pair is not None:
            self._pair.end()
        self._pair = None


def over_group(opener: Callable[[int], Any]) -> Kind:
    """What ``opener`` makes, from the rank in a torch.distributed group, as a kind of link."""
    return Kind("opened by a test", _with_group, data=opener)


def open_ring(rank: int) -> Any:
    """The end of rank 0 or 1, as a host opens it."""
    return open_over_group(RING, rank).end


def open_p2p(rank: int) -> Any:
    """The same from card to card, where that is possible."""
    return open_over_group(P2P, rank).end


def nothing(rank: int) -> Any:
    """For peers that are only to be in the same process group."""


def _with_group(kind: Kind, rank: int, folder: Path, number: int) -> Opened:
    join_group(rank, folder)
    return Opened(kind.data(rank))


def _serve(rank: int, folder: Path, orders: Connection) -> None:
    import torch

    torch.set_num_threads(1)  # two processes that both take every core wait for each other
    opened: Opened | None = None
    with suppress(EOFError):
        while True:
            half, arguments = orders.recv()
            try:
                if half is None:
                    kind, number = arguments
                    if opened is not None and opened.end is not None:
                        opened.end.close()
                    opened, answer = None, None
                    opened = kind.open(rank, folder, number)
                else:
                    assert opened is not None
                    with opened.around():
                        answer = half(opened.end, *arguments)
                orders.send((True, answer))
            except Exception:
                orders.send((False, traceback.format_exc()))
    os._exit(0)
