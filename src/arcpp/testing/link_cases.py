"""Every promise of ``arcpp.link.port`` as a case with two halves, one for each end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from arcpp.link import LinkReceiver, LinkSender
from arcpp.link.frame import DTYPE_BYTES

from . import watch
from .kit import Hop, Kit, kit_for
from .watch import check, check_same


@dataclass(frozen=True)
class LinkCase:
    """One promise. Both halves take their end and the device to put tensors on ("cpu", "xpu:0")."""

    name: str
    send: Callable[[LinkSender, str], None]
    receive: Callable[[LinkReceiver, str], None]

    def __str__(self) -> str:
        return self.name


def run_in_threads(
    case: LinkCase, sender: LinkSender, receiver: LinkReceiver, device: str = "cpu"
) -> None:
    """Run both halves of ``case`` in this process, close both ends, raise what a half raised."""
    try:
        with ThreadPoolExecutor(2) as threads:
            halves = [
                threads.submit(case.receive, receiver, device),
                threads.submit(case.send, sender, device),
            ]
        for half in halves:
            half.result()
    finally:
        _close_twice(sender, device)
        _close_twice(receiver, device)


def _dtypes(kit: Kit) -> Iterator[Hop]:
    yield {d: kit.pattern(d, (7, 33), seed) for seed, d in enumerate(DTYPE_BYTES)}


def _shapes(kit: Kit) -> Iterator[Hop]:
    shapes: tuple[tuple[int, ...], ...] = (
        *((), (0,), (1,), (3, 0, 5), (1, 2, 1, 2, 1, 2, 1, 2), (2_000_003,)),
    )
    for dtype in ("bfloat16", "bool", "int64"):
        yield {f"{shape}": kit.pattern(dtype, shape, len(shape)) for shape in shapes}


def _views(kit: Kit) -> Iterator[Hop]:
    yield kit.views()


def _names(kit: Kit) -> Iterator[Hop]:
    names = ("z", "a", "hidden_states", "Schicht 3", "\N{GREEK SMALL LETTER ALPHA}" * 32, "x" * 64)
    yield {name: kit.pattern("int8", (3,), seed) for seed, name in enumerate(names)}
    yield {}
    yield {"after an empty hop": kit.pattern("int8", (3,), 0)}


def _empties(kit: Kit) -> Iterator[Hop]:
    """Tensors without bytes, between hops that have some: nothing of those may be taken for it."""
    for seed in range(20):
        yield {
            "x": kit.pattern("int32", (seed % 2 * 64, 5), seed),
            "y": kit.pattern("int8", (0,), 0),
        }


def _many(kit: Kit) -> Iterator[Hop]:
    for hop in range(200):
        yield {"x": kit.pattern("int16", (hop * 37 % 101, 5), hop)}


def _growing(kit: Kit) -> Iterator[Hop]:
    """From one row to a few MiB and back, so that a ring's slots are too small for some."""
    for rows in (1, 40, 700, 9000, 700, 1, 9001, 3):
        yield {
            "hidden": kit.pattern("bfloat16", (rows, 256), rows),
            "residual": kit.pattern("bfloat16", (rows, 256), rows + 1),
            "odd": kit.pattern("uint8", (rows * 3 + 1,), rows),
        }


_Hops = Callable[[Kit], Iterator[Hop]]


def _crossing(name: str, hops: _Hops, *, pause: float = 0.0) -> LinkCase:
    """All hops arrive as sent; ``pause``: seconds the receiver lets pass before each."""

    def send(sender: LinkSender, device: str) -> None:
        for hop in hops(kit_for(device)):
            sender.send(hop, timeout=watch.PATIENCE)

    def receive(receiver: LinkReceiver, device: str) -> None:
        kit = kit_for(device)
        for hop in hops(kit):
            time.sleep(pause)
            check_same(kit, receiver.recv(timeout=watch.PATIENCE), hop)

    return LinkCase(name, send, receive)


def _overwritten(kit: Kit) -> Iterator[Hop]:
    for seed in range(12):
        yield {"x": kit.pattern("int32", (64, 1024), seed)}


def _send_overwriting(sender: LinkSender, device: str) -> None:
    kit = kit_for(device)
    reused = kit.pattern("int32", (64, 1024), 0)
    for hop in _overwritten(kit):
        kit.overwrite(reused, hop["x"])
        sender.send({"x": reused}, timeout=watch.PATIENCE)
        kit.zero(reused)


def _receive_keeping(receiver: LinkReceiver, device: str) -> None:
    kit = kit_for(device)
    hops = list(_overwritten(kit))
    kept = [receiver.recv(timeout=watch.PATIENCE) for _ in hops]
    for got, hop in zip(kept, hops, strict=True):
        check_same(kit, got, hop)
        kit.zero(got["x"])


_STRANGERS = ("a complex tensor", "a sparse tensor", "a tensor without data")
_CANNOT_CROSS: dict[str, Callable[[Kit], dict[Any, Any]]] = {
    "a list": lambda _kit: {"x": [1, 2]},
    "None": lambda _kit: {"x": None},
    "no name": lambda kit: {"": _good(kit)},
    "a number for a name": lambda kit: {3: _good(kit)},
    "a long name": lambda kit: {"x" * 65: _good(kit)},
    "nine dimensions": lambda kit: {"x": kit.pattern("int8", (2,) + (1,) * 8, 0)},
    "65 tensors": lambda kit: {f"{number}": _good(kit) for number in range(65)},
}


def _good(kit: Kit) -> Any:
    return kit.pattern("int8", (2,), 0)


def _refusing(what: str, hop_of: Callable[[Kit], dict[Any, Any]]) -> LinkCase:
    def send(sender: LinkSender, device: str) -> None:
        hop = hop_of(kit_for(device))
        try:
            sender.send(hop, timeout=watch.PATIENCE)
        except ValueError as error:
            check(len(str(error).splitlines()) == 1, f"more than one line: {error}")
        else:
            raise AssertionError(f"{what} was sent")

    return LinkCase(f"{what} is refused", send, _nothing)


def _refusing_stranger(what: str) -> LinkCase:
    return _refusing(what, lambda kit: {"x": kit.strangers()[what]()})


def _close_twice(end: LinkSender | LinkReceiver, device: str) -> None:  # noqa: ARG001 (a half)
    end.close()
    end.close()


def _nothing(end: LinkSender | LinkReceiver, device: str) -> None:
    """This end stays open and does nothing."""


LINK_CASES: tuple[LinkCase, ...] = (
    _crossing("every dtype arrives bit by bit", _dtypes),
    _crossing("every shape arrives", _shapes),
    _crossing("tensors that are not contiguous arrive", _views),
    _crossing("names arrive in order, empty hops too", _names),
    _crossing("tensors without bytes arrive", _empties),
    _crossing("many hops arrive in order", _many),
    _crossing("hops of all sizes arrive, larger than what was prepared too", _growing),
    _crossing("a slow receiver loses nothing", _overwritten, pause=0.02),
    LinkCase("tensors may be reused at once by both ends", _send_overwriting, _receive_keeping),
    *map(_refusing_stranger, _STRANGERS),
    *(_refusing(what, hop_of) for what, hop_of in _CANNOT_CROSS.items()),
    LinkCase(
        "a silent sender is noticed at the deadline",
        _nothing,
        lambda receiver, _device: watch.expect_deadline_when_nobody_sends(receiver),
    ),
    LinkCase(
        "a full link holds the sender back",
        lambda sender, device: watch.expect_deadline_when_nobody_receives(sender, device=device),
        _nothing,
    ),
    LinkCase("both ends close at any time and twice", _close_twice, _close_twice),
)
