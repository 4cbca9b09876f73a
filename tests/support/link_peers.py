"""Two real processes with one end of a link each, told from outside what to do with it.

The processes come from a fork server that has torch loaded already, so that a pair costs a
fraction of a second and tests may kill their pair.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from arcpp.link import LinkEnd

NAME = "stage0->stage1"
DEVICE = os.environ.get("LINK_TEST_DEVICE", "cpu")
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch.distributed", "arcpp.testing", "numpy", "pytest"])


class Peer:
    """The process with one end. ``start`` runs a module-level function there, with the end."""

    def __init__(self, rank: int, store: Path, opener: Callable[[int], Any]) -> None:
        self._connection, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(rank, store, opener, theirs))
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def start(self, half: Callable[..., Any], *arguments: Any) -> None:
        self._connection.send((half, arguments))

    def result(self, patience: float = 60.0) -> Any:
        """What the function returned; AssertionError with its traceback if it raised."""
        assert self._connection.poll(patience), "no answer: the peer hangs"
        try:
            worked, value = self._connection.recv()
        except EOFError:
            self._process.join(5)
            raise AssertionError(f"the peer ended with {self._process.exitcode}") from None
        assert worked, f"in the peer:\n{value}"
        return value

    def run(self, half: Callable[..., Any], *arguments: Any) -> Any:
        self.start(half, *arguments)
        return self.result()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self) -> None:
        self._process.kill()  # a stopped process, too
        self._process.join(10)
        self._connection.close()


class Pair:
    """Sender and receiver of one link, each in its process."""

    def __init__(self, folder: Path, opener: Callable[[int], Any]) -> None:
        store = folder / "store"
        self.sender, self.receiver = (Peer(rank, store, opener) for rank in (0, 1))

    def __enter__(self) -> Pair:
        for peer in (self.sender, self.receiver):
            peer.run(_ready)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.sender.end()
        self.receiver.end()


def open_gloo(rank: int) -> Any:
    """The end of rank 0 or 1 of the link arcpp opens when no plugin does."""
    import torch.distributed as dist

    from arcpp.backends.links import arcpp_open_link

    group = dist.new_group(ranks=[0, 1], backend="gloo")
    return arcpp_open_link(LinkEnd(NAME, rank == 0, 1 - rank, DEVICE, group))


def nothing(rank: int) -> Any:
    """For peers that are only to be in the same process group."""


def _ready(end: Any) -> None:
    """Answers once the end is open."""


def _serve(rank: int, store: Path, opener: Callable[[int], Any], orders: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    end = opener(rank)
    with suppress(EOFError):
        while True:
            half, arguments = orders.recv()
            try:
                answer = (True, half(end, *arguments))
            except Exception:
                answer = (False, traceback.format_exc())
            orders.send(answer)
    os._exit(0)
