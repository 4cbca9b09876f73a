"""Both ends of a link in this process, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .link_kinds import Kind, Opened

Half = Callable[[Any, str], Any]


def run_both(kind: Kind, send: Half, receive: Half) -> Any:
    """Run both halves with new ends of ``kind``, close those; what ``receive`` returned."""
    return run_opened(kind, *kind.open_both(), send, receive)


def run_opened(kind: Kind, sender: Opened, receiver: Opened, send: Half, receive: Half) -> Any:
    """The same with ends that are open already. A half that fails closes its end at once."""
    with ThreadPoolExecutor(2) as threads:
        halves = [
            threads.submit(_run, opened, half, device)
            for opened, half, device in zip(
                (sender, receiver), (send, receive), kind.devices, strict=True
            )
        ]
    failed = [half.exception() for half in halves]
    for opened in (sender, receiver):
        _close(opened)
    for error in sorted(filter(None, failed), key=lambda error: type(error).__name__):
        raise error  # AssertionError before the PeerLost that it made of the other end
    return halves[1].result()


def _run(opened: Opened, half: Half, device: str) -> Any:
    try:
        with opened.around():
            return half(opened.end, device)
    except BaseException:
        _close(opened)
        raise


def _close(opened: Opened) -> None:
    with opened.around():
        opened.end.close()
